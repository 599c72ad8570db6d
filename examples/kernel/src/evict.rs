//! How this kernel takes part in reclaim: the hooks that look at a page's entry, remove it, and save its bytes.

use core::sync::atomic::{AtomicU64, Ordering};

use framekeeper::{Evict, Isolated, MemcgId, Oom, Release, Unmap, WriteOut};

use crate::arch::{self, pte};
use crate::disk;
use crate::port::Port;
use crate::space::{self, State, Word};

static SHOOT_DOWNS: AtomicU64 = AtomicU64::new(0);

/// Pages that were unmapped with a shoot-down.
pub fn shoot_downs() -> u64 {
    SHOOT_DOWNS.load(Ordering::Relaxed)
}

impl Evict for Port {
    fn referenced(folio: &Isolated<'_, Self>) -> u32 {
        let used = with_entry(folio, |entry, _| {
            let was = entry.load(Ordering::Relaxed);
            if !maps(was, folio) || !pte::is_accessed(was) {
                return 0;
            }
            // If the hardware changes it meanwhile, the page is in use.
            let _ = entry.compare_exchange(was, pte::old(was), Ordering::AcqRel, Ordering::Relaxed);
            1
        });
        used.unwrap_or(0)
    }

    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        let taken = with_entry(folio, |entry, word| {
            let mut was = entry.load(Ordering::Relaxed);
            loop {
                if !maps(was, folio) {
                    return false;
                }
                let moving = space::moving(Some(folio.pfn()));
                match entry.compare_exchange(was, moving, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(now) => was = now,
                }
            }
            // A CPU that has the entry cached writes its dirty bit by a walk of its own, which finds no page any more: what
            // it wrote before that is marked.
            arch::flush_page(word.page.address(), || space::viewers(word.page.space));
            SHOOT_DOWNS.fetch_add(1, Ordering::Relaxed);
            if pte::is_dirty(was) {
                folio.mark_dirty();
            }
            true
        });
        if taken == Some(true) {
            space::drop_mapping(folio.pfn());
        }
        Unmap::Done
    }

    fn write_out(folio: &Isolated<'_, Self>) -> WriteOut {
        let word = Word::of(folio.word());
        let leaving = with_entry(folio, |entry, _| is_leaving(entry, folio)).unwrap_or(false);
        if !leaving {
            return WriteOut::Done; // its space is gone, or it was written before
        }
        if word.slot.is_some() && !folio.is_dirty() {
            return WriteOut::Done; // the copy still stands
        }
        let Some(slot) = word.slot.or_else(disk::take) else {
            return WriteOut::Busy;
        };
        folio.set_word(
            Word {
                slot: Some(slot),
                ..word
            }
            .bits(),
        );
        if disk::write(slot, folio.pfn()) {
            WriteOut::Done
        } else {
            WriteOut::Busy
        }
    }

    /// The last step: from here on the entry says where the copy is.
    fn release(folio: &Isolated<'_, Self>) -> Release {
        with_entry(folio, |entry, word| {
            if is_leaving(entry, folio) {
                entry.store(space::absent(word.slot), Ordering::Release);
            }
        });
        Release::Done
    }

    fn remap(folio: &Isolated<'_, Self>) {
        with_entry(folio, |entry, word| {
            let was = entry.load(Ordering::Acquire);
            let back = is_leaving(entry, folio) || was == space::absent(word.slot) && was != 0;
            if back {
                // Dirty: whether the copy stands is not known any more.
                let page = pte::dirty(pte::page(folio.reference().into_raw()));
                if entry
                    .compare_exchange(was, page, Ordering::AcqRel, Ordering::Relaxed)
                    .is_err()
                {
                    space::drop_mapping(folio.pfn());
                }
                arch::publish_entry();
            }
        });
    }

    fn oom(_memcg: Option<MemcgId>) -> Oom {
        // Faults of other CPUs hold what the group may have. They end without help.
        Oom::Retry
    }
}

/// Whether an entry maps the folio.
fn maps(entry: u64, folio: &Isolated<'_, Port>) -> bool {
    State::of(entry) == State::Present && pte::pfn(entry) == folio.pfn()
}

fn is_leaving(entry: &AtomicU64, folio: &Isolated<'_, Port>) -> bool {
    entry.load(Ordering::Acquire) == space::moving(Some(folio.pfn()))
}

/// Calls `act` with the one entry that may map the folio, if its space still exists.
fn with_entry<T>(folio: &Isolated<'_, Port>, act: impl FnOnce(&AtomicU64, Word) -> T) -> Option<T> {
    let word = Word::of(folio.word());
    space::with(word.page.space, |space| {
        Some(act(space.entry(word.page)?, word))
    })?
}
