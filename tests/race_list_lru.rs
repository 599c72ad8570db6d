//! Threads that add, delete, walk and shrink objects while groups come and go; at rest nothing is lost, and nothing is twice.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;
#[path = "common/objects.rs"]
mod objects;
#[path = "common/race.rs"]
mod race;
#[path = "common/shared.rs"]
mod shared;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use framekeeper::list_lru::{AddError, DeleteError, Scope, Verdict};
use framekeeper::shrinker::{Count, Scan, Shrinker, Target};
use framekeeper::{ListLru, MemcgId, Mm, NodeId, Refused, ShrinkerConfig};
use host::{Host, run_as};
use objects::{Collect, Thing};
use race::{rounds, run, tests, together};
use shared::Shared as Pointer;

const THREADS: u32 = 4;
const ROUNDS: u64 = 6000;
const NODE: NodeId = NodeId(0);

type Things = ListLru<'static, Thing, Host>;

/// A small deterministic generator, one per thread.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Adds an object; the group may be on its way out, and then its objects go to the root.
fn add(list: &Things, memcg: MemcgId, thing: Pointer) {
    let mut at = (memcg, thing);
    loop {
        match list.add(at.0, NODE, at.1) {
            Ok(_) | Err(Refused(AddError::Listed, _)) => return,
            Err(Refused(AddError::NoSuchGroup(_), back)) => at = (MemcgId::ROOT, back),
            // Two threads share a CPU id, and one of them was long in a callback.
            Err(Refused(AddError::InsideWalk, back)) => at.1 = back,
            Err(Refused(error, _)) => panic!("{error}"),
        }
    }
}

