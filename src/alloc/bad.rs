//! Frames that hardware has found bad.
//!
//! Owns: [`PageAllocator::mark_bad`]. Invariants: a marked frame is in no pageset once the call has returned, nor later.
//! Lock ranks: Pageset, then Shard, one at a time. Used by: kernels, from their machine check handlers' deferred work.

use super::PageAllocator;
use crate::addr::Pfn;
use crate::platform::{IrqOff, Platform};
use crate::zone::{MarkError, WasBad};

impl<P: Platform> PageAllocator<P> {
    /// Sees to it that a frame is never given again: a free one is taken out of its block, one in use is dropped when it
    /// is freed, alone, whatever block it is in.
    ///
    /// Since a pageset does not look at what it parks, the first frame found in use ends the use of pagesets for its zone:
    /// correct, but every call goes to a shard from then on.
    ///
    /// # Errors
    /// [`MarkError`], with nothing changed.
    pub fn mark_bad(&self, pfn: Pfn) -> Result<WasBad, MarkError> {
        let index = self.nodes.zone_of(pfn).ok_or(MarkError::Unmanaged(pfn))?;
        let entry = &self.nodes.zones()[usize::from(index)];
        let was = entry.zone.mark_bad(pfn, &IrqOff::new())?;
        if was == WasBad::InUse {
            entry.close_pagesets();
            self.refresh_pagesets(index);
            self.drain_zones(core::iter::once(index), &IrqOff::new());
        }
        Ok(was)
    }

    /// Frames marked bad.
    #[must_use]
    pub fn bad_frames(&self) -> u64 {
        self.zones().map(|zone| zone.bad_frames()).sum()
    }
}
