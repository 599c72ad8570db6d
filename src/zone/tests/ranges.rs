//! Ranges set apart, taken, brought and removed; bad frames; reports.

extern crate std;
use core::cell::Cell;
use std::vec;
use std::vec::Vec;

use super::{Random, absent, absent_on, drain, fill, online, order, range, set_cma};
use crate::addr::{FrameRange, Order, Pfn};
use crate::boot::Bump;
use crate::host::Host;
use crate::platform::{IrqOff, Platform};
use crate::stepper::{Stepped, remotely_at_every_point};
use crate::zone::online::OnlineError;
use crate::zone::{
    Block, Fault, IsolateError, MarkError, Mobility, OfflineError, Purpose, WasBad, Zone,
};

/// R13: half of an order-10 block is isolated while both halves are in use, and both are freed.
#[test]
fn isolated_frames_never_join_their_neighbours_until_they_are_released() {
    let zone = online(0, 1024, 1);
    let off = IrqOff::new();
    let block = zone.take(order(10), Mobility::Movable, 0, &off).unwrap();
    let isolation = zone
        .isolate(range(0, 512), Purpose::Contiguous, &off)
        .unwrap();
    zone.give(block, &off).unwrap();
    assert_eq!(
        (zone.free_frames_exact(), zone.isolated_frames()),
        (512, 512)
    );
    assert_eq!(
        (zone.free_blocks(order(10)), zone.free_blocks(order(9))),
        (0, 1)
    );
    assert_eq!(zone.mobility_of(Pfn(5)), Mobility::Isolate);
    zone.check().unwrap();
    zone.release(&isolation, &off);
    assert_eq!(
        (zone.free_frames_exact(), zone.isolated_frames()),
        (1024, 0)
    );
    assert_eq!(zone.free_blocks(order(10)), 1);
    assert_eq!(zone.mobility_of(Pfn(5)), Mobility::Movable);
    zone.check().unwrap();
}

#[test]
fn a_second_user_of_a_range_gets_busy_and_changes_nothing() {
    let zone = online(0, 1 << 13, 1);
    let off = IrqOff::new();
    let isolation = zone
        .isolate(range(2000, 3000), Purpose::Contiguous, &off)
        .unwrap();
    let isolated = zone.isolated_frames();
    assert_eq!(isolated, 3072 - 1536);
    for (start, end) in [(0, 1537), (2999, 8192), (0, 8192), (2100, 2200)] {
        assert!(matches!(
            zone.isolate(range(start, end), Purpose::Offline, &off),
            Err(IsolateError::Busy(_))
        ));
        assert_eq!(zone.isolated_frames(), isolated);
    }
    assert_eq!(isolation.range(), range(2000, 3000));
    zone.release(&isolation, &off);
    assert_eq!(zone.free_blocks(order(13)), 1);
}

#[test]
fn release_restores_the_kind_that_each_line_had() {
    let zone = online(0, 1 << 13, 1);
    let off = IrqOff::new();
    set_cma(zone, range(512, 1024)).unwrap();
    let unmovable = zone.take(order(9), Mobility::Unmovable, 0, &off).unwrap();
    let kinds = || -> Vec<Mobility> { (0..16).map(|l| zone.mobility_of(Pfn(l * 512))).collect() };
    let before = kinds();
    assert!(matches!(
        zone.isolate(range(0, 8192), Purpose::Contiguous, &off),
        Err(IsolateError::Kept(Pfn(512)))
    ));
    let isolations = [
        (range(0, 512), Purpose::Offline),
        (range(512, 1024), Purpose::Cma),
        (range(1024, 8192), Purpose::Contiguous),
    ]
    .map(|(range, purpose)| zone.isolate(range, purpose, &off).unwrap());
    assert!(zone.take(Order::ZERO, Mobility::Movable, 0, &off).is_none());
    zone.give(unmovable, &off).unwrap();
    for isolation in &isolations {
        zone.release(isolation, &off);
    }
    assert_eq!(kinds(), before);
    assert_eq!(zone.free_frames_exact(), 8192);
    zone.check().unwrap();
}

