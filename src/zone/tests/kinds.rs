//! Kinds of lines: who takes from whose, and what is kept for whom.

extern crate std;
use std::vec;
use std::vec::Vec;

use super::{absent, drain, fill, online, order, range, set_cma};
use crate::addr::{Order, Pfn};
use crate::platform::IrqOff;
use crate::zone::{Access, Block, IsolateError, Keep, Level, Levels, Mobility, Purpose};

/// Enough frames that kinds are kept apart.
const FRAMES: u64 = 16 * 512;

#[test]
fn each_kind_fills_lines_of_its_own_while_there_are_whole_ones() {
    let zone = online(0, FRAMES, 1);
    let off = IrqOff::new();
    for _ in 0..100 {
        for kind in [
            Mobility::Unmovable,
            Mobility::Movable,
            Mobility::Reclaimable,
        ] {
            let block = zone.take(Order::ZERO, kind, 0, &off).unwrap();
            assert_eq!(zone.mobility_of(block.pfn()), kind);
            let _ = block.into_parts();
        }
    }
    assert_eq!(zone.free_frames_exact() / 512, 15);
    let whole: u64 = zone.free_blocks_by_order()[9..]
        .iter()
        .enumerate()
        .map(|(k, n)| n << k)
        .sum();
    assert_eq!(whole, 13);
    zone.check().unwrap();
}

#[test]
fn a_line_is_claimed_when_half_of_it_is_free_and_lent_from_when_less_is() {
    for (free, claimed) in [(256, true), (255, false)] {
        let zone = online(0, FRAMES, 1);
        let off = IrqOff::new();
        let mut frames = fill(zone, Mobility::Movable);
        // Runs of 32 in one line: large enough for anyone.
        let mut back: Vec<u32> = frames.drain(1024..1024 + free).collect();
        zone.give_blocks(Order::ZERO, &mut back, &off);
        let block = zone
            .take(Order::ZERO, Mobility::Unmovable, 0, &off)
            .unwrap();
        let expected = if claimed {
            Mobility::Unmovable
        } else {
            Mobility::Movable
        };
        assert_eq!(zone.mobility_of(block.pfn()), expected);
        assert_eq!(zone.free_frames_exact(), free as u64 - 1);
        let _ = block.into_parts();
        zone.check().unwrap();
    }
}

#[test]
fn a_movable_request_lends_small_pieces_and_claims_only_large_ones() {
    let zone = online(0, FRAMES, 1);
    let off = IrqOff::new();
    let frames = fill(zone, Mobility::Unmovable);
    // Half of a line is free, in pieces of order 3.
    let mut back: Vec<u32> = frames[..512]
        .iter()
        .copied()
        .filter(|f| f & 8 == 0)
        .collect();
    zone.give_blocks(Order::ZERO, &mut back, &off);
    let block = zone.take(Order::ZERO, Mobility::Movable, 0, &off).unwrap();
    assert_eq!(zone.mobility_of(block.pfn()), Mobility::Unmovable);
    let _ = block.into_parts();
    let block = zone
        .take(Order::ZERO, Mobility::Reclaimable, 0, &off)
        .unwrap();
    assert_eq!(zone.mobility_of(block.pfn()), Mobility::Unmovable);
    let _ = block.into_parts();
}

#[test]
fn a_small_zone_does_not_keep_kinds_apart() {
    let zone = online(0, 5 * 512, 1);
    let off = IrqOff::new();
    let blocks: Vec<Block> = [
        Mobility::Unmovable,
        Mobility::Movable,
        Mobility::Reclaimable,
    ]
    .into_iter()
    .map(|kind| zone.take(Order::ZERO, kind, 0, &off).unwrap())
    .collect();
    assert!(
        blocks
            .iter()
            .all(|block| block.pfn().0 / 512 == blocks[0].pfn().0 / 512)
    );
    assert_eq!(zone.grouped(Mobility::Unmovable), Mobility::Movable);
    for block in blocks {
        zone.give(block, &off).unwrap();
    }
    zone.check().unwrap();
}

