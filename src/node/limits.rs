//! What follows from how much memory each zone manages: watermarks, reserves, drift thresholds, pageset limits.
//!
//! Owns: [`Tuning`], and the marks of each zone. Invariants: after [`Nodes::recompute`] every mark equals the formulas'
//! for the present sizes. Marks are single words: a reader may see old and new ones together for a moment.
//! Lock ranks: none; recomputing takes none. Used by: alloc, at each change of managed memory, and reclaim.

use super::formulas::{self, Edition, SCALE_FACTOR, Share};
use super::{NodeZone, Nodes};
use crate::addr::{CpuId, ZoneKind};
use crate::pageset::Pressure;
use crate::pageset::tune::{Inputs, Limits, Policy};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::zone::Levels;

/// How watermarks and pageset limits follow from memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Whose watermarks.
    pub edition: Edition,
    /// KiB to keep free; `None` computes them from the size of memory.
    pub min_free_kib: Option<u64>,
    /// Distance of the watermarks in ten-thousandths of a zone, 1 to 3000; to 1000 by Linux 5.4's rule.
    pub scale_factor: u32,
    /// Whose pagesets.
    pub policy: Policy,
    /// Reciprocal of the share of a zone that all pagesets may hold, at least 8; `None` computes limits from watermarks.
    pub fraction: Option<u32>,
    /// For measurement: every zone's pagesets keep the limits that follow from so many managed frames and no watermark, as if
    /// nothing had been recomputed since boot saw these. `None`, the default, follows the zone.
    pub frozen_managed: Option<u64>,
}

impl Default for Tuning {
    /// Linux's watermarks today, and the fixed pagesets of Linux 5.4.
    fn default() -> Self {
        Self {
            edition: Edition::Now,
            min_free_kib: None,
            scale_factor: SCALE_FACTOR,
            policy: Policy::default(),
            fraction: None,
            frozen_managed: None,
        }
    }
}

/// What a zone keeps from requests that could be served elsewhere, and how it stands.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Frames kept from requests whose highest zone is this kind.
    reserves: [AtomicU64; ZoneKind::ALL.len()],
    pressure: AtomicU8,
    /// Those who keep frames out of the zone's pagesets now.
    closers: AtomicU32,
}

impl<P: Platform> NodeZone<P> {
    /// Frames that a request whose highest zone is `highest` must leave.
    pub(crate) fn reserve(&self, highest: ZoneKind) -> u64 {
        self.marks.reserves[highest as usize].load(Relaxed)
    }

    /// Those of every kind.
    pub(crate) fn reserves(&self) -> [u64; ZoneKind::ALL.len()] {
        ZoneKind::ALL.map(|kind| self.reserve(kind))
    }

    /// From the next recomputing of their limits on, the zone's pagesets park nothing, until as many calls of
    /// [`open_pagesets`](Self::open_pagesets) undid.
    pub(crate) fn close_pagesets(&self) {
        self.marks.closers.fetch_add(1, Relaxed);
    }

    /// Undoes so many calls of [`close_pagesets`](Self::close_pagesets).
    pub(crate) fn open_pagesets(&self, closings: u32) {
        self.marks.closers.fetch_sub(closings, Relaxed);
    }

    /// What pagesets must know of it. May be stale.
    #[inline]
    pub(crate) fn pressure(&self) -> Pressure {
        match self.marks.pressure.load(Relaxed) {
            0 => Pressure::None,
            1 => Pressure::BelowHigh,
            _ => Pressure::Reclaiming,
        }
    }

    /// Notes that the zone fell below its high watermark, unless more is known.
    pub(crate) fn fell_below_high(&self) {
        // Relaxed: a lone word. An exchange, so that it never undoes what the background says.
        let (from, to) = (Pressure::None as u8, Pressure::BelowHigh as u8);
        let _ = self
            .marks
            .pressure
            .compare_exchange(from, to, Relaxed, Relaxed);
    }

    /// Undoes [`fell_below_high`](Self::fell_below_high).
    pub(crate) fn rose_above_high(&self) {
        let (from, to) = (Pressure::BelowHigh as u8, Pressure::None as u8);
        let _ = self
            .marks
            .pressure
            .compare_exchange(from, to, Relaxed, Relaxed);
    }

