//! Bounds, threads, corruption.

extern crate std;
use std::collections::BTreeSet;
use std::thread;
use std::vec;
use std::vec::Vec;

use super::{Random, absent, fill, online, order, range, set_cma};
use crate::addr::{Order, Pfn};
use crate::host::Host;
use crate::platform::IrqOff;
use crate::sync::atomic::Ordering::Relaxed;
use crate::zone::{
    Block, Fault, Isolation, Keep, MAX_LINES_PER_HOLD, Mobility, Purpose, WasBad, Zone, ZoneFault,
};

/// R9: five thousand frames at once, each in a line of its own. Each hold counts its lines and asserts the bound.
#[test]
fn a_hold_changes_a_bounded_number_of_lines_however_much_is_asked() {
    let lines = 5000u64;
    let zone = online(0, lines * 512, 1);
    let off = IrqOff::new();
    let frames = fill(zone, Mobility::Movable);
    let mut scattered: Vec<u32> = frames
        .into_iter()
        .filter(|frame| frame % 512 == 77)
        .collect();
    let holds = zone.holds();
    zone.give_blocks(Order::ZERO, &mut scattered, &off);
    assert_eq!(zone.free_frames_exact(), lines);
    let holds = zone.holds() - holds;
    assert!(holds >= lines.div_ceil(MAX_LINES_PER_HOLD as u64));
    assert!(holds <= lines / 1000 + 1, "{holds} holds");
    assert_eq!(fill(zone, Mobility::Movable).len() as u64, lines);
    zone.check().unwrap();
}

/// R28: full, empty and partly served.
#[test]
fn a_bulk_request_returns_the_exact_count_and_touches_nothing_beyond_it() {
    let zone = online(0, 1024, 1);
    let off = IrqOff::new();
    assert_eq!(
        zone.take_blocks(Order::ZERO, Mobility::Movable, 0, &mut [], &off),
        0
    );
    zone.give_blocks(Order::ZERO, &mut [], &off);
    assert_eq!(zone.free_frames_exact(), 1024);
    let mut out = vec![u32::MAX; 2000];
    assert_eq!(
        zone.take_blocks(Order::ZERO, Mobility::Movable, 0, &mut out, &off),
        1024
    );
    assert!(out[..1024].iter().all(|frame| *frame < 1024));
    assert!(out[1024..].iter().all(|frame| *frame == u32::MAX));
    assert_eq!(
        zone.take_blocks(Order::ZERO, Mobility::Movable, 0, &mut out, &off),
        0
    );
    let mut back = [out[0]];
    zone.give_blocks(Order::ZERO, &mut back, &off);
    assert_eq!(
        zone.take_blocks(order(1), Mobility::Movable, 0, &mut out, &off),
        0
    );
    zone.check().unwrap();
}

/// R33: one block given back may be more than what was asked for; the counts follow it, and never pass zero.
#[test]
fn a_block_of_order_nine_counts_as_its_512_frames() {
    let zone = online(0, 2048, 1);
    let off = IrqOff::new();
    let mut out = [0; 4];
    assert_eq!(
        zone.take_blocks(order(9), Mobility::Movable, 0, &mut out, &off),
        4
    );
    assert_eq!(zone.free_frames_exact(), 0);
    zone.give_blocks(order(9), &mut out[..1], &off);
    assert_eq!((zone.free_frames_exact(), zone.free_frames()), (512, 512));
    zone.check().unwrap();
}

/// R8: the interrupted context is between two holds here; no lock of the zone outlives a call.
#[test]
fn a_block_that_an_interrupt_gives_back_is_kept_whatever_else_its_cpu_holds() {
    let zone = online(0, 1024, 1);
    let off = IrqOff::new();
    let held = zone.take(order(3), Mobility::Movable, 0, &off).unwrap();
    let inner = IrqOff::new();
    let nested = zone.take(order(3), Mobility::Movable, 0, &inner).unwrap();
    zone.give(nested, &inner).unwrap();
    drop(inner);
    zone.give(held, &off).unwrap();
    assert_eq!(zone.free_blocks(order(10)), 1);
}

