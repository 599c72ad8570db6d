//! Folios off their list.
//!
//! Owns: [`Isolated`]. Invariants: holds the isolation's reference; nobody else may link the folio meanwhile. Dropping puts
//! it back on the list its flags name, on its owner's lruvec of that moment.
//! Lock ranks: takes `LruVec` when dropped. Used by: kernels (migration), reclaim.

use core::ops::Deref;

use super::{FolioView, Mm};
use crate::frame::FrameNo;
use crate::platform::{IrqOff, Platform};

/// A folio taken off its LRU list; dropping puts it back.
#[must_use = "dropping puts the folio back on its list"]
#[derive(Debug)]
pub struct Isolated<'m, P: Platform>(FolioView<'m, P>);

impl<'m, P: Platform> Isolated<'m, P> {
    pub(crate) fn new(mm: &'m Mm<P>, frame: FrameNo) -> Self {
        Self(FolioView { mm, frame })
    }

    /// Lets go without putting it back: the caller takes over the isolation's reference.
    pub(crate) fn into_frame(self) -> FrameNo {
        let frame = self.0.frame;
        core::mem::forget(self);
        frame
    }
}

impl<P: Platform> Drop for Isolated<'_, P> {
    fn drop(&mut self) {
        let off = IrqOff::new();
        let dead = self.0.mm.view().put_back(&[self.0.frame], &off);
        self.0.mm.free_dead(&dead, &off);
    }
}

impl<'m, P: Platform> Deref for Isolated<'m, P> {
    type Target = FolioView<'m, P>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
