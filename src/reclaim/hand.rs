//! Folios in reclaim's hands.
//!
//! Owns: [`InHand`], folios that go back to their lists; [`Gone`], those that do not.
//! Invariants: whatever ends early, also by a hook that panics, leaves no folio in hand: what stays is put back and what was frozen
//! is freed, each under as few holds as its lruvecs need.
//! Lock ranks: takes `LruVec`, then what freeing takes, when dropped. Used by: scan.

use super::evict::{Evict, Evicted};
use crate::addr::NodeId;
use crate::frame::FrameNo;
use crate::lru::{End, Scanned};
use crate::memcg::{LruVecIndex, MemcgId};
use crate::mm::{Isolated, Mm};
use crate::platform::IrqOff;

/// Isolated folios; put back together when dropped.
pub(super) struct InHand<'m, P: Evict> {
    mm: &'m Mm<P>,
    frames: Scanned,
    /// How many were taken from the front again.
    taken: usize,
    /// Where they go when they are put back.
    end: End,
}

impl<'m, P: Evict> InHand<'m, P> {
    /// Room for folios from the old end of a list, to be looked at: those that are not go back there.
    pub(super) fn unseen(mm: &'m Mm<P>) -> Self {
        let (frames, taken, end) = (Scanned::new_const(), 0, End::Tail);
        Self {
            mm,
            frames,
            taken,
            end,
        }
    }

    /// Where an isolation puts them.
    pub(super) fn frames(&mut self) -> &mut Scanned {
        &mut self.frames
    }

    /// Room for those that were looked at and stay.
    pub(super) fn seen(mm: &'m Mm<P>) -> Self {
        let (frames, taken, end) = (Scanned::new_const(), 0, End::Head);
        Self {
            mm,
            frames,
            taken,
            end,
        }
    }

    pub(super) fn push(&mut self, folio: Isolated<'m, P>) {
        self.frames.push(folio.into_frame());
    }

    /// How many are left in hand.
    pub(super) fn len(&self) -> usize {
        self.frames.len() - self.taken
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &FrameNo> {
        self.frames[self.taken..].iter()
    }
}

/// The next one leaves these hands for the caller's.
impl<'m, P: Evict> Iterator for InHand<'m, P> {
    type Item = Isolated<'m, P>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let frame = *self.frames.get(self.taken)?;
        self.taken += 1;
        Some(Isolated::new(self.mm, frame))
    }
}

impl<P: Evict> Drop for InHand<'_, P> {
    #[inline]
    fn drop(&mut self) {
        let stay = &self.frames[self.taken..];
        if !stay.is_empty() {
            let off = IrqOff::new();
            let view = self.mm.view();
            let dead = match self.end {
                End::Head => view.put_back(stay, &off),
                End::Tail => view.put_back_at(End::Tail, stay.iter().rev(), &off),
            };
            self.mm.free_dead(&dead, &off);
        }
    }
}

/// Frames whose references were frozen, of one node, taken by reclaim of one group; freed together when dropped. That group's
/// lruvec ages by them then.
pub(super) struct Gone<'m, P: Evict> {
    mm: &'m Mm<P>,
    root: MemcgId,
    node: NodeId,
    lruvec: LruVecIndex,
    /// The age of that lruvec, these frames included.
    age: u64,
    /// Base frames.
    count: u64,
    frames: Scanned,
}

impl<'m, P: Evict> Gone<'m, P> {
    pub(super) fn new(mm: &'m Mm<P>, root: MemcgId, node: u32) -> Self {
        let lruvec = mm.memcgs().lruvec_of(root.slot, node);
        Self {
            mm,
            root,
            node: NodeId(node as u8),
            lruvec,
            age: mm.view().age_of(lruvec),
            count: 0,
            frames: Scanned::new(),
        }
    }

    /// Hands a frozen folio's shadow to the kernel. Returns its base frames.
    pub(super) fn let_go(&mut self, frame: FrameNo) -> u64 {
        let folio = self.mm.frozen(frame);
        let frames = folio.order().frames();
        let gone = Evicted {
            pfn: folio.pfn(),
            order: folio.order(),
            word: folio.word(),
            backing: folio.backing(),
            shadow: self
                .mm
                .view()
                .shadow(self.root, self.node, self.age, folio.record().flags()),
        };
        self.age += frames;
        self.count += frames;
        self.frames.push(frame); // before the hook, which may panic
        P::evicted(self.mm, &gone);
        frames
    }
}

impl<P: Evict> Drop for Gone<'_, P> {
    #[inline]
    fn drop(&mut self) {
        if self.count > 0 {
            self.mm.view().age(self.lruvec, self.count);
            self.mm.free_dead(&self.frames, &IrqOff::new());
        }
    }
}
