//! Groups that frames are charged to.
//!
//! Owns: [`Memcgs`]: the tree of groups (tree.rs), their counters and limits (counter.rs, charge.rs), the frames that CPUs
//! keep in stock (stock.rs), bytes of objects that share frames (bytes.rs), the owner slots that frames name (owner.rs), and counts by state (stats.rs, states.rs),
//! and time lost for want of memory (pressure.rs).
//! Invariants: a group's counter is the number of frames charged to it or to a group below it, and of those in stock for
//! them, at rest exactly. The root is not counted: its usage is the machine's. A frame is charged through exactly one owner slot.
//! Lock ranks: `MemcgTree`, `MemcgStock`, `Pressure`. Charges wait for no lock unless a limit is met: they pin the epoch, so that a group's
//! end waits for them.
//! Used by: lru (which lruvec a frame belongs to), mm (charge and uncharge), reclaim (walks).

mod bytes;
mod charge;
#[cfg(all(test, not(loom)))]
mod charge_tests;
mod counter;
mod events;
mod iter;
#[cfg(all(test, loom))]
mod loom_tests;
mod moving;
mod oom;
mod owner;
mod pressure;
mod protection;
mod room;
mod states;
mod stats;
mod stock;
mod tree;

use core::fmt;

use crate::boot::{Bump, StorageFull};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Epoch, Lock, PerCpu, Pinned};

