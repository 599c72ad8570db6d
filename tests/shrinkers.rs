//! Shrinkers: who is asked, for how much, and what becomes of work that is put off.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;
#[path = "common/objects.rs"]
mod objects;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use framekeeper::list_lru::{Locked, Scope, Verdict};
use framekeeper::reclaim::ShrinkError;
use framekeeper::shrinker::{Count, Scan, Shrinker, Target, UnregisterError};
use framekeeper::{Backing, ListLru, MemcgId, Mm, MmConfig, NodeId, ShrinkerConfig, ShrinkerId};
use host::Host;
use objects::Thing;

const NODE: NodeId = NodeId(0);

/// What owns a listed object.
type Pointer = std::sync::Arc<Thing>;

fn machine() -> &'static Mm<Host> {
    Box::leak(Box::new(kernel::machine(200, 2, 20)))
}

/// A cache that is a number for each group.
#[derive(Default)]
struct Numbers {
    objects: Mutex<BTreeMap<MemcgId, u64>>,
    counts: AtomicU64,
    scans: Mutex<Vec<(MemcgId, u64)>>,
    /// Scans after which it stops.
    patience: AtomicU64,
}

impl Numbers {
    fn new(patience: u64) -> &'static Self {
        Box::leak(Box::new(Self {
            patience: AtomicU64::new(patience),
            ..Self::default()
        }))
    }

    fn set(&self, memcg: MemcgId, objects: u64) {
        self.objects.lock().unwrap().insert(memcg, objects);
    }

    fn scans(&self) -> Vec<(MemcgId, u64)> {
        std::mem::take(&mut self.scans.lock().unwrap())
    }
}

impl Shrinker for Numbers {
    fn count(&self, target: Target) -> Count {
        self.counts.fetch_add(1, Ordering::Relaxed);
        match self.objects.lock().unwrap().get(&target.memcg) {
            None => Count::Empty,
            Some(&objects) => Count::Objects(objects),
        }
    }

    fn scan(&self, target: Target, objects: u64) -> Scan {
        let mut scans = self.scans.lock().unwrap();
        if scans.len() as u64 >= self.patience.load(Ordering::Relaxed) {
            return Scan::Stop;
        }
        scans.push((target.memcg, objects));
        Scan::Done {
            scanned: objects,
            freed: objects,
        }
    }
}

fn register(mm: &Mm<Host>, shrinker: &'static dyn Shrinker) -> ShrinkerId {
    mm.register_shrinker(shrinker, ShrinkerConfig::default())
        .expect("16 are configured")
}

#[test]
fn a_group_is_asked_only_while_its_bit_is_set_and_the_root_always() {
    let mm = machine();
    let numbers = Numbers::new(100);
    let id = register(mm, numbers);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    numbers.set(group, 1000);
    assert_eq!(mm.shrink_objects(group, NODE, 3), Ok(0));
    assert_eq!(numbers.counts.load(Ordering::Relaxed), 0, "no bit, no call");
    mm.mark_shrinkable(id, group, NODE);
    assert_eq!(mm.shrink_objects(group, NODE, 3), Ok(128));
    assert_eq!(numbers.scans(), [(group, 128)]);
    // 122 were deferred, and 250 come to it.
    assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(15 * 128));
    numbers.scans();
    // Empty clears the bit, after it was asked twice.
    numbers.objects.lock().unwrap().clear();
    let before = numbers.counts.load(Ordering::Relaxed);
    assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(0));
    assert_eq!(numbers.counts.load(Ordering::Relaxed), before + 2);
    assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(0));
    assert_eq!(numbers.counts.load(Ordering::Relaxed), before + 2);
    numbers.set(MemcgId::ROOT, 50);
    assert_eq!(mm.shrink_objects(MemcgId::ROOT, NODE, 0), Ok(100));
}

