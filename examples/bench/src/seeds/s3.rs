//! S3: activations one by one, and in batches of 15 and 31. With one group batches are all that tells the variants apart; with 24 and
//! 64 groups each has a lock of its own already.
//!
//! Published (Li 2011, 64 CPUs): the whole workload -58 %, mmap-pread-seq -70 %, lru-file-readtwice -12 %. Ours counts locks and
//! queues of the two access patterns at a smaller size; a disk, page tables and the exit of processes are not part of it. Where all
//! CPUs go over one file in step (pread-seq), each queues the page that another has queued already, so batches save fewer locks
//! than their size, and their longer holds meet: less is contended, but time in the queue does not fall.

use std::collections::VecDeque;

use framekeeper::{Backing, BatchSize, Folio, MemcgId, Mm, MmConfig, Platform, Rank, Refused};

use super::port::{self, ONE, Owned, Real, Sim, machine, record, sharing, taken};
use super::rows::{At, Rows, Runs};
use super::simulator::{COSTS, Program, Step, simulate, steps};
use super::{Options, abba, on_threads};
use crate::clock::Random;

const SEED: &str = "s3";
/// Pages of a file: 20 times the least common multiple of 15 and 31.
const PAGES: usize = 465 * 20;
/// Pages of each CPU's file in the simulation: the least common multiple.
const SMALL: usize = 465;
/// Pages of all files together on real threads, at most.
const LARGE: usize = 180_000;
/// As on the published machines, and one.
const GROUPS: [u32; 3] = [1, 24, 64];
/// A page of a file read or unmapped, beside its activation.
const PAGE_NS: u64 = 150;

/// Batches before and after, and Linux's 15 between them.
const SIZES: [(BatchSize, &str, f64); 3] = [
    (BatchSize::One, "before", 1.0),
    (BatchSize::Fifteen, "control", 15.0),
    (BatchSize::ThirtyOne, "after", 31.0),
];

fn build<P: Platform>(
    cpus: u32,
    groups: u32,
    lru_batch: BatchSize,
) -> (Owned<Mm<P>>, Vec<MemcgId>) {
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
        for groups in GROUPS {
            simulated(cpus, Pattern::ReadTwice, groups, rows);
        }
        simulated(cpus, Pattern::PreadSeq, 1, rows);
    }
    if !options.quick {
        for groups in GROUPS {
            threads(options.threads, Pattern::ReadTwice, groups, rows);
        }
        threads(options.threads, Pattern::PreadSeq, 1, rows);
    }
}

/// How CPUs go over files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// Each over files of its own, a second time.
    ReadTwice,
    /// All over one file.
    PreadSeq,
}

impl Pattern {
    fn case(self, groups: u32, batch: f64) -> String {
        match (self, groups) {
            (Self::ReadTwice, 1) => format!("readtwice, batch {batch}"),
            (Self::ReadTwice, groups) => format!("readtwice, {groups} groups, batch {batch}"),
            (Self::PreadSeq, _) => format!("pread-seq, batch {batch}"),
        }
    }
}

/// Locks for a file's second use, asserted; the lists that come out; and owners that alternate.
fn counts(rows: &mut Rows) {
    for (groups, case) in [(1, "readtwice"), (31, "owners alternate, 31 of them")] {
        for (size, variant, batch) in SIZES {
            let (mm, ids) = build::<Sim>(1, groups, size);
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

fn simulated(cpus: u32, pattern: Pattern, groups: u32, rows: &mut Rows) {
    for (size, variant, batch) in SIZES {
        let (mm, ids) = build(cpus, groups, size);
        let (files, pages) = match pattern {
            Pattern::ReadTwice => (cpus, SMALL),
            Pattern::PreadSeq => (1, SMALL * 4),
        };
        let files: Vec<_> = (0..files)
            .map(|n| file(&mm, pages, |_| ids[(n % groups) as usize]))
            .collect();
        files.iter().flatten().for_each(|page| page.mark_accessed());
        let mut readers = Readers {
            at: (0..cpus as usize)
                .map(|cpu| (cpu % files.len(), 0))
                .collect(),
            files,
            waiting: vec![0; cpus as usize],
            think: Random(3),
            marks: 0,
        };
        let outcome = simulate(cpus, &COSTS, &mut readers);
        mm.drain_lru();
        assert!(readers.files.iter().flatten().all(|page| page.is_active()));
        if pattern == Pattern::ReadTwice {
            let locks = (SMALL as f64 / batch) as u64 * u64::from(cpus);
            assert_eq!(outcome.acquired[Rank::LruVec as usize], locks);
        }
        let case = pattern.case(groups, batch);
        let at = At::new(SEED, &case, variant).cpus(cpus);
        rows.simulated(at, Rank::LruVec, readers.marks, &outcome);
    }
}

/// Real threads: each goes over the files of its groups twice, or all over one.
fn threads(threads: u32, pattern: Pattern, groups: u32, rows: &mut Rows) {
    let files = match pattern {
        // As many for each thread, so that none waits for the other at the end.
        Pattern::ReadTwice => groups.next_multiple_of(threads),
        Pattern::PreadSeq => 1,
    };
    let pages = LARGE / files as usize / SMALL * SMALL;
    let run = |variant: usize| {
        let (mm, ids) = build::<Real>(threads, groups, SIZES[variant].0);
        let files: Vec<_> = (0..files)
            .map(|n| file(&mm, pages, |_| ids[(n % groups) as usize]))
            .collect();
        let done = on_threads(threads, |cpu| {
            let own = files
                .iter()
                .enumerate()
                .filter(|(n, _)| pattern == Pattern::PreadSeq || *n as u32 % threads == cpu);
            let own: Vec<_> = own.map(|(_, file)| file).collect();
            port::counted(Rank::LruVec);
            for file in &own {
                file.iter().for_each(|page| page.mark_accessed());
                file.iter().for_each(|page| page.mark_accessed());
            }
            port::counted(Rank::LruVec)
        });
        mm.drain_lru();
        assert!(files.iter().flatten().all(|page| page.is_active()));
        mm.check().expect("the lists are sound");
        done
    };
    let mut found: [Runs; 3] = Default::default();
    let all = (pages * files as usize) as u64;
    abba(SIZES.len(), run, |variant, (ms, locks)| {
        let acquired: u64 = locks.iter().map(|lock| lock.0).sum();
        if pattern == Pattern::ReadTwice {
            assert_eq!(acquired, (all as f64 / SIZES[variant].2) as u64);
        }
        found[variant].push(ms, all, &locks);
    });
    for ((_, variant, batch), found) in SIZES.into_iter().zip(found) {
        let case = pattern.case(groups, batch);
        rows.threads(At::new(SEED, &case, variant).threads(threads), found);
    }
}
