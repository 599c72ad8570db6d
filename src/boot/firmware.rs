//! What firmware says of memory, in the formats that boot loaders pass on.
//!
//! Owns: [`Entry`], a range and what it is; readers of E820, PVH and UEFI tables; [`NodeRange`], which node a range is on, from ACPI's
//! SRAT; [`BootMap::add_firmware`].
//! Invariants: bytes in, entries out: a table that is cut off or makes no sense is an error that says where, never a panic. What is not
//! marked usable is reserved.
//! Lock ranks: none. Used by: kernels, before there is an instance.
//!
//! Layouts: E820 and its ACPI 3.0 attributes, ACPI 6.5 section 15; PVH's `hvm_memmap_table_entry`, Xen's start_info.h; UEFI 2.10
//! section 7.2, `EFI_MEMORY_DESCRIPTOR`; SRAT, ACPI 6.5 section 5.2.16.

use core::fmt;

use super::error::MapError;
use super::map::{BootMap, PHYS_LIMIT};
use crate::addr::{NodeId, PhysAddr};

/// What a range of memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// Free from the start.
    Usable,
    /// The boot loader's, or ACPI's tables: free once the kernel has read them
    /// ([`release_reserved`](crate::PageAllocator::release_reserved)).
    Reclaimable,
    /// Memory that is never the kernel's, or no memory.
    Reserved,
}

/// A range of a firmware's table, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// First byte.
    pub base: PhysAddr,
    /// Its length.
    pub bytes: u64,
    /// What it is.
    pub kind: EntryKind,
}

/// A range of memory that is on one node, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRange {
    /// First byte.
    pub base: PhysAddr,
    /// Its length.
    pub bytes: u64,
    /// The node: ACPI's proximity domain.
    pub node: NodeId,
}

/// Why a table is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FirmwareError {
    /// Its entries cannot be so short, or its bytes are no multiple of an entry.
    Stride {
        /// Bytes of the table.
        bytes: usize,
        /// Bytes of an entry, as given.
        stride: usize,
    },
    /// An entry's range ends above 2^64.
    Overflow {
        /// Where the entry begins in the table.
        at: usize,
    },
    /// The table is shorter than it says, or has another signature.
    Table,
    /// A structure in a SRAT says a length that it cannot have.
    Length {
        /// Where the structure begins in the table.
        at: usize,
    },
    /// More proximity domains than there are nodes.
    Domain {
        /// The domain.
        domain: u32,
    },
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The entries of a table, each of `stride` bytes, by what `read` makes of one; `None` for one that says nothing.
fn entries<'t>(
    table: &'t [u8],
    stride: usize,
    least: usize,
    read: impl Fn(&[u8]) -> Option<Entry> + 't,
) -> Result<impl Iterator<Item = Result<Entry, FirmwareError>> + 't, FirmwareError> {
    let bytes = table.len();
    if stride < least || !bytes.is_multiple_of(stride) {
        return Err(FirmwareError::Stride { bytes, stride });
    }
    let entries = (0..).zip(table.chunks_exact(stride));
    Ok(entries.filter_map(move |(i, entry)| {
        let entry = read(entry)?;
        let fits = entry.base.0.checked_add(entry.bytes).is_some();
        Some(match fits {
            true => Ok(entry),
            false => Err(FirmwareError::Overflow { at: i * stride }),
        })
    }))
}

/// The entries of an E820 table, 20 bytes each, or 24 with ACPI 3.0's attributes (an entry whose first attribute bit is clear says
/// nothing).
///
/// # Errors
/// [`FirmwareError`] for a table of another shape; per entry, for one whose range makes no sense.
///
/// ```
/// use framekeeper::boot::firmware::{EntryKind, e820};
/// let mut table = [0; 20];
/// table[8..16].copy_from_slice(&0x9f000u64.to_le_bytes());
/// table[16] = 1;
/// let entry = e820(&table, 20)?.next().unwrap()?;
/// assert_eq!((entry.base.0, entry.bytes, entry.kind), (0, 0x9f000, EntryKind::Usable));
/// # Ok::<(), framekeeper::boot::firmware::FirmwareError>(())
/// ```
pub fn e820(
    table: &[u8],
    stride: usize,
) -> Result<impl Iterator<Item = Result<Entry, FirmwareError>> + '_, FirmwareError> {
    entries(table, stride, 20, |entry| {
        let says_nothing = u32_at(entry, 20).is_some_and(|attributes| attributes & 1 == 0);
        (!says_nothing).then_some(())?;
        range_and_type(entry)
    })
}

/// The entries of the memory map in a PVH start info: 24 bytes each, of E820's types.
///
/// # Errors
/// As [`e820`].
pub fn pvh(
    table: &[u8],
) -> Result<impl Iterator<Item = Result<Entry, FirmwareError>> + '_, FirmwareError> {
    entries(table, 24, 24, range_and_type)
}

/// Base, length, and a type of E820's: 1 is usable, 3 are ACPI's tables.
fn range_and_type(entry: &[u8]) -> Option<Entry> {
    Some(Entry {
        base: PhysAddr(u64_at(entry, 0)?),
        bytes: u64_at(entry, 8)?,
        kind: match u32_at(entry, 16)? {
            1 => EntryKind::Usable,
            3 => EntryKind::Reclaimable,
            _ => EntryKind::Reserved,
        },
    })
}

