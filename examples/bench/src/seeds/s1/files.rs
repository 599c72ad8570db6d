//! Groups that read their small files again and again; a parent's limit leaves room for a sixth of the objects.
//!
//! A read looks its object up; if it is not there, makes it, charges a frame for it, and adds it to the list of its group. Where that
//! meets the parent's limit, the oldest 32 objects of the next group are walked and dropped. Published objects were inodes and
//! dentries charged by bytes; here an object is a frame, so that counts are exact. As there, the first, cold round is not counted.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use framekeeper::list_lru::{Link, ListItem, Locked, Scope, Unlocked, Verdict, Walk};
use framekeeper::{ListLru, MemcgId, Mm, MmConfig, NodeId, Pfn, Platform, Rank};

use super::super::port::{self, ONE, Owned, Real, Sim, machine, record_of, sharing};
use super::super::rows::{At, Rows, Runs};
use super::super::simulator::{COSTS, Program, Step, simulate, steps};
use super::super::{Options, abba, on_threads};
use super::{SEED, VARIANTS};
use crate::clock::Random;
use std::collections::VecDeque;

/// Groups, and the files of each: 16 in the originals.
const GROUPS: usize = 256;
const FILES: usize = 625;
/// Frames of the parent: 17 % of all objects.
const LIMIT: u64 = (GROUPS * FILES * 17 / 100) as u64;
/// Objects walked where the limit is met.
const WALKED: u64 = 32;
/// A small file opened, read and closed, beside its object's list: of the size that lat_syscall shows for the three calls.
const READ_NS: u64 = 1000;
/// Rounds over all files on real threads, after the cold one.
const WARM: usize = 2;

/// What the kernel keeps of a file.
struct Object {
    link: Link,
    /// The frame that it is charged as; 0 while it is not there.
    frame: AtomicU64,
}

impl ListItem for Object {
    type Pointer = &'static Self;
    fn link(&self) -> &Link {
        &self.link
    }
}

/// All files' objects, on no list between runs: a list that is dropped gives them up.
fn objects() -> &'static [Object] {
    static OBJECTS: OnceLock<Vec<Object>> = OnceLock::new();
    let new = || Object {
        link: Link::new(),
        frame: AtomicU64::new(0),
    };
    let objects = OBJECTS.get_or_init(|| (0..GROUPS * FILES).map(|_| new()).collect());
    for object in objects {
        object.frame.store(0, Relaxed);
    }
    objects
}

struct Cache<'m, P: Platform> {
    mm: &'m Mm<P>,
    groups: Vec<MemcgId>,
    list: ListLru<'m, Object, P>,
    objects: &'static [Object],
    /// The group that is asked next.
    cursor: AtomicU32,
    hits: AtomicU64,
}

/// Drops what it visits.
struct Drops<'a, P: Platform>(&'a Mm<P>);

impl<P: Platform> Walk<Object> for Drops<'_, P> {
    fn visit(&mut self, _item: &Object, _token: Locked<'_>) -> Verdict {
        Verdict::Removed
    }
    fn removed(&mut self, object: &'static Object, _token: Unlocked<'_>) {
        let frame = Pfn(object.frame.swap(0, Relaxed));
        // SAFETY: `read` kept the number that `into_raw` gave; the swap takes it once.
        drop(unsafe { self.0.folio_from_raw(frame) });
    }
}

fn build<P: Platform>(cpus: u32, shared: Option<Rank>) -> Owned<Mm<P>> {
    let config = MmConfig {
        list_lrus: 1,
        ..MmConfig::new(cpus, GROUPS as u32 + 1)
    };
    sharing(shared, || machine(&config))
}

impl<'m, P: Platform> Cache<'m, P> {
    fn new(mm: &'m Mm<P>) -> Self {
        let parent = mm.create_memcg(MemcgId::ROOT).expect("there is room");
        mm.set_memcg_max(parent, LIMIT).expect("it lives");
        let group = |_| mm.create_memcg(parent).expect("there is room");
        Self {
            mm,
            groups: (0..GROUPS).map(group).collect(),
            list: mm.list_lru(Scope::Groups, None).expect("there is one"),
            objects: objects(),
            cursor: AtomicU32::new(0),
            hits: AtomicU64::new(0),
        }
    }

    /// Reads a file; returns how many objects that cost.
    fn read(&self, group: usize, file: usize) -> u64 {
        let object = &self.objects[group * FILES + file];
        if object.frame.load(Relaxed) != 0 {
            self.hits.fetch_add(1, Relaxed);
            return 0;
        }
        let id = self.groups[group];
        let mut dropped = 0;
        let mut pages = self.mm.try_alloc(ONE).expect("memory is free");
        let folio = loop {
            match pages.try_charge_to(self.mm, id) {
                Ok(folio) => break folio,
                Err(refused) => pages = refused.1,
            }
            let next = self.cursor.fetch_add(1, Relaxed) as usize % GROUPS;
            let walked = self
                .list
                .walk(self.groups[next], NodeId(0), WALKED, &mut Drops(self.mm));
            dropped += walked.removed;
        };
        object.frame.store(folio.into_raw().0, Relaxed);
        let added = self.list.add(id, NodeId(0), object);
        added.map_err(|_| "listed").expect("it was on no list");
        dropped
    }

