//! Lists of the kernel's objects: what each operation does, seen from outside.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;
#[path = "common/objects.rs"]
mod objects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use framekeeper::list_lru::{
    AddError, DeleteError, ListLruError, Locked, Scope, Verdict, WalkEnd, Walked,
};
use framekeeper::{ListLru, MemcgId, Mm, MmConfig, NodeId, Rank, Refused};
use host::Host;
use objects::{Collect, Thing};

const NODE: NodeId = NodeId(0);

/// What owns a listed object.
type Pointer = std::sync::Arc<Thing>;

type Things<'m> = ListLru<'m, Thing, Host>;
type Look = Collect<fn(&Thing) -> Verdict>;

fn machine() -> Mm<Host> {
    kernel::machine(200, 2, 20)
}

fn things(mm: &Mm<Host>) -> Things<'_> {
    mm.list_lru(Scope::Groups, None)
        .expect("four are configured")
}

/// Adds things of these names to a group; returns them.
fn fill(list: &Things<'_>, memcg: MemcgId, names: std::ops::Range<u64>) -> Vec<Arc<Thing>> {
    names
        .map(|name| {
            let thing = Thing::named(name);
            assert_eq!(list.add(memcg, NODE, Arc::clone(&thing)), Ok(memcg));
            thing
        })
        .collect()
}

/// Names on a group's list, oldest first.
fn names(list: &Things<'_>, memcg: MemcgId) -> Vec<u64> {
    let mut look = Collect::new(|_: &Thing| Verdict::Skip);
    let _ = list.walk(memcg, NODE, u64::MAX, &mut look);
    look.visited
}

#[test]
fn objects_are_listed_by_group_in_the_order_in_which_they_were_added() {
    let mm = machine();
    let list = things(&mm);
    let groups = [(); 2].map(|()| mm.create_memcg(MemcgId::ROOT).unwrap());
    fill(&list, groups[0], 0..3);
    let others = fill(&list, groups[1], 10..12);
    assert_eq!(names(&list, groups[0]), [0, 1, 2]);
    assert_eq!(names(&list, groups[1]), [10, 11]);
    assert_eq!((list.count(groups[0], NODE), list.count_node(NODE)), (3, 5));
    mm.check().unwrap();
    let back = list.delete(&others[0]).unwrap();
    assert!(Arc::ptr_eq(&back, &others[0]));
    assert_eq!(names(&list, groups[1]), [11]);
    assert_eq!(list.isolate(groups[0], NODE).unwrap().name, 0);
    assert_eq!(list.count_node(NODE), 3);
    assert_eq!(list.isolate(MemcgId::ROOT, NODE), None);
    mm.check().unwrap();
}

#[test]
fn a_list_of_the_machine_keeps_all_objects_with_the_root() {
    let mm = machine();
    let list: Things<'_> = mm.list_lru(Scope::Machine, None).unwrap();
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let thing = Thing::named(1);
    assert_eq!(list.add(group, NODE, thing), Ok(MemcgId::ROOT));
    assert_eq!(list.count(group, NODE), 1);
    mm.remove_memcg(group).unwrap();
    assert_eq!(list.count(MemcgId::ROOT, NODE), 1);
    mm.check().unwrap();
}

#[test]
fn a_dead_groups_objects_are_its_parents_oldest_and_can_still_be_deleted() {
    let mm = machine();
    let list = things(&mm);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    let olds = fill(&list, child, 0..3);
    fill(&list, parent, 10..12);
    mm.remove_memcg(child).unwrap();
    mm.check().unwrap();
    assert_eq!(names(&list, parent), [0, 1, 2, 10, 11]);
    assert_eq!(list.count(child, NODE), 0);
    list.delete(&olds[1]).unwrap();
    // The slot goes to another group, which has none of them.
    let other = mm.create_memcg(MemcgId::ROOT).unwrap();
    assert!(names(&list, other).is_empty());
    fill(&list, other, 20..21);
    list.delete(&olds[0]).unwrap();
    mm.remove_memcg(parent).unwrap();
    list.delete(&olds[2]).unwrap();
    assert_eq!(names(&list, MemcgId::ROOT), [10, 11]);
    assert_eq!(list.count_node(NODE), 3);
    mm.check().unwrap();
}

