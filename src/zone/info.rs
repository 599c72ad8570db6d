//! What a shard knows of a line beside its bits: one word.
//!
//! Owns: [`Info`] and its packing; [`Fault`].
//! Invariants: `free` counts the line's free frames; at 512 the bits are not kept (they are all zero), so that a whole
//! line is given and taken without touching them. `class` is the order of the largest free aligned block, -1 if none.
//! Lock ranks: none of its own; written under the lock of the shard, read by anyone (one load, may be stale).
//! Used by: shard, zone.

use super::mobility::Mobility;
use super::shard::{CLASSES, SETS};

/// Free count, class, kind and marks of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Info(pub(super) u32);

const FREE: u32 = 0x3ff;
const CLASS: u32 = 0xf << CLASS_AT;
const CLASS_AT: u32 = 10;
const KIND: u32 = 7 << KIND_AT;
const KIND_AT: u32 = 14;
const ISOLATED: u32 = 1 << 17;
const ABSENT: u32 = 1 << 18;
const REPORTED: u32 = 1 << 19;
const HOLES_AT: u32 = 20;

/// Largest number of hole records that an [`Info`] can name; number 0 means none.
pub(super) const MAX_HOLES: usize = (1 << (32 - HOLES_AT)) - 1;

impl Info {
    /// A line of which no frame is managed.
    pub(super) const ABSENT: Self = Self(ABSENT | (Mobility::Movable as u32) << KIND_AT);

    /// Number of free frames.
    #[inline]
    pub(super) const fn free(self) -> u32 {
        self.0 & FREE
    }

    /// Whether all 512 frames are free. Count and class must agree: with one of them corrupt, frames whose bits are gone
    /// would be given again.
    #[inline]
    pub(super) const fn is_whole(self) -> bool {
        self.0 & (FREE | CLASS) == 512 | 10 << CLASS_AT
    }

    /// Order of the largest free block, -1 if none.
    #[inline]
    pub(super) const fn class(self) -> i8 {
        ((self.0 & CLASS) >> CLASS_AT) as i8 - 1
    }

    /// Number of the kind to which the line belongs, even while it is isolated.
    #[inline]
    pub(super) const fn kind_number(self) -> u32 {
        (self.0 & KIND) >> KIND_AT
    }

    /// The kind to which the line belongs, even while it is isolated.
    #[inline]
    pub(super) const fn kind(self) -> Mobility {
        Mobility::from_bits(self.kind_number())
    }

    /// The kind for which frames of the line may be used now.
    #[inline]
    pub(super) const fn mobility(self) -> Mobility {
        if self.is_isolated() {
            Mobility::Isolate
        } else {
            self.kind()
        }
    }

    #[inline]
    pub(super) const fn is_isolated(self) -> bool {
        self.0 & ISOLATED != 0
    }

    /// Whether no frame of the line is managed.
    #[inline]
    pub(super) const fn is_absent(self) -> bool {
        self.0 & ABSENT != 0
    }

    /// Whether the hypervisor knows that the line is free.
    #[inline]
    pub(super) const fn is_reported(self) -> bool {
        self.0 & REPORTED != 0
    }

    /// Number of the record that says which frames are absent or bad; 0 if none is.
    #[inline]
    pub(super) const fn holes(self) -> usize {
        (self.0 >> HOLES_AT) as usize
    }

    /// Whether every frame of the line is managed and good.
    #[inline]
    pub(super) const fn is_plain(self) -> bool {
        self.0 & (ABSENT | !0 << HOLES_AT) == 0
    }

    /// Whether the line is wholly free and belongs to the pool from which every mergeable kind is served.
    #[inline]
    pub(super) const fn is_pooled(self) -> bool {
        self.is_whole() && self.kind().is_mergeable() && !self.is_isolated()
    }

    /// Whether its frames count simply as free: of a kind that lends to others, and not isolated.
    #[inline]
    pub(super) const fn is_lending(self) -> bool {
        self.0 & (KIND | ISOLATED) < (Mobility::PCP as u32) << KIND_AT
    }

