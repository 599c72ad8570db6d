//! Groups that frames are charged to.
//!
//! Owns: [`Memcgs`]: the tree of groups with their limits (tree.rs, counter.rs), and the owner slots that frames
//! name (owner.rs).
//! Invariants: a group's usage is the number of frames charged to it or to a group below it, at rest exactly. The root is
//! not counted: its usage is the machine's. A frame is charged through exactly one owner slot.
//! Lock ranks: `MemcgTree`. Charges take no lock: they pin the epoch, so that a group's end waits for them.
//! Used by: lru (which lruvec a frame belongs to), mm (charge and uncharge), reclaim (walks).

mod counter;
mod owner;
mod tree;

use core::fmt;

use crate::addr::NodeId;
use crate::boot::{Bump, StorageFull};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Epoch, Lock, Pinned};

pub(crate) use owner::{LruVecIndex, OwnerIndex, Owners};
pub use tree::{CreateError, RemoveError};
use tree::{Group, Tree};
pub(crate) use tree::{ROOT, Removal, Slot};

/// Names a group. A stale id names nothing, even when another group took its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MemcgId {
    pub(crate) slot: Slot,
    pub(crate) generation: u32,
}

impl MemcgId {
    /// The root of the tree. It has no limit.
    pub const ROOT: Self = Self {
        slot: ROOT,
        generation: 0,
    };
}

impl fmt::Display for MemcgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// How many groups an instance can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemcgLimits {
    /// Groups alive at once, the root included.
    pub groups: u32,
    /// Levels below the root.
    pub depth: u32,
    /// Owner slots: one per group and node, and one per dead group and node whose frames are still in use.
    pub owners: u32,
}

/// The groups of one instance.
#[derive(Debug)]
pub(crate) struct Memcgs<P: Platform> {
    groups: &'static [Group],
    nodes: u32,
    deepest: u32,
    tree: Lock<Tree, P>,
    owners: Owners,
    /// By lruvec: the owner slot that new charges name. Written while the group is created.
    current: &'static [AtomicU32],
    /// Pinned by charges and uncharges; waited for by removal.
    epoch: Epoch<P>,
}

/// Why a charge failed. Nothing is charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No living group has this id, or it has no such node.
    Gone,
    /// The group in this slot, or the frames' own, is at its limit.
    Full(Slot),
}

/// The configured numbers cannot be met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemcgFault {
    /// No groups, no nodes, too many, or fewer owner slots than the root needs.
    Limits,
    Storage(StorageFull),
}

impl<P: Platform> Memcgs<P> {
    pub(crate) fn build(
        bump: &mut Bump<'_>,
        limits: &MemcgLimits,
        nodes: u32,
        cpus: u32,
    ) -> Result<Self, MemcgFault> {
        let lruvecs = limits
            .groups
            .checked_mul(nodes)
            .filter(|&n| n > 0 && n <= owner::MOST_OWNERS)
            .ok_or(MemcgFault::Limits)?;
        if limits.owners < nodes || limits.owners > owner::MOST_OWNERS {
            return Err(MemcgFault::Limits);
        }
        let memcgs = Self {
            groups: bump.slots(limits.groups as usize, |slot| {
                Group::new(slot as u32, limits.groups)
            })?,
            nodes,
            deepest: limits.depth,
            tree: Lock::new(Tree::new(limits.groups)),
            owners: Owners::build(bump, limits.owners)?,
            current: bump.slots(lruvecs as usize, |_| AtomicU32::new(u32::MAX))?,
            epoch: Epoch::new(bump.per_cpu(cpus, Default::default)?),
        };
        if !bump.is_measuring() {
            for node in 0..nodes {
                let owner = memcgs.owners.take(node).ok_or(MemcgFault::Limits)?;
                memcgs.current[node as usize].store(owner, Ordering::Relaxed);
            }
        }
        Ok(memcgs)
    }

    /// Charges `frames` to a group and all above it, and names the owner slot for them.
    #[inline]
    pub(crate) fn try_charge(
        &self,
        id: MemcgId,
        node: NodeId,
        frames: u64,
    ) -> Result<OwnerIndex, Refusal> {
        // Pinned: if the group is seen alive, its end waits until this charge is complete.
        let _pin = self.epoch.pin();
        self.live(id).ok_or(Refusal::Gone)?;
        let owner = self.current_owner(id.slot, node).ok_or(Refusal::Gone)?;
        let mut at = id.slot;
        while let Some(group) = self.limited(at) {
            if !group.counter.try_charge(frames) {
                self.uncharge_chain(id.slot, at, frames);
                return Err(Refusal::Full(at));
            }
            at = group.parent.load(Ordering::Relaxed);
        }
        self.owners.charge(owner, frames);
        Ok(owner)
    }

    /// Takes back `frames` charged through `owner`, from whoever they belong to now.
    #[inline]
    pub(crate) fn uncharge(&self, owner: OwnerIndex, frames: u64) {
        // Pinned: the group that the owner resolves to cannot end before its counters are right.
        let pin = self.epoch.pin();
        if let Some(lruvec) = self.owners.resolve(owner) {
            self.uncharge_chain(self.slot_of(lruvec), ROOT, frames);
        }
        drop(pin);
        self.owners.put(owner, frames);
    }

