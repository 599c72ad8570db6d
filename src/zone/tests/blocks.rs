//! Taking and giving, case by case.

extern crate std;
use std::vec;
use std::vec::Vec;

use super::{Random, absent, drain, online, order, range};
use crate::addr::{Order, Pfn};
use crate::platform::IrqOff;
use crate::zone::{Block, Fault, Mobility, OnlineError};

#[test]
fn four_thousand_isolated_frames_serve_four_thousand_single_requests() {
    // A refill must not ask for neighbours.
    let zone = online(0, 8192, 1);
    let off = IrqOff::new();
    let mut all = vec![0; 8192];
    assert_eq!(
        zone.take_blocks(Order::ZERO, Mobility::Movable, 0, &mut all, &off),
        8192
    );
    let mut odd: Vec<u32> = all.into_iter().filter(|frame| frame % 2 == 1).collect();
    zone.give_blocks(Order::ZERO, &mut odd, &off);
    assert_eq!(zone.free_blocks(Order::ZERO), 4096);
    assert_eq!(drain(zone, Order::ZERO, Mobility::Movable), 4096);
}

/// R27: start 0 has no lowest set bit.
#[test]
fn the_gib_at_frame_zero_is_one_block_of_order_18() {
    let zone = online(0, 1 << 18, 4);
    assert_eq!(zone.free_blocks(Order::MAX), 1);
    let off = IrqOff::new();
    let block = zone.take(Order::MAX, Mobility::Unmovable, 0, &off).unwrap();
    assert_eq!((block.pfn(), zone.free_frames_exact()), (Pfn(0), 0));
    zone.give(block, &off).unwrap();
    zone.check().unwrap();
}

/// R14: the buddy of the order-9 block at 512 would be block 0, below the base.
#[test]
fn a_block_at_the_base_of_the_zone_finds_no_buddy_below_it() {
    let zone = online(512, 1024, 1);
    let off = IrqOff::new();
    let block = zone.take(order(9), Mobility::Movable, 0, &off).unwrap();
    assert_eq!(block.pfn(), Pfn(512));
    zone.give(block, &off).unwrap();
    assert_eq!(zone.free_blocks(order(9)), 1);
    assert!(zone.take(order(10), Mobility::Movable, 0, &off).is_none());
}

/// R15: the zone ends where its metadata ends.
#[test]
fn the_last_block_of_a_zone_is_freed_without_looking_past_the_end() {
    let zone = online(0, 3 << 10, 1);
    let off = IrqOff::new();
    let blocks: Vec<Block> = (0..3)
        .map(|_| zone.take(order(10), Mobility::Movable, 0, &off).unwrap())
        .collect();
    assert_eq!(zone.free_frames_exact(), 0);
    for block in blocks {
        zone.give(block, &off).unwrap();
    }
    assert_eq!(
        (zone.free_blocks(order(11)), zone.free_blocks(order(10))),
        (1, 1)
    );
    zone.check().unwrap();
}

/// R25: a neighbour that is not there yet is never joined.
#[test]
fn sections_that_come_online_in_any_order_end_in_the_same_state() {
    let parts: Vec<u64> = (0..16).collect();
    let serial = online(0, 16 * 1024, 1);
    for shift in [1, 3, 7, 11] {
        let zone = absent(0, 16 * 1024, 1);
        let off = IrqOff::new();
        for part in &parts {
            let start = (part * shift + 5) % 16 * 1024;
            zone.online(range(start, start + 1024), &off).unwrap();
            zone.check().unwrap();
            let largest = zone.free_blocks_by_order().iter().rposition(|n| *n > 0);
            assert!(1 << largest.unwrap() <= zone.managed());
        }
        assert_eq!(zone.free_blocks_by_order(), serial.free_blocks_by_order());
    }
}

#[test]
fn frames_that_do_not_fit_are_refused_and_nothing_changes() {
    let zone = absent(512, 4096, 1);
    let off = IrqOff::new();
    zone.online(range(512, 1030), &off).unwrap();
    let before = zone.free_blocks_by_order();
    for (pfn, k, fault) in [
        (0, 0, Fault::Outside),
        (4096, 0, Fault::Outside),
        (513, 1, Fault::Unaligned),
        (600, 0, Fault::AlreadyFree),
        (512, 9, Fault::AlreadyFree),
        (1030, 0, Fault::Unmanaged),
        (1024, 9, Fault::Unmanaged),
        (2048, 10, Fault::Unmanaged),
        (0, 18, Fault::Outside),
    ] {
        assert_eq!(
            zone.give(Block::new(Pfn(pfn), order(k)), &off),
            Err(fault),
            "{pfn}"
        );
    }
    let faults = zone.faults();
    zone.give_blocks(Order::ZERO, &mut [0, 1, 600, 3000, u32::MAX], &off);
    assert_eq!(zone.faults(), faults + 5);
    assert_eq!(zone.free_blocks_by_order(), before);
    zone.check().unwrap();
}

