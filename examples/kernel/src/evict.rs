//! How this kernel takes part in reclaim: the hooks that look at a page's entry, remove it, and save its bytes.

use core::sync::atomic::{AtomicU64, Ordering};

use framekeeper::{
    Backing, Evict, Evicted, Folio, FolioView, Isolated, MemcgId, Mm, Oom, Order, PageState,
    Release, StateChange, Unmap, WriteOut,
};

use crate::arch::{self, pte};
use crate::page::{self, State, Word};
use crate::port::Port;
use crate::table::{self, Place};
use crate::{disk, space};

static SHOOT_DOWNS: AtomicU64 = AtomicU64::new(0);

/// Pages that were unmapped with a shoot-down.
pub fn shoot_downs() -> u64 {
    SHOOT_DOWNS.load(Ordering::Relaxed)
}

impl Evict for Port {
    fn referenced(folio: &Isolated<'_, Self>) -> u32 {
        let used = with_entry(folio, |place, _| {
            let was = place.entry.load(Ordering::Relaxed);
            if !maps(was, place.level, folio) || !pte::is_accessed(was) {
                return 0;
            }
            // If the hardware changes it meanwhile, the page is in use.
            let old = pte::old(was);
            let _ = place
                .entry
                .compare_exchange(was, old, Ordering::AcqRel, Ordering::Relaxed);
            1
        });
        used.unwrap_or(0)
    }

    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        if folio.order() > Order::ZERO {
            return Unmap::Busy; // a shrinker splits large mappings first, see large.rs
        }
        let taken = with_entry(folio, |place, word| {
            let Some(was) = take_out(place, folio) else {
                return false;
            };
            // A CPU that has the entry cached writes its dirty bit by a walk of its own, which finds no page any more: what
            // it wrote before that is marked.
            page::forget(word.page);
            SHOOT_DOWNS.fetch_add(1, Ordering::Relaxed);
            if pte::is_dirty(was) {
                folio.mark_dirty();
                drop_copy(folio, word);
            }
            count_mapping(folio, StateChange::Leave);
            true
        });
        if taken == Some(true) {
            drop(table::take_mapping(folio.pfn()));
        }
        Unmap::Done
    }

    fn write_out(folio: &Isolated<'_, Self>) -> WriteOut {
        let word = Word::of(folio.word());
        let leaving = with_entry(folio, |place, _| is_leaving(place, folio)).unwrap_or(false);
        if !leaving {
            return WriteOut::Done; // its space is gone, or it was written before
        }
        if word.slot.is_some() {
            return WriteOut::Done; // the copy still stands
        }
        let Some(slot) = disk::take() else {
            return WriteOut::Busy;
        };
        let slot_in_word = Word {
            slot: Some(slot),
            ..word
        };
        folio.set_word(slot_in_word.bits());
        if disk::write(slot, folio.pfn()) {
            WriteOut::Done
        } else {
            WriteOut::Busy
        }
    }

    /// The last step: from here on the entry says where the copy is.
    fn release(folio: &Isolated<'_, Self>) -> Release {
        with_entry(folio, |place, word| {
            if is_leaving(place, folio) {
                place
                    .entry
                    .store(page::absent(word.slot), Ordering::Release);
            }
        });
        Release::Done
    }

    fn remap(folio: &Isolated<'_, Self>) {
        with_entry(folio, |place, word| {
            let was = place.entry.load(Ordering::Acquire);
            let back = is_leaving(place, folio) || was == page::absent(word.slot) && was != 0;
            if back {
                count_mapping(folio, StateChange::Enter);
                // Dirty: whether the copy stands is not known any more.
                let page = pte::dirty(pte::page(folio.reference().into_raw(), place.level));
                let mapped =
                    place
                        .entry
                        .compare_exchange(was, page, Ordering::AcqRel, Ordering::Relaxed);
                if mapped.is_err() {
                    count_mapping(folio, StateChange::Leave);
                    drop(table::take_mapping(folio.pfn()));
                }
                arch::publish_entry();
            }
        });
    }

    fn evicted(_mm: &Mm<Self>, gone: &Evicted) {
        if let Some(slot) = Word::of(gone.word).slot {
            disk::keep_shadow(slot, gone.shadow);
        }
    }

    fn oom(_memcg: Option<MemcgId>) -> Oom {
        // Faults of other CPUs hold what the group may have. They end without help.
        Oom::Retry
    }
}

/// Gives a folio that is about to be mapped to the LRU, by what is remembered of its last stay if its contents are from a slot.
pub fn add(folio: &Folio<'_, Port>, word: Word) {
    let backing = word.page.area.backing();
    let added = match word.slot.and_then(disk::take_shadow) {
        Some(shadow) => folio.add_refaulted(backing, shadow).map(|_| ()),
        None => folio.add_to_lru(backing),
    };
    added.expect("a new folio is on no list");
    count_mapping(folio, StateChange::Enter);
}

/// Counts that a folio of a file is in a page table from now on, or no longer: `file_mapped` of memory.stat.
pub fn count_mapping(folio: &FolioView<'_, Port>, change: StateChange) {
    if folio.backing() == Backing::File {
        folio.account(PageState::MAPPED, change);
    }
}

/// The copy of a page that was written to is worth nothing. That is noted now: when it is to be written out, it counts as clean.
fn drop_copy(folio: &Isolated<'_, Port>, word: Word) {
    if let Some(slot) = word.slot {
        folio.set_word(Word { slot: None, ..word }.bits());
        disk::free(slot);
    }
}

/// Takes the folio out of its entry, if it is there: what the entry was.
fn take_out(place: Place, folio: &Isolated<'_, Port>) -> Option<u64> {
    let mut was = place.entry.load(Ordering::Relaxed);
    while maps(was, place.level, folio) {
        let moving = page::moving(Some(folio.pfn()));
        match place
            .entry
            .compare_exchange(was, moving, Ordering::AcqRel, Ordering::Relaxed)
        {
            Ok(was) => return Some(was),
            Err(now) => was = now,
        }
    }
    None
}

/// Whether an entry maps the folio.
fn maps(entry: u64, level: u32, folio: &Isolated<'_, Port>) -> bool {
    State::of(entry, level) == State::Present && pte::pfn(entry) == folio.pfn()
}

fn is_leaving(place: Place, folio: &Isolated<'_, Port>) -> bool {
    place.entry.load(Ordering::Acquire) == page::moving(Some(folio.pfn()))
}

/// Calls `act` with the one entry that may map the folio, if its space still exists.
fn with_entry<T>(folio: &Isolated<'_, Port>, act: impl FnOnce(Place, Word) -> T) -> Option<T> {
    let word = Word::of(folio.word());
    space::with(word.page.space, |space| {
        Some(act(space.entry(word.page, folio.order())?, word))
    })?
}
