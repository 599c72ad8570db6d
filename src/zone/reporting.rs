//! Telling a hypervisor which memory is free; lending memory to it.
//!
//! Owns: the walk over free blocks of order 9 and up that were not reported yet, the marks on them; the balloon's count.
//! Invariants: a line that is marked has been free since it was reported. A balloon's frames stay taken, and count
//! neither as free nor as managed.
//! Lock ranks: `Shard`, one at a time; the report itself is made without a lock, with the blocks taken.
//! Used by: alloc.

use arrayvec::ArrayVec;

use super::line::{PLACES, WHOLE};
use super::shard::Shard;
use super::{Block, Fault, MAX_LINES_PER_HOLD, Zone};
use crate::addr::{Order, Pfn};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;

/// Most blocks of one report.
pub(crate) const REPORT: usize = 32;

/// Where a walk over a zone goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReportCursor {
    /// Line, from the zone's base.
    line: u32,
}

impl<P: Platform> Zone<P> {
    /// Takes up to [`REPORT`] free blocks of `order` 9 or more that the hypervisor does not know of, from the cursor on, with one
    /// hold of one shard. Empty at the end of the zone; the cursor then starts anew. Report them, then give each
    /// back with [`give_reported`](Self::give_reported), or with [`give`](Self::give) if the report failed.
    pub(crate) fn take_unreported(
        &self,
        order: Order,
        cursor: &mut ReportCursor,
        off: &IrqOff<P>,
    ) -> ArrayVec<Block, REPORT> {
        let mut blocks = ArrayVec::new();
        while blocks.is_empty() && (cursor.line as usize) < self.infos.len() {
            let cell = self.cell_of(cursor.line * PLACES);
            let first_line = cell.first / PLACES;
            let least = order.get().max(WHOLE) - WHOLE;
            let next = self.with(cell, off, |shard| {
                shard.take_unreported(cursor.line - first_line, least, |line, k| {
                    let pfn = Pfn(self.base + u64::from((first_line + line) * PLACES));
                    let order = Order::new(WHOLE + k).expect("a giant has order 18");
                    blocks.push(Block::new(pfn, order));
                    !blocks.is_full()
                })
            });
            cursor.line = first_line + next;
        }
        if blocks.is_empty() {
            *cursor = ReportCursor::default();
        }
        blocks
    }

    /// Gives back a block that the hypervisor knows to be free. The mark stays until one of its frames is taken.
    pub(crate) fn give_reported(&self, block: Block, off: &IrqOff<P>) -> Result<(), Fault> {
        let (pfn, order) = block.into_parts();
        let frame = self.locate(pfn, order)?;
        let cell = self.cell_of(frame);
        self.with(cell, off, |shard| {
            shard.give(frame - cell.first, order.get())?;
            let first = (frame - cell.first) / PLACES;
            for line in first..first + (1 << order.get().saturating_sub(WHOLE)) {
                shard.mark_reported(line);
            }
            Ok(())
        })
    }

    /// Counts `frames` that the caller has taken as lent to the hypervisor: the zone shrinks by them. Recompute the limits.
    pub(crate) fn inflate_balloon(&self, frames: u64) {
        self.ballooned.fetch_add(frames, Relaxed);
        self.managed.fetch_sub(frames, Relaxed);
    }

    /// Undoes [`inflate_balloon`](Self::inflate_balloon), before the frames are given back. Returns how many were
    /// lent at all.
    pub(crate) fn deflate_balloon(&self, frames: u64) -> u64 {
        let lent = self
            .ballooned
            .fetch_update(Relaxed, Relaxed, |lent| Some(lent.saturating_sub(frames)));
        let back = lent.unwrap_or(0).min(frames);
        self.managed.fetch_add(back, Relaxed);
        back
    }

    /// Frames lent to the hypervisor.
    #[must_use]
    pub fn ballooned(&self) -> u64 {
        self.ballooned.load(Relaxed)
    }
}

impl Shard {
    /// Takes free blocks of at least order `least` of lines out of the pool, from `from` on, while `each` wants more.
    /// Returns the line at which to go on; looks at no more lines than a hold may.
    fn take_unreported(
        &mut self,
        from: u32,
        least: u8,
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
            let after = line + (1 << k);
            let known = (line..after).all(|line| self.info(line).is_reported());
            if k >= least && !known {
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
