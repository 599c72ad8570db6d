//! Random programs of charges, states, moves, limits and ends of groups against a naive model, on several CPUs and two nodes;
//! everything compared after each step.

#![allow(unsafe_code)]

#[path = "common/host.rs"]
pub(crate) mod host;
#[path = "common/kernel.rs"]
mod kernel;

use std::collections::BTreeMap;

use framekeeper::boot::{BootMap, Memory};
use framekeeper::memcg::{Event, Protection};
use framekeeper::mm::MoveError;
use framekeeper::report::{MemoryEvents, MemoryStat};
use framekeeper::{
    Backing, CpuId, Folio, MemcgId, Mm, MmConfig, NodeId, Order, PageState, PhysAddr, Refused,
    Request, StateChange,
};
use host::{Host, run_as};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create {
        parent: u8,
    },
    Remove {
        group: u8,
    },
    SetMax {
        group: u8,
        frames: Option<u16>,
    },
    Protect {
        group: u8,
        low: bool,
        frames: u16,
    },
    Charge {
        group: u8,
        order: u8,
        node: u8,
        forced: bool,
    },
    List {
        folio: u16,
        file: bool,
    },
    Account {
        folio: u16,
        state: u8,
        enter: bool,
    },
    Move {
        folio: u16,
        to: u8,
    },
    Free {
        folio: u16,
    },
    RunAs {
        cpu: u8,
    },
    DrainCpu {
        cpu: u8,
    },
    DrainLru,
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let (group, folio) = (any::<u8>(), any::<u16>());
    let frames = prop::option::weighted(0.8, 0u16..200);
    prop_oneof![
        3 => group.prop_map(|parent| Op::Create { parent }),
        2 => group.prop_map(|group| Op::Remove { group }),
        3 => (group, frames).prop_map(|(group, frames)| Op::SetMax { group, frames }),
        2 => (group, any::<bool>(), 0u16..200).prop_map(|(group, low, frames)| Op::Protect { group, low, frames }),
        20 => (group, 0u8..4, 0u8..2, prop::bool::weighted(0.1))
            .prop_map(|(group, order, node, forced)| Op::Charge { group, order, node, forced }),
        8 => (folio, any::<bool>()).prop_map(|(folio, file)| Op::List { folio, file }),
        20 => (folio, 0u8..7, any::<bool>()).prop_map(|(folio, state, enter)| Op::Account { folio, state, enter }),
        8 => (folio, group).prop_map(|(folio, to)| Op::Move { folio, to }),
        12 => folio.prop_map(|folio| Op::Free { folio }),
        6 => (0u8..4).prop_map(|cpu| Op::RunAs { cpu }),
        2 => (0u8..4).prop_map(|cpu| Op::DrainCpu { cpu }),
        2 => Just(Op::DrainLru),
    ]
}

struct Group {
    id: MemcgId,
    parent: Option<MemcgId>,
    max: u64,
    protected: [u64; 2],
    /// Charges that met this group's limit, here and below.
    refused: u64,
}

struct Page<'m> {
    folio: Folio<'m, Host>,
    group: MemcgId,
    frames: u64,
    node: u8,
    states: [bool; PageState::COUNT],
    listed: bool,
}

struct Model<'m> {
    groups: Vec<Group>,
    pages: Vec<Page<'m>>,
}

