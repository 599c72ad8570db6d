//! Page tables: four levels of 512 entries, in frames that come from the library.
//!
//! A present entry owns a reference to its folio; a table is the space's alone. Entries change by compare-and-swap, or by the
//! CPU that made them moving.

use core::sync::atomic::{AtomicU64, Ordering};

use framekeeper::{AllocError, Folio, Order, Pages, Pfn, Request, StateChange};

use crate::arch::pte;
use crate::page::{State, Word};
use crate::port::{self, Port};
use crate::{disk, evict};

/// The root's level; the last is 1.
pub const LEVELS: u32 = 4;

/// An entry, and the level of the table that it is in.
#[derive(Clone, Copy)]
pub struct Place {
    pub entry: &'static AtomicU64,
    pub level: u32,
}

impl Place {
    pub fn state(self) -> State {
        State::of(self.entry.load(Ordering::Acquire), self.level)
    }
}

/// log2 of the bytes that an entry of a level stands for.
pub fn shift(level: u32) -> u32 {
    12 + 9 * (level - 1)
}

/// The entry that decides about an address: of `level`, or the first one above it that names no table.
pub fn find(root: Pfn, address: u64, level: u32) -> Place {
    let mut place = entry_at(root, address, LEVELS);
    while place.level > level && place.state() == State::Table {
        place = below(place, address);
    }
    place
}

/// The same, where empty entries above `level` get tables. May reclaim.
pub fn find_or_make(root: Pfn, address: u64, level: u32) -> Result<Place, AllocError> {
    let mut place = entry_at(root, address, LEVELS);
    while place.level > level {
        match place.state() {
            State::Table => place = below(place, address),
            State::Empty => {
                let table = new()?;
                // Release: who finds the table sees its zeros. The hardware of another CPU orders by dependency.
                let made = place.entry.compare_exchange(
                    0,
                    pte::table(table),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                if made.is_err() {
                    free(table);
                }
            }
            _ => break,
        }
    }
    Ok(place)
}

fn entry_at(table: Pfn, address: u64, level: u32) -> Place {
    Place {
        entry: &entries(table)[(address >> shift(level)) as usize % 512],
        level,
    }
}

fn below(place: Place, address: u64) -> Place {
    let table = pte::pfn(place.entry.load(Ordering::Acquire));
    entry_at(table, address, place.level - 1)
}

/// The entries of a table.
pub fn entries(table: Pfn) -> &'static [AtomicU64; 512] {
    // SAFETY: frames of tables are used as such alone while a space has them, and only through atomics.
    unsafe { &*disk::frame(table).cast() }
}

/// Those of a table of `level` that are the space's own.
pub fn own_entries(table: Pfn, level: u32) -> &'static [AtomicU64] {
    let entries = entries(table);
    if level == LEVELS {
        &entries[..256]
    } else {
        entries
    }
}

/// A table of empty entries. May reclaim.
pub fn new() -> Result<Pfn, AllocError> {
    let mm = port::mm().expect("it runs");
    mm.alloc(Request::new(Order::ZERO).zeroed())
        .map(Pages::into_raw)
}

/// The same from what is free now, for those who reclaim.
pub fn try_new() -> Result<Pfn, AllocError> {
    let mm = port::mm().expect("it runs");
    mm.try_alloc(Request::new(Order::ZERO).zeroed())
        .map(Pages::into_raw)
}

/// Gives a table back.
pub fn free(table: Pfn) {
    let mm = port::mm().expect("it runs");
    let pages = mm.allocator().try_from_raw(table, Order::ZERO);
    drop(pages.expect("made by `new`"));
}

/// Calls `act` with every entry below a table that names a folio or a slot, and with every table, each with its address.
pub fn visit(table: Pfn, level: u32, base: u64, act: &mut impl FnMut(Place, u64)) {
    for (i, entry) in (0..).zip(own_entries(table, level)) {
        let address = base + (i << shift(level));
        let place = Place { entry, level };
        let state = place.state();
        if state != State::Empty {
            act(place, address);
        }
        if state == State::Table {
            visit(
                pte::pfn(entry.load(Ordering::Acquire)),
                level - 1,
                address,
                act,
            );
        }
    }
}

/// Drops all pages below a table.
pub fn clear(table: Pfn, level: u32) {
    for entry in own_entries(table, level) {
        loop {
            let was = entry.load(Ordering::Acquire);
            match State::of(was, level) {
                State::Empty => break,
                State::Table => {
                    clear(pte::pfn(was), level - 1);
                    break;
                }
                State::Moving => core::hint::spin_loop(), // reclaim takes it away, or splits it
                state => {
                    let taken = entry.compare_exchange(was, 0, Ordering::AcqRel, Ordering::Relaxed);
                    if taken.is_err() {
                        continue;
                    }
                    if let State::Swapped(slot) = state {
                        disk::free(slot);
                    } else {
                        forget(pte::pfn(was));
                    }
                    break;
                }
            }
        }
    }
}

/// Frees a table and those below it. Their entries are empty.
pub fn free_all(table: Pfn, level: u32) {
    if level > 1 {
        for entry in own_entries(table, level) {
            let entry = entry.load(Ordering::Acquire);
            if State::of(entry, level) == State::Table {
                free_all(pte::pfn(entry), level - 1);
            }
        }
    }
    free(table);
}

/// Drops the mapping of a page and the copy of it.
fn forget(pfn: Pfn) {
    let folio = take_mapping(pfn);
    evict::count_mapping(&folio, StateChange::Leave);
    let word = Word::of(folio.word());
    if let Some(slot) = word.slot {
        folio.set_word(Word { slot: None, ..word }.bits());
        disk::free(slot);
    }
}

/// The reference that an entry held, which the caller took out of it.
pub fn take_mapping(pfn: Pfn) -> Folio<'static, Port> {
    let mm = port::mm().expect("it runs");
    // SAFETY: the entry got the number from `into_raw`, and owned its reference until the caller took it out.
    unsafe { mm.folio_from_raw(pfn) }.expect("a mapped frame has a record")
}
