//! Background reclaim, protection, and reclaim of one node: what they free, what they spare, and where they end.
#![allow(unsafe_code)]

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use framekeeper::alloc::Need;
use framekeeper::memcg::{Event, Protection};
use framekeeper::reclaim::Stop;
use framekeeper::report::MemoryEvents;
use framekeeper::{BackgroundStop, Backing, MemcgId, Mm, NodeId, Order, Pfn, Request, ZoneKind};
use host::Host;
use kernel::{HOOK_CALLS, STUCK, fault, machine};

const NEED: Need = Need {
    node: NodeId(0),
    highest: ZoneKind::Movable,
    order: Order::ZERO,
};

/// Frames of a machine whose watermarks matter.
const FRAMES: u64 = 16 << 10;

/// Faults pages of a group until the node is below its high watermark.
fn fill(mm: &Mm<Host>, memcg: MemcgId, bits: u64) -> Vec<Pfn> {
    let mut pages = Vec::new();
    let alloc = mm.allocator();
    loop {
        // Kinds that mix in so small a machine are none of this file's concern.
        alloc.lower_boosts(NEED.node, &alloc.boosts(NEED.node, NEED.highest));
        if !alloc.is_balanced(NEED.node, NEED.order, NEED.highest) {
            break;
        }
        let pages_now: Vec<_> = (0..64).map(|_| fault(mm, memcg, Backing::File)).collect();
        pages.extend(pages_now.into_iter().flatten());
    }
    for &pfn in &pages {
        mm.try_get(pfn).unwrap().set_word_bits(bits);
    }
    mm.drain_lru();
    pages
}

fn low_events(mm: &Mm<Host>, group: MemcgId) -> u64 {
    MemoryEvents::local(mm, group).unwrap().0[Event::Low as usize]
}

