//! The kernel's caches of objects, after the LRU of each group.
//!
//! Owns: the calls of shrinkers. Invariants: one thread does not call shrinkers inside its own reclaim.
//! Lock ranks: none is held while a shrinker runs. Used by: entry, kernels.

use super::evict::Evict;
use super::scan::Progress;
use crate::addr::NodeId;
use crate::memcg::MemcgId;
use crate::mm::Mm;
use crate::sync::NoClaim;

/// Why no shrinker was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ShrinkError {
    /// The calling thread reclaims already: a shrinker may not reclaim.
    Nested,
    /// Too many threads reclaim at once; wait for one of them.
    Crowded,
}

impl<P: Evict> Mm<P> {
    /// Asks the shrinkers for objects of one group on a node: a 2^`priority`-th part of what they could free, times four by the
    /// price of an object. Returns the objects freed, as the shrinkers say; 0 for a group or node that is not there.
    ///
    /// # Errors
    /// [`ShrinkError`].
    pub fn shrink_objects(
        &self,
        memcg: MemcgId,
        node: NodeId,
        priority: u32,
    ) -> Result<u64, ShrinkError> {
        let claim = self.reclaimers.claim(P::task());
        let _claim = claim.map_err(|refused| match refused {
            NoClaim::Nested => ShrinkError::Nested,
            NoClaim::Full => ShrinkError::Crowded,
        })?;
        let totals = self
            .shrinkers()
            .shrink(self.memcgs(), memcg, node, priority);
        Ok(totals.freed)
    }

    /// The part of a reclaim that falls to the shrinkers.
    pub(super) fn shrink_objects_of(&self, memcg: MemcgId, node: u32, progress: &mut Progress) {
        // A dying group's objects are its parent's in a moment, and asked for there.
        if self.memcgs().id_of(memcg.slot) != Some(memcg) {
            return;
        }
        let totals =
            self.shrinkers()
                .shrink(self.memcgs(), memcg, NodeId(node as u8), progress.priority);
        progress.objects = progress.objects.saturating_add(totals.freed);
    }
}

impl core::fmt::Display for ShrinkError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Nested => "a shrinker or hook may not reclaim",
            Self::Crowded => "too many threads reclaim at once",
        })
    }
}

impl core::error::Error for ShrinkError {}
