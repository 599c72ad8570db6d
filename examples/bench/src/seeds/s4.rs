//! S4: state accounting under the lruvec's lock, against a look whether charges are being moved.
//!
//! The locked variant is the same code with the group marked as moving all the time: it pays the look as well, one load.
//! Published (Kamezawa 2010): the accounting function's share of samples 9.96 % → 5.52 %, which is not what we measure.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use framekeeper::sync::CachePadded;
use framekeeper::{
    Backing, Folio, MemcgId, Mm, MmConfig, PageState, Platform, Rank, Refused, StateChange,
};

use super::port::{self, ONE, Owned, Real, Sim, machine, machine_of, record, taken};
use super::rows::{At, Rows};
use super::simulator::{COSTS, Program, Step, simulate, steps};
use super::{Options, RUNS, abba, on_threads};
use crate::clock::Random;

const SEED: &str = "s4";
/// 32 MiB.
const PAGES: usize = 8192;
/// Updates of which one group of 100 runs while charges move: 1 %.
const CHUNK: usize = 2 * PAGES / 100;
/// Mapping a page, beside its accounting.
const MAP_NS: u64 = 150;

fn build<P: Platform>(cpus: u32) -> (Owned<Mm<P>>, [MemcgId; 3]) {
    let mm = machine(&MmConfig::new(cpus, 8));
    let make = |parent| mm.create_memcg(parent).expect("there is room");
    let top = make(MemcgId::ROOT);
    let middle = make(top);
    let leaf = make(middle);
    (mm, [leaf, middle, top])
}

fn pages<P: Platform>(mm: &Mm<P>, group: MemcgId, pages: usize) -> Vec<Folio<'_, P>> {
    let page = |_| {
        let frame = mm.try_alloc(ONE).expect("memory is free");
        let folio = frame.try_charge_to(mm, group).map_err(Refused::into_error);
        folio.expect("no limit")
    };
    (0..pages).map(page).collect()
}

