//! One frame's state: 32 bytes, all atomic.
//!
//! Owns: [`Record`], its [`Flags`], and [`State`], what one load of it says.
//! Invariants: `count` 0 means free or frozen: nobody may take a reference. `LRU` set means linked on the lruvec of
//! `owner`; whoever clears it with [`Record::win`] alone may unlink and relink the frame, and needs a reference to try.
//! Count and flags share one word: a move that ends sets `LRU` and drops its reference in one step, so that no other last
//! put falls between the two, and each step of a move costs one read-modify-write.
//! Lock ranks: none; `next` and `prev` are guarded by the list's lock.
//! Used by: frame lists, lru, mm.

use bitflags::bitflags;

use crate::addr::{Order, ZoneKind};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// State of one frame; the head's record speaks for a larger folio.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Record {
    /// References in the low half (the LRU holds none); [`Flags`], zone and order in the high half.
    state: AtomicU64,
    /// Index of the owner slot plus one; 0 if not charged.
    owner: AtomicU32,
    /// Links, as [`FrameNo`](super::FrameNo)s; guarded by the lock of the list.
    pub(super) next: AtomicU32,
    pub(super) prev: AtomicU32,
    /// Of an unevictable frame, mappings that lock it, at most as many as there are; of another, what the eviction policy noted.
    /// Guarded like the links; whoever isolated the frame has it to himself.
    note: AtomicU32,
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
        /// Wanted once: its uses do not count.
        const DROP_BEHIND = 1 << 6;
        /// Given to the LRU: in an add batch, linked, or isolated. Set once in a folio's life.
        const MEMBER = 1 << 7;
        /// Anonymous, but its contents may be thrown away: listed with the files.
        const LAZYFREE = 1 << 8;
        /// To be rotated to the old end when its writeback ends.
        const RECLAIM = 1 << 10;
        /// Some mapping locks it in memory.
        const MLOCKED = 1 << 11;
        /// Its writeback ended while it was on no list: it goes to the old end when it comes back.
        const ROTATE = 1 << 9;
        /// The kernel said that it must not be reclaimed.
        const PINNED = 1 << 12;
        /// Isolated as an anonymous frame: its node counts it.
        const ISOLATED_ANON = 1 << 13;
        /// Isolated as a file's, or as one that may be thrown away: its node counts it.
        const ISOLATED_FILE = 1 << 14;
        /// The states that groups count, a bit each, in the order of memcg's list of them; changed by mm's account only.
        const STATES = 0x7f << STATE_SHIFT;
        /// Mapped, as the kernel says.
        const MAPPED = 1 << STATE_SHIFT;
        /// Changed since it was last written out.
        const DIRTY = 1 << (STATE_SHIFT + 1);
        /// Its contents are on their way to what backs them.
        const WRITEBACK = 1 << (STATE_SHIFT + 2);
    }
}

/// The states take the topmost flags, so that new ones below do not meet them.
const STATE_SHIFT: usize = 17;
const _: () = {
    assert!(
        Flags::STATES.bits() >> (ZONE_SHIFT - FLAGS_SHIFT) == 0,
        "the zone is above"
    );
    assert!(
        Flags::PINNED.union(Flags::ISOLATED).bits() < 1 << STATE_SHIFT
            && Flags::ROTATE.bits() < 1 << STATE_SHIFT,
        "other flags are below"
    );
};

impl Flags {
    /// The flag of the state at `index` in memcg's list of them.
    pub(crate) const fn of_state(index: usize) -> Self {
        Self::from_bits_truncate(1 << (STATE_SHIFT + index)).intersection(Self::STATES)
    }

    /// In an isolator's hands. Set in the step that wins `LRU`, cleared in the one that gives it back.
    pub(crate) const ISOLATED: Self = Self::ISOLATED_ANON.union(Self::ISOLATED_FILE);

    /// Listed with the files.
    pub(crate) const WITH_FILES: Self = Self::FILE.union(Self::LAZYFREE);

