//! Names of pages: in a folio's word, in an entry, as an address.
//!
//! An entry is empty, names a table or a frame, says in which slot the page is (bit 1), or is moving (bit 2): claimed by one CPU
//! that brings the page in, takes it away or splits it, for which others wait.

use framekeeper::{Backing, Order, Pfn};

use crate::arch::{self, pte};
use crate::disk::Slot;
use crate::space;

/// Where the areas of a space start, 64 GiB apart.
const START: u64 = 0x40_0000_0000;
const AREA_SHIFT: u32 = 36;
/// Bits of a page's number within its area: 32 GiB.
const NUMBER_BITS: u32 = 23;
const SLOT_AT: u32 = 25;
const SLOT_BITS: u32 = 23;
const SPACE_AT: u32 = 48;
const SWAPPED: u64 = 1 << 1;
const MOVING: u64 = 1 << 2;
const IN_ENTRY: u32 = 12;
/// Bits of an address that a level of tables takes.
const LEVEL_BITS: u32 = 9;

/// The parts of a space: what their pages are, and how large a mapping may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Area {
    /// Anonymous pages.
    Anon,
    /// Pages of the space's file.
    File,
    /// Anonymous, in 2 MiB where memory has them in one piece.
    Huge,
    /// Anonymous, in 1 GiB.
    Giant,
}

/// A page of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    pub space: u32,
    pub area: Area,
    /// Number within its area.
    pub number: u32,
}

/// What a folio's word holds: the reverse map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// The folio's first page.
    pub page: Page,
    /// Where a copy of the contents is, or was before they were changed. A page of a file keeps its place.
    pub slot: Option<Slot>,
}

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Empty,
    Table,
    Present,
    Swapped(Slot),
    Moving,
}

impl Area {
    pub const ALL: [Self; 4] = [Self::Anon, Self::File, Self::Huge, Self::Giant];

    /// The highest level of tables whose entries may map a page of it.
    pub fn level(self) -> u32 {
        match self {
            Self::Anon | Self::File => 1,
            Self::Huge => 2,
            Self::Giant => 3,
        }
    }

    pub fn backing(self) -> Backing {
        match self {
            Self::File => Backing::File,
            _ => Backing::Anon,
        }
    }
}

/// The size of what an entry of a level maps.
pub fn order_at(level: u32) -> Order {
    Order::new((LEVEL_BITS * (level - 1)) as u8).expect("an entry of the first three levels")
}

/// The level whose entries map folios of an order.
pub fn level_of(order: Order) -> u32 {
    u32::from(order.get()) / LEVEL_BITS + 1
}

impl Page {
    /// The page at an address of the space that this CPU sees.
    pub fn at(address: u64) -> Option<Self> {
        Self::of(space::current()?, address)
    }

    /// The page at an address of a space.
    pub fn of(space: u32, address: u64) -> Option<Self> {
        let offset = address.checked_sub(START)?;
        let area = *Area::ALL.get((offset >> AREA_SHIFT) as usize)?;
        let number = (offset & ((1 << AREA_SHIFT) - 1)) >> 12;
        (number < 1 << NUMBER_BITS).then_some(Self {
            space,
            area,
            number: number as u32,
        })
    }

    pub fn address(self) -> u64 {
        START + ((self.area as u64) << AREA_SHIFT) + (u64::from(self.number) << 12)
    }

    /// The first page of the mapping of a level that this one would be in.
    pub fn head(self, level: u32) -> Self {
        let mask = order_at(level).frames() as u32 - 1;
        Self {
            number: self.number & !mask,
            ..self
        }
    }

    pub fn plus(self, pages: u64) -> Self {
        Self {
            number: self.number + pages as u32,
            ..self
        }
    }
}

impl Word {
    pub fn bits(self) -> u64 {
        let slot = self.slot.map_or(0, |slot| u64::from(slot.0) + 1);
        let page = u64::from(self.page.number) | (self.page.area as u64) << NUMBER_BITS;
        u64::from(self.page.space) << SPACE_AT | slot << SLOT_AT | page
    }

    pub fn of(bits: u64) -> Self {
        let page = Page {
            space: (bits >> SPACE_AT) as u32,
            area: Area::ALL[(bits >> NUMBER_BITS) as usize % Area::ALL.len()],
            number: (bits & ((1 << NUMBER_BITS) - 1)) as u32,
        };
        let slot = (bits >> SLOT_AT & ((1 << SLOT_BITS) - 1)) as u32;
        Self {
            page,
            slot: slot.checked_sub(1).map(Slot),
        }
    }
}

impl State {
    /// What an entry of a table of `level` says; the last level is 1.
    pub fn of(entry: u64, level: u32) -> Self {
        if pte::is_present(entry) {
            match level > 1 && pte::is_table(entry) {
                true => Self::Table,
                false => Self::Present,
            }
        } else if entry & MOVING != 0 {
            Self::Moving
        } else if entry & SWAPPED != 0 {
            Self::Swapped(Slot((entry >> IN_ENTRY) as u32))
        } else {
            Self::Empty
        }
    }
}

/// The entry of a page that is in `slot`, or of one that has never been written.
pub fn absent(slot: Option<Slot>) -> u64 {
    slot.map_or(0, |slot| u64::from(slot.0) << IN_ENTRY | SWAPPED)
}

/// The entry of a page that arrives, or that leaves the frame.
pub fn moving(from: Option<Pfn>) -> u64 {
    from.map_or(0, |pfn| pfn.0 << IN_ENTRY) | MOVING
}

/// Lets the CPU forget what it knows of a page, or of the large mapping that it is in.
pub fn forget(page: Page) {
    arch::flush_page(page.address(), || space::viewers(page.space));
}