#[test]
fn adding_for_a_group_that_is_gone_gives_the_object_back() {
    let mm = machine();
    let list = things(&mm);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.remove_memcg(group).unwrap();
    let Refused(error, thing) = list.add(group, NODE, Thing::named(7)).unwrap_err();
    assert_eq!((error, thing.name), (AddError::NoSuchGroup(group), 7));
    let Refused(error, thing) = list.add(MemcgId::ROOT, NodeId(3), thing).unwrap_err();
    assert_eq!(error, AddError::NoSuchNode(NodeId(3)));
    assert_eq!(list.add(MemcgId::ROOT, NODE, thing), Ok(MemcgId::ROOT));
    mm.check().unwrap();
}

/// Issue 7, bad input: an object on no list is deleted; one is added twice; a foreign list deletes it.
#[test]
fn deleting_from_no_list_and_adding_twice_are_refused_with_nothing_changed() {
    let mm = machine();
    let (list, other) = (things(&mm), things(&mm));
    let thing = Thing::named(1);
    assert_eq!(list.delete(&thing), Err(DeleteError::NotListed));
    list.add(MemcgId::ROOT, NODE, Arc::clone(&thing)).unwrap();
    for again in [&list, &other] {
        let Refused(error, back) = again
            .add(MemcgId::ROOT, NODE, Arc::clone(&thing))
            .unwrap_err();
        assert_eq!(error, AddError::Listed);
        drop(back);
    }
    assert_eq!(other.delete(&thing), Err(DeleteError::NotListed));
    assert_eq!(list.count_node(NODE), 1);
    assert_eq!(Arc::strong_count(&thing), 2, "the list owns one");
    drop(list.delete(&thing).unwrap());
    assert_eq!(list.delete(&thing), Err(DeleteError::NotListed));
    assert_eq!(Arc::strong_count(&thing), 1);
    other.add(MemcgId::ROOT, NODE, thing).unwrap();
    mm.check().unwrap();
}

#[test]
fn an_object_that_is_listed_can_neither_be_moved_nor_dropped() {
    let mm = machine();
    let list = things(&mm);
    let dropped = Arc::new(AtomicU64::new(0));
    let mut thing = Thing::counted(1, &dropped);
    list.add(MemcgId::ROOT, NODE, Arc::clone(&thing)).unwrap();
    assert!(Arc::get_mut(&mut thing).is_none());
    let thing = Arc::try_unwrap(thing).expect_err("the list owns it too");
    drop(thing);
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop(list.isolate(MemcgId::ROOT, NODE));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

/// Issue 7, bad input: removal of a list that still has items.
#[test]
fn a_list_with_objects_does_not_close_and_drops_them_when_it_is_dropped() {
    let mm = machine();
    let list = things(&mm);
    let dropped = Arc::new(AtomicU64::new(0));
    let groups = [(); 3].map(|()| mm.create_memcg(MemcgId::ROOT).unwrap());
    for (name, group) in (0..).zip(groups).take(3) {
        list.add(group, NODE, Thing::counted(name, &dropped))
            .unwrap();
    }
    let list = list.close().expect_err("it has objects");
    assert_eq!(list.count_node(NODE), 3);
    drop(list);
    assert_eq!(dropped.load(Ordering::Relaxed), 3);
    mm.check().unwrap();
    // Its place is free again, for objects of any type.
    let lists: Vec<_> = (0..4).map(|_| things(&mm)).collect();
    assert_eq!(
        mm.list_lru::<Thing>(Scope::Groups, None).unwrap_err(),
        ListLruError::TooMany { most: 4 }
    );
    for list in lists {
        list.close().expect("empty");
    }
}

#[test]
fn each_verdict_does_what_it_says() {
    let mm = machine();
    let list = things(&mm);
    fill(&list, MemcgId::ROOT, 0..6);
    let mut walk = Collect::new(|thing: &Thing| match thing.name {
        0 => Verdict::Skip,
        1 => Verdict::Rotate,
        2 => Verdict::Removed,
        _ => Verdict::Stop,
    });
    let walked = list.walk(MemcgId::ROOT, NODE, 100, &mut walk);
    let expected = Walked {
        visited: 4,
        removed: 1,
        end: WalkEnd::Stopped,
    };
    assert_eq!(walked, expected);
    assert_eq!((walk.removed_names(), walk.unlocked), (vec![2], 0));
    assert_eq!(names(&list, MemcgId::ROOT), [0, 3, 4, 5, 1]);

    let mut retried = false;
    let mut walk = Collect::new(|thing: &Thing| match thing.name {
        3 if !retried => {
            retried = true;
            Verdict::Retry
        }
        4 => Verdict::RemovedRetry,
        _ => Verdict::Skip,
    });
    let walked = list.walk(MemcgId::ROOT, NODE, 100, &mut walk);
    assert_eq!(walked.end, WalkEnd::Complete);
    assert_eq!(walk.visited, [0, 3, 0, 3, 4, 0, 3, 5, 1]);
    assert_eq!((walk.removed_names(), walk.unlocked), (vec![4], 2));
    mm.check().unwrap();
}

/// misuse 45: callbacks that never make progress.
#[test]
fn a_walk_ends_by_its_budget_whatever_its_callbacks_answer() {
    let mm = machine();
    let list = things(&mm);
    fill(&list, MemcgId::ROOT, 0..100);
    for verdict in [Verdict::Retry, Verdict::Rotate, Verdict::Skip] {
        for budget in [0, 1, 31, 32, 33, 64, 99] {
            let mut calls = 0;
            let mut walk = |_: &Thing, token: Locked<'_>| {
                calls += 1;
                assert_eq!(token.budget(), budget - calls);
                verdict
            };
            let walked = list.walk(MemcgId::ROOT, NODE, budget, &mut walk);
            assert_eq!((walked.visited, walked.end), (budget, WalkEnd::Budget));
            assert_eq!((calls, walked.removed), (budget, 0));
        }
    }
    let mut forever = Collect::new(|_: &Thing| Verdict::Retry);
    let walked = list.walk(MemcgId::ROOT, NODE, 5000, &mut forever);
    assert_eq!((walked.visited, forever.unlocked), (5000, 5000));
    mm.check().unwrap();
}

