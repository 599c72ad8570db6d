//! Folios that were evicted, and come back.
//!
//! Owns: [`Folio::add_refaulted`]. Invariants: a folio's refault is judged before it is given to
//! the LRU, so the list it goes to is known when its batch is drained.
//! Lock ranks: takes `LruVec`, one at a time, then `LruBatch`. Used by: kernels.

use super::evict::Evict;
use crate::frame::Flags;
use crate::lru::{Backing, Refault, Shadow};
use crate::mm::{Folio, LruError};
use crate::platform::IrqOff;

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
