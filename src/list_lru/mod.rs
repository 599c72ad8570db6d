//! Lists of the kernel's own objects, oldest first, one for each group and node, each with its own lock.
//!
//! Owns: the sub-lists of every [`ListLru`] (a type-stable slot for each list, group and node, carved when the instance is built, as
//! lruvecs are: nothing is allocated when a group or a list is made); the choice and the check of the lock (lookup.rs); walks
//! (walk.rs); what happens when a group ends (reparent.rs).
//! Invariants: an object is on at most one list. It is on the sub-list that its owner resolves to: the owner's group while that
//! group's sub-list is live, its parent's once it is dead. A sub-list is live exactly for the group that it was made live for, dead
//! from the moment its objects were given to the parent until the slot serves another group, and empty while dead.
//! `len` is the number of objects on a sub-list; a node's total equals the sum over its sub-lists at rest.
//! A list without groups keeps all objects on the root's sub-lists.
//! Lock ranks: `ListLru`; two at once in reparent only, child first. Walk callbacks run under it, nothing else of the kernel's does.
//! Used by: kernels (through [`Mm::list_lru`](crate::Mm::list_lru)), mm (groups that end, `check`), reclaim (through shrinkers).

mod handle;
mod item;
mod lookup;
#[cfg(all(test, loom))]
mod loom_tests;
mod recount;
mod reparent;
mod walk;

use crate::boot::{Bump, StorageFull};
use crate::memcg::{LruVecIndex, MemcgId, Memcgs, ROOT};
use crate::platform::{CpuIds, IrqOff, Platform};
use crate::rank::Rank;
use crate::shrinker::Shrinkers;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{CachePadded, Lock, PerCpu, Ranked};

use item::Chain;

pub use handle::{AddError, DeleteError, ListLru, ListLruError, Scope};
pub use item::{ItemPointer, Link, ListItem};
pub use walk::{Locked, Unlocked, Verdict, Walk, WalkEnd, Walked};

/// How long an operation waits for a callback that runs under its own CPU id, where ids may be shared, before it takes itself
/// for a part of that callback. Walks hold a lock for 32 callbacks at most.
const PATIENCE: u32 = 1 << 16;

/// No shrinker.
const NONE: u32 = u32::MAX;

/// Whom a sub-list serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The group of this generation.
    Live(u32),
    /// Nobody: its objects are the parent's.
    Dead,
}

/// The objects of one group on one node.
#[derive(Debug)]
struct SubList {
    chain: Chain,
    state: State,
}

impl Ranked for SubList {
    const RANK: Rank = Rank::ListLru;
}

/// A sub-list behind its lock.
#[derive(Debug)]
struct Slot<P: Platform> {
    /// Objects on the chain. Written under the lock; read without it, a little stale then.
    len: AtomicU64,
    list: Lock<SubList, P>,
}

/// One list: its sub-lists and totals. Its address names it in links.
#[derive(Debug)]
pub(crate) struct List<P: Platform> {
    /// Whether a [`ListLru`] stands for it.
    claimed: AtomicBool,
    /// Whose bit says that there are objects; [`NONE`] if nobody's.
    shrinker: AtomicU32,
    /// Objects by node. Follows the sub-lists after their locks are dropped.
    totals: &'static [CachePadded<AtomicU64>],
    /// By lruvec index.
    slots: &'static [CachePadded<Slot<P>>],
}

/// All lists of one instance.
#[derive(Debug)]
pub(crate) struct ListLrus<P: Platform> {
    lists: &'static [List<P>],
    /// Walk callbacks that run on a CPU now.
    callbacks: PerCpu<AtomicU32>,
    /// The same for ids out of range.
    others: AtomicU32,
}

/// The layers that an operation needs.
#[derive(Debug)]
pub(crate) struct View<'a, P: Platform> {
    pub(crate) memcgs: &'a Memcgs<P>,
    pub(crate) shrinkers: &'a Shrinkers<P>,
    pub(crate) lists: &'a ListLrus<P>,
}

/// A walk's callback called an operation of a list, which may wait for the lock that the callback runs under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct InsideCallback;

impl<P: Platform> ListLrus<P> {
    pub(crate) fn build(
        bump: &mut Bump<'_>,
        lists: u32,
        groups: u32,
        nodes: u32,
        cpus: u32,
    ) -> Result<Self, StorageFull> {
        let slot = |lruvec| {
            let group = (lruvec as u32) / nodes;
            let state = if group == ROOT {
                State::Live(MemcgId::ROOT.generation)
            } else {
                State::Dead
            };
            let list = SubList {
                chain: Chain::default(),
                state,
            };
            CachePadded(Slot {
                len: AtomicU64::new(0),
                list: Lock::new(list),
            })
        };
        Ok(Self {
            lists: bump.slots_with(lists as usize, |bump, _| {
                Ok::<_, StorageFull>(List {
                    claimed: AtomicBool::new(false),
                    shrinker: AtomicU32::new(NONE),
                    totals: bump.slots(nodes as usize, |_| CachePadded(AtomicU64::new(0)))?,
                    slots: bump.slots(groups as usize * nodes as usize, slot)?,
                })
            })?,
            callbacks: bump.per_cpu(cpus, || AtomicU32::new(0))?,
            others: AtomicU32::new(0),
        })
    }

    /// Claims a list that no handle stands for.
    fn claim(&self) -> Option<&List<P>> {
        self.lists.iter().find(|list| {
            // Acquire pairs with the Release of `release`: the list is as its last handle left it, empty.
            list.claimed
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Number of lists.
    fn count(&self) -> u32 {
        self.lists.len() as u32
    }

    fn callbacks_of(&self, off: &IrqOff<P>) -> (&AtomicU32, bool) {
        match self.callbacks.of(off.cpu()) {
            Some(count) => (count, P::CPU_IDS == CpuIds::Exclusive),
            None => (&self.others, false),
        }
    }

    /// That the caller may wait for a list's lock: it is not a callback under one.
    fn enter(&self, off: &IrqOff<P>) -> Result<(), InsideCallback> {
        let (count, exact) = self.callbacks_of(off);
        let mut waited = 0;
        // Interrupts are masked here and around callbacks, so a count on this CPU is the caller's own, or, where ids are
        // shared, that of another thread, which goes away.
        while count.load(Ordering::Relaxed) != 0 {
            if exact || waited == PATIENCE {
                return Err(InsideCallback);
            }
            waited += 1;
            P::relax();
        }
        Ok(())
    }
}

impl<P: Platform> List<P> {
    /// What links on this list name.
    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    fn slot(&self, lruvec: LruVecIndex) -> Option<&Slot<P>> {
        self.slots.get(lruvec as usize).map(|padded| &padded.0)
    }

    fn total(&self, node: u32) -> Option<&AtomicU64> {
        self.totals.get(node as usize).map(|padded| &padded.0)
    }

    fn release(&self) {
        self.shrinker.store(NONE, Ordering::Relaxed);
        self.claimed.store(false, Ordering::Release);
    }
}

impl<P: Platform> Slot<P> {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Under the lock: the new length.
    fn set_len(&self, len: u64) {
        self.len.store(len, Ordering::Relaxed);
    }
}

impl<'a, P: Platform> View<'a, P> {
    /// Under the lock of the sub-list, once its length is stored: reclaim shall ask about this list's objects.
    fn mark(self, list: &List<P>, lruvec: LruVecIndex) {
        let shrinker = list.shrinker.load(Ordering::Relaxed);
        if shrinker != NONE {
            self.shrinkers.mark(shrinker, lruvec);
        }
    }
}

impl<P: Platform> Clone for View<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for View<'_, P> {}
