//! Random programs of groups and objects against lists that are plain vectors, everything compared after each step.

#[path = "common/host.rs"]
pub(crate) mod host;
#[path = "common/kernel.rs"]
mod kernel;
#[path = "common/objects.rs"]
mod objects;

use std::collections::BTreeMap;
use std::sync::Arc;

use framekeeper::list_lru::{AddError, DeleteError, Scope, Verdict, WalkEnd};
use framekeeper::{ListLru, MemcgId, Mm, MmConfig, NodeId};
use host::Host;
use objects::{Collect, Thing};
use proptest::prelude::*;

/// What owns a listed object.
type Pointer = Arc<Thing>;

const NODES: u8 = 2;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create {
        parent: u8,
    },
    Remove {
        group: u8,
    },
    Add {
        group: u8,
        node: u8,
        count: u8,
    },
    AddAgain {
        group: u8,
        object: u16,
    },
    AddToDead,
    Delete {
        object: u16,
    },
    Isolate {
        group: u8,
        node: u8,
    },
    Walk {
        group: u8,
        node: u8,
        budget: u8,
        seed: u8,
    },
    WalkGroup {
        group: u8,
        budget: u8,
    },
    WalkNode {
        node: u8,
        budget: u8,
    },
    Replace,
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let (group, node, object) = (any::<u8>(), 0..NODES, any::<u16>());
    prop_oneof![
        3 => group.prop_map(|parent| Op::Create { parent }),
        2 => group.prop_map(|group| Op::Remove { group }),
        8 => (group, node.clone(), 1u8..50).prop_map(|(group, node, count)| Op::Add { group, node, count }),
        2 => (group, object).prop_map(|(group, object)| Op::AddAgain { group, object }),
        1 => Just(Op::AddToDead),
        6 => object.prop_map(|object| Op::Delete { object }),
        3 => (group, node.clone()).prop_map(|(group, node)| Op::Isolate { group, node }),
        8 => (group, node.clone(), any::<u8>(), any::<u8>())
            .prop_map(|(group, node, budget, seed)| Op::Walk { group, node, budget, seed }),
        1 => (group, any::<u8>()).prop_map(|(group, budget)| Op::WalkGroup { group, budget }),
        1 => (node, any::<u8>()).prop_map(|(node, budget)| Op::WalkNode { node, budget }),
        1 => Just(Op::Replace),
    ]
}

/// What a walk answers at its nth visit.
fn verdict(name: u64, nth: usize, seed: u8) -> Verdict {
    match (name + nth as u64 + u64::from(seed)) % 16 {
        0..3 => Verdict::Removed,
        3 => Verdict::RemovedRetry,
        4..7 => Verdict::Rotate,
        7 => Verdict::Retry,
        8 if seed.is_multiple_of(4) => Verdict::Stop,
        _ => Verdict::Skip,
    }
}

/// What a reader would expect, written the plain way.
#[derive(Default)]
struct Model {
    /// Parent of each living group, in order of creation; the root has none.
    groups: Vec<(MemcgId, Option<MemcgId>)>,
    dead: Option<MemcgId>,
    lists: BTreeMap<(MemcgId, u8), Vec<u64>>,
    /// All objects that were made and not taken off, by name.
    things: BTreeMap<u64, Pointer>,
    made: u64,
}

impl Model {
    fn group(&self, pick: u8) -> MemcgId {
        self.groups[usize::from(pick) % self.groups.len()].0
    }

    fn thing(&self, pick: u16) -> Option<&Pointer> {
        let nth = usize::from(pick) % self.things.len().max(1);
        self.things.values().nth(nth)
    }

    fn list(&mut self, group: MemcgId, node: u8) -> &mut Vec<u64> {
        self.lists.entry((group, node)).or_default()
    }

