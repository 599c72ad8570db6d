//! One line: 512 bits, a set bit is free.
//!
//! Owns: [`Line`], the bits of one aligned run of 512 places. A place is a frame (orders 0 to 9) or, one level up, a
//! whole pageblock (orders 9 to 18, there called 0 to 9).
//! Invariants: blocks are aligned to their own length.
//! Lock ranks: none of its own; written only under the lock of the shard that owns the line.
//! Used by: shape, shard.

use super::shape::{LOW, Shape, fold_whole};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of one line, as read.
pub(super) type Words = [u64; 8];

/// Eight words of places: a line, or a copy of one.
pub(super) trait Bits {
    /// The word with number `i`, below eight.
    fn word(&self, i: usize) -> u64;
}

impl Bits for Line {
    #[inline]
    fn word(&self, i: usize) -> u64 {
        self.words[i & 7].load(Relaxed)
    }
}

impl Bits for Words {
    #[inline]
    fn word(&self, i: usize) -> u64 {
        self[i & 7]
    }
}

/// Places in a line.
pub(super) const PLACES: u32 = 512;
/// Order of a whole line.
pub(super) const WHOLE: u8 = 9;
/// Every place free.
pub(super) const ALL_FREE: Words = [!0; 8];

/// 512 bits in a cache line of their own.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(align(64)))]
pub(super) struct Line {
    /// Guarded by the shard's lock; atomics only because the slots are shared.
    words: [AtomicU64; 8],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    #[inline]
    pub(super) fn set_word(&self, i: usize, value: u64) {
        self.words[i & 7].store(value, Relaxed);
    }

    #[inline]
    pub(super) fn load(&self) -> Words {
        core::array::from_fn(|i| self.word(i))
    }

    #[inline]
    pub(super) fn store(&self, words: &Words) {
        for (i, &word) in words.iter().enumerate() {
            self.set_word(i, word);
        }
    }

    /// Whether every place of the block of order `k` at `place` is free.
    #[inline]
    pub(super) fn is_free(&self, place: u32, k: u8) -> bool {
        let (first, mask) = span(place, k);
        if k <= 6 {
            self.word(first) & mask == mask
        } else {
            (first..first + (1 << (k - 6))).all(|i| self.word(i) == !0)
        }
    }

    /// Whether no place of the block is free.
    #[inline]
    pub(super) fn is_taken(&self, place: u32, k: u8) -> bool {
        let (first, mask) = span(place, k);
        if k <= 6 {
            self.word(first) & mask == 0
        } else {
            (first..first + (1 << (k - 6))).all(|i| self.word(i) == 0)
        }
    }

    /// Frees a block. All of it was taken.
    #[inline]
    pub(super) fn set(&self, place: u32, k: u8) {
        let (first, mask) = span(place, k);
        if k <= 6 {
            self.set_word(first, self.word(first) | mask);
        } else {
            (first..first + (1 << (k - 6))).for_each(|i| self.set_word(i, !0));
        }
    }

    /// Takes a block. All of it was free.
    #[inline]
    pub(super) fn clear(&self, place: u32, k: u8) {
        let (first, mask) = span(place, k);
        if k <= 6 {
            self.set_word(first, self.word(first) & !mask);
        } else {
            (first..first + (1 << (k - 6))).for_each(|i| self.set_word(i, 0));
        }
    }
}

/// First word of a block, and its bits in that word.
#[inline]
pub(super) const fn span(place: u32, k: u8) -> (usize, u64) {
    let first = (place as usize >> 6) & 7;
    if k >= 6 {
        (first & !((1 << (k - 6)) - 1), !0)
    } else {
        let start = place & 63 & !((1 << k) - 1);
        (first, (!0 >> (64 - (1 << k))) << start)
    }
}

/// Counts the largest aligned free blocks by order: each free place is in exactly one of them.
pub(super) fn count_blocks(words: &Words, counts: &mut [u64; 10]) {
    let mut above = [0u64; 11];
    for &word in words {
        let mut free = word;
        above[0] += u64::from(free.count_ones());
        for j in 0..6u8 {
            free &= free >> (1 << j);
            free &= LOW[j as usize + 1];
            above[j as usize + 1] += u64::from(free.count_ones());
        }
    }
    let whole = Shape::of(words).whole();
    for j in 7..=WHOLE {
        above[j as usize] = u64::from(fold_whole(whole, j).count_ones());
    }
    for k in 0..10 {
        counts[k] += above[k] - 2 * above[k + 1];
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn random(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        *state >> 20
    }

    /// Random bits with long free runs, so that high orders occur.
    pub(in super::super) fn sample(state: &mut u64) -> Words {
        let mut words = ALL_FREE;
        for _ in 0..random(state) % 40 {
            let place = (random(state) % 512) as usize;
            words[place / 64] &= !(1 << (place % 64));
        }
        words
    }

    #[test]
    fn counted_blocks_cover_each_free_place_once() {
        let mut state = 4;
        for _ in 0..1000 {
            let words = sample(&mut state);
            let mut counts = [0; 10];
            count_blocks(&words, &mut counts);
            let places: u64 = counts.iter().enumerate().map(|(k, n)| n << k).sum();
            let free: u32 = words.iter().map(|w| w.count_ones()).sum();
            assert_eq!(places, u64::from(free));
        }
    }
}
