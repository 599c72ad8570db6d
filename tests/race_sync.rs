//! Races of locks and grace periods on real threads, with exact final counts.
//!
//! Also run under ThreadSanitizer (`.ci/run`), which does not model fences: what a fence is for is shown by
//! tests/loom_sync.rs. The plain accesses here are what the sanitizer watches.

#[path = "common/host.rs"]
mod host;
#[path = "common/race.rs"]
mod race;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::process::ExitCode;

use framekeeper::sync::{CachePadded, Epoch, GraceBusy, Lock, PerCpu, Pins, Ranked};
use framekeeper::{Barrier, CpuId, CpuIds, IrqOff, PhysAddr, Platform, Rank};
use host::{Host, YieldLock, run_as};
use race::{rounds, tests, together};

fn main() -> ExitCode {
    race::run(&tests![
        threads_that_lock_one_value_lose_no_update,
        pairs_move_units_and_keep_their_sum,
        readers_with_shared_ids_never_meet_the_writer,
        readers_with_exclusive_ids_never_meet_the_writer,
        readers_without_fences_never_meet_the_writer_behind_an_asymmetric_barrier,
        of_many_grace_periods_at_once_each_is_done_or_refused,
        a_grace_period_whose_barrier_does_nothing_waits_for_every_pin_all_the_same,
    ])
}

const THREADS: u32 = 4;

#[derive(Default)]
struct Units(u64);

impl Ranked for Units {
    const RANK: Rank = Rank::LruVec;
}

fn threads_that_lock_one_value_lose_no_update() {
    let each = rounds(20_000);
    let lock = Lock::<Units, Host>::new(Units(0));
    together(THREADS, |cpu| {
        run_as(cpu);
        for _ in 0..each {
            IrqOff::with(|off| {
                lock.lock(off).0 += 1;
                while lock.try_lock(off).map(|mut held| held.0 += 1).is_none() {
                    Host::relax();
                }
            });
        }
    });
    let total = IrqOff::with(|off| lock.lock(off).0);
    assert_eq!(total, 2 * u64::from(THREADS) * each);
}

fn pairs_move_units_and_keep_their_sum() {
    let each = rounds(20_000);
    let child = Lock::<Units, Host>::new(Units(u64::from(THREADS) * each));
    let parent = Lock::new(Units(0));
    together(THREADS, |_| {
        for _ in 0..each {
            IrqOff::with(|off| {
                let (mut from, mut to) = Lock::lock_pair(&child, &parent, off);
                assert_eq!(from.0 + to.0, u64::from(THREADS) * each);
                from.0 -= 1;
                to.0 += 1;
            });
        }
    });
    IrqOff::with(|off| assert_eq!(child.lock(off).0, 0));
}

/// As `Host`, with ids that only one thread acts under.
#[derive(Debug)]
enum Exclusive {}

/// As `Exclusive`, with pins that have no fence: `membarrier` runs it on their CPUs.
#[derive(Debug)]
enum Asymmetric {}

macro_rules! host_platform {
    ($name:ident, $barrier:expr, $barrier_all:expr) => {
        // SAFETY: no memory is ever given to an instance of this platform. Each thread that pins has an id of its own.
        #[allow(unsafe_code)]
        unsafe impl Platform for $name {
            const CPU_IDS: CpuIds = CpuIds::Exclusive;
            const BARRIER: Barrier = $barrier;
            type RawLock = YieldLock;
            fn cpu() -> CpuId {
                Host::cpu()
            }
            fn irq_save() -> usize {
                0
            }
            fn irq_restore(_state: usize) {}
            fn direct_map(_addr: PhysAddr) -> *mut u8 {
                core::ptr::null_mut()
            }
            fn barrier_all() {
                $barrier_all();
            }
            fn relax() {
                Host::relax();
            }
        }
    };
}
host_platform!(Exclusive, Barrier::Fenced, || {});
host_platform!(Asymmetric, Barrier::Asymmetric, || {
    assert!(membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED));
});

/// Whether the kernel did it. One that forbids the system call altogether says so at the registration.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call touches no memory of this process.
    #[allow(unsafe_code)]
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    result == 0
}

/// Slots of plain memory; readers look at the published one under a pin, the writer reuses the others.
struct Slots<P: Platform> {
    epoch: Epoch<P>,
    published: AtomicUsize,
    finished: AtomicBool,
    slots: [UnsafeCell<[u64; 4]>; 3],
}

// SAFETY: a slot is written by one writer, after a grace period that follows its withdrawal; that is what is tested.
#[allow(unsafe_code)]
unsafe impl<P: Platform> Sync for Slots<P> {}

fn epoch<P: Platform>(cpus: u32) -> Epoch<P> {
    let pins: Vec<CachePadded<Pins>> = (0..cpus).map(|_| CachePadded::default()).collect();
    Epoch::new(PerCpu::new(pins.leak()))
}

