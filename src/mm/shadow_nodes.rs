//! Nodes of a page cache's index that hold nothing but shadows, and how many of them may stay.
//!
//! Owns: [`ShadowNodes`]: a list of such nodes by group and node, and the shrinker that keeps it short.
//! Invariants: a shrinker's call takes out no more nodes than are above the limit when it counts them. One node of 64 places for
//! each 8 frames that a group has: then shadows reach back as far as the group's memory does if an eighth of their places are
//! in use, and cost a sixteenth of it at most (reclaim.md 3.8: frames >> (6 - 3)).
//! Lock ranks: `ListLru` while the index is asked, which may only try its own lock. Used by: kernels.

use core::fmt;

use super::Mm;
use crate::addr::NodeId;
use crate::list_lru::{ListItem, ListLru, ListLruError, Locked, Unlocked, Verdict, Walk};
use crate::memcg::MemcgId;
use crate::platform::{IrqOff, Platform};
use crate::shrinker::{
    Count, Scan, Scope, Shrinker, ShrinkerConfig, ShrinkerId, Target, TooManyShrinkers,
};

/// log2 of the frames for each node that may stay.
const FRAMES_SHIFT: u32 = 3;

/// What became of a node that an index was asked to take out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakenOut {
    /// It is out of the index: it comes off the list, and is freed.
    Done,
    /// It holds more than shadows by now: the index is about to take it off the list.
    InUse,
    /// The index is locked.
    Busy,
}

/// A page cache's index, some of whose nodes hold nothing but shadows. It adds a node to
/// [`ShadowNodes::list`] when its last page is evicted, and deletes it there when a page comes back.
pub trait ShadowIndex: Sync + 'static {
    /// Its nodes.
    type Node: ListItem;

    /// Takes a node out of the index. Runs under the list's lock, which is taken under the index's own elsewhere: so that
    /// one may only be tried.
    fn take_out(&self, node: &Self::Node) -> TakenOut;

    /// Frees a node that was taken out. Under no lock.
    fn free(&self, node: <Self::Node as ListItem>::Pointer);
}

/// The nodes of one index that hold nothing but shadows; a shrinker.
pub struct ShadowNodes<I: ShadowIndex, P: Platform> {
    mm: &'static Mm<P>,
    list: ListLru<'static, I::Node, P>,
    index: I,
}

impl<P: Platform> Mm<P> {
    /// Takes one of the `MmConfig::list_lrus` lists for the nodes of an index. Put it where it stays, and
    /// [`register`](ShadowNodes::register) it.
    ///
    /// # Errors
    /// [`ListLruError`].
    pub fn shadow_nodes<I: ShadowIndex>(
        &'static self,
        index: I,
    ) -> Result<ShadowNodes<I, P>, ListLruError> {
        Ok(ShadowNodes {
            mm: self,
            list: self.list_lru(Scope::Groups, None)?,
            index,
        })
    }

    /// How many nodes that hold nothing but shadows a group may have on a node: one for each 8 frames on its lists there and
    /// charged for its objects, or for the root, for each 8 that the node has. 0 for a group or node that is not there.
    #[must_use]
    pub fn shadow_node_limit(&self, memcg: MemcgId, node: NodeId) -> u64 {
        let frames = if memcg == MemcgId::ROOT {
            let zones = self.alloc.zones();
            let here = zones.filter(|zone| self.alloc.node_of(zone.span().start()) == Some(node));
            here.map(|zone| zone.managed()).sum()
        } else {
            self.frames_of(memcg, node).unwrap_or(0)
        };
        frames >> FRAMES_SHIFT
    }

    fn frames_of(&self, memcg: MemcgId, node: NodeId) -> Option<u64> {
        let _pin = self.memcgs.pin();
        self.memcgs.is_live(memcg).then_some(())?;
        let owner = self.memcgs.current_owner(memcg.slot, node)?;
        let lruvec = self.memcgs.lruvec_of(memcg.slot, u32::from(node.0));
        let off = IrqOff::new();
        let held = self.view().lock_index(lruvec, &off)?;
        let listed: u64 = held.lruvec.sizes().iter().sum();
        Some(listed + held.lruvec.unevictable() + self.memcgs.byte_frames(owner))
    }
}

impl<I: ShadowIndex, P: Platform> ShadowNodes<I, P> {
    /// Registers the shrinker. An object of the index costs no read: half of what is too much goes at every priority.
    ///
    /// # Errors
    /// [`TooManyShrinkers`].
    pub fn register(&'static self) -> Result<ShrinkerId, TooManyShrinkers> {
        let config = ShrinkerConfig {
            seeks: 0,
            ..ShrinkerConfig::default()
        };
        let id = self.mm.register_shrinker(self, config)?;
        // It was registered a moment ago, and only a kernel that gave the number away could have unregistered it.
        let _asked: Result<(), ListLruError> = self.list.ask(id);
        Ok(id)
    }

    /// The nodes, by group and node.
    #[must_use]
    pub fn list(&self) -> &ListLru<'static, I::Node, P> {
        &self.list
    }

    /// The index.
    #[must_use]
    pub fn index(&self) -> &I {
        &self.index
    }
}

impl<I: ShadowIndex, P: Platform> Shrinker for ShadowNodes<I, P> {
    fn count(&self, target: Target) -> Count {
        match self.list.count(target.memcg, target.node) {
            0 => Count::Empty,
            nodes => {
                let limit = self.mm.shadow_node_limit(target.memcg, target.node);
                Count::Objects(nodes.saturating_sub(limit))
            }
        }
    }

    fn scan(&self, target: Target, objects: u64) -> Scan {
        let walked = self
            .list
            .walk(target.memcg, target.node, objects, &mut Take(&self.index));
        Scan::Done {
            scanned: walked.visited,
            freed: walked.removed,
        }
    }
}

/// Takes out what it visits.
struct Take<'a, I>(&'a I);

impl<I: ShadowIndex> Walk<I::Node> for Take<'_, I> {
    fn visit(&mut self, node: &I::Node, _token: Locked<'_>) -> Verdict {
        match self.0.take_out(node) {
            TakenOut::Done => Verdict::Removed,
            TakenOut::InUse => Verdict::Rotate,
            TakenOut::Busy => Verdict::Retry,
        }
    }

    fn removed(&mut self, node: <I::Node as ListItem>::Pointer, _token: Unlocked<'_>) {
        self.0.free(node);
    }
}

impl<I: ShadowIndex, P: Platform> fmt::Debug for ShadowNodes<I, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = &self.list;
        f.debug_struct("ShadowNodes").field("list", list).finish()
    }
}
