//! A page's bytes, and the pattern that shows whether they are still the right ones.
//!
//! Bytes are kept as atomics: a frame that two owners got by mistake is then a wrong word that is counted, not undefined behaviour.

use std::sync::atomic::{AtomicU64, Ordering};

/// log2 of a page's bytes.
pub(crate) const PAGE_SHIFT: u32 = 12;
/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 1 << PAGE_SHIFT;
/// Words of a page.
const WORDS: usize = PAGE_BYTES / size_of::<u64>();

/// What a frame or a swap slot holds.
#[repr(C, align(4096))]
pub(crate) struct Page([AtomicU64; WORDS]);

impl Page {
    /// A page of zeros.
    pub(crate) const fn zeroed() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Overwrites every byte with zero.
    pub(crate) fn zero(&self) {
        self.fill(|_| 0);
    }

    /// Copies all of `from`.
    pub(crate) fn copy_from(&self, from: &Self) {
        self.fill(|word| from.0[word].load(Ordering::Relaxed));
    }

    /// Copies the page to `bytes`, in the machine's byte order.
    pub(crate) fn store_to(&self, bytes: &mut [u8; PAGE_BYTES]) {
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(&self.0) {
            *to = word.load(Ordering::Relaxed).to_ne_bytes();
        }
    }

    /// Overwrites the page with `bytes`.
    pub(crate) fn load_from(&self, bytes: &[u8; PAGE_BYTES]) {
        for (word, from) in self.0.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }

    fn fill(&self, value: impl Fn(usize) -> u64) {
        for (i, word) in self.0.iter().enumerate() {
            word.store(value(i), Ordering::Relaxed);
        }
    }
}

/// The contents that every page of a run shall have.
#[derive(Clone, Copy)]
pub(crate) struct Pattern {
    key: u64,
}

/// A word that is not what was written there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    /// Which word of the page.
    pub(crate) word: usize,
    /// What it holds.
    pub(crate) found: u64,
    /// The group, page and word that this value belongs to, if it is the pattern of any.
    pub(crate) origin: (u64, u64, u64),
}

/// Bits of a word's place that number the word, and the page.
const WORD_BITS: u32 = WORDS.ilog2();
const PAGE_BITS: u32 = 31;

impl Pattern {
    /// A run's pattern.
    pub(crate) fn new(seed: u64) -> Self {
        Self { key: mix(seed) }
    }

    /// Writes the pattern of one page of one group.
    pub(crate) fn write(self, page: &Page, group: u32, number: u32) {
        let place = place(group, number);
        page.fill(|word| mix((place + word as u64) ^ self.key));
    }

    /// The first word that differs from the page's pattern.
    pub(crate) fn verify(self, page: &Page, group: u32, number: u32) -> Result<(), Mismatch> {
        let place = place(group, number);
        for (word, found) in page.0.iter().enumerate() {
            let found = found.load(Ordering::Relaxed);
            if found != mix((place + word as u64) ^ self.key) {
                let origin = self.origin(found);
                return Err(Mismatch {
                    word,
                    found,
                    origin,
                });
            }
        }
        Ok(())
    }

    /// Where a value belongs: every value is the pattern of exactly one place.
    fn origin(self, value: u64) -> (u64, u64, u64) {
        let place = unmix(value) ^ self.key;
        let number = place >> WORD_BITS;
        (
            number >> PAGE_BITS,
            number & ((1 << PAGE_BITS) - 1),
            place & (WORDS as u64 - 1),
        )
    }
}

/// The number of a page's first word among all words of all groups.
fn place(group: u32, page: u32) -> u64 {
    ((u64::from(group) << PAGE_BITS) | u64::from(page)) << WORD_BITS
}

/// A bijection that spreads every bit over the word (the finaliser of splitmix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Undoes [`mix`]: each step backwards, with the multipliers' inverses modulo 2^64.
fn unmix(value: u64) -> u64 {
    let value = value ^ (value >> 31) ^ (value >> 62);
    let value = value.wrapping_mul(0x3196_42b2_d24d_8ec3);
    let value = value ^ (value >> 27) ^ (value >> 54);
    let value = value.wrapping_mul(0x96de_1b17_3f11_9089);
    value ^ (value >> 30) ^ (value >> 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_verifies_as_itself_and_as_no_other() {
        let page = Page::zeroed();
        let pattern = Pattern::new(7);
        pattern.write(&page, 3, 4095);
        assert_eq!(pattern.verify(&page, 3, 4095), Ok(()));
        assert!(pattern.verify(&page, 3, 4094).is_err());
        assert!(pattern.verify(&page, 2, 4095).is_err());
        assert!(Pattern::new(8).verify(&page, 3, 4095).is_err());
    }

    #[test]
    fn a_wrong_word_tells_where_it_belongs() {
        let (ours, theirs) = (Page::zeroed(), Page::zeroed());
        let pattern = Pattern::new(1);
        pattern.write(&ours, 5, 6);
        pattern.write(&theirs, 63, 4000);
        let found = theirs.0[17].load(Ordering::Relaxed);
        ours.0[11].store(found, Ordering::Relaxed);
        let expected = Mismatch {
            word: 11,
            found,
            origin: (63, 4000, 17),
        };
        assert_eq!(pattern.verify(&ours, 5, 6), Err(expected));
    }

    #[test]
    fn a_page_survives_the_way_through_bytes_and_copies() {
        let (first, second, third) = (Page::zeroed(), Page::zeroed(), Page::zeroed());
        let pattern = Pattern::new(u64::MAX);
        pattern.write(&first, 0, 0);
        let mut bytes = [0; PAGE_BYTES];
        first.store_to(&mut bytes);
        second.load_from(&bytes);
        third.copy_from(&second);
        assert_eq!(pattern.verify(&third, 0, 0), Ok(()));
        third.zero();
        assert!(third.0.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn unmix_undoes_mix() {
        for value in (0..64).map(|bit| 1 << bit).chain([0, u64::MAX, 12345]) {
            assert_eq!(unmix(mix(value)), value);
        }
    }
}
