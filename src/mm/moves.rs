//! What a kernel tells of a folio's use, and where that moves it.
//!
//! Owns: the methods of [`Folio`] that give it to the LRU, move it there, lock it in memory, and take it off.
//! Invariants: a move takes its own reference. The conditions that are looked at here are hints: they are looked at again
//! when the batch is drained. A folio is given to the LRU once in its life.
//! Lock ranks: takes `LruBatch`, `LruVec`, then what freeing takes. Used by: kernels, reclaim.

use core::fmt;

use arrayvec::ArrayVec;

use super::{Folio, FolioView, Isolated, Mm, StateChange};
use crate::frame::{Flags, FrameNo, State};
use crate::lru::{Backing, Mlock, Move, SCAN};
use crate::memcg::PageState;
use crate::platform::{IrqOff, Platform};

/// Why a folio could not be given to the LRU, or taken from it. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LruError {
    /// It was added before.
    Added,
    /// It is not on a list: never added, still in a batch, or isolated by someone else.
    NotOnList,
}

impl<'m, P: Platform> Folio<'m, P> {
    /// Gives the folio to the LRU: from now on reclaim may find it. Its place on a list follows when this CPU's batch is drained.
    ///
    /// # Errors
    /// [`LruError::Added`] if it was given before.
    #[inline]
    pub fn add_to_lru(&self, backing: Backing) -> Result<(), LruError> {
        self.join(backing, Flags::empty(), Move::Add)
    }

    /// The same for a new folio in a mapping that locks it in memory: counted as unevictable, with one lock.
    ///
    /// # Errors
    /// [`LruError::Added`] if it was given before; then it is not locked.
    pub fn add_to_lru_locked(&self, backing: Backing) -> Result<(), LruError> {
        self.join(backing, Flags::MLOCKED, Move::Mlock(Mlock::New))
    }

    /// The same with flags that a refault decided on.
    pub(crate) fn add_with(&self, backing: Backing, flags: Flags) -> Result<(), LruError> {
        self.join(backing, flags, Move::Add)
    }

    #[inline]
    fn join(&self, backing: Backing, flags: Flags, kind: Move) -> Result<(), LruError> {
        let file = match backing {
            Backing::Anon => Flags::empty(),
            Backing::File => Flags::FILE,
        };
        let state = self
            .record()
            .join(Flags::MEMBER | file | flags, Flags::MEMBER)
            .ok_or(LruError::Added)?;
        self.queue(kind, state);
        Ok(())
    }

    /// Notes a use: the first sets a mark, the second moves an inactive folio to the active list (by way of this CPU's batch).
    /// No effect on one that is to be [dropped behind](FolioView::drop_behind) its use.
    pub fn mark_accessed(&self) {
        let flags = self.record().flags();
        if flags.contains(Flags::DROP_BEHIND) {
            return;
        }
        if !flags.contains(Flags::REFERENCED) {
            self.record().set(Flags::REFERENCED);
        } else if !flags.intersects(Flags::UNEVICTABLE | Flags::ACTIVE) {
            self.activate();
            self.record().clear(Flags::REFERENCED);
            self.count_activation();
        }
    }

    /// Moves an inactive folio to the active list, by way of this CPU's batch. No effect on one that is active,
    /// unevictable, isolated, or waiting in another CPU's add batch.
    #[inline]
    pub fn activate(&self) {
        let record = self.record();
        let flags = record.flags();
        if Move::Activate.applies(flags) {
            self.queue(Move::Activate, record.get());
        } else if !flags.intersects(Flags::LRU | Flags::ACTIVE | Flags::UNEVICTABLE) {
            let view = self.0.mm.view();
            view.activate_queued(self.0.frame, &IrqOff::new());
        }
    }

    /// Moves a folio that will not be used again soon to where reclaim looks next: to the old end of the inactive list if it is
    /// clean, else there as soon as it is written. No effect on one in [`PageState::MAPPED`]: whoever maps it uses it.
    pub fn deactivate_file(&self) {
        self.queue_if_applies(Move::DeactivateFile);
    }

    /// Moves an active folio to the inactive list.
    pub fn deactivate(&self) {
        self.queue_if_applies(Move::Deactivate);
    }

    /// Lets reclaim throw an anonymous folio's contents away, until it is [marked dirty](FolioView::mark_dirty) again. The caller
    /// has made sure that a write from now on will be noticed.
    pub fn lazy_free(&self) {
        if Move::LazyFree.applies(self.record().flags()) {
            self.account(PageState::DIRTY, StateChange::Leave);
            self.queue_one(Move::LazyFree);
        }
    }

    /// Moves a clean folio to the old end of its inactive list: reclaim finds it next. May be called from an interrupt handler.
    pub fn move_tail(&self) {
        self.queue_if_applies(Move::Rotate);
    }

    /// Counts a mapping that locks the folio in memory. While one does, the folio is not reclaimed.
    pub fn mlock(&self) {
        self.record().set(Flags::MLOCKED);
        self.queue_one(Move::Mlock(Mlock::Lock));
    }

    /// Counts one such mapping less. The folio goes back to a list when none is left that is known of: a count that
    /// was missed while the folio was isolated makes that early, never late.
    pub fn munlock(&self) {
        self.queue_one(Move::Mlock(Mlock::Unlock));
    }

