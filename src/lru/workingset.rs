//! Was a folio evicted too early? What its place remembers of it, and what that says when it is faulted in again.
//!
//! Owns: [`Shadow`], the word that the kernel keeps in a folio's place; [`Costs`]; the ages of the lruvecs.
//! Invariants: an lruvec's age only grows, by every base frame evicted from or activated in it or below it. A shadow holds
//! the age before its own eviction, so a folio faulted in at once comes back at a distance of its own size.
//! Decisions are pure functions of ages and sizes (reclaim.md 3.8).
//! Lock ranks: none; ages are lone atomics, costs are guarded by their lruvec's lock. Used by: mm, reclaim.

use super::{Backing, View};
use crate::addr::NodeId;
use crate::frame::Flags;
use crate::memcg::{LruVecIndex, MemcgId, Slot};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;

/// What reclaim of one lruvec's frames cost lately: I/O, and looks at folios that stayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) anon: u64,
    pub(crate) file: u64,
}

/// Base frames' worth of looking that one write costs.
const WRITE_COST: u64 = 32;

impl Costs {
    /// Adds the cost of frames written out, or read in again, and of frames looked at in vain. Both costs are halved while
    /// they are more than a quarter of the lruvec's frames, so that what happened lately counts most.
    pub(super) fn add(&mut self, backing: Backing, written: u64, stayed: u64, lru_frames: u64) {
        let cost = written.saturating_mul(WRITE_COST).saturating_add(stayed);
        let sum = match backing {
            Backing::Anon => &mut self.anon,
            Backing::File => &mut self.file,
        };
        *sum = sum.saturating_add(cost);
        if self.anon.saturating_add(self.file) > lru_frames / 4 {
            self.anon /= 2;
            self.file /= 2;
        }
    }

    pub(super) fn inherit(&mut self, child: Self) {
        self.anon = self.anon.saturating_add(child.anon);
        self.file = self.file.saturating_add(child.file);
    }
}

/// What the place of an evicted folio remembers: when, whose and where it was. For the kernel to keep where it will look for
/// the contents: a page cache's slot, a swap map. Odd, so that it is told from a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shadow(u64);

const TAG: u64 = 1;
const WORKINGSET_SHIFT: u32 = 1;
const NODE_SHIFT: u32 = 2;
/// A group's bits in a shadow, at least: slot, and as much of the generation as there is room for.
const GROUP_BITS: u32 = 16;

impl Shadow {
    /// The word to store; its lowest bit is set.
    #[must_use]
    pub const fn into_raw(self) -> u64 {
        self.0
    }

    /// The shadow that a stored word is; `None` if it is none. A wrong one makes a wrong guess, nothing worse.
    #[must_use]
    pub const fn from_raw(word: u64) -> Option<Self> {
        if word & TAG == 0 {
            None
        } else {
            Some(Self(word))
        }
    }
}

/// What a shadow says, unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    /// The age of the lruvec then, without its lowest bits.
    pub(crate) age: u64,
    /// The group whose reclaim took it, by slot and as much of the generation as fits.
    group: u64,
    pub(crate) node: u8,
    /// Whether it was of the working set before.
    pub(crate) workingset: bool,
}

/// How a shadow's bits are divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    node_bits: u32,
    slot_bits: u32,
    group_bits: u32,
    /// Lowest bits of the age that are left out, so that a distance of all memory fits.
    bucket: u32,
}

impl Layout {
    pub(crate) fn new(groups: u32, nodes: u32, frames: u64) -> Self {
        let bits = |count: u64| u64::BITS - count.saturating_sub(1).leading_zeros();
        let slot_bits = bits(u64::from(groups));
        let mut layout = Self {
            node_bits: bits(u64::from(nodes)),
            slot_bits,
            group_bits: slot_bits.max(GROUP_BITS),
            bucket: 0,
        };
        layout.bucket = bits(frames).saturating_sub(layout.age_bits());
        layout
    }

    fn age_bits(self) -> u32 {
        u64::BITS - NODE_SHIFT - self.node_bits - self.group_bits
    }

    fn group(self, id: MemcgId) -> u64 {
        let group = u64::from(id.generation) << self.slot_bits | u64::from(id.slot);
        group & low(self.group_bits)
    }

