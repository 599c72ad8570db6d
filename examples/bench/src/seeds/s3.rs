//! S3: activations one by one, and in batches of 15 and 31; one group, so that batches are all that tells the variants apart.
//!
//! Published (Li 2011, 64 CPUs): the whole workload -58 %, mmap-pread-seq -70 %, lru-file-readtwice -12 %. Ours counts locks and
//! queues of the two access patterns at a smaller size; a disk, page tables and the exit of processes are not part of it. Where all
//! CPUs go over one file in step (pread-seq), each queues the page that another has queued already, so batches save fewer locks
//! than their size, and their longer holds meet: less is contended, but time in the queue does not fall.

use std::collections::VecDeque;

use framekeeper::{Backing, BatchSize, Folio, MemcgId, Mm, MmConfig, Platform, Rank, Refused};

use super::Options;
use super::port::{ONE, Sim, machine, record, sharing, taken};
use super::rows::{At, Rows};
use super::simulator::{COSTS, Program, Step, simulate, steps};
use crate::clock::Random;

const SEED: &str = "s3";
/// Pages of a file: 20 times the least common multiple of 15 and 31.
const PAGES: usize = 465 * 20;
/// Pages of each CPU's file in the simulation: the least common multiple.
const SMALL: usize = 465;
/// A page of a file read or unmapped, beside its activation.
const PAGE_NS: u64 = 150;

/// Batches before and after, and Linux's 15 between them.
const SIZES: [(BatchSize, &str, f64); 3] = [
    (BatchSize::One, "before", 1.0),
    (BatchSize::Fifteen, "control", 15.0),
    (BatchSize::ThirtyOne, "after", 31.0),
];

fn build(cpus: u32, groups: u32, lru_batch: BatchSize) -> (Mm<Sim>, Vec<MemcgId>) {
    let config = MmConfig {
        lru_batch,
        ..MmConfig::new(cpus, groups)
    };
    let mm = sharing(None, || machine(&config));
    let groups = (0..groups)
        .map(|_| mm.create_memcg(MemcgId::ROOT).expect("there is room"))
        .collect();
    (mm, groups)
}

/// Pages of a file, listed inactive; each is charged to the group that `of` says.
fn file<P: Platform>(mm: &Mm<P>, pages: usize, of: impl Fn(usize) -> MemcgId) -> Vec<Folio<'_, P>> {
    let page = |i| {
        let frame = mm.try_alloc(ONE).expect("memory is free");
        let folio = frame.try_charge_to(mm, of(i)).map_err(Refused::into_error);
        let folio = folio.expect("no limit");
        folio.add_to_lru(Backing::File).expect("it is new");
        folio
    };
    let file = (0..pages).map(page).collect();
    mm.drain_lru();
    file
}

pub fn run(options: &Options, rows: &mut Rows) {
    counts(rows);
    for &cpus in &options.cpus {
        for read_twice in [true, false] {
            simulated(cpus, read_twice, rows);
        }
    }
}

/// Locks for a file's second use, asserted; the lists that come out; and owners that alternate.
fn counts(rows: &mut Rows) {
    for (groups, case) in [(1, "readtwice"), (31, "owners alternate, 31 of them")] {
        for (size, variant, batch) in SIZES {
            let (mm, ids) = build(1, groups, size);
            let pages = file(&mm, PAGES, |i| ids[i % groups as usize]);
            pages.iter().for_each(|page| page.mark_accessed());
            let ((), events) = record(0, || pages.iter().for_each(|page| page.mark_accessed()));
            let locks = taken(&events, Rank::LruVec);
            let expected = if groups == 1 {
                PAGES as f64 / batch
            } else {
                PAGES as f64
            };
            assert_eq!(locks, expected as u64, "{case} {batch}");
            mm.drain_lru();
            assert!(
                pages.iter().all(|page| page.is_active()),
                "the same lists, as sets"
            );
            mm.check().expect("the lists are sound");
            let case = format!("{case}, batch {batch}");
            let at = At {
                seed: SEED,
                case: &case,
                variant: if groups == 1 { variant } else { "control" },
                cpus: 0,
                threads: 0,
            };
            rows.add(
                at,
                "acquired_per_1000",
                locks as f64 / PAGES as f64 * 1000.0,
            );
            rows.add(at, "frames_per_hold", PAGES as f64 / locks as f64);
        }
    }
}

/// CPUs that go over files once more.
struct Readers<'a> {
    files: Vec<Vec<Folio<'a, Sim>>>,
    /// By CPU: its file, and its place in it.
    at: Vec<(usize, usize)>,
    waiting: Vec<u64>,
    think: Random,
    marks: u64,
}

impl Program for Readers<'_> {
    fn next(&mut self, cpu: u32, into: &mut VecDeque<Step>) -> bool {
        let (file, place) = &mut self.at[cpu as usize];
        let Some(page) = self.files[*file].get(*place) else {
            return false;
        };
        *place += 1;
        self.marks += 1;
        let was = page.is_active();
        let ((), events) = record(cpu, || page.mark_accessed());
        let waiting = &mut self.waiting[cpu as usize];
        *waiting += u64::from(!was);
        let holds = taken(&events, Rank::LruVec);
        let drained = match holds {
            0 => 0,
            _ => core::mem::take(waiting),
        };
        let items = drained / holds.max(1);
        let think = PAGE_NS / 2 + self.think.below(PAGE_NS);
        steps(
            &COSTS,
            think,
            &events,
            |rank| if rank == Rank::LruVec { items } else { 0 },
            into,
        );
        true
    }
}

fn simulated(cpus: u32, read_twice: bool, rows: &mut Rows) {
    let case = if read_twice { "readtwice" } else { "pread-seq" };
    for (size, variant, batch) in SIZES {
        let (mm, ids) = build(cpus, 1, size);
        let files = if read_twice { cpus } else { 1 };
        let pages = if read_twice { SMALL } else { SMALL * 4 };
        let files: Vec<_> = (0..files).map(|_| file(&mm, pages, |_| ids[0])).collect();
        files.iter().flatten().for_each(|page| page.mark_accessed());
        let mut readers = Readers {
            at: (0..cpus as usize)
                .map(|cpu| (if read_twice { cpu } else { 0 }, 0))
                .collect(),
            files,
            waiting: vec![0; cpus as usize],
            think: Random(3),
            marks: 0,
        };
        let outcome = simulate(cpus, &COSTS, &mut readers);
        mm.drain_lru();
        assert!(readers.files.iter().flatten().all(|page| page.is_active()));
        let case = format!("{case}, batch {batch}");
        let at = At {
            seed: SEED,
            case: &case,
            variant,
            cpus,
            threads: 0,
        };
        let rank = Rank::LruVec as usize;
        let per_1000 = |count: u64| count as f64 / readers.marks as f64 * 1000.0;
        if read_twice {
            assert_eq!(
                outcome.acquired[rank],
                (SMALL as f64 / batch) as u64 * u64::from(cpus)
            );
        }
        rows.add(at, "acquired_per_1000", per_1000(outcome.acquired[rank]));
        rows.add(at, "contended_per_1000", per_1000(outcome.contended[rank]));
        println!(
            "    in queue: {:.1} ns a page, {:.1} % of all CPU time",
            outcome.queued[rank] as f64 / readers.marks as f64,
            outcome.queued[rank] as f64 / (outcome.end * u64::from(cpus)).max(1) as f64 * 100.0
        );
    }
}
