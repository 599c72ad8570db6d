//! The fourteen workloads, each with one and two pinned threads, launches of all subjects interleaved.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::clock::{Random, Windows, median};
use crate::machine::{Framekeeper, run_as};
use crate::peers::{Bitmap, Buddy, Heap, Ranges};
use crate::report::Row;
use crate::subject::{FRAMES, Subject};
use crate::turnover;
use crate::yardsticks::{LockedStack, PlainStack};

/// Workloads that give nanoseconds per call, in groups that run together.
const TIMED: [&[&str]; 6] = [
    &["pingpong_fresh"],
    &["pingpong_half"],
    &["bulk_inorder_alloc", "bulk_inorder_free"],
    &["bulk_random_alloc", "bulk_random_free"],
    &["mix_0_9"],
    &["order9_pingpong", "order9_bulk_alloc", "order9_bulk_free"],
];

/// Blocks of a bulk workload.
const BULK: usize = 1 << 17;
/// Blocks of a bulk workload of order 9: three quarters of the memory.
const BULK9: usize = 3 * (FRAMES as usize >> 9) / 4;
/// Calls per window.
const WINDOW: usize = 1 << 14;

/// How much is run.
pub struct Plan {
    launches: u32,
    windows: usize,
    /// A prefix of the workloads' names.
    only: Option<String>,
    /// The one subject that runs beside the yardsticks.
    subject: Option<String>,
}

impl Plan {
    /// The full measurement, or one of a few seconds that shows only that everything runs.
    pub fn new(quick: bool, only: Option<String>, subject: Option<String>) -> Self {
        Self {
            launches: if quick { 1 } else { 7 },
            windows: if quick { 5 } else { 41 },
            only,
            subject,
        }
    }

    fn wants_subject(&self, name: &str) -> bool {
        let yardstick = name.starts_with("stack");
        yardstick || self.subject.as_deref().is_none_or(|only| name == only)
    }

    fn wants(&self, workload: &str) -> bool {
        self.only
            .as_deref()
            .is_none_or(|only| workload.starts_with(only))
    }
}

type Medians = BTreeMap<(&'static str, u32, &'static str), Vec<f64>>;

/// Runs everything.
pub fn run(plan: &Plan) -> Vec<Row> {
    let mut medians = Medians::new();
    for launch in 0..plan.launches {
        eprintln!("launch {} of {}", launch + 1, plan.launches);
        for threads in [1, 2] {
            for group in TIMED {
                if !group.iter().any(|workload| plan.wants(workload)) {
                    continue;
                }
                launch_of::<PlainStack>(plan, threads, group, &mut medians);
                launch_of::<LockedStack>(plan, threads, group, &mut medians);
                launch_of::<Framekeeper>(plan, threads, group, &mut medians);
                launch_of::<Buddy>(plan, threads, group, &mut medians);
                launch_of::<Bitmap>(plan, threads, group, &mut medians);
                launch_of::<Ranges>(plan, threads, group, &mut medians);
                launch_of::<Heap>(plan, threads, group, &mut medians);
            }
        }
    }
    for (percent, workload) in turnover::PERCENTS {
        for threads in [1, 2] {
            if plan.wants(workload) {
                count::<Framekeeper>(plan, (percent, workload), threads, &mut medians);
                count::<Buddy>(plan, (percent, workload), threads, &mut medians);
                count::<Bitmap>(plan, (percent, workload), threads, &mut medians);
                count::<Heap>(plan, (percent, workload), threads, &mut medians);
            }
        }
    }
    rows(medians)
}

