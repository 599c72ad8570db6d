//! The policy of an inactive and an active list.
//!
//! Owns: [`TwoLists`]. Invariants: a frame's flags alone name its list, so the policy has no state and notes nothing. A frame on
//! an active list becomes inactive only by a scan, which reclaim makes where too few are inactive.
//! Lock ranks: as policy. Used by: policy.

use super::lruvec::End;
use super::policy::{ListNo, ListNos, Rules, Use};
use super::{Backing, ListKind, Swap};
use crate::frame::{Flags, Record};

/// An lruvec's state: none.
#[derive(Debug)]
pub(super) struct TwoLists;

impl Rules for TwoLists {
    const ACTIVATION_AGES: bool = true;

    #[inline(always)]
    fn add(&self, record: &Record, flags: Flags, _end: End) -> ListNo {
        self.list_of(record, flags)
    }

    #[inline(always)]
    fn list_of(&self, _record: &Record, flags: Flags) -> ListNo {
        ListKind::index(flags)
    }

    fn lists_of(&self, kind: ListKind) -> ListNos {
        ListNos::from_iter([kind as ListNo])
    }

    #[inline]
    fn sizes(&self, frames: impl Fn(ListNo) -> u64) -> [u64; ListKind::COUNT] {
        ListKind::ALL.map(|kind| frames(kind as ListNo))
    }

    fn candidates(&self, kind: ListKind) -> ListNos {
        self.lists_of(kind)
    }

    fn age(&mut self, _backing: Backing, _frames: impl Fn(ListNo) -> u64) {}

    /// A use of the mappings counts with the mark that an earlier use left: the first keeps the frame once (second
    /// chance), a second one, or use through two mappings, makes it active (reclaim.md 3.5).
    #[inline]
    fn accessed(record: &Record, mappings: u32) -> Use {
        let marked = record.flags().contains(Flags::REFERENCED);
        match (mappings, marked) {
            (0, true) => {
                record.clear(Flags::REFERENCED);
                Use::Marked
            }
            (0, false) => Use::None,
            (1, false) => {
                record.set(Flags::REFERENCED);
                Use::Once
            }
            (_, false) => {
                record.set(Flags::REFERENCED);
                Use::Active
            }
            (_, true) => Use::Active,
        }
    }

    /// Frames that a folio competes with: those that would have had to go for it to stay (reclaim.md 3.8).
    fn reach(backing: Backing, swap: Swap, sizes: &[u64; ListKind::COUNT]) -> u64 {
        let size = |kind: ListKind| sizes[kind as usize];
        let mut total = size(ListKind::ActiveFile);
        if backing == Backing::Anon {
            total += size(ListKind::InactiveFile);
        }
        if swap == Swap::Left {
            total += size(ListKind::ActiveAnon);
            if backing == Backing::File {
                total += size(ListKind::InactiveAnon);
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folio_competes_with_the_lists_that_its_backing_and_the_swap_leave() {
        // Inactive anon 1, active anon 20, inactive file 300, active file 4000.
        let sizes = [1, 20, 300, 4000];
        for (backing, swap, size) in [
            (Backing::File, Swap::Full, 4000),
            (Backing::Anon, Swap::Full, 4300),
            (Backing::File, Swap::Left, 4021),
            (Backing::Anon, Swap::Left, 4320),
        ] {
            assert_eq!(TwoLists::reach(backing, swap, &sizes), size);
        }
    }
}