/// R30: an order-3 block comes back as eight frames, exactly once.
#[test]
fn one_frame_is_given_back_once() {
    let zone = online(0, 1024, 1);
    let off = IrqOff::new();
    let block = zone.take(order(3), Mobility::Movable, 0, &off).unwrap();
    let again = Block::new(block.pfn(), block.order());
    assert_eq!(zone.free_frames_exact(), 1016);
    zone.give(block, &off).unwrap();
    assert_eq!(zone.give(again, &off), Err(Fault::AlreadyFree));
    assert_eq!(zone.free_frames_exact(), 1024);
}

#[test]
fn a_range_comes_online_once_and_only_inside_the_span() {
    let zone = absent(100, 2000, 1);
    let off = IrqOff::new();
    zone.online(range(100, 700), &off).unwrap();
    for (start, end) in [(699, 800), (100, 101), (99, 100), (1999, 2001)] {
        assert!(zone.online(range(start, end), &off).is_err());
    }
    assert_eq!(
        zone.online(range(600, 701), &off),
        Err(OnlineError::AlreadyManaged {
            range: range(600, 701)
        })
    );
    assert_eq!((zone.managed(), zone.free_frames_exact()), (600, 600));
    zone.online(range(700, 2000), &off).unwrap();
    zone.check().unwrap();
    assert_eq!(zone.managed(), 1900);
    assert!(zone.is_managed(Pfn(100)) && !zone.is_managed(Pfn(99)));
}

#[test]
fn a_zone_of_one_frame_gives_one_frame() {
    let zone = online(12345, 12346, 8);
    assert_eq!(drain(zone, Order::ZERO, Mobility::Reclaimable), 1);
    assert_eq!(zone.free_frames_exact(), 0);
    zone.check().unwrap();
}

#[test]
fn pageblocks_given_and_taken_in_one_hold_agree_with_those_that_go_one_by_one() {
    // Two giants and a half, from the middle of a giant on; one line has a bad frame.
    let start = 300 * 512;
    let zone = online(start, start + (1 << 19) + (1 << 17), 2);
    let off = IrqOff::new();
    super::set_cma(zone, range(start + 512, start + 1024)).unwrap();
    zone.mark_bad(Pfn(start + 5 * 512 + 7), &off).unwrap();
    let mut random = Random(9);
    let mut held: Vec<u32> = Vec::new();
    for _ in 0..60 {
        let mut out = vec![0; 1 + random.below(100) as usize];
        let n = zone.take_blocks(order(9), Mobility::Movable, 0, &mut out, &off);
        held.extend_from_slice(&out[..n]);
        zone.check().unwrap();
        for i in (1..held.len()).rev() {
            held.swap(i, random.below(i as u64 + 1) as usize);
        }
        let mut back = held.split_off(held.len() / 2);
        zone.give_blocks(order(9), &mut back, &off);
        zone.check().unwrap();
        assert_eq!(zone.faults(), 0);
    }
    // Given twice, one of them in the same call: each but the first is refused.
    let free = zone.free_frames_exact();
    let twice = held.pop().unwrap();
    zone.give_blocks(order(9), &mut [twice, twice, held[0], twice], &off);
    assert_eq!(zone.faults(), 2);
    assert_eq!(zone.free_frames_exact(), free + 1024);
    zone.give_blocks(order(9), &mut held[1..], &off);
    zone.check().unwrap();
    assert_eq!(zone.free_frames_exact(), zone.managed() - 1);
}

#[test]
fn pageblocks_taken_together_leave_the_larger_blocks_whole() {
    let zone = online(0, 1 << 18, 1);
    let off = IrqOff::new();
    let mut out = [0; 12];
    assert_eq!(
        zone.take_blocks(order(9), Mobility::Movable, 0, &mut out, &off),
        12
    );
    // 8 and 4 lines from one end: what is left is one block of each order from 11 up.
    let free = zone.free_blocks_by_order();
    assert_eq!(free[9..], [0, 0, 1, 0, 1, 1, 1, 1, 1, 0]);
}