/// One turnover of one subject. Counts hardly vary, so once is enough.
fn count<S: Subject>(
    plan: &Plan,
    (percent, workload): (u32, &'static str),
    threads: u32,
    medians: &mut Medians,
) {
    if plan.wants_subject(S::NAME) {
        let blocks = turnover::run::<S>(percent, threads);
        let key = (workload, threads, S::NAME);
        medians.entry(key).or_default().push(f64::from(blocks));
    }
}

fn rows(medians: Medians) -> Vec<Row> {
    let ns: BTreeMap<_, _> = medians
        .into_iter()
        .map(|(key, values)| (key, median(values)))
        .collect();
    ns.iter()
        .map(|(&(workload, threads, subject), &value)| Row {
            workload,
            threads,
            subject,
            ns: value,
            ratio: match turnover::possible(workload) {
                Some(blocks) => value / f64::from(blocks),
                None => value / ns[&(workload, threads, LockedStack::NAME)],
            },
        })
        .collect()
}

/// One launch of one subject: its medians go to `medians`.
fn launch_of<S: Subject>(plan: &Plan, threads: u32, group: &[&'static str], medians: &mut Medians) {
    let group: Vec<_> = group
        .iter()
        .copied()
        .filter(|name| S::hosts(name))
        .collect();
    if group.is_empty() || !plan.wants_subject(S::NAME) {
        return;
    }
    let subject = S::new();
    let start = Barrier::new(threads as usize);
    let running = AtomicU32::new(threads);
    let mut windows: BTreeMap<&'static str, Windows> = BTreeMap::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|cpu| {
                let (subject, group, start, running) = (&subject, &group, &start, &running);
                scope.spawn(move || {
                    run_as(cpu);
                    let mut worker = Worker {
                        subject,
                        threads: threads as usize,
                        windows: plan.windows,
                        random: Random(u64::from(cpu) + 1),
                        start,
                        running,
                        times: BTreeMap::new(),
                    };
                    worker.run(group[0]);
                    worker.times
                })
            })
            .collect();
        for worker in workers {
            for (name, times) in worker.join().expect("workers do not panic") {
                windows.entry(name).or_default().merge(times);
            }
        }
    });
    for (name, windows) in windows {
        let key = (name, threads, S::NAME);
        medians.entry(key).or_default().push(windows.median());
    }
}

/// How many calls take about 100 µs; at least a few for slow subjects.
fn calls_per_window(mut work: impl FnMut(usize)) -> usize {
    work(64);
    let start = Instant::now();
    work(64);
    let ns = start.elapsed().as_nanos().max(1) as usize / 64;
    (100_000 / ns.max(1)).clamp(16, WINDOW)
}

/// A thread at work.
struct Worker<'a, S: Subject> {
    subject: &'a S,
    threads: usize,
    windows: usize,
    random: Random,
    start: &'a Barrier,
    /// Threads that still measure. Those that are done work on unmeasured until it is 0.
    running: &'a AtomicU32,
    times: BTreeMap<&'static str, Windows>,
}

impl<'a, S: Subject> Worker<'a, S> {
    fn run(&mut self, first: &str) {
        match first {
            "pingpong_fresh" => self.ping_pong::<0>("pingpong_fresh"),
            "pingpong_half" => {
                let held = self.half();
                self.ping_pong::<0>("pingpong_half");
                held.into_iter()
                    .for_each(|block| self.subject.free(block, 0));
            }
            "bulk_inorder_alloc" => {
                self.bulk::<0>("bulk_inorder_alloc", "bulk_inorder_free", false)
            }
            "bulk_random_alloc" => self.bulk::<0>("bulk_random_alloc", "bulk_random_free", true),
            "mix_0_9" => self.mix(),
            _ => {
                self.ping_pong::<9>("order9_pingpong");
                self.bulk::<9>("order9_bulk_alloc", "order9_bulk_free", false);
            }
        }
    }

    /// Runs `step` for the windows that count, and then on until every thread has done so.
    fn measure(&mut self, windows: usize, mut step: impl FnMut(&mut Self, bool)) {
        if self.start.wait().is_leader() {
            self.running.store(self.threads as u32, Ordering::Relaxed);
        }
        self.start.wait();
        for _ in 0..windows {
            step(self, true);
        }
        self.running.fetch_sub(1, Ordering::Relaxed);
        while self.running.load(Ordering::Relaxed) > 0 {
            step(self, false);
        }
        self.start.wait();
    }

