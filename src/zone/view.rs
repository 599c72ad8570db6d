//! What may be asked of a zone.
//!
//! Owns: readers only. Invariants: each number is right when nothing runs, and says here how far off it may be else.
//! Lock ranks: none, except for the walk of `free_blocks_by_order`: `Shard`, one at a time, in bounded holds.
//! Used by: pageset, node, alloc, report.

use core::fmt;

use super::info::{Info, Isolated};
use super::line::PLACES;
use super::{Cell, MAX_LINES_PER_HOLD, Mobility, Zone};
use crate::addr::{CpuId, FrameRange, NodeId, Order, Pfn, ZoneKind};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

impl<P: Platform> Zone<P> {
    #[cfg(test)]
    pub(super) fn holds(&self) -> u64 {
        self.holds.load(Relaxed)
    }

    /// First frame of the first line: relative frame numbers count from here. The span may start later.
    #[inline]
    pub(crate) fn base(&self) -> Pfn {
        Pfn(self.base)
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.spec.node
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ZoneKind {
        self.spec.kind
    }

    /// Its frames, holes included.
    #[must_use]
    pub fn span(&self) -> FrameRange {
        self.spec.span
    }

    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shards.len() as u32
    }

    /// Frames that it hands out and gets back.
    #[must_use]
    pub fn managed(&self) -> u64 {
        self.managed.load(Relaxed)
    }

    /// Frames that exist: managed ones and those kept by others since boot.
    #[must_use]
    pub fn present(&self) -> u64 {
        self.present.load(Relaxed)
    }

    /// Free frames, from one load. It may be behind by [`drift`](Self::drift) frames.
    #[inline]
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        // Shards add and subtract on their own, so the sum may pass below zero for a moment.
        (self.free.load(Relaxed) as i64).max(0) as u64
    }

    /// Free frames, summed over the shards; exact when nothing runs.
    #[must_use]
    pub fn free_frames_exact(&self) -> u64 {
        self.sum(|cell| &cell.free)
    }

    /// Free frames in CMA lines.
    #[must_use]
    pub fn free_cma(&self) -> u64 {
        self.sum(|cell| &cell.free_cma)
    }

    /// Free frames in highatomic lines.
    #[must_use]
    pub fn free_highatomic(&self) -> u64 {
        self.sum(|cell| &cell.free_highatomic)
    }

    /// Free frames in isolated lines, which no other count includes.
    #[must_use]
    pub fn isolated_frames(&self) -> u64 {
        self.sum(|cell| &cell.isolated)
    }

    /// [`free_cma`](Self::free_cma), without a walk over the shards where there is no CMA.
    #[inline]
    pub(super) fn free_cma_near(&self) -> u64 {
        if self.cma.load(Relaxed) == 0 {
            0
        } else {
            self.free_cma()
        }
    }

    /// [`free_highatomic`](Self::free_highatomic), without a walk over the shards where nothing is reserved.
    #[inline]
    pub(super) fn free_highatomic_near(&self) -> u64 {
        if self.reserved.load(Relaxed) == 0 {
            0
        } else {
            self.free_highatomic()
        }
    }

    /// First frame of a line.
    pub(super) fn line_start(&self, line: u32) -> Pfn {
        Pfn(self.base + u64::from(line) * u64::from(PLACES))
    }

    fn sum(&self, count: impl Fn(&Cell<P>) -> &AtomicU64) -> u64 {
        self.shards
            .iter()
            .map(|cell| count(cell).load(Relaxed))
            .sum()
    }

    /// Frees that were refused because they did not fit.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    /// Whether `pfn` is in the span.
    #[inline]
    #[must_use]
    pub fn contains(&self, pfn: Pfn) -> bool {
        self.spec.span.contains(pfn)
    }

    /// Whether `pfn` is online in this zone, good or bad.
    #[must_use]
    pub fn is_managed(&self, pfn: Pfn) -> bool {
        let info = self.info_of(pfn);
        let place = (pfn.0.wrapping_sub(self.base) % u64::from(PLACES)) as u32;
        let hole = self.holes.of(info.holes());
        self.contains(pfn)
            && !info.is_absent()
            && hole.is_none_or(|hole| hole.absent.is_taken(place, 0))
    }

    /// What the pageblock of `pfn` is used for; frames outside the zone are `Isolate`. A plain load.
    #[inline]
    #[must_use]
    pub fn mobility_of(&self, pfn: Pfn) -> Mobility {
        self.info_of(pfn).mobility()
    }

    #[inline]
    pub(super) fn info_of(&self, pfn: Pfn) -> Info {
        let line = pfn.0.wrapping_sub(self.base) / u64::from(PLACES);
        match self.infos.get(line as usize) {
            Some(info) => Info(info.load(Relaxed)),
            None => Info::ABSENT.with_isolated(Isolated::Yes),
        }
    }

    /// The shard that a CPU searches first. CPUs are spread over the shards.
    #[inline]
    #[must_use]
    pub fn home_shard(&self, cpu: CpuId) -> u32 {
        let cpu = if cpu.0 < self.home_cpus {
            cpu.0
        } else {
            cpu.0 % self.home_cpus
        };
        // Without a division, which would cost as much as the lock. The rounding is less than a shard for any CPU.
        ((u64::from(cpu) * self.home_step) >> 32) as u32
    }

    /// Largest free blocks of each order, as `/proc/buddyinfo` counts them: each free frame is in one block.
    pub fn free_blocks_by_order(&self) -> [u64; Order::COUNT] {
        let mut counts = [0; Order::COUNT];
        let off = IrqOff::new();
        for cell in self.shards {
            let lines = cell.lines();
            for first in lines.clone().step_by(MAX_LINES_PER_HOLD) {
                let end = lines.end.min(first + MAX_LINES_PER_HOLD as u32);
                cell.lock.lock(&off).count_lines(first..end, &mut counts);
            }
            cell.lock.lock(&off).count_pool(&mut counts);
        }
        counts
    }

    /// One entry of [`free_blocks_by_order`](Self::free_blocks_by_order).
    pub fn free_blocks(&self, order: Order) -> u64 {
        self.free_blocks_by_order()[order.get() as usize]
    }
}

impl<P: Platform> fmt::Display for Zone<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Node {}, zone {} {}: {} of {} managed frames free",
            self.spec.node.0,
            self.spec.kind,
            self.spec.span,
            self.free_frames_exact(),
            self.managed()
        )
    }
}
