//! S0: one lru lock per node against one per lruvec (group and node), where containers grow, touch and shrink their memory.
//!
//! Published (Shi 2019, aim9 in 24 containers on 12 cores): of 9 acquisitions in a sample of 20 s, 7 contended; after, none of 8.
//! page_test +4.2 %, brk_test +2.4 %. Ours: pages of 24 and 64 groups, allocated, charged, listed, used once and released, 256 at a time
//! (page_test's 1 MiB) or 8 (brk_test). Both variants take as many locks, some 60 per 1000 pages: batches of 31 and releases of 32 come
//! before them.
//! It does not gain where all CPUs are in one group, and it loses where owners alternate within a batch: one lock per node needs one hold
//! for a batch, one per lruvec needs as many as there are owners in it.

use std::collections::VecDeque;

use framekeeper::{
    Backing, Folio, ListKind, MemcgId, Mm, MmConfig, NodeId, Platform, Rank, Refused,
};

use super::port::{self, ONE, Owned, Real, Sim, joined, machine, record_of, sharing, taken};
use super::rows::{At, Rows, Runs};
use super::simulator::{COSTS, Program, Step, simulate, steps};
use super::{Options, abba, on_threads};
use crate::clock::Random;

const SEED: &str = "s0";
/// A fault beside its use of the lists: of the size that lat_pagefault shows.
const FAULT_NS: u64 = 800;
/// A page unmapped and released.
const UNMAP_NS: u64 = 100;
/// Pages released by one operation, as by one `release_pages`.
const RELEASED: usize = 32;

/// One lock per node, then one per lruvec.
const VARIANTS: [(Option<Rank>, &str); 2] = [(Some(Rank::LruVec), "before"), (None, "after")];

/// What processes do, and in how many groups.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Pages that a process grows by, and shrinks by.
    pages: usize,
    groups: u32,
}

const CASES: [Case; 5] = [
    Case {
        name: "page_test, 24 groups",
        pages: 256,
        groups: 24,
    },
    Case {
        name: "page_test, 64 groups",
        pages: 256,
        groups: 64,
    },
    Case {
        name: "page_test, one group",
        pages: 256,
        groups: 1,
    },
    Case {
        name: "brk_test, 24 groups",
        pages: 8,
        groups: 24,
    },
    Case {
        name: "brk_test, 64 groups",
        pages: 8,
        groups: 64,
    },
];

fn build<P: Platform>(
    cpus: u32,
    groups: u32,
    shared: Option<Rank>,
) -> (Owned<Mm<P>>, Vec<MemcgId>) {
    let mm = sharing(shared, || machine(&MmConfig::new(cpus, groups)));
    let groups = (0..groups)
        .map(|_| mm.create_memcg(MemcgId::ROOT).expect("there is room"))
        .collect();
    (mm, groups)
}

fn page<P: Platform>(mm: &Mm<P>, group: MemcgId, word: u64) -> Folio<'_, P> {
    let frame = mm.try_alloc(ONE).expect("memory is free");
    let folio = frame.try_charge_to(mm, group).map_err(Refused::into_error);
    let folio = folio.expect("no limit");
    folio.set_word(word);
    folio.add_to_lru(Backing::Anon).expect("it is new");
    folio.mark_accessed();
    folio
}

/// A process: it grows, page by page, and shrinks, so many times; at the last time it stays as it is.
struct Process<'a, P: Platform> {
    number: u64,
    group: MemcgId,
    size: usize,
    rounds: usize,
    shrinks: bool,
    pages: Vec<Folio<'a, P>>,
}

/// What one operation of a process was.
enum Did {
    Grew,
    Released(u64),
    /// It shrank to nothing: another process's turn.
    Yields,
    Ended,
}

impl<'a, P: Platform> Process<'a, P> {
    fn step(&mut self, mm: &'a Mm<P>) -> Did {
        if self.shrinks && self.pages.is_empty() {
            self.shrinks = false;
            return Did::Yields;
        }
        if self.shrinks {
            let some = self.pages.len().saturating_sub(RELEASED);
            let released = (self.pages.len() - some) as u64;
            mm.release_all(self.pages.drain(some..));
            return Did::Released(released);
        }
        if self.pages.len() < self.size {
            let word = self.number << 32 | self.pages.len() as u64;
            self.pages.push(page(mm, self.group, word));
            return Did::Grew;
        }
        if self.rounds == 1 {
            return Did::Ended;
        }
        self.rounds -= 1;
        self.shrinks = true;
        self.step(mm)
    }
}

