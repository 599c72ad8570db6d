//! Where in a line blocks of each order are free, in one word.
//!
//! Owns: [`Shape`], and the choice of a block by it. Invariants: a shape is kept up with each change of a word: of each
//! word it tells the order of the largest free block, and every order that occurs. The class of a line follows from it.
//! Below a word's largest order it may name orders that no longer occur: a free only adds the order that its block has
//! grown to, and the take that looks for what has grown away puts the word right.
//! Lock ranks: none of its own; written only under the lock of the shard that owns the line.
//! Used by: line, shard.
//!
//! To look for a block in eight words, order by order, costs some hundred instructions; the shape answers in one.
//! A request believes a shape only as far as the bits agree: damage to it loses memory, and gives none twice.

use super::line::{Bits, Line, WHOLE, span};

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

/// Order of a word.
const WORD: u8 = 6;
/// The first word's bits of every order in a shape.
const COLUMN: u64 = 0x0001_0101_0101_0101;
/// Where the words that are free as a whole stand.
const WHOLE_AT: u32 = 8 * WORD as u32;

/// For each order 0 to 6 a byte. In it a bit per word: whether a free block of the word that is no part of a larger one
/// has that order, or may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape(pub(super) u64);

impl Shape {
    /// Of a line with no free place.
    pub(super) const NONE: Self = Self(0);
    /// Of a line with no taken place.
    pub(super) const ALL: Self = Self(0xff << WHOLE_AT);

    /// Of a line's words.
    pub(super) fn of(words: &impl Bits) -> Self {
        (0..8).fold(Self::NONE, |shape, i| shape.with_word(i, words.word(i)))
    }

    /// After word `i` became `word`.
    #[inline]
    pub(super) fn with_word(self, i: usize, word: u64) -> Self {
        Self(self.0 & !(COLUMN << (i & 7)) | column(word) << (i & 7))
    }

    /// After all places of word `i` were taken.
    #[inline]
    pub(super) const fn without(self, i: usize) -> Self {
        Self(self.0 & !(COLUMN << (i & 7)))
    }

    /// After the block at `place` became free, which made its word `word`. Returns also the order of the free block,
    /// within the word, that it is part of now.
    #[inline]
    pub(super) const fn risen(self, place: u32, word: u64) -> (Self, u8) {
        let (i, place) = (place >> 6 & 7, place & 63);
        let below = (1 << place) - 1;
        // The nearest taken place on either side, or one beyond the word, ends the aligned run at the highest bit in
        // which it differs from this place. Without a branch, since none could be foretold.
        let under = 63u32.wrapping_sub((!word & below).leading_zeros()) ^ place;
        let over = (!word & !below).trailing_zeros() ^ place;
        let end = if under < over { under } else { over };
        let order = (31 - (end | 1).leading_zeros()) as u8;
        let smaller = if order == WORD { COLUMN << i } else { 0 };
        let grown = 1 << (8 * order as u32 + i);
        (Self(self.0 & !smaller | grown), order)
    }

    /// Whether this is what the line's exact shape may be kept as.
    pub(super) fn stands_for(self, exact: Self) -> bool {
        let top = |shape: Self, i: u32| (shape.0 & COLUMN << i).leading_zeros();
        self.0 & exact.0 == exact.0 && (0..8).all(|i| top(self, i) == top(exact, i))
    }

    /// The words that are free as a whole.
    #[inline]
    pub(super) const fn whole(self) -> u8 {
        (self.0 >> WHOLE_AT) as u8
    }

    /// The words in which a block of order `k <= 6` is free.
    #[inline]
    pub(super) const fn words_with(self, k: u8) -> u8 {
        let mut words = self.0 >> (8 * k as u32);
        words |= words >> 32;
        words |= words >> 16;
        (words | words >> 8) as u8
    }