    /// Each of some groups reads its next file, until all have read all.
    fn reads(groups: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..FILES).flat_map(move |file| (0..groups).map(move |group| (group, file)))
    }
}

impl<P: Platform> Drop for Cache<'_, P> {
    fn drop(&mut self) {
        for &group in &self.groups {
            let _all = self
                .list
                .walk(group, NodeId(0), u64::MAX, &mut Drops(self.mm));
        }
    }
}

pub fn run(options: &Options, rows: &mut Rows) {
    for &cpus in &options.cpus {
        simulated(cpus, rows);
    }
    if !options.quick {
        threads(options.threads, rows);
    }
}

/// Virtual CPUs that share the groups out; groups of one CPU take turns.
struct Readers<'a> {
    cache: &'a Cache<'a, Sim>,
    cpus: u32,
    /// By CPU.
    done: Vec<usize>,
    think: Random,
    reads: u64,
}

impl Program for Readers<'_> {
    fn next(&mut self, cpu: u32, into: &mut VecDeque<Step>) -> bool {
        let done = &mut self.done[cpu as usize];
        let own =
            GROUPS / self.cpus as usize + usize::from((cpu as usize) < GROUPS % self.cpus as usize);
        let (file, turn) = (*done / own, *done % own);
        if file == FILES {
            return false;
        }
        *done += 1;
        self.reads += 1;
        let group = cpu as usize + turn * self.cpus as usize;
        let (dropped, events) = record_of(Rank::ListLru, cpu, || self.cache.read(group, file));
        let think = READ_NS / 2 + self.think.below(READ_NS);
        // The walk's hold, if there was one, is the long one.
        let mut first = dropped;
        steps(
            &COSTS,
            think,
            &events,
            |_| core::mem::replace(&mut first, 1).max(1),
            into,
        );
        true
    }
}

fn simulated(cpus: u32, rows: &mut Rows) {
    let acquired = VARIANTS.map(|(shared, variant)| {
        let mm = build::<Sim>(cpus, shared);
        let cache = Cache::new(&mm);
        port::act_as(0);
        // Of the cold round, what is left at its end.
        let cold = Cache::<Sim>::reads(GROUPS).skip(GROUPS * (FILES * 4 / 5));
        cold.for_each(|(group, file)| {
            cache.read(group, file);
        });
        let mut readers = Readers {
            cache: &cache,
            cpus,
            done: vec![0; cpus as usize],
            think: Random(11),
            reads: 0,
        };
        let outcome = simulate(cpus, &COSTS, &mut readers);
        assert_eq!(cache.hits.load(Relaxed), 0, "a loop over more than fits");
        let at = At::new(SEED, CASE, variant).cpus(cpus);
        rows.simulated(at, Rank::ListLru, readers.reads, &outcome);
        mm.check().expect("the lists are sound");
        let rank = Rank::ListLru as usize;
        (outcome.acquired[rank], outcome.contended[rank])
    });
    let [before, after] = acquired;
    assert_eq!(before.0, after.0, "as many locks");
    assert!(
        cpus != 64 || before.1 >= 10 * after.1,
        "{} contended, {} with a lock for each list",
        before.1,
        after.1
    );
}

const CASE: &str = "files, 256 groups under one limit";

fn threads(threads: u32, rows: &mut Rows) {
    let run = |variant: usize| {
        let mm = build::<Real>(threads, VARIANTS[variant].0);
        let cache = Cache::new(&mm);
        port::act_as(0);
        Cache::<Real>::reads(GROUPS).for_each(|(group, file)| {
            cache.read(group, file);
        });
        let done = on_threads(threads, |cpu| {
            port::counted(Rank::ListLru);
            let own = GROUPS.div_ceil(threads as usize);
            let mut reads = 0;
            for _ in 0..WARM {
                for (turn, file) in Cache::<Real>::reads(own) {
                    let group = cpu as usize + turn * threads as usize;
                    if group < GROUPS {
                        cache.read(group, file);
                        reads += 1;
                    }
                }
            }
            (port::counted(Rank::ListLru), reads)
        });
        drop(cache);
        mm.check().expect("the lists are sound");
        done
    };
    let mut found: [Runs; 2] = Default::default();
    abba(2, run, |variant, (ms, done)| {
        let locks: Vec<_> = done.iter().map(|done| done.0).collect();
        found[variant].push(ms, done.iter().map(|done| done.1).sum(), &locks);
    });
    for ((_, variant), found) in VARIANTS.into_iter().zip(found) {
        rows.threads(At::new(SEED, CASE, variant).threads(threads), found);
    }
}
