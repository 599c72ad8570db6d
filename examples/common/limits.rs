//! What the crate's formulas give for one zone of a captured machine.
//!
//! Owns: [`Sizes`], what a capture says; [`Limits`], what follows from it.
//! Invariants: no formula is written here; all are the library's.
//! Lock ranks: none. Used by: check.rs and examples/zoneinfo.rs.
#![allow(
    unreachable_pub,
    dead_code,
    reason = "each example and test uses the part it needs"
)]

use framekeeper::ZoneKind;
use framekeeper::node::formulas::{Edition, Share, reserves, shares_min_free};
use framekeeper::pageset::tune::{self, Inputs, Policy};
use framekeeper::zone::Levels;

use super::machine::PAGE_SHIFT;

/// What a machine says of a zone; frames unless named otherwise.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// The zone's kind.
    pub kind: ZoneKind,
    /// Which Linux's rules.
    pub edition: Edition,
    /// Managed by the zones of its node, by kind.
    pub managed: [u64; ZoneKind::ALL.len()],
    /// Managed by all zones that share min_free.
    pub total: u64,
    /// KiB to keep free on the machine; `None` if the watermarks cannot be known.
    pub min_free_kib: Option<u64>,
    /// Distance of the watermarks, in ten-thousandths.
    pub scale_factor: u32,
    /// The low watermark that the machine shows.
    pub low: u64,
    /// CPUs by which the limits are divided.
    pub cpus: u32,
}

/// What follows for the zone.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Watermarks; `None` without min_free.
    pub watermarks: Option<Levels>,
    /// Reserves against requests of each highest kind.
    pub protection: [u64; ZoneKind::ALL.len()],
    /// Limits of each CPU's pageset, from our low watermark if there is one, else from the machine's.
    pub pageset: tune::Limits,
}

impl Limits {
    /// Applies the formulas.
    pub fn of(sizes: &Sizes) -> Self {
        let managed = sizes.managed[sizes.kind as usize];
        let watermarks = sizes.min_free_kib.map(|kib| {
            let share = Share {
                kind: sizes.kind,
                managed,
                total: sizes.total,
                min_free: kib >> (PAGE_SHIFT - 10),
                scale_factor: sizes.scale_factor,
            };
            share.levels(sizes.edition)
        });
        let inputs = Inputs {
            managed,
            low: watermarks.map_or(sizes.low, |marks| marks.low),
            cpus: sizes.cpus,
            fraction: None,
            page_shift: PAGE_SHIFT,
        };
        Self {
            watermarks,
            protection: reserves(sizes.managed)[sizes.kind as usize],
            pageset: tune::Limits::new(Policy::Auto, &inputs),
        }
    }
}

/// Sums what the zones of a machine manage that share min_free.
pub fn total(edition: Edition, zones: impl Iterator<Item = (ZoneKind, u64)>) -> u64 {
    zones
        .filter(|&(kind, _)| shares_min_free(edition, kind))
        .map(|(_, managed)| managed)
        .sum()
}
