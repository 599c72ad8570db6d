//! The policy of generations.
//!
//! Owns: [`Generations`], which of an lruvec's lists is the oldest. Invariants: a linked frame's record notes the list that it is on,
//! so a turn, which renumbers the generations, and the splice of a dead child's lists touch no frame. A turn is made only when
//! the oldest list is empty: it becomes the youngest.
//!
//! For each backing the lists are a ring. The oldest holds what is left of a generation that was the first to go before the
//! last turn; the four younger ones are generations proper:
//!
//! ```text
//!   what is left ── first to go ── second ── second youngest ── youngest ──► (turn: the oldest, empty, is next)
//!        ▲               ▲                         ▲                ▲
//!    to the old     new; used at              came back too     used at two
//!     end again      one look            early; used often      looks in a row
//!                                        through descriptors
//! ```
//!
//! Nothing here is Linux's but the idea: it has four generations that it ages by walks of page tables, and tiers
//! (reclaim.md 3.9).
//! Lock ranks: as policy. Used by: policy.

use super::lruvec::End;
use super::policy::{ListNo, ListNos, Rules, Use};
use super::{Backing, ListKind, Swap};
use crate::frame::{Flags, Record};

/// Lists of each backing.
pub(super) const COUNT: usize = 5;

/// Steps from the oldest list.
const OLD_END: usize = 0;
const FIRST_TO_GO: usize = 1;
const SECOND_YOUNGEST: usize = 3;
const YOUNGEST: usize = 4;

/// In a record's note, above the list: the last look found the frame used.
const LOOKED: u32 = 1 << 8;

/// An lruvec's state.
#[derive(Debug, Default)]
pub(super) struct Generations {
    /// The oldest list in each backing's ring.
    oldest: [u8; 2],
}

const fn ring_of(backing: Backing) -> usize {
    match backing {
        Backing::Anon => 0,
        Backing::File => 1,
    }
}

impl Generations {
    #[inline(always)]
    fn list(&self, ring: usize, steps: usize) -> ListNo {
        let at = usize::from(self.oldest[ring]) + steps;
        ring * COUNT + if at < COUNT { at } else { at - COUNT }
    }

    fn lists(&self, backing: Backing, steps: core::ops::Range<usize>) -> ListNos {
        steps
            .map(|steps| self.list(ring_of(backing), steps))
            .collect()
    }
}

impl Rules for Generations {
    const ACTIVATION_AGES: bool = false;

    #[inline]
    fn add(&self, record: &Record, flags: Flags, end: End) -> ListNo {
        let looked = record.note() & LOOKED;
        let steps = match end {
            End::Tail => OLD_END,
            End::Head if !flags.contains(Flags::ACTIVE) => FIRST_TO_GO,
            End::Head if looked == 0 => SECOND_YOUNGEST,
            End::Head => YOUNGEST,
        };
        let list = self.list(usize::from(flags.intersects(Flags::WITH_FILES)), steps);
        record.set_note(looked | list as u32);
        list
    }

    #[inline]
    fn list_of(&self, record: &Record, _flags: Flags) -> ListNo {
        ((record.note() & !LOOKED) as ListNo).min(2 * COUNT - 1)
    }

    /// The two youngest count as active, as Linux reports them.
    fn lists_of(&self, kind: ListKind) -> ListNos {
        match kind {
            ListKind::InactiveAnon => self.lists(Backing::Anon, OLD_END..SECOND_YOUNGEST),
            ListKind::ActiveAnon => self.lists(Backing::Anon, SECOND_YOUNGEST..COUNT),
            ListKind::InactiveFile => self.lists(Backing::File, OLD_END..SECOND_YOUNGEST),
            ListKind::ActiveFile => self.lists(Backing::File, SECOND_YOUNGEST..COUNT),
        }
    }

    #[inline]
    fn sizes(&self, frames: impl Fn(ListNo) -> u64) -> [u64; ListKind::COUNT] {
        let sum = |ring, steps: core::ops::Range<usize>| -> u64 {
            steps.map(|steps| frames(self.list(ring, steps))).sum()
        };
        let [old, young] = [OLD_END..SECOND_YOUNGEST, SECOND_YOUNGEST..COUNT];
        [
            sum(0, old.clone()),
            sum(0, young.clone()),
            sum(1, old),
            sum(1, young),
        ]
    }

    /// All of the backing's.
    fn candidates(&self, kind: ListKind) -> ListNos {
        match kind {
            ListKind::InactiveAnon | ListKind::ActiveAnon => self.lists(Backing::Anon, 0..COUNT),
            ListKind::InactiveFile | ListKind::ActiveFile => self.lists(Backing::File, 0..COUNT),
        }
    }

    /// A turn, if nothing is left of the last one, and less than half is old.
    fn age(&mut self, backing: Backing, frames: impl Fn(ListNo) -> u64) {
        let ring = ring_of(backing);
        let left = frames(self.list(ring, OLD_END));
        let old = frames(self.list(ring, FIRST_TO_GO));
        let younger = |steps| frames(self.list(ring, steps));
        let young: u64 = (FIRST_TO_GO + 1..COUNT).map(younger).sum();
        if left == 0 && old < young {
            self.oldest[ring] = (self.oldest[ring] + 1) % COUNT as u8;
        }
    }

