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
    let wrong = words
        .each()
        // SAFETY: as above.
        .filter(|&word| unsafe { at.add(word as usize).read_volatile() } != value(seed, word))
        .count();
    if wrong > 0 {
        CORRUPT.fetch_add(1, Ordering::Relaxed);
        crate::console::println!("CPU {}: {page:?}: {wrong} words are wrong", arch::cpu());
    }
}

/// Whether any page was wrong so far.
pub fn result() -> Result<(), Failure> {
    match CORRUPT.load(Ordering::Relaxed) {
        0 => Ok(()),
        pages => Err(Failure::Corrupt(pages)),
    }
}

fn seed(page: Page, edition: u32) -> u64 {
    let page_of_space = u64::from(page.number) << 2 | page.area as u64;
    u64::from(page.space) << 56 ^ u64::from(edition) << 36 ^ page_of_space << 10
}

fn value(seed: u64, word: u64) -> u64 {
    (seed + word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
