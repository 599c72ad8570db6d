//! Random programs of folios and groups against a naive model, everything compared after each step.

#[path = "common/host.rs"]
pub(crate) mod host;
#[path = "common/kernel.rs"]
mod kernel;

use std::collections::{BTreeMap, BTreeSet};

use framekeeper::{Backing, Folio, MemcgId, Mm, Order, Pfn, Refault, Refused, Request};
use host::Host;
use kernel::{ACCESSED, EVICTED, MOVED, fault, machine};
use proptest::prelude::*;

const FRAMES: u64 = 700;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create { parent: u8 },
    Remove { group: u8 },
    SetMax { group: u8, frames: u16 },
    Fault { group: u8, file: bool },
    Touch { page: u16 },
    MarkAccessed { page: u16 },
    Isolate { page: u16 },
    Move { page: u16, kind: u8 },
    Mlock { page: u16 },
    Munlock { page: u16 },
    Large { group: u8, order: u8 },
    Split { to: u8 },
    Refault { group: u8 },
    BatchesOff,
    RunAs { cpu: u8 },
    Compact,
    Unmap { page: u16 },
    Shrink { group: u8, target: u8 },
    Reclaim { target: u8 },
    DrainLru,
    DrainPagesets,
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let (group, page) = (any::<u8>(), any::<u16>());
    prop_oneof![
        2 => group.prop_map(|parent| Op::Create { parent }),
        1 => group.prop_map(|group| Op::Remove { group }),
        2 => (group, 0u16..300).prop_map(|(group, frames)| Op::SetMax { group, frames }),
        30 => (group, any::<bool>()).prop_map(|(group, file)| Op::Fault { group, file }),
        8 => page.prop_map(|page| Op::Touch { page }),
        8 => page.prop_map(|page| Op::MarkAccessed { page }),
        3 => page.prop_map(|page| Op::Isolate { page }),
        8 => (page, 0u8..6).prop_map(|(page, kind)| Op::Move { page, kind }),
        3 => page.prop_map(|page| Op::Mlock { page }),
        4 => page.prop_map(|page| Op::Munlock { page }),
        2 => (group, 1u8..5).prop_map(|(group, order)| Op::Large { group, order }),
        2 => (0u8..4).prop_map(|to| Op::Split { to }),
        2 => group.prop_map(|group| Op::Refault { group }),
        1 => Just(Op::BatchesOff),
        2 => (0u8..3).prop_map(|cpu| Op::RunAs { cpu }),
        1 => Just(Op::Compact),
        8 => page.prop_map(|page| Op::Unmap { page }),
        3 => (group, 1u8..64).prop_map(|(group, target)| Op::Shrink { group, target }),
        1 => (1u8..64).prop_map(|target| Op::Reclaim { target }),
        2 => Just(Op::DrainLru),
        1 => Just(Op::DrainPagesets),
    ]
}

/// What a reader would expect, written the plain way.
struct Model {
    /// Parent of each living group, in order of creation; the root has none.
    groups: Vec<(MemcgId, Option<MemcgId>)>,
    max: BTreeMap<MemcgId, u64>,
    /// Group and backing of each mapped page.
    pages: BTreeMap<Pfn, (MemcgId, Backing)>,
    /// How often each is locked at least, as far as reclaim may not take it.
    locked: BTreeSet<Pfn>,
}

/// What the test holds itself: large folios, unmapped.
type Held<'m> = Vec<Folio<'m, Host>>;

impl Model {
    fn new() -> Self {
        Self {
            groups: vec![(MemcgId::ROOT, None)],
            max: BTreeMap::new(),
            pages: BTreeMap::new(),
            locked: BTreeSet::new(),
        }
    }

    fn group(&self, pick: u8) -> MemcgId {
        self.groups[usize::from(pick) % self.groups.len()].0
    }

    fn page(&self, pick: u16) -> Option<Pfn> {
        self.pages
            .keys()
            .nth(usize::from(pick) % self.pages.len().max(1))
            .copied()
    }

    fn parent(&self, group: MemcgId) -> Option<MemcgId> {
        self.groups.iter().find(|(id, _)| *id == group)?.1
    }

    fn is_below(&self, group: MemcgId, ancestor: MemcgId) -> bool {
        let mut at = Some(group);
        while let Some(id) = at {
            if id == ancestor {
                return true;
            }
            at = self.parent(id);
        }
        false
    }

    fn usage(&self, group: MemcgId, held: &Held<'_>) -> u64 {
        let pages = self
            .pages
            .values()
            .filter(|(owner, _)| self.is_below(*owner, group))
            .count() as u64;
        let held = held.iter().filter(|folio| {
            let owner = folio.memcg().expect("charged");
            self.is_below(owner, group)
        });
        pages + held.map(|folio| folio.order().frames()).sum::<u64>()
    }