#[test]
fn a_range_is_taken_at_any_alignment_once_its_last_frame_is_free() {
    let zone = online(0, 1 << 13, 1);
    let off = IrqOff::new();
    let mut held = fill(zone, Mobility::Movable);
    let wanted = range(1000, 3001);
    let isolation = zone.isolate(wanted, Purpose::Contiguous, &off).unwrap();
    let mut rest: Vec<u32> = held.drain(900..3500).collect();
    let straggler = rest.remove(1500);
    zone.give_blocks(Order::ZERO, &mut rest, &off);
    assert_eq!(zone.next_used(wanted), Some(Pfn(u64::from(straggler))));
    assert_eq!(
        zone.take_range(&isolation, &off),
        Err(Pfn(u64::from(straggler)))
    );
    zone.give_blocks(Order::ZERO, &mut [straggler], &off);
    assert_eq!(zone.next_used(wanted), None);
    zone.take_range(&isolation, &off).unwrap();
    // Of what was freed, 3072..3500 lies in a line that is not isolated.
    assert_eq!(zone.isolated_frames(), 3072 - 900 - wanted.frames());
    zone.release(&isolation, &off);
    zone.check().unwrap();
    assert_eq!(zone.free_frames_exact(), 2600 - wanted.frames());
    // What was taken comes back in one piece.
    zone.give_range(wanted, &off).unwrap();
    assert_eq!(zone.give_range(wanted, &off), Err(Fault::AlreadyFree));
    assert_eq!(zone.free_frames_exact(), 2600);
    zone.check().unwrap();
}

#[test]
fn a_range_of_cma_is_collected_and_given_back_as_cma() {
    let zone = online(0, 1 << 13, 1);
    let off = IrqOff::new();
    set_cma(zone, range(1024, 3072)).unwrap();
    let wanted = range(1100, 1300);
    let isolation = zone.isolate(wanted, Purpose::Cma, &off).unwrap();
    zone.take_range(&isolation, &off).unwrap();
    zone.release(&isolation, &off);
    assert_eq!(zone.free_cma(), 2048 - 200);
    zone.give_range(wanted, &off).unwrap();
    assert_eq!(zone.free_cma(), 2048);
    assert!(zone.isolate(range(0, 512), Purpose::Cma, &off).is_err());
    zone.check().unwrap();
    zone.clear_cma(range(1024, 3072), &off);
    assert_eq!((zone.cma_frames(), zone.free_cma()), (0, 0));
    assert_eq!(zone.free_blocks(order(13)), 1);
    zone.check().unwrap();
}

#[test]
fn a_range_goes_offline_when_nothing_in_it_is_in_use_and_comes_back() {
    let zone = online(700, 9000, 2);
    let off = IrqOff::new();
    let managed = zone.managed();
    let block = zone.take(Order::ZERO, Mobility::Movable, 0, &off).unwrap();
    for gone in [
        range(700, 1024),
        range(2048, 4096),
        range(5000, 5001),
        range(8000, 9000),
    ] {
        let isolation = zone.isolate(gone, Purpose::Offline, &off).unwrap();
        let isolation = match zone.offline(isolation, &off) {
            Ok(()) => None,
            Err((isolation, error)) => {
                assert_eq!(error, OfflineError::InUse(block.pfn()));
                Some(isolation)
            }
        };
        zone.check().unwrap();
        assert_eq!(isolation.is_some(), gone.contains(block.pfn()));
        if let Some(isolation) = isolation {
            zone.release(&isolation, &off);
            continue;
        }
        assert_eq!(zone.managed(), managed - gone.frames());
        assert!(!zone.is_managed(gone.start()) && !zone.is_managed(Pfn(gone.end().0 - 1)));
        assert_eq!(
            zone.give(Block::new(gone.start(), Order::ZERO), &off),
            Err(Fault::Unmanaged)
        );
        zone.online(gone, &off).unwrap();
        zone.check().unwrap();
        assert_eq!((zone.managed(), zone.present()), (managed, managed));
    }
    zone.give(block, &off).unwrap();
    assert_eq!(drain(zone, Order::ZERO, Mobility::Movable), managed);
}

