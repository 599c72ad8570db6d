//! A range of frames as one piece, wherever it starts.
//!
//! Owns: [`Contig`], [`PageAllocator::alloc_contig`]. Invariants: while a range is collected its lines are isolated and its
//! zone's pagesets park nothing; both end with the call, whatever it returns.
//! Lock ranks: Pageset, then Shard, one at a time; none while the hook runs. Used by: kernels.

use core::fmt;

use super::PageAllocator;
use super::contents::Contents;
use crate::addr::{FrameRange, Pfn};
use crate::boot::fill_frames;
use crate::platform::{IrqOff, Platform};
use crate::zone::{IsolateError, Isolation, OfflineError, Purpose, Zone};

/// How often the hook is asked for one run of frames.
const ROUNDS: u32 = 5;

/// What the kernel could do with frames that are in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// Their contents are elsewhere and they were freed, or it is worth another try.
    Tried,
    /// They must stay: the range cannot be had.
    Unmovable,
}

/// Why a range cannot be had, or not go offline. It is as it was, but for what the hook has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ContigError {
    /// No frame is in it.
    Empty,
    /// This frame is not memory.
    Outside(Pfn),
    /// It begins in one zone and ends in another.
    SeveralZones(FrameRange),
    /// This frame is not managed, or was marked bad.
    Unusable(Pfn),
    /// Somebody else collects this frame's pageblock.
    Busy(Pfn),
    /// This frame's pageblock is kept for another purpose.
    Kept(Pfn),
    /// The hook says that this frame must stay.
    Unmovable(Pfn),
    /// This frame was still in use after the last round.
    InUse(Pfn),
    /// This frame was reserved at boot.
    Reserved(Pfn),
    /// This frame was written to while it was free. It is leaked: whoever wrote may write again.
    Damaged(Pfn),
    /// Too many pageblocks of the zone have holes or bad frames: align the range to 512 frames.
    TooManyHoles,
}

/// A range of frames and the right to use them. Dropping it frees them.
#[must_use = "dropping it frees the frames"]
pub struct Contig<'a, P: Platform> {
    allocator: &'a PageAllocator<P>,
    zone: u8,
    frames: FrameRange,
}

impl<P: Platform> PageAllocator<P> {
    /// Takes all frames of a range of one zone. The hook is asked, without locks, to empty each run of frames of a pageblock that are
    /// in use, at most five times each.
    ///
    /// # Errors
    /// [`ContigError`]: nothing was taken. Of two calls for one pageblock the second gets [`ContigError::Busy`].
    pub fn alloc_contig(
        &self,
        range: FrameRange,
        migrate: impl FnMut(FrameRange) -> Moved,
    ) -> Result<Contig<'_, P>, ContigError> {
        self.collect(range, Purpose::Contiguous, migrate)
    }

    /// Takes all frames of a range from pageblocks of one purpose.
    pub(super) fn collect(
        &self,
        range: FrameRange,
        purpose: Purpose,
        migrate: impl FnMut(FrameRange) -> Moved,
    ) -> Result<Contig<'_, P>, ContigError> {
        let index = self.zone_of_range(range)?;
        if let Some(pfn) = self.nodes.zone(index).next_unusable(range) {
            return Err(ContigError::Unusable(pfn));
        }
        let collecting = Collecting::start(self, index, range, purpose)?;
        collecting.empty(range, migrate)?;
        collecting.drain();
        collecting.take()?;
        if let Some(pfn) = self.damage_in(range, 1) {
            let zone = self.nodes.zone(index);
            for rest in [
                FrameRange::new(range.start(), pfn),
                FrameRange::new(Pfn(pfn.0 + 1), range.end()),
            ] {
                let given = zone.give_range(rest, &IrqOff::new());
                debug_assert_eq!(given, Ok(()), "{rest} was taken above");
            }
            return Err(ContigError::Damaged(pfn));
        }
        if self.config.contents == Contents::ZeroOnAlloc {
            fill_frames::<P>(range, 0);
        }
        Ok(Contig {
            allocator: self,
            zone: index,
            frames: range,
        })
    }

    /// The zone that both ends of a range are in.
    pub(super) fn zone_of_range(&self, range: FrameRange) -> Result<u8, ContigError> {
        if range.is_empty() {
            return Err(ContigError::Empty);
        }
        let last = Pfn(range.end().0 - 1);
        let of = |pfn| self.nodes.zone_of(pfn).ok_or(ContigError::Outside(pfn));
        let index = of(range.start())?;
        if of(last)? != index {
            return Err(ContigError::SeveralZones(range));
        }
        Ok(index)
    }
}

impl<P: Platform> Contig<'_, P> {
    /// Its frames.
    #[must_use]
    pub fn frames(&self) -> FrameRange {
        self.frames
    }
}

impl<P: Platform> Drop for Contig<'_, P> {
    fn drop(&mut self) {
        self.allocator.clear(|| self.frames);
        let zone = self.allocator.nodes.zone(self.zone);
        let given = zone.give_range(self.frames, &IrqOff::new());
        // Only a corrupted zone refuses what its owner gives; it counts the fault, and the frames stay out.
        debug_assert_eq!(given, Ok(()), "{self:?}");
        self.allocator.reopen_pagesets(self.zone);
    }
}