    fn time(&mut self, name: &'static str, counts: bool, calls: usize, work: impl FnOnce()) {
        let mut unmeasured = Windows::default();
        let windows = if counts {
            self.times.entry(name).or_default()
        } else {
            &mut unmeasured
        };
        windows.time(calls, work);
    }

    fn ping_pong<const ORDER: u8>(&mut self, name: &'static str) {
        let subject = self.subject;
        let pairs = |n: usize| {
            for _ in 0..n {
                let block = subject.alloc(ORDER).expect("memory is free");
                subject.free(black_box(block), ORDER);
            }
        };
        let window = calls_per_window(pairs);
        self.measure(self.windows, |this, counts| {
            this.time(name, counts, 2 * window, || pairs(window));
        });
    }

    /// Takes this thread's share of all frames and gives a random half of it back.
    fn half(&mut self) -> Vec<S::Block<'a>> {
        let subject = self.subject;
        self.start.wait();
        // Caches of the other thread may hold a few.
        let share = FRAMES as usize / self.threads - 4096;
        let mut held: Vec<_> = (0..share).filter_map(|_| subject.alloc(0)).collect();
        self.start.wait();
        self.random.shuffle(&mut held);
        for block in held.drain(share / 2..) {
            subject.free(block, 0);
        }
        held
    }

    fn bulk<const ORDER: u8>(&mut self, alloc: &'static str, free: &'static str, random: bool) {
        let subject = self.subject;
        let (blocks, window) = match ORDER {
            0 => (BULK, WINDOW),
            _ => (BULK9 / self.threads, BULK9 / self.threads),
        };
        let rounds = (self.windows * window).div_ceil(blocks).clamp(3, 12);
        let mut held = Vec::with_capacity(blocks);
        let mut warm = false;
        self.measure(rounds + 1, |this, counts| {
            // The first round meets caches that are cold and memory in another order.
            let counts = counts && warm;
            warm = true;
            for _ in 0..blocks / window {
                this.time(alloc, counts, window, || {
                    for _ in 0..window {
                        held.push(subject.alloc(ORDER).expect("memory is free"));
                    }
                });
            }
            if random {
                this.random.shuffle(&mut held);
            } else {
                held.reverse();
            }
            for _ in 0..blocks / window {
                this.time(free, counts, window, || {
                    for block in held.drain(held.len() - window..).rev() {
                        subject.free(block, ORDER);
                    }
                });
            }
        });
    }

    /// Random blocks of orders 0..=9: each step frees what a random slot holds, or fills it.
    fn mix(&mut self) {
        let subject = self.subject;
        // Half of the slots are full in the mean, each with 102.3 frames: half of the memory.
        let slots = FRAMES as usize / 102 / self.threads;
        let mut held: Vec<Option<(S::Block<'a>, u8)>> = (0..slots).map(|_| None).collect();
        let random = &mut self.random;
        let mut steps = |n: usize| -> Vec<(u32, u8)> {
            let step = |_| (random.below(slots as u64) as u32, random.below(10) as u8);
            (0..n).map(step).collect()
        };
        let mut work = |steps: &[(u32, u8)]| {
            for &(slot, order) in steps {
                let slot = &mut held[slot as usize];
                match slot.take() {
                    Some((block, order)) => subject.free(block, order),
                    None => *slot = subject.alloc(order).map(|block| (block, order)),
                }
            }
        };
        // Until half of the slots are full.
        work(&steps(4 * slots));
        let window = calls_per_window(|n| work(&steps(n)));
        let mut plan = steps(window);
        let mut reseeded = Random(plan.len() as u64);
        self.measure(self.windows, |this, counts| {
            for step in &mut plan {
                *step = (
                    reseeded.below(slots as u64) as u32,
                    reseeded.below(10) as u8,
                );
            }
            this.time("mix_0_9", counts, window, || work(&plan));
        });
        for (block, order) in held.into_iter().flatten() {
            subject.free(block, order);
        }
    }
}
