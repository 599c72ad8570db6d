//! Bad input to folios, groups and reclaim, and hooks that misbehave: a typed answer each, and counts as they were.
#![allow(unsafe_code)]

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use std::panic::{AssertUnwindSafe, catch_unwind};

use framekeeper::memcg::{CreateError, RemoveError};
use framekeeper::reclaim::Stop;
use framekeeper::{
    Backing, ChargeError, Folio, LruError, MemcgId, Mm, MmConfig, MmInitError, Order, Pfn, Rank,
    Reclaim, Refused, Request, ZoneKind,
};
use host::{Host, locks_taken, run_as};
use kernel::{
    ACCESSED, LIAR, NESTS, NO_SWAP, OOM_CALLS, PANICS, PRIVATE, STUCK, build, fault, machine,
};

fn folio(mm: &Mm<Host>, memcg: MemcgId) -> Folio<'_, Host> {
    let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
    pages.try_charge_to(mm, memcg).unwrap()
}

/// Faults `count` pages whose word has `bits` set.
fn faults(mm: &Mm<Host>, memcg: MemcgId, backing: Backing, count: usize, bits: u64) -> Vec<Pfn> {
    let pages: Vec<_> = (0..count)
        .map(|_| fault(mm, memcg, backing).unwrap())
        .collect();
    for &pfn in &pages {
        mm.try_get(pfn).unwrap().set_word_bits(bits);
    }
    mm.drain_lru();
    pages
}

/// Misuse 31.
#[test]
fn a_reference_to_a_free_frame_a_tail_or_a_frame_of_nobody_is_refused() {
    let mm = machine(300, 1, 2);
    let pages = mm.try_alloc(Request::new(Order::new(2).unwrap())).unwrap();
    let first = pages.pfn();
    assert!(mm.try_get(first).is_none(), "pages are no folio yet");
    let folio = pages.try_charge_to(&mm, MemcgId::ROOT).unwrap();
    assert!(
        mm.try_get(Pfn(first.0 + 1)).is_none(),
        "a tail is not a folio"
    );
    assert!(mm.try_get(Pfn(0)).is_none());
    assert!(mm.try_get(Pfn(u64::MAX)).is_none());
    drop(folio);
    assert!(mm.try_get(first).is_none(), "freed");
    mm.check().unwrap();
}

/// Misuse 32: below zero is impossible with handles; a broken port's second put is refused, counted and leaks nothing.
#[test]
fn a_reference_that_nobody_has_cannot_be_put_twice() {
    // but what was never its own.
    let mm = machine(300, 1, 2);
    let pfn = folio(&mm, MemcgId::ROOT).into_raw();
    let free = mm.allocator().free_frames();
    kernel::unmap(&mm, pfn);
    assert_eq!(mm.allocator().free_frames(), free + 1);
    if !cfg!(debug_assertions) {
        kernel::unmap(&mm, pfn);
        assert_eq!(mm.refused_puts(), 1);
        assert_eq!(mm.allocator().free_frames(), free + 1);
    }
    mm.check().unwrap();
}

/// Misuse 33.
#[test]
fn adding_twice_isolating_twice_and_activating_while_isolated_have_no_effect() {
    let mm = machine(300, 1, 2);
    let folio = folio(&mm, MemcgId::ROOT);
    assert_eq!(
        folio.isolate().unwrap_err(),
        LruError::NotOnList,
        "never added"
    );
    folio.add_to_lru(Backing::File).unwrap();
    assert_eq!(
        folio.add_to_lru(Backing::Anon).unwrap_err(),
        LruError::Added
    );
    assert_eq!(folio.backing(), Backing::File);
    mm.drain_lru();
    let isolated = folio.isolate().unwrap();
    assert_eq!(folio.isolate().unwrap_err(), LruError::NotOnList);
    assert_eq!(
        folio.add_to_lru(Backing::File).unwrap_err(),
        LruError::Added
    );
    folio.activate();
    mm.drain_lru();
    assert!(!isolated.is_active());
    drop(isolated);
    mm.check().unwrap();
    // Queued for activation, then isolated before the batch is drained: the move is lost, the folio is not.
    folio.activate();
    let isolated = folio.isolate().unwrap();
    mm.drain_lru();
    assert!(!isolated.is_active());
    drop(folio);
    drop(isolated);
    mm.check().unwrap();
    assert_eq!(
        mm.allocator().free_frames(),
        mm.allocator().managed_frames()
    );
}

