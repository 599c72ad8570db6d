//! A machine for the models of the layers: groups, frames and lists, carved from storage of their own.
//!
//! Leaked: each execution of a model makes one, and its parts live until the program ends.
#![allow(
    dead_code,
    reason = "each module of models uses the part it needs, and some the layers alone"
)]

extern crate std;

use std::vec::Vec;

use crate::addr::{FrameRange, NodeId, Order, Pfn, ZoneKind};
use crate::boot::{Bump, Storage};
use crate::frame::{Flags, FrameNo, FrameTable};
use crate::lru::{BatchSize, End, Lru, Policy, Sizes, View};
use crate::memcg::{Force, GroupMemory, MemcgId, MemcgLimits, Memcgs};
use crate::platform::{IrqOff, Platform};

/// What `carve` makes of storage that is exactly large enough.
pub(crate) fn carved<T>(carve: impl Fn(&mut Bump<'_>) -> T) -> T {
    let mut measure = Bump::measuring();
    carve(&mut measure);
    let mut memory = Vec::new();
    memory.resize_with(measure.used(), core::mem::MaybeUninit::uninit);
    let mut storage = Storage::from_static(memory.leak());
    carve(&mut Bump::new(&mut storage))
}

/// A tree that has room for `groups`, all below the root, with two CPUs and one node.
pub(crate) fn memcgs<P: Platform>(bump: &mut Bump<'_>, groups: u32) -> Memcgs<P> {
    let limits = MemcgLimits {
        groups,
        depth: 1,
        owners: groups,
        memory: GroupMemory::Carved,
    };
    Memcgs::build(bump, &limits, 1, 2).unwrap_or_else(|_| unreachable!("fits"))
}

/// Frames, groups and lists of two CPUs and one node.
pub(crate) struct Machine<P: Platform> {
    pub(crate) frames: FrameTable,
    pub(crate) memcgs: Memcgs<P>,
    pub(crate) lru: Lru<P>,
}

impl<P: Platform> Machine<P> {
    /// A machine with room for `groups`, the root among them, and the given number of frames.
    pub(crate) fn new(groups: u32, frames: u64) -> Self {
        Self::with_policy(groups, frames, Policy::TwoLists)
    }

    /// The same, ordered by a policy.
    pub(crate) fn with_policy(groups: u32, frames: u64, policy: Policy) -> Self {
        carved(|bump| Self {
            frames: FrameTable::build(
                bump,
                12,
                || [FrameRange::new(Pfn(1), Pfn(1 + frames))].into_iter(),
                |_| false,
            )
            .unwrap(),
            memcgs: memcgs(bump, groups),
            lru: Lru::build(
                bump,
                &Sizes {
                    groups,
                    nodes: 1,
                    cpus: 2,
                    frames,
                    batch: BatchSize::ThirtyOne,
                    policy,
                },
            )
            .unwrap(),
        })
    }

    pub(crate) fn view(&self) -> View<'_, P> {
        View {
            frames: &self.frames,
            memcgs: &self.memcgs,
            lru: &self.lru,
        }
    }

    /// A group below the root.
    pub(crate) fn child(&self) -> MemcgId {
        let off = IrqOff::new();
        self.memcgs.create(MemcgId::ROOT, &off, |_| ()).unwrap()
    }

    /// A folio of the first frames, charged, with one reference, on no list.
    pub(crate) fn charged(&self, group: MemcgId, order: Order) -> FrameNo {
        let owner = self
            .memcgs
            .try_charge(group, NodeId(0), order.frames(), Force::Within)
            .unwrap_or_else(|_| unreachable!("no limit"));
        let frame = self.frames.number(Pfn(1)).unwrap();
        let record = self.frames.record(frame);
        record.set_owner(Some(owner));
        record.birth(order, ZoneKind::Normal);
        frame
    }

    /// The same, linked on its group's list.
    pub(crate) fn listed(&self, group: MemcgId, order: Order) -> FrameNo {
        let frame = self.charged(group, order);
        let record = self.frames.record(frame);
        // The reference that the linking drops.
        record.join(Flags::MEMBER, Flags::MEMBER).unwrap();
        let off = IrqOff::new();
        let mut held = self.view().lock(frame, &off).unwrap();
        self.view().link_new(&mut held, (frame, record), End::Head);
        frame
    }

    /// What freeing does to a dead frame's list.
    pub(crate) fn bury(&self, frame: FrameNo) {
        let record = self.frames.record(frame);
        self.view().remove_dead(&[(frame, record)], &IrqOff::new());
    }
}