    /// Keeps the folio from reclaim, until [`let_reclaim`](Self::let_reclaim), whatever maps it: it leaves its list.
    pub fn keep_from_reclaim(&self) {
        self.record().set(Flags::PINNED);
        self.replace();
    }

    /// Ends what [`keep_from_reclaim`](Self::keep_from_reclaim) began: the folio goes back to a list.
    pub fn let_reclaim(&self) {
        self.record().clear(Flags::PINNED);
        self.replace();
    }

    /// Takes the folio off its list, for migration or private use; the guard puts it back.
    ///
    /// # Errors
    /// [`LruError::NotOnList`].
    pub fn isolate(&self) -> Result<Isolated<'m, P>, LruError> {
        let isolated = self.0.mm.view().isolate(self.0.frame, &IrqOff::new());
        if isolated {
            Ok(Isolated::new(self.0.mm, self.0.frame))
        } else {
            Err(LruError::NotOnList)
        }
    }

    fn replace(&self) {
        self.0.mm.view().replace(&[self.0.frame], &IrqOff::new());
    }
}

impl<P: Platform> Mm<P> {
    /// [Lets](Folio::let_reclaim) many be reclaimed at the price of few locks: 32 folios of one group go back under one hold.
    pub fn let_reclaim_all<'f, 'm: 'f>(&self, folios: impl IntoIterator<Item = &'f Folio<'m, P>>) {
        let mut frames = ArrayVec::<FrameNo, SCAN>::new();
        for folio in folios {
            if !core::ptr::eq(folio.mm(), self) {
                folio.let_reclaim(); // another instance's
                continue;
            }
            folio.record().clear(Flags::PINNED);
            frames.push(folio.0.frame);
            if frames.is_full() {
                self.view().replace(&frames, &IrqOff::new());
                frames.clear();
            }
        }
        self.view().replace(&frames, &IrqOff::new());
    }
}

impl<P: Platform> FolioView<'_, P> {
    /// Marks its contents as newer than what backs them: [`PageState::DIRTY`].
    #[inline]
    pub fn mark_dirty(&self) {
        self.account(PageState::DIRTY, StateChange::Enter);
    }

    /// Says that its contents are wanted once, as those of a file that is only copied: uses of it no longer count.
    pub fn drop_behind(&self) {
        self.record().set(Flags::DROP_BEHIND);
    }

    /// Whether its contents are newer than what backs them.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.record().flags().contains(Flags::DIRTY)
    }

    /// Whether it counts as one that is not reclaimed.
    #[must_use]
    pub fn is_unevictable(&self) -> bool {
        self.record().flags().contains(Flags::UNEVICTABLE)
    }

    /// Whether a mapping locks it in memory.
    #[must_use]
    pub fn is_mlocked(&self) -> bool {
        self.record().flags().contains(Flags::MLOCKED)
    }

    /// Whether reclaim may throw its contents away.
    #[must_use]
    pub fn is_lazy_free(&self) -> bool {
        self.record().flags().contains(Flags::LAZYFREE)
    }

    /// Whether its contents are being written to what backs them.
    #[must_use]
    pub fn is_writeback(&self) -> bool {
        self.record().flags().contains(Flags::WRITEBACK)
    }

    /// Its contents are on their way to what backs them: [`PageState::WRITEBACK`].
    pub fn start_writeback(&self) {
        self.account(PageState::WRITEBACK, StateChange::Enter);
    }

    /// They arrived. A folio that reclaim waits for moves to the old end of its list. May be called from an interrupt handler.
    pub fn end_writeback(&self) {
        let ended = self.account(PageState::WRITEBACK, StateChange::Leave);
        if !ended || !self.record().clear(Flags::RECLAIM).contains(Flags::RECLAIM) {
            return;
        }
        // On no list: left to whoever links it, unless that happened in between.
        if !self.record().flags().contains(Flags::LRU)
            && !self.record().set(Flags::ROTATE).contains(Flags::LRU)
        {
            return;
        }
        self.record().clear(Flags::ROTATE);
        self.queue_if_applies(Move::Rotate);
    }

    /// An activation ages the folio's lruvec, if the policy says so: an inactive folio goes the sooner.
    pub(crate) fn count_activation(&self) {
        if self.mm.policy().activation_ages()
            && let Some(lruvec) = self.lruvec()
        {
            self.mm.view().age(lruvec, self.order().frames());
        }
    }

    fn queue_if_applies(&self, kind: Move) {
        let record = self.record();
        if kind.applies(record.flags()) {
            self.queue(kind, record.get());
        }
    }

    #[inline]
    fn queue_one(&self, kind: Move) {
        let state = self.record().get();
        self.queue(kind, state);
    }

    /// Queues a move whose reference was taken when the record said `state`.
    #[inline]
    fn queue(&self, kind: Move, state: State) {
        let off = IrqOff::new();
        let dead = self.mm.view().queue(self.frame, kind, state.order(), &off);
        self.mm.free_dead(&dead, &off);
    }
}

impl fmt::Display for LruError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "the folio was given to the LRU before",
            Self::NotOnList => {
                "the folio is on no list: not added, waiting in a batch, or isolated"
            }
        })
    }
}

impl core::error::Error for LruError {}
