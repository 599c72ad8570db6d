//! Large mappings: one entry for 2 MiB or 1 GiB, split into 512 of the next level when their group is short.
//!
//! Reclaim evicts base pages only. It asks for the split by a shrinker: what can be split is counted in base frames, so the
//! more pressure there is, the more is split, the larger first.

use core::sync::atomic::{AtomicU64, Ordering};

use framekeeper::shrinker::{Count, Scan, Target};
use framekeeper::{MemcgId, NodeId, Pfn, Refused, Shrinker, ShrinkerConfig, ShrinkerId};
use spin::Once;

use crate::arch::{self, pte};
use crate::page::{self, Page, State, Word, order_at};
use crate::space::{self, Space};
use crate::table::{self, LEVELS, Place};
use crate::{port, scenario::Failure};

static ID: Once<ShrinkerId> = Once::new();
/// By level: mapped, and split.
static MAPPED: [AtomicU64; LEVELS as usize] = [const { AtomicU64::new(0) }; LEVELS as usize];
static SPLIT: [AtomicU64; LEVELS as usize] = [const { AtomicU64::new(0) }; LEVELS as usize];

struct Splitter;

/// Registers the shrinker.
pub fn start() -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    ID.try_call_once(|| mm.register_shrinker(&Splitter, ShrinkerConfig::default()))
        .map(|_| ())
        .map_err(Failure::Shrinkers)
}

/// Counts a mapping of a level that was made for a group, and lets the shrinker be asked for it.
pub fn mapped(level: u32, memcg: MemcgId, pfn: Pfn) {
    MAPPED[level as usize].fetch_add(1, Ordering::Relaxed);
    shrinkable(memcg, pfn);
}

fn shrinkable(memcg: MemcgId, pfn: Pfn) {
    let mm = port::mm().expect("started");
    if let (Some(&id), Some(node)) = (ID.get(), mm.allocator().node_of(pfn)) {
        mm.mark_shrinkable(id, memcg, node);
    }
}

/// Mappings of a level so far: made by faults, and split.
pub fn counts(level: u32) -> (u64, u64) {
    let of = |counts: &[AtomicU64]| counts[level as usize].load(Ordering::Relaxed);
    (of(&MAPPED), of(&SPLIT))
}

impl Shrinker for Splitter {
    fn count(&self, target: Target) -> Count {
        let mut frames = 0;
        each_of(target, |_, place, _| {
            frames += order_at(place.level).frames();
            true
        });
        match frames {
            0 => Count::Empty,
            frames => Count::Objects(frames),
        }
    }

    fn scan(&self, target: Target, objects: u64) -> Scan {
        // Moves that wait in a batch hold references, and what is referenced is not split.
        if let Some(mm) = port::mm() {
            mm.drain_lru();
        }
        let (mut scanned, mut freed) = (0, 0);
        each_of(target, |space, place, address| {
            let frames = order_at(place.level).frames();
            scanned += frames;
            if split(space, target.memcg, place, address) {
                freed += frames; // for reclaim to take: that counts as progress
            }
            scanned < objects
        });
        match freed {
            0 => Scan::Stop,
            freed => Scan::Done { scanned, freed },
        }
    }
}

/// Calls `act` with the large mappings of a group whose memory is on a node, until it says no.
fn each_of(target: Target, mut act: impl FnMut(u32, Place, u64) -> bool) {
    let mut goes_on = true;
    space::each(|id, space| {
        if space.memcg == target.memcg {
            each_large(space, |place, address| {
                let entry = place.entry.load(Ordering::Acquire);
                goes_on = goes_on
                    && (State::of(entry, place.level) != State::Present
                        || node_of(pte::pfn(entry)) != Some(target.node)
                        || act(id, place, address));
            });
        }
    });
}

/// Calls `act` with every large mapping of a space, and its address.
pub fn each_large(space: &Space, mut act: impl FnMut(Place, u64)) {
    large_below(space.root, LEVELS, 0, &mut act);
}

fn large_below(table: Pfn, level: u32, base: u64, act: &mut impl FnMut(Place, u64)) {
    if level == 1 {
        return;
    }
    for (i, entry) in (0..).zip(table::own_entries(table, level)) {
        let (place, address) = (Place { entry, level }, base + (i << table::shift(level)));
        match place.state() {
            State::Table => {
                let below = pte::pfn(entry.load(Ordering::Acquire));
                large_below(below, level - 1, address, act);
            }
            State::Present => act(place, address),
            _ => {}
        }
    }
}

fn node_of(pfn: Pfn) -> Option<NodeId> {
    port::mm().and_then(|mm| mm.allocator().node_of(pfn))
}

/// Replaces a large mapping by a table of 512 smaller ones. Not if reclaim has the folio in hand, or no table is to be had.
fn split(space: u32, memcg: MemcgId, place: Place, address: u64) -> bool {
    let Some(page) = Page::of(space, address) else {
        return false;
    };
    let Ok(table) = table::try_new() else {
        return false;
    };
    let Some(was) = take_out(place) else {
        table::free(table);
        return false;
    };
    page::forget(page); // before others may find smaller entries for the same bytes
    let order = order_at(place.level - 1);
    let parts = match table::take_mapping(pte::pfn(was)).split(order) {
        Ok(parts) => parts,
        Err(Refused(_, folio)) => {
            let _in_the_entry = folio.into_raw();
            place.entry.store(was, Ordering::Release);
            arch::publish_entry();
            // Who counted meanwhile found nothing.
            shrinkable(memcg, pte::pfn(was));
            table::free(table);
            return false;
        }
    };
    for (i, (part, entry)) in (0..).zip(parts.zip(table::entries(table))) {
        let word = Word {
            page: page.plus(i * order.frames()),
            slot: None,
        };
        part.set_word(word.bits());
        let new = pte::page(part.into_raw(), place.level - 1);
        let new = match pte::is_dirty(was) {
            true => pte::dirty(new),
            false => new,
        };
        // Not used: what is used from now on shows it, the rest is what reclaim asks for.
        entry.store(pte::old(new), Ordering::Relaxed);
    }
    // Release: who finds the table sees its entries.
    place.entry.store(pte::table(table), Ordering::Release);
    arch::publish_entry();
    SPLIT[place.level as usize].fetch_add(1, Ordering::Relaxed);
    true
}

/// Makes a large entry moving: what it was.
fn take_out(place: Place) -> Option<u64> {
    let mut was = place.entry.load(Ordering::Acquire);
    while State::of(was, place.level) == State::Present {
        let moving = page::moving(Some(pte::pfn(was)));
        match place
            .entry
            .compare_exchange(was, moving, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(was) => return Some(was),
            Err(now) => was = now,
        }
    }
    None
}