/// Takes an object off, if it is on.
fn delete(list: &Things, thing: &Thing) -> bool {
    loop {
        match list.delete(thing) {
            Ok(back) => {
                assert!(core::ptr::eq(&raw const *back, thing));
                return true;
            }
            Err(DeleteError::NotListed) => return false,
            Err(DeleteError::InsideWalk) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Frees what was not used since it last looked.
struct Cache(Things);

impl Shrinker for Cache {
    fn count(&self, target: Target) -> Count {
        match self.0.count(target.memcg, target.node) {
            0 => Count::Empty,
            objects => Count::Objects(objects),
        }
    }
    fn scan(&self, target: Target, objects: u64) -> Scan {
        let mut walk = Collect::new(|thing: &Thing| {
            if thing.used.swap(false, Ordering::Relaxed) {
                Verdict::Rotate
            } else {
                Verdict::Removed
            }
        });
        let walked = self.0.walk(target.memcg, target.node, objects, &mut walk);
        Scan::Done {
            scanned: walked.visited,
            freed: walked.removed,
        }
    }
}

/// One CPU's life: its own objects, everyone's groups.
fn live(
    mm: &Mm<Host>,
    cache: &Cache,
    cpu: u32,
    groups: &[MemcgId],
    dropped: &Arc<AtomicU64>,
) -> u64 {
    run_as(cpu % 3); // two threads share a CPU id: slower, never wrong
    let list = &cache.0;
    let mut rng = Rng(u64::from(cpu) + 1);
    let mut mine: Vec<Pointer> = Vec::new();
    let mut made = 0;
    for _ in 0..rounds(ROUNDS) {
        let group = groups[rng.below(groups.len() as u64) as usize];
        let own = rng.below(mine.len().max(1) as u64) as usize;
        match rng.below(16) {
            0..6 => {
                let thing = Thing::counted(made, dropped);
                made += 1;
                thing.used.store(rng.below(2) == 0, Ordering::Relaxed);
                mine.push(thing.clone());
                add(list, group, thing);
            }
            6..9 if !mine.is_empty() => {
                delete(list, &mine.swap_remove(own));
            }
            9 if !mine.is_empty() => add(list, group, mine[own].clone()),
            10 => {
                let verdicts = [
                    Verdict::Removed,
                    Verdict::RemovedRetry,
                    Verdict::Rotate,
                    Verdict::Skip,
                    Verdict::Retry,
                ];
                let mut walk = Collect::new(|thing: &Thing| verdicts[(thing.name % 5) as usize]);
                let budget = rng.below(100);
                let walked = list.walk(group, NODE, budget, &mut walk);
                assert!(walked.visited <= budget);
                assert_eq!(walked.removed, walk.removed.len() as u64);
                for thing in walk.removed {
                    assert!(thing.owners() <= 3);
                }
            }
            11 => drop(list.isolate(group, NODE)),
            12 => {
                let priority = rng.below(4) as u32;
                let _ = mm.shrink_objects(group, NODE, priority);
            }
            13 | 14 => {
                // A group of a moment, some of whose objects outlive it.
                if let Ok(brief) = mm.create_memcg(group) {
                    for _ in 0..rng.below(40) {
                        let thing = Thing::counted(made, dropped);
                        made += 1;
                        mine.push(thing.clone());
                        add(list, brief, thing);
                    }
                    mm.remove_memcg(brief).expect("nobody else knows it");
                }
            }
            _ => {
                let _ = list.walk_node(NODE, 50, &mut Collect::new(|_: &Thing| Verdict::Skip));
            }
        }
    }
    made
}

fn whatever_threads_do_at_once_every_object_is_on_one_list_or_with_who_took_it() {
    let mm: &'static Mm<Host> = Box::leak(Box::new(kernel::machine(300, 3, 40)));
    let list = mm.list_lru(Scope::Groups, None).expect("configured");
    let cache: &'static Cache = Box::leak(Box::new(Cache(list)));
    mm.register_shrinker(cache, ShrinkerConfig::default())
        .expect("configured");
    let groups: Vec<_> = (0..6)
        .map(|_| mm.create_memcg(MemcgId::ROOT).unwrap())
        .collect();
    let (made, dropped) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    together(THREADS, |cpu| {
        let own = live(mm, cache, cpu, &groups, &dropped);
        made.fetch_add(own, Ordering::Relaxed);
    });
    mm.check().unwrap();
    // Each thread dropped its references: what lives is on the list.
    let left = cache.0.count_node(NODE);
    let (made, gone) = (made.into_inner(), dropped.load(Ordering::Relaxed));
    assert_eq!(made - gone, left);
    for group in groups {
        mm.remove_memcg(group).unwrap();
    }
    mm.check().unwrap();
    assert_eq!(cache.0.count(MemcgId::ROOT, NODE), left);
    let mut all = Collect::new(|_: &Thing| Verdict::Removed);
    let walked = cache.0.walk(MemcgId::ROOT, NODE, u64::MAX, &mut all);
    assert_eq!(walked.removed, left);
    drop(all);
    assert_eq!(dropped.load(Ordering::Relaxed), made);
    mm.check().unwrap();
}

/// Two threads throw one set of objects from list to list, while a third ends the groups they are thrown to.
fn objects_that_are_moved_between_dying_groups_by_two_threads_are_never_on_two_lists() {
    const OBJECTS: u64 = 8;
    let mm: &'static Mm<Host> = Box::leak(Box::new(kernel::machine(300, 3, 40)));
    let list: &Things = Box::leak(Box::new(
        mm.list_lru(Scope::Groups, None).expect("configured"),
    ));
    let things: Vec<_> = (0..OBJECTS).map(Thing::named).collect();
    let brief = spin::mutex::SpinMutex::<_>::new(mm.create_memcg(MemcgId::ROOT).unwrap());
    let ended = AtomicBool::new(false);
    together(3, |cpu| {
        run_as(cpu);
        if cpu == 2 {
            for _ in 0..rounds(1500) {
                let next = mm.create_memcg(MemcgId::ROOT).unwrap();
                let last = core::mem::replace(&mut *brief.lock(), next);
                mm.remove_memcg(last).expect("nobody else ends groups");
            }
            ended.store(true, Ordering::Release);
            return;
        }
        let mut rng = Rng(u64::from(cpu));
        while !ended.load(Ordering::Acquire) {
            let thing = &things[rng.below(OBJECTS) as usize];
            let group = if rng.below(3) == 0 {
                MemcgId::ROOT
            } else {
                *brief.lock()
            };
            if rng.below(2) == 0 || delete(list, thing) {
                add(list, group, thing.clone());
            }
        }
    });
    mm.check().unwrap();
    let listed = things.iter().filter(|&thing| delete(list, thing)).count();
    assert!(listed > 0);
    assert_eq!(list.count_node(NODE), 0);
    for thing in things {
        assert_eq!(thing.owners(), 1);
    }
    mm.check().unwrap();
}

fn main() -> ExitCode {
    run(&tests![
        whatever_threads_do_at_once_every_object_is_on_one_list_or_with_who_took_it,
        objects_that_are_moved_between_dying_groups_by_two_threads_are_never_on_two_lists,
    ])
}