/// R12: only single frames of another kind are left, in as few lines as hold them.
#[test]
fn a_bulk_request_does_not_search_again_for_each_frame_where_nothing_was() {
    let zone = online(0, FRAMES, 1);
    let off = IrqOff::new();
    let frames = fill(zone, Mobility::Movable);
    let mut odd: Vec<u32> = frames
        .into_iter()
        .filter(|f| f % 2 == 1 && f / 512 < 4)
        .collect();
    assert_eq!(odd.len(), 1024);
    zone.give_blocks(Order::ZERO, &mut odd, &off);
    let mut out = vec![0; 63];
    let holds = zone.holds();
    assert_eq!(
        zone.take_blocks(Order::ZERO, Mobility::Reclaimable, 0, &mut out, &off),
        63
    );
    assert!(zone.holds() - holds <= 2, "one hold to claim, one to lend");
    assert_eq!(zone.free_frames_exact(), 1024 - 63);
    zone.check().unwrap();
}

#[test]
fn own_lines_in_another_shard_come_before_those_of_another_kind_at_home() {
    let zone = online(0, 2 << 18, 2);
    assert_eq!(zone.shards(), 2);
    let off = IrqOff::new();
    let frames = fill(zone, Mobility::Movable);
    // A frame of an unmovable line at home, one of a movable line far away.
    let mut home: Vec<u32> = frames.iter().copied().filter(|f| *f == 7).collect();
    zone.give_blocks(Order::ZERO, &mut home, &off);
    let own = zone
        .take(Order::ZERO, Mobility::Unmovable, 0, &off)
        .unwrap();
    assert_eq!(zone.mobility_of(own.pfn()), Mobility::Movable);
    zone.give(own, &off).unwrap();
    zone.give_blocks(order(9), &mut [1 << 18], &off);
    let far = zone
        .take(Order::ZERO, Mobility::Unmovable, 0, &off)
        .unwrap();
    assert_eq!(far.pfn(), Pfn(1 << 18));
    assert_eq!(zone.mobility_of(far.pfn()), Mobility::Unmovable);
    let _ = far.into_parts();
}

/// R16: a block of order 10 covers two pageblocks.
#[test]
fn a_highatomic_block_reserves_every_line_it_covers_and_all_come_back() {
    let zone = online(0, 1 << 18, 1);
    let off = IrqOff::new();
    assert_eq!(zone.highatomic_cap(), 3072);
    let block = zone.take(order(10), Mobility::Unmovable, 0, &off).unwrap();
    assert_eq!(
        zone.reserve_highatomic(block.pfn(), block.order(), &off),
        1024
    );
    assert_eq!(
        (zone.reserved_highatomic(), zone.free_highatomic()),
        (1024, 0)
    );
    let pfn = block.pfn();
    zone.give(block, &off).unwrap();
    assert_eq!(
        (zone.reserved_highatomic(), zone.free_highatomic()),
        (1024, 1024)
    );
    assert_eq!(zone.mobility_of(pfn), Mobility::HighAtomic);
    zone.check().unwrap();
    // Nobody else is served from it, but it is free.
    assert_eq!(zone.free_frames_exact(), 1 << 18);
    let urgent = zone.take(order(3), Mobility::HighAtomic, 0, &off).unwrap();
    assert_eq!(zone.free_highatomic(), 1016);
    zone.give(urgent, &off).unwrap();
    assert!(zone.unreserve_highatomic(Mobility::Movable, Keep::One, &off));
    assert!(!zone.unreserve_highatomic(Mobility::Movable, Keep::One, &off));
    assert!(zone.unreserve_highatomic(Mobility::Movable, Keep::Nothing, &off));
    assert!(!zone.unreserve_highatomic(Mobility::Movable, Keep::Nothing, &off));
    assert_eq!((zone.reserved_highatomic(), zone.free_highatomic()), (0, 0));
    assert_eq!(zone.free_blocks(Order::MAX), 1);
    zone.check().unwrap();
}

#[test]
fn a_line_of_the_reserve_leaves_it_when_it_goes_offline_and_is_no_cma() {
    let zone = online(0, 1 << 18, 1);
    let off = IrqOff::new();
    let block = zone.take(order(9), Mobility::Unmovable, 0, &off).unwrap();
    assert_eq!(zone.reserve_highatomic(block.pfn(), order(9), &off), 512);
    let here = block.frames();
    zone.give(block, &off).unwrap();
    let kept = Err(IsolateError::Kept(here.start()));
    assert_eq!(set_cma(zone, here), kept);
    let isolation = zone.isolate(here, Purpose::Offline, &off).unwrap();
    zone.offline(isolation, &off).unwrap();
    assert_eq!((zone.reserved_highatomic(), zone.free_highatomic()), (0, 0));
    zone.check().unwrap();
    zone.online(here, &off).unwrap();
    assert_eq!(zone.mobility_of(here.start()), Mobility::Movable);
    zone.check().unwrap();
}

