//! Nodes that hold nothing but shadows: kept by group, up to a number that follows the group's memory.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;
#[path = "common/objects.rs"]
mod objects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use framekeeper::{
    Backing, MemcgId, Mm, NodeId, Pfn, ShadowIndex, ShadowNodes, ShrinkerId, TakenOut,
};
use host::Host;
use objects::Thing;

const NODE: NodeId = NodeId(0);

/// What owns a listed object.
type Pointer = Arc<Thing>;
type Nodes = ShadowNodes<Index, Host>;

/// Answers by a node's name: every tenth is in use again.
#[derive(Default)]
struct Index {
    /// Calls that find it locked.
    locked: AtomicU64,
    asked: AtomicU64,
    freed: AtomicU64,
}

impl ShadowIndex for Index {
    type Node = Thing;
    fn take_out(&self, node: &Thing) -> TakenOut {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.locked.load(Ordering::Relaxed) > 0 {
            self.locked.fetch_sub(1, Ordering::Relaxed);
            return TakenOut::Busy;
        }
        if node.name % 10 == 9 {
            TakenOut::InUse
        } else {
            TakenOut::Done
        }
    }
    fn free(&self, node: Pointer) {
        assert_eq!(host::locks_held(), 0);
        drop(node);
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

fn machine() -> (&'static Mm<Host>, &'static Nodes, ShrinkerId) {
    let mm: &'static Mm<Host> = Box::leak(Box::new(kernel::machine(4000, 1, 8)));
    let nodes = mm.shadow_nodes(Index::default()).expect("configured");
    let nodes: &'static Nodes = Box::leak(Box::new(nodes));
    (mm, nodes, nodes.register().expect("configured"))
}

fn fill(nodes: &Nodes, memcg: MemcgId, count: u64) {
    for name in 0..count {
        let added = nodes.list().add(memcg, NODE, Thing::named(name));
        assert_eq!(added, Ok(memcg));
    }
}

fn pages(mm: &'static Mm<Host>, memcg: MemcgId, count: u64) -> Vec<Pfn> {
    let pages = (0..count).map(|_| kernel::fault(mm, memcg, Backing::File).unwrap());
    let pages = pages.collect();
    mm.drain_lru();
    pages
}

fn shrink(mm: &Mm<Host>, memcg: MemcgId) -> u64 {
    (0..100)
        .map(|_| mm.shrink_objects(memcg, NODE, 0).unwrap())
        .sum()
}

#[test]
fn a_group_keeps_a_node_for_each_eight_frames_that_it_has() {
    let (mm, nodes, id) = machine();
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let held = pages(mm, group, 800);
    let bytes = mm.try_charge_bytes(group, NODE, 80 * 4096).unwrap();
    assert_eq!(mm.shadow_node_limit(group, NODE), 110);
    fill(nodes, group, 100);
    assert_eq!(shrink(mm, group), 0, "there is room");
    assert_eq!(nodes.index().asked.load(Ordering::Relaxed), 0);
    fill(nodes, group, 1000);
    let freed = shrink(mm, group);
    // What is too much goes down by halves, in batches of 128 or what is left.
    let left = nodes.list().count(group, NODE);
    assert_eq!(freed + left, 1100);
    assert!((110..=111).contains(&left), "{left}");
    assert_eq!(nodes.index().freed.load(Ordering::Relaxed), freed);
    // The group's memory falls, and with it the limit.
    held.into_iter().for_each(|pfn| kernel::unmap(mm, pfn));
    drop(bytes);
    mm.drain_lru();
    assert_eq!(mm.shadow_node_limit(group, NODE), 0);
    shrink(mm, group);
    let left = nodes.list().count(group, NODE);
    assert!(left < 111, "{left}");
    // Its end makes them the root's, whose limit is the machine's.
    mm.remove_memcg(group).unwrap();
    assert_eq!(nodes.list().count(MemcgId::ROOT, NODE), left);
    let managed = mm.allocator().managed_frames();
    assert_eq!(mm.shadow_node_limit(MemcgId::ROOT, NODE), managed / 8);
    assert_eq!(shrink(mm, MemcgId::ROOT), 0);
    for stale in [(group, NODE), (MemcgId::ROOT, NodeId(1))] {
        assert_eq!(mm.shadow_node_limit(stale.0, stale.1), 0);
    }
    mm.unregister_shrinker(id).unwrap();
    mm.check().unwrap();
}

/// misuse 45: an index that is always locked, or all of whose nodes are in use again.
#[test]
fn an_index_that_gives_nothing_is_asked_a_bounded_number_of_times() {
    let (mm, nodes, _) = machine();
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    fill(nodes, group, 1000);
    nodes.index().locked.store(u64::MAX / 2, Ordering::Relaxed);
    assert_eq!(mm.shrink_objects(group, NODE, 0), Ok(0));
    let asked = nodes.index().asked.load(Ordering::Relaxed);
    assert!((1..=1024).contains(&asked), "{asked}");
    assert_eq!(nodes.list().count(group, NODE), 1000);
    // Free again, and reclaim of the group finds the nodes by its bit.
    nodes.index().locked.store(0, Ordering::Relaxed);
    let held = pages(mm, group, 20);
    let reclaimed = mm.shrink_memcg(group, 20).unwrap();
    assert!(reclaimed.objects > 0, "{reclaimed:?}");
    drop(held);
}

#[test]
fn nodes_that_were_listed_before_the_shrinker_came_are_found_too() {
    let mm: &'static Mm<Host> = Box::leak(Box::new(kernel::machine(4000, 1, 8)));
    let nodes: &'static Nodes = Box::leak(Box::new(mm.shadow_nodes(Index::default()).unwrap()));
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    fill(nodes, group, 500);
    assert_eq!(shrink(mm, group), 0, "nobody asks yet");
    nodes.register().unwrap();
    assert!(shrink(mm, group) > 300);
}
