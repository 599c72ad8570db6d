//! What compaction asks of the allocator.
//!
//! Owns: access to the zones by index, past the pagesets. Invariants: a block taken here has one owner, the caller.
//! Lock ranks: `Shard`. Used by: reclaim (compaction).

use super::PageAllocator;
use crate::addr::{NodeId, Order, ZoneKind};
use crate::platform::{IrqOff, Platform};
use crate::zone::{Block, Zone};

impl<P: Platform> PageAllocator<P> {
    /// Number of zones.
    pub(crate) fn zone_count(&self) -> u32 {
        self.nodes.zones().len() as u32
    }

    /// The zones of a node: index, kind and zone.
    pub(crate) fn zones_of(
        &self,
        node: NodeId,
    ) -> impl Iterator<Item = (u32, ZoneKind, &'static Zone<P>)> + use<P> {
        (0..)
            .zip(self.nodes.zones())
            .filter(move |(_, zone)| zone.node == node)
            .map(|(index, zone)| (index, zone.kind, &zone.zone))
    }

    /// Takes a block for a folio to move to from a line of a zone. Those that were written to while they were free are leaked.
    pub(crate) fn take_target(
        &self,
        zone: &Zone<P>,
        line: u32,
        order: Order,
        off: &IrqOff<P>,
    ) -> Option<Block> {
        loop {
            let block = zone.take_from_line(line, order, off)?;
            if self.damage_in(block.frames(), order.frames()).is_none() {
                return Some(block);
            }
            // What is leaked stays out of the line, so this ends.
            let _ = block.into_parts();
        }
    }

    /// Gives a block straight back to its zone, so that it merges with its neighbours at once.
    pub(crate) fn give_to_zone(&self, block: Block, off: &IrqOff<P>) {
        if let Some(index) = self.nodes.zone_of(block.pfn()) {
            self.clear(|| block.frames());
            let given = self.nodes.zone(index).give(block, off);
            debug_assert!(given.is_ok(), "a block that was taken from the zone");
            self.reopen_pagesets(index);
        }
    }
}