pub(crate) use charge::Force;
pub use counter::Protection;
pub use events::Event;
use iter::Cursor;
pub(crate) use iter::Walk;
pub(crate) use oom::SPARED;
pub use oom::{OomScope, OomSetting};
pub(crate) use owner::{LruVecIndex, OwnerIndex, Owners, Standing};
pub(crate) use pressure::Activity;
pub use pressure::{Lost, Pressure};
pub use protection::{Claim, Shield, Unclaimed, effective, high_delay_ms};
pub use room::GroupMemory;
pub use stats::PageState;
use stats::Stats;
use stock::Stock;
pub use tree::{CreateError, ProtectError, RemoveError};
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
    /// Where what CPUs count for a group is kept.
    pub memory: GroupMemory,
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
    /// By lruvec: moves of charges out of its place that are under way. A move may outlive its group.
    moving: &'static [AtomicU32],
    stocks: PerCpu<Lock<Stock, P>>,
    stats: Stats<P>,
    /// By group; none without a clock.
    stalls: &'static [Lock<pressure::Stalls, P>],
    /// Groups whose limit was set below their usage and has not been met since: meanwhile nothing goes into a stock.
    squeezed: AtomicU32,
    /// Pinned by charges, uncharges and changes of state; waited for by removal and moves.
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
        let carved = match limits.memory {
            GroupMemory::Carved => lruvecs,
            GroupMemory::OnDemand => nodes,
        };
        let cursors = bump.slots_mut(lruvecs as usize, |_| Cursor::START)?;
        let memcgs = Self {
            groups: bump.slots(limits.groups as usize, |slot| {
                Group::new(slot as u32, limits.groups)
            })?,
            nodes,
            deepest: limits.depth,
            tree: Lock::new(Tree::new(limits.groups, cursors)),
            owners: Owners::build(bump, limits.owners)?,
            current: bump.slots(lruvecs as usize, |_| AtomicU32::new(u32::MAX))?,
            moving: bump.slots(lruvecs as usize, |_| AtomicU32::new(0))?,
            stocks: bump.per_cpu(cpus, || Lock::new(Stock::default()))?,
            stats: Stats::build(bump, carved, lruvecs, cpus)?,
            stalls: pressure::build(bump, limits.groups)?,
            squeezed: AtomicU32::new(0),
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

    /// Whether so few owner slots are free that dead groups should give theirs back.
    pub(crate) fn owners_are_few(&self) -> bool {
        // An eighth: batches then run often enough to end before the last one is taken.
        self.owners.free() < self.owners.count() / 8
    }

    /// Waits until every charge and uncharge that runs now is done.
    pub(crate) fn wait_for_charges(&self) {
        while self.epoch.synchronize().is_err() {
            P::relax();
        }
    }

    /// Ends what is counted for a removed group: frames in stock, frames by state, owner slots. Those slots that frames
    /// still name stay, forwarding. Nobody counts for the group any more: the caller waited.
    pub(crate) fn put_owners(&self, slot: Slot) {
        let off = IrqOff::new();
        self.drain_stocks(slot, &off);
        for node in 0..self.nodes {
            let charged = self.fold_states(slot, node);
            let lruvec = self.lruvec_of(slot, node);
            self.owners.settle(
                self.current[lruvec as usize].load(Ordering::Relaxed),
                charged,
            );
        }
    }

    /// What counts on an owner slot, for `check()`: once its group is dead, frames too.
    pub(crate) fn references(&self, owner: OwnerIndex) -> u64 {
        let living = match self.owners.standing(owner) {
            Some(Standing::Living(lruvec)) => self.stats.frames_charged(lruvec, &self.epoch.pin()),
            _ => 0,
        };
        self.owners.references(owner).wrapping_add(living)
    }

    /// Frames charged to the group or below it; `None` for a stale id.
    pub(crate) fn usage(&self, id: MemcgId) -> Option<u64> {
        let counter = &self.live(id)?.counter;
        Some(counter.usage().saturating_sub(self.stocked(id.slot)))
    }

    /// Frames charged to whoever has a slot, or below it, those in stock included.
    pub(crate) fn charged(&self, slot: Slot) -> u64 {
        let group = self.groups.get(slot as usize);
        group.map_or(0, |group| group.counter.usage())
    }

    /// The group's limit in frames, `u64::MAX` if it has none; `None` for a stale id.
    pub(crate) fn max(&self, id: MemcgId) -> Option<u64> {
        Some(self.live(id)?.counter.max())
    }

    /// The highest usage that the group ever reached, frames in stock included; `None` for a stale id.
    pub(crate) fn peak(&self, id: MemcgId) -> Option<u64> {
        Some(self.live(id)?.counter.peak())
    }

    /// Above how many frames charges to the group are slowed down; `None` for a stale id.
    pub(crate) fn high(&self, id: MemcgId) -> Option<u64> {
        Some(self.live(id)?.counter.high())
    }

    /// Sets that. `None` for a stale id or the root.
    pub(crate) fn set_high(&self, id: MemcgId, frames: u64) -> Option<()> {
        let _pin = self.epoch.pin();
        let group = self.live(id).filter(|_| id.slot != ROOT)?;
        group.counter.set_high(frames);
        Some(())
    }

    /// Frames that the group asked to be protected; `None` for a stale id.
    pub(crate) fn protection(&self, id: MemcgId, kind: Protection) -> Option<u64> {
        Some(self.live(id)?.counter.share(kind).setting())
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

    /// Living groups but the root, which is not counted: (slot, frames charged by its counter, less those in stock).
    pub(crate) fn usages(&self) -> impl Iterator<Item = (Slot, u64)> {
        let living = (0..)
            .zip(self.groups)
            .skip(1)
            .filter(|(slot, group)| group.live_id(*slot).is_some());
        living.map(|(slot, group)| {
            let stocked = self.stocked(slot);
            (slot, group.counter.usage().wrapping_sub(stocked))
        })
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
            .groups
            .get(id.slot as usize)
            .filter(|group| id.slot != ROOT && group.is_used_as(id.generation))?;
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
        let group = self.groups.get(slot as usize).filter(|_| slot != ROOT)?;
        Some(group.parent.load(Ordering::Relaxed))
    }

    fn live(&self, id: MemcgId) -> Option<&Group> {
        self.groups
            .get(id.slot as usize)
            .filter(|group| group.is_live(id.generation))
    }
}

impl From<StorageFull> for MemcgFault {
    fn from(full: StorageFull) -> Self {
        Self::Storage(full)
    }
}
