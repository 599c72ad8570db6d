//! Memory that is given to an instance later, and taken back: reserved ranges, whole sections.
//!
//! Owns: [`PageAllocator::release_reserved`], [`hot_add`](PageAllocator::hot_add), [`hot_remove`](PageAllocator::hot_remove).
//! Invariants: a range comes online once; limits are recomputed after each change, once for all zones, outside every lock. Of a section
//! that is claimed nobody else changes anything; a failed call settles it as it was.
//! Lock ranks: none of its own; Pageset, then Shard, one at a time, none while a hook runs.
//! Used by: kernels.

use core::fmt;
use core::ops::Range;

use super::{ContigError, Moved, PageAllocator};
use crate::addr::{FrameRange, Pfn};
use crate::boot::{LateMemory, Refused};
use crate::node::{NotReserved, Section, Stage, section_frames};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;
use crate::zone::OnlineError;

/// When a range that was given back can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// Now.
    Now,
    /// From [`finish_deferred`](PageAllocator::finish_deferred) on.
    AtFinish,
}

/// Why a reserved range cannot be given back. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// No frame is in it.
    Empty,
    /// This frame is not memory, or was not reserved at boot.
    NotReserved(Pfn),
    /// This frame was given back before.
    Released(Pfn),
    /// This frame is in another zone than the first: give back each zone's part alone.
    OtherZone(Pfn),
    /// This frame is in a section that memory may be added to: use `hot_add`.
    Hotplug(Pfn),
    /// Too many ranges wait for the end of deferred initialisation: finish it first.
    QueueFull,
    /// Too many pageblocks of the zone have holes: align ranges to 512 frames.
    TooManyHoles,
    /// Another range of the zone is being changed now; try again.
    Busy,
}

/// Why sections cannot be added or removed. Nothing was changed, but for what the hook has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HotplugError {
    /// The range is empty, or does not start and end on sections of 128 MiB.
    NotSections(FrameRange),
    /// The boot map did not name this frame's section as one that memory may be added to.
    Unplanned(Pfn),
    /// This frame's section has its memory already.
    Present(Pfn),
    /// This frame's section has no memory.
    Absent(Pfn),
    /// This frame's section is being added or removed by another.
    Busy(Pfn),
    /// The frames cannot be emptied.
    Kept(ContigError),
}

impl<P: Platform> PageAllocator<P> {
    /// Gives frames to the allocator that were reserved at boot and are not needed any more: the boot loader's, the initial
    /// RAM disk's. Those whose section is still deferred follow when deferred initialisation is finished.
    ///
    /// # Errors
    /// [`ReleaseError`], and the memory.
    pub fn release_reserved(
        &self,
        memory: LateMemory,
    ) -> Result<Released, Refused<ReleaseError, LateMemory>> {
        let range = memory.frames();
        if range.is_empty() {
            return Err(Refused(ReleaseError::Empty, memory));
        }
        let zone = match self.reserved_zone(range) {
            Ok(zone) => zone,
            Err(error) => return Err(Refused(error, memory)),
        };
        let managed = |pfn: &Pfn| self.nodes.zone(zone).is_managed(*pfn);
        if let Some(pfn) = range.iter().find(managed) {
            return Err(Refused(ReleaseError::Released(pfn), memory));
        }
        let is_online = || self.nodes.first_waiting(range).is_none();
        let memory = match self.deferral.queue(memory, is_online, &IrqOff::new()) {
            Ok(()) => return Ok(Released::AtFinish),
            Err((Some(error), memory)) => return Err(Refused(error, memory)),
            Err((None, memory)) => memory,
        };
        let ready = || self.clear(|| range);
        let online = self.nodes.zone(zone).online_reserved(range, ready);
        if let Err(error) = online {
            let error = match error {
                OnlineError::Outside { .. } => ReleaseError::NotReserved(range.start()),
                OnlineError::AlreadyManaged { .. } => ReleaseError::Released(range.start()),
                OnlineError::TooManyHoles => ReleaseError::TooManyHoles,
                OnlineError::Busy => ReleaseError::Busy,
            };
            return Err(Refused(error, memory));
        }
        self.recompute();
        Ok(Released::Now)
    }

    /// The zone of frames that were reserved at boot, and exist.
    fn reserved_zone(&self, range: FrameRange) -> Result<u8, ReleaseError> {
        let zone = self.nodes.zone_of_reserved(range);
        let zone = zone.map_err(|error| match error {
            NotReserved::At(pfn) => ReleaseError::NotReserved(pfn),
            NotReserved::OtherZone(pfn) => ReleaseError::OtherZone(pfn),
        })?;
        // Such sections are whole, so the range meets one where it starts, ends, or a section begins.
        let size = section_frames(P::PAGE_SHIFT);
        let next = (range.start().0 / size + 1)..range.end().0.div_ceil(size);
        let mut looks = [range.start()]
            .into_iter()
            .chain(next.map(|i| Pfn(i * size)));
        match looks.find(|&pfn| self.nodes.hotplug_section(pfn).is_some()) {
            Some(pfn) => Err(ReleaseError::Hotplug(pfn)),
            None => Ok(zone),
        }
    }

    /// Brings a range online that waited for the end of deferred initialisation.
    pub(super) fn give_queued(&self, memory: LateMemory) {
        let range = memory.frames();
        let Some(zone) = self.nodes.zone_of(range.start()) else {
            return;
        };
        self.clear(|| range);
        // Absent, as the queue saw to, and whoever else could bring it online had no right to: it is the memory's owner's.
        let online = self.nodes.zone(zone).online_lines(range, &IrqOff::new());
        self.refused.fetch_add(range.frames() - online, Relaxed);
    }

