//! What free frames and new blocks hold.
//!
//! Owns: [`Contents`], the poison, what it caught. Invariants: under [`Contents::Poison`] every free frame is full of the
//! poison byte unless somebody wrote to it since. Lock ranks: none; contents change while the caller owns the frames.
//! Used by: the slow ways of alloc. An instance that keeps contents as they are never comes here.

use core::fmt;
use core::mem;

use super::place::{Place, Sort};
use super::{AllocError, PageAllocator, Pages, Request};
use crate::addr::{FrameRange, Pfn};
use crate::boot::{fill_frames, find_other};
use crate::platform::Platform;
use crate::sync::atomic::Ordering::Relaxed;

/// What is done to the contents of frames when they change hands. All but `Keep` touch every byte of every block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Contents {
    /// Nothing: a block holds what its last owner left.
    #[default]
    Keep,
    /// Blocks are zero when they are allocated.
    ZeroOnAlloc,
    /// Blocks are made zero when they are freed, all memory once at the start; so they are when they are allocated.
    ZeroOnFree,
    /// Free memory is filled with a pattern, and looked at when it is allocated: a write to a free frame is reported,
    /// and the block leaked.
    Poison,
}

/// The byte that free frames are full of: Linux's.
pub const POISON: u8 = 0xaa;

/// Damaged blocks that one request passes over.
const TRIES: u32 = 64;

/// A write to memory while it was free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The frame.
    pub pfn: Pfn,
    /// Offset in it of the first byte that was written.
    pub offset: u32,
    /// What stands there instead of [`POISON`].
    pub found: u8,
    /// Frames leaked for such writes so far, this one's block included.
    pub leaked: u64,
}

impl<P: Platform> PageAllocator<P> {
    /// The last write to a free frame that was found, under [`Contents::Poison`].
    #[must_use]
    pub fn damage(&self) -> Option<Damage> {
        let leaked = self.leaked.load(Relaxed);
        let at = self.damage.load(Relaxed);
        (leaked > 0).then_some(Damage {
            pfn: Pfn(at >> 8 >> P::PAGE_SHIFT),
            offset: (at >> 8 & ((1 << P::PAGE_SHIFT) - 1)) as u32,
            found: at as u8,
            leaked,
        })
    }

    /// The first of these frames that was written to while it was free, under [`Contents::Poison`]. The caller leaks
    /// `leaked` frames for it.
    pub(super) fn damage_in(&self, frames: FrameRange, leaked: u64) -> Option<Pfn> {
        if self.config.contents != Contents::Poison {
            return None;
        }
        let (pfn, offset, found) = find_other::<P>(frames, POISON)?;
        // One word, so that frame, offset and byte belong together; addresses end below 2^52.
        let at = pfn.addr(P::PAGE_SHIFT).0 + u64::from(offset);
        self.damage.store(at << 8 | u64::from(found), Relaxed);
        self.leaked.fetch_add(leaked, Relaxed);
        Some(pfn)
    }

    /// The place of a block; one whose contents need work does not take the fast way.
    #[inline]
    pub(super) fn place_of(&self, zone: u8, frame: u32, sort: Sort) -> Place {
        let place = Place::new(zone, frame, sort);
        match self.config.contents {
            Contents::Keep => place,
            _ => place.past_fast_way(),
        }
    }

    /// What `find` finds, made what the request wants its contents to be.
    pub(super) fn prepared<'a>(
        &self,
        request: Request,
        find: impl Fn() -> Result<Pages<'a, P>, AllocError>,
    ) -> Result<Pages<'a, P>, AllocError> {
        if self.config.contents != Contents::Keep || request.is_zeroed() {
            return self.checked(request, find);
        }
        find()
    }

    #[cold]
    fn checked<'a>(
        &self,
        request: Request,
        find: impl Fn() -> Result<Pages<'a, P>, AllocError>,
    ) -> Result<Pages<'a, P>, AllocError> {
        for _ in 0..TRIES {
            let pages = find()?;
            let frames = pages.frames();
            if self.damage_in(frames, frames.frames()).is_some() {
                // Whoever wrote may write again: nobody gets the block.
                mem::forget(pages);
                continue;
            }
            let zero = match self.config.contents {
                Contents::ZeroOnAlloc => true,
                Contents::ZeroOnFree => false,
                Contents::Keep | Contents::Poison => request.is_zeroed(),
            };
            if zero {
                fill_frames::<P>(frames, 0);
            }
            return Ok(pages);
        }
        Err(AllocError::Damaged)
    }

    /// Prepares frames that become free; the caller still owns them.
    pub(super) fn clear(&self, frames: impl FnOnce() -> FrameRange) {
        match self.config.contents {
            Contents::Keep | Contents::ZeroOnAlloc => {}
            Contents::ZeroOnFree => fill_frames::<P>(frames(), 0),
            Contents::Poison => fill_frames::<P>(frames(), POISON),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "frame {} was written at offset {:#x} ({:#04x}) while it was free; {} frames leaked",
            self.pfn, self.offset, self.found, self.leaked
        )
    }
}
