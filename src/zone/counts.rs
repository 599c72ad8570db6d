//! Sums that a shard keeps beside its lines.
//!
//! Owns: [`Counts`]. Invariants: `available` has a bit for each set that is not empty; `free` counts every free frame
//! that is not isolated.
//! Lock ranks: part of the data under `Rank::Shard`; the zone copies it where it may be read without the lock.
//! Used by: shard, zone.

use super::info::Info;
use super::line::{self, WHOLE};
use super::mobility::Mobility;
use super::shard::{CLASSES, SETS, Shard};

/// Sums over a shard's lines.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    /// Bit per set that is not empty: `SETS` of lines, then ten of giants.
    pub(super) available: u64,
    /// Free frames that are not isolated.
    pub(super) free: u64,
    /// Those of them that lie in CMA lines.
    pub(super) free_cma: u64,
    /// Those of them that lie in highatomic lines.
    pub(super) free_highatomic: u64,
    /// Free frames that are isolated.
    pub(super) isolated: u64,
    /// Lines whose bits contradicted their infos.
    pub(super) faults: u64,
    /// Changes of the counts that only lines set apart have, since they were last made known.
    pub(super) apart: u64,
}

impl Counts {
    /// Bit per class from `order` up of which `kind` has lines.
    #[inline]
    pub(super) const fn classes(&self, kind: Mobility, order: u8) -> u32 {
        if order > WHOLE || kind as u32 * CLASSES >= SETS {
            return 0;
        }
        (self.available >> (kind as u32 * CLASSES)) as u32 & 0x3ff & (0x3ff << order)
    }

    /// Bit per class of giant from which `order` can be served.
    #[inline]
    pub(super) const fn pooled(&self, order: u8) -> u32 {
        (self.available >> SETS) as u32 & 0x3ff & (0x3ff << order.saturating_sub(WHOLE))
    }

    /// Whether a request can be served without a fallback.
    #[inline]
    pub(super) const fn can_serve(&self, kind: Mobility, order: u8) -> bool {
        self.classes(kind, order) != 0 || kind.is_mergeable() && self.pooled(order) != 0
    }

    /// Counts `frames` as free, according to the line that they are in.
    #[inline]
    pub(super) fn add(&mut self, info: Info, frames: u32) {
        self.change(info, u64::from(frames));
    }

    /// Undoes [`add`](Self::add).
    #[inline]
    pub(super) fn sub(&mut self, info: Info, frames: u32) {
        self.change(info, u64::from(frames).wrapping_neg());
    }

    #[inline]
    fn change(&mut self, info: Info, frames: u64) {
        if info.is_lending() {
            self.free = self.free.wrapping_add(frames);
        } else {
            self.change_apart(info, frames);
        }
    }
}

impl Counts {
    #[cold]
    fn change_apart(&mut self, info: Info, frames: u64) {
        self.apart += 1;
        if info.is_isolated() {
            self.isolated = self.isolated.wrapping_add(frames);
            return;
        }
        self.free = self.free.wrapping_add(frames);
        match info.kind() {
            Mobility::Cma => self.free_cma = self.free_cma.wrapping_add(frames),
            Mobility::HighAtomic => {
                self.free_highatomic = self.free_highatomic.wrapping_add(frames);
            }
            _ => {}
        }
    }
}

impl Shard {
    /// Adds the largest free blocks of some lines, those of the pool excepted.
    pub(super) fn count_lines(&self, lines: core::ops::Range<u32>, counts: &mut [u64; 19]) {
        for line in lines {
            let info = self.info(line);
            if info.is_pooled() || info.free() == 0 || info.is_isolated() {
                continue;
            }
            if info.is_whole() {
                counts[usize::from(WHOLE)] += 1;
            } else {
                let mut here = [0; 10];
                line::count_blocks(&self.lines[line as usize].load(), &mut here);
                counts.iter_mut().zip(here).for_each(|(sum, n)| *sum += n);
            }
        }
    }

    /// Adds the largest free blocks of the pool.
    pub(super) fn count_pool(&self, counts: &mut [u64; 19]) {
        for giant in self.giants {
            let mut here = [0; 10];
            line::count_blocks(&giant.load(), &mut here);
            let orders = counts.iter_mut().skip(usize::from(WHOLE));
            orders.zip(here).for_each(|(sum, n)| *sum += n);
        }
    }
}
