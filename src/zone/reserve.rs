//! Kinds that lines are given on purpose: the highatomic reserve, CMA areas.
//!
//! Owns: conversion of lines to and from `HighAtomic` and `Cma`, the count of reserved frames.
//! Invariants: only lines of a lending kind are converted; `reserved` is 512 for each highatomic line, `cma` for each CMA
//! line.
//! Lock ranks: `Shard`, one at a time.
//! Used by: alloc.

use super::info::Info;
use super::isolate::Isolation;
use super::line::PLACES;
use super::shard::{CLASSES, Shard};
use super::{Mobility, Zone};
use crate::addr::{FrameRange, Order, Pfn};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;

/// How much of the highatomic reserve must remain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// One pageblock: reclaim made progress, and urgent requests will come again.
    One,
    /// Nothing: memory is out.
    Nothing,
}

impl<P: Platform> Zone<P> {
    /// Most frames that the highatomic reserve may have: one in a hundred, none in small zones.
    #[must_use]
    pub fn highatomic_cap(&self) -> u64 {
        let part = self.managed() / 100;
        if part < u64::from(PLACES) {
            return 0;
        }
        part.next_multiple_of(u64::from(PLACES))
    }

    /// Frames in highatomic lines, free or not. [`free_highatomic`](Self::free_highatomic) counts the free ones.
    #[must_use]
    pub fn reserved_highatomic(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// Keeps the lines of a block, which the caller has just taken for an urgent request, for such requests. Returns
    /// how many frames joined the reserve: none if it is full.
    pub(crate) fn reserve_highatomic(&self, pfn: Pfn, order: Order, off: &IrqOff<P>) -> u64 {
        let Ok(frame) = self.locate(pfn, order) else {
            return 0;
        };
        let cell = self.cell_of(frame);
        let first = (frame - cell.first) / PLACES;
        let lines = 1 << order.get().saturating_sub(Order::PAGEBLOCK.get());
        self.with(cell, off, |shard| {
            let mut frames = 0;
            for line in first..first + lines {
                // Claimed before the line changes: two shards may reserve at once.
                if shard.info(line).is_lending()
                    && !shard.info(line).is_absent()
                    && self.claim_reserve(frames)
                {
                    shard.retag(line, Mobility::HighAtomic);
                    frames += u64::from(PLACES);
                }
            }
            frames
        })
    }

    /// Adds a line to the count, unless the reserve was full before this block, of which `already` was added.
    fn claim_reserve(&self, already: u64) -> bool {
        let cap = self.highatomic_cap();
        self.reserved
            .fetch_update(Relaxed, Relaxed, |reserved| {
                (reserved < cap.saturating_add(already)).then_some(reserved + u64::from(PLACES))
            })
            .is_ok()
    }

    /// A line is not in the reserve any more.
    pub(super) fn leave_reserve(&self) {
        self.reserved.fetch_sub(u64::from(PLACES), Relaxed);
    }

    /// Gives one line of the reserve that has free frames to `kind`. Returns whether there was one to give.
    pub(crate) fn unreserve_highatomic(&self, kind: Mobility, keep: Keep, off: &IrqOff<P>) -> bool {
        let kept = match keep {
            Keep::One => u64::from(PLACES),
            Keep::Nothing => 0,
        };
        if !kind.is_mergeable() {
            return false;
        }
        self.shards.iter().any(|cell| {
            self.reserved.load(Relaxed) > kept
                && cell.may_serve(Mobility::HighAtomic, Order::ZERO)
                && self.with(cell, off, |shard| {
                    let Some(line) = shard.any_line(Mobility::HighAtomic) else {
                        return false;
                    };
                    shard.retag(line, kind);
                    self.leave_reserve();
                    true
                })
        })
    }

    /// Makes the lines of an isolation CMA lines: from its end on only movable requests use them, and
    /// [`isolate`](Self::isolate) with `Purpose::Cma` may collect them.
    ///
    /// # Errors
    /// The first line that is kept for something else, with nothing changed.
    pub(crate) fn set_cma(&self, isolation: &Isolation, off: &IrqOff<P>) -> Result<(), Pfn> {
        let frames = isolation.lines_in(self);
        // Nobody converts an isolated line, so what is decided now holds.
        for (line, _) in self.masks(frames) {
            if !Info(self.infos[line as usize].load(Relaxed)).is_of_lending_kind() {
                return Err(self.line_start(line));
            }
        }
        self.each_part(frames, off, |shard, line, _| {
            shard.retag(line, Mobility::Cma);
        });
        self.cma.fetch_add(frames.frames(), Relaxed);
        Ok(())
    }

    /// The CMA lines of a range are ordinary movable ones from now on, whatever is in use in them.
    pub(crate) fn clear_cma(&self, range: FrameRange, off: &IrqOff<P>) {
        self.each_part(range, off, |shard, line, _| {
            if shard.info(line).kind() == Mobility::Cma {
                shard.retag(line, Mobility::Movable);
                self.cma.fetch_sub(u64::from(PLACES), Relaxed);
            }
        });
    }

    /// Frames in CMA lines, free or not. [`free_cma`](Self::free_cma) counts the free ones.
    #[must_use]
    pub fn cma_frames(&self) -> u64 {
        self.cma.load(Relaxed)
    }
}

impl Shard {
    /// Changes a line's kind, with its counts and its place in the sets.
    pub(super) fn retag(&mut self, line: u32, kind: Mobility) {
        let old = self.info(line);
        let new = old.with_kind(kind);
        self.counts.sub(old, old.free());
        self.counts.add(new, old.free());
        self.update(line, new);
    }

    /// Some line of `kind` that has free frames: the emptiest class, lowest address.
    fn any_line(&self, kind: Mobility) -> Option<u32> {
        let class = self.counts.classes(kind, 0).checked_ilog2()?;
        Some(self.index.first(kind as u32 * CLASSES + class))
    }
}
