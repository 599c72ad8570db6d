//! An interrupt at every point of a list's operations, and of a group's end: served, nothing lost.

#[path = "common/objects.rs"]
mod objects;
#[path = "common/stepper.rs"]
mod stepper;

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::sync::Arc;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::list_lru::{AddError, Scope, Verdict, WalkEnd};
use framekeeper::shrinker::{Count, Scan, Shrinker, Target};
use framekeeper::{
    Evict, Isolated, ListLru, MemcgId, Mm, MmConfig, NodeId, PhysAddr, Refused, ShrinkerConfig,
    Unmap, WriteOut,
};
use objects::{Collect, Thing};
use stepper::{Stepped, at_every_point};

/// What owns a listed object.
type Pointer = Arc<Thing>;

const NODE: NodeId = NodeId(0);

/// Keeps whom it was asked about.
struct Asked;

thread_local! {
    static TARGETS: RefCell<Vec<MemcgId>> = const { RefCell::new(Vec::new()) };
}

/// Nothing is ever on an LRU list here.
impl Evict for Stepped {
    fn referenced(_: &Isolated<'_, Self>) -> u32 {
        0
    }
    fn unmap(_: &Isolated<'_, Self>) -> Unmap {
        Unmap::Busy
    }
    fn write_out(_: &Isolated<'_, Self>) -> WriteOut {
        WriteOut::Busy
    }
    fn remap(_: &Isolated<'_, Self>) {}
}

impl Shrinker for Asked {
    fn count(&self, target: Target) -> Count {
        TARGETS.with_borrow_mut(|targets| targets.push(target.memcg));
        Count::Objects(0)
    }
    fn scan(&self, _: Target, _: u64) -> Scan {
        Scan::Stop
    }
}

/// A parent, its child, and objects on the child's list.
struct State {
    mm: &'static Mm<Stepped>,
    list: ListLru<'static, Thing, Stepped>,
    parent: MemcgId,
    child: MemcgId,
    objects: Vec<Pointer>,
    /// What interrupts did: objects added and taken off.
    added: Cell<u64>,
    taken: Cell<u64>,
    kept: RefCell<Vec<Pointer>>,
}

fn setup(objects: u64) -> State {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4096), 100 << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Stepped>::claim(&mut map) };
    let mut bytes = Vec::<MaybeUninit<u8>>::with_capacity(64 << 10);
    bytes.resize_with(64 << 10, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(bytes.leak()));
    let mut config = MmConfig::new(1, 5);
    config.alloc.pageset_slots = 64;
    config.list_lrus = 1;
    config.shrinkers = 1;
    let mm = Mm::new(memory, &config).map_err(|error| error.0).unwrap();
    let mm: &'static Mm<Stepped> = Box::leak(Box::new(mm));
    let shrinker = mm
        .register_shrinker(&Asked, ShrinkerConfig::default())
        .unwrap();
    let list = mm.list_lru(Scope::Groups, Some(shrinker)).unwrap();
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    let objects: Vec<_> = (0..objects).map(Thing::named).collect();
    for object in &objects {
        list.add(child, NODE, Arc::clone(object)).unwrap();
    }
    State {
        mm,
        list,
        parent,
        child,
        objects,
        added: Cell::new(0),
        taken: Cell::new(0),
        kept: RefCell::default(),
    }
}

impl State {
    /// Adds for the child, and answers whose list it came to.
    fn add(&self, name: u64) -> Option<MemcgId> {
        let thing = Thing::named(name);
        self.kept.borrow_mut().push(Arc::clone(&thing));
        match self.list.add(self.child, NODE, thing) {
            Ok(group) => {
                self.added.set(self.added.get() + 1);
                Some(group)
            }
            Err(Refused(error, _)) => {
                assert_eq!(error, AddError::NoSuchGroup(self.child));
                None
            }
        }
    }