    /// The order of the largest free block; -1 if nothing is free.
    #[inline]
    pub(super) const fn class(self) -> i8 {
        if self.whole() == 0 {
            return 7 - (self.0.leading_zeros() / 8) as i8;
        }
        let pairs = fold_whole(self.whole(), 7);
        let quarters = fold_whole(self.whole(), 8);
        WORD as i8 + (pairs != 0) as i8 + (quarters != 0) as i8 + (self.whole() == 0xff) as i8
    }

    /// The order of the smallest free block of a line that has one.
    #[inline]
    pub(super) const fn smallest(self) -> u8 {
        let j = (self.0.trailing_zeros() / 8) as u8;
        if j < WORD {
            return j;
        }
        let mut j = WORD;
        while j < WHOLE && single_whole(self.whole(), j) == 0 {
            j += 1;
        }
        j
    }

    /// Takes a block of order `k` from a smallest free block that holds one, the lowest of equals. Returns its place and
    /// the shape that is left; nothing, with nothing changed, if there is none.
    #[inline]
    pub(super) fn take(self, line: &Line, k: u8) -> Option<(u32, Self)> {
        if k >= WORD {
            return self.take_words(line, k);
        }
        let mut shape = self;
        // Each round but the last puts a word right.
        for _ in 0..=8 {
            let fitting = shape.0 & ((1 << WHOLE_AT) - 1) & !0 << (8 * k);
            if fitting == 0 {
                return shape.take_in_whole_word(line, k);
            }
            let at = fitting.trailing_zeros();
            let (j, i) = ((at >> 3) as u8, (at & 7) as usize);
            let word = line.word(i);
            let blocks = fold(word, j);
            let pairs = fold(word, j + 1);
            let found = blocks & !(pairs | pairs << (1 << j));
            if found == 0 {
                shape = shape.with_word(i, word);
                continue;
            }
            let place = found.trailing_zeros();
            let left = word & !(ones(k) << place);
            line.set_word(i, left);
            let last = found & (found - 1) == 0;
            let shape = if last && k == j && k > 0 {
                // A smaller order may be the word's largest now.
                shape.with_word(i, left)
            } else {
                Self(shape.0 & !(u64::from(last) << at) | orders(k, j) << i)
            };
            return Some((i as u32 * 64 + place, shape));
        }
        None
    }

    /// [`take`](Self::take) where no block smaller than a word is free that holds one.
    fn take_in_whole_word(self, line: &Line, k: u8) -> Option<(u32, Self)> {
        let i = self.best_whole(WORD)?;
        if line.word(i) != !0 {
            return None;
        }
        line.set_word(i, !ones(k));
        let shape = Self(self.0 & !(1 << WHOLE_AT << i) | orders(k, WORD) << i);
        Some((i as u32 * 64, shape))
    }

    /// [`take`](Self::take) of whole words.
    fn take_words(self, line: &Line, k: u8) -> Option<(u32, Self)> {
        let place = self.best_whole(k)? as u32 * 64;
        if !line.is_free(place, k) {
            return None;
        }
        line.clear(place, k);
        Some((place, self.without_words(place, k)))
    }

    /// Takes a certain block, which is free.
    pub(super) fn take_at(self, line: &Line, place: u32, k: u8) -> Self {
        line.clear(place, k);
        if k >= WORD {
            return self.without_words(place, k);
        }
        let i = place as usize / 64;
        self.with_word(i, line.word(i))
    }

    /// Frees a block. `None`, with nothing changed, if a place of it is free already.
    #[inline]
    pub(super) fn give(self, line: &Line, place: u32, k: u8) -> Option<Self> {
        let (i, mask) = span(place, k);
        if k > WORD {
            if !line.is_taken(place, k) {
                return None;
            }
            line.set(place, k);
            return Some(Self(self.0 | u64::from(words_of(place, k)) << WHOLE_AT));
        }
        let word = line.word(i);
        if word & mask != 0 {
            return None;
        }
        line.set_word(i, word | mask);
        Some(self.with_word(i, word | mask))
    }

    const fn without_words(self, place: u32, k: u8) -> Self {
        Self(self.0 & !((words_of(place, k) as u64) << WHOLE_AT))
    }