    pub(crate) fn pack(self, id: MemcgId, node: NodeId, age: u64, workingset: bool) -> Shadow {
        let group_shift = NODE_SHIFT + self.node_bits;
        Shadow(
            (age >> self.bucket) << (group_shift + self.group_bits)
                | self.group(id) << group_shift
                | (u64::from(node.0) & low(self.node_bits)) << NODE_SHIFT
                | u64::from(workingset) << WORKINGSET_SHIFT
                | TAG,
        )
    }

    pub(crate) fn unpack(self, shadow: Shadow) -> Memory {
        let group_shift = NODE_SHIFT + self.node_bits;
        Memory {
            age: shadow.0 >> (group_shift + self.group_bits) << self.bucket,
            group: shadow.0 >> group_shift & low(self.group_bits),
            node: (shadow.0 >> NODE_SHIFT & low(self.node_bits)) as u8,
            workingset: shadow.0 >> WORKINGSET_SHIFT & 1 == 1,
        }
    }

    /// Base frames evicted and activated since a shadow was made.
    pub(crate) fn distance(self, now: u64, memory: Memory) -> u64 {
        now.wrapping_sub(memory.age) & low(self.age_bits() + self.bucket)
    }
}

const fn low(bits: u32) -> u64 {
    if bits >= u64::BITS {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

/// Whether anonymous folios can be reclaimed at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swap {
    /// There is room to write them to.
    Left,
    /// There is none.
    Full,
}

/// What a folio's shadow said when it was faulted in again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refault {
    /// It was away for longer than it could have stayed: new.
    Old,
    /// It went too early: active at once.
    Recent,
    /// It was of the working set when it went, and went too early.
    Workingset,
}