/// Maps every page, then unmaps every page; `moving` says during which hundredths charges move.
fn round<P: Platform>(mm: &Mm<P>, ids: &[MemcgId; 3], pages: &[Folio<'_, P>], moving: Moving) {
    let mut done = 0;
    for change in [StateChange::Enter, StateChange::Leave] {
        for chunk in pages.chunks(CHUNK) {
            let _mover = (moving == Moving::Hundredth && done == 0)
                .then(|| mm.begin_move(ids[0], ids[1]).expect("both live"));
            for page in chunk {
                page.account(PageState::MAPPED, change);
            }
            done += 1;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Moving {
    Never,
    Hundredth,
    Always,
}

const CASES: [(Moving, &str, &str); 3] = [
    (Moving::Always, "before", "8192 pages, always locked"),
    (Moving::Never, "after", "8192 pages, no mover"),
    (
        Moving::Hundredth,
        "control",
        "8192 pages, a mover 1 % of the time",
    ),
];

pub fn run(options: &Options, rows: &mut Rows) {
    for (moving, variant, case) in CASES {
        let (mm, ids) = build::<Sim>(1);
        let pages = pages(&mm, ids[0], PAGES);
        let always = (moving == Moving::Always).then(|| mm.begin_move(ids[0], ids[1]));
        let ((), events) = record(0, || round(&mm, &ids, &pages, moving));
        drop(always);
        let locks = taken(&events, Rank::LruVec);
        let expected = match moving {
            Moving::Never => 0,
            Moving::Hundredth => CHUNK,
            Moving::Always => 2 * PAGES,
        };
        assert_eq!(locks, expected as u64, "{case}");
        let at = At {
            seed: SEED,
            case,
            variant,
            cpus: 0,
            threads: 0,
        };
        rows.add(
            at,
            "acquired_per_1000",
            locks as f64 / (2 * PAGES) as f64 * 1000.0,
        );
    }
    counters(rows);
    for &cpus in &options.cpus {
        simulated(cpus, rows);
    }
    if !options.quick {
        timed(rows);
        ends(rows);
    }
}

/// How long a group takes to end, by the number of pages charged to it and listed. The group at the end of a chain has them all;
/// it ends, then the one above, which has inherited them, and so on.
fn ends(rows: &mut Rows) {
    for pages in [1_000, 1_000_000] {
        let mm = machine_of::<Real>(pages as u64 + 10_000, &MmConfig::new(2, RUNS as u32));
        let mut chain = vec![MemcgId::ROOT];
        for _ in 0..RUNS {
            let above = chain[chain.len() - 1];
            chain.push(mm.create_memcg(above).expect("there is room"));
        }
        let charged = self::pages(&mm, chain[RUNS], pages);
        for page in &charged {
            page.add_to_lru(Backing::File).expect("new");
        }
        mm.drain_lru();
        let end = |&group: &MemcgId| {
            let began = Instant::now();
            mm.remove_memcg(group).expect("it has no children");
            began.elapsed().as_nanos() as f64
        };
        let ns = chain[1..].iter().rev().map(end).collect();
        assert_eq!(charged[0].memcg(), Some(MemcgId::ROOT));
        let at = At {
            seed: SEED,
            case: &format!("a group with {pages} pages ends"),
            variant: "after",
            cpus: 0,
            threads: 1,
        };
        rows.runs(at, "ns_per_op", ns);
    }
}

/// Changes of the counters that CPUs share, by charges at depth 3. A counter's peak is changed with it while nothing is uncharged,
/// and unlike its usage it is shown with what CPUs keep in stock.
fn counters(rows: &mut Rows) {
    let (mm, ids) = build::<Sim>(1);
    let peaks = || ids.map(|id| mm.memcg_peak(id).expect("it lives"));
    let mut held = Vec::new();
    let mut touched = 0;
    for _ in 0..64_000 {
        let before = peaks();
        held.extend(pages(&mm, ids[0], 1));
        let after = peaks();
        touched += (0..3).filter(|&i| before[i] != after[i]).count();
    }
    // Refills of 64 frames, at three levels.
    assert_eq!(touched, 3 * 1000);
    let at = At {
        seed: SEED,
        case: "shared counters, charges at depth 3",
        variant: "after",
        cpus: 0,
        threads: 0,
    };
    rows.add(at, "acquired_per_1000", touched as f64 / 64.0);
}

/// CPUs that map pages of their own, all charged to one group.
struct Mappers<'a> {
    pages: Vec<Vec<Folio<'a, Sim>>>,
    done: Vec<usize>,
    think: Random,
}

impl Program for Mappers<'_> {
    fn next(&mut self, cpu: u32, into: &mut VecDeque<Step>) -> bool {
        let done = &mut self.done[cpu as usize];
        let Some(page) = self.pages[cpu as usize].get(*done) else {
            return false;
        };
        *done += 1;
        let (_, events) = record(cpu, || page.account(PageState::MAPPED, StateChange::Enter));
        let think = MAP_NS / 2 + self.think.below(MAP_NS);
        steps(&COSTS, think, &events, |_| 0, into);
        true
    }
}

fn simulated(cpus: u32, rows: &mut Rows) {
    for (moving, variant, _) in &CASES[..2] {
        let (mm, ids) = build::<Sim>(cpus);
        let own = |_| pages(&mm, ids[0], 200);
        let mut mappers = Mappers {
            pages: (0..cpus).map(own).collect(),
            done: vec![0; cpus as usize],
            think: Random(5),
        };
        let always = (*moving == Moving::Always).then(|| mm.begin_move(ids[0], ids[1]));
        let outcome = simulate(cpus, &COSTS, &mut mappers);
        drop(always);
        let at = At::new(SEED, "each CPU maps pages of one group", variant).cpus(cpus);
        rows.simulated(at, Rank::LruVec, u64::from(200 * cpus), &outcome);
    }
}

/// Plain counters, one line for each CPU.
static COUNTERS: [CachePadded<AtomicU64>; 2] = [const { CachePadded(AtomicU64::new(0)) }; 2];

/// Nanoseconds an update, on one pinned thread; beside them a plain per-CPU counter, and the same with a flag of the page's own set by an
/// atomic instruction, as any state that is kept in a page needs.
fn timed(rows: &mut Rows) {
    let (mm, ids) = build::<Real>(2);
    let pages = pages(&mm, ids[0], PAGES);
    let flags: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let plain = || {
        let counter = &COUNTERS[black_box(Real::cpu().0 as usize)].0;
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    };
    let names = [
        CASES[0].2,
        CASES[1].2,
        CASES[2].2,
        "a plain per-CPU counter",
        "a page's flag and a plain counter",
    ];
    let mut ns: [Vec<f64>; 5] = Default::default();
    let run = |variant: usize| {
        let order = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]][variant];
        order.map(|case| {
            let always = (case == 0).then(|| mm.begin_move(ids[0], ids[1]));
            let (ms, _) = on_threads(1, |_| {
                for _ in 0..20 {
                    match case {
                        0..=2 => round(&mm, &ids, &pages, CASES[case].0),
                        3 => (0..2 * PAGES).for_each(|_| plain()),
                        _ => flags.iter().chain(&flags).for_each(|flag| {
                            flag.fetch_xor(1, Relaxed);
                            plain();
                        }),
                    }
                }
            });
            drop(always);
            (case, ms * 1e6 / (40 * PAGES) as f64)
        })
    };
    abba(2, run, |_, times| {
        for (case, time) in times {
            ns[case].push(time);
        }
    });
    port::counted(Rank::LruVec);
    for (case, values) in ns.into_iter().enumerate() {
        let at = At {
            seed: SEED,
            case: names[case],
            variant: CASES.get(case).map_or("control", |case| case.1),
            cpus: 0,
            threads: 1,
        };
        rows.runs(at, "ns_per_op", values);
    }
}
