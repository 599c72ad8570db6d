//! Sets of lines, as bitmaps of bitmaps.
//!
//! Owns: [`Index`], a fixed number of sets over the same numbers, each able to name its lowest member in a few steps.
//! Invariants: a bit of a level is set exactly when the word below it is not zero.
//! Lock ranks: none of its own; written only under the lock of the shard that owns it.
//! Used by: shard.

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Levels of 64: enough for 2^24 lines, 2^33 frames.
const DEPTH: usize = 4;

/// Some sets of numbers below a common bound.
#[derive(Debug)]
pub(super) struct Index {
    /// Set after set; in each, level after level, members first.
    words: &'static [AtomicU64],
    /// Where each level starts within a set.
    levels: [u32; DEPTH],
    /// Number of levels; the last is one word.
    depth: u32,
    /// Words in a set.
    stride: u32,
}

impl Index {
    /// Words that `sets` sets of numbers below `len` take.
    pub(super) fn words(sets: u32, len: u32) -> usize {
        sets as usize * Self::over(&[], len).stride as usize
    }

    /// Empty sets of numbers below `len` in `words`, which are zero and as many as [`words`](Self::words) says.
    pub(super) fn over(words: &'static [AtomicU64], len: u32) -> Self {
        let mut levels = [0; DEPTH];
        let (mut depth, mut stride, mut width) = (0, 0, len);
        loop {
            width = width.div_ceil(64).max(1);
            levels[depth as usize] = stride;
            stride += width;
            depth += 1;
            if width == 1 || depth as usize == DEPTH {
                break;
            }
        }
        Self {
            words,
            levels,
            depth,
            stride,
        }
    }

    #[inline]
    fn at(&self, set: u32, level: u32, word: u32) -> &AtomicU64 {
        &self.words[(set * self.stride + self.levels[level as usize & (DEPTH - 1)] + word) as usize]
    }

    /// Adds `member` to `set`; `true` if the set was empty.
    #[inline]
    pub(super) fn insert(&self, set: u32, member: u32) -> bool {
        let word = self.at(set, 0, member >> 6);
        let old = word.load(Relaxed);
        word.store(old | 1 << (member & 63), Relaxed);
        old == 0 && self.insert_above(set, member >> 6)
    }

    fn insert_above(&self, set: u32, mut at: u32) -> bool {
        for level in 1..self.depth {
            let word = self.at(set, level, at >> 6);
            let old = word.load(Relaxed);
            word.store(old | 1 << (at & 63), Relaxed);
            if old != 0 {
                return false;
            }
            at >>= 6;
        }
        true
    }

    /// Removes `member`, which is in `set`; `true` if the set is empty now.
    #[inline]
    pub(super) fn remove(&self, set: u32, member: u32) -> bool {
        let word = self.at(set, 0, member >> 6);
        let new = word.load(Relaxed) & !(1 << (member & 63));
        word.store(new, Relaxed);
        new == 0 && self.remove_above(set, member >> 6)
    }

    fn remove_above(&self, set: u32, mut at: u32) -> bool {
        for level in 1..self.depth {
            let word = self.at(set, level, at >> 6);
            let new = word.load(Relaxed) & !(1 << (at & 63));
            word.store(new, Relaxed);
            if new != 0 {
                return false;
            }
            at >>= 6;
        }
        true
    }

    /// The lowest member; of an empty set, 0.
    #[inline]
    pub(super) fn first(&self, set: u32) -> u32 {
        let mut at = 0;
        for level in (0..self.depth).rev() {
            let word = self.at(set, level, at).load(Relaxed);
            at = at * 64 + (word.trailing_zeros() & 63);
        }
        at
    }

    /// Whether `member` is in `set`.
    pub(super) fn contains(&self, set: u32, member: u32) -> bool {
        self.at(set, 0, member >> 6).load(Relaxed) >> (member & 63) & 1 == 1
    }

    /// Number of members.
    pub(super) fn count(&self, set: u32) -> u32 {
        let end = if self.depth > 1 {
            self.levels[1]
        } else {
            self.stride
        };
        let words = (0..end).map(|word| self.at(set, 0, word).load(Relaxed));
        words.map(u64::count_ones).sum()
    }

    /// Whether each level tells of the one below what is true.
    pub(super) fn is_consistent(&self, set: u32) -> bool {
        (1..self.depth).all(|level| {
            let (below, here) = (self.levels[level as usize - 1], self.levels[level as usize]);
            (0..here - below).all(|i| {
                let told = self.at(set, level, i >> 6).load(Relaxed) >> (i & 63) & 1 == 1;
                told == (self.at(set, level - 1, i).load(Relaxed) != 0)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::boxed::Box;
    use std::collections::BTreeSet;

    #[test]
    fn each_set_names_its_lowest_member_at_every_size() {
        for len in [1u32, 63, 64, 65, 4096, 4097, 300_000] {
            let words = (0..Index::words(3, len)).map(|_| AtomicU64::new(0));
            let index = Index::over(Box::leak(words.collect()), len);
            let mut model = [const { BTreeSet::new() }; 3];
            let mut state = 7u64;
            for _ in 0..3000 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let (set, member) = ((state >> 60) % 3, (state >> 20) % u64::from(len));
                let (set, member) = (set as u32, member as u32);
                let members: &mut BTreeSet<u32> = &mut model[set as usize];
                if members.remove(&member) {
                    assert_eq!(index.remove(set, member), members.is_empty());
                } else {
                    assert_eq!(index.insert(set, member), members.is_empty());
                    members.insert(member);
                }
                if let Some(&first) = members.first() {
                    assert_eq!(index.first(set), first);
                }
                assert_eq!(index.count(set) as usize, members.len());
            }
            assert!((0..3).all(|set| index.is_consistent(set)));
        }
    }
}