#[test]
fn turnover_of_single_frames_leaves_most_other_lines_whole() {
    // 128 Ki frames, half in use; in each of 80 rounds a random tenth of them changes hands.
    let zone = online(0, 1 << 17, 4);
    let off = IrqOff::new();
    let mut random = Random(11);
    let mut held = fill(zone, Mobility::Movable);
    for i in (1..held.len()).rev() {
        held.swap(i, random.below(i as u64 + 1) as usize);
    }
    let mut back = held.split_off(1 << 16);
    zone.give_blocks(Order::ZERO, &mut back, &off);
    for _ in 0..80 {
        let mut back: Vec<u32> = (0..held.len() / 10)
            .map(|_| held.swap_remove(random.below(held.len() as u64) as usize))
            .collect();
        let n = back.len();
        zone.give_blocks(Order::ZERO, &mut back, &off);
        for part in back.chunks_mut(63) {
            let n = zone.take_blocks(Order::ZERO, Mobility::Movable, 0, part, &off);
            held.extend_from_slice(&part[..n]);
        }
        assert_eq!(held.len(), (1 << 16) - n + n);
    }
    zone.check().unwrap();
    let whole: u64 = zone.free_blocks_by_order()[9..]
        .iter()
        .enumerate()
        .map(|(k, n)| n << k)
        .sum();
    // 128 would be the best, but some 14 frames have never moved.
    assert!(whole >= 117, "{whole} lines are whole");
}

#[test]
fn a_terabyte_comes_online_with_a_few_hundred_holds() {
    let zone = absent(0, 1 << 28, 8);
    let off = IrqOff::new();
    let holds = zone.holds();
    zone.online(range(0, 1 << 28), &off).unwrap();
    assert!(zone.holds() - holds <= (1 << 19) / 2016 + 8);
    assert_eq!(zone.free_frames_exact(), 1 << 28);
    let block = zone.take(Order::MAX, Mobility::Movable, 7, &off).unwrap();
    assert_eq!(block.pfn(), Pfn(7 << 25));
    zone.give(block, &off).unwrap();
}

#[test]
fn threads_that_take_and_give_never_share_a_frame_and_lose_none() {
    let zone = online(0, 1 << 15, 4);
    let workers: Vec<_> = (0..4u64)
        .map(|id| {
            thread::spawn(move || {
                let off = IrqOff::<Host>::new();
                let mut random = Random(id);
                let mut held: Vec<Block> = Vec::new();
                for _ in 0..3000 {
                    if random.below(2) == 0 || held.is_empty() {
                        let kind = Mobility::ALL[random.below(3) as usize];
                        let order = order(random.below(8) as u8);
                        held.extend(zone.take(order, kind, id as u32, &off));
                    } else {
                        let i = random.below(held.len() as u64) as usize;
                        zone.give(held.swap_remove(i), &off).unwrap();
                    }
                }
                held.into_iter().map(Block::into_parts).collect::<Vec<_>>()
            })
        })
        .collect();
    let held: Vec<(Pfn, Order)> = workers
        .into_iter()
        .flat_map(|w| w.join().unwrap())
        .collect();
    let mut seen = BTreeSet::new();
    for &(pfn, order) in &held {
        assert!(
            (pfn.0..pfn.0 + order.frames()).all(|frame| seen.insert(frame)),
            "{pfn} was given twice"
        );
    }
    zone.check().unwrap();
    assert_eq!(zone.free_frames_exact() + seen.len() as u64, 1 << 15);
    let off = IrqOff::new();
    for (pfn, order) in held {
        zone.give(Block::new(pfn, order), &off).unwrap();
    }
    zone.check().unwrap();
    assert_eq!((zone.free_frames_exact(), zone.faults()), (1 << 15, 0));
}

#[test]
fn of_two_cpus_that_free_one_frame_exactly_one_succeeds() {
    let zone = online(0, 1024, 1);
    for _ in 0..200 {
        let off = IrqOff::new();
        let (pfn, order) = zone
            .take(order(2), Mobility::Movable, 0, &off)
            .unwrap()
            .into_parts();
        let results: Vec<_> = (0..2)
            .map(|_| thread::spawn(move || zone.give(Block::new(pfn, order), &IrqOff::new())))
            .collect();
        let mut results: Vec<_> = results.into_iter().map(|t| t.join().unwrap()).collect();
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(()), Err(Fault::AlreadyFree)]);
    }
    assert_eq!(zone.free_frames_exact(), 1024);
}

