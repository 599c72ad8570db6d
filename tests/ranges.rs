//! Ranges and single frames of the kernel's choice: bad ones, contiguous ones.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use framekeeper::alloc::{ContigError, Moved};
use framekeeper::zone::{MarkError, WasBad};
use framekeeper::{
    Config, FrameRange, Mobility, NodeId, Order, PageAllocator, Pfn, PhysAddr, Request,
};
use host::{Host, locks_held};
use machine::{FIRST, all, allocator, one_region, range};

const ONE: Request = Request::new(Order::ZERO)
    .mobility(Mobility::Movable)
    .ignore_watermarks();
fn machine() -> PageAllocator<Host> {
    allocator(one_region(FIRST, 1 << 13), &Config::default()).unwrap()
}

/// misuse 25: free, in use, on a pageset, inside a huge block
#[test]
fn a_bad_frame_is_never_given_again_wherever_it_was_found() {
    let allocator = machine();
    assert_eq!(allocator.mark_bad(Pfn(FIRST + 700)), Ok(WasBad::Free));
    assert_eq!(allocator.mark_bad(Pfn(FIRST + 700)), Ok(WasBad::Already));
    let huge = allocator
        .try_alloc(Request::new(Order::new(10).unwrap()))
        .unwrap();
    let inside = Pfn(huge.pfn().0 + 300);
    let used = allocator.try_alloc(ONE).unwrap();
    let parked = allocator.try_alloc(ONE).unwrap();
    let (in_use, on_pageset) = (used.pfn(), parked.pfn());
    drop(parked);
    for pfn in [on_pageset, inside, in_use] {
        assert_eq!(allocator.mark_bad(pfn), Ok(WasBad::InUse));
        assert_eq!(allocator.parked_frames(), 0);
    }
    drop((huge, used));
    allocator.check().unwrap();
    assert_eq!(allocator.bad_frames(), 4);
    assert_eq!(allocator.free_frames(), allocator.managed_frames() - 4);
    for _ in 0..2 {
        let held = all(&allocator, ONE);
        assert_eq!(held.len() as u64, allocator.managed_frames() - 4);
        for bad in [Pfn(FIRST + 700), inside, in_use, on_pageset] {
            assert!(!held.contains_key(&bad.0));
        }
    }
    allocator.check().unwrap();
}

/// misuse 25: however it comes back: alone, with others, in a huge block, by its number, with a range
#[test]
fn pagesets_park_again_once_the_last_bad_frame_in_use_has_come_back() {
    let allocator = machine();
    let parks = || {
        drop(allocator.try_alloc(ONE).unwrap());
        let parks = allocator.parked_frames() > 0;
        allocator.check().unwrap();
        allocator.drain_all();
        parks
    };
    assert!(parks());
    let alone = allocator.try_alloc(ONE).unwrap();
    let others: Vec<_> = (0..40).map(|_| allocator.try_alloc(ONE).unwrap()).collect();
    let huge = allocator.try_alloc(Request::new(Order::new(11).unwrap()));
    let huge = huge.unwrap();
    let small = allocator.try_alloc(Request::new(Order::new(3).unwrap()));
    let small = small.unwrap();
    let contig = allocator
        .alloc_contig(range(8000, 8192), |_| Moved::Tried)
        .unwrap();
    let mut bad = vec![alone.pfn(), others[7].pfn(), others[21].pfn()];
    bad.extend([300, 1300, 1301].map(|n| Pfn(huge.pfn().0 + n)));
    bad.extend([Pfn(small.pfn().0 + 5), Pfn(FIRST + 8001)]);
    for &pfn in &bad {
        assert_eq!(allocator.mark_bad(pfn), Ok(WasBad::InUse));
        assert!(!parks());
    }
    drop(alone);
    assert!(!parks());
    allocator.free_all(others);
    assert!(!parks());
    drop(huge);
    assert!(!parks());
    let (raw, order) = (small.into_raw(), Order::new(3).unwrap());
    drop(allocator.try_from_raw(raw, order).unwrap());
    assert!(!parks());
    drop(contig);
    assert!(parks());
    assert_eq!(allocator.bad_frames(), 8);
    assert_eq!(allocator.free_frames(), allocator.managed_frames() - 8);
    let held = all(&allocator, ONE);
    assert!(bad.iter().all(|pfn| !held.contains_key(&pfn.0)));
}

#[test]
fn whatever_brings_the_last_bad_frame_back_opens_the_pagesets_at_once() {
    let allocator = machine();
    let one = || allocator.try_alloc(ONE).unwrap();
    let block = |order| {
        let request = Request::new(Order::new(order).unwrap());
        allocator.try_alloc(request).unwrap()
    };
    let closed = |bad| {
        allocator.drain_all();
        assert_eq!(allocator.mark_bad(bad), Ok(WasBad::InUse));
        assert_eq!(allocator.parked_frames(), 0);
    };
    let opened = || {
        drop(allocator.try_alloc(ONE).unwrap());
        assert!(allocator.parked_frames() > 0);
        allocator.check().unwrap();
    };
    let alone = one();
    closed(alone.pfn());
    drop(alone);
    opened();
    let many: Vec<_> = (0..40).map(|_| one()).collect();
    closed(many[7].pfn());
    allocator.free_all(many);
    opened();
    let huge = block(11);
    closed(Pfn(huge.pfn().0 + 1300));
    drop(huge);
    opened();
    let contig = allocator.alloc_contig(range(8000, 8192), |_| Moved::Tried);
    closed(Pfn(FIRST + 8001));
    drop(contig);
    opened();
    // Parked: the mark itself brings it back.
    let parked = one();
    let pfn = parked.pfn();
    drop(parked);
    assert_eq!(allocator.mark_bad(pfn), Ok(WasBad::InUse));
    opened();
    assert_eq!(allocator.bad_frames(), 5);
}

