//! The page fault: brings in the page that an access needs.

use core::fmt;
use core::sync::atomic::Ordering;

use framekeeper::{
    AllocError, Backing, ChargeError, Folio, MemcgId, Mobility, Order, Pfn, Refused, Request,
};

use crate::arch::{self, pte};
use crate::disk::{self, Slot};
use crate::port::{self, Port};
use crate::space::{self, Page, State, Word};

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
    let Some((entry, memcg)) =
        space::with(page.space, |space| (space.make_entry(page), space.memcg))
    else {
        return Err(Fault::Address);
    };
    let entry = entry.map_err(Fault::Alloc)?;
    let was = entry.load(Ordering::Acquire);
    let slot = match State::of(was) {
        // Another CPU moves it: the access tries again.
        State::Moving => return Ok(()),
        State::Present => {
            let now = pte::touched(was, write);
            // If it changed meanwhile, the access tries again.
            let _ = entry.compare_exchange(was, now, Ordering::AcqRel, Ordering::Relaxed);
            arch::publish_entry();
            arch::flush_own(page.address());
            return Ok(());
        }
        State::Swapped(slot) => Some(slot),
        State::Empty => None,
    };
    if entry
        .compare_exchange(
            was,
            space::moving(None),
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_err()
    {
        return Ok(());
    }
    match bring_in(memcg, slot) {
        Ok(folio) => {
            folio.set_word(Word { page, slot }.bits());
            let new = pte::page(folio.pfn());
            // Release: who finds the page, the hardware included, sees its bytes.
            entry.store(
                if write { pte::touched(new, true) } else { new },
                Ordering::Release,
            );
            arch::publish_entry();
            let backing = if page.is_file {
                Backing::File
            } else {
                Backing::Anon
            };
            folio
                .add_to_lru(backing)
                .expect("a new folio is on no list");
            let _in_the_entry = folio.into_raw();
            Ok(())
        }
        Err(why) => {
            entry.store(was, Ordering::Release);
            Err(why)
        }
    }
}

/// A frame with the page's contents, charged to the group.
fn bring_in(memcg: MemcgId, slot: Option<Slot>) -> Result<Folio<'static, Port>, Fault> {
    let folio = new_folio(memcg)?;
    match slot {
        Some(slot) if !disk::read(slot, folio.pfn()) => return Err(Fault::Read(slot)),
        Some(_) => {}
        None => zero(folio.pfn()),
    }
    Ok(folio)
}

fn new_folio(memcg: MemcgId) -> Result<Folio<'static, Port>, Fault> {
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

fn zero(pfn: Pfn) {
    // SAFETY: the frame was allocated a moment ago, and nobody else knows it.
    unsafe { disk::frame(pfn).write_bytes(0, 4096) };
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