/// A range that is being collected. Dropping it ends that.
pub(super) struct Collecting<'a, P: Platform> {
    allocator: &'a PageAllocator<P>,
    index: u8,
    /// Until the range is offline.
    isolation: Option<Isolation>,
}

impl<'a, P: Platform> Collecting<'a, P> {
    pub(super) fn start(
        allocator: &'a PageAllocator<P>,
        index: u8,
        range: FrameRange,
        purpose: Purpose,
    ) -> Result<Self, ContigError> {
        let zone = allocator.nodes.zone(index);
        let isolation =
            zone.isolate(range, purpose, &IrqOff::new())
                .map_err(|error| match error {
                    IsolateError::Range(range) => ContigError::Outside(range.start()),
                    IsolateError::Busy(pfn) => ContigError::Busy(pfn),
                    IsolateError::Absent(pfn) => ContigError::Unusable(pfn),
                    IsolateError::Kept(pfn) => ContigError::Kept(pfn),
                })?;
        allocator.nodes.zones()[usize::from(index)].close_pagesets();
        allocator.refresh_pagesets(index);
        let this = Self {
            allocator,
            index,
            isolation: Some(isolation),
        };
        this.drain();
        Ok(this)
    }

    pub(super) fn zone(&self) -> &'static Zone<P> {
        self.allocator.nodes.zone(self.index)
    }

    /// Frames that were parked before the pagesets closed.
    fn drain(&self) {
        self.allocator
            .drain_zones(core::iter::once(self.index), &IrqOff::new());
    }

    /// Takes the frames of the range, which are free.
    fn take(self) -> Result<(), ContigError> {
        let taken = self.isolation.as_ref().map_or(Ok(()), |isolation| {
            self.zone().take_range(isolation, &IrqOff::new())
        });
        taken.map_err(ContigError::InUse)
    }

    /// Makes the range, every frame of which is free, part of a CMA area.
    pub(super) fn into_cma(self) -> Result<(), ContigError> {
        self.drain();
        let Some(isolation) = &self.isolation else {
            return Ok(());
        };
        if let Some(pfn) = self.zone().next_used(isolation.range()) {
            return Err(ContigError::InUse(pfn));
        }
        let set = self.zone().set_cma(isolation, &IrqOff::new());
        set.map_err(ContigError::Kept)
    }

    /// Takes the range offline, every frame of which is free.
    pub(super) fn offline(mut self) -> Result<(), OfflineError> {
        self.drain();
        let Some(isolation) = self.isolation.take() else {
            return Ok(());
        };
        let offline = self.zone().offline(isolation, &IrqOff::new());
        offline.map_err(|(isolation, error)| {
            self.isolation = Some(isolation);
            error
        })
    }

    pub(super) fn empty(
        &self,
        range: FrameRange,
        mut migrate: impl FnMut(FrameRange) -> Moved,
    ) -> Result<(), ContigError> {
        for _ in 0..ROUNDS {
            let mut rest = range;
            let mut found = false;
            while let Some(run) = self.zone().next_used_run(rest) {
                found = true;
                if migrate(run) == Moved::Unmovable {
                    return Err(ContigError::Unmovable(run.start()));
                }
                rest = FrameRange::new(run.end(), range.end());
            }
            if !found {
                return Ok(());
            }
        }
        match self.zone().next_used(range) {
            Some(pfn) => Err(ContigError::InUse(pfn)),
            None => Ok(()),
        }
    }
}

impl<P: Platform> Drop for Collecting<'_, P> {
    fn drop(&mut self) {
        if let Some(isolation) = &self.isolation {
            self.zone().release(isolation, &IrqOff::new());
        }
        self.allocator.nodes.zones()[usize::from(self.index)].open_pagesets(1);
        self.allocator.refresh_pagesets(self.index);
    }
}

impl<P: Platform> fmt::Debug for Contig<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contig({})", self.frames)
    }
}

impl fmt::Display for ContigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the range is empty"),
            Self::Outside(pfn) => write!(f, "frame {pfn} is not memory"),
            Self::SeveralZones(range) => write!(f, "{range} is not in one zone"),
            Self::Unusable(pfn) => write!(f, "frame {pfn} is not managed, or bad"),
            Self::Busy(pfn) => write!(f, "the pageblock at {pfn} is being collected by another"),
            Self::Kept(pfn) => write!(f, "the pageblock at {pfn} is kept for another purpose"),
            Self::Unmovable(pfn) => write!(f, "frame {pfn} must stay where it is"),
            Self::InUse(pfn) => write!(f, "frame {pfn} is still in use"),
            Self::Reserved(pfn) => write!(f, "frame {pfn} was reserved at boot"),
            Self::Damaged(pfn) => write!(
                f,
                "frame {pfn} was written to while it was free, and is leaked: see damage()"
            ),
            Self::TooManyHoles => {
                f.write_str("too many pageblocks have holes: align the range to 512 frames")
            }
        }
    }
}

impl core::error::Error for ContigError {}
