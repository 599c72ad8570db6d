//! Why the boot map or the metadata's storage refuses.
//!
//! Owns: [`MapError`], [`StorageError`], [`StorageFull`], [`MemoryError`].
//! Invariants: an error names the region, the request or the capacity; everything is as it was.
//! Lock ranks: none. Used by: map.rs, carve.rs, and constructors that pass it on.

use core::fmt;

use super::map::{PHYS_LIMIT, SECTION_BYTES};
use crate::addr::PhysAddr;

/// Which of the two lists of a [`BootMap`](super::BootMap).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Memory that exists and may be given out unless it is reserved.
    Usable,
    /// Memory that is taken.
    Reserved,
    /// Memory that may be added later.
    Hotplug,
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
    /// Memory that may be added later is not made of whole sections of [`SECTION_BYTES`], or there is memory already.
    NotSections {
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
            Self::Hotplug => "hot-pluggable",
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
            Self::NotSections { base, bytes } => write!(
                f,
                "{bytes} bytes at {base} are not whole sections of {SECTION_BYTES} bytes without memory"
            ),
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

/// Why a range cannot be storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StorageError {
    /// The range ends past the last address.
    Overflow {
        /// First byte of the range.
        start: PhysAddr,
        /// Its length.
        bytes: u64,
    },
    /// The direct map has no pointer for the range, or wraps within it: choose memory that is mapped.
    Unmapped {
        /// First byte of the range.
        start: PhysAddr,
    },
}

/// The metadata needs more bytes than the storage has. Give more, or configure fewer CPUs, groups or shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StorageFull {
    /// Bytes needed so far, alignment included.
    pub needed: usize,
    /// Bytes there are.
    pub available: usize,
}

/// Why an instance's metadata could not be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MemoryError {
    /// The map has no free memory, or no free range that is long enough for the metadata.
    Map(MapError),
    /// The metadata would lie where the direct map does not reach.
    Storage(StorageError),
    /// The storage is too small.
    Full(StorageFull),
    /// The storage lies in memory that the map says is free to give out: reserve it in the map.
    StorageInUse {
        /// First byte of the storage.
        start: PhysAddr,
    },
}

impl From<StorageFull> for MemoryError {
    fn from(error: StorageFull) -> Self {
        Self::Full(error)
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow { start, bytes } => write!(
                f,
                "storage of {bytes} bytes at {start} ends past the last address"
            ),
            Self::Unmapped { start } => write!(
                f,
                "the direct map does not cover storage at {start}: choose mapped memory"
            ),
        }
    }
}

impl fmt::Display for StorageFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "metadata needs {} bytes, the storage has {}: give more storage or configure less",
            self.needed, self.available
        )
    }
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map(error) => fmt::Display::fmt(error, f),
            Self::Storage(error) => fmt::Display::fmt(error, f),
            Self::Full(error) => fmt::Display::fmt(error, f),
            Self::StorageInUse { start } => write!(
                f,
                "the storage at {start} is free memory in the boot map: reserve it there"
            ),
        }
    }
}

impl core::error::Error for StorageError {}
impl core::error::Error for StorageFull {}
impl core::error::Error for MemoryError {}