#[test]
fn the_highatomic_reserve_stops_at_its_cap_and_small_zones_have_none() {
    let zone = online(0, 1 << 18, 1);
    let off = IrqOff::new();
    for _ in 0..10 {
        let block = zone.take(order(9), Mobility::Unmovable, 0, &off).unwrap();
        let _ = zone.reserve_highatomic(block.pfn(), block.order(), &off);
        let _ = block.into_parts();
    }
    assert_eq!(zone.reserved_highatomic(), 3072);
    let small = online(0, 32768, 1);
    let block = small.take(order(3), Mobility::Unmovable, 0, &off).unwrap();
    assert_eq!(
        small.reserve_highatomic(block.pfn(), block.order(), &off),
        0
    );
    let _ = block.into_parts();
}

/// R17: what is kept may be more than what is free.
#[test]
fn frames_kept_for_urgent_requests_do_not_count_for_others() {
    let zone = online(0, 1 << 18, 1);
    let off = IrqOff::new();
    let block = zone.take(order(9), Mobility::Unmovable, 0, &off).unwrap();
    assert_eq!(
        zone.reserve_highatomic(block.pfn(), block.order(), &off),
        512
    );
    zone.give(block, &off).unwrap();
    let _ = fill(zone, Mobility::Movable);
    assert_eq!(
        (zone.free_frames_exact(), zone.free_highatomic()),
        (512, 512)
    );
    let levels = Levels {
        min: 5,
        low: 5,
        high: 5,
        promo: 5,
    };
    zone.set_levels(levels).unwrap();
    for access in [Access::empty(), Access::CMA] {
        assert_eq!(zone.spare(Order::ZERO, Level::Min, 0, access), None);
        assert!(
            !zone.suffices(Order::ZERO, 5, 0, access, 10),
            "10 free, 512 kept"
        );
        assert!(!zone.suffices(order(3), 5, 0, access, 512));
    }
    assert!(zone.suffices(order(3), 5, 0, Access::HIGHATOMIC, 512));
    assert_eq!(
        zone.spare(Order::ZERO, Level::Min, 0, Access::NON_BLOCK),
        Some(507)
    );
}

#[test]
fn cma_lines_serve_movable_requests_when_their_own_are_used_up_and_nobody_else() {
    let zone = online(0, FRAMES, 1);
    let off = IrqOff::new();
    set_cma(zone, range(512, 1536)).unwrap();
    let again = set_cma(zone, range(1024, 2048));
    assert_eq!(again, Err(IsolateError::Kept(Pfn(1024))));
    assert_eq!((zone.free_cma(), zone.free_frames_exact()), (1024, FRAMES));
    zone.check().unwrap();
    assert_eq!(drain(zone, Order::ZERO, Mobility::Unmovable), FRAMES - 1024);
    assert!(!zone.suffices(Order::ZERO, 0, 0, Access::empty(), 1024));
    assert!(zone.suffices(Order::ZERO, 0, 0, Access::CMA, 1024));
    assert_eq!(drain(zone, Order::ZERO, Mobility::Movable), 1024);
    assert_eq!((zone.free_cma(), zone.free_frames_exact()), (0, 0));
    let mut all: Vec<u32> = (0..FRAMES as u32).collect();
    zone.give_blocks(Order::ZERO, &mut all, &off);
    assert_eq!((zone.free_cma(), zone.free_frames_exact()), (1024, FRAMES));
    assert_eq!(zone.mobility_of(Pfn(1535)), Mobility::Cma);
    zone.check().unwrap();
}

#[test]
fn cma_cannot_be_made_of_what_is_absent() {
    let zone = absent(0, 4096, 1);
    let off = IrqOff::new();
    zone.online(range(0, 1024), &off).unwrap();
    let set = set_cma(zone, range(512, 2048));
    assert_eq!(set, Err(IsolateError::Absent(Pfn(1024))));
    assert_eq!(zone.free_cma(), 0);
}
