//! Models of the locks and of the grace periods: loom runs the crate's own code under every schedule.
//!
//! Bounds: at most 3 threads; each reader pins once, the writer runs two grace periods, so both phases of the counters are
//! current once; schedules with at most `LOOM_MAX_PREEMPTIONS` preemptions. Every ordering of loads and stores that the
//! memory model allows is tried, except that loom makes a SeqCst fence a little stronger than C++ does: what a thread did
//! before its fence happens before all that follows a later fence. The proofs here need less (the later fence's thread
//! sees the stores). Asymmetric barriers have no model: loom cannot run a fence on another thread in the middle of its
//! code. They appear as the twin whose barrier does nothing.
//!
//! Each protocol has broken twins: the same code with one step left out, which loom must catch.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test --release --test loom_sync`
#![cfg(loom)]

#[path = "common/loom_host.rs"]
mod loom_host;

use framekeeper::sync::{Epoch, GraceBusy, Lock, Pins, Ranked};
use framekeeper::{Barrier, CpuIds, IrqOff, Platform, Rank, RawLock};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use loom_host::{LoomHost, LoomLock, model_platform, per_cpu, run_as};

/// Data of the first model.
#[derive(Default)]
struct Counter(u32);

impl Ranked for Counter {
    const RANK: Rank = Rank::LruVec;
}

/// A lock that excludes nobody.
pub struct OpenLock;

// SAFETY: none: this is the broken twin, and the test that uses it must fail before any access overlaps.
#[allow(unsafe_code)]
unsafe impl RawLock for OpenLock {
    fn new() -> Self {
        Self
    }
    fn lock(&self) {
        thread::yield_now();
    }
    fn try_lock(&self) -> bool {
        true
    }
    unsafe fn unlock(&self) {}
}

model_platform!(
    /// Its locks exclude nobody.
    Unlocked,
    OpenLock
);
model_platform!(
    /// Pins are plain stores.
    Exclusive,
    LoomLock,
    CPU_IDS: CpuIds = CpuIds::Exclusive
);
model_platform!(
    /// Pins have no fence, and the barrier that should replace it does nothing.
    NoFence,
    LoomLock,
    BARRIER: Barrier = Barrier::Asymmetric
);
model_platform!(
    /// A grace period waits for the counter that new pins use, not for the other one.
    NoIdleWait,
    LoomLock,
    LEFT_OUT: &'static str = "epoch: the wait for the idle counter"
);
model_platform!(
    /// A grace period waits for the idle counter only.
    NoCurrentWait,
    LoomLock,
    LEFT_OUT: &'static str = "epoch: the wait for the current counter"
);

/// Two threads add to one counter, one of them through `try_lock`.
fn two_threads_count<P: Platform>() {
    loom::model(|| {
        let counter = Arc::new(Lock::<Counter, P>::new(Counter(0)));
        let other = Arc::clone(&counter);
        let thread = thread::spawn(move || {
            IrqOff::with(|off| other.lock(off).0 += 1);
        });
        let tried = IrqOff::with(|off| match counter.try_lock(off) {
            Some(mut held) => {
                held.0 += 1;
                1
            }
            None => 0,
        });
        IrqOff::with(|off| counter.lock(off).0 += 1);
        thread.join().expect("the other thread does not panic");
        IrqOff::with(|off| assert_eq!(counter.lock(off).0, 2 + tried));
    });
}

