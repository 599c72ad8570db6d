//! The simulator against this machine: two pinned threads that think, take one lock, and hold it, beside two virtual CPUs that do the same.
//!
//! What a thought, a hold and the transfer of a cache line take is measured first, each by itself. Not more CPUs than this machine has
//! can be compared: what the simulator says of 64 rests on its model, and on that it holds for 2.
//!
//! On 2026-12-01, two cores of a virtual machine (Intel Xeon, model 207): a line took 67 ns. The simulator found 5 to 24 % fewer
//! contended acquisitions than there were, and 130 % more where threads did hardly anything but hold: a spin lock lets its releaser
//! take it again before the other sees it free, the simulator serves in order.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Instant;

use framekeeper::sync::CachePadded;
use framekeeper::{Rank, RawLock};

use super::port::{self, TryLock};
use super::rows::{At, Rows, Runs};
use super::simulator::{Costs, Program, Step, simulate};
use super::{Options, RUNS, on_threads};
use crate::clock::{Random, median};

const SEED: &str = "sim";
/// Nanoseconds of thought, about, and of a hold.
const POINTS: [(u64, u64); 9] = [
    (4000, 100),
    (2000, 50),
    (1000, 50),
    (500, 50),
    (1000, 200),
    (500, 200),
    (250, 200),
    (600, 600),
    (100, 100),
];
/// Holds of each thread in one run.
const HOLDS: u32 = 20_000;

/// Work of which each step needs the one before, and the first needs `x`.
fn work(mut x: u64, steps: u64) {
    for _ in 0..steps {
        x = x.wrapping_mul(6_364_136_223_846_793_005) ^ (x >> 29);
    }
    black_box(x);
}

/// Nanoseconds that `times` calls take, each: the shortest of several tries.
fn each(times: u32, mut call: impl FnMut()) -> f64 {
    let mut time = || {
        let began = Instant::now();
        (0..times).for_each(|_| call());
        began.elapsed().as_nanos() as f64 / f64::from(times)
    };
    (0..9).map(|_| time()).fold(f64::INFINITY, f64::min)
}

/// What this machine takes, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Machine {
    /// A step of [`work`].
    step: f64,
    /// The lock taken and released with nobody else there, and what it guards changed.
    lock: f64,
    /// A cache line from the other core.
    line: f64,
}

fn measure() -> Machine {
    let step = each(100, || work(black_box(1), 10_000)) / 10_000.0;
    let guarded = Guarded::new();
    let lock = each(100_000, || guarded.hold(0));
    // A word that two cores write in turn changes hands twice a round.
    let word = CachePadded(AtomicU64::new(0));
    let rounds = 20_000;
    let mut lines = Vec::new();
    for _ in 0..RUNS {
        let (ms, _) = on_threads(2, |cpu| {
            for round in 0..rounds {
                while word.0.load(Acquire) != round * 2 + u64::from(cpu) {
                    std::hint::spin_loop();
                }
                word.0.store(round * 2 + u64::from(cpu) + 1, Release);
            }
        });
        word.0.store(0, Relaxed);
        lines.push(ms * 1e6 / (rounds * 2) as f64);
    }
    Machine {
        step,
        lock,
        line: median(lines),
    }
}

/// A lock, and a line of what it guards.
struct Guarded {
    lock: CachePadded<TryLock>,
    /// So that no prefetcher brings both lines at once.
    _apart: [u64; 64],
    count: CachePadded<AtomicU64>,
}

impl Guarded {
    fn new() -> Self {
        Self {
            lock: CachePadded(TryLock::of_rank(Rank::LruVec)),
            _apart: [0; 64],
            count: CachePadded(AtomicU64::new(0)),
        }
    }

    fn hold(&self, steps: u64) {
        self.lock.0.lock();
        // As a list's links are, what is guarded is needed for the work.
        let count = self.count.0.load(Relaxed);
        self.count.0.store(count + 1, Relaxed);
        work(count, steps);
        // SAFETY: it was taken above.
        unsafe { self.lock.0.unlock() };
    }
}

/// Thinks for between a half and one and a half of `think`, then holds.
struct Thinkers {
    think: u64,
    hold: u64,
    random: [Random; 2],
    left: [u32; 2],
}

impl Program for Thinkers {
    fn next(&mut self, cpu: u32, into: &mut VecDeque<Step>) -> bool {
        let left = &mut self.left[cpu as usize];
        if *left == 0 {
            return false;
        }
        *left -= 1;
        let think = self.think / 2 + self.random[cpu as usize].below(self.think);
        into.extend([
            Step::Work(think),
            Step::Acquire(0, Rank::LruVec),
            Step::Work(self.hold),
            Step::Release(0),
        ]);
        true
    }
}

fn random() -> [Random; 2] {
    [Random(17), Random(18)]
}

pub fn run(options: &Options, rows: &mut Rows) {
    if options.quick || std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return; // nothing here is the same on every run
    }
    let machine = measure();
    println!(
        "    measured: a lock with nobody else there {:.1} ns, a cache line from the other core {:.1} ns",
        machine.lock, machine.line
    );
    let mut errors = Vec::new();
    for (think, hold) in POINTS {
        let case = format!("think {think} ns, hold {hold} ns");
        let steps = |ns: u64| (ns as f64 / machine.step) as u64;
        let mut found = Runs::default();
        let mut contended = Vec::new();
        for _ in 0..RUNS {
            let guarded = Guarded::new();
            let (ms, locks) = on_threads(2, |cpu| {
                let mut random = random()[cpu as usize].clone();
                port::counted(Rank::LruVec);
                for _ in 0..HOLDS {
                    work(1, steps(think / 2) + random.below(steps(think)));
                    guarded.hold(steps(hold));
                }
                port::counted(Rank::LruVec)
            });
            let waits: u64 = locks.iter().map(|lock| lock.1).sum();
            contended.push(waits as f64 / f64::from(HOLDS * 2) * 1000.0);
            found.push(ms, u64::from(HOLDS) * 2, &locks);
        }
        let at = At::new(SEED, &case, "control");
        rows.threads(at.threads(2), found);
        let costs = Costs {
            line: machine.line as u64,
            hold: 0,
            item: 0,
            between: 0,
        };
        let mut thinkers = Thinkers {
            think,
            hold: hold + machine.lock as u64,
            random: random(),
            left: [HOLDS; 2],
        };
        let outcome = simulate(2, &costs, &mut thinkers);
        rows.simulated(at.cpus(2), Rank::LruVec, u64::from(HOLDS) * 2, &outcome);
        let waits = outcome.contended[Rank::LruVec as usize];
        let predicted = waits as f64 / f64::from(HOLDS * 2) * 1000.0;
        let measured = median(contended);
        let error = (predicted / measured - 1.0) * 100.0;
        println!(
            "    {case}: {predicted:.1} contended per 1000 predicted, {measured:.1} measured, error {error:+.0} %"
        );
        errors.push(error.abs());
    }
    let most = errors.iter().copied().fold(0.0, f64::max);
    println!(
        "    error of the simulator: {:.0} % in the median, {most:.0} % at most",
        median(errors)
    );
}