#[test]
fn a_shrinker_of_the_machine_is_asked_for_the_root_alone() {
    let mm = machine();
    let numbers = Numbers::new(100);
    let config = ShrinkerConfig {
        scope: Scope::Machine,
        ..ShrinkerConfig::default()
    };
    let id = mm.register_shrinker(numbers, config).unwrap();
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    numbers.set(group, 1000);
    numbers.set(MemcgId::ROOT, 1000);
    mm.mark_shrinkable(id, group, NODE);
    assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(0));
    assert_eq!(mm.shrink_objects(MemcgId::ROOT, NODE, 3), Ok(128));
}

#[test]
fn deferred_work_of_a_dead_group_is_its_parents() {
    let mm = machine();
    let numbers = Numbers::new(1);
    let id = register(mm, numbers);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    numbers.set(child, 1000);
    mm.mark_shrinkable(id, child, NODE);
    // 2000 due at priority 0; one batch, then a stop.
    assert_eq!(mm.shrink_objects(child, NODE, 0), Ok(128));
    mm.remove_memcg(child).unwrap();
    numbers.objects.lock().unwrap().clear();
    numbers.patience.store(100, Ordering::Relaxed);
    // The bit came along, too. At priority 12 nothing is due, neither of 1000 nor of 1872 deferred.
    numbers.set(parent, 1000);
    let free = |priority| mm.shrink_objects(parent, NODE, priority).unwrap();
    assert_eq!(free(12), 0);
    // 1872 / 8 + 250 = 484: three batches. Without what was inherited it would be one.
    assert_eq!(free(3), 3 * 128);
    mm.remove_memcg(parent).unwrap();
    mm.check().unwrap();
}

#[test]
fn a_shrinker_does_not_inherit_what_an_earlier_one_in_its_place_put_off() {
    let mm = machine();
    let first = Numbers::new(0);
    let id = register(mm, first);
    first.set(MemcgId::ROOT, 1000);
    assert_eq!(mm.shrink_objects(MemcgId::ROOT, NODE, 0), Ok(0));
    mm.unregister_shrinker(id).unwrap();
    let second = Numbers::new(100);
    register(mm, second);
    second.set(MemcgId::ROOT, 1000);
    assert_eq!(mm.shrink_objects(MemcgId::ROOT, NODE, 3), Ok(128));
    // 122 of its own and 250 new: two batches.
    assert_eq!(mm.shrink_objects(MemcgId::ROOT, NODE, 3), Ok(256));
}

#[test]
fn the_first_object_of_a_group_sets_its_bit() {
    let mm = machine();
    let (late, _) = listed(mm);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    for round in 0..3 {
        late.list.add(group, NODE, Thing::named(round)).unwrap();
        assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(1));
        // Empty now: the next look clears the bit.
        assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(0));
    }
}

/// Adds to its list once, while it is being counted.
struct Late {
    list: ListLru<'static, Thing, Host>,
    arrives: RefCell<Option<MemcgId>>,
}

// SAFETY: one thread uses it in this test.
#[allow(unsafe_code)]
unsafe impl Sync for Late {}

impl Shrinker for Late {
    fn count(&self, target: Target) -> Count {
        let objects = self.list.count(target.memcg, target.node);
        // After the count, before the bit is cleared.
        if let Some(memcg) = self.arrives.take() {
            self.list.add(memcg, NODE, Thing::named(1)).unwrap();
        }
        if objects == 0 {
            Count::Empty
        } else {
            Count::Objects(objects)
        }
    }
    fn scan(&self, target: Target, objects: u64) -> Scan {
        let mut walk = |_: &Thing, _: Locked<'_>| Verdict::Removed;
        let walked = self
            .list
            .walk(target.memcg, target.node, objects, &mut walk);
        Scan::Done {
            scanned: walked.visited,
            freed: walked.removed,
        }
    }
}

/// A registered shrinker over a list that sets its bits.
fn listed(mm: &'static Mm<Host>) -> (&'static Late, ShrinkerId) {
    // The list names its shrinker, and the shrinker owns the list: first one that nobody asks, then the real one in its place.
    let placeholder = register(mm, Numbers::new(0));
    let list = mm.list_lru(Scope::Groups, Some(placeholder)).unwrap();
    mm.unregister_shrinker(placeholder).unwrap();
    let late = Box::leak(Box::new(Late {
        list,
        arrives: RefCell::new(None),
    }));
    (late, register(mm, late))
}

