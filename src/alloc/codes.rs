//! Codes that tell which frames were given out as bare numbers, so that a wrong free is an error.
//!
//! Owns: [`Codes`], two bits a frame. Invariants: a frame owned by a linear handle, parked or free has no code; the
//! codes of a block given as a number are its pattern, and whoever clears the pattern's word owns the block.
//! Lock ranks: none; words change by compare-and-swap. Used by: `into_raw`, `try_from_raw`.
//!
//! A word holds the codes of 32 frames, so a block of order 5 or less lies in one word, and one compare-and-swap
//! both checks its exact extent and takes it: of two racing frees one wins. Larger blocks have their order in their
//! first word, as the place of a mark among the tails; the words behind it only tell a tail from a frame never given.

use core::fmt;

use crate::addr::{FrameRange, Order, Pfn};
use crate::boot::{Bump, StorageFull};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Frames per word.
const FRAMES: u64 = 32;
/// A frame without code.
const NONE: u64 = 0;
/// First frame of a block.
const HEAD: u64 = 0b01;
/// Last frame of a block of up to 32; in the first word of a larger one, the mark of its order.
const LAST: u64 = 0b10;
/// Any other frame of a block.
const TAIL: u64 = 0b11;
/// Every frame a tail.
const ALL_TAILS: u64 = u64::MAX;
/// The mark for order 6 stands on frame 16, for order 18 on frame 28. Small blocks end on frames 1, 3, 7, 15 and 31.
const FIRST_MARK: u32 = 16;

/// Two bits for each frame of a span.
#[derive(Debug)]
pub(super) struct Codes {
    /// Number of the first word's first frame, over 32.
    first: u64,
    words: &'static [AtomicU64],
}

/// Why a bare number cannot be freed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RawError {
    /// The instance was configured without codes.
    NoCodes,
    /// No memory of this instance has the number: a hole, or another's frame.
    NoSuchFrame,
    /// The frame was reserved at boot, and never given.
    Reserved,
    /// The frame is not given out as a number: never given, freed already, or owned by a handle.
    NotGiven,
    /// The frame is inside a block, not its first.
    Tail,
    /// A block of another order starts there.
    WrongOrder,
    /// A block of this order cannot start there.
    Misaligned,
}

impl Codes {
    /// No codes yet, for these frames.
    pub(super) fn build(bump: &mut Bump<'_>, frames: FrameRange) -> Result<Self, StorageFull> {
        let first = frames.start().0 / FRAMES;
        let words = frames.end().0.div_ceil(FRAMES) - first;
        let words = bump.slots(words as usize, |_| AtomicU64::new(0))?;
        Ok(Self { first, words })
    }

    /// Marks a block, which the caller owns, as given.
    pub(super) fn give(&self, pfn: Pfn, order: Order) {
        let Some(word) = self.word(pfn) else {
            return;
        };
        for tails in self.tail_words(pfn, order) {
            tails.store(ALL_TAILS, Ordering::Relaxed);
        }
        // Release pairs with the Acquire in `take`: who takes the number sees what its giver did.
        word.fetch_or(pattern(order) << shift(pfn), Ordering::Release);
    }

    /// Takes a block back: exactly one caller succeeds for each time it was given.
    pub(super) fn take(&self, pfn: Pfn, order: Order) -> Result<(), RawError> {
        let word = self.word(pfn).ok_or(RawError::NoSuchFrame)?;
        if !pfn.is_aligned(order) {
            return Err(RawError::Misaligned);
        }
        let pattern = pattern(order) << shift(pfn);
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            match seen >> shift(pfn) & 0b11 {
                NONE => return Err(RawError::NotGiven),
                TAIL | LAST => return Err(RawError::Tail),
                _ if seen & extent(pfn, order) != pattern => return Err(RawError::WrongOrder),
                _ => {}
            }
            let cleared = seen & !pattern;
            match word.compare_exchange_weak(seen, cleared, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // The block is the caller's now, and so are its other words: nobody else finds a head there.
        for tails in self.tail_words(pfn, order) {
            tails.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether none of the block's frames has a code.
    pub(super) fn is_clear(&self, pfn: Pfn, order: Order) -> bool {
        let clear = |word: &AtomicU64, mask: u64| word.load(Ordering::Relaxed) & mask == 0;
        self.word(pfn)
            .is_none_or(|word| clear(word, span(order) << shift(pfn)))
            && self
                .tail_words(pfn, order)
                .all(|word| clear(word, u64::MAX))
    }

    fn word(&self, pfn: Pfn) -> Option<&AtomicU64> {
        let index = (pfn.0 / FRAMES).checked_sub(self.first)?;
        self.words.get(usize::try_from(index).ok()?)
    }

    /// The words of a block but its first.
    fn tail_words(&self, pfn: Pfn, order: Order) -> impl Iterator<Item = &'static AtomicU64> {
        let from = (pfn.0 / FRAMES).saturating_sub(self.first) as usize + 1;
        let count = (order.frames() / FRAMES).saturating_sub(1) as usize;
        self.words.iter().skip(from).take(count)
    }
}

/// Where a frame's code stands in its word.
const fn shift(pfn: Pfn) -> u32 {
    (pfn.0 % FRAMES) as u32 * 2
}

/// The bits of a block's codes in its first word, for a block at the word's start.
const fn span(order: Order) -> u64 {
    match order.get() {
        0..=4 => (1 << (2u32 << order.get())) - 1,
        _ => u64::MAX,
    }
}

/// The codes of a block in its first word, for a block at the word's start.
const fn pattern(order: Order) -> u64 {
    let order = order.get() as u32;
    match order {
        0 => HEAD,
        1..=5 => {
            let frames = 1 << order;
            (ALL_TAILS >> (64 - 2 * frames)) & !0b11 & !(0b01 << (2 * frames - 2)) | HEAD
        }
        _ => {
            let mark = 2 * (FIRST_MARK + order - 6);
            (ALL_TAILS & !0b11 & !(0b01 << mark)) | HEAD
        }
    }
}

/// The bits that must equal the pattern for the block to be exactly this one. An order-0 block at an even number
/// looks at its neighbour as well: if that is a tail, the block is larger.
const fn extent(pfn: Pfn, order: Order) -> u64 {
    let own = span(order) << shift(pfn);
    if order.get() == 0 && pfn.0.is_multiple_of(2) {
        own | 0b10 << (shift(pfn) + 2)
    } else {
        own
    }
}

impl fmt::Display for RawError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCodes => "this instance keeps no codes for bare frame numbers",
            Self::NoSuchFrame => "no memory of this instance has that number",
            Self::Reserved => "the frame was reserved at boot",
            Self::NotGiven => "the frame is not given out as a number, or was freed already",
            Self::Tail => "the frame is inside a block",
            Self::WrongOrder => "a block of another order starts at the frame",
            Self::Misaligned => "a block of this order cannot start at the frame",
        })
    }
}

impl core::error::Error for RawError {}