#[test]
fn random_ranges_come_and_go_and_every_frame_is_counted() {
    let zone = absent(300, 20_000, 1);
    let off = IrqOff::new();
    let mut random = Random(5);
    let mut there = vec![false; 20_000];
    for _ in 0..2000 {
        let start = 300 + random.below(19_000);
        let gone = range(start, (start + 1 + random.below(1500)).min(20_000));
        let frames = &mut there[gone.start().0 as usize..gone.end().0 as usize];
        if random.below(2) == 0 {
            let fits = frames.iter().all(|there| !there);
            let result = zone.online(gone, &off);
            assert!(
                result.is_ok() || !fits || result == Err(super::super::OnlineError::TooManyHoles)
            );
            if result.is_ok() {
                assert!(fits);
                frames.fill(true);
            }
        } else if let Ok(isolation) = zone.isolate(gone, Purpose::Offline, &off) {
            match zone.offline(isolation, &off) {
                Ok(()) => frames.fill(false),
                Err((isolation, error)) => {
                    assert_eq!(error, OfflineError::TooManyHoles);
                    zone.release(&isolation, &off);
                }
            }
        }
        zone.check().unwrap();
        let count = there.iter().filter(|there| **there).count() as u64;
        assert_eq!((zone.managed(), zone.free_frames_exact()), (count, count));
    }
}

#[test]
fn a_bad_frame_is_never_given_again_wherever_it_was_found() {
    let zone = online(0, 1 << 13, 1);
    let off = IrqOff::new();
    // In a huge free block.
    assert_eq!(zone.mark_bad(Pfn(1000), &off), Ok(WasBad::Free));
    assert_eq!(zone.mark_bad(Pfn(1000), &off), Ok(WasBad::Already));
    assert_eq!(zone.free_frames_exact(), 8191);
    zone.check().unwrap();
    // In use, in a block of several lines.
    let block = zone.take(order(11), Mobility::Movable, 0, &off).unwrap();
    let inside = Pfn(block.pfn().0 + 700);
    assert_eq!(zone.mark_bad(inside, &off), Ok(WasBad::InUse));
    zone.give(block, &off).unwrap();
    zone.check().unwrap();
    assert_eq!(zone.free_frames_exact(), 8190);
    // Isolated.
    let isolation = zone
        .isolate(range(4096, 4097), Purpose::Contiguous, &off)
        .unwrap();
    assert_eq!(zone.mark_bad(Pfn(4100), &off), Ok(WasBad::Free));
    zone.release(&isolation, &off);
    assert_eq!(zone.bad_frames(), 3);
    assert_eq!(
        zone.mark_bad(Pfn(1 << 13), &off),
        Err(MarkError::Unmanaged(Pfn(1 << 13)))
    );
    let frames = fill(zone, Mobility::Movable);
    assert_eq!(frames.len(), 8189);
    for bad in [1000, inside.0, 4100] {
        assert!(!frames.contains(&(bad as u32)) && zone.is_bad(Pfn(bad)));
    }
    zone.check().unwrap();
}

/// R11: not only the head of a block is looked at.
#[test]
fn a_bad_frame_inside_a_small_block_is_dropped_alone_when_the_block_comes_back() {
    let zone = online(0, 1024, 1);
    let off = IrqOff::new();
    let mut out = [0; 4];
    assert_eq!(
        zone.take_blocks(order(2), Mobility::Movable, 0, &mut out, &off),
        4
    );
    let bad = Pfn(u64::from(out[1]) + 2);
    assert_eq!(zone.mark_bad(bad, &off), Ok(WasBad::InUse));
    zone.give_blocks(order(2), &mut out, &off);
    assert_eq!((zone.free_frames_exact(), zone.faults()), (1023, 0));
    assert_eq!(zone.give(Block::new(bad, Order::ZERO), &off), Ok(()));
    assert_eq!(zone.free_frames_exact(), 1023);
    zone.check().unwrap();
}