impl Model<'_> {
    fn pick(&self, group: u8) -> MemcgId {
        self.groups[usize::from(group) % self.groups.len()].id
    }

    fn group(&self, id: MemcgId) -> &Group {
        self.groups.iter().find(|group| group.id == id).unwrap()
    }

    fn group_mut(&mut self, id: MemcgId) -> &mut Group {
        self.groups.iter_mut().find(|group| group.id == id).unwrap()
    }

    /// A group and all above it.
    fn path(&self, id: MemcgId) -> Vec<MemcgId> {
        core::iter::successors(Some(id), |&at| self.group(at).parent).collect()
    }

    fn below(&self, id: MemcgId) -> impl Iterator<Item = &Page<'_>> {
        self.pages
            .iter()
            .filter(move |page| self.path(page.group).contains(&id))
    }

    fn usage(&self, id: MemcgId) -> u64 {
        self.below(id).map(|page| page.frames).sum()
    }

    /// The lowest group on the path, up to `end`, that has no room for `frames`.
    fn full(&self, from: MemcgId, end: Option<MemcgId>, frames: u64) -> Option<MemcgId> {
        let path = self.path(from).into_iter();
        path.take_while(|&at| Some(at) != end && at != MemcgId::ROOT)
            .find(|&at| self.usage(at) + frames > self.group(at).max)
    }

    fn refuse(&mut self, full: MemcgId) {
        for at in self.path(full) {
            self.group_mut(at).refused += 1;
        }
    }

    fn compare(&self, mm: &Mm<Host>) {
        mm.check().unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(mm.memcg_count() as usize, self.groups.len());
        for group in &self.groups {
            let id = group.id;
            let events = MemoryEvents::of(mm, id).unwrap();
            assert_eq!(events.count(Event::Max), group.refused);
            for node in 0..2 {
                let stat = MemoryStat::on_node(mm, id, NodeId(node)).unwrap();
                for state in PageState::ALL {
                    let here = self
                        .below(id)
                        .filter(|page| page.node == node && page.states[state.index()]);
                    let frames: u64 = here.map(|page| page.frames).sum();
                    assert_eq!(stat.state(state), frames, "{state:?} of {id} on {node}");
                }
            }
            if id == MemcgId::ROOT {
                continue;
            }
            assert_eq!(mm.memcg_usage(id), Ok(self.usage(id)));
            assert_eq!(mm.memcg_max(id), Ok(group.max));
            for (kind, protected) in [Protection::Min, Protection::Low]
                .into_iter()
                .zip(group.protected)
            {
                assert_eq!(mm.memcg_protection(id, kind), Ok(protected));
            }
            assert!(mm.memcg_peak(id).unwrap() >= self.usage(id));
        }
        for page in &self.pages {
            assert_eq!(page.folio.memcg(), Some(page.group));
        }
    }
}

fn machine() -> Mm<Host> {
    let mut map = BootMap::<8>::new();
    map.add(NodeId(0), PhysAddr(4096), 1500 << 12).unwrap();
    map.add(NodeId(1), PhysAddr(1 << 30), 1500 << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    let memory = unsafe { Memory::<Host, 8>::claim(&mut map) };
    let memory = memory.with_storage(host::storage(8 << 20));
    let mut config = MmConfig::new(3, 12).nodes(2);
    config.memcgs.owners = 13 * 2 + 4;
    Mm::new(memory, &config)
        .map_err(Refused::into_error)
        .unwrap()
}

pub(crate) fn run(ops: Vec<Op>) {
    let mm = machine();
    let mut model = Model {
        groups: vec![Group {
            id: MemcgId::ROOT,
            parent: None,
            max: u64::MAX,
            protected: [0; 2],
            refused: 0,
        }],
        pages: Vec::new(),
    };
    for op in ops {
        step(&mm, &mut model, &op);
        model.compare(&mm);
    }
    run_as(0);
    model.pages.clear();
    mm.drain_lru();
    model.compare(&mm);
    (0..3).for_each(|cpu| mm.drain_memcg_cpu(CpuId(cpu)));
    model.compare(&mm);
    let allocator = mm.allocator();
    assert_eq!(allocator.free_frames(), allocator.managed_frames());
}

fn step<'m>(mm: &'m Mm<Host>, model: &mut Model<'m>, op: &Op) {
    match *op {
        Op::Create { parent } => {
            let parent = model.pick(parent);
            match mm.create_memcg(parent) {
                Ok(id) => model.groups.push(Group {
                    id,
                    parent: Some(parent),
                    max: u64::MAX,
                    protected: [0; 2],
                    refused: 0,
                }),
                Err(error) => assert_eq!(model.groups.len(), 13, "{error}"),
            }
        }
        Op::Remove { group } => {
            let id = model.pick(group);
            let leaf = model.groups.iter().all(|group| group.parent != Some(id));
            let parent = model.group(id).parent.filter(|_| leaf);
            assert_eq!(mm.remove_memcg(id).is_ok(), parent.is_some());
            if let Some(parent) = parent {
                model.groups.retain(|group| group.id != id);
                let own = model.pages.iter_mut().filter(|page| page.group == id);
                own.for_each(|page| page.group = parent);
            }
        }
        Op::SetMax { group, frames } => {
            let id = model.pick(group);
            let frames = frames.map_or(u64::MAX, u64::from);
            let set = mm.set_memcg_max(id, frames);
            assert_eq!(set.is_ok(), id != MemcgId::ROOT);
            if set.is_ok() {
                model.group_mut(id).max = frames;
            }
        }
        Op::Protect { group, low, frames } => {
            let id = model.pick(group);
            let (kind, index) = if low {
                (Protection::Low, 1)
            } else {
                (Protection::Min, 0)
            };
            let frames = u64::from(frames);
            let parent = model.group(id).parent;
            let allowed = parent.is_some_and(|parent| {
                let room =
                    parent == MemcgId::ROOT || frames <= model.group(parent).protected[index];
                room && frames <= model.group(id).max
            });
            assert_eq!(mm.protect_memcg(id, kind, frames).is_ok(), allowed);
            if allowed {
                model.group_mut(id).protected[index] = frames;
            }
        }
        Op::Charge {
            group,
            order,
            node,
            forced,
        } => charge(mm, model, group, order, node, forced),
        Op::List { folio, file } => {
            if let Some(page) = page(model, folio) {
                let backing = if file { Backing::File } else { Backing::Anon };
                assert_eq!(page.folio.add_to_lru(backing).is_ok(), !page.listed);
                page.listed = true;
            }
        }
        Op::Account {
            folio,
            state,
            enter,
        } => {
            if let Some(page) = page(model, folio) {
                let change = if enter {
                    StateChange::Enter
                } else {
                    StateChange::Leave
                };
                let state = PageState::ALL[usize::from(state)];
                let before = std::mem::replace(&mut page.states[state.index()], enter);
                assert_eq!(page.folio.account(state, change), before != enter);
            }
        }
        Op::Move { folio, to } => move_page(mm, model, folio, to),
        Op::Free { folio } => {
            if !model.pages.is_empty() {
                let at = usize::from(folio) % model.pages.len();
                drop(model.pages.swap_remove(at));
                // A batch may hold it until now.
                mm.drain_lru();
            }
        }
        Op::RunAs { cpu } => run_as(u32::from(cpu)),
        Op::DrainCpu { cpu } => mm.drain_memcg_cpu(CpuId(u32::from(cpu))),
        Op::DrainLru => mm.drain_lru(),
    }
}

