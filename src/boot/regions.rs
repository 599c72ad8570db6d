//! The algebra of one list of regions, by bytes.
//!
//! Owns: [`Region`], and the list that [`BootMap`](super::BootMap) keeps twice, for usable and for reserved memory.
//! Invariants: regions are sorted, not empty, disjoint and maximal (two of one node never touch); a refused change
//! leaves the list as it was.
//! Lock ranks: none.
//! Used by: map.rs alone.

use core::fmt;
use core::iter;

use crate::addr::{NodeId, PhysAddr};

/// A range of physical memory, by bytes: never empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) node: Option<NodeId>,
}

/// At most `N` regions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RegionList<const N: usize>(heapless::Vec<Region, N>);

/// The change would leave more regions than the list can hold. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListFull;

impl Region {
    /// First byte.
    #[must_use]
    pub const fn start(&self) -> PhysAddr {
        PhysAddr(self.start)
    }

    /// One past the last byte.
    #[must_use]
    pub const fn end(&self) -> PhysAddr {
        PhysAddr(self.end)
    }

    /// Length in bytes, at least 1.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// The node that usable memory belongs to; `None` for reserved memory, which is recorded without one.
    #[must_use]
    pub const fn node(&self) -> Option<NodeId> {
        self.node
    }
}

impl<const N: usize> RegionList<N> {
    pub(super) const fn new() -> Self {
        Self(heapless::Vec::new())
    }

    pub(super) fn as_slice(&self) -> &[Region] {
        &self.0
    }