#[test]
fn a_bad_frame_stays_bad_while_its_range_goes_and_comes() {
    let zone = online(0, 1 << 13, 1);
    let off = IrqOff::new();
    assert_eq!(zone.mark_bad(Pfn(2050), &off), Ok(WasBad::Free));
    let isolation = zone
        .isolate(range(2048, 4096), Purpose::Offline, &off)
        .unwrap();
    zone.offline(isolation, &off).unwrap();
    zone.check().unwrap();
    zone.online(range(2048, 4096), &off).unwrap();
    zone.check().unwrap();
    assert!(zone.is_bad(Pfn(2050)));
    assert_eq!(zone.free_frames_exact(), 8191);
    let isolation = zone
        .isolate(range(2048, 4096), Purpose::Contiguous, &off)
        .unwrap();
    assert_eq!(zone.take_range(&isolation, &off), Err(Pfn(2050)));
    zone.release(&isolation, &off);
}

/// Reports everything, and returns the frames of the blocks.
fn report(zone: &Zone<Host>, least: Order) -> u64 {
    let off = IrqOff::new();
    let mut frames = 0;
    loop {
        let blocks = zone.take_unreported(least, Order::MAX);
        if blocks.is_empty() {
            return frames;
        }
        for block in blocks {
            frames += block.order().frames();
            zone.give_reported(block, &off).unwrap();
        }
    }
}

#[test]
fn a_free_block_is_reported_once_until_one_of_its_frames_is_taken() {
    let zone = online(512 * 3, 512 * 3 + (3 << 18), 2);
    let off = IrqOff::new();
    assert_eq!(report(zone, order(9)), zone.managed());
    zone.check().unwrap();
    assert_eq!(report(zone, order(9)), 0);
    let block = zone.take(order(9), Mobility::Movable, 0, &off).unwrap();
    assert_eq!(report(zone, order(9)), 0);
    zone.give(block, &off).unwrap();
    let again = report(zone, order(9));
    assert!((512..=1 << 18).contains(&again), "the block that it joined");
    let frame = zone.take(Order::ZERO, Mobility::Movable, 0, &off).unwrap();
    assert_eq!(report(zone, order(9)), 0);
    zone.give(frame, &off).unwrap();
    assert_eq!(report(zone, Order::MAX), 0, "no order-18 block changed");
    zone.check().unwrap();
}

#[test]
fn a_balloon_shrinks_the_zone_by_the_frames_that_it_holds() {
    let zone = online(0, 1 << 13, 1);
    let off = IrqOff::new();
    let mut out = vec![0; 100];
    assert_eq!(
        zone.take_blocks(Order::ZERO, Mobility::Movable, 0, &mut out, &off),
        100
    );
    zone.inflate_balloon(100);
    assert_eq!((zone.managed(), zone.ballooned()), (8092, 100));
    zone.check().unwrap();
    zone.deflate_balloon(100);
    zone.give_blocks(Order::ZERO, &mut out, &off);
    assert_eq!((zone.managed(), zone.free_frames_exact()), (8192, 8192));
    zone.check().unwrap();
}

#[test]
fn a_zone_needs_a_fifth_of_a_byte_for_each_frame() {
    for frames in [1u64 << 18, 1 << 20, 1 << 28] {
        let spec = crate::zone::ZoneSpec {
            node: crate::addr::NodeId(0),
            kind: crate::addr::ZoneKind::Normal,
            span: FrameRange::new(Pfn(0), Pfn(frames)),
            shards: 8,
            ragged: 0,
        };
        let mut measure = Bump::measuring();
        Zone::<Host>::build(&mut measure, spec).unwrap();
        let bytes = measure.used() as u64;
        assert!(bytes * 5 <= frames, "{bytes} bytes for {frames} frames");
    }
}