    /// Tells pagesets how the zone stands.
    pub(crate) fn set_pressure(&self, pressure: Pressure) {
        self.marks.pressure.store(pressure as u8, Relaxed);
    }
}

impl<P: Platform> Nodes<P> {
    /// Computes every zone's marks and reserves from what is managed now.
    pub(crate) fn recompute(&self, tuning: &Tuning) {
        for zone in self.zones {
            let levels = self.fresh_levels(zone, tuning);
            zone.zone.store_levels(levels);
            zone.zone
                .regroup(zone.zone.managed().saturating_sub(levels.high));
            for (mark, reserve) in zone.marks.reserves.iter().zip(self.fresh_reserves(zone)) {
                mark.store(reserve, Relaxed);
            }
        }
    }

    /// Computes how far every zone's count may lag, from its marks and the CPUs that run now.
    pub(crate) fn renew_drift(&self, off: &IrqOff<P>) {
        for zone in self.zones {
            zone.zone.set_drift_threshold(self.fresh_drift(zone), off);
        }
    }

    /// The drift threshold that a zone's shards ought to have: Linux's for a CPU. More where all shards together then lag by no more
    /// than lies between min and low, so that the count is as good as exact above low; every addition that is saved is one to a cache
    /// line that all CPUs share.
    pub(crate) fn fresh_drift(&self, zone: &NodeZone<P>) -> u64 {
        let shards = u64::from(zone.zone.shards());
        if shards == 1 {
            // It tells the sum all it does.
            return 0;
        }
        let levels = zone.zone.levels();
        let managed = zone.zone.managed();
        let least = formulas::stat_threshold(self.cpus_online(), managed << P::PAGE_SHIFT);
        u64::from(least).max(levels.low.saturating_sub(levels.min) / shards)
    }

    /// The marks that a zone ought to have.
    pub(crate) fn fresh_levels(&self, zone: &NodeZone<P>, tuning: &Tuning) -> Levels {
        let kib = |frames: u64| frames << (P::PAGE_SHIFT - 10);
        let managed = |shares: &dyn Fn(ZoneKind) -> bool| -> u64 {
            let zones = self.zones.iter().filter(|zone| shares(zone.kind));
            zones.map(|zone| zone.zone.managed()).sum()
        };
        let min_free_kib = tuning.min_free_kib.unwrap_or_else(|| {
            let low_memory = kib(managed(&|kind| kind <= ZoneKind::Normal));
            // Below 1 MiB, where Linux does not run, its least would be all there is: an eighth goes on from there.
            formulas::min_free_kib(tuning.edition, low_memory).min(low_memory / 8)
        });
        Share {
            kind: zone.kind,
            managed: zone.zone.managed(),
            total: managed(&|kind| formulas::shares_min_free(tuning.edition, kind)),
            min_free: min_free_kib >> (P::PAGE_SHIFT - 10),
            scale_factor: tuning.scale_factor,
        }
        .levels(tuning.edition)
    }

    /// The reserves that a zone ought to have.
    pub(crate) fn fresh_reserves(&self, zone: &NodeZone<P>) -> [u64; ZoneKind::ALL.len()] {
        let managed = ZoneKind::ALL.map(|kind| {
            let of_node = self.zones.iter().filter(|other| other.node == zone.node);
            let of_kind = of_node.filter(|other| other.kind == kind);
            of_kind.map(|zone| zone.zone.managed()).sum()
        });
        formulas::reserves(managed)[zone.kind as usize]
    }

    /// The limits that a CPU's pageset of a zone ought to have, by the zone's present low watermark: nothing is parked for
    /// a CPU that does not run.
    pub(crate) fn fresh_limits(&self, zone: &NodeZone<P>, cpu: CpuId, tuning: &Tuning) -> Limits {
        if zone.marks.closers.load(Relaxed) > 0 || !self.is_online(cpu) {
            return Limits {
                policy: tuning.policy,
                ..Limits::BOOT
            };
        }
        let (managed, low) = match tuning.frozen_managed {
            Some(early) => (early, 0),
            None => (zone.zone.managed(), zone.zone.levels().low),
        };
        let inputs = Inputs {
            managed,
            low,
            cpus: self.cpus_near(zone.node),
            fraction: tuning.fraction,
            page_shift: P::PAGE_SHIFT,
        };
        Limits::new(tuning.policy, &inputs)
    }
}
