//! The steps of a request that finds too little free, one relief at a time. allocator.md 2.10 has the order and the bounds.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use framekeeper::alloc::{Caller, Compaction, Need, OOM_CALLS, Progress, RETRIES, ROUNDS, Relief};
use framekeeper::zone::Zone;
use framekeeper::{
    AllocError, Config, Mobility, NodeId, Oom, Order, PageAllocator, Pages, PhysAddr, Reclaim,
    Request, ZoneKind,
};
use host::{Host, locks_held, run_as};
use machine::{allocator, one_region};

const ONE: Request = Request::new(Order::ZERO);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Wake,
    Reclaim,
    Compact,
    Oom,
}
use Step::{Compact, Oom as OomStep, Reclaim as ReclaimStep, Wake};

/// A relief whose answers a test gives; it notes what it was asked.
struct Aid<'a> {
    steps: RefCell<Vec<Step>>,
    waits: Cell<u32>,
    reclaim: Box<dyn Fn(u64) -> Progress + 'a>,
    compact: Box<dyn Fn() -> Compaction + 'a>,
    oom: Box<dyn Fn() -> Oom + 'a>,
    reclaimable: u64,
    caller: Caller,
}

fn aid<'a>(reclaim: impl Fn(u64) -> Progress + 'a) -> Aid<'a> {
    Aid {
        steps: RefCell::default(),
        waits: Cell::new(0),
        reclaim: Box::new(reclaim),
        compact: Box::new(|| Compaction::Impossible),
        oom: Box::new(|| Oom::Fail),
        reclaimable: u64::MAX,
        caller: Caller::Ordinary,
    }
}

impl Aid<'_> {
    fn note(&self, step: Step) {
        assert_eq!(locks_held(), 0, "{step:?} under a lock");
        self.steps.borrow_mut().push(step);
    }
    fn count(&self, step: Step) -> u32 {
        self.steps.borrow().iter().filter(|&&s| s == step).count() as u32
    }
}

impl Relief for Aid<'_> {
    fn wake_background(&self, need: &Need) {
        assert_eq!(need.node, NodeId(0));
        self.note(Wake);
    }
    fn reclaim(&self, _need: &Need, frames: u64) -> Progress {
        self.note(ReclaimStep);
        (self.reclaim)(frames)
    }
    fn compact(&self, _need: &Need) -> Compaction {
        self.note(Compact);
        (self.compact)()
    }
    fn reclaimable(&self, _need: &Need) -> u64 {
        self.reclaimable
    }
    fn oom(&self, _need: &Need) -> Oom {
        self.note(OomStep);
        (self.oom)()
    }
    fn caller(&self) -> Caller {
        self.caller
    }
    fn wait(&self) {
        self.waits.set(self.waits.get() + 1);
    }
}

/// A machine at its minimum, and what holds the rest.
fn full<'a>(allocator: &'a PageAllocator<Host>) -> RefCell<Vec<Pages<'a, Host>>> {
    let held = std::iter::from_fn(|| allocator.try_alloc(ONE).ok()).collect();
    assert_eq!(
        zone(allocator).free_frames_exact(),
        zone(allocator).levels().min
    );
    assert_eq!(allocator.parked_frames(), 0);
    RefCell::new(held)
}

fn zone(allocator: &PageAllocator<Host>) -> &'static Zone<Host> {
    allocator.zones().next().unwrap()
}

fn machine() -> PageAllocator<Host> {
    let config = Config {
        cpus: 2,
        ..Config::default()
    };
    allocator(one_region(1 << 20, 1 << 14), &config).unwrap()
}

fn is_short<T>(result: &Result<T, AllocError>) -> bool {
    matches!(result, Err(AllocError::OutOfMemory(_)))
}

