//! Which frames go first.
//!
//! Owns: [`Policy`], which an instance is built with; [`Rules`], what every policy decides; [`State`], an lruvec's.
//! Invariants: a policy names lists, and notes in a frame's record what it needs to name the frame's list again; it never
//! links, counts or frees. Lists, their sizes and their lock are the lruvec's, the same for all. So no policy can lose a frame.
//! Lock ranks: what takes `self` is called under the lruvec's lock; the rest is of frames in hand. Used by: lruvec, isolate,
//! workingset, reclaim.

use arrayvec::ArrayVec;

use super::generations::Generations;
use super::lruvec::End;
use super::two_lists::TwoLists;
use super::{Backing, ListKind, Swap};
use crate::frame::{Flags, Record};

/// How an instance chooses what goes first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// An inactive and an active list for each backing. What was used twice while inactive becomes active; what is faulted in
    /// again sooner than the active list is long does so at once.
    TwoLists,
    /// Four generations for each backing, and what is left of a fifth. What was used at two looks in a row is of the youngest;
    /// when less than half is old, all become one older. Fewer faults than two lists on the traces in README.md.
    #[default]
    Generations,
}

/// A list of an lruvec, as its policy numbers them.
pub(crate) type ListNo = usize;

/// Lists that an lruvec has room for.
pub(super) const MOST_LISTS: usize = 2 * super::generations::COUNT;

/// Lists of one kind, the oldest first.
pub(super) type ListNos = ArrayVec<ListNo, { super::generations::COUNT }>;

/// What a look at a frame in hand found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// In use: to the frames in active use.
    Active,
    /// Used, but not enough to be sure: it stays for another look.
    Once,
    /// Only marked as used, through a descriptor; of its mappings none used it.
    Marked,
    /// Not used since the last look.
    None,
}

/// What a policy decides.
pub(super) trait Rules {
    /// Whether a frame that becomes active counts as one that went, to those that wait to come back.
    const ACTIVATION_AGES: bool;

    /// Add, and put back: the list for a frame with these flags that is to be linked at an end.
    fn add(&self, record: &Record, flags: Flags, end: End) -> ListNo;

    /// Remove: the list that a linked frame with these flags is on.
    fn list_of(&self, record: &Record, flags: Flags) -> ListNo;

    /// The lists that count as of this kind, the oldest first. Each list is of one kind.
    fn lists_of(&self, kind: ListKind) -> ListNos;

    /// Sizes: the sum of each kind's lists, by [`ListKind`], if `frames` are those of a list.
    fn sizes(&self, frames: impl Fn(ListNo) -> u64) -> [u64; ListKind::COUNT];

    /// Isolate: the lists that reclaim takes frames from when it asks for this kind, in this order.
    fn candidates(&self, kind: ListKind) -> ListNos;

    /// Age: makes young frames older if too few are old, before [`candidates`](Self::candidates) is asked. `frames` are those of a
    /// list.
    fn age(&mut self, backing: Backing, frames: impl Fn(ListNo) -> u64);

    /// Accessed: what becomes of an isolated frame that `mappings` used since the last look. Clears its marks.
    fn accessed(record: &Record, mappings: u32) -> Use;

    /// Refault: the longest distance, in frames that went, at which a folio that was evicted and comes back went too early.
    /// `sizes` are base frames by [`ListKind`].
    fn reach(backing: Backing, swap: Swap, sizes: &[u64; ListKind::COUNT]) -> u64;
}

/// An lruvec's state of the policy that its instance was built with.
#[derive(Debug)]
pub(super) enum State {
    TwoLists(TwoLists),
    Generations(Generations),
}

impl State {
    pub(super) fn new(policy: Policy) -> Self {
        match policy {
            Policy::TwoLists => Self::TwoLists(TwoLists),
            Policy::Generations => Self::Generations(Generations::default()),
        }
    }

    #[inline(always)]
    pub(super) fn add(&self, record: &Record, flags: Flags, end: End) -> ListNo {
        match self {
            Self::TwoLists(rules) => rules.add(record, flags, end),
            Self::Generations(rules) => rules.add(record, flags, end),
        }
    }

    #[inline(always)]
    pub(super) fn list_of(&self, record: &Record, flags: Flags) -> ListNo {
        match self {
            Self::TwoLists(rules) => rules.list_of(record, flags),
            Self::Generations(rules) => rules.list_of(record, flags),
        }
    }

    pub(super) fn lists_of(&self, kind: ListKind) -> ListNos {
        match self {
            Self::TwoLists(rules) => rules.lists_of(kind),
            Self::Generations(rules) => rules.lists_of(kind),
        }
    }

    #[inline]
    pub(super) fn sizes(&self, frames: impl Fn(ListNo) -> u64) -> [u64; ListKind::COUNT] {
        match self {
            Self::TwoLists(rules) => rules.sizes(frames),
            Self::Generations(rules) => rules.sizes(frames),
        }
    }

    pub(super) fn candidates(&self, kind: ListKind) -> ListNos {
        match self {
            Self::TwoLists(rules) => rules.candidates(kind),
            Self::Generations(rules) => rules.candidates(kind),
        }
    }

    pub(super) fn age(&mut self, backing: Backing, frames: impl Fn(ListNo) -> u64) {
        match self {
            Self::TwoLists(rules) => rules.age(backing, frames),
            Self::Generations(rules) => rules.age(backing, frames),
        }
    }
}

impl Policy {
    /// Whether active frames are reached only after a scan of their own made them inactive.
    pub(crate) fn deactivates(self) -> bool {
        self == Self::TwoLists
    }

    pub(crate) fn activation_ages(self) -> bool {
        match self {
            Self::TwoLists => TwoLists::ACTIVATION_AGES,
            Self::Generations => Generations::ACTIVATION_AGES,
        }
    }

    #[inline]
    pub(crate) fn accessed(self, record: &Record, mappings: u32) -> Use {
        match self {
            Self::TwoLists => TwoLists::accessed(record, mappings),
            Self::Generations => Generations::accessed(record, mappings),
        }
    }

    pub(super) fn reach(self, backing: Backing, swap: Swap, sizes: &[u64; ListKind::COUNT]) -> u64 {
        match self {
            Self::TwoLists => TwoLists::reach(backing, swap, sizes),
            Self::Generations => Generations::reach(backing, swap, sizes),
        }
    }
}