    /// Takes out the pages that reclaim took, which must all lie below `limit`.
    fn forget_reclaimed(&mut self, mm: &Mm<Host>, limits: impl Fn(&Self, MemcgId) -> bool) -> u64 {
        let gone: Vec<_> = self
            .pages
            .keys()
            .copied()
            .filter(|&pfn| mm.try_get(pfn).is_none())
            .collect();
        for pfn in &gone {
            let (group, _) = self.pages[pfn];
            assert!(!self.locked.contains(pfn), "page {pfn} was locked");
            assert!(
                limits(self, group),
                "page {pfn} of {group} was reclaimed for others"
            );
            self.pages.remove(pfn);
        }
        gone.len() as u64
    }

    fn compare(&self, mm: &Mm<Host>, held: &Held<'_>) {
        mm.check().unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(mm.memcg_count() as usize, self.groups.len());
        for (id, _) in &self.groups[1..] {
            assert_eq!(mm.memcg_usage(*id), Ok(self.usage(*id, held)));
            assert_eq!(
                mm.memcg_max(*id),
                Ok(self.max.get(id).copied().unwrap_or(u64::MAX))
            );
        }
        for (&pfn, &(group, backing)) in &self.pages {
            let folio = mm.try_get(pfn).expect("mapped pages stay");
            assert_eq!((folio.memcg(), folio.backing()), (Some(group), backing));
            drop(folio);
        }
        let allocator = mm.allocator();
        assert_eq!(
            allocator.managed_frames() - allocator.free_frames(),
            self.pages.len() as u64 + held.iter().map(|folio| folio.order().frames()).sum::<u64>()
        );
    }
}

pub(crate) fn run(ops: Vec<Op>) {
    let mm = machine(FRAMES, 2, 12);
    let mut model = Model::new();
    let mut held = Vec::new();
    for op in ops {
        step(&mm, &mut model, &mut held, &op);
        model.compare(&mm, &held);
    }
    for pfn in std::mem::take(&mut model.pages).into_keys() {
        kernel::unmap(&mm, pfn);
    }
    mm.release_all(held.drain(..));
    mm.drain_lru();
    model.compare(&mm, &held);
}