    /// Adds memory in whole sections that the boot map named with [`add_hotplug`](crate::BootMap::add_hotplug).
    ///
    /// # Errors
    /// [`HotplugError`], and the memory.
    pub fn hot_add(&self, memory: LateMemory) -> Result<(), Refused<HotplugError, LateMemory>> {
        let range = memory.frames();
        let claimed = self.claim_sections(range, Stage::Absent);
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => return Err(Refused(error, memory)),
        };
        for section in claimed.sections() {
            self.prepare(section.frames());
            self.clear(|| section.frames());
            self.nodes.bring_section(section.frames());
        }
        claimed.settle(Stage::Online);
        self.recompute();
        Ok(())
    }

    /// Takes whole sections that were added out again. Their frames must be free, or the hook must empty each run of frames that
    /// is in use, as for [`alloc_contig`](Self::alloc_contig). The memory comes back; it may be added again.
    ///
    /// # Errors
    /// [`HotplugError`].
    pub fn hot_remove(
        &self,
        range: FrameRange,
        migrate: impl FnMut(FrameRange) -> Moved,
    ) -> Result<LateMemory, HotplugError> {
        let claimed = self.claim_sections(range, Stage::Online)?;
        let removed = self.offline(range, migrate);
        claimed.settle(match removed {
            Ok(()) => Stage::Absent,
            Err(_) => Stage::Online,
        });
        removed.map_err(HotplugError::Kept)?;
        Ok(LateMemory::of_instance(range))
    }

    /// Claims the sections of a range of whole ones, all hot-pluggable and at `from`.
    fn claim_sections(
        &self,
        range: FrameRange,
        from: Stage,
    ) -> Result<ClaimedSections<'_, P>, HotplugError> {
        let size = section_frames(P::PAGE_SHIFT);
        let whole = [range.start(), range.end()].map(|at| at.0.is_multiple_of(size));
        if range.is_empty() || whole != [true; 2] {
            return Err(HotplugError::NotSections(range));
        }
        let claimed = self.claim_hotplug_in(range, from)?;
        let mut starts = (range.start().0..range.end().0).step_by(size as usize);
        let unplanned = starts.find(|&start| self.nodes.hotplug_section(Pfn(start)).is_none());
        match unplanned {
            Some(start) => Err(HotplugError::Unplanned(Pfn(start))),
            None => Ok(claimed),
        }
    }

    /// Claims those sections that a range touches and that are hot-pluggable; they must be at `from`.
    pub(super) fn claim_hotplug_in(
        &self,
        range: FrameRange,
        from: Stage,
    ) -> Result<ClaimedSections<'_, P>, HotplugError> {
        let size = section_frames(P::PAGE_SHIFT);
        let first = range.start().0 / size;
        let mut claimed = ClaimedSections {
            allocator: self,
            sections: first..first,
            before: from,
        };
        for i in first..range.end().0.div_ceil(size) {
            let at = Pfn(i * size);
            if let Some(section) = self.nodes.hotplug_section(at)
                && !section.claim::<P>(from)
            {
                return Err(match section.stage() {
                    Stage::Absent => HotplugError::Absent(at),
                    Stage::Online => HotplugError::Present(at),
                    _ => HotplugError::Busy(at),
                });
            }
            claimed.sections.end = i + 1;
        }
        Ok(claimed)
    }
}

/// Hot-pluggable sections that the caller changes, by number. Dropped, they are as they were.
pub(super) struct ClaimedSections<'a, P: Platform> {
    allocator: &'a PageAllocator<P>,
    sections: Range<u64>,
    before: Stage,
}

impl<P: Platform> ClaimedSections<'_, P> {
    fn sections(&self) -> impl Iterator<Item = &'static Section> {
        let size = section_frames(P::PAGE_SHIFT);
        let starts = self.sections.clone().map(move |i| Pfn(i * size));
        starts.filter_map(|start| self.allocator.nodes.hotplug_section(start))
    }

    fn settle(mut self, to: Stage) {
        self.before = to;
    }
}

impl<P: Platform> Drop for ClaimedSections<'_, P> {
    fn drop(&mut self) {
        self.sections()
            .for_each(|section| section.settle(self.before));
    }
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the range is empty"),
            Self::NotReserved(pfn) => write!(f, "frame {pfn} was not reserved at boot"),
            Self::Released(pfn) => write!(f, "frame {pfn} was given back before"),
            Self::OtherZone(pfn) => write!(
                f,
                "frame {pfn} is in another zone: give back each zone's part alone"
            ),
            Self::Hotplug(pfn) => write!(f, "frame {pfn} is hot-pluggable: use hot_add"),
            Self::QueueFull => {
                f.write_str("too many ranges wait: finish deferred initialisation first")
            }
            Self::TooManyHoles => {
                f.write_str("too many pageblocks have holes: align ranges to 512 frames")
            }
            Self::Busy => f.write_str("another range is being changed: try again"),
        }
    }
}

impl fmt::Display for HotplugError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSections(range) => write!(f, "{range} is not made of sections of 128 MiB"),
            Self::Unplanned(pfn) => write!(
                f,
                "no memory was planned at {pfn}: name it by BootMap::add_hotplug"
            ),
            Self::Present(pfn) => write!(f, "the section at {pfn} has its memory already"),
            Self::Absent(pfn) => write!(f, "the section at {pfn} has no memory"),
            Self::Busy(pfn) => write!(f, "the section at {pfn} is being added or removed"),
            Self::Kept(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ReleaseError {}
impl core::error::Error for HotplugError {}
