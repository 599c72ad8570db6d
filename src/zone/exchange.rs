//! Frames between a zone and the layers above.
//!
//! Owns: the search over shards, their locks, the counts that are read without them.
//! Invariants: a request searches its own kind in every shard, the CPU's home first, before it touches another's.
//! Lock ranks: `Shard`, one at a time; at most [`MAX_LINES_PER_HOLD`] lines change in a hold.
//! Used by: pageset, alloc.

use super::info::Fault;
use super::lend::{Lend, smallest_claimed};
use super::line::{PLACES, WHOLE};
use super::shard::Shard;
use super::{Block, Cell, MAX_LINES_PER_HOLD, Mobility, Zone};
use crate::addr::{FrameRange, Order, Pfn};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;

impl<P: Platform> Zone<P> {
    /// Takes a block: from lines of `mobility` in any shard, the CPU's `home` first, then from wholly free lines, and
    /// only then, for the kinds that lend to each other, from lines of others.
    #[inline]
    pub(crate) fn take(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        off: &IrqOff<P>,
    ) -> Option<Block> {
        let kind = self.grouped(mobility);
        // Nearly always home has it; the search is kept out of the way.
        if let Some(cell) = self.shards.get(home as usize)
            && cell.may_serve(kind, order)
            && let Some(frame) = self.with(cell, off, |shard| shard.take(order.get(), kind))
        {
            return Some(self.block(cell, frame, order));
        }
        self.take_afar(order, kind, home, off)
    }

    #[cold]
    fn take_afar(&self, order: Order, kind: Mobility, home: u32, off: &IrqOff<P>) -> Option<Block> {
        self.take_own(order, kind, home, off).or_else(|| {
            let mut frame = [0];
            let taken = self.take_lent(order, kind, home, &mut frame, off);
            (taken == 1).then(|| Block::new(Pfn(self.base + u64::from(frame[0])), order))
        })
    }

    /// From lines of one kind, and wholly free ones, in any shard.
    fn take_own(&self, order: Order, kind: Mobility, home: u32, off: &IrqOff<P>) -> Option<Block> {
        self.shards_from(home).find_map(|cell| {
            if !cell.may_serve(kind, order) {
                return None;
            }
            let frame = self.with(cell, off, |shard| shard.take(order.get(), kind))?;
            Some(self.block(cell, frame, order))
        })
    }

    /// A block that has just been taken, by its place in its shard.
    #[inline]
    fn block(&self, cell: &Cell<P>, frame: u32, order: Order) -> Block {
        Block::new(Pfn(self.base + u64::from(cell.first + frame)), order)
    }

    /// [`take`](Self::take) without the last step: nothing that belongs to another kind is touched.
    pub(crate) fn take_unmixed(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        off: &IrqOff<P>,
    ) -> Option<Block> {
        self.take_own(order, self.grouped(mobility), home, off)
    }

    /// Gives a block back.
    ///
    /// # Errors
    /// [`Fault`], with nothing changed, if it does not fit; it is counted in [`faults`](Self::faults) too.
    #[inline]
    pub(crate) fn give(&self, block: Block, off: &IrqOff<P>) -> Result<(), Fault> {
        let (pfn, order) = block.into_parts();
        self.give_one(pfn, order, off)
    }

    #[inline]
    fn give_one(&self, pfn: Pfn, order: Order, off: &IrqOff<P>) -> Result<(), Fault> {
        let given = self.locate(pfn, order).and_then(|frame| {
            let cell = self.cell_of(frame);
            self.with(cell, off, |shard| {
                shard.give(frame - cell.first, order.get())
            })
        });
        if given.is_err() {
            self.faults.fetch_add(1, Relaxed);
        }
        given
    }