#[test]
fn a_flipped_bit_is_named_by_the_check_and_never_gives_a_frame_twice() {
    let damaged = || {
        let zone = online(0, 8192, 1);
        let off = IrqOff::new();
        let block = zone.take(order(2), Mobility::Movable, 0, &off).unwrap();
        (zone, block.into_parts().0)
    };
    // A taken frame's bit is set.
    let (zone, pfn) = damaged();
    let line = (pfn.0 / 512) as usize;
    zone.lines[line].set(pfn.0 as u32 % 512, 0);
    assert!(matches!(zone.check(), Err(ZoneFault::FreeCount(_))));
    // All free bits of the line are lost: requests are served from elsewhere, and end.
    let (zone, pfn) = damaged();
    zone.lines[(pfn.0 / 512) as usize].store(&[0; 8]);
    assert_eq!(zone.check(), Err(ZoneFault::FreeCount(Pfn(pfn.0 & !511))));
    let off = IrqOff::new();
    for k in 0..12 {
        while let Some(block) = zone.take(order(k), Mobility::Movable, 0, &off) {
            let _ = block.into_parts();
        }
    }
    let mut out = [0; 64];
    assert_eq!(
        zone.take_blocks(Order::ZERO, Mobility::Movable, 0, &mut out, &off),
        0
    );
    // An info that lies about its class or its count.
    for flip in 0..32 {
        let (zone, pfn) = damaged();
        let info = &zone.infos[(pfn.0 / 512) as usize];
        info.store(info.load(Relaxed) ^ 1 << flip, Relaxed);
        if flip != 19 {
            assert!(zone.check().is_err(), "bit {flip}");
        }
        let off = IrqOff::new();
        let mut seen = BTreeSet::new();
        for _ in 0..10_000 {
            let Some(block) = zone.take(Order::ZERO, Mobility::Movable, 0, &off) else {
                break;
            };
            assert!(seen.insert(block.into_parts().0), "bit {flip}");
        }
    }
}

/// Everything at once, against the one law that holds at all times: each managed frame is free, isolated and free,
/// held by the test, or bad.
#[test]
fn whatever_is_done_to_a_zone_each_frame_is_in_one_place() {
    for seed in 0..4 {
        let zone: &Zone<Host> = online(512 * 7, 512 * 7 + (1 << 16), 2);
        let off = IrqOff::new();
        let mut random = Random(seed);
        let mut held: Vec<(Pfn, Order)> = Vec::new();
        let mut isolated: Vec<Isolation> = Vec::new();
        let mut bad = BTreeSet::new();
        for step in 0..1000 {
            let at = Pfn(zone.span().start().0 + random.below(1 << 16));
            match random.below(14) {
                0..=3 => {
                    let kind = Mobility::ALL[random.below(5) as usize];
                    let order = order(random.below(12) as u8);
                    let block = zone.take(order, kind, random.below(3) as u32, &off);
                    held.extend(block.map(Block::into_parts));
                }
                4..=8 if !held.is_empty() => {
                    let (pfn, order) = held.swap_remove(random.below(held.len() as u64) as usize);
                    zone.give(Block::new(pfn, order), &off).unwrap();
                }
                9 => {
                    let end = Pfn((at.0 + random.below(5000)).min(zone.span().end().0));
                    let wanted = range(at.0, end.0);
                    isolated.extend(zone.isolate(wanted, Purpose::Offline, &off).ok());
                }
                10 if !isolated.is_empty() => {
                    let isolation = isolated.swap_remove(0);
                    if zone.take_range(&isolation, &off).is_ok() {
                        let taken = isolation.range();
                        zone.release(&isolation, &off);
                        zone.give_range(taken, &off).unwrap();
                    } else {
                        zone.release(&isolation, &off);
                    }
                }
                11 if bad.len() < 8 && zone.mark_bad(at, &off) != Ok(WasBad::Already) => {
                    bad.insert(at);
                }
                12 => {
                    if let Some(&(pfn, order)) = held.last() {
                        let _ = zone.reserve_highatomic(pfn, order, &off);
                    } else {
                        zone.unreserve_highatomic(Mobility::Unmovable, Keep::Nothing, &off);
                    }
                }
                13 if step % 50 == 0 => {
                    let start = at.0 & !511;
                    let _ = set_cma(zone, range(start, start + 512));
                }
                _ => {}
            }
            zone.check().unwrap();
            let in_use = held.iter().map(|(pfn, order)| {
                let bad_inside = bad.range(*pfn..Pfn(pfn.0 + order.frames())).count() as u64;
                order.frames() - bad_inside
            });
            let sum = zone.free_frames_exact() + zone.isolated_frames() + in_use.sum::<u64>();
            assert_eq!(
                sum + bad.len() as u64,
                zone.managed(),
                "seed {seed} step {step}"
            );
        }
        assert_eq!(zone.faults(), 0);
    }
}