fn page<'a, 'm>(model: &'a mut Model<'m>, folio: u16) -> Option<&'a mut Page<'m>> {
    let count = model.pages.len().max(1);
    model.pages.get_mut(usize::from(folio) % count)
}

fn charge<'m>(
    mm: &'m Mm<Host>,
    model: &mut Model<'m>,
    group: u8,
    order: u8,
    node: u8,
    forced: bool,
) {
    let id = model.pick(group);
    let order = Order::new(order).unwrap();
    let request = Request::new(order).node(NodeId(node));
    let Ok(pages) = mm.try_alloc(request) else {
        return;
    };
    let node = pages.node().0;
    let full = model.full(id, None, order.frames());
    if let Some(full) = full {
        model.refuse(full);
    }
    let charged = if forced {
        pages.force_charge_to(mm, id)
    } else {
        pages.try_charge_to(mm, id)
    };
    assert_eq!(
        charged.is_ok(),
        forced || full.is_none(),
        "the limit, to the frame, whatever CPUs keep in stock"
    );
    if let Ok(folio) = charged {
        model.pages.push(Page {
            folio,
            group: id,
            frames: order.frames(),
            node,
            states: [false; PageState::COUNT],
            listed: false,
        });
    }
}

fn move_page(mm: &Mm<Host>, model: &mut Model<'_>, folio: u16, to: u8) {
    let to = model.pick(to);
    let Some(from) = page(model, folio).map(|page| page.group) else {
        return;
    };
    let frames = page(model, folio).map_or(0, |page| page.frames);
    let above: BTreeMap<_, _> = model.path(from).into_iter().map(|at| (at, ())).collect();
    let common = model.path(to).into_iter().find(|at| above.contains_key(at));
    let full = model.full(to, common, frames);
    let moving = mm.begin_move(from, to).unwrap();
    let page = page(model, folio).unwrap();
    let moved = moving.folio(&page.folio);
    assert_eq!(
        moved,
        full.map_or(Ok(()), |limited| Err(MoveError::Full {
            limited: Some(limited)
        }))
    );
    if moved.is_ok() {
        page.group = to;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn any_program_of_charges_states_and_moves_agrees_with_the_naive_model(ops in prop::collection::vec(op(), 1..200)) {
        run(ops);
    }
}
