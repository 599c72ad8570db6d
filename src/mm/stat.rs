//! What one group's lists on one node look like.
//!
//! Owns: [`LruStat`]. Invariants: taken under one hold of the lruvec's lock, so its numbers belong together, but for the age.
//! Lock ranks: takes `LruVec`. Used by: kernels, tests.

use super::{Mm, NoSuchGroup};
use crate::addr::NodeId;
use crate::lru::{ListKind, Moves};
use crate::memcg::MemcgId;
use crate::platform::{IrqOff, Platform};

/// A group's lists on one node, in base frames; not those of the groups below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LruStat {
    /// On each list, by [`ListKind`].
    pub lists: [u64; ListKind::COUNT],
    /// Not to be reclaimed.
    pub unevictable: u64,
    /// Moved so far; those of groups that ended below it are its own.
    pub moves: Moves,
    /// What reclaim of anonymous folios cost lately.
    pub anon_cost: u64,
    /// What reclaim of file folios cost lately.
    pub file_cost: u64,
    /// Evicted or activated so far, in this group or below.
    pub age: u64,
}

impl<P: Platform> Mm<P> {
    /// Base frames of a node that are off their lists in someone's hands ([`Isolated`](super::Isolated)) now: anonymous, and listed
    /// with files. `None` for a node that is none.
    #[must_use]
    pub fn isolated_frames(&self, node: NodeId) -> Option<[u64; 2]> {
        self.view().isolated(u32::from(node.0))
    }

    /// How a group's lists on one node are.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id, or a node that is none.
    pub fn lru_stat(&self, memcg: MemcgId, node: NodeId) -> Result<LruStat, NoSuchGroup> {
        self.memcg_usage(memcg)?;
        let node = u32::from(node.0);
        if node >= self.memcgs.nodes() {
            return Err(NoSuchGroup(memcg));
        }
        let lruvec = self.memcgs.lruvec_of(memcg.slot, node);
        let off = IrqOff::new();
        let held = self.view().lock_index(lruvec, &off);
        let held = held.ok_or(NoSuchGroup(memcg))?;
        let costs = held.lruvec.costs;
        Ok(LruStat {
            lists: held.lruvec.sizes(),
            unevictable: held.lruvec.unevictable(),
            moves: held.lruvec.moves,
            anon_cost: costs.anon,
            file_cost: costs.file,
            age: self.view().age_of(lruvec),
        })
    }
}