    /// Whether it is of a kind that lends to others, isolated or not.
    pub(super) const fn is_of_lending_kind(self) -> bool {
        self.kind_number() < Mobility::PCP as u32
    }

    /// Whether some of its frames are free, but not all, and it serves `kind` now.
    #[inline]
    pub(super) const fn is_partly_free_of(self, kind: Mobility) -> bool {
        self.0 & (KIND | ISOLATED) == (kind as u32) << KIND_AT
            && self.free() != 0
            && !self.is_whole()
    }

    /// Whether it is of a lending kind, not isolated, and not wholly free: then its set follows from its kind and class.
    #[inline]
    pub(super) const fn is_ordinary(self) -> bool {
        self.is_lending() && !self.is_whole()
    }

    /// The set of lines to which it belongs, by kind and class; none if nothing can be taken from it there.
    #[inline]
    pub(super) const fn set(self) -> Option<u32> {
        let (kind, class) = (self.kind_number(), self.class());
        // Numbers that no kind or class has mean memory corruption: nothing is taken from such a line.
        let known = kind < SETS / CLASSES && 0 <= class && class < CLASSES as i8;
        if !known || self.is_isolated() || self.is_pooled() {
            None
        } else {
            Some(kind * CLASSES + class as u32)
        }
    }

    /// With another count and class.
    #[inline]
    pub(super) const fn with(self, free: u32, class: i8) -> Self {
        Self((self.0 & !(FREE | CLASS | REPORTED)) | free | ((class + 1) as u32) << CLASS_AT)
    }

    /// With another kind.
    #[inline]
    pub(super) const fn with_kind(self, kind: Mobility) -> Self {
        Self((self.0 & !KIND) | (kind as u32) << KIND_AT)
    }

    /// Isolated or not; the kind stays.
    pub(super) const fn with_isolated(self, isolated: Isolated) -> Self {
        match isolated {
            Isolated::Yes => Self(self.0 | ISOLATED),
            Isolated::No => Self(self.0 & !ISOLATED),
        }
    }

    /// Some frame is managed, others may be named by a record.
    pub(super) const fn present(self, holes: usize) -> Self {
        Self((self.0 & !(ABSENT | !0 << HOLES_AT)) | (holes as u32) << HOLES_AT)
    }

    /// No frame is managed; the record of bad frames stays.
    pub(super) const fn absent(self) -> Self {
        Self(self.0 | ABSENT)
    }

    /// Known to the hypervisor as free, until taken.
    pub(super) const fn reported(self) -> Self {
        Self(self.0 | REPORTED)
    }
}

/// Whether a line is set apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Isolated {
    /// It is.
    Yes,
    /// It is not.
    No,
}

/// Why a block cannot be given back. Nothing was changed, and the frames stay as they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A frame of it is not in the zone.
    Outside,
    /// Its first frame is not aligned to its order.
    Unaligned,
    /// A frame of it is not managed: a hole, or memory that is not online.
    Unmanaged,
    /// A frame of it is free already.
    AlreadyFree,
}

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Outside => "the block is not in the zone",
            Self::Unaligned => "the block is not aligned to its order",
            Self::Unmanaged => "a frame of the block is not managed",
            Self::AlreadyFree => "a frame of the block is free already",
        })
    }
}

impl core::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_word_do_not_touch_each_other() {
        for kind in Mobility::ALL.into_iter().take(5) {
            for (free, class) in [(0, -1), (1, 0), (511, 8), (512, 9)] {
                let info = Info::ABSENT
                    .present(MAX_HOLES)
                    .with_kind(kind)
                    .with(free, class)
                    .with_isolated(Isolated::Yes)
                    .reported();
                assert_eq!(
                    (info.free(), info.class(), info.kind(), info.holes()),
                    (free, class, kind, MAX_HOLES)
                );
                assert_eq!(info.mobility(), Mobility::Isolate);
                assert_eq!(info.with_isolated(Isolated::No).mobility(), kind);
                assert!(!info.is_absent() && info.absent().is_absent());
                assert!(info.is_reported() && !info.with(free, class).is_reported());
            }
        }
    }
}
