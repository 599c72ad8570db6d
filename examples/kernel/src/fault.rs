//! The page fault: brings in the page that an access needs.

use core::fmt;
use core::sync::atomic::Ordering;

use framekeeper::{AllocError, ChargeError, Folio, MemcgId, Mobility, Order, Refused, Request};

use crate::arch::{self, pte};
use crate::disk::{self, Slot};
use crate::evict;
use crate::large;
use crate::page::{self, Page, State, Word, order_at};
use crate::port::{self, Port};
use crate::space::{self, Space};
use crate::table::{self, Place};

/// Why an access cannot be served.
#[derive(Debug)]
pub enum Fault {
    /// No space, or an address outside it.
    Address,
    Alloc(AllocError),
    Charge(ChargeError),
    /// The disk failed.
    Read(Slot),
}

/// Charges that are tried for one fault while other CPUs' faults hold all that the group may have.
const CHARGES: u32 = 10_000;

/// Serves a fault of the calling CPU at an address. Interrupts are on.
pub fn handle(address: u64, write: bool) -> Result<(), Fault> {
    let page = Page::at(address).ok_or(Fault::Address)?;
    let (place, memcg) = space::with(page.space, |space| (place_of(space, page), space.memcg))
        .ok_or(Fault::Address)?;
    let place = place.map_err(Fault::Alloc)?;
    let was = place.entry.load(Ordering::Acquire);
    let slot = match State::of(was, place.level) {
        // Another CPU moves it, or made a table: the access tries again.
        State::Moving | State::Table => return Ok(()),
        State::Present => {
            let now = pte::touched(was, write);
            // If it changed meanwhile, the access tries again.
            let _ = place
                .entry
                .compare_exchange(was, now, Ordering::AcqRel, Ordering::Relaxed);
            arch::publish_entry();
            arch::flush_own(page.address());
            return Ok(());
        }
        State::Swapped(slot) => Some(slot),
        State::Empty => None,
    };
    let moving = page::moving(None);
    let claimed = place
        .entry
        .compare_exchange(was, moving, Ordering::AcqRel, Ordering::Relaxed);
    if claimed.is_err() {
        return Ok(());
    }
    let filled = fill(place, page, memcg, slot, write);
    if filled.is_err() {
        place.entry.store(was, Ordering::Release);
    }
    filled
}

/// The entry that has to change: the largest that may map the page, unless there is a table of smaller ones.
fn place_of(space: &Space, page: Page) -> Result<Place, AllocError> {
    let mut level = page.area.level();
    loop {
        let place = table::find_or_make(space.root, page.address(), level)?;
        if level == 1 || place.state() != State::Table {
            return Ok(place);
        }
        level -= 1;
    }
}

/// Maps the page, or where a large folio is not to be had, a table whose entries may map smaller ones: the access tries again.
fn fill(
    place: Place,
    page: Page,
    memcg: MemcgId,
    slot: Option<Slot>,
    write: bool,
) -> Result<(), Fault> {
    let page = page.head(place.level);
    let folio = if place.level == 1 {
        bring_in(memcg, slot)?
    } else if let Some(folio) = large_folio(memcg, order_at(place.level)) {
        folio
    } else {
        let table = table::new().map_err(Fault::Alloc)?;
        place.entry.store(pte::table(table), Ordering::Release);
        arch::publish_entry();
        return Ok(());
    };
    let word = Word { page, slot };
    folio.set_word(word.bits());
    let new = pte::page(folio.pfn(), place.level);
    let new = if write { pte::touched(new, true) } else { new };
    // On its list before anybody finds it: who splits it splits it there.
    evict::add(&folio, word);
    let pfn = folio.into_raw(); // the entry's reference
    // Release: who finds the page, the hardware included, sees its bytes.
    place.entry.store(new, Ordering::Release);
    arch::publish_entry();
    if place.level > 1 {
        large::mapped(place.level, memcg, pfn);
    }
    Ok(())
}

/// A frame with the page's contents, charged to the group.
fn bring_in(memcg: MemcgId, slot: Option<Slot>) -> Result<Folio<'static, Port>, Fault> {
    let folio = new_folio(memcg)?;
    match slot {
        Some(slot) if !disk::read(slot, folio.pfn()) => return Err(Fault::Read(slot)),
        Some(_) => {}
        None => zero(&folio),
    }
    Ok(folio)
}

/// A frame charged to the group. Reclaims.
pub fn new_folio(memcg: MemcgId) -> Result<Folio<'static, Port>, Fault> {
    let mm = port::mm().expect("it runs");
    let request = Request::new(Order::ZERO).mobility(Mobility::Movable);
    let mut tries = 0;
    loop {
        let pages = mm.alloc(request).map_err(Fault::Alloc)?;
        match pages.charge_to(mm, memcg) {
            Ok(folio) => return Ok(folio),
            Err(Refused(ChargeError::OverLimit { .. }, pages)) if tries < CHARGES => {
                drop(pages);
                tries += 1;
                core::hint::spin_loop();
            }
            Err(Refused(why, _)) => return Err(Fault::Charge(why)),
        }
    }
}

/// Many frames in one piece, zeroed and charged, if memory and group have them now.
fn large_folio(memcg: MemcgId, order: Order) -> Option<Folio<'static, Port>> {
    let mm = port::mm().expect("it runs");
    let request = Request::new(order).mobility(Mobility::Movable);
    let folio = mm.try_alloc(request).ok()?.try_charge_to(mm, memcg).ok()?;
    zero(&folio);
    Some(folio)
}

fn zero(folio: &Folio<'_, Port>) {
    let bytes = (folio.order().frames() as usize) << 12;
    // SAFETY: the frames were allocated a moment ago, and nobody else knows them.
    unsafe { disk::frame(folio.pfn()).write_bytes(0, bytes) };
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str("no page belongs there"),
            Self::Alloc(why) => why.fmt(f),
            Self::Charge(why) => why.fmt(f),
            Self::Read(slot) => write!(f, "the disk cannot read slot {}", slot.0),
        }
    }
}
