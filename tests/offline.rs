//! Ranges that go offline and come back: what is managed, present and kept free follows.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use framekeeper::alloc::ZoneCounts;
use framekeeper::node::Tuning;
use framekeeper::{
    Config, ContigError, FrameRange, Mobility, Moved, NodeId, OnlineError, Order, PageAllocator,
    Pfn, PhysAddr, Request, WasBad,
};
use host::{Host, locks_held};
use machine::{FIRST, all, allocator, one_region, range, stay};

const ONE: Request = Request::new(Order::ZERO)
    .mobility(Mobility::Movable)
    .ignore_watermarks();
fn machine() -> PageAllocator<Host> {
    allocator(one_region(FIRST, 1 << 15), &Config::default()).unwrap()
}

fn counts(allocator: &PageAllocator<Host>) -> ZoneCounts {
    allocator.zone_counts().next().unwrap()
}

#[test]
fn a_range_offline_is_neither_managed_nor_given_and_comes_back_as_it_was() {
    let allocator = machine();
    let before = counts(&allocator);
    // Aligned and not, twice over, one inside a pageblock.
    for gone in [range(512, 8192), range(700, 1201), range(9, 10)] {
        allocator.offline(gone, stay).unwrap();
        allocator.check().unwrap();
        let now = counts(&allocator);
        assert_eq!(now.managed, before.managed - gone.frames());
        assert_eq!(now.present, before.present - gone.frames());
        assert_eq!(allocator.free_frames(), before.managed - gone.frames());
        let held = all(&allocator, ONE);
        assert_eq!(held.len() as u64, now.managed);
        assert!(gone.iter().all(|pfn| !held.contains_key(&pfn.0)));
        // What is offline is no memory for others either.
        let first = gone.start();
        assert_eq!(
            allocator.offline(gone, stay),
            Err(ContigError::Unusable(first))
        );
        let contig = allocator.alloc_contig(gone, stay).map(drop);
        assert_eq!(contig, Err(ContigError::Unusable(first)));
        assert!(allocator.mark_bad(first).is_err());
        drop(held);
        allocator.online(gone).unwrap();
        allocator.check().unwrap();
        assert_eq!(allocator.online(gone), Err(OnlineError::Online(first)));
        allocator.drain_all();
        assert_eq!(counts(&allocator), before);
    }
}

/// R20: the reserve of the lower zone follows the upper one's size.
#[test]
fn watermarks_reserves_and_pageset_limits_follow_what_is_managed() {
    let mut map = one_region(FIRST - (1 << 14), 1 << 15);
    map.add(NodeId(1), PhysAddr(1 << 40), 1 << 26).unwrap();
    let allocator = allocator(map, &Config::default()).unwrap();
    let levels = |n: usize| allocator.zones().nth(n).unwrap().levels();
    let before = levels(1);
    let limits: Vec<_> = allocator.pageset_counts().map(|p| p.limits).collect();
    allocator.offline(range(0, 1 << 13), stay).unwrap();
    assert!(levels(1).min < before.min);
    // Its own stored marks, limits and reserves against fresh ones, in every zone.
    allocator.check().unwrap();
    assert_ne!(
        limits,
        allocator
            .pageset_counts()
            .map(|p| p.limits)
            .collect::<Vec<_>>()
    );
    allocator.online(range(0, 1 << 13)).unwrap();
    assert_eq!(levels(1), before);
    allocator.check().unwrap();
}

/// R34
#[test]
fn a_whole_zone_goes_and_comes_even_below_the_minimum_that_was_asked_for() {
    let config = Config {
        tuning: Tuning {
            min_free_kib: Some(64 << 10),
            ..Tuning::default()
        },
        ..Config::default()
    };
    let allocator = allocator(one_region(FIRST, 1 << 15), &config).unwrap();
    let before = counts(&allocator);
    let limits = || -> Vec<_> { allocator.pageset_counts().map(|p| p.limits).collect() };
    let limits_before = limits();
    for step in 0..8 {
        let part = range(step << 12, (step + 1) << 12);
        allocator.offline(part, stay).unwrap();
        allocator.check().unwrap();
    }
    let empty = counts(&allocator);
    assert_eq!((empty.managed, empty.present, empty.free), (0, 0, 0));
    assert!(allocator.try_alloc(ONE).is_err());
    allocator.online(range(0, 1 << 15)).unwrap();
    assert_eq!(counts(&allocator), before);
    assert_eq!(limits(), limits_before);
    allocator.check().unwrap();
}

#[test]
fn kinds_are_kept_apart_only_while_enough_is_online() {
    let allocator = machine();
    let zone = allocator.zones().next().unwrap();
    let kept_apart = || zone.grouped(Mobility::Unmovable) == Mobility::Unmovable;
    assert!(kept_apart());
    allocator.offline(range(2048, 1 << 15), stay).unwrap();
    assert!(!kept_apart());
    allocator.check().unwrap();
    allocator.online(range(2048, 1 << 14)).unwrap();
    assert!(kept_apart());
}