/// Misuse 34, 35.
#[test]
fn a_folio_whose_group_died_goes_to_the_parent_and_uncharges_there() {
    let mm = machine(300, 1, 4);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    let held = folio(&mm, child);
    held.add_to_lru(Backing::Anon).unwrap();
    assert_eq!(mm.remove_memcg(parent), Err(RemoveError::HasChildren));
    assert_eq!(mm.remove_memcg(MemcgId::ROOT), Err(RemoveError::Root));
    mm.remove_memcg(child).unwrap();
    assert_eq!(mm.remove_memcg(child), Err(RemoveError::NoSuchGroup(child)));
    assert_eq!(
        (held.memcg(), mm.memcg_usage(parent)),
        (Some(parent), Ok(1))
    );
    mm.remove_memcg(parent).unwrap();
    assert_eq!(held.memcg(), Some(MemcgId::ROOT));
    mm.check().unwrap();
    drop(held);
    mm.drain_lru();
    mm.check().unwrap();
    assert_eq!(
        mm.allocator().free_frames(),
        mm.allocator().managed_frames()
    );
}

/// Misuse 36.
#[test]
fn a_stale_id_names_nothing_even_when_its_place_is_taken() {
    let mm = machine(300, 1, 1);
    let stale = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.remove_memcg(stale).unwrap();
    let next = mm.create_memcg(MemcgId::ROOT).unwrap();
    assert_ne!(stale, next);
    let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
    let Refused(error, pages) = pages.charge_to(&mm, stale).unwrap_err();
    assert_eq!(error, ChargeError::NoSuchGroup(stale));
    assert!(mm.memcg_usage(stale).is_err() && mm.set_memcg_max(stale, 1).is_err());
    assert!(mm.shrink_memcg(stale, 1).is_err() && mm.shrink_memcg_to(stale, 1).is_err());
    assert_eq!(
        mm.create_memcg(stale),
        Err(CreateError::NoSuchParent(stale))
    );
    drop(pages);
    assert_eq!(mm.memcg_usage(next), Ok(0));
    mm.check().unwrap();
}