#[test]
fn background_reclaim_frees_up_to_the_high_watermark_and_stops() {
    let mm = machine(FRAMES, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    assert!(!mm.wants_background(&NEED));
    let pages = fill(&mm, group, 0).len() as u64;
    assert!(mm.wants_background(&NEED));
    let run = mm.balance_node(&NEED);
    assert_eq!(run.stop, BackgroundStop::Balanced, "{run:?}");
    assert!(run.freed > 0 && run.freed < pages / 2, "{run:?} of {pages}");
    assert!(!mm.wants_background(&NEED));
    assert_eq!(mm.balance_node(&NEED).freed, 0);
    mm.check().unwrap();
}

/// B13, misuse 49: sixteen runs in vain, then none until the first free.
#[test]
fn a_node_of_pages_that_stay_becomes_hopeless_and_is_tried_again_after_the_first_free() {
    let mm = machine(FRAMES, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let mut pages = fill(&mm, group, STUCK);
    for run in 0..16 {
        assert!(mm.wants_background(&NEED), "run {run}");
        let before = HOOK_CALLS.get();
        let ran = mm.balance_node(&NEED);
        assert_eq!(ran.stop, BackgroundStop::Failed, "{ran:?}");
        let looks = HOOK_CALLS.get() - before;
        assert!(looks <= 4 * FRAMES, "bounded: {looks}");
    }
    assert!(!mm.wants_background(&NEED));
    let before = HOOK_CALLS.get();
    assert_eq!(mm.balance_node(&NEED).stop, BackgroundStop::Hopeless);
    assert_eq!(HOOK_CALLS.get(), before, "not one look");
    kernel::unmap(&mm, pages.pop().unwrap());
    mm.allocator().drain_all();
    assert!(mm.wants_background(&NEED));
    assert_eq!(mm.balance_node(&NEED).stop, BackgroundStop::Failed);
    mm.check().unwrap();
}

/// Misuse 41, 49: every frame unevictable in effect, and direct reclaim still ends, with everything put back.
#[test]
fn direct_reclaim_of_pages_that_all_stay_ends_after_a_bounded_number_of_looks() {
    let mm = machine(FRAMES, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let pages = fill(&mm, group, STUCK).len() as u64;
    let before = HOOK_CALLS.get();
    let reclaimed = mm.reclaim(32);
    assert_eq!((reclaimed.freed, reclaimed.stop), (0, Stop::Exhausted));
    let looks = HOOK_CALLS.get() - before;
    // Two passes over thirteen priorities look at each list about twice, and each folio changes lists once a look.
    assert!(looks <= 8 * pages, "{looks} looks at {pages}");
    let node = mm.reclaim_node(NodeId(0), 32);
    assert_eq!((node.freed, node.stop), (0, Stop::Exhausted));
    assert_eq!(mm.reclaim_node(NodeId(9), 32).scanned, 0, "no such node");
    mm.check().unwrap();
}

#[test]
fn a_group_below_its_min_keeps_all_and_one_below_its_low_gives_only_when_nobody_else_can() {
    let mm = machine(4096, 1, 4);
    let [min, low, open] = [(); 3].map(|()| mm.create_memcg(MemcgId::ROOT).unwrap());
    mm.protect_memcg(min, Protection::Min, 300).unwrap();
    mm.protect_memcg(low, Protection::Low, 300).unwrap();
    for group in [min, low, open] {
        for _ in 0..200 {
            fault(&mm, group, Backing::File).unwrap();
        }
    }
    mm.drain_lru();
    let usage = |group| mm.memcg_usage(group).unwrap();
    let lows = || low_events(&mm, low);
    assert_eq!(mm.reclaim(150).freed, 150);
    assert_eq!((usage(min), usage(low), usage(open)), (200, 200, 50));
    assert_eq!(mm.reclaim(50).freed, 50);
    assert_eq!(
        (usage(low), lows()),
        (200, 0),
        "spared while others have some"
    );
    // Only now is low broken, and that is an event.
    assert_eq!(mm.reclaim(40).freed, 40);
    assert_eq!((usage(min), usage(low), usage(open)), (200, 160, 0));
    assert!(lows() > 0);
    let rest = mm.reclaim(1000);
    assert_eq!((usage(min), usage(low)), (200, 0), "{rest:?}");
    assert_eq!(mm.reclaim(1).stop, Stop::Exhausted, "below its min: never");
    mm.check().unwrap();
}

/// B12: a group's own limit finds no protection of its own, whatever an outer reclaim computed before.
#[test]
fn a_groups_own_limit_reclaims_from_it_although_it_is_protected_from_others() {
    let mm = machine(4096, 1, 4);
    let outer = mm.create_memcg(MemcgId::ROOT).unwrap();
    let group = mm.create_memcg(outer).unwrap();
    for kind in [Protection::Min, Protection::Low] {
        for group in [outer, group] {
            mm.protect_memcg(group, kind, 500).unwrap();
        }
    }
    for _ in 0..200 {
        fault(&mm, group, Backing::File).unwrap();
    }
    mm.drain_lru();
    assert_eq!(mm.reclaim(10).freed, 0);
    assert_eq!(mm.shrink_memcg(outer, 10).unwrap().freed, 0);
    assert_eq!(mm.shrink_memcg(group, 10).unwrap().freed, 10);
    assert_eq!(low_events(&mm, group), 0);
    mm.check().unwrap();
}

/// B27: a limit that is set below the usage is met although a writer goes on charging.
#[test]
fn a_limit_set_below_the_usage_holds_for_the_next_charge_too() {
    let mm = machine(4096, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    for _ in 0..300 {
        fault(&mm, group, Backing::File).unwrap();
    }
    mm.drain_lru();
    assert_eq!(mm.shrink_memcg_to(group, 100), Ok(0));
    for _ in 0..300 {
        fault(&mm, group, Backing::File).unwrap();
        assert!(mm.memcg_usage(group).unwrap() <= 100);
    }
    mm.check().unwrap();
}

#[test]
fn file_folios_that_nobody_uses_go_before_anonymous_ones_that_cost_a_write() {
    let mm = machine(FRAMES, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    for _ in 0..5000 {
        fault(&mm, group, Backing::Anon).unwrap();
        fault(&mm, group, Backing::File).unwrap();
    }
    mm.drain_lru();
    let before = mm.lru_stat(group, NodeId(0)).unwrap();
    assert_eq!(mm.shrink_memcg(group, 500).unwrap().freed, 500);
    let after = mm.lru_stat(group, NodeId(0)).unwrap();
    assert_eq!(after.lists[0..2], before.lists[0..2], "anonymous ones stay");
    mm.check().unwrap();
    let _free = mm.try_alloc(Request::new(Order::ZERO));
}