    /// Gives back blocks of `order` by their first frames, counted from [`base`](Self::base). May reorder `frames`.
    /// Those that do not fit are skipped, and counted in [`faults`](Self::faults).
    pub(crate) fn give_blocks(&self, order: Order, frames: &mut [u32], off: &IrqOff<P>) {
        if let [frame] = *frames {
            // Counted where it is refused.
            let _ = self.give_one(Pfn(self.base + u64::from(frame)), order, off);
            return;
        }
        let (mut lowest, mut highest, mut bits) = (u32::MAX, 0, 0);
        for &frame in &*frames {
            lowest = lowest.min(frame);
            highest = highest.max(frame);
            bits |= frame;
        }
        let pfn = |frame: u32| Pfn(self.base + u64::from(frame));
        let all_fit = self.locate(pfn(lowest), order).is_ok()
            && self.locate(pfn(highest), order).is_ok()
            && u64::from(bits) & (order.frames() - 1) == 0;
        let (mut rest, mut refused) = if all_fit {
            (frames, 0)
        } else {
            self.without_strays(order, frames)
        };
        while let Some(&first) = rest.first() {
            let cell = self.cell_of(first);
            let inside = cell.first..cell.end;
            let len = if inside.contains(&lowest) && inside.contains(&highest) {
                rest.len()
            } else {
                move_to_front(rest, |frame| inside.contains(&frame))
            };
            let (here, others) = rest.split_at_mut(len);
            for part in here.chunks(hold(order)) {
                refused += self.with(cell, off, |shard| {
                    shard.give_many(order.get(), cell.first, part)
                });
            }
            rest = others;
        }
        if refused > 0 {
            self.faults.fetch_add(refused, Relaxed);
        }
    }