#[test]
fn a_bad_frame_in_use_is_awaited_and_its_return_told_once() {
    let zone = online(0, 1 << 13, 1);
    let off = IrqOff::new();
    let block = zone.take(order(11), Mobility::Movable, 0, &off).unwrap();
    let small = zone.take(order(2), Mobility::Movable, 0, &off).unwrap();
    let inside = [3, 700, 701].map(|n| Pfn(block.pfn().0 + n));
    for bad in inside.into_iter().chain([Pfn(small.pfn().0 + 1)]) {
        assert_eq!(zone.mark_bad(bad, &off), Ok(WasBad::InUse));
    }
    assert_eq!(zone.mark_bad(Pfn(8000), &off), Ok(WasBad::Free));
    // What somebody uses stands in the way, bad or not.
    assert_eq!(zone.next_used(range(inside[0].0, 4096)), Some(inside[0]));
    assert_eq!(zone.take_returned(), 0);
    let frames = block.frames();
    zone.give(block, &off).unwrap();
    assert_eq!((zone.take_returned(), zone.take_returned()), (3, 0));
    assert_eq!(zone.next_used(frames), None);
    zone.check().unwrap();
    let frames = small.frames();
    let _ = small.into_parts();
    zone.give_range(frames, &off).unwrap();
    assert_eq!((zone.take_returned(), zone.take_returned()), (1, 0));
    assert_eq!(zone.free_frames_exact(), (1 << 13) - 5);
    zone.check().unwrap();
}

/// Marks frames of lines that no other test frame is in, until no record is left for another.
fn use_up_records<P: Platform>(zone: &Zone<P>, first: u64) -> u64 {
    let off = IrqOff::new();
    let mark = |i: &u64| zone.mark_bad(Pfn(first + 512 * i), &off).is_ok();
    (0..).take_while(mark).count() as u64
}

/// A range that ends within lines goes offline and comes back, while another CPU marks frames bad and uses up the records that the
/// ends need: either nothing changes, with an error, or the range and nothing else.
#[test]
fn records_that_frames_found_bad_use_up_are_not_missed_by_a_range_that_was_promised_some() {
    const SHARD: u64 = 1 << 18;
    let part = range(1000, 3000);
    for goes in [true, false] {
        let (mut refused, mut done) = (0, 0);
        let points = remotely_at_every_point(
            1,
            move || {
                let zone = absent_on::<Stepped>(0, 2 * SHARD, 2);
                assert_eq!(zone.shards(), 2);
                let off = IrqOff::new();
                zone.online(range(0, 2 * SHARD), &off).unwrap();
                if !goes {
                    // Its ends have no record, and are wholly absent.
                    let isolation = zone.isolate(range(512, 3072), Purpose::Offline, &off);
                    zone.offline(isolation.unwrap(), &off).unwrap();
                }
                (zone, Cell::new(None))
            },
            move |(zone, result)| {
                let off = IrqOff::new();
                let changed = if goes {
                    let isolation = zone.isolate(part, Purpose::Offline, &off).unwrap();
                    let gone = zone.offline(isolation, &off);
                    gone.map_err(|(isolation, error)| {
                        zone.release(&isolation, &off);
                        assert_eq!(error, OfflineError::TooManyHoles);
                    })
                } else {
                    let came = zone.online(part, &off);
                    came.map_err(|error| assert_eq!(error, OnlineError::TooManyHoles))
                };
                result.set(Some(changed.is_ok()));
            },
            |(zone, _)| _ = use_up_records(zone, SHARD),
            |(zone, result)| {
                let changed = result.get().unwrap();
                let all = 2 * SHARD - if goes { 0 } else { 2560 };
                let managed = match (goes, changed) {
                    (_, false) => all,
                    (true, true) => all - part.frames(),
                    (false, true) => all + part.frames(),
                };
                assert_eq!(zone.managed(), managed);
                assert_eq!(zone.free_frames_exact(), managed - zone.bad_frames());
                zone.check().unwrap();
                *(if changed { &mut done } else { &mut refused }) += 1;
            },
        );
        assert!(refused > 0 && done > 1, "{refused} {done} of {points}");
    }
}
