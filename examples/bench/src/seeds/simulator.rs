//! Discrete events: N virtual CPUs, each a sequence of work and uses of locks, with queues before the locks.
//!
//! What a CPU does next is asked of a [`Program`] at the moment when it does it, so the real code runs in the order of simulated time;
//! the locks that it took are then spread over time. Locks are handed over in the order of arrival, as ticket and MCS locks do.
//! A lock that was last held by another CPU costs the transfer of its line, and of one line of what it guards. Who waits for it gets
//! both after the release, one after the other. Who finds it free fetches both at once (processors read past a lock that they expect to
//! get) before he holds it: that keeps him, and nobody else.
//! Not modelled: traffic of waiters, sockets, frequency. The same program gives the same figures, always.
//!
//! Beside two real threads ([`validate`](super::validate), `seeds sim`): see there for how far off it is.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use framekeeper::Rank;

use super::port::Event;

/// Nanoseconds that things take. Parameters, not measurements of a machine with so many CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A cache line from another core. 50 ns is the middle of what core-to-core latency tables show for one socket of today's
    /// servers (Ice Lake-SP and Zen 3: 45 to 60 ns; across sockets 110 to 200).
    pub line: u64,
    /// A hold that moves nothing: two uncontended atomic instructions, and the guarded header.
    pub hold: u64,
    /// More for each item that a hold moves: links or bits of one frame or object.
    pub item: u64,
    /// Between two uses of locks within one operation.
    pub between: u64,
}

/// The costs used throughout. `hold` is two of the uncontended locks that `bench -- alloc` measures as `stack_lk` (2 to 10 ns on the
/// machines in README.md) and a line that is in the cache; `item` is half of what `bench -- lru` measures for a batched move
/// (16 to 22 ns a folio, of which half is outside the hold).
pub const COSTS: Costs = Costs {
    line: 50,
    hold: 15,
    item: 8,
    between: 10,
};

/// What a virtual CPU does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nanoseconds without the need of anyone else.
    Work(u64),
    Acquire(u32, Rank),
    Release(u32),
}

/// What virtual CPUs run.
pub trait Program {
    /// Puts the next operation of a CPU into `steps`; `false` if it has none left.
    fn next(&mut self, cpu: u32, steps: &mut VecDeque<Step>) -> bool;
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub acquired: [u64; Rank::COUNT],
    pub contended: [u64; Rank::COUNT],
    /// Nanoseconds that CPUs stood in queues.
    pub queued: [u64; Rank::COUNT],
    /// When the last CPU was done.
    pub end: u64,
}

#[derive(Default)]
struct Queue {
    holder: Option<u32>,
    /// Uses by the holder within its own.
    depth: u32,
    last: Option<u32>,
    waiting: VecDeque<(u32, u64, Rank)>,
}

/// The steps of an operation from the locks that it took: `think`, then each use, in which `items` are moved.
pub fn steps(
    costs: &Costs,
    think: u64,
    events: &[Event],
    mut items: impl FnMut(Rank) -> u64,
    into: &mut VecDeque<Step>,
) {
    into.push_back(Step::Work(think));
    for event in events {
        match *event {
            Event::Acquire(lock, rank) => {
                into.push_back(Step::Work(costs.between));
                into.push_back(Step::Acquire(lock, rank));
            }
            Event::Release(lock, rank) => {
                into.push_back(Step::Work(costs.hold + costs.item * items(rank)));
                into.push_back(Step::Release(lock));
            }
        }
    }
}