/// misuse 50, for objects: the end of a group is one splice a list, however many objects are on it.
#[test]
fn a_group_with_a_hundred_thousand_objects_ends_in_as_many_steps_as_one_with_a_hundred() {
    let steps = |objects: u64| {
        let mm = machine();
        let list = things(&mm);
        let group = mm.create_memcg(MemcgId::ROOT).unwrap();
        fill(&list, group, 0..objects);
        let ranks = [Rank::MemcgTree, Rank::ListLru, Rank::LruVec];
        let before = ranks.map(host::locks_taken);
        mm.remove_memcg(group).unwrap();
        let after = ranks.map(host::locks_taken);
        assert_eq!(list.count(MemcgId::ROOT, NODE), objects);
        std::array::from_fn::<_, 3, _>(|i| after[i] - before[i])
    };
    assert_eq!(steps(100_000), steps(100));
}

#[test]
fn a_walk_of_many_holds_visits_every_object_once_and_leaves_nothing_behind() {
    let mm = machine();
    let list = things(&mm);
    fill(&list, MemcgId::ROOT, 0..200);
    let mut walk = Collect::new(|thing: &Thing| {
        if thing.name.is_multiple_of(3) {
            Verdict::Removed
        } else {
            Verdict::Skip
        }
    });
    let walked = list.walk(MemcgId::ROOT, NODE, u64::MAX, &mut walk);
    assert_eq!((walked.visited, walked.removed), (200, 67));
    assert!(walk.visited.iter().copied().eq(0..200));
    assert_eq!(list.count_node(NODE), 133);
    mm.check().unwrap();
}

/// Deletes what stands behind the walk's place, then what stands before it, whenever the lock is dropped.
struct Saboteur<'a, 'm> {
    list: &'a Things<'m>,
    things: Vec<Arc<Thing>>,
    visited: Vec<u64>,
}

impl framekeeper::list_lru::Walk<Thing> for Saboteur<'_, '_> {
    fn visit(&mut self, item: &Thing, _token: Locked<'_>) -> Verdict {
        self.visited.push(item.name);
        if self.visited.len().is_multiple_of(32) {
            // The last of a hold.
            Verdict::Removed
        } else {
            Verdict::Skip
        }
    }
    fn removed(&mut self, item: Arc<Thing>, _token: framekeeper::list_lru::Unlocked<'_>) {
        for near in [item.name + 1, item.name + 2, item.name - 1] {
            if let Some(thing) = self.things.get(near as usize) {
                drop(self.list.delete(thing).expect("listed"));
            }
        }
    }
}

