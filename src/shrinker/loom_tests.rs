//! Models of the shrinkers' bits, run by loom on the code itself.
//!
//! Owns: nothing. Invariants: checked, not held: an object that was added is counted, or its bit is set. Lock ranks: as the code under
//! test. Used by: `RUSTFLAGS="--cfg loom" cargo test --release --lib loom_tests`.
//!
//! Bounds: one adder, one clearer, one group. The broken twins leave out the second count, and each side's fence.

extern crate std;

use std::boxed::Box;

use super::{Count, Scan, Shrinker, ShrinkerConfig, Shrinkers, Target};
use crate::addr::NodeId;
use crate::loom_host::{LoomLock, model_platform, run_as};
use crate::loom_machine::{carved, memcgs};
use crate::memcg::{MemcgId, Memcgs};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicU64, Ordering};

model_platform!(
    /// Two CPUs.
    LoomHost,
    LoomLock
);
model_platform!(
    /// Clears a bit and believes it.
    NoSecondCount,
    LoomLock,
    LEFT_OUT: &'static str = "shrinker: the count after the clear"
);
model_platform!(
    /// Sets a bit before others can see what it is for.
    NoFenceOfMark,
    LoomLock,
    LEFT_OUT: &'static str = "shrinker: the fence of a mark"
);
model_platform!(
    /// Counts again before others can see the bit clear.
    NoFenceOfClear,
    LoomLock,
    LEFT_OUT: &'static str = "shrinker: the fence of a clear"
);

/// A cache that is a number.
struct Number(AtomicU64);

impl Shrinker for Number {
    fn count(&self, _: Target) -> Count {
        match self.0.load(Ordering::Relaxed) {
            0 => Count::Empty,
            objects => Count::Objects(objects),
        }
    }
    fn scan(&self, _: Target, _: u64) -> Scan {
        // It stays: the bit must.
        Scan::Stop
    }
}

struct Machine<P: Platform> {
    memcgs: Memcgs<P>,
    shrinkers: Shrinkers<P>,
}

impl<P: Platform> Machine<P> {
    fn new() -> &'static Self {
        Box::leak(Box::new(carved(|bump| Self {
            memcgs: memcgs(bump, 2),
            shrinkers: Shrinkers::build(bump, 1, 2).unwrap(),
        })))
    }
}

fn add_races_with_clear<P: Platform>() {
    loom::model(|| {
        let machine = Machine::<P>::new();
        let group = machine
            .memcgs
            .create(MemcgId::ROOT, &IrqOff::new(), |_| ())
            .unwrap();
        let number: &'static Number = Box::leak(Box::new(Number(AtomicU64::new(0))));
        machine
            .shrinkers
            .register(number, ShrinkerConfig::default())
            .unwrap();
        let lruvec = machine.memcgs.lruvec_of(group.slot, 0);
        // Left from an earlier object.
        machine.shrinkers.mark(0, lruvec);
        let thread = loom::thread::spawn(move || {
            run_as(1);
            number.0.store(1, Ordering::Relaxed);
            machine.shrinkers.mark(0, lruvec);
        });
        let _ = machine
            .shrinkers
            .shrink(&machine.memcgs, group, NodeId(0), 12);
        thread.join().unwrap();
        assert!(machine.shrinkers.is_marked(0, lruvec), "forgotten for ever");
    });
}

#[test]
fn an_object_added_while_its_bit_is_cleared_is_counted_or_sets_it_again() {
    add_races_with_clear::<LoomHost>();
}

#[test]
#[should_panic(expected = "forgotten for ever")]
fn without_the_second_count_an_object_is_forgotten() {
    add_races_with_clear::<NoSecondCount>();
}

#[test]
#[should_panic(expected = "forgotten for ever")]
fn without_the_fence_before_the_bit_an_object_is_forgotten() {
    add_races_with_clear::<NoFenceOfMark>();
}

#[test]
#[should_panic(expected = "forgotten for ever")]
fn without_the_fence_after_the_clear_an_object_is_forgotten() {
    add_races_with_clear::<NoFenceOfClear>();
}

#[test]
fn work_deferred_while_its_group_ends_is_the_parents() {
    loom::model(|| {
        let machine = Machine::<LoomHost>::new();
        let group = machine
            .memcgs
            .create(MemcgId::ROOT, &IrqOff::new(), |_| ())
            .unwrap();
        let number: &'static Number = Box::leak(Box::new(Number(AtomicU64::new(100))));
        machine
            .shrinkers
            .register(number, ShrinkerConfig::default())
            .unwrap();
        let lruvec = machine.memcgs.lruvec_of(group.slot, 0);
        machine.shrinkers.mark(0, lruvec);
        let thread = loom::thread::spawn(move || {
            run_as(1);
            let found = machine.memcgs.is_live(group);
            let _ = machine
                .shrinkers
                .shrink(&machine.memcgs, group, NodeId(0), 0);
            found
        });
        let removal = machine.memcgs.begin_removal(group, &IrqOff::new()).unwrap();
        machine.memcgs.wait_for_charges();
        machine.shrinkers.reparent(&machine.memcgs, &removal);
        machine.memcgs.wait_for_charges();
        machine.memcgs.finish_removal(removal, &IrqOff::new());
        thread.join().unwrap();
        // All 200 or, if the group was gone before it began, none; never the dead group's.
        let deferred = |lruvec| {
            machine
                .shrinkers
                .maps
                .deferred(lruvec, 0)
                .map(|objects| objects.load(Ordering::Relaxed))
        };
        assert_eq!(deferred(lruvec), Some(0));
        assert!(matches!(deferred(0), Some(0 | 200)));
    });
}