    /// Not to be reclaimed, whatever list it is on now.
    pub(crate) const LOCKED: Self = Self::MLOCKED.union(Self::PINNED);
}

pub(super) const FLAGS_SHIFT: u32 = 32;
pub(super) const ZONE_SHIFT: u32 = 56;
const ORDER_SHIFT: u32 = 59;
const COUNT: u64 = (1 << FLAGS_SHIFT) - 1;
/// A count at or above this is pinned for good: it no longer moves, so the frame is leaked rather than freed early.
const SATURATED: u64 = 1 << 31;

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

/// What came of [`Record::settle`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Settled {
    /// Flags changed, reference dropped; others remain.
    Shared,
    /// The reference was the last one: flags changed but for `LRU`, which is clear; the caller owns the frame now.
    Last,
    /// The flags were not as required: nothing changed.
    Lost,
}

/// A record's count, flags, zone and order at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State(u64);

impl State {
    /// References.
    #[inline]
    pub(crate) fn count(self) -> u32 {
        (self.0 & COUNT) as u32
    }

    /// Flags.
    #[inline]
    pub(crate) fn flags(self) -> Flags {
        Flags::from_bits_truncate((self.0 >> FLAGS_SHIFT) as u32)
    }

    /// Order of the folio.
    #[inline]
    pub(crate) fn order(self) -> Order {
        Order::new((self.0 >> ORDER_SHIFT) as u8).unwrap_or(Order::ZERO)
    }

    /// Base frames. None of an order that does not exist, which only a damaged record has: no walk goes over frames that it never had.
    #[inline]
    pub(crate) fn frames(self) -> u64 {
        1 << (self.0 >> ORDER_SHIFT) & (2 * Order::MAX.frames() - 1)
    }

    /// The zone its frames are in.
    #[inline]
    pub(crate) fn zone(self) -> usize {
        (self.0 >> ZONE_SHIFT) as usize % ZoneKind::COUNT
    }

    #[inline]
    fn is_pinned(self) -> bool {
        self.0 & COUNT >= SATURATED
    }
}

#[inline]
fn word_of(flags: Flags) -> u64 {
    u64::from(flags.bits()) << FLAGS_SHIFT
}