/// B21: a walk that went on from a stale cursor after the lock was dropped lost an inode.
#[test]
fn a_walk_goes_on_where_it_stopped_though_the_neighbours_of_its_place_were_deleted() {
    let mm = machine();
    let list = things(&mm);
    let things = fill(&list, MemcgId::ROOT, 0..100);
    let mut walk = Saboteur {
        list: &list,
        things,
        visited: Vec::new(),
    };
    let walked = list.walk(MemcgId::ROOT, NODE, u64::MAX, &mut walk);
    let expected = (0..32).chain(34..66).chain(68..100);
    assert!(walk.visited.iter().copied().eq(expected));
    assert_eq!((walked.removed, walked.end), (3, WalkEnd::Complete));
    assert_eq!(list.count_node(NODE), 100 - 3 - 7);
    mm.check().unwrap();
}

/// Ends the group when the lock is dropped.
struct Assassin<'m> {
    mm: &'m Mm<Host>,
    group: Option<MemcgId>,
}

impl framekeeper::list_lru::Walk<Thing> for Assassin<'_> {
    fn visit(&mut self, item: &Thing, _token: Locked<'_>) -> Verdict {
        if item.name == 0 {
            Verdict::Removed
        } else {
            Verdict::Skip
        }
    }
    fn removed(&mut self, _item: Arc<Thing>, _token: framekeeper::list_lru::Unlocked<'_>) {
        if let Some(group) = self.group.take() {
            self.mm.remove_memcg(group).unwrap();
            self.mm.create_memcg(MemcgId::ROOT).unwrap();
        }
    }
}

/// Issue 7, bad input: a group that dies during a walk.
#[test]
fn a_walk_whose_group_ends_stops_and_its_objects_are_all_with_the_parent() {
    let mm = machine();
    let list = things(&mm);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    fill(&list, group, 0..100);
    fill(&list, MemcgId::ROOT, 100..110);
    let mut walk = Assassin {
        mm: &mm,
        group: Some(group),
    };
    let walked = list.walk(group, NODE, u64::MAX, &mut walk);
    assert_eq!((walked.visited, walked.end), (32, WalkEnd::GroupGone));
    mm.check().unwrap();
    assert!(names(&list, MemcgId::ROOT).into_iter().eq(1..110));
    let gone = list.walk(group, NODE, 1, &mut walk);
    assert_eq!((gone.visited, gone.end), (0, WalkEnd::GroupGone));
}

#[test]
fn walks_of_a_node_and_of_a_group_visit_every_list_of_theirs() {
    let mm = kernel::build(200, &MmConfig::new(2, 20).nodes(2));
    let list = things(&mm);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    for (name, (memcg, node)) in (0..).zip([
        (MemcgId::ROOT, 0),
        (group, 0),
        (group, 1),
        (MemcgId::ROOT, 1),
    ]) {
        list.add(memcg, NodeId(node), Thing::named(name)).unwrap();
    }
    let visit = |run: &dyn Fn(&mut Look) -> Walked| {
        let mut look = Look::new(|_| Verdict::Skip);
        (run(&mut look).end, look.visited)
    };
    let all = u64::MAX;
    assert_eq!(
        visit(&|look| list.walk_node(NODE, all, look)),
        (WalkEnd::Complete, vec![0, 1])
    );
    assert_eq!(
        visit(&|look| list.walk_group(group, all, look)),
        (WalkEnd::Complete, vec![1, 2])
    );
    assert_eq!(
        visit(&|look| list.walk_node(NODE, 1, look)),
        (WalkEnd::Budget, vec![0])
    );
    assert_eq!(
        (list.count_node(NodeId(1)), list.count(group, NodeId(1))),
        (2, 1)
    );
    mm.check().unwrap();
}