#[test]
fn what_is_in_use_is_moved_away_first_by_a_hook_that_holds_no_lock() {
    let allocator = machine();
    let mut held = all(&allocator, ONE);
    held.retain(|pfn, _| pfn % 3 == 0);
    let gone = range(1000, 3001);
    let mut asked = 0;
    allocator
        .offline(gone, |run| {
            assert_eq!(locks_held(), 0);
            asked += 1;
            for pfn in run.iter() {
                assert!(gone.contains(pfn));
                // To where it is moved.
                let target = allocator.try_alloc(ONE).unwrap();
                assert!(!range(512, 3072).contains(target.pfn()));
                held.remove(&pfn.0);
                held.insert(target.pfn().0, target);
            }
            Moved::Tried
        })
        .unwrap();
    assert_eq!(asked, 667);
    allocator.check().unwrap();
    drop(held);
    allocator.online(gone).unwrap();
    assert_eq!(allocator.free_frames(), 1 << 15);
    allocator.check().unwrap();
}

/// misuse 23
#[test]
fn an_offline_that_fails_leaves_everything_as_it_was() {
    let mut map = one_region(FIRST - 2048, 1 << 13);
    map.add(NodeId(1), PhysAddr(1 << 40), 1 << 24).unwrap();
    map.reserve(Pfn(FIRST + 9).addr(12), 4096).unwrap();
    let allocator = allocator(map, &Config::default()).unwrap();
    let used = allocator.try_alloc(ONE).unwrap();
    allocator.drain_all();
    let before: Vec<_> = allocator.zone_counts().collect();
    let tried = |range| allocator.offline(range, stay);
    assert_eq!(tried(range(9, 5)), Err(ContigError::Empty));
    let end = Pfn(FIRST + (1 << 14) - 1);
    assert_eq!(tried(range(0, 1 << 14)), Err(ContigError::Outside(end)));
    let both = FrameRange::new(Pfn(FIRST - 1), Pfn(FIRST + 1));
    assert_eq!(tried(both), Err(ContigError::SeveralZones(both)));
    let hole = Pfn(FIRST + 9);
    assert_eq!(tried(range(0, 100)), Err(ContigError::Reserved(hole)));
    let around = FrameRange::new(used.pfn(), Pfn(used.pfn().0 + 1));
    assert_eq!(tried(around), Err(ContigError::Unmovable(used.pfn())));
    let mut rounds = 0;
    let error = allocator.offline(around, |_| {
        rounds += 1;
        // Two at once: the second is told so.
        let second = allocator.offline(around, stay);
        assert!(matches!(second, Err(ContigError::Busy(_))));
        Moved::Tried
    });
    assert_eq!(error, Err(ContigError::InUse(used.pfn())));
    assert_eq!(rounds, 5);
    assert_eq!(allocator.zone_counts().collect::<Vec<_>>(), before);
    allocator.check().unwrap();
}

#[test]
fn only_memory_that_is_there_and_was_not_reserved_comes_online() {
    let mut map = one_region(FIRST, 1 << 13);
    map.add(NodeId(1), PhysAddr((FIRST + (1 << 13)) << 12), 1 << 24)
        .unwrap();
    map.reserve(Pfn(FIRST + 600).addr(12), 2 << 12).unwrap();
    let allocator = allocator(map, &Config::default()).unwrap();
    let reserved = Pfn(FIRST + 600);
    let next = Pfn(FIRST + (1 << 13));
    assert_eq!(allocator.online(range(7, 7)), Err(OnlineError::Empty));
    for (start, end) in [(600, 601), (512, 602), (0, 1024)] {
        let online = allocator.online(range(start, end));
        assert_eq!(online, Err(OnlineError::Reserved(reserved)));
    }
    // Over the end of the zone, into another, and far away.
    let online = allocator.online(range(8000, 9000));
    assert_eq!(online, Err(OnlineError::Outside(next)));
    let online = allocator.online(FrameRange::new(Pfn(5), Pfn(6)));
    assert_eq!(online, Err(OnlineError::Outside(Pfn(5))));
    let first = Pfn(FIRST + 1024);
    let online = allocator.online(range(1024, 1025));
    assert_eq!(online, Err(OnlineError::Online(first)));
    allocator.check().unwrap();
    // Half of it is offline: nothing of it comes online.
    allocator.offline(range(2048, 2100), stay).unwrap();
    let free = allocator.free_frames();
    let online = allocator.online(range(2048, 2101));
    assert_eq!(online, Err(OnlineError::Online(Pfn(FIRST + 2100))));
    assert_eq!(allocator.free_frames(), free);
    allocator.check().unwrap();
}

/// misuse 25
#[test]
fn a_bad_frame_in_use_keeps_its_range_online_and_a_free_one_stays_bad() {
    let allocator = machine();
    let used = allocator.try_alloc(ONE).unwrap();
    let (in_use, free) = (used.pfn(), Pfn(FIRST + 3000));
    assert_eq!(allocator.mark_bad(in_use), Ok(WasBad::InUse));
    assert_eq!(allocator.mark_bad(free), Ok(WasBad::Free));
    let line = in_use.0 & !511;
    let around = FrameRange::new(Pfn(line), Pfn(line + 512));
    let offline = allocator.offline(around, stay);
    assert_eq!(offline, Err(ContigError::Unmovable(in_use)));
    let offline = allocator.offline(around, |_| Moved::Tried);
    assert_eq!(offline, Err(ContigError::InUse(in_use)));
    allocator.check().unwrap();
    drop(used);
    for gone in [around, range(2048, 4096)] {
        allocator.offline(gone, stay).unwrap();
        allocator.check().unwrap();
        allocator.online(gone).unwrap();
        allocator.check().unwrap();
    }
    assert_eq!(allocator.bad_frames(), 2);
    assert_eq!(allocator.free_frames(), (1 << 15) - 2);
    let held = all(&allocator, ONE);
    assert!(!held.contains_key(&in_use.0) && !held.contains_key(&free.0));
}
