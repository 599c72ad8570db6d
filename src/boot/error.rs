//! Why the boot map refuses.
//!
//! Owns: [`MapError`]. Invariants: an error names the region, the request or the capacity; the map is as it was.
//! Lock ranks: none. Used by: map.rs, and constructors that pass it on.

use core::fmt;

use super::map::PHYS_LIMIT;
use crate::addr::PhysAddr;

/// Which of the two lists of a [`BootMap`](super::BootMap).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Memory that exists and may be given out unless it is reserved.
    Usable,
    /// Memory that is taken.
    Reserved,
}

/// Why a call on a [`BootMap`](super::BootMap) was refused. The map is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MapError {
    /// The region's `base + bytes` is above 2^64.
    Overflow {
        /// First byte of the region.
        base: PhysAddr,
        /// Its length.
        bytes: u64,
    },
    /// The region ends above [`PHYS_LIMIT`].
    BeyondLimit {
        /// First byte of the region.
        base: PhysAddr,
        /// Its length.
        bytes: u64,
    },
    /// More regions than the map holds.
    TooManyRegions {
        /// The list that is full.
        kind: RegionKind,
        /// How many regions it holds: the map's `N`.
        capacity: usize,
    },
    /// The region that shall be freed is not reserved, or only in part.
    NotReserved {
        /// First byte of the region.
        base: PhysAddr,
        /// Its length.
        bytes: u64,
    },
    /// An early allocation of no bytes, or with an alignment that is not a power of two.
    BadRequest {
        /// Bytes asked for.
        bytes: u64,
        /// Alignment asked for, in bytes.
        align: u64,
    },
    /// No free range is long enough for an early allocation.
    NoSpace {
        /// Bytes asked for.
        bytes: u64,
        /// Alignment asked for, in bytes.
        align: u64,
    },
    /// The map has no free frame: no usable regions, only empty ones, or all of them reserved.
    Empty,
}

impl fmt::Display for RegionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Usable => "usable",
            Self::Reserved => "reserved",
        })
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow { base, bytes } => {
                write!(f, "region of {bytes} bytes at {base} ends above 2^64")
            }
            Self::BeyondLimit { base, bytes } => write!(
                f,
                "region of {bytes} bytes at {base} ends above the physical limit, {:#x}",
                PHYS_LIMIT.0
            ),
            Self::TooManyRegions { kind, capacity } => write!(
                f,
                "more than {capacity} {kind} regions: give the boot map a larger N"
            ),
            Self::NotReserved { base, bytes } => {
                write!(f, "region of {bytes} bytes at {base} is not all reserved")
            }
            Self::BadRequest { bytes, align } => write!(
                f,
                "cannot take {bytes} bytes aligned to {align}: ask for at least 1 byte and a power of two"
            ),
            Self::NoSpace { bytes, align } => {
                write!(f, "no free range holds {bytes} bytes aligned to {align}")
            }
            Self::Empty => write!(
                f,
                "the boot map has no free frame: add usable memory that is not reserved"
            ),
        }
    }
}

impl core::error::Error for MapError {}