/// Issue 7, bad input: a callback that calls back into a list.
#[test]
fn a_callback_that_uses_a_list_is_refused_and_the_walk_goes_on() {
    let mm = machine();
    let (list, other) = (things(&mm), things(&mm));
    let things = fill(&list, MemcgId::ROOT, 0..3);
    let mut refused = 0;
    let mut walk = |thing: &Thing, _: Locked<'_>| {
        if thing.name == 1 {
            let mut inner = |_: &Thing, _: Locked<'_>| Verdict::Removed;
            assert_eq!(list.delete(&things[2]), Err(DeleteError::InsideWalk));
            let Refused(error, _) = other.add(MemcgId::ROOT, NODE, Thing::named(9)).unwrap_err();
            assert_eq!(error, AddError::InsideWalk);
            let walked = other.walk(MemcgId::ROOT, NODE, 9, &mut inner);
            assert_eq!((walked.visited, walked.end), (0, WalkEnd::InsideWalk));
            assert!(list.isolate(MemcgId::ROOT, NODE).is_none());
            assert_eq!(list.count(MemcgId::ROOT, NODE), 3, "counting takes no lock");
            refused += 1;
        }
        Verdict::Skip
    };
    let walked = list.walk(MemcgId::ROOT, NODE, 9, &mut walk);
    assert_eq!(
        (walked.visited, walked.end, refused),
        (3, WalkEnd::Complete, 1)
    );
    drop(list.delete(&things[2]).unwrap());
    mm.check().unwrap();
}

/// Issue 7, bad input: a callback that panics. misuse 43.
#[test]
fn a_callback_that_panics_leaves_the_list_unlocked_and_every_count_exact() {
    let mm = machine();
    let list = things(&mm);
    let dropped = Arc::new(AtomicU64::new(0));
    for name in 0..100 {
        list.add(MemcgId::ROOT, NODE, Thing::counted(name, &dropped))
            .unwrap();
    }
    // In the middle of the second hold; and, in the first and the second walk, things were removed before.
    for at in [40, 70] {
        let mut walk = |thing: &Thing, _: Locked<'_>| {
            assert!(thing.name != at, "the callback was told to panic");
            if thing.name % 10 == 5 {
                Verdict::Removed
            } else {
                Verdict::Skip
            }
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            list.walk(MemcgId::ROOT, NODE, u64::MAX, &mut walk)
        }));
        assert!(result.is_err());
        mm.check().unwrap();
    }
    assert_eq!(dropped.load(Ordering::Relaxed), 7, "5 to 65");
    assert_eq!(list.count_node(NODE), 93);
    assert_eq!(names(&list, MemcgId::ROOT).len(), 93);
}

/// Panics when it is given what was removed: between two holds.
struct Clumsy;

impl framekeeper::list_lru::Walk<Thing> for Clumsy {
    fn visit(&mut self, thing: &Thing, _token: Locked<'_>) -> Verdict {
        if thing.name < 3 {
            Verdict::Removed
        } else {
            Verdict::Skip
        }
    }
    fn removed(&mut self, item: Arc<Thing>, _token: framekeeper::list_lru::Unlocked<'_>) {
        assert!(item.name != 1, "it was told to panic");
    }
}

#[test]
fn a_panic_between_two_holds_takes_the_walks_own_mark_out_of_the_list() {
    let mm = machine();
    let list = things(&mm);
    fill(&list, MemcgId::ROOT, 0..100);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        list.walk(MemcgId::ROOT, NODE, u64::MAX, &mut Clumsy)
    }));
    assert!(result.is_err());
    mm.check().unwrap();
    assert!(names(&list, MemcgId::ROOT).into_iter().eq(3..100));
}

#[test]
fn objects_inherited_from_dead_groups_give_up_those_groups_owner_slots_when_they_are_walked() {
    let mm = machine();
    let list = things(&mm);
    // More groups than there are owner slots in all.
    for round in 0..200 {
        let group = mm.create_memcg(MemcgId::ROOT).unwrap();
        fill(&list, group, round..round + 1);
        mm.remove_memcg(group).unwrap();
        let _ = names(&list, MemcgId::ROOT);
    }
    assert_eq!(list.count(MemcgId::ROOT, NODE), 200);
    mm.check().unwrap();
}

#[test]
fn a_handle_that_is_forgotten_keeps_its_objects_and_its_list() {
    let mm = machine();
    let dropped = Arc::new(AtomicU64::new(0));
    let list = things(&mm);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    list.add(group, NODE, Thing::counted(1, &dropped)).unwrap();
    core::mem::forget(list);
    mm.remove_memcg(group).unwrap();
    mm.check().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    let rest: Vec<_> = (0..3).map(|_| things(&mm)).collect();
    assert!(mm.list_lru::<Thing>(Scope::Groups, None).is_err());
    drop(rest);
}
