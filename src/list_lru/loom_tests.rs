//! Models of the list protocols, run by loom on the code itself.
//!
//! Owns: nothing. Invariants: checked, not held: whatever add, delete or walk does while the group ends, the object is on the parent's
//! list or with who took it, counts and owner slots are exact, and the parent's bit is set. Lock ranks: as the code under test.
//! Used by: `RUSTFLAGS="--cfg loom" cargo test --release --lib loom_tests`.
//!
//! Bounds: two threads, two groups, one or two objects; `LOOM_MAX_PREEMPTIONS` bounds the schedules. A group ends as in
//! `Mm::remove_memcg`, less the frames. Each broken twin leaves out one step, or changes the order, and must be caught.

extern crate std;

use std::boxed::Box;

use super::{
    AddError, DeleteError, Link, ListItem, ListLru, ListLrus, Locked, Scope, Verdict, View, WalkEnd,
};
use crate::addr::NodeId;
use crate::boot::Refused;
use crate::loom_host::{LoomLock, model_platform, run_as};
use crate::loom_machine::{carved, memcgs};
use crate::memcg::{MemcgId, Memcgs};
use crate::platform::{IrqOff, Platform};
use crate::shrinker::{Count, Scan, Shrinker, ShrinkerConfig, Shrinkers, Target};

model_platform!(
    /// Two CPUs.
    LoomHost,
    LoomLock
);
model_platform!(
    /// Links on a chain whose lock was found by an old look.
    NoSecondLook,
    LoomLock,
    LEFT_OUT: &'static str = "list_lru: the second look"
);
model_platform!(
    /// A spliced list that takes objects still.
    NeverDead,
    LoomLock,
    LEFT_OUT: &'static str = "list_lru: marking dead"
);
model_platform!(
    /// Objects that come to a parent whose bit is clear.
    NoBit,
    LoomLock,
    LEFT_OUT: &'static str = "list_lru: the parent's bit"
);

const NODE: NodeId = NodeId(0);

#[derive(Debug)]
struct Thing {
    link: Link,
}

impl ListItem for Thing {
    type Pointer = &'static Self;
    fn link(&self) -> &Link {
        &self.link
    }
}

fn thing() -> &'static Thing {
    let link = Link::new();
    Box::leak(Box::new(Thing { link }))
}

struct Nobody;

impl Shrinker for Nobody {
    fn count(&self, _: Target) -> Count {
        Count::Empty
    }
    fn scan(&self, _: Target, _: u64) -> Scan {
        Scan::Stop
    }
}

struct Machine<P: Platform> {
    memcgs: Memcgs<P>,
    shrinkers: Shrinkers<P>,
    lists: ListLrus<P>,
}

/// A child group and a list, for one execution of a model. Leaked, so that threads share them.
struct Scene<P: Platform> {
    machine: &'static Machine<P>,
    list: ListLru<'static, Thing, P>,
    child: MemcgId,
}

/// When the owners of a dying group forward.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    SpliceFirst,
    /// As Linux had it: deletes go to the parent while objects are still the child's.
    PublishFirst,
}

impl<P: Platform> Machine<P> {
    fn new() -> &'static Self {
        Box::leak(Box::new(carved(|bump| Self {
            memcgs: memcgs(bump, 2),
            shrinkers: Shrinkers::build(bump, 1, 2).unwrap(),
            lists: ListLrus::build(bump, 1, 2, 1, 2).unwrap(),
        })))
    }

    fn view(&self) -> View<'_, P> {
        View {
            memcgs: &self.memcgs,
            shrinkers: &self.shrinkers,
            lists: &self.lists,
        }
    }

    fn remove(&self, group: MemcgId, order: Order) {
        let removal = self.memcgs.begin_removal(group, &IrqOff::new()).unwrap();
        self.memcgs.wait_for_charges();
        let forward = || {
            let owner = |slot| self.memcgs.current_owner(slot, NODE).unwrap();
            let [from, to] = [removal.child, removal.parent].map(owner);
            self.memcgs.owners().forward(from, to);
        };
        if order == Order::PublishFirst {
            forward();
        }
        self.view().reparent(&removal, &IrqOff::new());
        self.shrinkers.reparent(&self.memcgs, &removal);
        if order == Order::SpliceFirst {
            forward();
        }
        self.memcgs.wait_for_charges();
        self.memcgs.put_owners(removal.child);
        self.memcgs.finish_removal(removal, &IrqOff::new());
    }
}