/// The processes of a CPU: at least one, each in a group. Groups have one each while there are more groups than CPUs.
fn processes<'a, P: Platform>(
    case: Case,
    ids: &[MemcgId],
    (cpu, cpus): (u32, u32),
    rounds: usize,
) -> VecDeque<Process<'a, P>> {
    let process = |number: u32| Process {
        number: number.into(),
        group: ids[number as usize % ids.len()],
        size: case.pages,
        rounds,
        shrinks: false,
        pages: Vec::new(),
    };
    let all = case.groups.max(cpus);
    (cpu..all).step_by(cpus as usize).map(process).collect()
}

/// A group's lists: their lengths, and what is on them.
type Lists = (MemcgId, [u64; ListKind::COUNT], Vec<(u64, bool)>);

/// What is on the lists: each page's process and place, whether it is active, and how long the lists are.
fn lists<P: Platform>(mm: &Mm<P>, ids: &[MemcgId], pages: &[Folio<'_, P>]) -> Vec<Lists> {
    mm.drain_lru();
    mm.check().expect("the lists are sound");
    let lists = ids.iter().map(|&id| {
        let of_group = pages.iter().filter(|page| page.memcg() == Some(id));
        let mut on: Vec<_> = of_group
            .map(|page| (page.word(), page.is_active()))
            .collect();
        on.sort_unstable();
        let stat = mm.lru_stat(id, NodeId(0)).expect("it lives");
        (id, stat.lists, on)
    });
    lists.collect()
}

pub fn run(options: &Options, rows: &mut Rows) {
    for &cpus in &options.cpus {
        for case in CASES {
            simulated(case, cpus, rows);
        }
        alternating(24, cpus, rows);
    }
    if !options.quick {
        for case in CASES {
            threads(case, options.threads, rows);
        }
    }
}

/// Virtual CPUs, each with its processes; the first of its queue runs.
struct Containers<'a> {
    mm: &'a Mm<Sim>,
    cpus: Vec<VecDeque<Process<'a, Sim>>>,
    ended: Vec<Folio<'a, Sim>>,
    think: Random,
    grown: u64,
}

impl Program for Containers<'_> {
    fn next(&mut self, cpu: u32, into: &mut VecDeque<Step>) -> bool {
        let queue = &mut self.cpus[cpu as usize];
        loop {
            let Some(process) = queue.front_mut() else {
                return false;
            };
            let (did, events) = record_of(Rank::LruVec, cpu, || process.step(self.mm));
            let (think, moved) = match did {
                Did::Yields => {
                    queue.rotate_left(1);
                    continue;
                }
                Did::Ended => {
                    let process = queue.pop_front();
                    self.ended.extend(process.into_iter().flat_map(|p| p.pages));
                    continue;
                }
                Did::Grew => {
                    self.grown += 1;
                    (FAULT_NS / 2 + self.think.below(FAULT_NS), 31)
                }
                Did::Released(pages) => (UNMAP_NS * pages, pages),
            };
            let items = moved / taken(&events, Rank::LruVec).max(1);
            steps(&COSTS, think, &events, |_| items, into);
            return true;
        }
    }
}

/// Pages that each virtual CPU grows by in all.
const GROWN: usize = 512;

fn simulated(case: Case, cpus: u32, rows: &mut Rows) {
    let outcome = VARIANTS.map(|(shared, variant)| {
        let (mm, ids) = build(cpus, case.groups, shared);
        let each = (case.groups as usize).div_ceil(cpus as usize) * case.pages;
        let rounds = GROWN.div_ceil(each).max(2);
        let mut containers = Containers {
            mm: &mm,
            cpus: (0..cpus)
                .map(|cpu| processes(case, &ids, (cpu, cpus), rounds))
                .collect(),
            ended: Vec::new(),
            think: Random(1),
            grown: 0,
        };
        let outcome = simulate(cpus, &COSTS, &mut containers);
        let at = At::new(SEED, case.name, variant).cpus(cpus);
        rows.simulated(at, Rank::LruVec, containers.grown, &outcome);
        let acquired = outcome.acquired[Rank::LruVec as usize];
        let per_hold = containers.grown as f64 * 2.0 / acquired.max(1) as f64;
        if acquired > 0 {
            rows.add(at, "frames_per_hold", per_hold);
        }
        (acquired, lists(&mm, &ids, &containers.ended))
    });
    let [before, after] = outcome;
    assert_eq!(before.0, after.0, "{}: as many locks", case.name);
    assert!(
        before.1 == after.1,
        "{}: the same lists, as sets",
        case.name
    );
}

