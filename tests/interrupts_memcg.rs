//! An interrupt at every point of a group's beginning and end: it sees the group, its parent, or nothing; never another in its place.

#[path = "common/objects.rs"]
mod objects;
#[path = "common/stepper.rs"]
mod stepper;

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::sync::Arc;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::list_lru::{AddError, Scope};
use framekeeper::{
    Backing, Evict, Evicted, Folio, Isolated, ListLru, MemcgId, Mm, MmConfig, NodeId, Order,
    PageState, PhysAddr, Refault, Refused, Request, Shadow, StateChange, Unmap, WriteOut,
};
use objects::Thing;
use stepper::{Stepped, at_every_point, remotely_at_every_point};

/// What owns a listed object.
type Pointer = Arc<Thing>;

const NODE: NodeId = NodeId(0);

thread_local! {
    static SHADOW: Cell<Option<Shadow>> = const { Cell::new(None) };
}

/// Everything can be evicted, and its shadow is kept.
impl Evict for Stepped {
    fn referenced(_: &Isolated<'_, Self>) -> u32 {
        0
    }
    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        if folio.clear_word_bits(1) & 1 != 0 {
            // SAFETY: `evicted_shadow` gave the number out, and its bit was set until now.
            #[allow(unsafe_code)]
            drop(unsafe { folio.mm().folio_from_raw(folio.pfn()) });
        }
        Unmap::Done
    }
    fn write_out(_: &Isolated<'_, Self>) -> WriteOut {
        WriteOut::Done
    }
    fn remap(_: &Isolated<'_, Self>) {}
    fn evicted(_: &Mm<Self>, gone: &Evicted) {
        SHADOW.set(Some(gone.shadow));
    }
}

struct State {
    mm: &'static Mm<Stepped>,
    parent: MemcgId,
    /// A group that ends, or one that is to be.
    child: MemcgId,
    folio: Folio<'static, Stepped>,
    list: ListLru<'static, Thing, Stepped>,
    added: RefCell<Vec<Pointer>>,
}

/// A machine with a parent, a child, and a folio of the child's that is mapped.
fn setup() -> State {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4096), 100 << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Stepped>::claim(&mut map) };
    let mut bytes = Vec::<MaybeUninit<u8>>::with_capacity(64 << 10);
    bytes.resize_with(64 << 10, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(bytes.leak()));
    let mut config = MmConfig::new(1, 3);
    config.alloc.pageset_slots = 64;
    config.list_lrus = 1;
    let mm = Mm::new(memory, &config).map_err(|error| error.0).unwrap();
    let mm: &'static Mm<Stepped> = Box::leak(Box::new(mm));
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    let folio = folio(mm, child);
    folio.account(PageState::MAPPED, StateChange::Enter);
    State {
        mm,
        parent,
        child,
        folio,
        list: mm.list_lru(Scope::Groups, None).unwrap(),
        added: RefCell::default(),
    }
}

fn folio(mm: &'static Mm<Stepped>, memcg: MemcgId) -> Folio<'static, Stepped> {
    let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
    let charged = pages.try_charge_to(mm, memcg);
    charged.map_err(Refused::into_error).unwrap()
}

/// What a folio of the group's leaves when it is evicted.
fn evicted_shadow(mm: &'static Mm<Stepped>, memcg: MemcgId) -> Shadow {
    let victim = folio(mm, memcg);
    victim.add_to_lru(Backing::File).unwrap();
    victim.set_word_bits(1);
    let _mapped = victim.into_raw();
    mm.drain_lru();
    SHADOW.set(None);
    assert_eq!(mm.shrink_memcg(memcg, 1).unwrap().freed, 1);
    SHADOW.take().expect("one folio was evicted")
}

/// B17: a recycled id was visible before its group was attached, and a refault went through it.
#[test]
fn a_refault_into_a_group_that_is_being_made_is_old_until_the_group_is_there() {
    // Every machine is alike: the first says what the id, and the shadows, of the next group will be.
    let (next, shadow) = {
        let state = setup();
        state.mm.remove_memcg(state.child).unwrap();
        let next = state.mm.create_memcg(state.parent).unwrap();
        // Company on the list, so that the refault could be recent at all.
        let company = folio(state.mm, next);
        company.add_to_lru(Backing::File).unwrap();
        company.activate();
        (next, evicted_shadow(state.mm, next).into_raw())
    };
    let shadow = Shadow::from_raw(shadow).unwrap();
    let points = remotely_at_every_point(
        1,
        || {
            let state = setup();
            state.mm.remove_memcg(state.child).unwrap();
            state
        },
        |state| assert_eq!(state.mm.create_memcg(state.parent), Ok(next)),
        move |state| {
            let back = folio(state.mm, state.parent);
            let found = back.add_refaulted(Backing::File, shadow).unwrap();
            let there = state.mm.memcg_usage(next).is_ok();
            assert!(there || found == Refault::Old, "{found:?}");
        },
        |state| {
            state.mm.drain_lru();
            state.mm.check().unwrap();
        },
    );
    assert!(points > 4, "{points}");
}

/// B29: an owner was read outside a grace period, and answered for a group that was gone. Here another CPU reads it at every
/// point, also under locks, until a new group has the place.
#[test]
fn the_owner_of_a_folio_is_its_group_or_the_heir_at_every_point_of_the_end_and_of_the_next_beginning()
 {
    let points = remotely_at_every_point(
        1,
        setup,
        |state| {
            state.mm.remove_memcg(state.child).unwrap();
            let next = state.mm.create_memcg(state.parent).unwrap();
            assert_ne!(state.folio.memcg(), Some(next));
        },
        |state| {
            let found = state.folio.memcg().expect("it is charged");
            assert!(found == state.child || found == state.parent, "{found}");
            // The same for a count that changes at this moment: it is the parent's in the end.
            state.folio.account(PageState::DIRTY, StateChange::Enter);
        },
        |state| {
            assert_eq!(state.folio.memcg(), Some(state.parent));
            state.mm.check().unwrap();
        },
    );
    assert!(points > 20, "{points}");
}

/// B22: a list was asked to add for a group that was freed between the look at an object's owner and the lock.
#[test]
fn an_object_added_for_a_group_read_before_its_end_is_the_groups_the_parents_or_refused() {
    let points = at_every_point(
        setup,
        |state| {
            let owner = state.folio.memcg().unwrap();
            state.mm.remove_memcg(state.child).unwrap();
            let next = state.mm.create_memcg(state.parent).unwrap();
            // Read before, added after: the place is another group's by now.
            let late = state.list.add(owner, NODE, Thing::named(0));
            assert_eq!(late.map_err(|e| e.0), Err(AddError::NoSuchGroup(owner)));
            assert_eq!(state.list.count(next, NODE), 0);
        },
        |state| {
            let thing = Thing::named(1);
            let owner = state.child;
            match state.list.add(owner, NODE, Arc::clone(&thing)) {
                Ok(group) => {
                    assert!(group == state.child || group == state.parent);
                    state.added.borrow_mut().push(thing);
                }
                Err(refused) => assert_eq!(refused.0, AddError::NoSuchGroup(owner)),
            }
        },
        |state| {
            let added = state.added.borrow().len() as u64;
            assert_eq!(state.list.count(state.parent, NODE), added);
            assert_eq!(state.list.count_node(NODE), added);
            state.mm.check().unwrap();
        },
    );
    assert!(points > 10, "{points}");
}
