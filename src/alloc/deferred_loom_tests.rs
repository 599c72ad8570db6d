//! Models of memory that comes online while others allocate, finish and give back, run by loom on the code itself.
//!
//! Owns: nothing. Invariants: checked, not held: a section comes online once; whoever finds too little waits for the one on its way; after
//! the end, and after any change, limits are those that follow from all that is managed; what was given back is there.
//! Lock ranks: as the code under test.
//! Used by: `RUSTFLAGS="--cfg loom" cargo test --release --lib`.
//!
//! Bounds: two threads, pages of 64 KiB, one early section, one deferred one of one frame or two lines;
//! `LOOM_MAX_PREEMPTIONS` bounds the schedules. Each protocol has a broken twin, which must be caught.

extern crate std;

use core::mem::MaybeUninit;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::deferred::{Arrival, Deferral};
use super::{Config, FinishError, PageAllocator, Request};
use crate::addr::{CpuId, FrameRange, NodeId, Order, Pfn, PhysAddr};
use crate::boot::{BootMap, Bump, LateMemory, SECTION_BYTES, Storage};
use crate::loom_host::{LoomLock, model_platform, run_as};
use crate::platform::{IrqOff, Platform};

model_platform!(
    /// The code as it is.
    Whole,
    LoomLock,
    PAGE_SHIFT: u32 = 16
);

model_platform!(
    /// Claims a section by a load and a store.
    TornClaim,
    LoomLock,
    PAGE_SHIFT: u32 = 16,
    LEFT_OUT: &'static str = "sections: a claim is one step"
);

model_platform!(
    /// Says that a section is online before its frames are counted.
    EarlyOnline,
    LoomLock,
    PAGE_SHIFT: u32 = 16,
    LEFT_OUT: &'static str = "sections: online after the frames are counted"
);

model_platform!(
    /// Ends the claim of a section before it says that the section has arrived.
    EarlySettled,
    LoomLock,
    PAGE_SHIFT: u32 = 16,
    LEFT_OUT: &'static str = "sections: counted as arrived before the claim ends"
);

model_platform!(
    /// Passes a section by without having seen that it is claimed.
    Blind,
    LoomLock,
    PAGE_SHIFT: u32 = 16,
    LEFT_OUT: &'static str = "sections: who passes one by sees its claim"
);

model_platform!(
    /// Does not wait for a section that another brings.
    Impatient,
    LoomLock,
    PAGE_SHIFT: u32 = 16,
    LEFT_OUT: &'static str = "deferred: a request waits for what is on its way"
);

model_platform!(
    /// Decides whether to queue a range before it has the queue.
    EarlyLook,
    LoomLock,
    PAGE_SHIFT: u32 = 16,
    LEFT_OUT: &'static str = "deferred: the end is looked for under the queue's lock"
);

model_platform!(
    /// Recomputes limits while another does.
    NoTurns,
    LoomLock,
    PAGE_SHIFT: u32 = 16,
    LEFT_OUT: &'static str = "limits: one recomputes at a time"
);

/// Frames of a section.
const SECTION: u64 = SECTION_BYTES >> 16;
/// First frame of the highest zone.
const HIGH: u64 = (1 << 32) >> 16;

/// More steps than one execution of any model here takes. `LOOM_MAX_PREEMPTIONS` is read as by `loom::model`.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.check(body);
}

fn at(frame: u64) -> PhysAddr {
    PhysAddr(frame << 16)
}

fn build<P: Platform>(map: &BootMap, deferred: bool) -> &'static PageAllocator<P> {
    let mut memory = Vec::with_capacity(1 << 18);
    memory.resize_with(1 << 18, MaybeUninit::uninit);
    let mut storage = Storage::from_static(memory.leak());
    let config = Config {
        deferred,
        pageset_slots: 64,
        raw_codes: false,
        shards: Some(1),
        ..Config::default()
    };
    let allocator = PageAllocator::build(&mut Bump::new(&mut storage), map, &config).unwrap();
    allocator.populate(map);
    Box::leak(Box::new(allocator))
}

/// A whole section, and another that has its first `frames` frames only.
fn deferred_map(frames: u64) -> BootMap {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), at(HIGH), SECTION_BYTES).unwrap();
    map.add(NodeId(0), at(HIGH + SECTION), frames << 16)
        .unwrap();
    map
}

fn a_worker_meets_a_request<P: Platform>() {
    model(|| {
        let machine = build::<P>(&deferred_map(1), true);
        let zone = machine.nodes.zone_of(Pfn(HIGH)).unwrap();
        let worker = loom::thread::spawn(move || {
            run_as(1);
            machine.deferred_init(CpuId(1))
        });
        machine.grow_on_demand(zone, Order::ZERO);
        worker.join().unwrap();
        assert_eq!(
            machine.managed_frames(),
            SECTION + 1,
            "each section comes online once"
        );
    });
}

#[test]
fn a_section_that_a_worker_and_a_request_want_comes_online_once() {
    a_worker_meets_a_request::<Whole>();
}

#[test]
#[should_panic(expected = "each section comes online once")]
fn a_claim_in_two_steps_brings_a_section_online_twice() {
    a_worker_meets_a_request::<TornClaim>();
}