    /// The walk as its documentation has it, without holds and markers: what is visited, what is removed, and the end.
    fn walk(
        &mut self,
        group: MemcgId,
        node: u8,
        budget: u64,
        seed: u8,
    ) -> (Vec<u64>, Vec<u64>, WalkEnd) {
        let list = self.list(group, node);
        let (mut visited, mut removed, mut at) = (Vec::new(), Vec::new(), 0);
        while at < list.len() {
            if visited.len() as u64 == budget {
                return (visited, removed, WalkEnd::Budget);
            }
            let (name, last) = (list[at], at + 1 == list.len());
            let answer = verdict(name, visited.len(), seed);
            visited.push(name);
            match answer {
                Verdict::Removed | Verdict::RemovedRetry => {
                    removed.push(list.remove(at));
                    if answer == Verdict::RemovedRetry {
                        at = 0;
                    }
                }
                Verdict::Rotate => {
                    list.remove(at);
                    list.push(name);
                    if last {
                        break;
                    }
                }
                Verdict::Skip => at += 1,
                Verdict::Retry => at = 0,
                Verdict::Stop => return (visited, removed, WalkEnd::Stopped),
            }
        }
        (visited, removed, WalkEnd::Complete)
    }

    fn compare(&self, mm: &Mm<Host>, list: &ListLru<'_, Thing, Host>) {
        mm.check().unwrap_or_else(|fault| panic!("{fault}"));
        for node in 0..NODES {
            let mut total = 0;
            for &(group, _) in &self.groups {
                let expected = self.lists.get(&(group, node));
                let expected = expected.map_or(&[][..], |names| &names[..]);
                total += expected.len() as u64;
                assert_eq!(list.count(group, NodeId(node)), expected.len() as u64);
                let mut look = Collect::new(|_: &Thing| Verdict::Skip);
                let _ = list.walk(group, NodeId(node), u64::MAX, &mut look);
                assert_eq!(look.visited, expected);
            }
            assert_eq!(list.count_node(NodeId(node)), total);
        }
        for thing in self.things.values() {
            assert_eq!(Arc::strong_count(thing), 2, "the list's and the model's");
        }
    }
}

pub(crate) fn run(ops: &[Op]) {
    let mm = kernel::build(100, &MmConfig::new(2, 12).nodes(u32::from(NODES)));
    let mut list = Some(mm.list_lru(Scope::Groups, None).expect("configured"));
    let mut model = Model {
        groups: vec![(MemcgId::ROOT, None)],
        ..Model::default()
    };
    for op in ops {
        step(&mm, &mut list, &mut model, op);
        model.compare(&mm, list.as_ref().expect("replaced at once"));
    }
    drop(list);
    for thing in model.things.values() {
        assert_eq!(Arc::strong_count(thing), 1, "the list dropped its own");
    }
    mm.check().unwrap();
}