    /// Used at one look: it stays. At the next one too, or by two mappings: to the youngest. A frame that was in active use
    /// leaves it at a look that finds it unused, and is of the working set from then on.
    fn accessed(record: &Record, mappings: u32) -> Use {
        let (flags, note) = (record.flags(), record.note());
        let (was_active, looked) = (flags.contains(Flags::ACTIVE), note & LOOKED != 0);
        let used = if mappings > 0 {
            record.set_note(note | LOOKED);
            match looked || mappings > 1 {
                true => Use::Active,
                false => Use::Once,
            }
        } else {
            record.set_note(note & !LOOKED);
            if !flags.contains(Flags::REFERENCED) {
                Use::None
            } else {
                record.clear(Flags::REFERENCED);
                match was_active {
                    true => Use::Active,
                    false => Use::Marked,
                }
            }
        };
        if was_active {
            if used != Use::Active {
                record.clear(Flags::ACTIVE);
            }
            if !flags.contains(Flags::WORKINGSET) {
                record.set(Flags::WORKINGSET);
            }
        }
        used
    }

    /// Half the frames that a folio competes with: what goes in the time that it would have had to stay.
    fn reach(_backing: Backing, swap: Swap, sizes: &[u64; ListKind::COUNT]) -> u64 {
        let size = |kind: ListKind| sizes[kind as usize];
        let mut total = size(ListKind::InactiveFile) + size(ListKind::ActiveFile);
        if swap == Swap::Left {
            total += size(ListKind::InactiveAnon) + size(ListKind::ActiveAnon);
        }
        total / 2
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FILE: Flags = Flags::FILE;

    /// How many turns later a list is the oldest.
    fn turns_left(generations: &Generations, list: ListNo) -> usize {
        (list % COUNT + COUNT - usize::from(generations.oldest[list / COUNT])) % COUNT
    }

    #[test]
    fn every_list_is_of_one_kind_and_a_candidate_of_its_backing_whatever_turn_it_is() {
        let mut generations = Generations::default();
        for turn in 0..2 * COUNT {
            let mut seen = [0; 2 * COUNT];
            for kind in ListKind::ALL {
                for list in generations.lists_of(kind) {
                    seen[list] += 1;
                    assert!(generations.candidates(kind).contains(&list), "{kind:?}");
                }
            }
            assert_eq!(seen, [1; 2 * COUNT], "turn {turn}");
            let full = turns_left(&generations, 0);
            generations.age(Backing::Anon, |list| u64::from(list == 2));
            let turned = turns_left(&generations, 0) != full;
            // The one full list is the oldest, or the first to go, in two of five turns: then there is none.
            let steps = turns_left(&generations, 2) + usize::from(turned);
            assert_eq!(turned, steps > FIRST_TO_GO, "turn {turn}");
            generations.oldest[0] = (generations.oldest[0] + u8::from(!turned)) % COUNT as u8;
        }
    }

    #[test]
    fn a_turn_waits_for_the_oldest_list_and_until_less_than_half_is_old() {
        // Oldest list, first to go, the others.
        for (left, old, young, turns) in [(0, 4, 5, true), (0, 5, 5, false), (1, 0, 9, false)] {
            let mut generations = Generations::default();
            generations.age(Backing::File, |list| match list - COUNT {
                OLD_END => left,
                FIRST_TO_GO => old,
                YOUNGEST => young,
                _ => 0,
            });
            assert_eq!(generations.oldest, [0, u8::from(turns)]);
        }
    }

    #[test]
    fn what_a_frame_did_decides_how_long_it_stays() {
        let generations = Generations { oldest: [3, 2] };
        let record = Record::new();
        let steps = |flags, end| {
            let list = generations.add(&record, flags, end);
            assert_eq!(generations.list_of(&record, flags), list);
            turns_left(&generations, list)
        };
        assert_eq!(steps(FILE, End::Head), FIRST_TO_GO, "new");
        assert_eq!(Generations::accessed(&record, 1), Use::Once);
        assert_eq!(steps(FILE, End::Head), FIRST_TO_GO, "used at one look");
        assert_eq!(Generations::accessed(&record, 1), Use::Active);
        assert_eq!(steps(FILE | Flags::ACTIVE, End::Head), YOUNGEST);
        record.set(Flags::ACTIVE);
        assert_eq!(Generations::accessed(&record, 0), Use::None);
        assert_eq!(record.flags(), Flags::WORKINGSET, "it lapsed");
        let back = FILE | Flags::ACTIVE;
        assert_eq!(steps(back, End::Head), SECOND_YOUNGEST, "came back soon");
        assert_eq!(steps(FILE, End::Tail), OLD_END, "written");
        assert_eq!(Generations::accessed(&record, 2), Use::Active);
        // Through descriptors: once is a mark, in active use it is enough.
        for (flags, used) in [(Flags::ACTIVE, Use::Active), (Flags::empty(), Use::Marked)] {
            let record = Record::new();
            record.set(flags | Flags::REFERENCED);
            assert_eq!(Generations::accessed(&record, 0), used);
            assert!(!record.flags().contains(Flags::REFERENCED));
        }
    }
}