impl Record {
    /// A free frame's record.
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            next: AtomicU32::new(super::FrameNo::NONE.0),
            prev: AtomicU32::new(super::FrameNo::NONE.0),
            note: AtomicU32::new(0),
            word: AtomicU64::new(0),
        }
    }

    /// Makes a free frame the head of a folio with one reference. Only its owner may call this.
    #[inline]
    pub(crate) fn birth(&self, order: Order, zone: ZoneKind) {
        self.word.store(0, Ordering::Relaxed);
        let state = u64::from(order.get()) << ORDER_SHIFT | (zone as u64) << ZONE_SHIFT | 1;
        // Release pairs with the Acquire of `try_get`: whoever gets a reference sees the state above.
        self.state.store(state, Ordering::Release);
    }

    /// Makes a frame the head of a folio like `other`, whose references are frozen, but of `order`, with `references`.
    pub(crate) fn birth_like(&self, other: &Self, order: Order, references: u32) {
        self.birth_as(other, order, references, other.state().zone() as u64);
    }

    /// [`birth_like`](Self::birth_like) `other`, whose folio goes on in these frames of another zone.
    pub(crate) fn birth_moved(&self, other: &Self, order: Order, references: u32, zone: ZoneKind) {
        self.birth_as(other, order, references, zone as u64);
    }

    fn birth_as(&self, other: &Self, order: Order, references: u32, zone: u64) {
        const ZONE: u64 = (ZoneKind::COUNT as u64 - 1) << ZONE_SHIFT;
        let like = other.state.load(Ordering::Relaxed);
        self.word.store(other.word(), Ordering::Relaxed);
        self.set_owner(other.owner());
        let state = like & !COUNT & !(u64::MAX << ORDER_SHIFT) & !ZONE
            | u64::from(order.get()) << ORDER_SHIFT
            | zone << ZONE_SHIFT
            | u64::from(references);
        // Release: as in `birth`.
        self.state.store(state, Ordering::Release);
    }

    /// Everything at once.
    #[inline]
    pub(crate) fn state(&self) -> State {
        State(self.state.load(Ordering::Relaxed))
    }

    /// Number of references.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.state().count()
    }

    /// Takes a reference unless the frame is free or dying.
    pub(crate) fn try_get(&self) -> bool {
        let step = |state: u64| match State(state) {
            free if free.count() == 0 => None,
            pinned if pinned.is_pinned() => Some(state),
            _ => Some(state + 1),
        };
        // Acquire pairs with the Release of `birth` and of earlier puts.
        self.state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, step)
            .is_ok()
    }

    /// Takes a reference for a caller that has one; returns the state before. Saturates.
    #[inline]
    pub(crate) fn get(&self) -> State {
        let before = State(self.state.fetch_add(1, Ordering::Relaxed));
        if before.is_pinned() {
            // A pinned count stays where it is, and far from the flags above it.
            self.state.fetch_sub(1, Ordering::Relaxed);
        }
        before
    }

    /// Sets flags and takes a reference, unless one of `unless` is set; returns the state before.
    #[inline]
    pub(crate) fn join(&self, set: Flags, unless: Flags) -> Option<State> {
        let step = |state: u64| {
            (!State(state).flags().intersects(unless)).then(|| {
                let state = state | word_of(set);
                if State(state).is_pinned() {
                    state
                } else {
                    state + 1
                }
            })
        };
        // Release pairs with the Acquire of `settle`, in the drain.
        self.state
            .fetch_update(Ordering::Release, Ordering::Relaxed, step)
            .ok()
            .map(State)
    }

    /// Drops a reference.
    #[inline]
    pub(crate) fn put(&self) -> Put {
        let step = |state: u64| {
            let now = State(state);
            (now.count() > 0 && !now.is_pinned()).then(|| state - 1)
        };
        // Release: what this holder did happens before the frame is reused. Acquire: the last one sees what all did.
        match self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, step)
        {
            Ok(before) if State(before).count() == 1 => Put::Last,
            Ok(_) => Put::Shared,
            Err(_) => Put::Refused,
        }
    }

    /// Ends a move under the lruvec's lock, in one step: changes the flags as `decide` says, unless it says `None`, and drops
    /// the move's reference. A last reference leaves `LRU` clear: the caller unlinks what it linked.
    #[inline]
    pub(crate) fn settle(&self, decide: impl Fn(Flags) -> Option<Flags>) -> Settled {
        let step = |state: u64| {
            let now = State(state);
            let old = now.flags();
            let new = decide(old)?;
            let state = state ^ word_of(old ^ new);
            Some(match now.count() {
                1 => (state - 1) & !word_of(Flags::LRU),
                _ if now.is_pinned() => state,
                _ => state - 1,
            })
        };
        // AcqRel: as `put`; and Release pairs with `win`: who wins LRU sees the links as they were left.
        match self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, step)
        {
            Ok(before) if State(before).count() == 1 => Settled::Last,
            Ok(_) => Settled::Shared,
            Err(_) => Settled::Lost,
        }
    }

    /// Turns exactly `expected` references, all the caller's, into none; nobody can take one after.
    #[inline]
    pub(crate) fn freeze(&self, expected: u32) -> bool {
        let step = |state: u64| (State(state).count() == expected).then_some(state & !COUNT);
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, step)
            .is_ok()
    }

    /// Gives frozen references back.
    pub(crate) fn thaw(&self, references: u32) {
        self.state
            .fetch_or(u64::from(references), Ordering::Release);
    }

    /// Changes the order of a folio whose references are frozen.
    pub(crate) fn set_order(&self, order: Order) {
        let step = |state: u64| {
            Some(state & !(u64::MAX << ORDER_SHIFT) | u64::from(order.get()) << ORDER_SHIFT)
        };
        let _always = self
            .state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }

    /// The flags. A moment later they may differ.
    #[inline]
    pub(crate) fn flags(&self) -> Flags {
        self.state().flags()
    }

    /// Order of the folio.
    #[inline]
    pub(crate) fn order(&self) -> Order {
        self.state().order()
    }

    /// Sets flags; returns those set before. Release pairs with `win`: who wins LRU sees the links as they were left.
    #[inline]
    pub(crate) fn set(&self, flags: Flags) -> Flags {
        State(self.state.fetch_or(word_of(flags), Ordering::AcqRel)).flags()
    }

    /// Clears flags; returns those set before.
    #[inline]
    pub(crate) fn clear(&self, flags: Flags) -> Flags {
        State(self.state.fetch_and(!word_of(flags), Ordering::AcqRel)).flags()
    }

    /// Enters a state; says whether the frame was out of it. One instruction on x86-64, where all flags before would take a loop.
    #[inline]
    pub(crate) fn enter_state(&self, index: usize) -> bool {
        let bit = 1 << (FLAGS_SHIFT as usize + STATE_SHIFT + index);
        self.state.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Leaves a state; says whether the frame was in it.
    #[inline]
    pub(crate) fn leave_state(&self, index: usize) -> bool {
        let bit = 1 << (FLAGS_SHIFT as usize + STATE_SHIFT + index);
        self.state.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Clears flags of a dead frame: nobody else can reach it.
    #[inline]
    pub(crate) fn clear_dead(&self, flags: Flags) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(state & !word_of(flags), Ordering::Relaxed);
    }

    /// Clears `LRU` and says whether this call did: the winner alone may unlink the frame. Needs a reference.
    pub(crate) fn win(&self) -> bool {
        debug_assert!(self.count() > 0, "LRU is won only with a reference");
        self.clear(Flags::LRU).contains(Flags::LRU)
    }

    /// Gives back what `win` or `win_with_reference` took, if the frame was not unlinked since. The last reference stays: the
    /// frame is leaked rather than freed by someone who could not lock its list.
    #[cold]
    pub(crate) fn lose(&self) {
        let step = |state: u64| {
            let now = State(state);
            let state = (state | word_of(Flags::LRU)) & !word_of(Flags::ISOLATED);
            let keeps = now.count() == 1 || now.is_pinned();
            Some(if keeps { state } else { state - 1 })
        };
        // AcqRel: as `settle`.
        let _always = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, step);
    }

    /// Takes a reference and clears `LRU`, in one step, unless the frame is free, dying, or not on a list; marks it as isolated;
    /// returns the state before. The winner alone may unlink the frame. A reference comes with it since a last put that saw `LRU` clear would skip the unlinking.
    #[inline]
    pub(crate) fn win_with_reference(&self) -> Option<State> {
        let step = |state: u64| {
            let now = State(state);
            if now.count() == 0 || !now.flags().contains(Flags::LRU) {
                return None;
            }
            let isolated = if now.flags().intersects(Flags::WITH_FILES) {
                Flags::ISOLATED_FILE
            } else {
                Flags::ISOLATED_ANON
            };
            let state = state & !word_of(Flags::LRU) | word_of(isolated);
            Some(if now.is_pinned() { state } else { state + 1 })
        };
        // Acquire pairs with the Release of `settle` and `set`: the links as they were left.
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, step)
            .ok()
            .map(State)
    }

    /// Of an unevictable frame, locking mappings that are counted; of another, what the eviction policy noted.
    #[inline]
    pub(crate) fn note(&self) -> u32 {
        self.note.load(Ordering::Relaxed)
    }

    /// Notes it. Under the lock of the frame's lruvec, or by whoever isolated the frame.
    #[inline]
    pub(crate) fn set_note(&self, note: u32) {
        self.note.store(note, Ordering::Relaxed);
    }

    /// The owner slot, if charged. Acquire pairs with the Release of `set_owner`.
    #[inline]
    pub(crate) fn owner(&self) -> Option<u32> {
        self.owner.load(Ordering::Acquire).checked_sub(1)
    }

    /// Names the owner slot, or none.
    #[inline]
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