/// CPUs that add pages whose owners alternate.
struct Alternating<'a> {
    mm: &'a Mm<Sim>,
    ids: &'a [MemcgId],
    /// By CPU.
    pages: Vec<Vec<Folio<'a, Sim>>>,
    think: Random,
    joins: bool,
}

impl Program for Alternating<'_> {
    fn next(&mut self, cpu: u32, into: &mut VecDeque<Step>) -> bool {
        let pages = &mut self.pages[cpu as usize];
        if pages.len() == 31 * 20 {
            return false;
        }
        let group = self.ids[pages.len() % self.ids.len()];
        let (_, mut events) = record_of(Rank::LruVec, cpu, || {
            let word = u64::from(cpu) << 32 | pages.len() as u64;
            pages.push(page(self.mm, group, word));
        });
        if self.joins {
            events = joined(events);
        }
        let items = 31 / taken(&events, Rank::LruVec).max(1);
        let think = FAULT_NS / 2 + self.think.below(FAULT_NS);
        steps(&COSTS, think, &events, |_| items, into);
        true
    }
}

/// The case that loses: a batch holds pages of many owners, and one lock per node would do with one hold for all of them.
fn alternating(groups: u32, cpus: u32, rows: &mut Rows) {
    let outcome = VARIANTS.map(|(shared, variant)| {
        let (mm, ids) = build(cpus, groups, shared);
        let mut program = Alternating {
            mm: &mm,
            ids: &ids,
            pages: (0..cpus).map(|_| Vec::new()).collect(),
            think: Random(2),
            joins: shared.is_some(),
        };
        let outcome = simulate(cpus, &COSTS, &mut program);
        let added = u64::from(cpus) * 31 * 20;
        let holds = if shared.is_some() {
            1
        } else {
            u64::from(groups)
        };
        let acquired = outcome.acquired[Rank::LruVec as usize];
        assert_eq!(acquired, added / 31 * holds, "{variant}");
        let case = format!("owners alternate, {groups} of them");
        let at = At::new(SEED, &case, variant).cpus(cpus);
        rows.simulated(at, Rank::LruVec, added, &outcome);
        let pages: Vec<_> = program.pages.into_iter().flatten().collect();
        lists(&mm, &ids, &pages)
    });
    let [before, after] = outcome;
    assert!(before == after, "the same lists, as sets");
}

fn threads(case: Case, threads: u32, rows: &mut Rows) {
    let run = |variant: usize| {
        let (mm, ids) = build::<Real>(threads, case.groups, VARIANTS[variant].0);
        let each = (case.groups as usize).div_ceil(threads as usize) * case.pages;
        let rounds = (150_000 / each).max(2);
        let (ms, done) = on_threads(threads, |cpu| {
            let mut queue = processes(case, &ids, (cpu, threads), rounds);
            let (mut ended, mut grown) = (Vec::new(), 0);
            port::counted(Rank::LruVec);
            while let Some(process) = queue.front_mut() {
                match process.step(&mm) {
                    Did::Grew => grown += 1,
                    Did::Released(_) => {}
                    Did::Yields => queue.rotate_left(1),
                    Did::Ended => ended.extend(queue.pop_front().into_iter().flat_map(|p| p.pages)),
                }
            }
            (port::counted(Rank::LruVec), grown, ended)
        });
        let locks: Vec<_> = done.iter().map(|done| done.0).collect();
        let grown = done.iter().map(|done| done.1).sum();
        let pages: Vec<_> = done.into_iter().flat_map(|done| done.2).collect();
        (ms, locks, grown, lists(&mm, &ids, &pages))
    };
    let mut found: [Runs; 2] = Default::default();
    let mut first = None;
    abba(2, run, |variant, (ms, locks, grown, lists)| {
        found[variant].push(ms, grown, &locks);
        let acquired: u64 = locks.iter().map(|lock| lock.0).sum();
        let now = (acquired, lists);
        assert!(
            *first.get_or_insert(now.clone()) == now,
            "{}: equal",
            case.name
        );
    });
    for ((_, variant), found) in VARIANTS.into_iter().zip(found) {
        rows.threads(At::new(SEED, case.name, variant).threads(threads), found);
    }
}
