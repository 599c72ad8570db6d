//! Groups that touch sixteen times what their limits allow, with swap in memory.
//!
//! Every page has a slot of the swap area from its first touch on, and 64 slots share a node of the area's index, which holds the
//! page while it is in memory, and its shadow while it is not. A node with nothing but shadows could be freed, so it stands on a list
//! of the group that made it. **Sequential** slots fill a node with one group's neighbours: it is listed once, 16 times in 1000
//! evictions, and there is little to gain. **Randomised** slots mix groups and ages in each node: it is listed and taken off again.
//!
//! The original's zram compressed pages; ours copies them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use framekeeper::list_lru::{Link, ListItem, Scope};
use framekeeper::{Backing, Evict, ListLru, MemcgId, Mm, MmConfig, NodeId, Rank, Refused};

use super::super::hooks::{copy_page, evicted};
use super::super::port::{self, Event, ONE, Owned, Real, Sim, machine, record_of, sharing};
use super::super::rows::{At, Rows, Runs};
use super::super::simulator::{COSTS, Program, Step, simulate, steps};
use super::super::{Options, abba, on_threads};
use super::{SEED, VARIANTS};
use crate::clock::Random;

const GROUPS: usize = 64;
/// Slots of a node.
const NODE: usize = 64;
/// Pages that a group touches before its CPU turns to the next.
const SLICE: usize = 64;
/// A fault, 800 ns, and the copy of a page to swap, at 8 GB/s.
const TOUCH_NS: u64 = 1300;

/// Frames that a group may have, in the simulation and on threads; it touches 16 times as many.
const SIMULATED: usize = 128;
const THREADED: usize = 256;

/// In which order pages get slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slots {
    Sequential,
    Randomised,
}

impl Slots {
    fn case(self) -> &'static str {
        match self {
            Self::Sequential => "memhog, slots in sequence",
            Self::Randomised => "memhog, slots at random",
        }
    }

    /// The slot of each page, group by group.
    fn of(self, pages: usize) -> Vec<u32> {
        let mut slots: Vec<u32> = (0..pages as u32).collect();
        if self == Self::Randomised {
            Random(64).shuffle(&mut slots);
        }
        slots
    }
}

/// A node of the index.
struct IndexNode {
    link: Link,
    held: Mutex<Held>,
}

#[derive(Clone, Copy, Default)]
struct Held {
    pages: u32,
    shadows: u32,
    /// Whose list it goes to: the group that made it.
    maker: Option<MemcgId>,
}

impl ListItem for IndexNode {
    type Pointer = &'static Self;
    fn link(&self) -> &Link {
        &self.link
    }
}

/// Empty nodes, on no list between runs.
fn nodes(count: usize) -> &'static [IndexNode] {
    static NODES: OnceLock<Vec<IndexNode>> = OnceLock::new();
    let new = || IndexNode {
        link: Link::new(),
        held: Mutex::default(),
    };
    let most = GROUPS * THREADED * 16 / NODE;
    let nodes = &NODES.get_or_init(|| (0..most).map(|_| new()).collect())[..count];
    for node in nodes {
        *node.held.lock().expect("nobody panics") = Held::default();
    }
    nodes
}

struct Memhog<'m, P: Evict> {
    mm: &'m Mm<P>,
    groups: Vec<MemcgId>,
    list: ListLru<'m, IndexNode, P>,
    nodes: &'static [IndexNode],
    slots: Vec<u32>,
    /// Pages that each group touches.
    touches: usize,
    evictions: AtomicU64,
}

fn build<P: Evict>(cpus: u32, shared: Option<Rank>) -> Owned<Mm<P>> {
    let config = MmConfig {
        list_lrus: 1,
        ..MmConfig::new(cpus, GROUPS as u32)
    };
    sharing(shared, || machine(&config))
}

impl<'m, P: Evict> Memhog<'m, P> {
    fn new(mm: &'m Mm<P>, limit: usize, slots: Slots) -> Self {
        let group = |_| {
            let group = mm.create_memcg(MemcgId::ROOT).expect("there is room");
            mm.set_memcg_max(group, limit as u64).expect("it lives");
            group
        };
        let touches = limit * 16;
        Self {
            mm,
            groups: (0..GROUPS).map(group).collect(),
            list: mm.list_lru(Scope::Groups, None).expect("there is one"),
            nodes: nodes(GROUPS * touches / NODE),
            slots: slots.of(GROUPS * touches),
            touches,
            evictions: AtomicU64::new(0),
        }
    }

    /// A group writes to a page for the first time.
    fn touch(&self, group: usize, page: usize) {
        let slot = self.slots[group * self.touches + page];
        let id = self.groups[group];
        let frame = self.mm.alloc(ONE).expect("memory is free");
        let folio = frame.charge_to(self.mm, id).map_err(Refused::into_error);
        let folio = folio.expect("pages can go");
        for gone in evicted() {
            self.evictions.fetch_add(1, Relaxed);
            self.shadow(gone as usize);
        }
        self.insert(slot as usize, id);
        folio.set_word(slot.into());
        let mapped = folio.reference();
        folio.add_to_lru(Backing::Anon).expect("it is new");
        let _in_the_page_table = mapped.into_raw();
    }

    /// A page comes to the index: its node is needed.
    fn insert(&self, slot: usize, maker: MemcgId) {
        let node = &self.nodes[slot / NODE];
        let mut held = node.held.lock().expect("nobody panics");
        if held.pages == 0 && held.shadows > 0 {
            self.list.delete(node).expect("a node of shadows is listed");
        }
        held.maker.get_or_insert(maker);
        held.pages += 1;
    }