    fn delete(&self, object: &Pointer) {
        assert_eq!(self.list.delete(object).as_ref(), Ok(object));
        self.taken.set(self.taken.get() + 1);
    }

    fn assert_exact(&self) {
        self.mm.check().unwrap_or_else(|fault| panic!("{fault}"));
        let made = self.objects.len() as u64 + self.added.get();
        assert_eq!(self.list.count_node(NODE), made - self.taken.get());
        for object in self.objects.iter().chain(&*self.kept.borrow()) {
            assert!(Arc::strong_count(object) <= 2);
        }
    }
}

/// B1, B2 and B22, step by step: whatever point the group's end has reached, an object of it is found on the list that has it, and a new
/// one goes to a group that will be looked at.
#[test]
fn an_interrupt_at_any_point_of_a_groups_end_adds_deletes_and_walks_as_before_or_at_the_parents() {
    let points = at_every_point(
        || setup(40),
        |state| state.mm.remove_memcg(state.child).unwrap(),
        |state| {
            let before = state.list.count_node(NODE);
            state.delete(&state.objects[20]);
            state.delete(&state.objects[0]);
            match state.add(100) {
                Some(group) => {
                    assert!(group == state.child || group == state.parent);
                    assert_eq!(state.list.count_node(NODE), before - 1);
                }
                None => assert_eq!(state.list.count_node(NODE), before - 2),
            }
            let mut walk = Collect::new(|thing: &Thing| {
                if thing.name == 5 {
                    Verdict::Removed
                } else {
                    Verdict::Skip
                }
            });
            let walked = state.list.walk(state.child, NODE, u64::MAX, &mut walk);
            assert!(matches!(walked.end, WalkEnd::Complete | WalkEnd::GroupGone));
            state.taken.set(state.taken.get() + walked.removed);
        },
        |state| {
            state.assert_exact();
            assert_eq!(state.list.count(state.child, NODE), 0);
            let left = state.list.count_node(NODE);
            assert_eq!(state.list.count(state.parent, NODE), left);
        },
    );
    assert!(points > 10, "{points}");
}

/// B2: with the bit set on the dying group that was named, nobody would ask for the object.
#[test]
fn an_object_added_for_a_dying_group_is_asked_for_at_the_group_that_has_it() {
    let points = at_every_point(
        || setup(0),
        |state| state.mm.remove_memcg(state.child).unwrap(),
        |state| {
            state.add(100);
        },
        |state| {
            state.assert_exact();
            TARGETS.take();
            assert_eq!(state.mm.shrink_objects(state.parent, NODE, 0), Ok(0));
            let asked = TARGETS.take();
            let left = state.list.count(state.parent, NODE);
            assert!(left == 0 || asked == [state.parent], "{left} {asked:?}");
        },
    );
    assert!(points > 10, "{points}");
}

#[test]
fn an_interrupt_at_any_point_of_a_lists_operations_uses_the_same_list() {
    let points = at_every_point(
        || setup(80),
        |state| {
            state.add(200);
            state.delete(&state.objects[1]);
            // Two pauses, in which the interrupt takes the neighbours of the walk's place.
            let mut walk = Collect::new(|thing: &Thing| match thing.name % 8 {
                7 => Verdict::Removed,
                6 => Verdict::Rotate,
                _ => Verdict::Skip,
            });
            let walked = state.list.walk(state.child, NODE, 90, &mut walk);
            state.taken.set(state.taken.get() + walked.removed);
            let oldest = state
                .list
                .isolate(state.child, NODE)
                .expect("many are left");
            assert_eq!(oldest.name, 0);
            state.taken.set(state.taken.get() + 1);
        },
        |state| {
            for near in [32, 33, 34, 64, 65, 66] {
                state.delete(&state.objects[near]);
            }
            state.add(300);
            // Not what the operations above are about: the newest of all.
            assert!(state.list.count(state.child, NODE) > 8);
        },
        State::assert_exact,
    );
    assert!(points > 10, "{points}");
}
