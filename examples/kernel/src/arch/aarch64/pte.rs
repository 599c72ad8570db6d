//! Entries of page tables: four levels of 512, Arm ARM D8.3. Bit 0 says that the hardware reads the rest.
//!
//! A clean page is read-only with the dirty-bit modifier set: hardware that manages dirty state makes it writable at the first
//! write; other hardware faults, and the fault does it.

use framekeeper::Pfn;

const VALID: u64 = 1;
/// In the last level, a page; above it, a table.
const TABLE: u64 = 1 << 1;
const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 3 << 8;
const ACCESSED: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
const DIRTY_MODIFIER: u64 = 1 << 51;
const NEVER_EXECUTE: u64 = 3 << 53;
const FRAME: u64 = 0x0000_ffff_ffff_f000;

/// An entry that names the table of the next level.
pub fn table(pfn: Pfn) -> u64 {
    pfn.0 << 12 | VALID | TABLE
}

/// A writable page, mapped by an entry of a level, used a moment ago, clean.
pub fn page(pfn: Pfn, level: u32) -> u64 {
    let attributes = INNER_SHAREABLE | NOT_GLOBAL | DIRTY_MODIFIER | NEVER_EXECUTE;
    let size = if level > 1 { 0 } else { TABLE };
    pfn.0 << 12 | VALID | size | READ_ONLY | ACCESSED | attributes
}

/// Whether a present entry above the last level names a table, not a block.
pub fn is_table(entry: u64) -> bool {
    entry & TABLE != 0
}

pub fn is_present(entry: u64) -> bool {
    entry & VALID != 0
}

pub fn pfn(entry: u64) -> Pfn {
    Pfn((entry & FRAME) >> 12)
}

pub fn is_accessed(entry: u64) -> bool {
    entry & ACCESSED != 0
}

pub fn is_dirty(entry: u64) -> bool {
    entry & READ_ONLY == 0
}

/// The same, not used since.
pub fn old(entry: u64) -> u64 {
    entry & !ACCESSED
}

/// The same, written to.
pub fn dirty(entry: u64) -> u64 {
    touched(entry, true)
}

/// What a fault at a present entry needs: the bits that hardware does not set.
pub fn touched(entry: u64, write: bool) -> u64 {
    let clear = if write { READ_ONLY } else { 0 };
    (entry | ACCESSED) & !clear
}
