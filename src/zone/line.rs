//! One line: 512 bits, a set bit is free.
//!
//! Owns: [`Line`], the bits of one aligned run of 512 places, and the arithmetic on them. A place is a frame (orders
//! 0 to 9) or, one level up, a whole pageblock (orders 9 to 18, there called 0 to 9).
//! Invariants: blocks are aligned to their own length. The class of a line is the order of its largest free aligned block.
//! Lock ranks: none of its own; written only under the lock of the shard that owns the line.
//! Used by: shard.

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of one line, as read.
pub(super) type Words = [u64; 8];

/// Eight words of places. The arithmetic below works on a line itself where it is hot: a copy would be written word by
/// word and read in pairs, which no CPU forwards from its store buffer.
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

/// For order k: the lowest bit of each aligned block of that order in a word.
pub(super) const LOW: [u64; 7] = [
    !0,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

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

    /// The class after a block of order `k` at `place` was freed in a line of class `class` (-1: nothing was free):
    /// only the aligned blocks around it can have become whole.
    #[inline]
    pub(super) fn class_after_free(&self, place: u32, k: u8, class: i8) -> i8 {
        let mut class = class.max(k as i8);
        while class < WHOLE as i8 && self.is_free(place, class as u8 + 1) {
            class += 1;
        }
        class
    }

    /// The class after word `i` gained free places.
    #[inline]
    pub(super) fn class_after_word(&self, i: usize, class: i8) -> i8 {
        let taken = !self.word(i);
        let mut class = class.max(0);
        if taken == 0 {
            return self.class_after_free(i as u32 * 64, 6, class);
        }
        while class < 6 && blocks(taken, class as u8 + 1) != 0 {
            class += 1;
        }
        class
    }
}

/// First word of a block, and its bits in that word.
#[inline]
const fn span(place: u32, k: u8) -> (usize, u64) {
    let first = (place as usize >> 6) & 7;
    if k >= 6 {
        (first & !((1 << (k - 6)) - 1), !0)
    } else {
        let start = place & 63 & !((1 << k) - 1);
        (first, (!0 >> (64 - (1 << k))) << start)
    }
}

/// Given the taken places of a word: its lowest set bit, if any, is the highest bit of the lowest free block of order `k <= 6`.
///
/// Subtracting one from each block borrows across a block only where all of it was zero, so bits above the lowest hit
/// may lie.
#[inline]
const fn blocks(taken: u64, k: u8) -> u64 {
    let low = LOW[k as usize];
    let high = low << ((1 << k) - 1);
    taken.wrapping_sub(low) & !taken & high
}

/// Of each word one bit: whether it is free as a whole.
#[inline]
fn whole_words(words: &impl Bits) -> u8 {
    let mut whole = 0;
    for i in 0..8 {
        whole |= u8::from(words.word(i) == !0) << i;
    }
    whole
}

/// Of a bit per word, the free blocks of order `k >= 6`, each at its lowest word.
#[inline]
const fn fold_whole(whole: u8, k: u8) -> u8 {
    match k {
        6 => whole,
        7 => whole & (whole >> 1) & 0x55,
        8 => {
            let pairs = whole & (whole >> 1) & 0x55;
            pairs & (pairs >> 2) & 0x11
        }
        _ => (whole == 0xff) as u8,
    }
}

/// Whether some block of order `k` is free.
#[inline]
pub(super) fn any(words: &impl Bits, k: u8) -> bool {
    if k >= 6 {
        return fold_whole(whole_words(words), k) != 0;
    }
    (0..8).fold(0, |found, i| found | blocks(!words.word(i), k)) != 0
}

/// The class of a line that was at most `limit`; -1 if nothing is free.
#[inline]
pub(super) fn class_at_most(words: &impl Bits, limit: i8) -> i8 {
    // A copy in registers: each step down looks at all of it.
    let words: Words = core::array::from_fn(|i| words.word(i));
    let mut class = limit;
    while class >= 0 && !any(&words, class as u8) {
        class -= 1;
    }
    class
}

/// Takes a block of order `k` from a smallest free block of a line of `class`; returns its place and the class that is left.
#[inline]
pub(super) fn take_best(bits: &Line, k: u8, class: i8) -> Option<(u32, i8)> {
    if class == WHOLE as i8 {
        bits.clear(0, k);
        let left = if k == WHOLE { -1 } else { WHOLE as i8 - 1 };
        return Some((0, left));
    }
    // Which words are whole is looked at once, and only where a block that large is free.
    let whole = if class >= 6 { whole_words(bits) } else { 0 };
    if class == k as i8 && k < 6 {
        return take_exact(bits, k);
    }
    let place = if k < 6
        && let Some(place) = best_in_words(bits, k)
    {
        place
    } else {
        best_of_whole(whole, k.max(6))?
    };
    bits.clear(place, k);
    let left = if class >= 6 {
        fold_whole(whole & !words_of(place, k), class as u8) != 0
    } else {
        any(bits, class as u8)
    };
    let class = if left {
        class
    } else if class > k as i8 {
        // A block of that class was split, which best fit does only if there is no smaller one: its upper half is left.
        class - 1
    } else {
        class_at_most(bits, class - 1)
    };
    Some((place, class))
}

/// [`take_best`] where no free block is larger than order `k < 6`: all that fit are as good, and one look tells of the others.
#[inline]
fn take_exact(bits: &Line, k: u8) -> Option<(u32, i8)> {
    let found = words_with(bits, k);
    if found == 0 {
        return None;
    }
    let i = found.trailing_zeros();
    let word = bits.word(i as usize);
    let place = blocks(!word, k).trailing_zeros() + 1 - (1 << k);
    let word = word & !((!0 >> (64 - (1u32 << k))) << place);
    bits.set_word(i as usize, word);
    let left = found & (found - 1) != 0 || blocks(!word, k) != 0;
    let class = if left {
        k as i8
    } else {
        class_at_most(bits, k as i8 - 1)
    };
    Some((i * 64 + place, class))
}