#[test]
fn below_low_the_background_is_woken_and_nothing_else() {
    let allocator = machine();
    let levels = zone(&allocator).levels();
    let aid = aid(|_| unreachable!("nobody reclaims above min"));
    let mut held = Vec::new();
    while zone(&allocator).free_frames_exact() > levels.low {
        held.push(allocator.alloc_with(ONE, &aid).unwrap());
        assert_eq!(aid.count(Wake), 0);
    }
    while zone(&allocator).free_frames_exact() > levels.min || allocator.parked_frames() > 0 {
        held.push(allocator.alloc_with(ONE, &aid).unwrap());
    }
    assert!(aid.count(Wake) > 0);
    let wakes = aid.count(Wake);
    // Who forbids it wakes nobody, and who cannot wait does not reclaim.
    let silent = allocator.alloc_with(ONE.reclaim(Reclaim::None), &aid);
    assert!(is_short(&silent));
    assert_eq!(aid.count(Wake), wakes);
    let waits_not = allocator.alloc_with(ONE.reclaim(Reclaim::Background), &aid);
    assert!(is_short(&waits_not));
    assert_eq!(aid.count(Wake), wakes + 1);
    assert!(
        allocator.alloc_with(ONE.atomic(), &aid).is_ok(),
        "half of min is its own"
    );
}

#[test]
fn reclaim_serves_a_request_after_the_background_was_woken() {
    let allocator = machine();
    let held = full(&allocator);
    let aid = aid(|frames| {
        assert_eq!(frames, 32);
        let mut held = held.borrow_mut();
        let at = held.len() - 32;
        drop(held.split_off(at));
        Progress::Freed(32)
    });
    assert!(allocator.alloc_with(ONE, &aid).is_ok());
    assert_eq!(*aid.steps.borrow(), [Wake, ReclaimStep]);
    held.borrow_mut().clear();
    allocator.check().unwrap();
}

/// misuse 59
#[test]
fn what_reclaim_freed_into_another_cpus_pageset_is_drained_for_the_request() {
    let allocator = machine();
    let held = full(&allocator);
    let aid = aid(|_| {
        run_as(1);
        held.borrow_mut().pop();
        run_as(0);
        assert_eq!(allocator.parked_frames(), 1);
        Progress::Freed(1)
    });
    assert!(allocator.alloc_with(ONE, &aid).is_ok());
    assert_eq!(*aid.steps.borrow(), [Wake, ReclaimStep]);
}

#[test]
fn a_large_block_is_compacted_before_it_is_reclaimed_and_fails_after_one_round() {
    let allocator = machine();
    let _held = full(&allocator);
    let steps = |request: Request, compaction| {
        let mut aid = aid(|_| Progress::Freed(1));
        aid.compact = Box::new(move || compaction);
        assert!(is_short(&allocator.alloc_with(request, &aid)));
        aid.steps.into_inner()
    };
    let large = Request::new(Order::new(4).unwrap());
    let one_round = [Wake, Compact, Wake, ReclaimStep, Compact];
    assert_eq!(steps(large, Compaction::Unmade), one_round);
    assert_eq!(
        steps(large.mobility(Mobility::Movable), Compaction::Unmade),
        one_round
    );
    assert_eq!(steps(large.no_retry(), Compaction::Unmade), one_round);
    // On one node and without retry, compaction is all.
    let local = large.no_retry().only_node(NodeId(0));
    assert_eq!(steps(local, Compaction::Unmade), [Wake, Compact]);
    // A small one that can move is reclaimed first.
    let small = Request::new(Order::new(1).unwrap()).no_retry();
    assert_eq!(
        steps(small.mobility(Mobility::Movable), Compaction::Unmade),
        [Wake, ReclaimStep, Compact]
    );
    assert_eq!(steps(small, Compaction::Unmade), one_round);
}

#[test]
fn a_large_block_that_retries_hard_goes_on_while_compaction_may_help() {
    let allocator = machine();
    let _held = full(&allocator);
    let large = Request::new(Order::new(4).unwrap()).retry_hard();
    for (compaction, rounds) in [(Compaction::Impossible, 1), (Compaction::Unmade, 4 + 1)] {
        let mut aid = aid(|_| Progress::Freed(1));
        aid.compact = Box::new(move || compaction);
        // Not even all that can be reclaimed would make a block, as far as the zone can tell.
        aid.reclaimable = 0;
        assert!(is_short(&allocator.alloc_with(large, &aid)));
        assert_eq!(aid.count(ReclaimStep), rounds);
        assert_eq!(aid.count(OomStep), 0);
    }
}

