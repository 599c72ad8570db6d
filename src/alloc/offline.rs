//! Ranges of memory that go offline and come back.
//!
//! Owns: [`PageAllocator::offline`], [`PageAllocator::online`]. Invariants: a range that is offline is neither managed nor
//! present; bad frames of it stay bad. Limits are recomputed after each change.
//! Lock ranks: those of alloc, one at a time; none while the hook runs. Used by: kernels, hypervisors.

use core::fmt;

use super::contig::Collecting;
use super::{ContigError, Moved, PageAllocator};
use crate::addr::{FrameRange, Pfn};
use crate::node::Stage;
use crate::platform::Platform;
use crate::zone::{self, OfflineError, Purpose};

/// Why a range cannot come online. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OnlineError {
    /// No frame is in it.
    Empty,
    /// This frame is not memory, or in another zone than the first.
    Outside(Pfn),
    /// This frame was reserved at boot.
    Reserved(Pfn),
    /// This frame's section is deferred: `deferred_init` brings it online.
    Deferred(Pfn),
    /// This frame is online.
    Online(Pfn),
    /// Too many pageblocks of the zone have holes or bad frames: align the range to 512 frames.
    TooManyHoles,
    /// Another range of the zone is being changed now: try again.
    Busy,
}

impl<P: Platform> PageAllocator<P> {
    /// Takes a range of one zone offline: its frames are not managed any more, and watermarks and limits follow. All of them must
    /// be online. The hook is asked, without locks, to empty each run of frames of a pageblock that are in use, as for
    /// [`alloc_contig`](Self::alloc_contig). Bad frames that nobody uses go with the rest; one in use stands in the way.
    ///
    /// ```
    /// # use framekeeper::{FrameRange, PageAllocator, Platform, Pfn, alloc::Moved};
    /// # fn unplug<P: Platform>(memory: &PageAllocator<P>) -> Result<(), Box<dyn core::error::Error>> {
    /// let module = FrameRange::new(Pfn(0x8_0000), Pfn(0x9_0000));
    /// memory.offline(module, |_in_use| Moved::Unmovable)?;
    /// // ... the hypervisor does something with it ...
    /// memory.online(module)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ContigError`]: the range is as it was, but for what the hook has moved.
    pub fn offline(
        &self,
        range: FrameRange,
        migrate: impl FnMut(FrameRange) -> Moved,
    ) -> Result<(), ContigError> {
        let index = self.zone_of_range(range)?;
        if let Some(pfn) = self.nodes.zone(index).next_absent(range) {
            return Err(match self.nodes.is_reserved(pfn) {
                true => ContigError::Reserved(pfn),
                false => ContigError::Unusable(pfn),
            });
        }
        let collecting = Collecting::start(self, index, range, Purpose::Offline)?;
        collecting.empty(range, migrate)?;
        collecting.offline().map_err(|error| match error {
            OfflineError::InUse(pfn) => ContigError::InUse(pfn),
            OfflineError::TooManyHoles => ContigError::TooManyHoles,
            OfflineError::Busy => ContigError::Busy(range.start()),
        })?;
        self.recompute();
        Ok(())
    }

    /// Brings a range of one zone online that went [`offline`](Self::offline): all its frames but bad ones are free then.
    ///
    /// # Errors
    /// [`OnlineError`], with nothing changed.
    pub fn online(&self, range: FrameRange) -> Result<(), OnlineError> {
        if range.is_empty() {
            return Err(OnlineError::Empty);
        }
        let index = self.nodes.zone_of(range.start());
        let index = index.ok_or(OnlineError::Outside(range.start()))?;
        if let Some(pfn) = self.nodes.first_outside(range, index) {
            return Err(OnlineError::Outside(pfn));
        }
        if let Some(pfn) = self.nodes.first_reserved(range) {
            return Err(OnlineError::Reserved(pfn));
        }
        if let Some(pfn) = self.nodes.first_waiting(range) {
            return Err(OnlineError::Deferred(pfn));
        }
        // Memory that was added must not be removed meanwhile.
        let _claimed = self
            .claim_hotplug_in(range, Stage::Online)
            .map_err(|_| OnlineError::Busy)?;
        let zone = self.nodes.zone(index);
        let ready = || self.clear(|| range);
        zone.online_after(range, ready)
            .map_err(|error| match error {
                zone::OnlineError::Outside { range } => OnlineError::Outside(range.start()),
                zone::OnlineError::AlreadyManaged { range } => {
                    let online = range.iter().find(|&pfn| zone.is_managed(pfn));
                    OnlineError::Online(online.unwrap_or(range.start()))
                }
                zone::OnlineError::TooManyHoles => OnlineError::TooManyHoles,
                zone::OnlineError::Busy => OnlineError::Busy,
            })?;
        self.recompute();
        Ok(())
    }
}

impl fmt::Display for OnlineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the range is empty"),
            Self::Outside(pfn) => {
                write!(
                    f,
                    "frame {pfn} is not memory, or in another zone than the first"
                )
            }
            Self::Reserved(pfn) => write!(f, "frame {pfn} was reserved at boot"),
            Self::Deferred(pfn) => write!(f, "frame {pfn} is deferred: call deferred_init"),
            Self::Online(pfn) => write!(f, "frame {pfn} is online already"),
            Self::TooManyHoles => {
                f.write_str("too many pageblocks have holes: align the range to 512 frames")
            }
            Self::Busy => f.write_str("another range is being changed: try again"),
        }
    }
}

impl core::error::Error for OnlineError {}