    /// The lowest word of a smallest free block of at least order `k >= 6`.
    fn best_whole(self, k: u8) -> Option<usize> {
        let mut found = (k..=WHOLE).map(|j| single_whole(self.whole(), j));
        Some(found.find(|&found| found != 0)?.trailing_zeros() as usize)
    }
}

/// A block of order `k < 6` at place 0.
#[inline]
const fn ones(k: u8) -> u64 {
    !0 >> (64 - (1u32 << k))
}

/// The first word's bits of the orders `from..to` of a shape.
#[inline]
const fn orders(from: u8, to: u8) -> u64 {
    COLUMN & ((1 << (8 * to)) - (1 << (8 * from)))
}

/// The words that a block of order `k` touches, a bit each.
#[inline]
const fn words_of(place: u32, k: u8) -> u8 {
    let words = if k <= WORD { 1 } else { 1 << (k - WORD) };
    (((1u32 << words) - 1) << (place >> 6)) as u8
}

/// The first word's bits of the shape of a line in which it is `word`. Without a branch, since none could be foretold.
#[inline]
const fn column(word: u64) -> u64 {
    let (mut column, mut blocks) = (0, word);
    let mut j = 0;
    while j < WORD {
        let pairs = blocks & blocks >> (1 << j) & LOW[j as usize + 1];
        column |= ((pairs | pairs << (1 << j) != blocks) as u64) << (8 * j);
        blocks = pairs;
        j += 1;
    }
    column | blocks << WHOLE_AT
}

/// The free blocks of order `k <= 6` of a word, each as its lowest bit.
#[inline]
pub(super) const fn fold(word: u64, k: u8) -> u64 {
    // In each block the sum carries into the highest bit if a lower place is taken, and no further.
    let up = (1 << k) - 1;
    let high = LOW[k as usize] << up;
    let taken = !word;
    let some = (taken & !high).wrapping_add(!high) | taken;
    (!some & high) >> up
}

/// Of a bit per word that is free as a whole, the free blocks of order `k >= 6`, each at its lowest word.
#[inline]
pub(super) const fn fold_whole(whole: u8, k: u8) -> u8 {
    match k {
        6 => whole,
        7 => whole & (whole >> 1) & 0x55,
        8 => {
            let pairs = whole & (whole >> 1) & 0x55;
            pairs & (pairs >> 2) & 0x11
        }
        9 => (whole == 0xff) as u8,
        _ => 0,
    }
}

/// Those of [`fold_whole`] that are no part of a larger free block.
#[inline]
const fn single_whole(whole: u8, k: u8) -> u8 {
    let pairs = fold_whole(whole, k + 1);
    fold_whole(whole, k)
        & !(pairs
            | if k < WHOLE {
                pairs << (1 << (k - WORD))
            } else {
                0
            })
}

#[cfg(test)]
mod tests {
    use super::super::line::tests::{random, sample};
    use super::super::line::{PLACES, Words};
    use super::*;

    fn naive_free(words: &Words, place: u32, k: u8) -> bool {
        (place..place + (1 << k)).all(|p| words[p as usize / 64] >> (p % 64) & 1 == 1)
    }

    fn naive_blocks(words: &Words, k: u8) -> impl Iterator<Item = u32> {
        (0..PLACES)
            .step_by(1 << k)
            .filter(move |&p| naive_free(words, p, k))
    }

