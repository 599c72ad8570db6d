//! Reclaim's hooks, for both platforms: a page is mapped once, by a number that its owner keeps; it may be used (a bit of its word), and
//! its contents are copied as swap in memory would. What was evicted waits on this thread for [`evicted`].

use std::cell::RefCell;
use std::hint::black_box;

use framekeeper::{Evict, Evicted, Isolated, Mm, Platform, Unmap, WriteOut};

use super::port::{Real, Sim};

/// In a page's word: used since reclaim looked. The rest is its owner's.
pub const USED: u64 = 1 << 63;

thread_local! {
    static EVICTED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static PAGES: RefCell<[[u8; 4096]; 2]> = const { RefCell::new([[0; 4096]; 2]) };
}

/// The words of pages that this thread's reclaim evicted since the last call.
pub fn evicted() -> Vec<u64> {
    EVICTED.take()
}

/// Copies a page's contents, as to or from swap in memory.
pub fn copy_page() {
    PAGES.with_borrow_mut(|[from, to]| black_box(to).copy_from_slice(black_box(from)));
}

fn referenced<P: Platform>(folio: &Isolated<'_, P>) -> u32 {
    u32::from(folio.clear_word_bits(USED) & USED != 0)
}

fn unmap<P: Platform>(folio: &Isolated<'_, P>) -> Unmap {
    // SAFETY: the page's owner kept the number that `into_raw` gave. It is unmapped once, unless `remap` gave another.
    drop(unsafe { folio.mm().folio_from_raw(folio.pfn()) });
    Unmap::Done
}

fn remap<P: Platform>(folio: &Isolated<'_, P>) {
    let _in_the_owners_table = folio.reference().into_raw();
}

fn note(gone: &Evicted) {
    EVICTED.with_borrow_mut(|evicted| evicted.push(gone.word & !USED));
}

impl Evict for Sim {
    fn referenced(folio: &Isolated<'_, Self>) -> u32 {
        referenced(folio)
    }
    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        unmap(folio)
    }
    fn write_out(_folio: &Isolated<'_, Self>) -> WriteOut {
        WriteOut::Done
    }
    fn remap(folio: &Isolated<'_, Self>) {
        remap(folio);
    }
    fn evicted(_mm: &Mm<Self>, gone: &Evicted) {
        note(gone);
    }
}

impl Evict for Real {
    fn referenced(folio: &Isolated<'_, Self>) -> u32 {
        referenced(folio)
    }
    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        unmap(folio)
    }
    fn write_out(_folio: &Isolated<'_, Self>) -> WriteOut {
        copy_page();
        WriteOut::Done
    }
    fn remap(folio: &Isolated<'_, Self>) {
        remap(folio);
    }
    fn evicted(_mm: &Mm<Self>, gone: &Evicted) {
        note(gone);
    }
}