#[test]
fn a_lock_admits_one_thread_at_a_time() {
    two_threads_count::<LoomHost>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_that_excludes_nobody_is_caught() {
    two_threads_count::<Unlocked>();
}

#[test]
fn pairs_locked_child_first_do_not_deadlock_and_see_each_other() {
    loom::model(|| {
        let pair = Arc::new([(); 2].map(|()| Lock::<Counter, LoomHost>::new(Counter(0))));
        let threads = [(); 2].map(|()| {
            let pair = Arc::clone(&pair);
            thread::spawn(move || {
                IrqOff::with(|off| {
                    let (mut child, mut parent) = Lock::lock_pair(&pair[0], &pair[1], off);
                    assert_eq!(child.0, parent.0);
                    child.0 += 1;
                    parent.0 += 1;
                });
            })
        });
        for thread in threads {
            thread.join().expect("no thread panics");
        }
        IrqOff::with(|off| assert_eq!(pair[1].lock(off).0, 2));
    });
}

/// Two cells, one of them published; readers look at the published one under a pin.
struct Published<P: Platform> {
    epoch: Epoch<P>,
    current: AtomicUsize,
    cells: [UnsafeCell<u32>; 2],
}

impl<P: Platform> Published<P> {
    fn new(cpus: u32) -> Self {
        Self {
            epoch: Epoch::new(per_cpu::<Pins>(cpus)),
            current: AtomicUsize::new(0),
            cells: [UnsafeCell::new(0), UnsafeCell::new(0)],
        }
    }

    fn read(&self) {
        let pin = self.epoch.pin();
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: the pin keeps the writer away from the published cell; loom checks it.
        #[allow(unsafe_code)]
        self.cells[current].with(|cell| assert_eq!(unsafe { *cell } % 2, 0));
        drop(pin);
    }

    /// Publishes the other cell, waits, and reuses the first: odd while it is written.
    fn replace(&self) {
        let old = self.current.load(Ordering::Relaxed);
        self.current.store(old ^ 1, Ordering::Release);
        self.epoch
            .synchronize()
            .expect("no other grace period runs");
        self.cells[old].with_mut(|cell| {
            // SAFETY: every reader of this cell has gone; loom checks it.
            #[allow(unsafe_code)]
            unsafe {
                *cell += 2;
            }
        });
    }
}

/// One reader for each of `cpus` pins once, while the writer replaces the cells `periods` times.
fn readers_against_a_writer<P: Platform>(cpus: &'static [u32], periods: u32) {
    loom::model(move || {
        let published = Arc::new(Published::<P>::new(2));
        let readers: Vec<_> = cpus
            .iter()
            .map(|&cpu| {
                let published = Arc::clone(&published);
                thread::spawn(move || {
                    run_as(cpu);
                    published.read();
                })
            })
            .collect();
        for _ in 0..periods {
            published.replace();
        }
        for reader in readers {
            reader.join().expect("no reader panics");
        }
    });
}

#[test]
fn a_grace_period_outlasts_the_pins_of_two_cpus_in_both_phases() {
    readers_against_a_writer::<LoomHost>(&[0, 1], 2);
}

#[test]
fn a_grace_period_outlasts_the_pins_of_threads_that_share_a_cpu() {
    readers_against_a_writer::<LoomHost>(&[1, 1], 2);
}

#[test]
fn a_grace_period_outlasts_pins_outside_the_range_of_cpus() {
    readers_against_a_writer::<LoomHost>(&[0, 7], 2);
}

#[test]
fn a_grace_period_outlasts_the_pins_of_exclusive_cpus() {
    readers_against_a_writer::<Exclusive>(&[0, 1], 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_pin_without_a_fence_is_caught() {
    readers_against_a_writer::<NoFence>(&[0], 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_grace_period_that_skips_the_current_counter_is_caught() {
    readers_against_a_writer::<NoCurrentWait>(&[0], 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_grace_period_that_skips_the_idle_counter_is_caught() {
    readers_against_a_writer::<NoIdleWait>(&[0], 2);
}

#[test]
fn of_two_grace_periods_at_once_one_is_refused_and_neither_is_lost() {
    loom::model(|| {
        let epoch = Arc::new(Epoch::<LoomHost>::new(per_cpu::<Pins>(1)));
        let other = Arc::clone(&epoch);
        let thread = thread::spawn(move || other.synchronize());
        let mine = epoch.synchronize();
        let theirs = thread.join().expect("the other thread does not panic");
        assert!(mine.is_ok() || theirs.is_ok());
        assert!(mine.is_ok() || mine == Err(GraceBusy));
        assert_eq!(epoch.synchronize(), Ok(()), "the claim was given back");
    });
}