impl<P: Platform> Scene<P> {
    fn new() -> &'static Self {
        let machine = Machine::<P>::new();
        let off = IrqOff::new();
        let child = machine
            .memcgs
            .create(MemcgId::ROOT, &off, |memcg| {
                machine.view().open(memcg, &off)
            })
            .unwrap();
        let shrinker = machine
            .shrinkers
            .register(&Nobody, ShrinkerConfig::default())
            .unwrap();
        let list = ListLru::new(machine.view(), Scope::Groups, Some(shrinker)).unwrap();
        Box::leak(Box::new(Self {
            machine,
            list,
            child,
        }))
    }

    fn add(&self, memcg: MemcgId) -> &'static Thing {
        let thing = thing();
        self.list.add(memcg, NODE, thing).unwrap();
        thing
    }

    /// At rest: `left` objects, all of them the root's, every count exact, and reclaim knows of them.
    fn assert_left(&self, left: u64) {
        let view = self.machine.view();
        view.recount().unwrap();
        assert_eq!(self.list.count(MemcgId::ROOT, NODE), left);
        assert_eq!(self.list.count_node(NODE), left);
        // The group is gone: its own owner slot is free unless an object names it.
        for (owner, forwards) in self.machine.memcgs.owners().in_use() {
            let others = self.machine.memcgs.owners().in_use();
            let named = others.filter(|&(_, to)| to == Some(owner)).count() as u64;
            let living = u64::from(forwards.is_none());
            assert_eq!(
                self.machine.memcgs.owners().references(owner),
                view.owned_by(owner) + named + living
            );
        }
        let marked = self.machine.shrinkers.is_marked(0, 0);
        assert!(marked || left == 0, "nobody would ask for them");
    }
}

/// One thread runs `action` while another ends the child group; then `left` objects must be the root's.
fn race<P: Platform>(
    order: Order,
    prepare: fn(&Scene<P>) -> Option<&'static Thing>,
    action: fn(&Scene<P>, Option<&'static Thing>) -> u64,
) {
    loom::model(move || {
        let scene = Scene::<P>::new();
        let object = prepare(scene);
        let thread = loom::thread::spawn(move || {
            run_as(1);
            action(scene, object)
        });
        scene.machine.remove(scene.child, order);
        let left = thread.join().unwrap();
        scene.assert_left(left);
    });
}

fn delete_races<P: Platform>(order: Order) {
    race::<P>(
        order,
        |scene| Some(scene.add(scene.child)),
        |scene, object| {
            let object = object.unwrap();
            let taken = scene.list.delete(object).expect("it is on the list");
            assert!(core::ptr::eq(taken, object));
            0
        },
    );
}

#[test]
fn an_object_deleted_while_its_group_ends_is_taken_off_the_list_that_has_it() {
    delete_races::<LoomHost>(Order::SpliceFirst);
}

/// B1: the order as it was merged in Linux.
#[test]
#[should_panic(expected = "")]
fn with_the_group_unpublished_before_its_lists_are_spliced_a_delete_takes_the_wrong_lock() {
    delete_races::<LoomHost>(Order::PublishFirst);
}

fn add_races<P: Platform>() {
    race::<P>(
        Order::SpliceFirst,
        |_| None,
        |scene, _| match scene.list.add(scene.child, NODE, thing()) {
            // B2: the group that has it, which is the root if the child's list was dead.
            Ok(group) => {
                assert!(group == scene.child || group == MemcgId::ROOT);
                1
            }
            Err(Refused(error, _)) => {
                assert_eq!(error, AddError::NoSuchGroup(scene.child));
                0
            }
        },
    );
}

#[test]
fn an_object_added_while_its_group_ends_is_the_parents_and_the_parents_bit_is_set() {
    add_races::<LoomHost>();
}

#[test]
#[should_panic(expected = "")]
fn a_list_that_is_not_marked_dead_takes_objects_that_nobody_inherits() {
    add_races::<NeverDead>();
}

#[test]
fn a_walk_while_its_group_ends_removes_each_object_once_or_leaves_it_to_the_parent() {
    race::<LoomHost>(
        Order::SpliceFirst,
        |scene| {
            scene.add(scene.child);
            Some(scene.add(scene.child))
        },
        |scene, _| {
            let mut first = true;
            let mut walk = |_: &Thing, _: Locked<'_>| {
                if core::mem::take(&mut first) {
                    Verdict::RemovedRetry
                } else {
                    Verdict::Removed
                }
            };
            let walked = scene.list.walk(scene.child, NODE, 9, &mut walk);
            assert!(matches!(walked.end, WalkEnd::Complete | WalkEnd::GroupGone));
            2 - walked.removed
        },
    );
}

