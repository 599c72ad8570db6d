//! Kinds that lines are given on purpose: the highatomic reserve, CMA areas.
//!
//! Owns: conversion of lines to and from `HighAtomic` and `Cma`, the count of reserved frames.
//! Invariants: only lines of a lending kind are converted; `reserved` is 512 for each highatomic line.
//! Lock ranks: `Shard`, one at a time.
//! Used by: alloc.

use core::fmt;

use super::info::Info;
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

/// Why a range cannot become a CMA area. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CmaError {
    /// The range does not start and end on pageblocks of 512 frames, or is empty, or is not in the zone.
    Range(FrameRange),
    /// This frame's pageblock is absent, isolated, or reserved for something else.
    InUse(Pfn),
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
                    self.reserved.fetch_sub(u64::from(PLACES), Relaxed);
                    true
                })
        })
    }

    /// Makes a range of whole pageblocks a CMA area: from now on only movable requests use it, and
    /// [`isolate`](Self::isolate) with `Purpose::Cma` may collect it.
    ///
    /// # Errors
    /// [`CmaError`], with nothing changed.
    pub(crate) fn set_cma(&self, range: FrameRange, off: &IrqOff<P>) -> Result<(), CmaError> {
        let aligned =
            range.start().is_aligned(Order::PAGEBLOCK) && range.end().is_aligned(Order::PAGEBLOCK);
        if range.is_empty() || !aligned || !self.span().covers(range) {
            return Err(CmaError::Range(range));
        }
        let _changing = self.change().ok_or(CmaError::InUse(range.start()))?;
        // Decided first, changed then: a line that another call converts in between is left as it is.
        for (line, _) in self.masks(range) {
            let info = Info(self.infos[line as usize].load(Relaxed));
            if !info.is_lending() || info.is_absent() {
                return Err(CmaError::InUse(self.line_start(line)));
            }
        }
        self.each_part(range, off, |shard, line, _| {
            if shard.info(line).is_lending() {
                shard.retag(line, Mobility::Cma);
                self.cma.fetch_add(u64::from(PLACES), Relaxed);
            }
        });
        Ok(())
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

impl fmt::Display for CmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(range) => {
                write!(f, "{range} is not a range of whole pageblocks in the zone")
            }
            Self::InUse(pfn) => write!(f, "the pageblock at {pfn} is absent or kept"),
        }
    }
}

impl core::error::Error for CmaError {}