    #[test]
    fn the_word_tricks_agree_with_a_walk_over_every_aligned_block() {
        let mut state = 1;
        for _ in 0..3000 {
            let words = sample(&mut state);
            let shape = Shape::of(&words);
            let class = (0..=WHOLE).rfind(|&k| naive_blocks(&words, k).next().is_some());
            assert_eq!(shape.class(), class.map_or(-1, |k| k as i8));
            for k in 0..=WORD {
                let mut found = [0; 8];
                naive_blocks(&words, k).for_each(|p| found[p as usize / 64] |= 1 << (p % 64));
                for (i, found) in found.into_iter().enumerate() {
                    assert_eq!(fold(words[i], k), found, "order {k}");
                    assert_eq!(shape.words_with(k) >> i & 1 == 1, found != 0, "order {k}");
                }
            }
        }
        assert_eq!((Shape::NONE.class(), Shape::ALL.class()), (-1, 9));
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
            let shape = Shape::of(&words);
            let smallest = (0..PLACES).filter_map(|p| size_around(&words, p)).min();
            assert_eq!(smallest.unwrap_or(shape.smallest()), shape.smallest());
            for k in 0..=WHOLE {
                let best = naive_blocks(&words, k)
                    .map(|p| (size_around(&words, p), p))
                    .min();
                let line = Line::default();
                line.store(&words);
                let taken = shape.take(&line, k);
                assert_eq!(taken.map(|(p, _)| p), best.map(|(_, p)| p), "order {k}");
                if let Some((place, left)) = taken {
                    assert!(line.is_taken(place, k));
                    assert_eq!(left, Shape::of(&line));
                }
            }
        }
    }

    #[test]
    fn a_shape_kept_step_by_step_equals_the_shape_computed_afresh() {
        let mut state = 3;
        let line = Line::default();
        let mut shape = Shape::NONE;
        for _ in 0..30000 {
            let k = (random(&mut state) % 10) as u8;
            let place = (random(&mut state) % 512) as u32 & !((1 << k) - 1);
            let before = line.load();
            let taken = line.is_taken(place, k);
            if let Some(left) = shape.give(&line, place, k) {
                assert!(taken);
                shape = left;
            } else if line.is_free(place, k) {
                shape = shape.take_at(&line, place, k);
            } else if let Some((_, left)) = shape.take(&line, k) {
                shape = left;
            } else {
                assert_eq!(line.load(), before);
            }
            assert_eq!(shape, Shape::of(&line));
        }
    }

    #[test]
    fn a_shape_to_which_frees_only_add_keeps_the_largest_order_of_each_word() {
        let mut state = 6;
        let line = Line::default();
        let mut shape = Shape::NONE;
        for _ in 0..100_000 {
            let k = (random(&mut state) % 7) as u8;
            let place = (random(&mut state) % 512) as u32 & !((1 << k) - 1);
            if line.is_taken(place, k) {
                line.set(place, k);
                let (risen, order) = shape.risen(place, line.word(place as usize / 64));
                let grown = |k: u8| line.is_free(place & !((1 << k) - 1), k);
                assert_eq!((0..=WORD).rfind(|&k| grown(k)), Some(order));
                shape = risen;
            } else if random(&mut state).is_multiple_of(4) && line.is_free(place, k) {
                shape = shape.take_at(&line, place, k);
            } else {
                let exact = Shape::of(&line);
                let copy = Line::default();
                copy.store(&line.load());
                let taken = shape.take(&line, k);
                assert_eq!(
                    taken.map(|(place, _)| place),
                    exact.take(&copy, k).map(|(place, _)| place)
                );
                shape = taken.map_or(shape, |(_, left)| left);
            }
            assert!(shape.stands_for(Shape::of(&line)));
            assert_eq!(shape.class(), Shape::of(&line).class());
            for k in 0..=WORD {
                assert_eq!(shape.words_with(k), Shape::of(&line).words_with(k));
            }
        }
    }

    #[test]
    fn a_shape_that_lies_gives_no_place_that_is_taken() {
        let mut state = 5;
        for _ in 0..30000 {
            let words = sample(&mut state);
            let line = Line::default();
            line.store(&words);
            let k = (random(&mut state) % 10) as u8;
            let lie = Shape(Shape::of(&words).0 ^ 1 << (random(&mut state) % 64));
            match lie.take(&line, k) {
                Some((place, _)) => assert!(naive_free(&words, place, k)),
                None => assert_eq!(line.load(), words),
            }
        }
    }
}