#[test]
fn an_object_that_comes_between_the_count_and_the_clearing_of_the_bit_is_not_forgotten() {
    let mm = machine();
    let (late, id) = listed(mm);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.mark_shrinkable(id, group, NODE);
    *late.arrives.borrow_mut() = Some(group);
    // Found by the second count, after the clear.
    assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(1));
    assert_eq!(late.list.count_node(NODE), 0);
}

#[test]
fn what_the_second_count_finds_and_nobody_frees_is_asked_for_again() {
    struct Second(AtomicU64);
    impl Shrinker for Second {
        fn count(&self, _: Target) -> Count {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0 => Count::Empty, // before the clear
                _ => Count::Objects(1),
            }
        }
        fn scan(&self, _: Target, _: u64) -> Scan {
            Scan::Stop
        }
    }
    let mm = machine();
    let second: &Second = Box::leak(Box::new(Second(AtomicU64::new(0))));
    let id = register(mm, second);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.mark_shrinkable(id, group, NODE);
    for counts in [2, 3, 4] {
        assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(0));
        assert_eq!(second.0.load(Ordering::Relaxed), counts);
    }
}

/// B2: the bit was set on the dead group that was named, and its objects were never shrunk.
#[test]
fn objects_inherited_from_a_dead_group_are_found_through_the_parents_bit() {
    let mm = machine();
    let (late, _) = listed(mm);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    for name in 0..10 {
        late.list.add(child, NODE, Thing::named(name)).unwrap();
    }
    assert_eq!(mm.shrink_objects(parent, NODE, 0), Ok(0));
    mm.remove_memcg(child).unwrap();
    assert_eq!(mm.shrink_objects(parent, NODE, 0), Ok(10));
    mm.check().unwrap();
}

#[test]
fn reclaim_asks_shrinkers_after_the_lru_of_each_group_and_charges_succeed_by_it() {
    let mm = machine();
    let numbers = Numbers::new(u64::MAX);
    let id = register(mm, numbers);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(group).unwrap();
    numbers.set(child, 100);
    mm.mark_shrinkable(id, child, NODE);
    for _ in 0..8 {
        kernel::fault(mm, child, Backing::Anon).unwrap();
    }
    let reclaimed = mm.shrink_memcg(group, 8).unwrap();
    assert_eq!(reclaimed.freed, 8);
    let scans = numbers.scans();
    assert!(scans.iter().all(|&(memcg, _)| memcg == child));
    assert_eq!(
        reclaimed.objects,
        scans.iter().map(|&(_, objects)| objects).sum::<u64>()
    );
    mm.check().unwrap();
}

