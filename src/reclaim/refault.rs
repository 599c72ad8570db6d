//! Folios that were evicted, and come back.
//!
//! Owns: the shadow of an evicted folio; [`Folio::add_refaulted`]. Invariants: a folio's refault is judged before it is given to
//! the LRU, so the list it goes to is known when its batch is drained.
//! Lock ranks: takes `LruVec`, one at a time, then `LruBatch`. Used by: scan, kernels.

use super::evict::{Evict, Evicted};
use crate::addr::NodeId;
use crate::frame::{Flags, FrameNo};
use crate::lru::{Backing, Refault, Shadow};
use crate::memcg::MemcgId;
use crate::mm::{Folio, LruError, Mm};
use crate::platform::IrqOff;

impl<P: Evict> Mm<P> {
    /// What is left of a folio whose references are frozen, and which reclaim of `root` takes.
    pub(super) fn evicted(&self, frame: FrameNo, root: MemcgId) -> Evicted {
        let folio = self.frozen(frame);
        let workingset = folio.record().flags().contains(Flags::WORKINGSET);
        let node = self.allocator().node_of(folio.pfn()).unwrap_or(NodeId(0));
        let frames = folio.order().frames();
        Evicted {
            pfn: folio.pfn(),
            order: folio.order(),
            word: folio.word(),
            backing: folio.backing(),
            shadow: self.view().shadow(root, node, frames, workingset),
        }
    }
}

impl<P: Evict> Folio<'_, P> {
    /// Gives a folio to the LRU whose contents were evicted before and left `shadow` in their place. If it went too early it
    /// becomes active at once.
    ///
    /// # Errors
    /// [`LruError::Added`] if it was given before.
    pub fn add_refaulted(&self, backing: Backing, shadow: Shadow) -> Result<Refault, LruError> {
        let (mm, frames) = (self.mm(), self.order().frames());
        let off = IrqOff::new();
        let refault = mm.view().judge_refault(shadow, backing, P::swap(), &off);
        drop(off);
        let flags = match refault {
            Refault::Old => Flags::empty(),
            Refault::Recent => Flags::ACTIVE,
            Refault::Workingset => Flags::ACTIVE | Flags::WORKINGSET,
        };
        self.add_with(backing, flags)?;
        if refault != Refault::Old {
            self.count_activation();
        }
        if refault == Refault::Workingset
            && let Some(lruvec) = self.lruvec()
        {
            let off = IrqOff::new();
            mm.view().add_cost(lruvec, backing, frames, 0, &off);
        }
        Ok(refault)
    }
}
