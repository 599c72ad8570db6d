//! Groups as kernels handle them.
//!
//! Owns: creation, removal and usage of memcgs. Invariants: a removed group's frames belong to its parent before the
//! call returns; removing touches lists, not frames or objects.
//! Lock ranks: takes `MemcgTree` (under it, for a new group, `ListLru`), then `ListLru` pairs, then `LruVec` pairs; waits for grace
//! periods holding none. Used by: kernels, reclaim.

use core::fmt;

use super::Mm;
use crate::alloc::{Pages, Request};
use crate::memcg::{CreateError, MemcgId, RemoveError};
use crate::platform::{IrqOff, Platform};
use crate::zone::Block;

/// The id names no living group (or the root, where that is not allowed).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSuchGroup(pub MemcgId);

impl<P: Platform> Mm<P> {
    /// Creates a group without limit under `parent`.
    ///
    /// # Errors
    /// [`CreateError`], with nothing changed.
    pub fn create_memcg(&self, parent: MemcgId) -> Result<MemcgId, CreateError> {
        let mut room = self.room()?;
        let off = IrqOff::new();
        let mut create = || {
            self.memcgs.create(parent, &off, |memcg| {
                self.lists().open(memcg, &off);
                if let Some(pages) = room.take() {
                    let (pfn, order) = pages.into_block().into_parts();
                    self.memcgs.begin_room(memcg.slot, pfn, order);
                }
            })
        };
        match create() {
            Err(CreateError::OwnersExhausted) => {
                // Frames of dead groups may hold slots that their heirs do not need.
                self.reown_all();
                create()
            }
            created => created,
        }
    }

    /// The memory of a new group, if it needs any.
    fn room(&self) -> Result<Option<Pages<'_, P>>, CreateError> {
        let Some(order) = self.memcgs.room() else {
            return Ok(None);
        };
        let pages = self.alloc.try_alloc(Request::new(order)).ok();
        // Back in the allocator if the direct map does not reach it.
        let pages = pages.filter(|pages| self.memcgs.reaches(pages.pfn()));
        let order = order.get();
        pages.map(Some).ok_or(CreateError::NoMemory { order })
    }

    /// Removes a group without children. Its frames, its objects on lists, its shrinkers' deferred work, and its charges still to
    /// come to an end, are its parent's from now on.
    ///
    /// Waits for grace periods: not for interrupt handlers.
    ///
    /// # Errors
    /// [`RemoveError`], with nothing changed.
    pub fn remove_memcg(&self, memcg: MemcgId) -> Result<(), RemoveError> {
        let removal = self.memcgs.begin_removal(memcg, &IrqOff::new())?;
        // Charges that saw the group alive end here; later ones see it dying.
        self.memcgs.wait_for_charges();
        // Lists of objects before owners: what is still on the child's lists is found through its owner.
        self.lists().reparent(&removal, &IrqOff::new());
        self.shrinkers.reparent(&self.memcgs, &removal);
        self.view().reparent(&removal, &IrqOff::new());
        // Uncharges that still saw the child end here; later ones see the parent.
        self.memcgs.wait_for_charges();
        self.memcgs.put_owners(removal.child);
        if let Some((pfn, order)) = self.memcgs.end_room(removal.child) {
            // Whoever still reads its counts ends here.
            self.memcgs.wait_for_charges();
            self.alloc.free_blocks([Block::new(pfn, order)]);
        }
        self.memcgs.finish_removal(removal, &IrqOff::new());
        if self.memcgs.owners_are_few() {
            let _: super::reown::Looked = self.reown();
        }
        Ok(())
    }

    /// Frames charged to a group and those below it.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn memcg_usage(&self, memcg: MemcgId) -> Result<u64, NoSuchGroup> {
        self.memcgs.usage(memcg).ok_or(NoSuchGroup(memcg))
    }

    /// Groups that exist, the root and dying ones included.
    #[must_use]
    pub fn memcg_count(&self) -> u32 {
        self.memcgs.count(&IrqOff::new())
    }
}

impl fmt::Display for NoSuchGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the group {} does not exist, or is the root", self.0)
    }
}

impl core::error::Error for NoSuchGroup {}