    /// Those of `frames` that can start a block of `order` here, and how many cannot.
    #[cold]
    fn without_strays<'f>(&self, order: Order, frames: &'f mut [u32]) -> (&'f mut [u32], u64) {
        let len = move_to_front(frames, |frame| {
            self.locate(Pfn(self.base + u64::from(frame)), order)
                .is_ok()
        });
        let (fit, strays) = frames.split_at_mut(len);
        (fit, strays.len() as u64)
    }

    /// From lines that belong to other kinds, whichever lend to `mobility`.
    #[cold]
    pub(super) fn take_lent(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        out: &mut [u32],
        off: &IrqOff<P>,
    ) -> usize {
        let mut done = 0;
        if mobility == Mobility::Movable {
            // CMA lines are kept free for contiguous areas by migration, so only what can migrate may have them.
            for cell in self.shards_from(home) {
                while done < out.len() && cell.may_serve(Mobility::Cma, order) {
                    let end = out.len().min(done + hold(order));
                    let rest = &mut out[done..end];
                    let taken = self.with(cell, off, |shard| {
                        shard.take_many(order.get(), Mobility::Cma, cell.first, rest)
                    });
                    done += taken;
                    if taken == 0 {
                        break;
                    }
                }
            }
        }
        let claim = if self.grouping.load(Relaxed) {
            if self.lends_parts(order, mobility) {
                self.raise_boost();
            }
            Lend::Claim
        } else {
            Lend::ClaimAny
        };
        for lend in [claim, Lend::Steal] {
            for cell in self.shards_from(home) {
                while done < out.len() && cell.may_lend(mobility, order) {
                    let end = out.len().min(done + hold(order));
                    let rest = &mut out[done..end];
                    let taken = self.with(cell, off, |shard| {
                        shard.take_lent(order.get(), mobility, lend, cell.first, rest)
                    });
                    done += taken;
                    if taken == 0 {
                        break;
                    }
                }
            }
        }
        done
    }

    /// Whether a line of another kind would be looked at for claiming, so that kinds mix or are about to.
    fn lends_parts(&self, order: Order, kind: Mobility) -> bool {
        let smallest = order.max(smallest_claimed(kind));
        self.shards.iter().any(|cell| cell.may_lend(kind, smallest))
    }

    /// The kind whose lines serve a request: where kinds are not kept apart, all that lend to each other are one.
    #[inline]
    #[must_use]
    pub fn grouped(&self, mobility: Mobility) -> Mobility {
        if mobility.is_mergeable() && !self.grouping.load(Relaxed) {
            Mobility::Movable
        } else {
            mobility
        }
    }

    /// Keeps kinds apart, or not: on less than six pageblocks' worth of frames it costs more than it gives.
    /// Told by the number of frames above the high watermark.
    pub(crate) fn regroup(&self, frames_to_use: u64) {
        self.grouping.store(frames_to_use >= GROUPING, Relaxed);
    }

    /// Every shard, from `home` on, around.
    #[inline]
    pub(super) fn shards_from(&self, home: u32) -> impl Iterator<Item = &'static Cell<P>> + use<P> {
        let home = (home as usize).min(self.shards.len());
        let (before, from) = self.shards.split_at(home);
        from.iter().chain(before).map(|padded| &padded.0)
    }

    /// Where a block starts, from the base.
    #[inline]
    pub(super) fn locate(&self, pfn: Pfn, order: Order) -> Result<u32, Fault> {
        if !pfn.is_aligned(order) {
            return Err(Fault::Unaligned);
        }
        if !self.spec.span.covers(FrameRange::block(pfn, order)) {
            return Err(Fault::Outside);
        }
        Ok((pfn.0 - self.base) as u32)
    }

    /// The shard of a frame in the zone.
    #[inline]
    pub(super) fn cell_of(&self, frame: u32) -> &'static Cell<P> {
        let giant = (frame / PLACES + self.skew) / PLACES;
        &self.shards[(giant >> self.giants_per_shard) as usize]
    }

    /// One hold of a shard's lock. What may be read without it is brought up to date before the release.
    #[inline]
    pub(super) fn with<T>(
        &self,
        cell: &Cell<P>,
        off: &IrqOff<P>,
        work: impl FnOnce(&mut Shard) -> T,
    ) -> T {
        let mut shard = cell.lock.lock(off);
        #[cfg(test)]
        self.holds.store(self.holds.load(Relaxed) + 1, Relaxed);
        #[cfg(all(test, debug_assertions))]
        shard.work.take();
        let result = work(&mut shard);
        #[cfg(all(test, debug_assertions))]
        assert!(shard.work.take() as usize <= MAX_LINES_PER_HOLD);
        let counts = shard.counts;
        cell.available.store(counts.available, Relaxed);
        cell.free.store(counts.free, Relaxed);
        cell.lowest.store(shard.fullness.lowest(), Relaxed);
        if counts.apart != 0 {
            cell.free_cma.store(counts.free_cma, Relaxed);
            cell.free_highatomic.store(counts.free_highatomic, Relaxed);
            cell.isolated.store(counts.isolated, Relaxed);
            shard.counts.apart = 0;
        }
        let change = counts.free.wrapping_sub(cell.reported.load(Relaxed));
        if self.drift.tells(change as i64) {
            cell.reported.store(counts.free, Relaxed);
            self.free.fetch_add(change, Relaxed);
        }
        result
    }
}

/// Frames from which on kinds are kept apart: a pageblock of each.
const GROUPING: u64 = Order::PAGEBLOCK.frames() * Mobility::COUNT as u64;

/// Blocks of `order` that one hold may take or give, at most [`MAX_LINES_PER_HOLD`] lines.
#[inline]
pub(super) fn hold(order: Order) -> usize {
    // Larger blocks change each of their lines, and are looked at before that.
    ((MAX_LINES_PER_HOLD / 2) >> order.get().saturating_sub(WHOLE)).max(1)
}

/// Moves the frames for which `belongs` holds to the front, and returns how many they are.
fn move_to_front(frames: &mut [u32], belongs: impl Fn(u32) -> bool) -> usize {
    let mut len = 0;
    for i in 0..frames.len() {
        if belongs(frames[i]) {
            frames.swap(i, len);
            len += 1;
        }
    }
    len
}
