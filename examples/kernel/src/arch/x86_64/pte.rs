//! Entries of page tables: four levels of 512, Intel SDM volume 3, 4.5. Bit 0 says that the hardware reads the rest.

use framekeeper::Pfn;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// Above the last level: a large page, no table.
const LARGE: u64 = 1 << 7;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// An entry that names the table of the next level.
pub fn table(pfn: Pfn) -> u64 {
    pfn.0 << 12 | PRESENT | WRITABLE | ACCESSED
}

/// A writable page, mapped by an entry of a level, used a moment ago. Hardware marks it dirty at the first write.
pub fn page(pfn: Pfn, level: u32) -> u64 {
    let size = if level > 1 { LARGE } else { 0 };
    pfn.0 << 12 | PRESENT | WRITABLE | ACCESSED | size
}

/// Whether a present entry above the last level names a table.
pub fn is_table(entry: u64) -> bool {
    entry & LARGE == 0
}

pub fn is_present(entry: u64) -> bool {
    entry & PRESENT != 0
}

pub fn pfn(entry: u64) -> Pfn {
    Pfn((entry & FRAME) >> 12)
}

pub fn is_accessed(entry: u64) -> bool {
    entry & ACCESSED != 0
}

pub fn is_dirty(entry: u64) -> bool {
    entry & DIRTY != 0
}

/// The same, not used since.
pub fn old(entry: u64) -> u64 {
    entry & !ACCESSED
}

/// The same, written to.
pub fn dirty(entry: u64) -> u64 {
    entry | DIRTY | ACCESSED
}

/// What a fault at a present entry needs: nothing, hardware sets both bits.
pub fn touched(entry: u64, _write: bool) -> u64 {
    entry | ACCESSED
}
