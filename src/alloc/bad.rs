//! Frames that hardware has found bad.
//!
//! Owns: [`PageAllocator::mark_bad`]. Invariants: a marked frame is in no pageset once the call has returned, nor later: while
//! one of a zone is in use, the zone's pagesets park nothing, and each keeps them closed once.
//! Lock ranks: Pageset, then Shard, one at a time. Used by: kernels, from their machine check handlers' deferred work.

use super::PageAllocator;
use crate::addr::Pfn;
use crate::platform::{IrqOff, Platform};
use crate::sync::twin::left_out;
use crate::zone::{MarkError, WasBad};

impl<P: Platform> PageAllocator<P> {
    /// Sees to it that a frame is never given again: a free one is taken out of its block, one in use is dropped when it
    /// is freed, alone, whatever block it is in.
    ///
    /// Since a pageset does not look at what it parks, the zone's pagesets park nothing while a bad frame of it is in use: every
    /// call goes to a shard until the last has come back.
    ///
    /// # Errors
    /// [`MarkError`], with nothing changed.
    pub fn mark_bad(&self, pfn: Pfn) -> Result<WasBad, MarkError> {
        let index = self.nodes.zone_of(pfn).ok_or(MarkError::Unmanaged(pfn))?;
        let entry = &self.nodes.zones()[usize::from(index)];
        // Closed before it is marked: should it come back at once, whoever gave it finds what to open again.
        entry.close_pagesets();
        let was = entry.zone.mark_bad(pfn, &IrqOff::new());
        if was != Ok(WasBad::InUse) {
            entry.open_pagesets(1);
        }
        self.refresh_pagesets(index);
        if was == Ok(WasBad::InUse) {
            if !left_out::<P>("bad: what was parked before is drained") {
                self.drain_zones(core::iter::once(index), &IrqOff::new());
            }
            if !left_out::<P>("bad: the drain may bring it back") {
                self.reopen_pagesets(index);
            }
        }
        was
    }

    /// Opens a zone's pagesets again for bad frames that have come back, once for each. To be called after whatever gives
    /// frames to the zone past its pagesets.
    #[inline]
    pub(super) fn reopen_pagesets(&self, index: u8) {
        let entry = &self.nodes.zones()[usize::from(index)];
        let returned = entry.zone.take_returned();
        if returned > 0 {
            entry.open_pagesets(returned);
            self.refresh_pagesets(index);
        }
    }

    /// Frames marked bad.
    #[must_use]
    pub fn bad_frames(&self) -> u64 {
        self.zones().map(|zone| zone.bad_frames()).sum()
    }
}
