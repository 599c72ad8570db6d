//! The zones of a machine in the layout of `/proc/zoneinfo`, before and after deferred initialisation.
//!
//! Owns: [`describe`]. Invariants: sizes and shards are those of a real allocator, limits those of the library's formulas;
//! a machine at rest: every managed frame is free.
//! Lock ranks: none. Used by: examples/zoneinfo.rs and the golden tests, with limits.rs and machine.rs beside it.
#![allow(
    unreachable_pub,
    dead_code,
    reason = "each example and test uses the part it needs"
)]

use std::fmt::{self, Write};

use framekeeper::node::formulas::{Edition, SCALE_FACTOR, min_free_kib};
use framekeeper::zone::Levels;
use framekeeper::{NodeId, PageAllocator, Platform, ZoneKind};

use super::limits::{self, Limits, Sizes};
use super::machine::{Machine, PAGE_SHIFT, ZoneLayout};

/// Which values are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Columns {
    /// Those after deferred initialisation.
    After,
    /// Those before it ended, and then those after.
    EarlyAndAfter,
}

/// Frames of a section, the unit of deferred initialisation: 128 MiB.
const SECTION: u64 = 1 << 15;

/// What is known of one zone at one moment.
struct View {
    layout: ZoneLayout,
    managed: u64,
    shards: u32,
    limits: Limits,
}

/// Text for every zone of the machine.
pub fn describe<P: Platform>(
    machine: &Machine,
    allocator: &PageAllocator<P>,
    columns: Columns,
) -> Result<String, fmt::Error> {
    let layouts = machine.zones();
    let sizes: Vec<(u64, u32)> = layouts
        .iter()
        .map(|layout| {
            let zone = allocator
                .zones()
                .find(|zone| zone.node() == NodeId(layout.node) && zone.kind() == layout.kind);
            zone.map_or((0, 0), |zone| (zone.managed(), zone.shards()))
        })
        .collect();
    let after: Vec<u64> = sizes.iter().map(|size| size.0).collect();
    let early: Vec<u64> = layouts
        .iter()
        .map(|layout| early_frames(machine, &layouts, layout))
        .collect();

    let low_memory = |managed: &[u64]| {
        let zones = layouts
            .iter()
            .map(|layout| layout.kind)
            .zip(managed.iter().copied());
        limits::total(Edition::Now, zones)
    };
    let kib = min_free_kib(Edition::Now, low_memory(&after) << (PAGE_SHIFT - 10));
    let views = |managed: &[u64], min_free_kib: Option<u64>| -> Vec<View> {
        let view = |(i, layout): (usize, &ZoneLayout)| {
            let of_node = |kind| {
                let mut all = layouts.iter().zip(managed);
                all.find(|(other, _)| (other.node, other.kind) == (layout.node, kind))
                    .map_or(0, |(_, &managed)| managed)
            };
            View {
                layout: *layout,
                managed: managed[i],
                shards: sizes[i].1,
                limits: Limits::of(&Sizes {
                    kind: layout.kind,
                    edition: Edition::Now,
                    managed: ZoneKind::ALL.map(of_node),
                    total: low_memory(managed),
                    min_free_kib,
                    scale_factor: SCALE_FACTOR,
                    low: 0,
                    cpus: machine.cpus_for_limits(layout.node),
                }),
            }
        };
        layouts.iter().enumerate().map(view).collect()
    };
    let (mut early, after) = (views(&early, None), views(&after, Some(kib)));
    for view in &mut early {
        // Watermarks and reserves are first computed when all memory is known; until then they are 0.
        view.limits.protection.fill(0);
    }

    let mut out = String::new();
    if columns == Columns::EarlyAndAfter {
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
        .write(machine.cpus)?;
    }
    Ok(out)
}

/// Frames handed over before deferred initialisation: all of a zone, but of a node's highest only up to the first section
/// boundary after more than one section's worth of frames.
fn early_frames(machine: &Machine, layouts: &[ZoneLayout], layout: &ZoneLayout) -> u64 {
    let above = |other: &&ZoneLayout| other.node == layout.node && other.kind > layout.kind;
    if layouts.iter().filter(above).any(|other| other.present != 0) {
        return layout.free;
    }
    let runs = |frames: (NodeId, framekeeper::FrameRange)| {
        let run = frames.1.intersect(layout.span);
        (frames.0.0 == layout.node && !run.is_empty()).then_some(run)
    };
    let mut seen = 0;
    let mut cut = u64::MAX;
    for run in machine.map.usable_frames(PAGE_SHIFT).filter_map(runs) {
        if seen + run.frames() > SECTION {
            let first = run.start().0 + SECTION.saturating_sub(seen);
            let boundary = first.next_multiple_of(SECTION);
            if boundary < run.end().0 {
                cut = boundary;
                break;
            }
        }
        seen += run.frames();
    }
    machine
        .map
        .free_frames(PAGE_SHIFT)
        .filter_map(runs)
        .map(|run| run.end().0.min(cut).saturating_sub(run.start().0))
        .sum()
}

/// One zone's lines.
struct Block<'a> {
    out: &'a mut String,
    early: Option<&'a View>,
    after: &'a View,
}

impl Block<'_> {
    fn write(&mut self, cpus: u32) -> fmt::Result {
        let layout = self.after.layout;
        writeln!(self.out, "Node {}, zone {:>8}", layout.node, layout.kind)?;
        self.line("  pages free     ", |view| view.managed)?;
        self.line("        boost    ", |_| 0)?;
        let marks = |view: &View| view.limits.watermarks.filter(|_| view.managed != 0);
        let mark = |view: &View, mark: fn(Levels) -> u64| marks(view).map_or(0, mark);
        self.line("        min      ", |view| mark(view, |marks| marks.min))?;
        self.line("        low      ", |view| mark(view, |marks| marks.low))?;
        self.line("        high     ", |view| mark(view, |marks| marks.high))?;
        self.line("        promo    ", |view| mark(view, |marks| marks.promo))?;
        self.line("        spanned  ", |view| view.layout.span.frames())?;
        self.line("        present  ", |view| view.layout.present)?;
        self.line("        managed  ", |view| view.managed)?;
        self.line("        cma      ", |_| 0)?;
        if let Some(early) = self.early {
            write!(self.out, "        protection: {} ", Row(&early.limits))?;
            writeln!(self.out, "{}", Row(&self.after.limits))?;
        } else {
            writeln!(self.out, "        protection: {}", Row(&self.after.limits))?;
        }
        if layout.present == 0 {
            return Ok(());
        }
        self.line("      nr_free_pages ", |view| view.managed)?;
        self.line("      nr_shards ", |view| view.shards.into())?;
        writeln!(self.out, "  pagesets")?;
        for cpu in 0..cpus {
            writeln!(self.out, "    cpu: {cpu}")?;
            self.line("              count:    ", |_| 0)?;
            self.line("              high:     ", |view| {
                view.limits.pageset.high_min.into()
            })?;
            self.line("              batch:    ", |view| {
                view.limits.pageset.batch.into()
            })?;
            self.line("              high_min: ", |view| {
                view.limits.pageset.high_min.into()
            })?;
            self.line("              high_max: ", |view| {
                view.limits.pageset.high_max.into()
            })?;
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
struct Row<'a>(&'a Limits);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [dma, dma32, normal, movable] = self.0.protection;
        write!(f, "({dma}, {dma32}, {normal}, {movable}, {movable})")
    }
}