#[test]
fn of_two_threads_that_delete_one_object_one_gets_it() {
    loom::model(|| {
        let scene = Scene::<LoomHost>::new();
        let object = scene.add(scene.child);
        let thread = loom::thread::spawn(move || {
            run_as(1);
            scene.list.delete(object).is_ok()
        });
        let here = scene.list.delete(object).is_ok();
        assert!(here != thread.join().unwrap());
        scene.machine.remove(scene.child, Order::SpliceFirst);
        scene.assert_left(0);
    });
}

#[test]
fn of_two_threads_that_add_one_object_one_does() {
    loom::model(|| {
        let scene = Scene::<LoomHost>::new();
        let object = thing();
        let thread = loom::thread::spawn(move || {
            run_as(1);
            scene.list.add(scene.child, NODE, object).is_ok()
        });
        let here = scene.list.add(MemcgId::ROOT, NODE, object).is_ok();
        assert!(here != thread.join().unwrap());
        scene.machine.remove(scene.child, Order::SpliceFirst);
        scene.assert_left(1);
    });
}

/// One thread deletes an object, while another moves it to the other group's list.
fn delete_races_with_a_move<P: Platform>() {
    /// The object, or `None` if it was on no list at that moment; never a link on another chain.
    fn delete<P: Platform>(scene: &Scene<P>, object: &Thing) -> Option<&'static Thing> {
        scene
            .list
            .delete(object)
            .map_err(|error| assert_eq!(error, DeleteError::NotListed))
            .ok()
    }
    loom::model(|| {
        let scene = Scene::<P>::new();
        let object = scene.add(scene.child);
        let thread = loom::thread::spawn(move || {
            run_as(1);
            delete(scene, object).is_some()
        });
        let moved =
            delete(scene, object).map(|object| scene.list.add(MemcgId::ROOT, NODE, object).is_ok());
        let other = thread.join().unwrap();
        assert!(moved == Some(true) || other);
        scene.machine.view().recount().unwrap();
        let listed = u64::from(object.link.is_listed());
        assert_eq!(listed, u64::from(!other));
        assert_eq!(scene.list.count_node(NODE), listed);
    });
}

#[test]
fn an_object_deleted_while_it_moves_is_taken_off_the_list_that_it_is_on() {
    delete_races_with_a_move::<LoomHost>();
}

#[test]
#[should_panic(expected = "")]
fn without_the_second_look_an_object_is_taken_off_a_list_that_it_is_not_on() {
    delete_races_with_a_move::<NoSecondLook>();
}

#[test]
#[should_panic(expected = "")]
fn without_the_parents_bit_nobody_asks_for_what_it_inherited() {
    let scene = || {
        let scene = Scene::<NoBit>::new();
        scene.add(scene.child);
        // The child's bit was cleared when it was counted as empty a moment before the object came.
        scene.machine.shrinkers.unmark(1, 0);
        scene.machine.remove(scene.child, Order::SpliceFirst);
        scene.assert_left(1);
    };
    loom::model(scene);
}