#[test]
fn a_shrinker_that_runs_keeps_its_place_until_it_returns() {
    /// Unregisters itself while it is called.
    struct Suicidal(&'static Mm<Host>, Mutex<Option<ShrinkerId>>, AtomicU64);
    impl Shrinker for Suicidal {
        fn count(&self, _: Target) -> Count {
            self.2.fetch_add(1, Ordering::Relaxed);
            let id = self.1.lock().unwrap().expect("set");
            let refused = self.0.unregister_shrinker(id);
            assert_eq!(refused, Err(UnregisterError::Running { calls: 1 }));
            Count::Objects(100)
        }
        fn scan(&self, _: Target, _: u64) -> Scan {
            Scan::Stop
        }
    }
    let mm = machine();
    let shrinker: &Suicidal =
        Box::leak(Box::new(Suicidal(mm, Mutex::new(None), AtomicU64::new(0))));
    let id = register(mm, shrinker);
    *shrinker.1.lock().unwrap() = Some(id);
    assert_eq!(mm.shrink_objects(MemcgId::ROOT, NODE, 0), Ok(0));
    // No new call begins; nobody runs now.
    assert_eq!(mm.shrink_objects(MemcgId::ROOT, NODE, 0), Ok(0));
    assert_eq!(shrinker.2.load(Ordering::Relaxed), 1);
    assert_eq!(mm.unregister_shrinker(id), Ok(()));
    assert_eq!(
        mm.unregister_shrinker(id),
        Err(UnregisterError::NoSuchShrinker)
    );
    assert_eq!(
        mm.list_lru::<Thing>(Scope::Groups, Some(id)).unwrap_err(),
        { framekeeper::list_lru::ListLruError::NoSuchShrinker }
    );
}

/// misuse 42 and 44: a shrinker may allocate, take its time, and use lists; reclaim inside reclaim is refused.
#[test]
fn a_shrinker_that_reclaims_is_refused_and_one_that_allocates_and_ends_groups_is_not() {
    struct Busy(&'static Mm<Host>);
    impl Shrinker for Busy {
        fn count(&self, _: Target) -> Count {
            Count::Objects(1)
        }
        fn scan(&self, target: Target, _: u64) -> Scan {
            let nested = self.0.shrink_objects(target.memcg, target.node, 0);
            assert_eq!(nested, Err(ShrinkError::Nested));
            // No lock and no pin is held: a group can end here, and that one too.
            let brief = self.0.create_memcg(MemcgId::ROOT).unwrap();
            self.0.remove_memcg(brief).unwrap();
            if target.memcg != MemcgId::ROOT {
                self.0.remove_memcg(target.memcg).unwrap();
            }
            drop(
                self.0
                    .try_alloc(framekeeper::Request::new(framekeeper::Order::ZERO)),
            );
            Scan::Stop
        }
    }
    let mm = machine();
    let id = register(mm, Box::leak(Box::new(Busy(mm))));
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.mark_shrinkable(id, group, NODE);
    assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(0));
    assert!(mm.memcg_usage(group).is_err());
    mm.check().unwrap();
}

/// misuse 46, 64: counts and scans of 0, and of more than there is; what is reported saturates.
#[test]
fn shrinkers_that_lie_cost_a_bounded_number_of_scans_in_any_reclaim() {
    struct Liar(u64, Scan, AtomicU64);
    impl Shrinker for Liar {
        fn count(&self, _: Target) -> Count {
            Count::Objects(self.0)
        }
        fn scan(&self, _: Target, _: u64) -> Scan {
            self.2.fetch_add(1, Ordering::Relaxed);
            self.1
        }
    }
    let mm = machine();
    let mut liars = Vec::new();
    for count in [0, 1, u64::MAX] {
        for (scanned, freed) in [(0, 0), (1, 0), (u64::MAX, u64::MAX), (0, u64::MAX)] {
            let scan = Scan::Done { scanned, freed };
            let liar: &Liar = Box::leak(Box::new(Liar(count, scan, AtomicU64::new(0))));
            register(mm, liar);
            liars.push(liar);
        }
    }
    let reclaimed = mm.reclaim(10);
    assert_eq!((reclaimed.freed, reclaimed.objects), (0, u64::MAX));
    // Thirteen priorities, two passes, 1024 scans each.
    for liar in liars {
        assert!(liar.2.load(Ordering::Relaxed) <= 2 * 13 * 1024);
    }
}

#[test]
fn no_more_shrinkers_than_configured_are_registered_and_a_place_is_used_again() {
    let config = MmConfig {
        shrinkers: 2,
        ..MmConfig::new(1, 2)
    };
    let mm = kernel::build(100, &config);
    let ids = [(); 2].map(|()| register(&mm, Numbers::new(0)));
    let full = mm.register_shrinker(Numbers::new(0), ShrinkerConfig::default());
    assert_eq!(full.unwrap_err().most, 2);
    mm.unregister_shrinker(ids[0]).unwrap();
    let again = register(&mm, Numbers::new(0));
    assert_ne!(again, ids[0]);
    assert!(mm.unregister_shrinker(ids[0]).is_err(), "a stale id");
}