    /// Sum of the regions' bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(Region::bytes).sum()
    }

    /// Adds those pieces of `new` that no region covers yet: whoever came first keeps its part.
    pub(super) fn insert(&mut self, new: Region) -> Result<(), ListFull> {
        let growth: isize = self.uncovered(new).map(|piece| self.growth(piece)).sum();
        if growth > N as isize - self.0.len() as isize {
            return Err(ListFull);
        }
        // Pieces that close a gap go first, so that the list is never longer on the way than before or after.
        // A region of the list lies between any two pieces, so inserting one changes no other's growth.
        for wanted in [-1, 0, 1] {
            while let Some(piece) = self.piece_that_grows(new, wanted) {
                self.insert_piece(piece);
            }
        }
        Ok(())
    }

    /// Cuts the bytes `start..end` out.
    pub(super) fn remove(&mut self, start: u64, end: u64) -> Result<(), ListFull> {
        let first = self.first_ending_after(start);
        if start >= end || first == self.0.len() {
            return Ok(());
        }
        let left = self.0[first];
        if left.start < start && end < left.end {
            let right = Region { start: end, ..left };
            self.0.insert(first + 1, right).map_err(|_| ListFull)?;
            self.0[first].end = start;
            return Ok(());
        }
        self.0.retain_mut(|region| {
            if region.start < end && start < region.end {
                if region.start < start {
                    region.end = start;
                } else {
                    // Past its own end if it is cut out whole; then it goes.
                    region.start = end;
                }
            }
            region.start < region.end
        });
        Ok(())
    }

    /// Whether one region holds all of `start..end`.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        self.0
            .get(self.first_ending_after(start))
            .is_some_and(|region| region.start <= start && end <= region.end)
    }

    /// Index of the first region that ends after `addr`.
    pub(super) fn first_ending_after(&self, addr: u64) -> usize {
        self.0.partition_point(|region| region.end <= addr)
    }

    /// The maximal pieces of `new` that no region covers, in ascending order.
    pub(super) fn uncovered(&self, new: Region) -> impl Iterator<Item = Region> {
        iter::successors(self.first_uncovered(new), move |piece| {
            self.first_uncovered(Region {
                start: piece.end,
                ..new
            })
        })
    }

    fn first_uncovered(&self, new: Region) -> Option<Region> {
        let mut start = new.start;
        let mut end = new.end;
        for region in &self.0[self.first_ending_after(start)..] {
            if start < region.start {
                end = end.min(region.start);
                break;
            }
            start = region.end;
        }
        (start < end).then_some(Region { start, end, ..new })
    }

    /// Whether an uncovered `piece` continues the region to its left, and the one to its right.
    fn continues(&self, piece: Region) -> (bool, bool) {
        let right = self.first_ending_after(piece.start);
        let left = right.checked_sub(1).and_then(|i| self.0.get(i));
        (
            left.is_some_and(|region| region.end == piece.start && region.node == piece.node),
            self.0
                .get(right)
                .is_some_and(|region| region.start == piece.end && region.node == piece.node),
        )
    }

    /// By how many regions the list grows when the uncovered `piece` goes in: -1, 0 or 1.
    fn growth(&self, piece: Region) -> isize {
        let (left, right) = self.continues(piece);
        1 - isize::from(left) - isize::from(right)
    }

    fn piece_that_grows(&self, new: Region, wanted: isize) -> Option<Region> {
        self.uncovered(new)
            .find(|&piece| self.growth(piece) == wanted)
    }

    fn insert_piece(&mut self, piece: Region) {
        let at = self.first_ending_after(piece.start);
        match self.continues(piece) {
            (true, true) => {
                self.0[at - 1].end = self.0[at].end;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].end = piece.end,
            (false, true) => self.0[at].start = piece.start,
            (false, false) => self
                .0
                .insert(at, piece)
                .expect("insert() counted the regions, and gaps were closed first"),
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}..{:#018x}", self.start, self.end)?;
        if let Some(NodeId(node)) = self.node {
            write!(f, " node {node}")?;
        }
        write!(f, " ({} bytes)", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn region(node: u8, start: u64, end: u64) -> Region {
        Region {
            start,
            end,
            node: Some(NodeId(node)),
        }
    }

    fn list<const N: usize>(regions: &[(u8, u64, u64)]) -> RegionList<N> {
        let mut list = RegionList::new();
        for &(node, start, end) in regions {
            list.insert(region(node, start, end)).unwrap();
        }
        list
    }

    fn parts<const N: usize>(list: &RegionList<N>) -> Vec<(u8, u64, u64)> {
        let part = |r: &Region| (r.node.unwrap().0, r.start, r.end);
        list.as_slice().iter().map(part).collect()
    }

    #[test]
    fn neighbours_of_one_node_merge_and_those_of_two_do_not() {
        let list: RegionList<8> = list(&[(0, 20, 30), (0, 0, 10), (0, 10, 20), (1, 30, 40)]);
        assert_eq!(parts(&list), [(0, 0, 30), (1, 30, 40)]);
    }

    #[test]
    fn a_region_over_others_fills_the_gaps_alone() {
        let list: RegionList<8> = list(&[(0, 10, 20), (1, 30, 40), (2, 0, 50)]);
        assert_eq!(
            parts(&list),
            [
                (2, 0, 10),
                (0, 10, 20),
                (2, 20, 30),
                (1, 30, 40),
                (2, 40, 50)
            ]
        );
    }

    #[test]
    fn a_full_list_still_takes_what_does_not_make_it_longer() {
        let mut list: RegionList<3> = list(&[(0, 0, 10), (1, 20, 30), (1, 40, 50)]);
        // One new piece in front of node 1, one that closes its gap: three regions again.
        let mut same = list.clone();
        same.insert(region(1, 5, 45)).unwrap();
        assert_eq!(parts(&same), [(0, 0, 10), (1, 10, 50)]);
        // Node 2 would need a piece in each gap.
        let before = list.clone();
        assert_eq!(list.insert(region(2, 0, 50)), Err(ListFull));
        assert_eq!(list, before);
        // The first piece in order grows the list, the last two shrink it.
        let mut list: RegionList<4> =
            self::list(&[(0, 10, 12), (1, 20, 30), (1, 40, 50), (1, 60, 70)]);
        list.insert(region(1, 0, 65)).unwrap();
        assert_eq!(parts(&list), [(1, 0, 10), (0, 10, 12), (1, 12, 70)]);
    }

    #[test]
    fn a_cut_out_of_the_middle_of_a_full_list_is_refused_and_others_are_not() {
        let mut list: RegionList<2> = list(&[(0, 0, 10), (1, 20, 30)]);
        assert_eq!(list.remove(3, 4), Err(ListFull));
        assert_eq!(parts(&list), [(0, 0, 10), (1, 20, 30)]);
        list.remove(5, 25).unwrap();
        assert_eq!(parts(&list), [(0, 0, 5), (1, 25, 30)]);
        list.remove(0, 25).unwrap();
        assert_eq!(parts(&list), [(1, 25, 30)]);
        list.remove(0, 25).unwrap();
        list.remove(30, u64::MAX).unwrap();
        list.remove(29, 26).unwrap();
        assert_eq!(parts(&list), [(1, 25, 30)]);
        // Its end alone, and its start alone: no empty region stays.
        list.remove(28, 30).unwrap();
        list.remove(25, 26).unwrap();
        assert_eq!(parts(&list), [(1, 26, 28)]);
    }
}
