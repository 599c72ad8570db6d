//! Lists of the kernel's objects, and the shrinkers of its caches, as kernels set them up.
//!
//! Owns: creation of list_lrus; registration of shrinkers. Invariants: as the layers' own.
//! Lock ranks: takes `Shrinkers`. Used by: kernels.

use super::Mm;
use crate::addr::NodeId;
use crate::list_lru::{ListItem, ListLru, ListLruError};
use crate::memcg::MemcgId;
use crate::platform::Platform;
use crate::shrinker::{
    Scope, Shrinker, ShrinkerConfig, ShrinkerId, TooManyShrinkers, UnregisterError,
};

impl<P: Platform> Mm<P> {
    /// Takes one of the `MmConfig::list_lrus` lists for objects of type `T`. If a shrinker is named, its bits are set when objects
    /// come to a list that was empty.
    ///
    /// # Errors
    /// [`ListLruError`].
    pub fn list_lru<T: ListItem>(
        &self,
        scope: Scope,
        shrinker: Option<ShrinkerId>,
    ) -> Result<ListLru<'_, T, P>, ListLruError> {
        ListLru::new(self.lists(), scope, shrinker)
    }

    /// Registers a shrinker. Reclaim may call it before this returns.
    ///
    /// # Errors
    /// [`TooManyShrinkers`].
    pub fn register_shrinker(
        &self,
        shrinker: &'static dyn Shrinker,
        config: ShrinkerConfig,
    ) -> Result<ShrinkerId, TooManyShrinkers> {
        self.shrinkers.register(shrinker, config)
    }

    /// Ends new calls of a shrinker, and removes it if none is running.
    ///
    /// # Errors
    /// [`UnregisterError::Running`]: unregister again when the running calls have returned.
    pub fn unregister_shrinker(&self, id: ShrinkerId) -> Result<(), UnregisterError> {
        self.shrinkers.unregister(id)
    }

    /// Tells reclaim that a shrinker has objects of a group on a node, after they were added. A [`ListLru`] that names the shrinker
    /// does it by itself; only shrinkers that keep objects otherwise need it. An id that names nothing, and the root, which is
    /// always asked, need nothing.
    pub fn mark_shrinkable(&self, id: ShrinkerId, memcg: MemcgId, node: NodeId) {
        // Pinned: a group seen alive keeps its bits, or gives them to its parent after this.
        let _pin = self.memcgs.pin();
        let node = u32::from(node.0);
        if let Some(slot) = self.shrinkers.slot_of(id)
            && node < self.memcgs.nodes()
            && self.memcgs.is_live(memcg)
        {
            let lruvec = self.memcgs.lruvec_of(memcg.slot, node);
            self.shrinkers.mark(slot, lruvec);
        }
    }
}
