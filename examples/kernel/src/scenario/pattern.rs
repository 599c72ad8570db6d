//! What pages hold: every word follows from the page, the word, and the edition of its space.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Failure;
use crate::arch;
use crate::page::Page;

/// Pages that did not hold what was written to them.
static CORRUPT: AtomicU64 = AtomicU64::new(0);

const WORDS: u64 = 512;

/// How much of a page is written and looked at.
#[derive(Clone, Copy)]
pub enum Words {
    All,
    /// One of each cache line.
    Lines,
}

impl Words {
    fn each(self) -> impl Iterator<Item = u64> {
        let step = match self {
            Self::All => 1,
            Self::Lines => 8,
        };
        (0..WORDS).step_by(step)
    }
}

/// Writes a page of the space that this CPU sees.
pub fn write(page: Page, edition: u32, words: Words) {
    let at = page.address() as *mut u64;
    let seed = seed(page, edition);
    for word in words.each() {
        // SAFETY: an address of the space that this CPU sees; the fault brings the page.
        unsafe { at.add(word as usize).write_volatile(value(seed, word)) };
    }
}

/// Compares a page with what was written.
pub fn verify(page: Page, edition: u32, words: Words) {
    let at = page.address() as *const u64;
    let seed = seed(page, edition);
    let mut first = None;
    let mut wrong = 0;
    for word in words.each() {
        // SAFETY: as above.
        let found = unsafe { at.add(word as usize).read_volatile() };
        if found != value(seed, word) {
            wrong += 1;
            first.get_or_insert((word, found));
        }
    }
    if let Some((word, found)) = first {
        CORRUPT.fetch_add(1, Ordering::Relaxed);
        // Whose it would be, if somebody wrote it at this place of a page.
        let other = found.wrapping_mul(INVERSE).wrapping_sub(word);
        crate::console::println!(
            "CPU {}: {page:?} of edition {edition}: {wrong} words are wrong; word {word} is {found:#x}: of space {}, edition {}, \
             area {}, page {}",
            arch::cpu(),
            other >> 56,
            other >> 36 & 0xf_ffff,
            other >> 10 & 3,
            other >> 12 & 0xff_ffff
        );
    }
}

/// Whether any page was wrong so far.
pub fn result() -> Result<(), Failure> {
    match CORRUPT.load(Ordering::Relaxed) {
        0 => Ok(()),
        pages => Err(Failure::Corrupt(pages)),
    }
}

/// Odd, so that it has an inverse modulo 2^64.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const INVERSE: u64 = 0xf1de_83e1_9937_733d;
const _: () = assert!(FACTOR.wrapping_mul(INVERSE) == 1);

fn seed(page: Page, edition: u32) -> u64 {
    let page_of_space = u64::from(page.number) << 2 | page.area as u64;
    u64::from(page.space) << 56 ^ u64::from(edition) << 36 ^ page_of_space << 10
}

fn value(seed: u64, word: u64) -> u64 {
    (seed + word).wrapping_mul(FACTOR)
}