/// Runs a program on so many CPUs until all are done.
pub fn simulate(cpus: u32, costs: &Costs, program: &mut impl Program) -> Outcome {
    let mut outcome = Outcome {
        acquired: [0; Rank::COUNT],
        contended: [0; Rank::COUNT],
        queued: [0; Rank::COUNT],
        end: 0,
    };
    let mut locks = HashMap::<u32, Queue>::new();
    let mut pending: Vec<VecDeque<Step>> = (0..cpus).map(|_| VecDeque::new()).collect();
    // Time that a CPU took to fetch lines before it held the lock. All arrivals take it, so it is paid at the end.
    let mut owed = vec![0; cpus as usize];
    // Ties go to who was scheduled first.
    let mut order = 0u64;
    let mut agenda = BinaryHeap::new();
    let mut at = |agenda: &mut BinaryHeap<_>, time: u64, cpu: u32| {
        order += 1;
        agenda.push(Reverse((time, order, cpu)));
    };
    (0..cpus).for_each(|cpu| at(&mut agenda, 0, cpu));
    while let Some(Reverse((now, _, cpu))) = agenda.pop() {
        outcome.end = now;
        loop {
            let Some(step) = pending[cpu as usize].pop_front() else {
                if program.next(cpu, &mut pending[cpu as usize]) {
                    continue;
                }
                break;
            };
            match step {
                Step::Work(0) => {}
                Step::Work(ns) => {
                    at(&mut agenda, now + ns, cpu);
                    break;
                }
                Step::Acquire(lock, rank) => {
                    outcome.acquired[rank as usize] += 1;
                    let queue = locks.entry(lock).or_default();
                    if queue.holder == Some(cpu) {
                        queue.depth += 1;
                    } else if queue.holder.is_some() {
                        outcome.contended[rank as usize] += 1;
                        queue.waiting.push_back((cpu, now, rank));
                        break;
                    } else {
                        queue.holder = Some(cpu);
                        let moves = queue.last.is_some_and(|last| last != cpu);
                        queue.last = Some(cpu);
                        if moves {
                            owed[cpu as usize] += costs.line;
                        }
                    }
                }
                Step::Release(lock) => {
                    let queue = locks.entry(lock).or_default();
                    assert_eq!(queue.holder, Some(cpu), "released by its holder");
                    if queue.depth > 0 {
                        queue.depth -= 1;
                        continue;
                    }
                    queue.holder = None;
                    if let Some((next, since, rank)) = queue.waiting.pop_front() {
                        outcome.queued[rank as usize] += now - since;
                        (queue.holder, queue.last) = (Some(next), Some(next));
                        at(&mut agenda, now + costs.line * 2, next);
                    }
                    let owed = core::mem::take(&mut owed[cpu as usize]);
                    if owed > 0 {
                        pending[cpu as usize].push_front(Step::Work(owed));
                    }
                }
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each CPU: so many times work, then a hold.
    struct Loop {
        work: Vec<u64>,
        hold: u64,
        rounds: Vec<u32>,
        locks: u32,
    }

    impl Program for Loop {
        fn next(&mut self, cpu: u32, steps: &mut VecDeque<Step>) -> bool {
            let left = &mut self.rounds[cpu as usize];
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let lock = cpu % self.locks;
            steps.extend([
                Step::Work(self.work[cpu as usize]),
                Step::Acquire(lock, Rank::LruVec),
                Step::Work(self.hold),
                Step::Release(lock),
            ]);
            true
        }
    }

    const FIVE: Costs = Costs {
        line: 5,
        hold: 0,
        item: 0,
        between: 0,
    };

    #[test]
    fn queues_are_those_of_a_hand_computed_example() {
        // A works 10, B 12, C 13; each holds for 10; a line takes 5, a lock that is handed over two.
        //   A holds 10..20. B comes at 12, waits 8, has the lines at 30, holds to 40. C comes at 13, waits 27, holds 50..60.
        //   A comes again at 30: C stands before it. It waits until 60, 30, and holds 70..80.
        let mut program = Loop {
            work: vec![10, 12, 13],
            hold: 10,
            rounds: vec![2, 1, 1],
            locks: 1,
        };
        let outcome = simulate(3, &FIVE, &mut program);
        let rank = Rank::LruVec as usize;
        assert_eq!((outcome.acquired[rank], outcome.contended[rank]), (4, 3));
        assert_eq!(outcome.queued[rank], 8 + 27 + 30);
        assert_eq!(outcome.end, 80);
    }

    #[test]
    fn locks_of_their_own_are_never_waited_for_and_never_move() {
        let mut program = Loop {
            work: vec![10; 8],
            hold: 10,
            rounds: vec![100; 8],
            locks: 8,
        };
        let outcome = simulate(8, &FIVE, &mut program);
        assert_eq!(outcome.contended, [0; Rank::COUNT]);
        assert_eq!(outcome.end, 100 * 20);
    }

    #[test]
    fn a_saturated_lock_hands_on_at_its_own_pace() {
        // Without thinking, every hand-over costs 10 + 10, whoever it is; the first costs no transfer.
        let mut program = Loop {
            work: vec![0; 4],
            hold: 10,
            rounds: vec![50; 4],
            locks: 1,
        };
        let outcome = simulate(4, &FIVE, &mut program);
        assert_eq!(outcome.end, 200 * 20 - 10);
    }

    #[test]
    fn a_free_lock_from_elsewhere_keeps_its_taker_for_one_line_and_nobody_else() {
        // A holds 10..20. B takes the free lock at 30 and holds it to 40; that he fetched it makes it 45.
        // A comes at 20 + 15 = 35, waits 5, has the lines at 50 and holds to 60.
        let mut program = Turns(vec![vec![30], vec![15, 10]]);
        let outcome = simulate(2, &FIVE, &mut program);
        assert_eq!(outcome.queued[Rank::LruVec as usize], 5);
        assert_eq!(outcome.end, 60);
        let mut program = Turns(vec![vec![30], vec![10]]);
        assert_eq!(simulate(2, &FIVE, &mut program).end, 45);
    }

    /// By CPU, the last first: thoughts, each before a hold of 10. The CPUs are told apart from the end.
    struct Turns(Vec<Vec<u64>>);

    impl Program for Turns {
        fn next(&mut self, cpu: u32, steps: &mut VecDeque<Step>) -> bool {
            let cpu = self.0.len() - 1 - cpu as usize;
            let Some(think) = self.0[cpu].pop() else {
                return false;
            };
            steps.extend([
                Step::Work(think),
                Step::Acquire(0, Rank::LruVec),
                Step::Work(10),
                Step::Release(0),
            ]);
            true
        }
    }

    #[test]
    fn a_hold_within_a_hold_of_the_same_lock_does_not_wait_for_itself() {
        struct Twice(bool);
        impl Program for Twice {
            fn next(&mut self, _cpu: u32, steps: &mut VecDeque<Step>) -> bool {
                let (take, drop) = (Step::Acquire(7, Rank::LruVec), Step::Release(7));
                steps.extend([take, take, Step::Work(3), drop, drop]);
                core::mem::replace(&mut self.0, false)
            }
        }
        assert_eq!(
            simulate(1, &FIVE, &mut Twice(true)).contended,
            [0; Rank::COUNT]
        );
    }
}
