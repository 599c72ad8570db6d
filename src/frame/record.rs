//! One frame's state: 32 bytes, all atomic.
//!
//! Owns: [`Record`] and its [`Flags`].
//! Invariants: `count` 0 means free or frozen: nobody may take a reference. `LRU` set means linked on the lruvec of
//! `owner`; whoever clears it with [`Record::win`] alone may unlink and relink the frame, and needs a reference to try.
//! Lock ranks: none; `next` and `prev` are guarded by the list's lock.
//! Used by: frame lists, lru, mm.

use bitflags::bitflags;

use crate::addr::Order;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// State of one frame; the head's record speaks for a larger folio.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Record {
    /// References. The LRU holds none.
    count: AtomicU32,
    /// [`Flags`], and the folio's order in the top bits.
    flags: AtomicU32,
    /// Index of the owner slot plus one; 0 if not charged.
    owner: AtomicU32,
    /// Links, as [`FrameNo`](super::FrameNo)s; guarded by the lock of the list.
    pub(super) next: AtomicU32,
    pub(super) prev: AtomicU32,
    /// The kernel's own word: typically where the frame is mapped.
    word: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Record>() == 32);

bitflags! {
    /// What is known of a folio.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Flags: u32 {
        /// Linked on its lruvec (or about to be unlinked by whoever clears this).
        const LRU = 1;
        /// On, or destined for, an active list.
        const ACTIVE = 1 << 1;
        /// Used since the last look; one more use activates.
        const REFERENCED = 1 << 2;
        /// Backed by a file, not by swap.
        const FILE = 1 << 3;
        /// Not to be reclaimed: counted, on no list.
        const UNEVICTABLE = 1 << 4;
        /// Was active before it was deactivated.
        const WORKINGSET = 1 << 5;
        /// Given to the LRU: in an add batch, linked, or isolated. Set once in a folio's life.
        const MEMBER = 1 << 7;
        /// The states that groups count, a bit each; changed by mm's account only, which counts.
        const STATES = 0x7f << STATE_SHIFT;
    }
}

const STATE_SHIFT: usize = 20;

impl Flags {
    /// The flag of the state at `index` in memcg's list of them.
    pub(crate) const fn of_state(index: usize) -> Self {
        Self::from_bits_truncate(1 << (STATE_SHIFT + index)).intersection(Self::STATES)
    }
}

const ORDER_SHIFT: u32 = 27;
/// A count at or above this is pinned for good: it no longer moves, so the frame is leaked rather than freed early.
const SATURATED: u32 = 1 << 31;

/// What became of a reference that was put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    /// Others remain.
    Shared,
    /// It was the last one: the caller owns the frame now.
    Last,
    /// The count was 0 already, or is pinned: nothing changed.
    Refused,
}

impl Record {
    /// A free frame's record.
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            next: AtomicU32::new(super::FrameNo::NONE.0),
            prev: AtomicU32::new(super::FrameNo::NONE.0),
            word: AtomicU64::new(0),
        }
    }

    /// Makes a free frame the head of a folio with one reference. Only its owner may call this.
    pub(crate) fn birth(&self, order: Order) {
        self.word.store(0, Ordering::Relaxed);
        self.flags
            .store(u32::from(order.get()) << ORDER_SHIFT, Ordering::Relaxed);
        // Release pairs with the Acquire of `try_get`: whoever gets a reference sees the state above.
        self.count.store(1, Ordering::Release);
    }

    /// Number of references.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes a reference unless the frame is free or dying.
    pub(crate) fn try_get(&self) -> bool {
        let step = |count: u32| match count {
            0 => None,
            pinned if pinned >= SATURATED => Some(SATURATED),
            count => Some(count + 1),
        };
        // Acquire pairs with the Release of `birth` and of earlier puts.
        self.count
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, step)
            .is_ok()
    }

    /// Takes a reference for a caller that has one. Saturates.
    pub(crate) fn get(&self) {
        if self.count.fetch_add(1, Ordering::Relaxed) >= SATURATED - 1 {
            self.count.store(SATURATED, Ordering::Relaxed);
        }
    }

    /// Drops a reference.
    pub(crate) fn put(&self) -> Put {
        let step = |count: u32| match count {
            0 => None,
            pinned if pinned >= SATURATED => None,
            count => Some(count - 1),
        };
        // Release: what this holder did happens before the frame is reused. Acquire: the last one sees what all did.
        match self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, step)
        {
            Ok(1) => Put::Last,
            Ok(_) => Put::Shared,
            Err(_) => Put::Refused,
        }
    }

    /// Turns exactly `expected` references, all the caller's, into none; nobody can take one after.
    pub(crate) fn freeze(&self, expected: u32) -> bool {
        self.count
            .compare_exchange(expected, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Gives frozen references back.
    pub(crate) fn thaw(&self, references: u32) {
        self.count.store(references, Ordering::Release);
    }

    /// The flags. A moment later they may differ.
    pub(crate) fn flags(&self) -> Flags {
        Flags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// Order of the folio.
    pub(crate) fn order(&self) -> Order {
        let bits = (self.flags.load(Ordering::Relaxed) >> ORDER_SHIFT) as u8;
        Order::new(bits).unwrap_or(Order::ZERO)
    }

    /// Sets flags; returns those set before. Release pairs with `win`: who wins LRU sees the links as they were left.
    pub(crate) fn set(&self, flags: Flags) -> Flags {
        Flags::from_bits_truncate(self.flags.fetch_or(flags.bits(), Ordering::AcqRel))
    }

    /// Clears flags; returns those set before.
    pub(crate) fn clear(&self, flags: Flags) -> Flags {
        Flags::from_bits_truncate(self.flags.fetch_and(!flags.bits(), Ordering::AcqRel))
    }

    /// Clears `LRU` and says whether this call did: the winner alone may unlink the frame. Needs a reference.
    pub(crate) fn win(&self) -> bool {
        debug_assert!(self.count() > 0, "LRU is won only with a reference");
        self.clear(Flags::LRU).contains(Flags::LRU)
    }

    /// The owner slot, if charged. Acquire pairs with the Release of `set_owner`.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.owner.load(Ordering::Acquire).checked_sub(1)
    }

    /// Names the owner slot, or none.
    pub(crate) fn set_owner(&self, owner: Option<u32>) {
        self.owner
            .store(owner.map_or(0, |slot| slot + 1), Ordering::Release);
    }

    /// The kernel's word. Acquire pairs with the Release of `set_word`.
    pub(crate) fn word(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Stores the kernel's word.
    pub(crate) fn set_word(&self, word: u64) {
        self.word.store(word, Ordering::Release);
    }

    /// Sets bits of the kernel's word; returns the word before.
    pub(crate) fn set_word_bits(&self, bits: u64) -> u64 {
        self.word.fetch_or(bits, Ordering::AcqRel)
    }

    /// Clears bits of the kernel's word; returns the word before.
    pub(crate) fn clear_word_bits(&self, bits: u64) -> u64 {
        self.word.fetch_and(!bits, Ordering::AcqRel)
    }
}