/// The descriptors of a UEFI memory map, after the boot services were left; `stride` is what the firmware says that a descriptor takes.
///
/// Boot services' memory and conventional memory are usable; the loader's (where the kernel itself may be) and ACPI's tables are
/// reclaimable; memory kept for special purposes (attribute bit 18) is reserved.
///
/// # Errors
/// As [`e820`].
pub fn uefi(
    map: &[u8],
    stride: usize,
) -> Result<impl Iterator<Item = Result<Entry, FirmwareError>> + '_, FirmwareError> {
    const SPECIAL_PURPOSE: u64 = 1 << 18;
    entries(map, stride, 40, |descriptor| {
        let special = u64_at(descriptor, 32)? & SPECIAL_PURPOSE != 0;
        Some(Entry {
            base: PhysAddr(u64_at(descriptor, 8)?),
            // A count that no number of bytes expresses is caught with the sum.
            bytes: u64_at(descriptor, 24)?.saturating_mul(4096),
            kind: match u32_at(descriptor, 0)? {
                _ if special => EntryKind::Reserved,
                3 | 4 | 7 => EntryKind::Usable,
                1 | 2 | 9 => EntryKind::Reclaimable,
                _ => EntryKind::Reserved,
            },
        })
    })
}

/// The memory affinities of an ACPI System Resource Affinity Table, from its first byte on. Those that are not enabled are left out.
///
/// # Errors
/// [`FirmwareError`]: for what is no such table at once, for a structure when it is reached.
pub fn srat(
    table: &[u8],
) -> Result<impl Iterator<Item = Result<NodeRange, FirmwareError>> + '_, FirmwareError> {
    let length = u32_at(table, 4).ok_or(FirmwareError::Table)? as usize;
    if !table.starts_with(b"SRAT") || length < 48 || length > table.len() {
        return Err(FirmwareError::Table);
    }
    let mut at = 48;
    Ok(core::iter::from_fn(move || {
        while at < length {
            let here = at;
            let structure = &table[here..length];
            let size = structure.get(1).copied().map_or(0, usize::from);
            if size < 2 || size > structure.len() {
                at = length;
                return Some(Err(FirmwareError::Length { at: here }));
            }
            at += size;
            match affinity(&structure[..size]) {
                None if structure[0] == 1 && size < 40 => {
                    return Some(Err(FirmwareError::Length { at: here }));
                }
                None => {}
                Some(Ok(range)) if range.base.0.checked_add(range.bytes).is_none() => {
                    return Some(Err(FirmwareError::Overflow { at: here }));
                }
                found => return found,
            }
        }
        None
    }))
}

/// A memory affinity, if the structure is one that is enabled.
fn affinity(structure: &[u8]) -> Option<Result<NodeRange, FirmwareError>> {
    let enabled = structure[0] == 1 && u32_at(structure, 28)? & 1 == 1;
    enabled.then_some(())?;
    let domain = u32_at(structure, 2)?;
    let (base, bytes) = (u64_at(structure, 8)?, u64_at(structure, 16)?);
    Some(match u8::try_from(domain) {
        Ok(node) => Ok(NodeRange {
            base: PhysAddr(base),
            bytes,
            node: NodeId(node),
        }),
        Err(_) => Err(FirmwareError::Domain { domain }),
    })
}

impl<const N: usize> BootMap<N> {
    /// Adds an entry: usable and reclaimable memory, the latter reserved until it is released; all else reserved. What lies in one of
    /// `nodes` is on its node, the rest on node 0.
    ///
    /// # Errors
    /// [`MapError`], as [`add`](Self::add). A part of the entry may have been added.
    pub fn add_firmware(
        &mut self,
        entry: Entry,
        nodes: impl Iterator<Item = NodeRange> + Clone,
    ) -> Result<(), MapError> {
        let start = entry.base.0;
        let end = start.saturating_add(entry.bytes);
        if entry.kind == EntryKind::Reserved {
            // Registers may be above any memory.
            let end = end.min(PHYS_LIMIT.0);
            return self.reserve(entry.base, end.saturating_sub(start));
        }
        let mut at = start;
        while at < end {
            let (node, to) = piece(at, end, nodes.clone());
            self.add(node, PhysAddr(at), to - at)?;
            at = to;
        }
        match entry.kind {
            EntryKind::Reclaimable => self.reserve(entry.base, entry.bytes),
            _ => Ok(()),
        }
    }
}

/// The node at an address, and where what is on it ends: at `end` at the latest.
fn piece(at: u64, end: u64, nodes: impl Iterator<Item = NodeRange>) -> (NodeId, u64) {
    let mut to = end;
    for range in nodes {
        let (first, last) = (range.base.0, range.base.0.saturating_add(range.bytes));
        if (first..last).contains(&at) {
            return (range.node, last.min(end));
        }
        if first > at {
            to = to.min(first);
        }
    }
    (NodeId(0), to)
}

impl fmt::Display for FirmwareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stride { bytes, stride } => write!(
                f,
                "a table of {bytes} bytes has no entries of {stride}: give the length that the boot loader states"
            ),
            Self::Overflow { at } => write!(f, "the entry at byte {at} ends above 2^64"),
            Self::Table => f.write_str("the table is cut off, or is another one"),
            Self::Length { at } => write!(f, "the structure at byte {at} has an impossible length"),
            Self::Domain { domain } => {
                write!(
                    f,
                    "proximity domain {domain} is no node: at most 255 are numbered"
                )
            }
        }
    }
}

impl core::error::Error for FirmwareError {}