/// Misuse 37.
#[test]
fn limits_of_zero_below_usage_and_at_the_end_of_the_range_are_accepted() {
    let mm = machine(300, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.set_memcg_max(group, u64::MAX - 1).unwrap();
    faults(&mm, group, Backing::Anon, 40, 0);
    assert_eq!(mm.shrink_memcg_to(group, 10), Ok(0));
    assert!(mm.memcg_usage(group).unwrap() <= 10);
    assert_eq!(mm.shrink_memcg_to(group, 0), Ok(0));
    let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
    let Refused(error, _) = pages.charge_to(&mm, group).unwrap_err();
    assert_eq!(
        error,
        ChargeError::OverLimit {
            limited: Some(group)
        }
    );
    assert!(
        mm.set_memcg_max(MemcgId::ROOT, 5).is_err(),
        "the root has no limit"
    );
    mm.check().unwrap();
}

/// Misuse 39.
#[test]
fn more_groups_deeper_groups_and_more_owners_than_configured_are_refused() {
    let mut config = MmConfig::new(1, 3);
    config.memcgs.depth = 2;
    config.memcgs.owners = 3;
    let mm = build(300, &config);
    let first = mm.create_memcg(MemcgId::ROOT).unwrap();
    let second = mm.create_memcg(first).unwrap();
    assert_eq!(
        mm.create_memcg(second),
        Err(CreateError::TooDeep { deepest: 2 })
    );
    // The living hold all owner slots there are.
    assert_eq!(mm.create_memcg(first), Err(CreateError::OwnersExhausted));
    mm.remove_memcg(second).unwrap();
    // Dead groups' frames hold theirs only until somebody needs one.
    let kept: Vec<_> = (0..3)
        .map(|_| {
            let brief = mm.create_memcg(first).unwrap();
            let kept = folio(&mm, brief);
            mm.remove_memcg(brief).unwrap();
            mm.check().unwrap();
            assert_eq!(kept.memcg(), Some(first));
            kept
        })
        .collect();
    assert_eq!(mm.memcg_count(), 2);
    assert_eq!(mm.memcg_usage(first), Ok(3));
    drop(kept);
    mm.check().unwrap();
    config.memcgs.owners = 5;
    let mm = build(300, &config);
    for _ in 0..3 {
        mm.create_memcg(MemcgId::ROOT).unwrap();
    }
    assert_eq!(
        mm.create_memcg(MemcgId::ROOT),
        Err(CreateError::TooMany { most: 4 })
    );
    // Numbers that cannot be are refused before anything is built.
    for (groups, owners) in [(0, 5), (1, 0), (u32::MAX, 8), (8, u32::MAX)] {
        let mut config = MmConfig::new(1, 3);
        (config.memcgs.groups, config.memcgs.owners) = (groups, owners);
        assert!(
            matches!(kernel::try_build(300, &config), Err(MmInitError::Memcgs(_))),
            "{groups} {owners}"
        );
    }
}

/// Misuse 40.
#[test]
fn a_batch_of_folios_whose_groups_died_lands_on_the_living_ancestor() {
    let mm = machine(600, 2, 12);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let mut kept = Vec::new();
    for _ in 0..10 {
        let brief = mm.create_memcg(parent).unwrap();
        for _ in 0..2 {
            let folio = folio(&mm, brief);
            folio.add_to_lru(Backing::Anon).unwrap();
            kept.push(folio);
        }
        mm.remove_memcg(brief).unwrap();
    }
    let stat = framekeeper::report::MemoryStat::of(&mm, parent).unwrap();
    assert_eq!(stat.lists.iter().sum::<u64>(), 0, "they wait in the batch");
    mm.drain_lru();
    let stat = framekeeper::report::MemoryStat::of(&mm, parent).unwrap();
    assert_eq!(stat.lists.iter().sum::<u64>(), 20);
    assert!(kept.iter().all(|folio| folio.memcg() == Some(parent)));
    mm.check().unwrap();
}

/// Misuse 41, 49.
#[test]
fn hooks_that_refuse_for_ever_end_in_the_oom_hook_after_bounded_work() {
    for bits in [STUCK, NO_SWAP, PRIVATE, LIAR] {
        let mm = machine(600, 1, 2);
        let group = mm.create_memcg(MemcgId::ROOT).unwrap();
        faults(&mm, group, Backing::Anon, 100, bits);
        mm.set_memcg_max(group, 100).unwrap();
        let (calls, hooks) = (OOM_CALLS.get(), kernel::HOOK_CALLS.get());
        assert!(fault(&mm, group, Backing::Anon).is_none(), "{bits:#b}");
        assert_eq!(OOM_CALLS.get() - calls, 1);
        assert!(
            kernel::HOOK_CALLS.get() - hooks < 100 * 2 * 26,
            "at most two rounds of thirteen priorities"
        );
        assert_eq!(mm.memcg_usage(group), Ok(100));
        mm.check().unwrap();
        let reclaimed = mm.reclaim(10);
        assert_eq!((reclaimed.freed, reclaimed.stop), (0, Stop::Exhausted));
        mm.check().unwrap();
    }
}

/// Misuse 42: the hook itself asserts that its charge over the limit is refused.
#[test]
fn a_hook_that_allocates_does_not_reclaim_inside_reclaim() {
    let mm = machine(600, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    faults(&mm, group, Backing::Anon, 64, NESTS);
    mm.set_memcg_max(group, 10).unwrap();
    let reclaimed = mm.shrink_memcg(group, 8).unwrap();
    assert_eq!(reclaimed.freed, 8);
    assert_eq!(mm.memcg_usage(group), Ok(56));
    mm.check().unwrap();
}

/// Misuse 43, 58.
#[test]
fn a_hook_that_panics_leaves_every_folio_on_a_list_and_every_lock_free() {
    let mm = machine(600, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let pages = faults(&mm, group, Backing::Anon, 60, 0);
    mm.try_get(pages[5]).unwrap().set_word_bits(PANICS);
    let caught = catch_unwind(AssertUnwindSafe(|| mm.shrink_memcg(group, 32)));
    assert!(caught.is_err());
    mm.check().unwrap();
    mm.try_get(pages[5]).unwrap().clear_word_bits(PANICS);
    let left = mm.memcg_usage(group).unwrap();
    assert_eq!(mm.shrink_memcg(group, left).unwrap().freed, left);
    mm.check().unwrap();
}

#[test]
fn a_page_that_is_used_gets_a_second_chance_and_one_that_is_not_goes_first() {
    let mm = machine(600, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let pages = faults(&mm, group, Backing::Anon, 64, 0);
    for &used in &pages[..32] {
        mm.try_get(used).unwrap().set_word_bits(ACCESSED);
    }
    assert_eq!(mm.shrink_memcg(group, 32).unwrap().freed, 32);
    for (i, &pfn) in pages.iter().enumerate() {
        assert_eq!(mm.try_get(pfn).is_some(), i < 32, "page {i}");
    }
    mm.check().unwrap();
}

#[test]
fn the_last_page_of_a_group_is_within_reach_of_one_reclaim_even_if_it_was_used_twice() {
    let mm = machine(600, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let page = faults(&mm, group, Backing::Anon, 1, ACCESSED)[0];
    mm.try_get(page).unwrap().mark_accessed();
    // The first round makes it active; the second deactivates it and must look at it again.
    assert_eq!(mm.shrink_memcg(group, 1).unwrap().freed, 1);
    mm.check().unwrap();
}

/// Misuse 27.
#[test]
fn a_cpu_without_batches_of_its_own_is_served_directly() {
    let mm = machine(300, 1, 2);
    run_as(77);
    let held = folio(&mm, MemcgId::ROOT);
    held.add_to_lru(Backing::Anon).unwrap();
    assert!(held.isolate().is_ok(), "linked at once");
    held.activate();
    assert!(held.is_active());
    drop(held);
    assert_eq!(mm.reclaim(1).freed, 0);
    run_as(0);
    mm.check().unwrap();
    assert_eq!(
        mm.allocator().free_frames(),
        mm.allocator().managed_frames()
    );
}

/// Misuse 15.
#[test]
fn pages_of_another_instance_are_not_charged_here() {
    let (one, two) = (machine(300, 1, 2), machine(300, 1, 2));
    let pages = one.try_alloc(Request::new(Order::ZERO)).unwrap();
    let Refused(error, pages) = pages.try_charge_to(&two, MemcgId::ROOT).unwrap_err();
    assert_eq!(error, ChargeError::Foreign);
    drop(pages);
    two.check().unwrap();
    assert_eq!(
        one.allocator().free_frames(),
        one.allocator().managed_frames()
    );
}

#[test]
fn a_batch_takes_each_lruvec_lock_once_however_its_folios_alternate() {
    let mm = machine(600, 1, 3);
    let groups = [0, 1, 2].map(|_| mm.create_memcg(MemcgId::ROOT).unwrap());
    let before = locks_taken(Rank::LruVec);
    let folios: Vec<_> = (0..310).map(|i| folio(&mm, groups[i % 3])).collect();
    folios
        .iter()
        .for_each(|folio| folio.add_to_lru(Backing::Anon).unwrap());
    assert_eq!(
        locks_taken(Rank::LruVec) - before,
        30,
        "10 batches of 31, 3 lruvecs each"
    );
    let before = locks_taken(Rank::LruVec);
    folios.iter().for_each(Folio::activate);
    assert_eq!(locks_taken(Rank::LruVec) - before, 30);
    assert!(folios.iter().all(|folio| folio.is_active()));
    mm.check().unwrap();
}

/// R31: what a kernel noted of a folio goes with the folio.
#[test]
fn a_frames_word_and_note_are_empty_whoever_gets_it_next() {
    let mm = machine(300, 1, 2);
    let first = folio(&mm, MemcgId::ROOT);
    let pfn = first.pfn();
    first.add_to_lru(Backing::File).unwrap();
    first.set_word(!6);
    assert_eq!(first.word(), !6, "all 64 bits are the kernel's");
    first.set_word_bits(!0);
    first.mlock();
    drop(first);
    mm.drain_lru();
    let mut others = Vec::new();
    let again = loop {
        let next = folio(&mm, MemcgId::ROOT);
        if next.pfn() == pfn {
            break next;
        }
        others.push(next);
    };
    assert_eq!((again.word(), again.is_mlocked()), (0, false));
    assert!(!again.is_active());
    drop((again, others));
    mm.check().unwrap();
}

/// B23: a request that only a low zone can serve, all of whose folios are active, while the inactive ones are in a higher zone.
#[test]
fn a_request_for_a_low_zone_gets_its_active_pages_before_it_is_out_of_memory() {
    OOM_CALLS.set(0);
    let mm = machine(8000, 1, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let low = Request::new(Order::ZERO).zone(ZoneKind::Dma);
    let mut pages = Vec::new();
    let mut fill = |request: Request, active| {
        while let Ok(free) = mm.try_alloc(request.reclaim(Reclaim::None).ignore_watermarks()) {
            let folio = free.try_charge_to(&mm, group).unwrap();
            folio.add_to_lru(Backing::File).unwrap();
            if active {
                folio.activate();
            }
            pages.push(kernel::map(folio));
        }
    };
    fill(low, true);
    fill(Request::new(Order::ZERO), false);
    mm.drain_lru();
    for _ in 0..200 {
        let got = mm.alloc(low).unwrap();
        assert!(got.pfn().0 < 4096);
        let _mapped = got.try_charge_to(&mm, group).unwrap().into_raw();
    }
    assert_eq!(OOM_CALLS.get(), 0);
    mm.check().unwrap();
}
