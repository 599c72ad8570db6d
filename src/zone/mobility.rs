//! What the frames of a line may be used for.
//!
//! Owns: [`Mobility`], the fallback order.
//! Invariants: the first [`Mobility::PCP`] kinds are the ones that pagesets keep lists for, and the ones that lend to each other.
//! Lock ranks: none.
//! Used by: zone, pageset, alloc.

use core::fmt;

/// Who may use the frames of a pageblock (a line of 512 frames).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Mobility {
    /// Contents that stay where they are.
    Unmovable,
    /// Contents that can be migrated. Memory starts as this.
    Movable,
    /// Contents that stay where they are, but can be dropped.
    Reclaimable,
    /// Kept for blocks that may not wait for reclaim.
    HighAtomic,
    /// Kept for contiguous areas; lent to movable requests meanwhile.
    Cma,
    /// Nothing is given from it: its frames are being collected.
    Isolate,
}

impl Mobility {
    /// Number of kinds that pagesets keep lists for; they are the first ones.
    pub const PCP: usize = 3;
    /// Number of kinds.
    pub const COUNT: usize = 6;
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Unmovable,
        Self::Movable,
        Self::Reclaimable,
        Self::HighAtomic,
        Self::Cma,
        Self::Isolate,
    ];

    /// Whether a wholly free line of this kind may serve, and be joined with, the others for which this holds.
    #[inline]
    #[must_use]
    pub const fn is_mergeable(self) -> bool {
        (self as usize) < Self::PCP
    }

    /// Where to look when this kind has nothing, nearest in life time first.
    #[must_use]
    pub const fn fallbacks(self) -> &'static [Self] {
        match self {
            Self::Unmovable => &[Self::Reclaimable, Self::Movable],
            Self::Movable => &[Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => &[Self::Unmovable, Self::Movable],
            Self::HighAtomic | Self::Cma | Self::Isolate => &[],
        }
    }

    /// The kind with number `n`; numbers above the last give `Isolate`.
    #[inline]
    pub(crate) const fn from_bits(n: u32) -> Self {
        match n {
            0 => Self::Unmovable,
            1 => Self::Movable,
            2 => Self::Reclaimable,
            3 => Self::HighAtomic,
            4 => Self::Cma,
            _ => Self::Isolate,
        }
    }
}

impl fmt::Display for Mobility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
            Self::HighAtomic => "HighAtomic",
            Self::Cma => "CMA",
            Self::Isolate => "Isolate",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_number_and_comes_back_from_it() {
        for (n, kind) in Mobility::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, n);
            assert_eq!(Mobility::from_bits(n as u32), kind);
        }
    }

    #[test]
    fn only_the_pageset_kinds_lend_to_each_other() {
        for kind in Mobility::ALL {
            assert_eq!(kind.is_mergeable(), !kind.fallbacks().is_empty());
            for other in kind.fallbacks() {
                assert!(other.is_mergeable() && *other != kind);
            }
        }
    }
}