/// The early frame is taken, so the request needs the other, which a worker may be bringing.
fn a_request_waits_for_a_worker<P: Platform>() {
    const ONE: Request = Request::new(Order::ZERO).ignore_watermarks();
    model(|| {
        let machine = build::<P>(&deferred_map(1), true);
        let zone = machine.nodes.zone_of(Pfn(HIGH)).unwrap();
        // Stands for an attempt: whether the zone has what the request needs.
        let finds = move || machine.nodes.zone(zone).managed() > SECTION;
        let worker = loom::thread::spawn(move || {
            run_as(1);
            machine.deferred_init(CpuId(1))
        });
        let before = machine.arrived();
        if !finds() && !machine.grow_on_demand(zone, Order::ZERO) {
            // Without turns of waiting: what is late would be waited for.
            match machine.arrival(ONE, before, 0) {
                Arrival::Came => assert!(finds(), "nothing came"),
                Arrival::Late => {}
                Arrival::None => panic!("a request gave up too early"),
            }
        }
        worker.join().unwrap();
    });
}

#[test]
fn a_request_finds_what_a_worker_had_in_its_hands() {
    a_request_waits_for_a_worker::<Whole>();
}

#[test]
#[should_panic(expected = "a request gave up too early")]
fn a_request_that_does_not_wait_for_a_worker_fails() {
    a_request_waits_for_a_worker::<Impatient>();
}

#[test]
#[should_panic(expected = "a request gave up too early")]
fn a_claim_that_ends_before_its_section_counts_lets_a_request_fail() {
    a_request_waits_for_a_worker::<EarlySettled>();
}

#[test]
#[should_panic(expected = "a request gave up too early")]
fn a_request_that_passes_a_section_by_unseen_fails() {
    a_request_waits_for_a_worker::<Blind>();
}

fn the_end_meets_a_worker<P: Platform>() {
    model(|| {
        let machine = build::<P>(&deferred_map(600), true);
        let worker = loom::thread::spawn(move || {
            run_as(1);
            machine.deferred_init(CpuId(1))
        });
        let finished = machine.finish_deferred();
        worker.join().unwrap();
        match finished {
            Ok(()) => {}
            Err(FinishError::Waiting(_) | FinishError::Unfinished(_)) => {
                machine.finish_deferred().unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        limits_are_fresh(machine);
    });
}

fn limits_are_fresh<P: Platform>(machine: &PageAllocator<P>) {
    for zone in machine.nodes.zones() {
        let levels = machine.nodes.fresh_levels(zone, &machine.config.tuning);
        assert_eq!(zone.zone.levels(), levels, "stale watermarks");
        let reserves = machine.nodes.fresh_reserves(zone);
        assert_eq!(zone.reserves(), reserves, "stale reserves");
    }
}

#[test]
fn the_end_counts_every_section_or_says_that_one_is_not_done() {
    the_end_meets_a_worker::<Whole>();
}

#[test]
#[should_panic(expected = "stale watermarks")]
fn an_end_that_believes_a_section_too_early_leaves_stale_limits() {
    the_end_meets_a_worker::<EarlyOnline>();
}

/// One gives a range back while another ends: it is given at once, or by the end.
fn the_end_meets_a_late_free<P: Platform>() {
    model(|| {
        let deferral = Arc::new(Deferral::<P>::new(true));
        let given = Arc::new(AtomicU32::new(0));
        let other = loom::thread::spawn({
            let (deferral, given) = (deferral.clone(), given.clone());
            move || {
                run_as(1);
                let memory = LateMemory::of_instance(FrameRange::new(Pfn(1), Pfn(2)));
                match deferral.queue(memory, || false, &IrqOff::new()) {
                    Ok(()) => {}
                    Err((None, _)) => {
                        given.fetch_add(1, Relaxed);
                    }
                    Err((Some(error), _)) => panic!("{error}"),
                }
            }
        });
        while let Some(memory) = deferral.close(&IrqOff::new()) {
            assert_eq!(memory.frames().frames(), 1);
            given.fetch_add(1, Relaxed);
        }
        other.join().unwrap();
        assert!(deferral.is_done());
        assert_eq!(given.load(Relaxed), 1, "what was given back is there, once");
    });
}

#[test]
fn a_range_given_back_while_the_end_comes_is_there_after_it() {
    the_end_meets_a_late_free::<Whole>();
}

#[test]
#[should_panic(expected = "what was given back is there")]
fn a_range_that_is_queued_behind_the_end_is_lost() {
    the_end_meets_a_late_free::<EarlyLook>();
}

/// Memory is taken from one zone and given to another, each by a CPU that recomputes then. Each changes the other zone's levels.
fn two_zones_change_at_once<P: Platform>() {
    model(|| {
        let mut map: BootMap = BootMap::new();
        const LOW: u64 = (1 << 31) >> 16;
        for start in [LOW, HIGH] {
            map.add(NodeId(0), at(start), 1024 << 16).unwrap();
        }
        let machine = build::<P>(&map, false);
        let other = loom::thread::spawn(move || {
            run_as(1);
            machine.nodes.zone(1).inflate_balloon(500);
            machine.recompute_marks();
        });
        machine.nodes.zone(0).inflate_balloon(300);
        machine.recompute_marks();
        other.join().unwrap();
        limits_are_fresh(machine);
    });
}

#[test]
fn limits_after_two_changes_at_once_follow_from_both() {
    two_zones_change_at_once::<Whole>();
}

#[test]
#[should_panic(expected = "stale watermarks")]
fn limits_recomputed_by_two_at_once_may_follow_from_one() {
    two_zones_change_at_once::<NoTurns>();
}