/// misuse 25: isolated, free and in use
#[test]
fn a_frame_that_is_found_bad_while_its_range_is_collected_is_not_taken() {
    let allocator = machine();
    let mut held = all(&allocator, ONE);
    let (free, used) = (Pfn(FIRST + 1030), Pfn(FIRST + 1040));
    held.retain(|&pfn, _| pfn == used.0);
    let got = allocator.alloc_contig(range(1024, 1100), |run| {
        assert_eq!(run.start(), used);
        assert_eq!(allocator.mark_bad(free), Ok(WasBad::Free));
        assert_eq!(allocator.mark_bad(used), Ok(WasBad::InUse));
        held.clear();
        Moved::Tried
    });
    assert_eq!(got.unwrap_err(), ContigError::InUse(free));
    assert_eq!(allocator.free_frames(), allocator.managed_frames() - 2);
    allocator.check().unwrap();
    let got = allocator.alloc_contig(range(1024, 1100), |_| Moved::Tried);
    assert_eq!(got.unwrap_err(), ContigError::Unusable(free));
}

#[test]
fn a_frame_that_is_no_memory_cannot_be_marked_bad() {
    let allocator = machine();
    for pfn in [Pfn(0), Pfn(FIRST + (1 << 13)), Pfn(u64::MAX)] {
        assert_eq!(allocator.mark_bad(pfn), Err(MarkError::Unmanaged(pfn)));
    }
    assert_eq!(allocator.bad_frames(), 0);
}

#[test]
fn a_range_is_had_as_one_piece_once_the_kernel_has_moved_what_was_in_it() {
    let allocator = machine();
    let mut held = all(&allocator, ONE);
    held.retain(|pfn, _| pfn % 2 == 0 || *pfn >= FIRST + 4096);
    let wanted = range(1000, 3001);
    let mut calls = 0;
    let contig = allocator
        .alloc_contig(wanted, |run| {
            assert_eq!(locks_held(), 0);
            calls += 1;
            run.iter().for_each(|pfn| drop(held.remove(&pfn.0)));
            Moved::Tried
        })
        .unwrap();
    assert_eq!((contig.frames(), calls), (wanted, 1001));
    allocator.check().unwrap();
    let rest = all(&allocator, ONE);
    assert!(wanted.iter().all(|pfn| !rest.contains_key(&pfn.0)));
    drop((contig, held, rest));
    allocator.check().unwrap();
    assert_eq!(allocator.free_frames(), allocator.managed_frames());
}

/// misuse 23: empty, reversed, outside memory, over two zones, unmovable
#[test]
fn a_range_that_cannot_be_had_is_left_as_it_was() {
    let mut map = one_region(FIRST - 2048, 1 << 13);
    map.add(NodeId(1), PhysAddr(1 << 40), 1 << 24).unwrap();
    map.reserve(Pfn(FIRST + 9).addr(12), 4096).unwrap();
    let allocator = allocator(map, &Config::default()).unwrap();
    let free = allocator.free_frames();
    let tried = |range| {
        allocator
            .alloc_contig(range, |_| Moved::Unmovable)
            .map(|contig| contig.frames())
    };
    assert_eq!(tried(range(5, 5)), Err(ContigError::Empty));
    assert_eq!(tried(range(9, 5)), Err(ContigError::Empty));
    let end = Pfn(FIRST + (1 << 14) - 1);
    assert_eq!(tried(range(0, 1 << 14)), Err(ContigError::Outside(end)));
    let both = FrameRange::new(Pfn(FIRST - 1), Pfn(FIRST + 1));
    assert_eq!(tried(both), Err(ContigError::SeveralZones(both)));
    let hole = Pfn(FIRST + 9);
    assert_eq!(tried(range(0, 100)), Err(ContigError::Unusable(hole)));
    let used = allocator.try_alloc(ONE).unwrap();
    let around = FrameRange::new(used.pfn(), Pfn(used.pfn().0 + 1));
    assert_eq!(tried(around), Err(ContigError::Unmovable(used.pfn())));
    let mut rounds = 0;
    let error = allocator.alloc_contig(around, |run| {
        assert_eq!(run, around);
        rounds += 1;
        Moved::Tried
    });
    assert_eq!(error.unwrap_err(), ContigError::InUse(used.pfn()));
    assert_eq!(rounds, 5);
    drop(used);
    assert_eq!(allocator.free_frames(), free);
    assert!(allocator.zones().all(|zone| zone.isolated_frames() == 0));
    allocator.check().unwrap();
}

/// misuse 24
#[test]
fn the_second_of_two_who_collect_a_pageblock_gets_busy() {
    let allocator = machine();
    let mut used = all(&allocator, ONE);
    let mut second = None;
    let first = allocator.alloc_contig(range(512, 600), |run| {
        let other = allocator.alloc_contig(range(700, 701), |_| Moved::Tried);
        second = other.err();
        run.iter().for_each(|pfn| drop(used.remove(&pfn.0)));
        Moved::Tried
    });
    assert_eq!(second, Some(ContigError::Busy(Pfn(FIRST + 512))));
    drop((first.unwrap(), used));
    assert_eq!(allocator.free_frames(), allocator.managed_frames());
    allocator.check().unwrap();
}
