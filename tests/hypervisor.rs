//! A guest and its hypervisor: which memory is free, which is lent.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use std::panic::{AssertUnwindSafe, catch_unwind};

use framekeeper::{
    AllocError, Balloon, Config, FrameRange, Mobility, Moved, Order, PageAllocator, Pfn, Reported,
    Request, WasBad,
};
use host::{Host, locks_held};
use machine::{FIRST, allocator, one_region, stay};

const FRAMES: u64 = 1 << 20;
const ONE: Request = Request::new(Order::ZERO)
    .mobility(Mobility::Movable)
    .ignore_watermarks();

fn machine() -> PageAllocator<Host> {
    allocator(one_region(FIRST, FRAMES), &Config::default()).unwrap()
}

/// Reports until there is nothing left to tell; every range that was told.
fn report_all(allocator: &PageAllocator<Host>, least: Order) -> Vec<FrameRange> {
    let mut told = Vec::new();
    loop {
        let frames = allocator.report_free(least, |ranges| {
            assert_eq!(locks_held(), 0);
            assert!((1..=32).contains(&ranges.len()), "bounded");
            let frames: u64 = ranges.iter().map(|range| range.frames()).sum();
            assert!(frames <= 1 << 18, "1 GiB at most leaves the zone");
            told.extend_from_slice(ranges);
            Reported::Done
        });
        if frames == 0 {
            return told;
        }
    }
}

fn frames_of(ranges: &[FrameRange]) -> u64 {
    ranges.iter().map(|range| range.frames()).sum()
}

#[test]
fn every_free_block_is_reported_once_until_it_was_taken() {
    let allocator = machine();
    let used = allocator.try_alloc(ONE).unwrap();
    allocator.drain_all();
    let mut told = report_all(&allocator, Order::PAGEBLOCK);
    assert_eq!(frames_of(&told), FRAMES - 512);
    told.sort_by_key(|range| range.start());
    assert!(told.windows(2).all(|two| two[0].end() <= two[1].start()));
    assert!(told.iter().all(|range| !range.contains(used.pfn())));
    assert_eq!(allocator.free_frames(), FRAMES - 1);
    allocator.check().unwrap();
    assert_eq!(report_all(&allocator, Order::PAGEBLOCK), []);
    // Taken, used and freed: the hypervisor must hear of that pageblock again.
    drop(allocator.try_alloc(Request::new(Order::PAGEBLOCK)).unwrap());
    drop(used);
    allocator.drain_all();
    let again = frames_of(&report_all(&allocator, Order::PAGEBLOCK));
    assert!((1024..1 << 16).contains(&again), "{again}");
    assert_eq!(allocator.zone_counts().next().unwrap().free, FRAMES);
    allocator.check().unwrap();
}

#[test]
fn a_report_that_fails_or_panics_is_made_again_and_loses_nothing() {
    let allocator = machine();
    let mut tried = 0;
    let frames = allocator.report_free(Order::PAGEBLOCK, |_| {
        tried += 1;
        // Its blocks are out of the zone, and nobody else's.
        assert!(allocator.free_frames() < FRAMES);
        Reported::Failed
    });
    assert_eq!((frames, tried), (0, 1));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        allocator.report_free(Order::PAGEBLOCK, |_| panic!("device gone"))
    }));
    assert!(panicked.is_err());
    assert_eq!(allocator.free_frames(), FRAMES);
    allocator.check().unwrap();
    assert_eq!(frames_of(&report_all(&allocator, Order::PAGEBLOCK)), FRAMES);
}

#[test]
fn no_report_takes_a_zone_near_its_low_watermark() {
    let allocator = machine();
    let low = allocator.zones().next().unwrap().levels().low;
    let least = low + 32 * 512;
    let mut held = Vec::new();
    while allocator.free_frames() >= least + 512 {
        held.push(allocator.try_alloc(Request::new(Order::PAGEBLOCK)).unwrap());
    }
    assert!(allocator.report_free(Order::PAGEBLOCK, |_| Reported::Failed) == 0);
    held.push(allocator.try_alloc(Request::new(Order::PAGEBLOCK)).unwrap());
    allocator.drain_all();
    let reported = allocator.report_free(Order::PAGEBLOCK, |_| unreachable!("too little is free"));
    assert_eq!(reported, 0);
    drop(held);
    // Only what is large enough.
    assert_eq!(report_all(&allocator, Order::MAX), []);
    allocator.check().unwrap();
}

