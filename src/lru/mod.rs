//! Frames in the order of their use, as the policy sees it, those of files apart, for each memcg and node.
//!
//! Owns: [`Lru`]: the lruvecs and the per-CPU batches; [`View`], the layers that a move needs, borrowed together.
//! Invariants: a frame is on at most one list; that list is its owner's. See lock.rs for how the lock is found, isolate.rs for who
//! may unlink a frame, batch.rs for moves that wait, moves.rs for what they do, policy.rs for who goes first.
//! Lock ranks: `LruBatch`, `LruVec`. Used by: mm, reclaim.

mod batch;
mod drain;
mod generations;
mod in_hand;
mod isolate;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod lruvec;
mod mlock;
mod moves;
mod policy;
mod reparent;
mod split;
mod two_lists;
mod workingset;

use crate::boot::{Bump, StorageFull};
use crate::frame::{Flags, FrameTable};
use crate::memcg::Memcgs;
use crate::platform::Platform;
use crate::sync::atomic::AtomicU64;
use crate::sync::{CachePadded, Lock, PerCpu};

pub use batch::BatchSize;
use batch::Batches;
pub(crate) use batch::{Move, Switch};
use drain::DrainAll;
pub(crate) use drain::Share;
use in_hand::InHand;
pub use in_hand::{Reach, most_isolated};
pub(crate) use isolate::{SCAN, Scanned};
pub(crate) use lruvec::End;
use lruvec::LruVec;
pub use lruvec::Moves;
pub(crate) use mlock::Mlock;
pub use policy::Policy;
pub(crate) use policy::Use;
pub(crate) use workingset::Costs;
use workingset::Layout;
pub use workingset::{Refault, Shadow, Swap};

/// One of the lists of an lruvec.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ListKind {
    /// Anonymous frames that reclaim looks at next.
    InactiveAnon,
    /// Anonymous frames in use.
    ActiveAnon,
    /// File frames that reclaim looks at next.
    InactiveFile,
    /// File frames in use.
    ActiveFile,
}

/// What backs a frame's contents.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backing {
    /// Nothing but swap.
    Anon,
    /// A file.
    File,
}

impl ListKind {
    /// Number of lists.
    pub const COUNT: usize = 4;
    /// All lists.
    pub const ALL: [Self; Self::COUNT] = [
        Self::InactiveAnon,
        Self::ActiveAnon,
        Self::InactiveFile,
        Self::ActiveFile,
    ];

    /// The list for frames of a backing that are not in active use.
    #[must_use]
    pub const fn inactive(backing: Backing) -> Self {
        match backing {
            Backing::Anon => Self::InactiveAnon,
            Backing::File => Self::InactiveFile,
        }
    }

    /// The list for frames of a backing that are in active use.
    #[must_use]
    pub const fn active(backing: Backing) -> Self {
        match backing {
            Backing::Anon => Self::ActiveAnon,
            Backing::File => Self::ActiveFile,
        }
    }

    /// The place in [`ALL`](Self::ALL) of the kind that flags name. Without branches, which would be guessed wrong where lists mix.
    #[inline]
    fn index(flags: Flags) -> usize {
        let file = usize::from(flags.intersects(Flags::WITH_FILES));
        let active = usize::from(flags.contains(Flags::ACTIVE));
        2 * file + active
    }
}

/// All lruvecs and batches of one instance.
#[derive(Debug)]
pub(crate) struct Lru<P: Platform> {
    /// By lruvec index.
    vecs: &'static [CachePadded<Lock<LruVec, P>>],
    /// By lruvec index: base frames evicted from it and activated in it, or below it.
    ages: &'static [AtomicU64],
    batches: PerCpu<Lock<Batches, P>>,
    drain_all: DrainAll,
    in_hand: InHand,
    layout: Layout,
    pub(crate) policy: Policy,
}

/// What the lists are made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) groups: u32,
    pub(crate) nodes: u32,
    pub(crate) cpus: u32,
    /// Frames of the machine.
    pub(crate) frames: u64,
    pub(crate) batch: BatchSize,
    pub(crate) policy: Policy,
}

/// What a move of a frame needs.
#[derive(Debug)]
pub(crate) struct View<'a, P: Platform> {
    pub(crate) frames: &'a FrameTable,
    pub(crate) memcgs: &'a Memcgs<P>,
    pub(crate) lru: &'a Lru<P>,
}

impl<P: Platform> Lru<P> {
    /// Carves the lists; the caller checked that the product of groups and nodes fits.
    pub(crate) fn build(bump: &mut Bump<'_>, sizes: &Sizes) -> Result<Self, StorageFull> {
        let lruvecs = (sizes.groups * sizes.nodes) as usize;
        Ok(Self {
            vecs: bump.slots(lruvecs, |_| {
                CachePadded(Lock::new(LruVec::new(sizes.policy)))
            })?,
            ages: bump.slots(lruvecs, |_| AtomicU64::new(0))?,
            batches: bump.per_cpu(sizes.cpus, || Lock::new(Batches::new(sizes.batch)))?,
            drain_all: DrainAll::new(),
            in_hand: InHand::build(bump, sizes.nodes)?,
            layout: Layout::new(sizes.groups, sizes.nodes, sizes.frames),
            policy: sizes.policy,
        })
    }

    /// Number of lruvecs.
    pub(crate) fn count(&self) -> u32 {
        self.vecs.len() as u32
    }

    /// Number of CPUs with batches.
    pub(crate) fn cpus(&self) -> u32 {
        self.batches.iter().len() as u32
    }
}

impl<P: Platform> Clone for View<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for View<'_, P> {}