impl<P: Platform> Slots<P> {
    fn read(&self) -> usize {
        let _pin = self.epoch.pin();
        let slot = self.published.load(Ordering::Acquire);
        // SAFETY: the pin keeps the writer away from the published slot.
        #[allow(unsafe_code)]
        let words = unsafe { *self.slots[slot].get() };
        assert_eq!(words, [words[0]; 4], "a slot was written while it was read");
        slot
    }

    fn write(&self, period: u64) {
        let old = self.published.load(Ordering::Relaxed);
        self.published
            .store((old + 1) % self.slots.len(), Ordering::Release);
        self.epoch
            .synchronize()
            .expect("no other grace period runs");
        // SAFETY: the slot is withdrawn, and every pin under which it could be found is gone.
        #[allow(unsafe_code)]
        let words = unsafe { &mut *self.slots[old].get() };
        words.fill(period);
    }
}

/// Thread 0 writes, the others read, under ids 0 to `THREADS - 2`; the epoch knows `cpus` of them.
fn readers_against_a_writer<P: Platform>(cpus: u32) {
    let slots = Slots::<P> {
        epoch: epoch(cpus),
        published: AtomicUsize::new(0),
        finished: AtomicBool::new(false),
        slots: [const { UnsafeCell::new([0; 4]) }; 3],
    };
    let periods = rounds(3_000);
    together(THREADS, |thread| {
        if thread == 0 {
            for period in 1..=periods {
                slots.write(period);
            }
            slots.finished.store(true, Ordering::Relaxed);
        } else {
            run_as(thread - 1);
            let mut seen = [0_u64; 3];
            while !slots.finished.load(Ordering::Relaxed) {
                seen[slots.read()] += 1;
            }
        }
    });
    assert_eq!(slots.epoch.synchronize(), Ok(()), "no pin is left");
    assert_eq!(slots.published.load(Ordering::Relaxed) as u64, periods % 3);
}

fn readers_with_shared_ids_never_meet_the_writer() {
    // Ids 1 and 2 are out of range, and share what is kept for such.
    readers_against_a_writer::<Host>(1);
}

fn readers_with_exclusive_ids_never_meet_the_writer() {
    readers_against_a_writer::<Exclusive>(THREADS - 1);
}

fn readers_without_fences_never_meet_the_writer_behind_an_asymmetric_barrier() {
    if !membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        println!("NOT RUN: membarrier: {}", std::io::Error::last_os_error());
        return;
    }
    readers_against_a_writer::<Asymmetric>(THREADS - 1);
}

fn of_many_grace_periods_at_once_each_is_done_or_refused() {
    let epoch = epoch::<Host>(THREADS);
    let each = rounds(3_000) as usize;
    let (done, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    together(THREADS, |cpu| {
        run_as(cpu);
        for _ in 0..each {
            drop(epoch.pin());
            let count = match epoch.synchronize() {
                Ok(()) => &done,
                Err(GraceBusy) => &refused,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let done = done.into_inner();
    assert!(done > 0, "of those that meet, one goes on");
    assert_eq!(done + refused.into_inner(), THREADS as usize * each);
    assert_eq!(epoch.synchronize(), Ok(()));
}

/// Promises a barrier, and does nothing.
enum NoBarrier {}

// SAFETY: the test that uses it orders its threads by other means than the barrier; the direct map covers nothing.
#[allow(unsafe_code)]
unsafe impl Platform for NoBarrier {
    const CPU_IDS: CpuIds = CpuIds::Exclusive;
    const BARRIER: Barrier = Barrier::Asymmetric;
    type RawLock = YieldLock;
    fn cpu() -> CpuId {
        Host::cpu()
    }
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_: usize) {}
    fn direct_map(addr: PhysAddr) -> *mut u8 {
        Host::direct_map(addr)
    }
    fn relax() {
        Host::relax();
    }
}

/// misuse 47.
fn a_grace_period_whose_barrier_does_nothing_waits_for_every_pin_all_the_same() {
    // On a CPU of its own, and on one out of range.
    for reader in [1, 9] {
        let epoch = epoch::<NoBarrier>(2);
        let (pinned, over) = (AtomicBool::new(false), AtomicBool::new(false));
        together(2, |thread| {
            if thread == 0 {
                while !pinned.load(Ordering::SeqCst) {
                    Host::relax();
                }
                epoch.synchronize().expect("no other grace period runs");
                over.store(true, Ordering::SeqCst);
                return;
            }
            run_as(reader);
            let pin = epoch.pin();
            // Orders the pin before the grace period, which the barrier does not.
            pinned.store(true, Ordering::SeqCst);
            for _ in 0..rounds(1000) {
                assert!(!over.load(Ordering::SeqCst), "it did not wait");
                Host::relax();
            }
            drop(pin);
        });
    }
}