/// misuse 20, 41
#[test]
fn rounds_without_progress_end_in_the_oom_hook_and_its_refusal_in_an_error() {
    let allocator = machine();
    let _held = full(&allocator);
    let free = allocator.free_frames();
    let idle = aid(|_| Progress::Freed(0));
    assert!(is_short(&allocator.alloc_with(ONE, &idle)));
    assert_eq!(idle.count(ReclaimStep), RETRIES + 1);
    assert_eq!(idle.count(OomStep), 1);
    // One who knows that there is nothing, or how little, is asked once.
    let exhausted = aid(|_| Progress::Exhausted);
    assert!(is_short(&allocator.alloc_with(ONE, &exhausted)));
    assert_eq!(*exhausted.steps.borrow(), [Wake, ReclaimStep, OomStep]);
    let mut little = aid(|_| Progress::Freed(0));
    little.reclaimable = 0;
    assert!(is_short(&allocator.alloc_with(ONE, &little)));
    assert_eq!(*little.steps.borrow(), [Wake, ReclaimStep, OomStep]);
    // One that lies ends too.
    let liar = aid(|_| Progress::Freed(u64::MAX));
    assert!(is_short(&allocator.alloc_with(ONE, &liar)));
    assert_eq!(liar.count(ReclaimStep), ROUNDS);
    // A crowd is waited for.
    let crowd = aid(|_| Progress::Crowded);
    assert!(is_short(&allocator.alloc_with(ONE, &crowd)));
    assert_eq!((crowd.waits.get(), crowd.count(OomStep)), (ROUNDS, 0));
    assert_eq!(allocator.free_frames(), free);
    allocator.check().unwrap();
}

#[test]
fn some_requests_fail_rather_than_cost_a_life() {
    let allocator = machine();
    let _held = full(&allocator);
    for request in [ONE.no_retry(), ONE.retry_hard(), ONE.only_node(NodeId(0))] {
        let aid = aid(|_| Progress::Exhausted);
        assert!(
            is_short(&allocator.alloc_with(request, &aid)),
            "{request:?}"
        );
        assert_eq!(aid.count(OomStep), 0, "{request:?}");
    }
    let low = {
        let mut map = one_region(1 << 16, 1 << 14);
        map.add(NodeId(0), PhysAddr(4 << 30), 64 << 20).unwrap();
        machine::allocator(map, &Config::default()).unwrap()
    };
    let request = ONE.zone(ZoneKind::Dma32);
    let _held: Vec<_> = std::iter::from_fn(|| low.try_alloc(request).ok()).collect();
    let aid = aid(|_| Progress::Exhausted);
    assert!(is_short(&low.alloc_with(request, &aid)));
    assert_eq!(aid.count(OomStep), 0);
}

/// misuse 21: a request that must not fail, while nothing can be freed.
#[test]
fn a_request_that_must_not_fail_asks_the_oom_hook_in_bounded_rounds() {
    let allocator = machine();
    let held = full(&allocator);
    let mut served = Vec::new();
    for request in [ONE, ONE.no_fail()] {
        let mut aid = aid(|_| Progress::Exhausted);
        aid.oom = Box::new(|| Oom::Retry);
        let result = allocator.alloc_with(request, &aid);
        assert_eq!(aid.count(OomStep), OOM_CALLS, "{request:?}");
        assert!(aid.count(ReclaimStep) <= (OOM_CALLS + 1) * (RETRIES + 1));
        // In the end it takes what urgent requests may.
        assert_eq!(result.is_ok(), request == ONE.no_fail());
        served.extend(result);
    }
    // Memory that comes at the third call serves it; a hook that lets it fail is obeyed.
    let calls = Cell::new(0);
    let mut third = aid(|_| Progress::Exhausted);
    third.oom = Box::new(|| {
        calls.set(calls.get() + 1);
        if calls.get() == 3 {
            held.borrow_mut().truncate(1000);
        }
        Oom::Retry
    });
    assert!(allocator.alloc_with(ONE.no_fail(), &third).is_ok());
    assert_eq!(calls.get(), 3);
    drop(third);
    let mut rest: Vec<_> =
        std::iter::from_fn(|| allocator.try_alloc(ONE.ignore_watermarks()).ok()).collect();
    let obeyed = aid(|_| Progress::Exhausted);
    assert!(is_short(&allocator.alloc_with(ONE.no_fail(), &obeyed)));
    assert_eq!(obeyed.count(OomStep), 1);
    // A large one never costs a life: it ends by its rounds.
    let large = aid(|_| Progress::Freed(0));
    let order = Order::new(5).unwrap();
    assert!(is_short(
        &allocator.alloc_with(Request::new(order).no_fail(), &large)
    ));
    assert_eq!(large.count(OomStep), 0);
    assert!(large.count(ReclaimStep) <= 2 * (RETRIES + 1));
    rest.clear();
    allocator.check().unwrap();
}

