//! Compares a capture of a Linux machine with what this crate makes of the same machine.
//!
//! Owns: [`compare`], and [`Comparison`], its result.
//! Invariants: a value is compared only where the capture determines it; each is counted once, equal or not.
//! Lock ranks: none. Used by: examples/zoneinfo.rs and the golden tests, through `#[path]`, with capture.rs,
//! machine.rs, limits.rs and what they use beside it.
//!
//! - Start, spanned and present need the firmware's list. So do min, low and high: only such captures recomputed their
//!   limits from the managed counts that they show; on a live machine managed may have changed since.
//! - Protection and batch follow from managed alone.
//! - Linux 6.1 shows one `high` a pageset, fixed: the low watermark over the CPUs. Later kernels let it move between
//!   `high_min`, the same value, and `high_max`, and show both. Without watermarks of ours the capture's low counts.
#![allow(
    unreachable_pub,
    dead_code,
    reason = "each example and test uses the part it needs"
)]

use std::fmt;

use framekeeper::ZoneKind;
use framekeeper::node::formulas::{Edition, SCALE_FACTOR};

use super::capture::{Capture, Zone};
use super::limits::{self, Limits, Sizes};
use super::machine::{Machine, MachineError, ZoneLayout};

/// How two descriptions of a machine compare.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Values that are equal.
    pub equal: usize,
    /// Those that are not.
    pub differences: Vec<Difference>,
}

/// A value that is not equal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Line of the zone's heading in the capture.
    pub line: usize,
    /// The zone.
    pub zone: String,
    /// The value's name.
    pub value: String,
    /// As Linux has it.
    pub linux: u64,
    /// As this crate has it; `None` if it has no such thing.
    pub ours: Option<u64>,
}

/// Compares every value that the capture determines.
pub fn compare(capture: &Capture) -> Result<Comparison, MachineError> {
    let machine = Machine::from_capture(capture)?;
    let layouts = machine.zones();
    let mut result = Comparison::default();
    for zone in &capture.zones {
        let Some(kind) = kind_of(zone) else {
            // Device memory is never handed out; this crate has no zone for it.
            if zone.name != "Device" || zone.managed != 0 {
                result.add(zone, "managed", zone.managed, None);
            }
            continue;
        };
        if !capture.memory.ranges.is_empty() {
            let layout = layouts
                .iter()
                .find(|layout| (layout.node, layout.kind) == (zone.node, kind));
            compare_layout(zone, layout, &mut result);
        }
        let limits = Limits::of(&sizes(capture, &machine, zone, kind));
        // This crate has no zones without memory, for which editions of Linux show different marks.
        if let Some(marks) = limits.watermarks.filter(|_| zone.present != 0) {
            for (name, linux, ours) in [
                ("min", Some(zone.min), marks.min),
                ("low", Some(zone.low), marks.low),
                ("high", Some(zone.high), marks.high),
                ("promo", zone.promo, marks.promo),
            ] {
                if let Some(linux) = linux {
                    // What Linux shows includes the boost of the moment.
                    result.add(zone, name, linux.saturating_sub(zone.boost), Some(ours));
                }
            }
        }
        for (column, &reserve) in zone.protection.iter().enumerate() {
            // Linux's last column is for device memory, of which there is none: as for movable.
            let ours = limits.protection[column.min(limits.protection.len() - 1)];
            result.add(zone, &format!("protection[{column}]"), reserve, Some(ours));
        }
        compare_pagesets(zone, &limits, &mut result);
    }
    Ok(result)
}

fn compare_layout(zone: &Zone, layout: Option<&ZoneLayout>, result: &mut Comparison) {
    if let Some(start) = zone.start_pfn {
        let ours = layout.map(|layout| layout.span.start().0);
        result.add(zone, "start_pfn", start, ours);
    }
    // A node without memory and CPUs is in no firmware list; Linux shows empty zones for it.
    let spanned = layout.map_or(0, |layout| layout.span.frames());
    result.add(zone, "spanned", zone.spanned, Some(spanned));
    let present = layout.map_or(0, |layout| layout.present);
    result.add(zone, "present", zone.present, Some(present));
}

fn compare_pagesets(zone: &Zone, limits: &Limits, result: &mut Comparison) {
    for pageset in &zone.pagesets {
        let cpu = pageset.cpu;
        result.add(
            zone,
            &format!("cpu {cpu} batch"),
            pageset.batch,
            Some(limits.pageset.batch.into()),
        );
        match (pageset.high_min, pageset.high_max) {
            (None, None) => {
                let name = format!("cpu {cpu} high");
                result.add(
                    zone,
                    &name,
                    pageset.high,
                    Some(limits.pageset.high_min.into()),
                );
            }
            (min, max) => {
                for (name, linux, ours) in [
                    ("high_min", min, limits.pageset.high_min),
                    ("high_max", max, limits.pageset.high_max),
                ] {
                    let name = format!("cpu {cpu} {name}");
                    result.add(zone, &name, linux.unwrap_or(0), Some(ours.into()));
                }
            }
        }
    }
}

/// What the capture says of a zone, as input of the formulas.
fn sizes(capture: &Capture, machine: &Machine, zone: &Zone, kind: ZoneKind) -> Sizes {
    let of_node = |kind: ZoneKind| {
        let same = |other: &&Zone| other.node == zone.node && kind_of(other) == Some(kind);
        capture.zones.iter().find(same).map_or(0, |z| z.managed)
    };
    let determined = !capture.memory.ranges.is_empty();
    // Linux 6.1 still shares min_free as 5.4 did, and shows no promo mark.
    let edition = match zone.promo {
        Some(_) => Edition::Now,
        None => Edition::V5_4,
    };
    let managed = |other: &Zone| Some((kind_of(other)?, other.managed));
    Sizes {
        kind,
        edition,
        managed: ZoneKind::ALL.map(of_node),
        total: limits::total(edition, capture.zones.iter().filter_map(managed)),
        min_free_kib: capture.min_free_kib.filter(|_| determined),
        scale_factor: capture.scale_factor.unwrap_or(SCALE_FACTOR),
        low: zone.low.saturating_sub(zone.boost),
        cpus: machine.cpus_for_limits(zone.node),
    }
}

fn kind_of(zone: &Zone) -> Option<ZoneKind> {
    ZoneKind::ALL
        .into_iter()
        .find(|kind| zone.name == kind.to_string())
}

impl Comparison {
    fn add(&mut self, zone: &Zone, value: &str, linux: u64, ours: Option<u64>) {
        if ours == Some(linux) {
            self.equal += 1;
            return;
        }
        self.differences.push(Difference {
            line: zone.line,
            zone: format!("node {} {}", zone.node, zone.name),
            value: value.to_owned(),
            linux,
            ours,
        });
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in &self.differences {
            writeln!(f, "{difference}")?;
        }
        write!(
            f,
            "{} values equal, {} differ",
            self.equal,
            self.differences.len()
        )
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            zone,
            value,
            linux,
            ours,
        } = self;
        write!(
            f,
            "line {line}: {zone} {value}: Linux has {linux}, this crate "
        )?;
        match ours {
            Some(ours) => write!(f, "{ours}"),
            None => write!(f, "has no such zone"),
        }
    }
}