fn step<'m>(mm: &'m Mm<Host>, model: &mut Model, held: &mut Held<'m>, op: &Op) {
    match *op {
        Op::Create { parent } => {
            let parent = model.group(parent);
            match mm.create_memcg(parent) {
                Ok(id) => model.groups.push((id, Some(parent))),
                Err(_) => assert!(
                    model.groups.len() > 8,
                    "room for twelve groups and as many dead owners"
                ),
            }
        }
        Op::Remove { group } => {
            let id = model.group(group);
            let has_children = model.groups.iter().any(|(_, parent)| *parent == Some(id));
            let parent = model.parent(id);
            assert_eq!(
                mm.remove_memcg(id).is_ok(),
                parent.is_some() && !has_children
            );
            if let Some(parent) = parent.filter(|_| !has_children) {
                model.groups.retain(|(other, _)| *other != id);
                model.max.remove(&id);
                model
                    .pages
                    .values_mut()
                    .filter(|(owner, _)| *owner == id)
                    .for_each(|page| page.0 = parent);
                assert!(mm.memcg_usage(id).is_err(), "a stale id names nothing");
            }
        }
        Op::SetMax { group, frames } => {
            let id = model.group(group);
            let set = mm.set_memcg_max(id, u64::from(frames));
            assert_eq!(set.is_ok(), id != MemcgId::ROOT);
            if set.is_ok() {
                model.max.insert(id, u64::from(frames));
            }
        }
        Op::Fault { group, file } => {
            let id = model.group(group);
            let backing = if file { Backing::File } else { Backing::Anon };
            let before: Vec<_> = model.pages.keys().copied().collect();
            let mapped = fault(mm, id, backing);
            let machine_full = mm.allocator().free_frames() < 64;
            // Only groups in whose limit the charge stood, or everyone if the machine is short.
            model.forget_reclaimed(mm, |model, victim| {
                let mut at = Some(id);
                while let Some(ancestor) = at {
                    if model.max.contains_key(&ancestor) && model.is_below(victim, ancestor) {
                        return true;
                    }
                    at = model.parent(ancestor);
                }
                machine_full || before.len() as u64 > FRAMES - 64
            });
            if let Some(pfn) = mapped {
                // The frame may be one that was reclaimed a moment ago.
                model.pages.insert(pfn, (id, backing));
                let mut at = Some(id);
                while let Some(ancestor) = at {
                    let max = model.max.get(&ancestor).copied().unwrap_or(u64::MAX);
                    assert!(
                        model.usage(ancestor, held) <= max,
                        "a charge never ends above a limit"
                    );
                    at = model.parent(ancestor);
                }
            }
        }
        Op::Touch { page } => {
            if let Some(folio) = model.page(page).and_then(|pfn| mm.try_get(pfn)) {
                folio.set_word_bits(ACCESSED);
            }
        }
        Op::MarkAccessed { page } => {
            if let Some(folio) = model.page(page).and_then(|pfn| mm.try_get(pfn)) {
                folio.mark_accessed();
            }
        }
        Op::Isolate { page } => {
            if let Some(folio) = model.page(page).and_then(|pfn| mm.try_get(pfn))
                && let Ok(isolated) = folio.isolate()
            {
                assert!(folio.isolate().is_err(), "isolated once");
                // The mapping's, this handle's and the isolation's; batches may hold more.
                assert!(isolated.references() >= 3);
            }
        }
        Op::Move { page, kind } => {
            if let Some(folio) = model.page(page).and_then(|pfn| mm.try_get(pfn)) {
                match kind {
                    0 => folio.activate(),
                    1 => folio.deactivate(),
                    2 => folio.deactivate_file(),
                    3 => folio.move_tail(),
                    4 => folio.mark_dirty(),
                    _ => {
                        folio.start_writeback();
                        folio.end_writeback();
                    }
                }
            }
        }
        Op::Mlock { page } => {
            if let Some(pfn) = model.page(page)
                && let Some(folio) = mm.try_get(pfn)
            {
                folio.mlock();
                mm.drain_lru();
                assert!(folio.is_mlocked());
                model.locked.insert(pfn);
            }
        }
        Op::Munlock { page } => {
            if let Some(pfn) = model.page(page)
                && let Some(folio) = mm.try_get(pfn)
            {
                folio.munlock();
                mm.drain_lru();
                if !folio.is_mlocked() {
                    model.locked.remove(&pfn);
                }
            }
        }
        Op::Large { group, order } => {
            let id = model.group(group);
            let order = Order::new(order).expect("an order");
            if held.len() < 6
                && let Ok(pages) = mm.try_alloc(Request::new(order))
                && let Ok(folio) = pages.try_charge_to(mm, id)
            {
                // Nothing maps them, so reclaim would free them: some are on no list, others are kept from it.
                if order.get().is_multiple_of(2) {
                    folio.keep_from_reclaim();
                    folio.add_to_lru(Backing::File).expect("new");
                    assert!(folio.is_unevictable(), "listed at once");
                }
                held.push(folio);
            }
        }
        Op::Split { to } => {
            let to = Order::new(to).expect("an order");
            if let Some(folio) = held.pop() {
                mm.drain_lru();
                match folio.split(to) {
                    Ok(parts) => held.extend(parts),
                    Err(Refused(_, folio)) => {
                        assert!(folio.order() <= to);
                        held.push(folio);
                    }
                }
            }
        }
        Op::Refault { group } => {
            let id = model.group(group);
            let gone = EVICTED.with_borrow_mut(Vec::pop);
            if let Some(gone) = gone
                && let Ok(pages) = mm.try_alloc(Request::new(Order::ZERO))
                && let Ok(folio) = pages.try_charge_to(mm, id)
            {
                let refault = folio.add_refaulted(gone.backing, gone.shadow).expect("new");
                assert_eq!(folio.is_active(), refault != Refault::Old);
                model.pages.insert(kernel::map(folio), (id, gone.backing));
            }
        }
        Op::BatchesOff => {
            let off = mm.batches_off();
            for &pfn in model.pages.keys().take(5) {
                let folio = mm.try_get(pfn).expect("mapped");
                folio.activate();
                assert_eq!(folio.references(), 2, "no batch has it");
            }
            drop(off);
        }
        Op::RunAs { cpu } => host::run_as(u32::from(cpu)),
        Op::Compact => {
            MOVED.with_borrow_mut(Vec::clear);
            let done = mm.compact(framekeeper::NodeId(0), Order::new(4).expect("an order"));
            let moved = MOVED.with_borrow_mut(std::mem::take);
            assert_eq!(done.moved, moved.len() as u64, "order 0 only");
            for moving in moved {
                let page = model.pages.remove(&moving.from).expect("a page");
                model.pages.insert(moving.to, page);
                if model.locked.remove(&moving.from) {
                    model.locked.insert(moving.to);
                }
            }
        }
        Op::Unmap { page } => {
            if let Some(pfn) = model.page(page) {
                model.locked.remove(&pfn);
                kernel::unmap(mm, pfn);
                model.pages.remove(&pfn);
                // A batch may have held it until now.
                mm.drain_lru();
            }
        }
        Op::Shrink { group, target } => {
            let id = model.group(group);
            let reclaimed = mm.shrink_memcg(id, u64::from(target)).expect("living");
            let gone = model.forget_reclaimed(mm, |model, victim| model.is_below(victim, id));
            assert_eq!(reclaimed.freed, gone);
            assert!(gone <= u64::from(target));
        }
        Op::Reclaim { target } => {
            let reclaimed = mm.reclaim(u64::from(target));
            assert_eq!(reclaimed.freed, model.forget_reclaimed(mm, |_, _| true));
        }
        Op::DrainLru => mm.drain_lru(),
        Op::DrainPagesets => mm.allocator().drain_all(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_program_of_folios_and_groups_agrees_with_the_naive_model(ops in prop::collection::vec(op(), 1..250)) {
        run(ops);
    }
}