fn step<'m>(
    mm: &'m Mm<Host>,
    handle: &mut Option<ListLru<'m, Thing, Host>>,
    model: &mut Model,
    op: &Op,
) {
    let list = handle.as_ref().expect("replaced at once");
    match *op {
        Op::Create { parent } => {
            let parent = model.group(parent);
            // Dead groups' objects hold owner slots until a walk finds them; every step walks.
            if let Ok(id) = mm.create_memcg(parent) {
                model.groups.push((id, Some(parent)));
            } else {
                assert_eq!(model.groups.len(), 13);
            }
        }
        Op::Remove { group } => {
            let id = model.group(group);
            let parent = model
                .groups
                .iter()
                .find(|(other, _)| *other == id)
                .unwrap()
                .1;
            let has_children = model.groups.iter().any(|(_, parent)| *parent == Some(id));
            let removed = mm.remove_memcg(id).is_ok();
            assert_eq!(removed, parent.is_some() && !has_children);
            if let Some(parent) = parent.filter(|_| removed) {
                model.groups.retain(|(other, _)| *other != id);
                for node in 0..NODES {
                    let mut names = model.lists.remove(&(id, node)).unwrap_or_default();
                    names.append(model.list(parent, node));
                    *model.list(parent, node) = names;
                }
                model.dead = Some(id);
            }
        }
        Op::Add { group, node, count } => {
            let id = model.group(group);
            for _ in 0..count {
                let name = model.made;
                let thing = Thing::named(name);
                assert_eq!(list.add(id, NodeId(node), Arc::clone(&thing)), Ok(id));
                model.list(id, node).push(name);
                model.things.insert(name, thing);
                model.made += 1;
            }
        }
        Op::AddAgain { group, object } => {
            if let Some(thing) = model.thing(object) {
                let again = list.add(model.group(group), NodeId(0), Arc::clone(thing));
                assert_eq!(again.unwrap_err().0, AddError::Listed);
            }
        }
        Op::AddToDead => {
            if let Some(dead) = model.dead {
                let refused = list.add(dead, NodeId(0), Thing::named(0)).unwrap_err();
                assert_eq!(refused.0, AddError::NoSuchGroup(dead));
                assert_eq!(list.count(dead, NodeId(0)), 0);
            }
        }
        Op::Delete { object } => {
            if let Some(thing) = model.thing(object).cloned() {
                assert_eq!(list.delete(&thing).as_ref(), Ok(&thing));
                assert_eq!(list.delete(&thing), Err(DeleteError::NotListed));
                model.things.remove(&thing.name);
                for names in model.lists.values_mut() {
                    names.retain(|name| *name != thing.name);
                }
            }
        }
        Op::Isolate { group, node } => {
            let id = model.group(group);
            let oldest = list.isolate(id, NodeId(node)).map(|thing| thing.name);
            let names = model.list(id, node);
            let expected = (!names.is_empty()).then(|| names.remove(0));
            assert_eq!(oldest, expected);
            oldest.map(|name| model.things.remove(&name));
        }
        Op::Walk {
            group,
            node,
            budget,
            seed,
        } => {
            let (id, budget) = (model.group(group), u64::from(budget));
            let mut nth = 0;
            let mut walk = Collect::new(|thing: &Thing| {
                nth += 1;
                verdict(thing.name, nth - 1, seed)
            });
            let walked = list.walk(id, NodeId(node), budget, &mut walk);
            let (visited, removed, end) = model.walk(id, node, budget, seed);
            assert_eq!((walked.visited, walked.end), (visited.len() as u64, end));
            assert_eq!(walk.visited, visited);
            assert_eq!(walk.removed_names(), removed);
            assert_eq!(walked.removed, removed.len() as u64);
            for name in removed {
                model.things.remove(&name);
            }
        }
        Op::WalkGroup { group, budget } => {
            let id = model.group(group);
            let mut look = Collect::new(|_: &Thing| Verdict::Skip);
            let walked = list.walk_group(id, u64::from(budget), &mut look);
            let all =
                (0..NODES).flat_map(|node| model.lists.get(&(id, node)).into_iter().flatten());
            let expected: Vec<_> = all.copied().take(usize::from(budget)).collect();
            assert_eq!(look.visited, expected);
            assert_eq!(walked.visited, expected.len() as u64);
        }
        Op::WalkNode { node, budget } => {
            let mut look = Collect::new(|_: &Thing| Verdict::Skip);
            let walked = list.walk_node(NodeId(node), u64::from(budget), &mut look);
            let all: u64 = list.count_node(NodeId(node));
            assert_eq!(walked.visited, all.min(u64::from(budget)));
            look.visited.sort_unstable();
            look.visited.dedup();
            assert_eq!(look.visited.len() as u64, walked.visited, "each once");
        }
        Op::Replace => {
            // A list that is dropped with what is on it, and another in its place.
            drop(handle.take());
            for thing in std::mem::take(&mut model.things).into_values() {
                assert_eq!(Arc::strong_count(&thing), 1);
            }
            model.lists.clear();
            *handle = Some(mm.list_lru(Scope::Groups, None).expect("its place is free"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_program_of_groups_and_objects_agrees_with_plain_vectors(ops in prop::collection::vec(op(), 1..120)) {
        run(&ops);
    }
}