impl<P: Platform> View<'_, P> {
    /// Ages the lruvec of a group on a node, and those of the groups above, by frames evicted or activated.
    pub(crate) fn age(self, lruvec: LruVecIndex, frames: u64) {
        let nodes = self.memcgs.nodes();
        let (mut slot, node) = (self.memcgs.slot_of(lruvec), lruvec % nodes);
        // As many steps as there are groups, whatever a group that ends meanwhile makes of the links.
        for _ in 0..self.lru.count() {
            if let Some(age) = self
                .lru
                .ages
                .get(self.memcgs.lruvec_of(slot, node) as usize)
            {
                age.fetch_add(frames, Relaxed);
            }
            match self.memcgs.parent_of(slot) {
                Some(parent) => slot = parent,
                None => return,
            }
        }
    }

    /// An lruvec's age.
    pub(crate) fn age_of(self, lruvec: LruVecIndex) -> u64 {
        let age = self.lru.ages.get(lruvec as usize);
        age.map_or(0, |age| age.load(Relaxed))
    }

    /// What is to be remembered of a folio that goes when the lruvec of the group whose reclaim takes it is `age` old. The
    /// caller [ages](Self::age) that lruvec by what goes.
    pub(crate) fn shadow(self, id: MemcgId, node: NodeId, age: u64, flags: Flags) -> Shadow {
        let workingset = flags.contains(Flags::WORKINGSET);
        self.lru.layout.pack(id, node, age, workingset)
    }

    /// Whether a folio of `backing` that left this shadow went too early.
    pub(crate) fn judge_refault(
        self,
        shadow: Shadow,
        backing: Backing,
        swap: Swap,
        off: &IrqOff<P>,
    ) -> Refault {
        let layout = self.lru.layout;
        let memory = layout.unpack(shadow);
        let slot = (memory.group & low(layout.slot_bits)) as Slot;
        let alive = self.memcgs.id_of(slot);
        if u32::from(memory.node) >= self.memcgs.nodes()
            || alive.is_none_or(|id| layout.group(id) != memory.group)
        {
            return Refault::Old;
        }
        let evicting = self.memcgs.lruvec_of(slot, u32::from(memory.node));
        let Some(held) = self.lock_index(evicting, off) else {
            return Refault::Old;
        };
        let sizes = held.lruvec.sizes();
        drop(held);
        let distance = layout.distance(self.age_of(evicting), memory);
        match distance <= self.lru.policy.reach(backing, swap, &sizes) {
            false => Refault::Old,
            true if memory.workingset => Refault::Workingset,
            true => Refault::Recent,
        }
    }

    /// Counts folios of an lruvec that reclaim looked at: [`Moves::scanned`](super::Moves), and `refilled`.
    pub(crate) fn count_looks(
        self,
        lruvec: LruVecIndex,
        scanned: u64,
        refilled: u64,
        off: &IrqOff<P>,
    ) {
        if scanned + refilled > 0
            && let Some(mut held) = self.lock_index(lruvec, off)
        {
            held.lruvec.moves.scanned += scanned;
            held.lruvec.moves.refilled += refilled;
        }
    }

    /// Adds what reclaim cost to an lruvec and those of the groups above it: base frames written or read, and frames that were
    /// looked at and stayed.
    pub(crate) fn add_cost(
        self,
        lruvec: LruVecIndex,
        backing: Backing,
        written: u64,
        stayed: u64,
        off: &IrqOff<P>,
    ) {
        if written == 0 && stayed == 0 {
            return;
        }
        let nodes = self.memcgs.nodes();
        let (mut slot, node) = (self.memcgs.slot_of(lruvec), lruvec % nodes);
        for _ in 0..self.lru.count() {
            if let Some(mut held) = self.lock_index(self.memcgs.lruvec_of(slot, node), off) {
                let frames = held.lruvec.sizes().iter().sum();
                held.lruvec.costs.add(backing, written, stayed, frames);
            }
            match self.memcgs.parent_of(slot) {
                Some(parent) => slot = parent,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: MemcgId = MemcgId {
        slot: 37,
        generation: 5,
    };

    #[test]
    fn a_shadow_gives_back_what_it_was_made_of() {
        for (groups, nodes, frames) in [(1, 1, 1 << 20), (100, 4, 1 << 44), (1 << 20, 64, 1 << 30)]
        {
            let layout = Layout::new(groups.max(64), nodes, frames);
            for age in [0, 1, 12_345, (1 << 36) - 1] {
                let shadow = layout.pack(GROUP, NodeId(0), age, true);
                assert_eq!(Shadow::from_raw(shadow.into_raw()), Some(shadow));
                let memory = layout.unpack(shadow);
                assert_eq!(memory.age, age >> layout.bucket << layout.bucket);
                assert_eq!((memory.node, memory.workingset), (0, true));
                assert_eq!(memory.group, layout.group(GROUP));
            }
        }
        assert_eq!(Shadow::from_raw(0x7f00_0000_1000), None, "a pointer");
    }

    #[test]
    fn the_age_has_the_bits_that_the_word_has_left_and_the_bucket_what_is_missing() {
        // reclaim.md 3.8: word - (1 tag + 1 workingset + node bits + 16); bucket = fls(frames - 1) - those, at least 0.
        for (nodes, frames, age_bits, bucket) in [
            (1, 1 << 20, 46, 0),
            (2, 1 << 46, 45, 1),
            (64, 1 << 44, 40, 4),
            (1024, 1 << 50, 36, 14),
        ] {
            let layout = Layout::new(100, nodes, frames);
            assert_eq!((layout.age_bits(), layout.bucket), (age_bits, bucket));
        }
    }

    #[test]
    fn the_distance_survives_the_wrap_of_the_age() {
        let layout = Layout::new(100, 1, 1 << 20);
        let then = (1 << 46) - 10;
        let memory = layout.unpack(layout.pack(GROUP, NodeId(0), then, false));
        assert_eq!(layout.distance(then + 25, memory), 25);
        assert_eq!(layout.distance(then, memory), 0);
    }

    #[test]
    fn costs_are_halved_while_they_exceed_a_quarter_of_the_frames() {
        let mut costs = Costs::default();
        costs.add(Backing::Anon, 2, 5, 1000);
        assert_eq!((costs.anon, costs.file), (69, 0));
        costs.add(Backing::File, 0, 181, 1000);
        assert_eq!(
            (costs.anon, costs.file),
            (69, 181),
            "250 is not more than 250"
        );
        costs.add(Backing::File, 0, 1, 1000);
        assert_eq!((costs.anon, costs.file), (34, 91));
        costs.add(Backing::File, u64::MAX, 1, 1000);
        assert_eq!(costs.file, u64::MAX / 2, "no overflow");
    }
}
