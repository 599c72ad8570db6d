//! Frames that hardware has found bad.
//!
//! Owns: marking them. Invariants: a bad frame is never free; it stays managed, and is counted in `bad_frames`. One that was in
//! use when it was marked is awaited until it comes back.
//! Lock ranks: `Shard`, one at a time.
//! Used by: alloc.

use core::fmt;

use super::Zone;
use super::line::{PLACES, Words};
use super::shard::Shard;
use crate::addr::{Order, Pfn};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;

/// Where a frame was when it was marked bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WasBad {
    /// Free: it has been taken out, and the rest of its block stays free.
    Free,
    /// In use, on a pageset or in a batch: it is dropped when it comes back to the zone.
    InUse,
    /// It was marked before.
    Already,
}

/// Why a frame cannot be marked. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MarkError {
    /// It is outside the zone, or not online.
    Unmanaged(Pfn),
    /// Too many lines of the zone have holes or bad frames.
    TooManyHoles,
}

impl<P: Platform> Zone<P> {
    /// Sees to it that a frame is never given again.
    ///
    /// # Errors
    /// [`MarkError`], with nothing changed.
    pub(crate) fn mark_bad(&self, pfn: Pfn, off: &IrqOff<P>) -> Result<WasBad, MarkError> {
        let frame = self
            .locate(pfn, Order::ZERO)
            .map_err(|_| MarkError::Unmanaged(pfn))?;
        let cell = self.cell_of(frame);
        let frame = frame - cell.first;
        let was = self.with(cell, off, |shard| shard.mark_bad(frame, pfn))?;
        if was != WasBad::Already {
            self.bad.fetch_add(1, Relaxed);
        }
        Ok(was)
    }

    /// Frames marked bad, online or not.
    #[must_use]
    pub fn bad_frames(&self) -> u64 {
        self.bad.load(Relaxed)
    }

    /// Bad frames that were in use when they were marked and have come back since the last call: whoever kept pagesets
    /// closed for them may open them again.
    #[inline]
    pub(crate) fn take_returned(&self) -> u32 {
        self.holes.take_returned()
    }

    /// Whether a frame was marked bad.
    #[must_use]
    pub fn is_bad(&self, pfn: Pfn) -> bool {
        let place = ((pfn.0.wrapping_sub(self.base)) % u64::from(PLACES)) as u32;
        let hole = self.holes.of(self.info_of(pfn).holes());
        self.contains(pfn) && hole.is_some_and(|hole| hole.bad.is_free(place, 0))
    }
}

impl Shard {
    fn mark_bad(&mut self, frame: u32, pfn: Pfn) -> Result<WasBad, MarkError> {
        let (line, place) = (frame / PLACES, frame % PLACES);
        let info = self.info(line);
        let had = self.holes.of(info.holes());
        let is_absent = had.is_some_and(|hole| hole.absent.is_free(place, 0));
        if info.is_absent() || is_absent {
            return Err(MarkError::Unmanaged(pfn));
        }
        let n = match info.holes() {
            0 => self.holes.take().ok_or(MarkError::TooManyHoles)?,
            n => n,
        };
        let hole = self.holes.of(n).ok_or(MarkError::TooManyHoles)?;
        if hole.bad.is_free(place, 0) {
            return Ok(WasBad::Already);
        }
        hole.bad.set(place, 0);
        self.update(line, info.present(n));
        if !self.is_free(frame) {
            hole.awaited.set(place, 0);
            return Ok(WasBad::InUse);
        }
        let mut mask: Words = [0; 8];
        mask[place as usize / 64] = 1 << (place % 64);
        self.take_places(line, &mask);
        Ok(WasBad::Free)
    }
}

impl fmt::Display for MarkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmanaged(pfn) => write!(f, "frame {pfn} is not managed"),
            Self::TooManyHoles => f.write_str("too many lines have holes or bad frames"),
        }
    }
}

impl core::error::Error for MarkError {}
