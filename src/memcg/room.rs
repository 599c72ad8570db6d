//! Memory of one group, from the allocator while it lives.
//!
//! Owns: [`GroupMemory`]; what a group's memory is large enough for, and where it is.
//! Invariants: with [`GroupMemory::OnDemand`] a group has a block of its own from before its id is published until a grace period after
//! its counts were given to its parent. The root's counts are carved.
//! Lock ranks: `begin` runs under `MemcgTree`; the block comes from, and goes to, the allocator under no lock. Used by: mm (groups).

use super::stats::Stats;
use super::{Memcgs, Slot};
use crate::addr::{FrameRange, Order, Pfn};
use crate::platform::Platform;
use crate::sync::atomic::Ordering;

/// Where the counts by CPU of a group are kept: 64 bytes for each CPU and one more, on each node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum GroupMemory {
    /// Carved for as many groups as are configured. Creating a group needs no memory.
    #[default]
    Carved,
    /// In a block of each group's own, which is allocated when it is created and free again when it has ended: for many CPUs,
    /// or many more groups configured than there are. The direct map reaches such a block as one range.
    OnDemand,
}

/// No block.
pub(super) const NO_ROOM: u64 = 0;

impl<P: Platform> Memcgs<P> {
    /// The block that a new group needs; `None` if it needs none.
    pub(crate) fn room(&self) -> Option<Order> {
        let counts = self.stats.lent_counts(self.nodes);
        let frames = Stats::<P>::bytes_of(counts).div_ceil(1 << P::PAGE_SHIFT);
        (counts > 0).then(|| {
            let order = frames.next_power_of_two().trailing_zeros();
            Order::new(order as u8).unwrap_or(Order::MAX)
        })
    }

    /// Whether a block of frames can be a group's memory.
    pub(crate) fn reaches(&self, pfn: Pfn) -> bool {
        !P::direct_map(pfn.addr(P::PAGE_SHIFT)).is_null()
    }

    /// Makes a block that the caller owns the memory of a group that is not published yet.
    pub(crate) fn begin_room(&self, slot: Slot, pfn: Pfn, order: Order) {
        let frames = FrameRange::block(pfn, order);
        for node in 0..self.nodes {
            let made = self.stats.begin(self.lruvec_of(slot, node), node, frames);
            debug_assert!(made, "the block is large enough and in reach");
        }
        let room = &self.groups[slot as usize].room;
        room.store(pfn.0 + 1, Ordering::Relaxed);
    }

    /// Ends a dead group's memory, whose counts its parent has. After a grace period the block is the caller's to free.
    pub(crate) fn end_room(&self, slot: Slot) -> Option<(Pfn, Order)> {
        let order = self.room()?;
        let room = self.groups[slot as usize]
            .room
            .swap(NO_ROOM, Ordering::Relaxed);
        (0..self.nodes).for_each(|node| self.stats.end(self.lruvec_of(slot, node)));
        Some((Pfn(room.checked_sub(1)?), order))
    }
}
