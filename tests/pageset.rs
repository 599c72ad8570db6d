//! How often pagesets go to their zone, and how much they hold.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use framekeeper::node::Tuning;
use framekeeper::pageset::Exchanges;
use framekeeper::pageset::tune::Policy;
use framekeeper::{Config, Order, PageAllocator, Pages, Request};
use host::Host;
use machine::{allocator, one_region};

const ONE: Request = Request::new(Order::ZERO);

/// A zone of so many frames with one shard and one CPU; pools large enough that nothing is clipped.
fn zone(frames: u64, policy: Policy) -> PageAllocator<Host> {
    let config = Config {
        shards: Some(1),
        pageset_slots: 1 << 17,
        tuning: Tuning {
            policy,
            ..Tuning::default()
        },
        ..Config::default()
    };
    allocator(one_region(1 << 20, frames), &config).unwrap()
}

fn exchanges(allocator: &PageAllocator<Host>) -> Exchanges {
    allocator.pageset_counts().next().unwrap().exchanges
}

/// Refills of so many allocations from empty, and trims of as many frees.
fn count(allocator: &PageAllocator<Host>, n: usize) -> (u64, u64) {
    allocator.drain_all();
    let before = exchanges(allocator);
    let held: Vec<Pages<'_, Host>> = (0..n).map(|_| allocator.try_alloc(ONE).unwrap()).collect();
    let full = exchanges(allocator);
    allocator.drain_all();
    let drained = exchanges(allocator);
    drop(held);
    let after = exchanges(allocator);
    allocator.check().unwrap();
    (full.refills - before.refills, after.trims - drained.trims)
}

#[test]
fn a_fixed_pageset_takes_the_locks_of_the_closed_form() {
    // allocator.md 7.2: 7/42 in a zone of 128 MiB, 63/378 in a large one.
    assert_eq!(count(&zone(32_768, Policy::Fixed), 10_000), (1429, 1423));
    assert_eq!(count(&zone(262_144, Policy::Fixed), 10_000), (159, 153));
    // A zone below 32 MiB holds nothing.
    let tiny = zone(8_000, Policy::Fixed);
    let held: Vec<_> = (0..100).map(|_| tiny.try_alloc(ONE).unwrap()).collect();
    drop(held);
    assert_eq!(tiny.parked_frames(), 0);
}

#[test]
fn bursts_within_the_limit_take_no_locks_once_warm() {
    // allocator.md 7.2: free of locks up to high - batch.
    for (frames, quiet) in [(32_768, 35), (262_144, 315)] {
        let allocator = zone(frames, Policy::Fixed);
        let burst = |n: usize| {
            let held: Vec<_> = (0..n).map(|_| allocator.try_alloc(ONE).unwrap()).collect();
            drop(held);
        };
        burst(quiet);
        let warm = exchanges(&allocator);
        (0..100).for_each(|_| burst(quiet));
        assert_eq!(exchanges(&allocator), warm);
        (0..100).for_each(|_| burst(quiet * 2));
        assert_ne!(exchanges(&allocator), warm);
    }
}

#[test]
fn the_automatic_rule_refills_in_doubling_batches() {
    // allocator.md 7.3: 63, 126, 252, 504, 1008, then 2016 at a time.
    let (refills, _) = count(&zone(4 << 18, Policy::Auto), 10_000);
    assert_eq!(refills, 9);
}

#[test]
fn a_quiet_pageset_gives_back_what_it_grew_to_hold() {
    let allocator = zone(1 << 20, Policy::Auto);
    let held: Vec<_> = (0..20_000)
        .map(|_| allocator.try_alloc(ONE).unwrap())
        .collect();
    drop(held);
    let grown = allocator.pageset_counts().next().unwrap();
    assert!(grown.high > grown.limits.high_min);
    for _ in 0..200 {
        allocator.tick();
    }
    let rested = allocator.pageset_counts().next().unwrap();
    assert_eq!(rested.high, rested.limits.high_min);
    assert!(rested.parked <= rested.high);
    assert_eq!(allocator.free_frames(), 1 << 20);
    allocator.check().unwrap();
}

#[test]
fn a_pageset_keeps_four_batches_while_memory_is_reclaimed() {
    use framekeeper::pageset::Pressure;
    // allocator.md 3.5: while reclaim runs the limit is 4 batches, at most high.
    let allocator = zone(1 << 20, Policy::Auto);
    let parked_after_freeing = |pressure| {
        allocator.set_pressure(pressure);
        let held: Vec<_> = (0..5000)
            .map(|_| allocator.try_alloc(ONE).unwrap())
            .collect();
        drop(held);
        allocator.pageset_counts().next().unwrap()
    };
    let calm = parked_after_freeing(Pressure::None);
    let reclaiming = parked_after_freeing(Pressure::Reclaiming);
    assert!(reclaiming.parked <= 4 * reclaiming.limits.batch + 64);
    assert!(calm.parked > reclaiming.parked);
    allocator.check().unwrap();
}

/// R10: the count stays within the limit; alternating takes no lock.
#[test]
fn blocks_of_order_three_that_are_only_freed_do_not_pile_up() {
    let order3 = Request::new(Order::new(3).unwrap());
    for policy in [Policy::Fixed, Policy::Auto] {
        let allocator = zone(1 << 19, policy);
        let held: Vec<_> = (0..1000)
            .map(|_| allocator.try_alloc(order3).unwrap())
            .collect();
        for pages in held {
            drop(pages);
            let now = allocator.pageset_counts().next().unwrap();
            assert!(now.parked <= now.high.max(now.limits.high_min) + 8);
        }
        let before = exchanges(&allocator);
        for _ in 0..1000 {
            drop(allocator.try_alloc(order3).unwrap());
        }
        assert!(exchanges(&allocator).refills - before.refills <= 1);
        assert_eq!(exchanges(&allocator).trims, before.trims);
    }
}

#[test]
fn pageblocks_are_parked_in_large_zones_only() {
    let pageblock = Request::new(Order::PAGEBLOCK);
    let large = zone(1 << 20, Policy::Fixed);
    drop(large.try_alloc(pageblock).unwrap());
    assert_eq!(large.parked_frames() % 512, 0);
    assert!(large.parked_frames() > 0);
    let held: Vec<_> = (0..100)
        .map(|_| large.try_alloc(pageblock).unwrap())
        .collect();
    drop(held);
    // No more than a thirty-second of the zone, and 24 pageblocks.
    assert!(large.parked_frames() <= 24 * 512);
    let small = zone(100_000, Policy::Fixed);
    drop(small.try_alloc(pageblock).unwrap());
    assert_eq!(small.parked_frames(), 0);
}

/// R4, R33: the last block overshoots, the count never goes below zero.
#[test]
fn a_drain_bigger_than_the_blocks_that_are_left_ends() {
    let allocator = zone(1 << 20, Policy::Auto);
    drop(allocator.try_alloc(Request::new(Order::PAGEBLOCK)).unwrap());
    allocator.drain_all();
    allocator.drain_all();
    assert_eq!(allocator.parked_frames(), 0);
    assert_eq!(allocator.free_frames(), 1 << 20);
    allocator.check().unwrap();
}
