//! Fragmentation: how many blocks of order 9 are left after a long turnover of single frames.

use std::sync::Barrier;
use std::thread;

use crate::clock::Random;
use crate::machine::run_as;
use crate::subject::{FRAMES, Subject};

/// Occupancies in percent.
pub const PERCENTS: [(u32, &str); 4] = [
    (25, "turnover_25"),
    (50, "turnover_50"),
    (75, "turnover_75"),
    (90, "turnover_90"),
];

/// Rounds in which each held frame has a chance of one in ten to be replaced.
const ROUNDS: u32 = 80;

/// Blocks of order 9 that the frames left free could form.
pub fn possible(workload: &str) -> Option<u32> {
    let (percent, _) = PERCENTS.iter().find(|(_, name)| *name == workload)?;
    Some((FRAMES - held_frames(*percent)) >> 9)
}

fn held_frames(percent: u32) -> u32 {
    (u64::from(FRAMES) * u64::from(percent)).div_ceil(100) as u32
}

/// Fills memory, frees at random down to `percent`, turns over, and counts.
pub fn run<S: Subject>(percent: u32, threads: u32) -> u32 {
    let subject = S::new();
    let start = Barrier::new(threads as usize);
    let mut count = 0;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|cpu| {
                let (subject, start) = (&subject, &start);
                scope.spawn(move || {
                    run_as(cpu);
                    let share = (FRAMES / threads) as usize;
                    let keep = (held_frames(percent) / threads) as usize;
                    let mut random = Random(u64::from(cpu) + 1);
                    let mut held: Vec<_> = (0..share).filter_map(|_| subject.alloc(0)).collect();
                    start.wait();
                    random.shuffle(&mut held);
                    for block in held.drain(keep.min(held.len())..) {
                        subject.free(block, 0);
                    }
                    for _ in 0..ROUNDS {
                        let tenth = held.len() / 10;
                        for _ in 0..tenth {
                            let at = random.below(held.len() as u64) as usize;
                            subject.free(held.swap_remove(at), 0);
                        }
                        held.extend((0..tenth).filter_map(|_| subject.alloc(0)));
                    }
                    held
                })
            })
            .collect();
        let held: Vec<_> = workers
            .into_iter()
            .map(|worker| worker.join().expect("workers do not panic"))
            .collect();
        subject.drain();
        let blocks: Vec<_> = std::iter::from_fn(|| subject.alloc(9)).collect();
        count = blocks.len() as u32;
        for block in blocks {
            subject.free(block, 9);
        }
        for block in held.into_iter().flatten() {
            subject.free(block, 0);
        }
    });
    count
}