    /// A page's shadow takes its place.
    fn shadow(&self, slot: usize) {
        let node = &self.nodes[slot / NODE];
        let mut held = node.held.lock().expect("nobody panics");
        held.pages -= 1;
        held.shadows += 1;
        if let (0, Some(maker)) = (held.pages, held.maker) {
            let added = self.list.add(maker, NodeId(0), node);
            added.map_err(|_| "listed").expect("it was on no list");
        }
    }

    /// What groups have touched more than their limits allow.
    fn check(&self, limit: usize) {
        let evictions = self.evictions.load(Relaxed);
        assert_eq!(
            evictions,
            (GROUPS * (self.touches - limit)) as u64,
            "no waste"
        );
        self.mm.drain_lru();
        self.mm.check().expect("the lists are sound");
    }
}

/// What a CPU touches: a slice of each of its groups, then the next slice. Where there are more CPUs than groups, they share a group's
/// pages out.
fn turns(cpu: u32, cpus: u32, touches: usize) -> impl Iterator<Item = (usize, usize)> {
    let (cpu, cpus) = (cpu as usize, cpus as usize);
    let first = cpu % GROUPS;
    let sharers = (cpus - first).div_ceil(GROUPS).min(cpus.div_ceil(GROUPS));
    let share = |part: usize| touches * part / sharers;
    let (from, to) = (share(cpu / GROUPS), share(cpu / GROUPS + 1));
    (from..to).step_by(SLICE).flat_map(move |slice| {
        (first..GROUPS)
            .step_by(cpus)
            .flat_map(move |group| (slice..to.min(slice + SLICE)).map(move |page| (group, page)))
    })
}

pub fn run(options: &Options, rows: &mut Rows) {
    for slots in [Slots::Randomised, Slots::Sequential] {
        for &cpus in &options.cpus {
            simulated(slots, cpus, rows);
        }
        if !options.quick {
            threads(slots, options.threads, rows);
        }
    }
}

/// Touches that were made before, by CPU: the locks that each took.
struct Played {
    touches: Vec<VecDeque<Vec<Event>>>,
    think: Random,
}

impl Program for Played {
    fn next(&mut self, cpu: u32, into: &mut VecDeque<Step>) -> bool {
        let Some(events) = self.touches[cpu as usize].pop_front() else {
            return false;
        };
        let think = TOUCH_NS / 2 + self.think.below(TOUCH_NS);
        steps(&COSTS, think, &events, |_| 1, into);
        true
    }
}

/// Which pages share a node of randomised slots, and when, would depend on who is faster. So pages are touched in one order, one of
/// each CPU after the other, and what locks that takes is then spread over time.
fn simulated(slots: Slots, cpus: u32, rows: &mut Rows) {
    let counts = VARIANTS.map(|(shared, variant)| {
        let mm = build::<Sim>(cpus, shared);
        let memhog = Memhog::new(&mm, SIMULATED, slots);
        let mut left: Vec<_> = (0..cpus)
            .map(|cpu| turns(cpu, cpus, memhog.touches))
            .collect();
        let mut played = Played {
            touches: vec![VecDeque::new(); cpus as usize],
            think: Random(13),
        };
        loop {
            let mut ended = true;
            for (cpu, turns) in (0..).zip(&mut left) {
                if let Some((group, page)) = turns.next() {
                    let touch = || memhog.touch(group, page);
                    let ((), events) = record_of(Rank::ListLru, cpu, touch);
                    played.touches[cpu as usize].push_back(events);
                    ended = false;
                }
            }
            if ended {
                break;
            }
        }
        memhog.check(SIMULATED);
        let outcome = simulate(cpus, &COSTS, &mut played);
        let evictions = memhog.evictions.load(Relaxed);
        let at = At::new(SEED, slots.case(), variant).cpus(cpus);
        rows.simulated(at, Rank::ListLru, evictions, &outcome);
        let rank = Rank::ListLru as usize;
        (outcome.acquired[rank], outcome.contended[rank])
    });
    let [before, after] = counts;
    assert_eq!(before.0, after.0, "as many locks");
    assert!(
        cpus != 64 || before.1 >= 10 * after.1,
        "{} contended, {} with a lock for each list",
        before.1,
        after.1
    );
}

fn threads(slots: Slots, threads: u32, rows: &mut Rows) {
    let run = |variant: usize| {
        let mm = build::<Real>(threads, VARIANTS[variant].0);
        let memhog = Memhog::new(&mm, THREADED, slots);
        let (ms, locks) = on_threads(threads, |cpu| {
            port::counted(Rank::ListLru);
            for (group, page) in turns(cpu, threads, memhog.touches) {
                memhog.touch(group, page);
                copy_page(); // the program's own use of it
            }
            port::counted(Rank::ListLru)
        });
        memhog.mm.check().expect("the lists are sound");
        (ms, locks, memhog.evictions.load(Relaxed))
    };
    let mut found: [Runs; 2] = Default::default();
    abba(2, run, |variant, (ms, locks, evictions)| {
        found[variant].push(ms, evictions, &locks);
    });
    for ((_, variant), found) in VARIANTS.into_iter().zip(found) {
        rows.threads(At::new(SEED, slots.case(), variant).threads(threads), found);
    }
}