/// misuse 42: no recursion; who reclaims is served below the minimum, and only that.
#[test]
fn who_reclaims_is_served_below_the_minimum_and_never_reclaims() {
    let allocator = machine();
    let _held = full(&allocator);
    let mut inside = aid(|_| unreachable!("reclaim inside reclaim"));
    inside.caller = Caller::Reclaiming;
    assert!(is_short(
        &allocator.alloc_with(ONE.keep_reserves(), &inside)
    ));
    // An interrupt on top of it is not it.
    let silent = ONE.reclaim(Reclaim::Background);
    assert!(is_short(&allocator.alloc_with(silent, &inside)));
    let mut taken: Vec<_> =
        std::iter::from_fn(|| allocator.alloc_with(ONE, &inside).ok()).collect();
    assert_eq!(allocator.free_frames(), 0);
    assert_eq!(inside.count(OomStep), 0);
    taken.clear();
    allocator.drain_all();
    let nested = aid(|_| Progress::Nested);
    assert!(is_short(&allocator.alloc_with(ONE, &nested)));
    assert_eq!(*nested.steps.borrow(), [Wake, ReclaimStep]);
    // One who is to die may take half of the minimum to get there, and calls for no other's death.
    let mut dying = aid(|_| Progress::Exhausted);
    dying.caller = Caller::Dying;
    let min = zone(&allocator).levels().min;
    taken.extend(std::iter::from_fn(|| {
        allocator.alloc_with(ONE, &dying).ok()
    }));
    assert_eq!(allocator.free_frames(), min - min / 2);
    assert_eq!(dying.count(OomStep), 0);
}

/// misuse 43
#[test]
fn a_hook_that_panics_leaves_counts_right_and_the_next_request_its_own_hook() {
    let allocator = machine();
    let _held = full(&allocator);
    let free = allocator.free_frames();
    let mut panics = aid(|_| Progress::Exhausted);
    panics.oom = Box::new(|| panic!("the hook was told to panic"));
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        allocator.alloc_with(ONE, &panics).is_ok()
    }));
    assert!(unwound.is_err());
    let next = aid(|_| Progress::Exhausted);
    assert!(is_short(&allocator.alloc_with(ONE, &next)));
    assert_eq!(next.count(OomStep), 1);
    assert_eq!(allocator.free_frames(), free);
    allocator.check().unwrap();
}

