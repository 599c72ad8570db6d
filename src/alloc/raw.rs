//! Owners made from bare numbers, checked.
//!
//! Owns: [`PageAllocator::try_from_raw`]. Invariants: of two calls for one given block at most one succeeds.
//! Lock ranks: none. Used by: those who store frames as numbers.

use super::place::Sort;
use super::{PageAllocator, Pages, RawError};
use crate::addr::{Order, Pfn};
use crate::pageset::ListId;
use crate::platform::Platform;

impl<P: Platform> PageAllocator<P> {
    /// Takes back a block that [`Pages::into_raw`] gave up. Dropping the result frees it. Any number may be asked for:
    /// only the right one with the right order succeeds, and only once.
    ///
    /// # Errors
    /// [`RawError`], with nothing changed.
    pub fn try_from_raw(&self, pfn: Pfn, order: Order) -> Result<Pages<'_, P>, RawError> {
        let (zone, frame, mobility) = self.place(pfn).ok_or(RawError::NoSuchFrame)?;
        let codes = self.codes.get(usize::from(zone)).ok_or(RawError::NoCodes)?;
        codes.take(pfn, order).map_err(|error| {
            // It has no code either, and is seldom asked for: looked at last.
            if self.nodes.is_reserved(pfn) {
                RawError::Reserved
            } else {
                error
            }
        })?;
        let sort = Sort::new(order, ListId::new(order, mobility));
        Ok(Pages {
            allocator: self,
            place: self.place_of(zone, frame, sort),
        })
    }
}