    /// The group whose lruvec this is.
    pub(crate) fn slot_of(&self, lruvec: LruVecIndex) -> Slot {
        lruvec / self.nodes
    }

    /// The lruvec of a group on a node.
    pub(crate) fn lruvec_of(&self, slot: Slot, node: u32) -> LruVecIndex {
        slot * self.nodes + node
    }

    /// Number of nodes that groups have lruvecs for.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The owner slots.
    #[inline]
    pub(crate) fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Waits until every charge and uncharge that runs now is done.
    pub(crate) fn wait_for_charges(&self) {
        while self.epoch.synchronize().is_err() {
            P::relax();
        }
    }

    /// Gives up the owner slots of a removed group; those that frames still name stay, forwarding.
    pub(crate) fn put_owners(&self, slot: Slot) {
        for lruvec in slot * self.nodes..(slot + 1) * self.nodes {
            self.owners
                .put(self.current[lruvec as usize].load(Ordering::Relaxed), 1);
        }
    }

    /// Frames charged to the group or below it; `None` for a stale id.
    pub(crate) fn usage(&self, id: MemcgId) -> Option<u64> {
        Some(self.live(id)?.counter.usage())
    }

    /// The group's limit in frames, `u64::MAX` if it has none; `None` for a stale id.
    pub(crate) fn max(&self, id: MemcgId) -> Option<u64> {
        Some(self.live(id)?.counter.max())
    }

    /// Sets the limit; running charges may still see the old one. `None` for a stale id or the root.
    pub(crate) fn set_max(&self, id: MemcgId, frames: u64) -> Option<()> {
        let _pin = self.epoch.pin();
        self.live(id)
            .filter(|_| id.slot != ROOT)?
            .counter
            .set_max(frames);
        Some(())
    }

    /// The id of the living group in `slot`.
    pub(crate) fn id_of(&self, slot: Slot) -> Option<MemcgId> {
        self.groups.get(slot as usize)?.live_id(slot)
    }

    /// The living group that frames of `owner` are charged to; while their own ends, the one above it.
    pub(crate) fn group_of(&self, owner: OwnerIndex) -> Option<MemcgId> {
        // Pinned: no other group gets the slot that the owner resolves to.
        let _pin = self.epoch.pin();
        let mut slot = self.slot_of(self.owners.resolve(owner)?);
        loop {
            match self.id_of(slot) {
                None => slot = self.parent_of(slot)?, // ends at the root, which lives
                id => return id,
            }
        }
    }

    /// Living groups but the root, which is not counted: (slot, frames charged by its counter).
    pub(crate) fn usages(&self) -> impl Iterator<Item = (Slot, u64)> {
        let living = (0..)
            .zip(self.groups)
            .skip(1)
            .filter(|(slot, group)| group.live_id(*slot).is_some());
        living.map(|(slot, group)| (slot, group.counter.usage()))
    }

    /// Holds off the end of every group seen alive or dying from now on: its slot keeps its meaning, and its parent lives.
    #[inline]
    pub(crate) fn pin(&self) -> Pinned<'_, P> {
        self.epoch.pin()
    }

    /// Whether the id names a group that takes charges.
    pub(crate) fn is_live(&self, id: MemcgId) -> bool {
        self.live(id).is_some()
    }

    /// Who inherits from a group that is not (or no more) there in full: its parent. `None` if the id names no group. Asked
    /// while pinned, so that the parent, which cannot die before its child is gone, is still there.
    pub(crate) fn heir_of(&self, id: MemcgId) -> Option<MemcgId> {
        let group = self
            .limited(id.slot)
            .filter(|group| group.is_used_as(id.generation))?;
        let slot = group.parent.load(Ordering::Relaxed);
        let generation = self.groups.get(slot as usize)?.generation();
        Some(MemcgId { slot, generation })
    }

    /// Number of group slots.
    pub(crate) fn slots(&self) -> u32 {
        self.groups.len() as u32
    }

    /// The group above `slot`.
    pub(crate) fn parent_of(&self, slot: Slot) -> Option<Slot> {
        Some(self.limited(slot)?.parent.load(Ordering::Relaxed))
    }

    fn live(&self, id: MemcgId) -> Option<&Group> {
        self.groups
            .get(id.slot as usize)
            .filter(|group| group.is_live(id.generation))
    }

    /// A group with a counter: any but the root.
    #[inline]
    fn limited(&self, slot: Slot) -> Option<&Group> {
        if slot == ROOT {
            None
        } else {
            self.groups.get(slot as usize)
        }
    }

    /// Uncharges from `from` up to, not including, `end`.
    #[inline]
    fn uncharge_chain(&self, from: Slot, end: Slot, frames: u64) {
        let mut at = from;
        while at != end
            && let Some(group) = self.limited(at)
        {
            group.counter.uncharge(frames);
            at = group.parent.load(Ordering::Relaxed);
        }
    }
}

impl From<StorageFull> for MemcgFault {
    fn from(full: StorageFull) -> Self {
        Self::Storage(full)
    }
}
