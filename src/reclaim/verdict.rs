//! What becomes of one isolated folio from an inactive list.
//!
//! Owns: [`judge`]. Invariants: a folio is freed only after its references were frozen at exactly the isolation's own, which
//! nobody can take one from after. Everything else goes back to a list: mapped again if it was unmapped, and dirty if it was
//! not written out, also when a hook panics.
//! Lock ranks: none is held. Used by: scan.

use core::mem;

use super::evict::{Evict, Release, Unmap, WriteOut};
use crate::frame::{Flags, FrameNo};
use crate::lru::Backing;
use crate::memcg::PageState;
use crate::mm::{Isolated, StateChange};

/// What is to be done with a folio.
#[must_use]
pub(super) enum Verdict<'m, P: Evict> {
    /// Its references are frozen: the caller frees the frame.
    Free(FrameNo),
    /// Back to the inactive list.
    Keep(Isolated<'m, P>),
    /// To the active list.
    Activate(Isolated<'m, P>),
}

/// References that an isolated folio has when nothing else uses it.
const ISOLATION: u32 = 1;

/// Runs the hooks for one folio, in the order that [`Evict`] documents.
pub(super) fn judge<P: Evict>(folio: Isolated<'_, P>) -> Verdict<'_, P> {
    let record = folio.record();
    // A use of the mappings counts with the mark that an earlier use left: the first keeps the folio once (second
    // chance), a second one, or use through two mappings, makes it active.
    let mappings = P::referenced(&folio);
    let marked = record.clear(Flags::REFERENCED).contains(Flags::REFERENCED);
    if mappings > 0 {
        record.set(Flags::REFERENCED);
        return if marked || mappings > 1 {
            Verdict::Activate(folio)
        } else {
            Verdict::Keep(folio)
        };
    }
    // Only marked: used through a descriptor since the last look. A file's clean frame is easily had again.
    let file = folio.backing() == Backing::File;
    if marked && file && folio.is_dirty() {
        return Verdict::Keep(folio);
    }
    if P::unmap(&folio) == Unmap::Busy {
        return Verdict::Activate(folio);
    }
    // From here on the kernel may have no reference left: who stays must be given back.
    let unmapped = Unmapped(&folio);
    match evict(&folio) {
        Evicted::Frozen => {
            mem::forget(unmapped);
            Verdict::Free(folio.into_frame())
        }
        Evicted::Refused => {
            drop(unmapped);
            Verdict::Activate(folio)
        }
        Evicted::InUse => {
            drop(unmapped);
            Verdict::Keep(folio)
        }
    }
}

/// A folio without mappings, mapped again when dropped: without that, putting it back drops the last reference.
struct Unmapped<'f, 'm, P: Evict>(&'f Isolated<'m, P>);

impl<P: Evict> Drop for Unmapped<'_, '_, P> {
    fn drop(&mut self) {
        P::remap(self.0);
    }
}

/// A folio that was dirty before the write, and is again when this is dropped.
struct Unwritten<'f, 'm, P: Evict>(&'f Isolated<'m, P>);

impl<P: Evict> Drop for Unwritten<'_, '_, P> {
    fn drop(&mut self) {
        self.0.mark_dirty();
    }
}

/// What came of evicting an unmapped folio.
enum Evicted {
    /// Nobody has a reference, and nobody can take one.
    Frozen,
    /// A hook refused.
    Refused,
    /// Someone has a reference, or wrote to it meanwhile.
    InUse,
}

/// Makes the contents safe, and freezes the references.
fn evict<P: Evict>(folio: &Isolated<'_, P>) -> Evicted {
    let record = folio.record();
    if folio.backing() == Backing::Anon || folio.is_dirty() {
        // Cleared first: what is written to the frame from now on marks it again.
        let was_dirty = folio.account(PageState::DIRTY, StateChange::Leave);
        let unwritten = was_dirty.then(|| Unwritten(folio));
        if P::write_out(folio) == WriteOut::Busy {
            return Evicted::Refused;
        }
        mem::forget(unwritten);
    }
    if P::release(folio) == Release::Busy {
        return Evicted::Refused;
    }
    // Freeze before the last look at the dirty flag: who got a reference in between may have written.
    if !record.freeze(ISOLATION) {
        return Evicted::InUse;
    }
    if folio.is_dirty() {
        record.thaw(ISOLATION);
        return Evicted::InUse;
    }
    Evicted::Frozen
}