/// The words in which a block of order `k < 6` is free, a bit each. All are looked at: where one is cannot be predicted,
/// and a wrong guess costs more.
#[inline]
fn words_with(words: &impl Bits, k: u8) -> u8 {
    let mut found = 0;
    for i in 0..8 {
        found |= u8::from(blocks(!words.word(i), k) != 0) << i;
    }
    found
}

/// The words that a block of order `k` touches, a bit each.
#[inline]
const fn words_of(place: u32, k: u8) -> u8 {
    let words = if k <= 6 { 1 } else { 1 << (k - 6) };
    (((1u32 << words) - 1) << (place >> 6)) as u8
}

/// The lowest of the smallest free blocks of order `from >= 6`, by the words that are whole.
#[inline]
fn best_of_whole(whole: u8, from: u8) -> Option<u32> {
    for j in from..WHOLE {
        let blocks = fold_whole(whole, j);
        let pairs = fold_whole(whole, j + 1);
        let single = blocks & !(pairs | pairs << (1 << (j - 6)));
        if single != 0 {
            return Some(single.trailing_zeros() * 64);
        }
    }
    (whole == 0xff).then_some(0)
}

/// The free blocks of order `k <= 6` of a word, each as its lowest bit.
#[inline]
pub(super) fn fold(word: u64, k: u8) -> u64 {
    let mut found = word;
    for j in 0..k {
        found &= found >> (1 << j);
    }
    found & LOW[k as usize]
}

/// The lowest block of order `k` inside a smallest free block that is smaller than a word and holds one. Whole words have
/// none, so they cost a comparison each.
fn best_in_words(words: &impl Bits, k: u8) -> Option<u32> {
    let mut smallest = (6, 0);
    for i in 0..8 {
        let word = words.word(i);
        if word == !0 || word == 0 {
            continue;
        }
        let mut blocks = fold(word, k);
        for j in k..6 {
            if blocks == 0 || j >= smallest.0 {
                break;
            }
            let pairs = blocks & (blocks >> (1 << j)) & LOW[j as usize + 1];
            let single = blocks & !(pairs | pairs << (1 << j));
            if single != 0 {
                smallest = (j, i as u32 * 64 + single.trailing_zeros());
                break;
            }
            blocks = pairs;
        }
        if smallest.0 == k {
            break;
        }
    }
    (smallest.0 < 6).then_some(smallest.1)
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
    let whole = whole_words(words);
    for j in 7..=WHOLE {
        above[j as usize] = u64::from(fold_whole(whole, j).count_ones());
    }
    for k in 0..10 {
        counts[k] += above[k] - 2 * above[k + 1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        *state >> 20
    }

    /// Random bits with long free runs, so that high orders occur.
    fn sample(state: &mut u64) -> Words {
        let mut words = ALL_FREE;
        for _ in 0..random(state) % 40 {
            let place = (random(state) % 512) as usize;
            words[place / 64] &= !(1 << (place % 64));
        }
        words
    }

    fn naive_free(words: &Words, place: u32, k: u8) -> bool {
        (place..place + (1 << k)).all(|p| words[p as usize / 64] >> (p % 64) & 1 == 1)
    }

    fn naive_blocks(words: &Words, k: u8) -> impl Iterator<Item = u32> {
        (0..512u32)
            .step_by(1 << k)
            .filter(move |&p| naive_free(words, p, k))
    }

    #[test]
    fn the_word_tricks_agree_with_a_walk_over_every_aligned_block() {
        let mut state = 1;
        for _ in 0..3000 {
            let words = sample(&mut state);
            let mut class = -1;
            for k in 0..=WHOLE {
                let expected = naive_blocks(&words, k).next();
                assert_eq!(any(&words, k), expected.is_some());
                if expected.is_some() {
                    class = k as i8;
                }
            }
            assert_eq!(class_at_most(&words, 9), class);
        }
    }

    #[test]
    fn the_best_block_lies_in_the_smallest_free_block_that_holds_it() {
        let mut state = 2;
        let size_around = |words: &Words, place: u32| {
            (0..=WHOLE)
                .rev()
                .find(|&k| naive_free(words, place & !((1 << k) - 1), k))
        };
        for _ in 0..2000 {
            let words = sample(&mut state);
            for k in 0..=WHOLE {
                let smallest = naive_blocks(&words, k)
                    .map(|p| (size_around(&words, p), p))
                    .min();
                let line = Line::default();
                line.store(&words);
                let taken = take_best(&line, k, class_at_most(&words, WHOLE as i8));
                assert_eq!(taken.map(|(p, _)| p), smallest.map(|(_, p)| p), "order {k}");
                if let Some((place, class)) = taken {
                    assert!(line.is_taken(place, k));
                    assert_eq!(class, class_at_most(&line, WHOLE as i8));
                }
            }
        }
    }

    #[test]
    fn a_class_kept_step_by_step_equals_the_class_computed_afresh() {
        let mut state = 3;
        let line = Line::default();
        let mut class = -1;
        for _ in 0..20000 {
            let k = (random(&mut state) % 10) as u8;
            let place = (random(&mut state) % 512) as u32 & !((1 << k) - 1);
            if line.is_taken(place, k) {
                line.set(place, k);
                class = line.class_after_free(place, k, class);
            } else if line.is_free(place, k) {
                line.clear(place, k);
                class = class_at_most(&line.load(), class);
            }
            assert_eq!(class, class_at_most(&line.load(), 9));
        }
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
