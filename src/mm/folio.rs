//! Counted references to charged frames.
//!
//! Owns: [`Folio`]; [`FolioView`], what any holder of a reference may ask; charging.
//! Invariants: each `Folio`, and each number given out by `into_raw`, is one reference.
//! Lock ranks: none held across a call; takes `LruBatch`, `LruVec`, `Pageset`, `Shard` inside.
//! Used by: kernels, reclaim.

use core::fmt;
use core::ops::Deref;

use super::Mm;
use crate::addr::{Order, Pfn, PhysAddr};
use crate::alloc::Pages;
use crate::boot::Refused;
use crate::frame::{Flags, FrameNo};
use crate::lru::Backing;
use crate::memcg::{self, Event, Force, LruVecIndex, MemcgId};
use crate::platform::Platform;

/// What any holder of a reference may see of a folio.
pub struct FolioView<'m, P: Platform> {
    pub(super) mm: &'m Mm<P>,
    pub(super) frame: FrameNo,
}

/// A reference to frames that are charged to a group. Dropping the last one frees them.
#[must_use = "dropping the last reference frees the frames"]
pub struct Folio<'m, P: Platform>(pub(super) FolioView<'m, P>);

/// Why pages could not be charged. They come back with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChargeError {
    /// The id names no living group.
    NoSuchGroup(MemcgId),
    /// The group is at its limit and nothing in it could be reclaimed: raise the limit, or free some of its memory.
    OverLimit {
        /// The group whose limit was hit: the one charged, or one above it. `None` if it was removed meanwhile.
        limited: Option<MemcgId>,
    },
    /// The pages come from another instance's allocator.
    Foreign,
}

impl<'m, P: Platform> Pages<'m, P> {
    /// Charges the frames to a group if its limit, and those above, allow it now. Never reclaims.
    ///
    /// # Errors
    /// [`ChargeError`], together with the pages.
    pub fn try_charge_to(
        self,
        mm: &'m Mm<P>,
        memcg: MemcgId,
    ) -> Result<Folio<'m, P>, Refused<ChargeError, Self>> {
        self.charge_or_full(mm, memcg, Force::Within)
            .map_err(|(refusal, pages)| {
                mm.note_refusal(refusal);
                Refused(mm.charge_error(memcg, refusal), pages)
            })
    }

    pub(crate) fn charge_or_full(
        self,
        mm: &'m Mm<P>,
        memcg: MemcgId,
        force: Force,
    ) -> Result<Folio<'m, P>, (Refusal, Self)> {
        let Some(frame) = mm
            .frames
            .number(self.pfn())
            .filter(|_| core::ptr::eq(self.allocator(), &raw const mm.alloc))
        else {
            return Err((Refusal::Foreign, self));
        };
        let owner = match mm
            .memcgs
            .try_charge(memcg, self.node(), self.order().frames(), force)
        {
            Ok(owner) => owner,
            Err(refusal) => return Err((Refusal::Memcg(refusal), self)),
        };
        let record = mm.frames.record(frame);
        record.set_owner(Some(owner));
        record.birth(self.order(), self.zone());
        let _ = self.into_block().into_parts(); // the record stands for them now
        Ok(Folio(FolioView { mm, frame }))
    }
}

impl<P: Platform> Mm<P> {
    /// Counts a charge that met a limit, once for each that a caller makes.
    pub(crate) fn note_refusal(&self, refusal: Refusal) {
        if let Refusal::Memcg(memcg::Refusal::Full(slot)) = refusal
            && let Some(full) = self.memcgs.id_of(slot)
        {
            self.memcgs.raise(full, Event::Max);
        }
    }

    /// What a caller is told.
    pub(crate) fn charge_error(&self, memcg: MemcgId, refusal: Refusal) -> ChargeError {
        match refusal {
            Refusal::Foreign => ChargeError::Foreign,
            Refusal::Memcg(memcg::Refusal::Gone) => ChargeError::NoSuchGroup(memcg),
            Refusal::Memcg(memcg::Refusal::Full(slot)) => ChargeError::OverLimit {
                limited: self.memcgs.id_of(slot),
            },
        }
    }
}

/// Why pages were not charged, before anything was reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Foreign,
    Memcg(memcg::Refusal),
}

impl<'m, P: Platform> FolioView<'m, P> {
    /// First frame.
    #[must_use]
    pub fn pfn(&self) -> Pfn {
        self.mm.frames.pfn(self.frame)
    }

    /// Address of the first byte.
    #[must_use]
    pub fn addr(&self) -> PhysAddr {
        self.pfn().addr(P::PAGE_SHIFT)
    }

    /// log2 of the number of frames.
    #[must_use]
    pub fn order(&self) -> Order {
        self.record().order()
    }