#[test]
fn an_oom_hook_that_allocates_asks_nobody_for_another_life() {
    let allocator = machine();
    let _held = full(&allocator);
    let inner = aid(|_| Progress::Freed(0));
    let mut outer = aid(|_| Progress::Exhausted);
    outer.oom = Box::new(|| {
        assert!(is_short(&allocator.alloc_with(ONE, &inner)));
        Oom::Fail
    });
    assert!(is_short(&allocator.alloc_with(ONE, &outer)));
    assert_eq!(inner.count(OomStep), 0);
    assert!(inner.count(ReclaimStep) <= ROUNDS);

    // misuse 21, 42: both must not fail, and the hook promises memory that never comes. Rounds are bounded, and so is their product.
    let reserve: Vec<_> =
        std::iter::from_fn(|| allocator.try_alloc(ONE.ignore_watermarks()).ok()).collect();
    let inner = aid(|_| Progress::Freed(0));
    let mut outer = aid(|_| Progress::Exhausted);
    outer.oom = Box::new(|| {
        assert!(is_short(&allocator.alloc_with(ONE.no_fail(), &inner)));
        Oom::Retry
    });
    assert!(is_short(&allocator.alloc_with(ONE.no_fail(), &outer)));
    assert_eq!((outer.count(OomStep), inner.count(OomStep)), (OOM_CALLS, 0));
    assert!((1..=OOM_CALLS * ROUNDS).contains(&inner.count(ReclaimStep)));
    assert!(outer.count(ReclaimStep) <= (OOM_CALLS + 1) * (RETRIES + 1));
    drop(reserve);
}

/// Where only a lower zone's reserve is left, a request that no watermark holds back goes on, and is served.
#[test]
fn a_request_without_watermarks_counts_what_is_reserved_as_within_reach() {
    // DMA32 keeps a part of Normal's size from requests that Normal may serve.
    let mut map = one_region(1 << 19, 1 << 12);
    map.add(NodeId(0), PhysAddr(1 << 32), 1 << 31).unwrap();
    let allocator = allocator(map, &Config::default()).unwrap();
    let unlimited = ONE.ignore_watermarks();
    let held: RefCell<Vec<Pages<'_, Host>>> = RefCell::default();
    let all = std::iter::from_fn(|| allocator.try_alloc(unlimited).ok());
    held.borrow_mut().extend(all);
    let low = allocator.zones().next().unwrap();
    let reserve = allocator.zone_counts().next().unwrap().reserves[ZoneKind::Normal as usize];
    assert!(reserve > 100 && low.free_frames_exact() == 0);
    // Two rounds free nothing; the third frees a few frames of the lower zone, fewer than it reserves.
    let rounds = Cell::new(0);
    let mut aid = aid(|_| {
        rounds.set(rounds.get() + 1);
        if rounds.get() == 3 {
            held.borrow_mut()
                .retain(|pages| pages.pfn().0 >= (1 << 19) + 50);
        }
        Progress::Freed(0)
    });
    aid.reclaimable = 50;
    let pages = allocator.alloc_with(unlimited, &aid).unwrap();
    assert!(pages.pfn().0 < 1 << 20);
    assert_eq!(aid.count(OomStep), 0);
    drop((pages, aid));
    allocator.check().unwrap();
}

#[test]
fn what_is_kept_for_urgent_requests_is_given_up_before_a_life() {
    // allocator.md 1.8: all of it just before the hook.
    let allocator = allocator(one_region(1 << 20, 1 << 18), &Config::default()).unwrap();
    let zone = zone(&allocator);
    let fresh = zone.levels();
    let mut held: Vec<_> =
        std::iter::from_fn(|| allocator.try_alloc(ONE.mobility(Mobility::Movable)).ok()).collect();
    // Room for atomic blocks just below low.
    held.truncate(held.len() - 200_000);
    allocator.drain_all();
    let free = zone.free_frames_exact();
    let levels = framekeeper::zone::Levels {
        min: 600,
        low: free,
        high: free,
        promo: free,
    };
    zone.set_levels(levels).unwrap();
    drop(
        allocator
            .try_alloc(Request::new(Order::new(3).unwrap()).atomic())
            .unwrap(),
    );
    assert_eq!(zone.reserved_highatomic(), 512);
    held.extend(std::iter::from_fn(|| allocator.try_alloc(ONE).ok()));
    let exhausted = aid(|_| Progress::Exhausted);
    let served: Vec<_> =
        std::iter::from_fn(|| allocator.alloc_with(ONE, &exhausted).ok()).collect();
    assert_eq!(zone.reserved_highatomic(), 0);
    assert!(served.len() >= 500, "{}", served.len());
    assert_eq!(exhausted.count(OomStep), 1, "only when it was gone");
    zone.set_levels(fresh).unwrap();
    allocator.check().unwrap();
}
