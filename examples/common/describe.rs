//! The zones of a machine in the layout of `/proc/zoneinfo`, before and after deferred initialisation.
//!
//! Owns: [`describe`]. Invariants: every value but the firmware's sizes is read from a real allocator, at the moment that it is
//! shown for; no formula is written here. A machine at rest: every managed frame is free.
//! Lock ranks: none. Used by: examples/zoneinfo.rs and the golden tests, with machine.rs beside it.
#![allow(
    unreachable_pub,
    dead_code,
    reason = "each example and test uses the part it needs"
)]

use std::fmt::{self, Write};

use framekeeper::node::formulas::{Edition, min_free_kib};
use framekeeper::pageset::tune;
use framekeeper::zone::Levels;
use framekeeper::{CpuId, NodeId, PageAllocator, Platform, ZoneKind};

use super::machine::{Machine, PAGE_SHIFT, ZoneLayout};

/// Which values are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Columns {
    /// Those after deferred initialisation.
    After,
    /// Those before it ended, and then those after.
    EarlyAndAfter,
}

/// What is known of one zone at one moment.
struct View {
    layout: ZoneLayout,
    managed: u64,
    shards: u32,
    levels: Levels,
    protection: [u64; ZoneKind::COUNT],
    /// By CPU.
    pagesets: Vec<tune::Limits>,
}

/// Text for every zone of the machine, whose allocator was built with deferred initialisation, which this ends.
pub fn describe<P: Platform>(
    machine: &Machine,
    allocator: &PageAllocator<P>,
    columns: Columns,
) -> Result<String, fmt::Error> {
    let early = views(machine, allocator);
    allocator.deferred_init(CpuId(0));
    // An error here means that another call has described it: then both columns show the end.
    let _ = allocator.finish_deferred();
    let after = views(machine, allocator);

    let mut out = String::new();
    if columns == Columns::EarlyAndAfter {
        let low_memory = after
            .iter()
            .filter(|view| view.layout.kind <= ZoneKind::Normal);
        let frames: u64 = low_memory.map(|view| view.managed).sum();
        let kib = min_free_kib(Edition::Now, frames << (PAGE_SHIFT - 10));
        writeln!(
            out,
            "before deferred initialisation ends, and after; min_free {kib} KiB\n"
        )?;
    }
    for (early, after) in early.iter().zip(&after) {
        let early = Some(early).filter(|_| columns == Columns::EarlyAndAfter);
        Block {
            out: &mut out,
            early,
            after,
        }
        .write()?;
    }
    Ok(out)
}

/// Every zone that the firmware's ranges make, those without memory included, as the allocator has them now.
fn views<P: Platform>(machine: &Machine, allocator: &PageAllocator<P>) -> Vec<View> {
    let pagesets: Vec<_> = allocator.pageset_counts().collect();
    let view = |layout: ZoneLayout| {
        let same = |node: NodeId, kind| (node, kind) == (NodeId(layout.node), layout.kind);
        let counts = allocator
            .zone_counts()
            .find(|zone| same(zone.node, zone.kind));
        let zone = allocator
            .zones()
            .find(|zone| same(zone.node(), zone.kind()));
        let of_zone = pagesets
            .iter()
            .filter(|pageset| same(pageset.node, pageset.kind));
        View {
            layout,
            managed: counts.map_or(0, |zone| zone.managed),
            shards: zone.map_or(0, |zone| zone.shards()),
            levels: counts.map_or(Levels::default(), |zone| zone.levels),
            protection: counts.map_or_else(Default::default, |zone| zone.reserves),
            pagesets: of_zone.map(|pageset| pageset.limits).collect(),
        }
    };
    machine.zones().into_iter().map(view).collect()
}

/// One zone's lines.
struct Block<'a> {
    out: &'a mut String,
    early: Option<&'a View>,
    after: &'a View,
}

impl Block<'_> {
    fn write(&mut self) -> fmt::Result {
        let layout = self.after.layout;
        writeln!(self.out, "Node {}, zone {:>8}", layout.node, layout.kind)?;
        self.line("  pages free     ", |view| view.managed)?;
        self.line("        boost    ", |_| 0)?;
        self.line("        min      ", |view| view.levels.min)?;
        self.line("        low      ", |view| view.levels.low)?;
        self.line("        high     ", |view| view.levels.high)?;
        self.line("        promo    ", |view| view.levels.promo)?;
        self.line("        spanned  ", |view| view.layout.span.frames())?;
        self.line("        present  ", |view| view.layout.present)?;
        self.line("        managed  ", |view| view.managed)?;
        self.line("        cma      ", |_| 0)?;
        if let Some(early) = self.early {
            write!(self.out, "        protection: {} ", Row(early.protection))?;
            writeln!(self.out, "{}", Row(self.after.protection))?;
        } else {
            writeln!(
                self.out,
                "        protection: {}",
                Row(self.after.protection)
            )?;
        }
        if layout.present == 0 {
            return Ok(());
        }
        self.line("      nr_free_pages ", |view| view.managed)?;
        self.line("      nr_shards ", |view| view.shards.into())?;
        writeln!(self.out, "  pagesets")?;
        for cpu in 0..self.after.pagesets.len() {
            writeln!(self.out, "    cpu: {cpu}")?;
            self.line("              count:    ", |_| 0)?;
            let mut line = |name: &str, value: fn(&tune::Limits) -> u32| {
                self.line(name, |view| view.pagesets.get(cpu).map_or(0, value).into())
            };
            line("              high:     ", |limits| limits.high_min)?;
            line("              batch:    ", |limits| limits.batch)?;
            line("              high_min: ", |limits| limits.high_min)?;
            line("              high_max: ", |limits| limits.high_max)?;
        }
        self.line("  start_pfn:           ", |view| view.layout.span.start().0)
    }

    fn line(&mut self, name: &str, value: impl Fn(&View) -> u64) -> fmt::Result {
        write!(self.out, "{name}")?;
        if let Some(early) = self.early {
            write!(self.out, "{:<9} ", value(early))?;
        }
        writeln!(self.out, "{}", value(self.after))
    }
}

/// The reserves, with the column that Linux has for device memory.
struct Row([u64; ZoneKind::COUNT]);

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [dma, dma32, normal, movable] = self.0;
        write!(f, "({dma}, {dma32}, {normal}, {movable}, {movable})")
    }
}
