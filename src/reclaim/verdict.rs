//! What becomes of one isolated folio from an inactive list.
//!
//! Owns: [`judge`]. Invariants: a folio is freed only after its references were frozen at exactly the isolation's own, which
//! nobody can take one from after. Everything else goes back to a list: mapped again if it was unmapped, and dirty if it was
//! not written out, also when a hook panics.
//! Lock ranks: none is held. Used by: scan.

use core::mem;

use super::evict::{Evict, Release, Unmap, WriteOut};
use crate::frame::{Flags, FrameNo};
use crate::lru::{Backing, Use};
use crate::memcg::PageState;
use crate::mm::{Isolated, StateChange};

/// What is to be done with a folio.
#[must_use]
pub(super) enum Verdict<'m, P: Evict> {
    /// Its references are frozen: the caller frees the frame.
    Free(FrameNo),
    /// Back to the inactive list.
    Keep(Isolated<'m, P>),
    /// The same, unless its writeback has ended by then: then it deserves another look.
    Started(Isolated<'m, P>),
    /// To the active list.
    Activate(Isolated<'m, P>),
}

/// Which look at a folio this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    First,
    /// Its writeback began at the first look, and ended: what is not dirty now need not be written.
    Written,
}

/// What folios of one list cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Base frames whose writing was begun.
    pub(super) written: u64,
    /// Base frames looked at in vain.
    pub(super) stayed: u64,
    /// Folios that were being written when they were last looked at, and still are.
    pub(super) waits: u64,
    /// Folios looked at, but for those of the next line.
    pub(super) scanned: u64,
    /// Folios in active use that were looked at, and found used.
    pub(super) refilled: u64,
}

/// References that an isolated folio has when nothing else uses it.
const ISOLATION: u32 = 1;

/// Runs the hooks for one folio, in the order that [`Evict`] documents.
pub(super) fn judge<'m, P: Evict>(
    folio: Isolated<'m, P>,
    look: Look,
    tally: &mut Tally,
) -> Verdict<'m, P> {
    let record = folio.record();
    if record.flags().intersects(Flags::LOCKED) {
        tally.scanned += 1;
        return Verdict::Keep(folio); // putting it back makes it unevictable
    }
    if folio.is_writeback() {
        // Out of reclaim's way until it is written; then it moves to the old end.
        let before = record.set(Flags::RECLAIM);
        tally.waits += u64::from(before.contains(Flags::RECLAIM));
        tally.scanned += 1;
        return Verdict::Activate(folio);
    }
    let active = record.flags().contains(Flags::ACTIVE);
    let used = folio.mm().policy().accessed(record, P::referenced(&folio));
    // Active ones come where generations have their turn. Those that are found in use are what a scan of active lists keeps.
    let in_use = matches!(used, Use::Active | Use::Once);
    tally.refilled += u64::from(active && in_use);
    tally.scanned += u64::from(!(active && in_use));
    match used {
        Use::Active => return Verdict::Activate(folio),
        Use::Once => return Verdict::Keep(folio),
        Use::Marked | Use::None => {}
    }
    // Only marked: used through a descriptor since the last look. A file's clean frame is easily had again.
    let file = folio.backing() == Backing::File;
    if used == Use::Marked && file && folio.is_dirty() {
        return Verdict::Keep(folio);
    }
    if P::unmap(&folio) == Unmap::Busy {
        return Verdict::Activate(folio);
    }
    // From here on the kernel may have no reference left: who stays must be given back.
    let unmapped = Unmapped(&folio);
    match evict(&folio, look, tally) {
        Evicting::Started => {
            mem::forget(unmapped); // the kernel's own reference stays, until the folio is looked for
            Verdict::Started(folio)
        }
        Evicting::Frozen => {
            mem::forget(unmapped);
            Verdict::Free(folio.into_frame())
        }
        Evicting::Refused => {
            drop(unmapped);
            Verdict::Activate(folio)
        }
        Evicting::InUse => {
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

/// A folio that is being written: when this is dropped, it is as it was before.
struct Unwritten<'f, 'm, P: Evict> {
    folio: &'f Isolated<'m, P>,
    was_dirty: bool,
}

impl<P: Evict> Drop for Unwritten<'_, '_, P> {
    fn drop(&mut self) {
        self.folio.record().clear(Flags::RECLAIM);
        if self.was_dirty {
            self.folio.mark_dirty();
        }
    }
}

/// What came of evicting an unmapped folio.
enum Evicting {
    /// Nobody has a reference, and nobody can take one.
    Frozen,
    /// Its contents are on their way.
    Started,
    /// A hook refused.
    Refused,
    /// Someone has a reference, or wrote to it meanwhile.
    InUse,
}

/// Makes the contents safe, and freezes the references.
fn evict<P: Evict>(folio: &Isolated<'_, P>, look: Look, tally: &mut Tally) -> Evicting {
    let record = folio.record();
    if folio.is_lazy_free() {
        if folio.is_dirty() {
            // Written after all: anonymous contents like any other.
            record.clear(Flags::LAZYFREE);
            return Evicting::InUse;
        }
    } else if folio.is_dirty() || folio.backing() == Backing::Anon && look == Look::First {
        // Cleared first: what is written to the frame from now on marks it again. The other mark comes first too, since
        // the writing may end before the hook returns.
        record.set(Flags::RECLAIM);
        let was_dirty = folio.account(PageState::DIRTY, StateChange::Leave);
        let unwritten = Unwritten { folio, was_dirty };
        let written = P::write_out(folio);
        if written == WriteOut::Busy {
            return Evicting::Refused;
        }
        tally.written += folio.order().frames();
        if written == WriteOut::Started {
            mem::forget(unwritten);
            return Evicting::Started;
        }
        record.clear(Flags::RECLAIM);
        mem::forget(unwritten);
    }
    if P::release(folio) == Release::Busy {
        return Evicting::Refused;
    }
    // Freeze before the last look at the dirty flag: who got a reference in between may have written.
    if !record.freeze(ISOLATION) {
        return Evicting::InUse;
    }
    if folio.is_dirty() {
        record.thaw(ISOLATION);
        return Evicting::InUse;
    }
    Evicting::Frozen
}