    /// The instance.
    #[must_use]
    pub fn mm(&self) -> &'m Mm<P> {
        self.mm
    }

    /// The group it is charged to now: its own, or the living one nearest above.
    #[must_use]
    pub fn memcg(&self) -> Option<MemcgId> {
        self.mm.memcgs.group_of(self.record().owner()?)
    }

    /// Takes another reference.
    pub fn reference(&self) -> Folio<'m, P> {
        self.record().get();
        Folio(FolioView {
            mm: self.mm,
            frame: self.frame,
        })
    }

    /// References to it; a moment later it may be another number.
    #[must_use]
    pub fn references(&self) -> u32 {
        self.record().count()
    }

    /// The kernel's own word, 0 when the folio is made: typically where it is mapped.
    #[must_use]
    pub fn word(&self) -> u64 {
        self.record().word()
    }

    /// Sets the kernel's own word.
    pub fn set_word(&self, word: u64) {
        self.record().set_word(word);
    }

    /// Sets bits of the kernel's own word, as one atomic step; returns the word before.
    pub fn set_word_bits(&self, bits: u64) -> u64 {
        self.record().set_word_bits(bits)
    }

    /// Clears bits of the kernel's own word, as one atomic step; returns the word before.
    pub fn clear_word_bits(&self, bits: u64) -> u64 {
        self.record().clear_word_bits(bits)
    }

    /// What backs it. `Anon` until it is added to the LRU.
    #[must_use]
    pub fn backing(&self) -> Backing {
        if self.record().flags().contains(Flags::FILE) {
            Backing::File
        } else {
            Backing::Anon
        }
    }

    /// Whether it is, or will be when its batch is drained, on an active list.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.record().flags().contains(Flags::ACTIVE)
    }

    /// The lruvec it belongs to at this moment.
    pub(crate) fn lruvec(&self) -> Option<LruVecIndex> {
        self.mm.view().lruvec_of(self.frame)
    }

    #[inline]
    pub(crate) fn record(&self) -> &'m crate::frame::Record {
        self.mm.frames.record(self.frame)
    }
}

impl<'m, P: Platform> Folio<'m, P> {
    /// Turns the reference into a bare number, to be kept in a page table.
    #[must_use = "the reference lives on in this number"]
    pub fn into_raw(self) -> Pfn {
        let pfn = self.pfn();
        core::mem::forget(self);
        pfn
    }
}

impl<P: Platform> Mm<P> {
    /// Takes a reference to the folio that starts at `pfn`, unless the frame is free, dying, or no folio's first.
    #[must_use]
    pub fn try_get(&self, pfn: Pfn) -> Option<Folio<'_, P>> {
        let frame = self.frames.number(pfn)?;
        self.frames
            .record(frame)
            .try_get()
            .then(|| Folio(FolioView { mm: self, frame }))
    }

    /// A look at a folio whose references the caller froze.
    pub(crate) fn frozen(&self, frame: FrameNo) -> FolioView<'_, P> {
        FolioView { mm: self, frame }
    }

    /// Turns a number from [`Folio::into_raw`] back into the reference it stands for. `None` if `pfn` has no record.
    ///
    /// # Safety
    /// `pfn` came from `into_raw` of a folio of this instance, and is turned back once.
    #[expect(
        unsafe_code,
        reason = "declares the caller's duty; holds no unsafe operation"
    )]
    #[must_use]
    pub unsafe fn folio_from_raw(&self, pfn: Pfn) -> Option<Folio<'_, P>> {
        let frame = self.frames.number(pfn)?;
        debug_assert!(
            self.frames.record(frame).count() > 0,
            "frame {pfn} is free: nobody has a reference to it"
        );
        Some(Folio(FolioView { mm: self, frame }))
    }
}

impl<P: Platform> fmt::Debug for Folio<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Folio({:?})", self.0)
    }
}

impl<P: Platform> fmt::Debug for FolioView<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} order {} references {}",
            self.pfn(),
            self.order(),
            self.references()
        )
    }
}

impl<P: Platform> Clone for Folio<'_, P> {
    fn clone(&self) -> Self {
        self.reference()
    }
}

impl<P: Platform> Drop for Folio<'_, P> {
    fn drop(&mut self) {
        self.0.mm.put(self.0.frame);
    }
}

impl<'m, P: Platform> Deref for Folio<'m, P> {
    type Target = FolioView<'m, P>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchGroup(id) => write!(f, "the group {id} does not exist"),
            Self::OverLimit { limited: Some(id) } => write!(
                f,
                "the group {id} is at its limit: raise it, or free some of its memory"
            ),
            Self::OverLimit { limited: None } => {
                f.write_str("a group that ended meanwhile was at its limit: try again")
            }
            Self::Foreign => f.write_str("the pages come from another allocator"),
        }
    }
}

impl core::error::Error for ChargeError {}
