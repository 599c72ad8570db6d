//! A process with one mapped file, in one group, over the real memory manager.
//!
//! A page's record plays the page table entry, with its accessed bit, and the file's page cache, with its shadow. The touch that
//! faults sets the bit too, as a CPU does when it tries the instruction again.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::{
    Backing, Evict, Evicted, Isolated, MemcgId, Mm, MmConfig, NodeId, Order, Pfn, PhysAddr, Policy,
    Request, Shadow, Unmap, WriteOut,
};

use super::trace::Trace;
use crate::machine::{Bench, run_as};

/// One page of the file.
#[derive(Clone, Default)]
struct Page {
    frame: Cell<Option<Pfn>>,
    accessed: Cell<bool>,
    shadow: Cell<Option<Shadow>>,
}

thread_local! {
    static PAGES: RefCell<&'static [Page]> = const { RefCell::new(&[]) };
    static EVICTIONS: Cell<u64> = const { Cell::new(0) };
}

fn page_of(folio: &Isolated<'_, Bench>) -> &'static Page {
    &PAGES.with_borrow(|pages| *pages)[folio.word() as usize]
}

impl Evict for Bench {
    fn referenced(folio: &Isolated<'_, Self>) -> u32 {
        page_of(folio).accessed.replace(false).into()
    }

    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        if let Some(pfn) = page_of(folio).frame.take() {
            // SAFETY: the page got the number from `into_raw`, and does not name it any more.
            drop(unsafe { folio.mm().folio_from_raw(pfn) });
        }
        Unmap::Done
    }

    fn write_out(_folio: &Isolated<'_, Self>) -> WriteOut {
        WriteOut::Done // the file is clean
    }

    fn remap(folio: &Isolated<'_, Self>) {
        page_of(folio).frame.set(Some(folio.reference().into_raw()));
    }

    fn evicted(_mm: &Mm<Self>, gone: &Evicted) {
        EVICTIONS.set(EVICTIONS.get() + 1);
        PAGES.with_borrow(|pages| pages[gone.word as usize].shadow.set(Some(gone.shadow)));
    }
}

/// What a replay took.
#[derive(Debug, Default)]
pub struct Outcome {
    pub faults: u64,
    pub evictions: u64,
    /// Frames that reclaim looked at to evict them.
    pub scanned: u64,
    /// Frames that it looked at and kept.
    pub rotated: u64,
    /// Faults of pages that had gone too early.
    pub refaults: u64,
    /// Frames in active use that it looked at.
    pub refilled: u64,
    pub touches: u64,
    /// In all.
    pub time: Duration,
    /// In the charges that reclaimed, hooks included.
    pub reclaiming: Duration,
}

/// Replays a trace with at most `limit` pages in memory.
pub fn replay(trace: &Trace, limit: u64, policy: Policy) -> Result<Outcome, String> {
    run_as(0);
    let pages: &'static [Page] = vec![Page::default(); trace.end as usize].leak();
    PAGES.set(pages);
    EVICTIONS.set(0);
    let mm = machine(u64::from(trace.pages).min(limit), policy)?;
    let group = mm
        .create_memcg(MemcgId::ROOT)
        .map_err(|error| error.to_string())?;
    mm.set_memcg_max(group, limit)
        .map_err(|error| error.to_string())?;
    let mut outcome = Outcome::default();
    let start = Instant::now();
    for &number in &trace.touches {
        let page = &pages[number as usize];
        if page.frame.get().is_none() {
            fault(&mm, group, number, page, &mut outcome)?;
        }
        page.accessed.set(true);
    }
    outcome.time = start.elapsed();
    outcome.touches = trace.touches.len() as u64;
    outcome.evictions = EVICTIONS.get();
    let stat = mm
        .lru_stat(group, NodeId(0))
        .map_err(|error| error.to_string())?;
    outcome.scanned = stat.moves.scanned;
    outcome.rotated = stat.moves.scanned - outcome.evictions;
    outcome.refilled = stat.moves.refilled;
    mm.check().map_err(|fault| fault.to_string())?;
    Ok(outcome)
}

fn fault(
    mm: &Mm<Bench>,
    group: MemcgId,
    number: u32,
    page: &Page,
    outcome: &mut Outcome,
) -> Result<(), String> {
    outcome.faults += 1;
    let pages = mm
        .alloc(Request::new(Order::ZERO))
        .map_err(|error| error.to_string())?;
    let (before, start) = (EVICTIONS.get(), Instant::now());
    let folio = pages
        .charge_to(mm, group)
        .map_err(|refused| format!("fault {} of page {number}: {}", outcome.faults, refused.0))?;
    if EVICTIONS.get() > before {
        outcome.reclaiming += start.elapsed();
    }
    folio.set_word(u64::from(number));
    let added = match page.shadow.take() {
        Some(shadow) => folio.add_refaulted(Backing::File, shadow).map(|refault| {
            outcome.refaults += u64::from(refault != framekeeper::Refault::Old);
        }),
        None => folio.add_to_lru(Backing::File),
    };
    added.map_err(|error| error.to_string())?;
    page.frame.set(Some(folio.into_raw()));
    Ok(())
}

/// A machine with room for `frames` pages and a little more.
fn machine(frames: u64, policy: Policy) -> Result<Mm<Bench>, String> {
    let frames = frames + frames / 8 + 4096;
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4 << 30), frames << 12)
        .map_err(|error| error.to_string())?;
    // SAFETY: the frames are numbers; nobody uses the memory behind them.
    let memory = unsafe { Memory::claim(&mut map) };
    let bytes = frames as usize * 64 + (8 << 20);
    let mut storage = Vec::<MaybeUninit<u8>>::with_capacity(bytes);
    storage.resize_with(bytes, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(storage.leak()));
    let mut config = MmConfig::new(1, 1);
    config.policy = policy;
    Mm::new(memory, &config).map_err(|refused| refused.0.to_string())
}