#[test]
fn lent_frames_are_not_managed_and_limits_follow_both_ways() {
    let allocator = machine();
    let zone = allocator.zones().next().unwrap();
    let (managed, levels) = (allocator.managed_frames(), zone.levels());
    let mut balloon = Balloon::<Host, 16>::new(&allocator);
    let mut told = Vec::new();
    let huge = Request::new(Order::new(14).unwrap());
    let lent = balloon.inflate(huge, 100, |frames| {
        assert_eq!(locks_held(), 0);
        told.push(frames);
    });
    assert_eq!(lent.unwrap(), 16, "as many as it has room for");
    assert_eq!(balloon.blocks().collect::<Vec<_>>(), told);
    let counts = allocator.zone_counts().next().unwrap();
    assert_eq!(counts.ballooned, 16 << 14);
    assert_eq!(counts.managed, managed - (16 << 14));
    assert_eq!(counts.present, FRAMES);
    assert!(zone.levels().min < levels.min);
    allocator.check().unwrap();
    let mut back = Vec::new();
    assert_eq!(balloon.deflate(3, |frames| back.push(frames)), 3);
    assert_eq!(
        back,
        told.split_off(13).into_iter().rev().collect::<Vec<_>>()
    );
    assert_eq!(allocator.managed_frames(), managed - (13 << 14));
    allocator.check().unwrap();
    assert_eq!(balloon.inflate(huge, 100, |_| ()).unwrap(), 3);
    assert_eq!(balloon.inflate(huge, 100, |_| ()).unwrap(), 0, "full");
    assert_eq!(balloon.deflate(100, |_| ()), 16);
    assert_eq!(balloon.deflate(100, |_| ()), 0);
    assert_eq!(balloon.inflate(ONE, 5, |_| ()).unwrap(), 5);
    drop(balloon);
    assert_eq!(zone.ballooned(), 0);
    assert_eq!(
        (allocator.managed_frames(), zone.levels()),
        (managed, levels)
    );
    assert_eq!(allocator.free_frames(), FRAMES);
    allocator.check().unwrap();
}

#[test]
fn a_balloon_takes_what_there_is_and_says_when_there_is_nothing() {
    let allocator = allocator(one_region(FIRST, 2048), &Config::default()).unwrap();
    let mut balloon = Balloon::<Host, 4096>::new(&allocator);
    let kept = allocator.try_alloc(ONE).unwrap();
    let lent = balloon.inflate(ONE, 4096, |_| ()).unwrap();
    assert_eq!((lent, allocator.managed_frames()), (2047, 1));
    allocator.check().unwrap();
    let more = balloon.inflate(ONE, 1, |_| ());
    assert!(matches!(more, Err(AllocError::OutOfMemory(_))), "{more:?}");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        balloon.deflate(10, |_| panic!("device gone"))
    }));
    assert!(panicked.is_err());
    allocator.check().unwrap();
    drop((balloon, kept));
    assert_eq!(
        (allocator.free_frames(), allocator.managed_frames()),
        (2048, 2048)
    );
    allocator.check().unwrap();
}

/// misuse 63: a hook that tries to free, take, take offline or mark the very frames that it was given: each call fails, or waits for
/// them to come back; none is given twice.
#[test]
fn a_hook_cannot_free_or_take_what_is_being_reported() {
    let allocator = machine();
    let (mut calls, mut marked) = (0, Vec::new());
    loop {
        let told = allocator.report_free(Order::PAGEBLOCK, |ranges| {
            calls += 1;
            for &range in ranges {
                let pfn = range.start();
                for order in [Order::ZERO, Order::PAGEBLOCK] {
                    assert!(allocator.try_from_raw(pfn, order).is_err());
                }
                assert!(allocator.alloc_contig(range, stay).is_err());
                assert!(allocator.offline(range, stay).is_err());
                assert!(allocator.online(range).is_err());
            }
            if calls <= 2 {
                let bad = Pfn(ranges[0].start().0 + 7);
                assert_eq!(allocator.mark_bad(bad), Ok(WasBad::InUse));
                marked.push(bad);
            }
            drop(allocator.try_alloc(ONE).unwrap());
            allocator.drain_all();
            match calls % 2 {
                0 => Reported::Failed,
                _ => Reported::Done,
            }
        });
        if told == 0 && calls > 6 {
            break;
        }
    }
    assert_eq!(marked.len(), 2);
    assert_eq!(allocator.bad_frames(), 2);
    assert_eq!(allocator.free_frames(), FRAMES - 2);
    allocator.check().unwrap();
    // The same of a range that is being emptied, and of one that is held.
    let range = machine::range(4096, 8192);
    let used = allocator
        .alloc_contig(machine::range(5000, 5001), stay)
        .unwrap();
    let mut held = Some(used);
    let got = allocator.alloc_contig(range, |run| {
        assert_eq!(run, machine::range(5000, 5001));
        assert!(allocator.try_from_raw(run.start(), Order::ZERO).is_err());
        assert!(allocator.alloc_contig(range, stay).is_err());
        assert!(allocator.offline(range, stay).is_err());
        drop(held.take());
        Moved::Tried
    });
    let got = got.unwrap();
    for pfn in [range.start(), Pfn(range.end().0 - 1)] {
        assert!(allocator.try_from_raw(pfn, Order::ZERO).is_err());
    }
    assert!(allocator.offline(range, stay).is_err());
    drop(got);
    assert_eq!(allocator.free_frames(), FRAMES - 2);
    allocator.check().unwrap();
}
