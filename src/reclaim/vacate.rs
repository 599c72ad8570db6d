//! Emptying ranges of frames for those who need just these.
//!
//! Owns: [`Mm::vacate`]. Invariants: a folio that cannot move stays where it is, mapped as before; one that moves stays on its node,
//! charged as before. Each call looks at each frame of its run twice, at most.
//! Lock ranks: none is held when a hook is called; takes `LruBatch`, `LruVec`, `Pageset`, `Shard` in turn. Used by: kernels.

use super::compact::Migrate;
use crate::addr::FrameRange;
use crate::alloc::{Moved, Request};
use crate::mm::Mm;
use crate::zone::Mobility;

impl<P: Migrate> Mm<P> {
    /// Moves the folios of a run of frames elsewhere, as far as they can move: the hook for
    /// [`alloc_contig`](crate::PageAllocator::alloc_contig), [`offline`](crate::PageAllocator::offline) and
    /// [`Cma::alloc`](crate::Cma::alloc). Frames that are no folio's, and folios that are in use or for which no frames are
    /// free on their node, stay: the caller of those gets an error that names one.
    ///
    /// ```
    /// # use framekeeper::{FrameRange, Migrate, Mm, Pfn};
    /// # fn unplug<P: Migrate>(mm: &Mm<P>) -> Result<(), Box<dyn core::error::Error>> {
    /// let module = FrameRange::new(Pfn(0x8_0000), Pfn(0x9_0000));
    /// mm.allocator().offline(module, |in_use| mm.vacate(in_use))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn vacate(&self, run: FrameRange) -> Moved {
        if !self.move_listed(run) {
            // What waits in a batch has a reference too many, and may be on no list yet.
            self.drain_lru();
            self.move_listed(run);
        }
        Moved::Tried
    }

    /// Moves what is on lists. Returns whether that was every frame of the run.
    fn move_listed(&self, run: FrameRange) -> bool {
        let Some(node) = self.allocator().node_of(run.start()) else {
            return true;
        };
        let mut moved = 0;
        // A large folio may begin before the run and reach into it.
        let begin = self.head_of(run.start()).unwrap_or(run.start());
        let (mut next, end) = self.frame_numbers(FrameRange::new(begin, run.end()));
        while next < end {
            for folio in self.isolate_some(&mut next, end) {
                let order = folio.order();
                let request = Request::new(order).mobility(Mobility::Movable);
                let Ok(target) = self.try_alloc(request.only_node(node)) else {
                    continue; // dropped: put back
                };
                if self.migrate(folio, target.into_block()) {
                    moved += order.frames();
                }
            }
        }
        moved >= run.frames()
    }
}
