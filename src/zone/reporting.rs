//! Telling a hypervisor which memory is free; lending memory to it.
//!
//! Owns: the walk over free blocks of order 9 and up that were not reported yet, the marks on them; the balloon's count.
//! Invariants: a line that is marked has been free since it was reported. A balloon's frames stay taken, and count
//! neither as free nor as managed.
//! Lock ranks: `Shard`, one at a time; the report itself is made without a lock, with the blocks taken.
//! Used by: alloc.

use core::ops::RangeInclusive;

use arrayvec::ArrayVec;

use super::line::{PLACES, WHOLE};
use super::shard::Shard;
use super::{Block, Fault, MAX_LINES_PER_HOLD, Zone};
use crate::addr::{Order, Pfn};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;

/// Most blocks of one report.
pub(crate) const REPORT: usize = 32;

impl<P: Platform> Zone<P> {
    /// Takes up to [`REPORT`] free blocks that the hypervisor does not know of: free ones of order `least`, 9 or more, larger ones
    /// in pieces of at most `most`. Goes on where the last call ended, around the zone, and takes all from one hold of one
    /// shard; empty only if there is none. Report them, then give each back with [`give_reported`](Self::give_reported), or
    /// with [`give`](Self::give) if the report failed.
    pub(crate) fn take_unreported(&self, least: Order, most: Order) -> ArrayVec<Block, REPORT> {
        let mut blocks = ArrayVec::new();
        let lines = self.infos.len() as u32;
        let in_lines = |order: Order| order.get().max(WHOLE) - WHOLE;
        let sizes = in_lines(least)..=in_lines(most).max(in_lines(least));
        // Only a hint: of two who report at once each takes what the other has not.
        let start = self.report_at.load(Relaxed).min(lines);
        for part in [start..lines, 0..start] {
            let mut line = part.start;
            while line < part.end && blocks.is_empty() {
                let cell = self.cell_of(line * PLACES);
                let first_line = cell.first / PLACES;
                let next = self.with(cell, &IrqOff::new(), |shard| {
                    shard.take_unreported(line - first_line, sizes.clone(), |line, k| {
                        let pfn = Pfn(self.base + u64::from((first_line + line) * PLACES));
                        let order = Order::new(WHOLE + k).expect("a giant has order 18");
                        blocks.push(Block::new(pfn, order));
                        !blocks.is_full()
                    })
                });
                line = first_line + next;
                self.report_at.store(line, Relaxed);
            }
        }
        blocks
    }

    /// Gives back a block that the hypervisor knows to be free. The mark stays until one of its frames is taken.
    ///
    /// # Errors
    /// [`Fault`], as for [`give`](Self::give).
    pub(crate) fn give_reported(&self, block: Block, off: &IrqOff<P>) -> Result<(), Fault> {
        let (pfn, order) = block.into_parts();
        let given = self.locate(pfn, order).and_then(|frame| {
            let cell = self.cell_of(frame);
            self.with(cell, off, |shard| {
                shard.give(frame - cell.first, order.get())?;
                let first = (frame - cell.first) / PLACES;
                for line in first..first + (1 << order.get().saturating_sub(WHOLE)) {
                    shard.mark_reported(line);
                }
                Ok(())
            })
        });
        if given.is_err() {
            self.faults.fetch_add(1, Relaxed);
        }
        given
    }

    /// Counts `frames` that the caller has taken as lent to the hypervisor: the zone shrinks by them. Recompute the limits.
    pub(crate) fn inflate_balloon(&self, frames: u64) {
        self.ballooned.fetch_add(frames, Relaxed);
        self.managed.fetch_sub(frames, Relaxed);
    }

    /// Undoes [`inflate_balloon`](Self::inflate_balloon), before the frames are given back.
    pub(crate) fn deflate_balloon(&self, frames: u64) {
        self.managed.fetch_add(frames, Relaxed);
        self.ballooned.fetch_sub(frames, Relaxed);
    }

    /// Frames lent to the hypervisor.
    #[must_use]
    pub fn ballooned(&self) -> u64 {
        self.ballooned.load(Relaxed)
    }
}

impl Shard {
    /// Takes free blocks out of the pool, from `from` on, while `each` wants more: those of at least the first of `sizes`, logarithms of
    /// lines, in pieces of at most the last. Returns the line at which to go on; looks at no more lines than a hold may.
    fn take_unreported(
        &mut self,
        from: u32,
        sizes: RangeInclusive<u8>,
        mut each: impl FnMut(u32, u8) -> bool,
    ) -> u32 {
        let lines = self.lines.len() as u32;
        // Each is seen, then changed; the last block may reach on by one line less than a giant.
        let end = lines.min(from + MAX_LINES_PER_HOLD as u32 / 2 - PLACES);
        let mut line = from;
        while line < end {
            let Some(k) = self.pooled_block_at(line) else {
                line += 1;
                continue;
            };
            let large = k >= *sizes.start();
            let k = k.min(*sizes.end());
            let after = line + (1 << k);
            let known = (line..after).all(|line| self.info(line).is_reported());
            if large && !known {
                self.take_pooled_at(line, k);
                if !each(line, k) {
                    return after;
                }
            }
            line = after;
        }
        line
    }

    /// Order, in lines, of the largest aligned block of the pool that starts at `line`.
    fn pooled_block_at(&self, line: u32) -> Option<u8> {
        let (giant, place) = self.giant(line);
        let bits = &self.giants[giant as usize];
        if !bits.is_free(place, 0) {
            return None;
        }
        let mut k = 0;
        while k < WHOLE && place.is_multiple_of(2 << k) && bits.is_free(place, k + 1) {
            k += 1;
        }
        Some(k)
    }

    fn mark_reported(&mut self, line: u32) {
        let info = self.info(line);
        if info.is_whole() {
            self.set_info(line, info.reported());
        }
    }
}
