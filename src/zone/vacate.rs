//! What compaction asks of a zone: how its lines are used, and single blocks of a line of its choice.
//!
//! Owns: [`LineUse`]. Invariants: none of its own; a look without the lock is a hint.
//! Lock ranks: `Shard`, one at a time, one block a hold. Used by: alloc (compaction).

use super::info::Info;
use super::line::PLACES;
use super::{Mobility, Zone};
use crate::addr::{FrameRange, Order, Pfn};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;
use crate::zone::Block;

/// How a line is used, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LineUse {
    /// Its frames, holes included.
    pub(crate) frames: FrameRange,
    /// How many of them are free.
    pub(crate) free: u32,
    /// Whether frames that were migrated may come here: some are free, not all, and what is here can be migrated too.
    pub(crate) is_target: bool,
    /// Whether frames may be migrated away from here: not all are free already, and nobody isolated the line.
    pub(crate) is_source: bool,
}

impl<P: Platform> Zone<P> {
    /// Number of lines.
    pub(crate) fn line_count(&self) -> u32 {
        self.infos.len() as u32
    }

    /// How a line is used now.
    pub(crate) fn line_use(&self, line: u32) -> Option<LineUse> {
        let info = Info(self.infos.get(line as usize)?.load(Relaxed));
        let start = self.base + u64::from(line) * u64::from(PLACES);
        let usable = !info.is_absent() && !info.is_isolated() && !info.is_whole();
        let movable = matches!(info.kind(), Mobility::Movable | Mobility::Cma);
        let end = (start + u64::from(PLACES)).min(self.span().end().0);
        Some(LineUse {
            frames: FrameRange::new(Pfn(start), Pfn(end.max(start))),
            free: info.free(),
            is_target: usable && movable && info.free() > 0,
            is_source: usable,
        })
    }

    /// Takes a block of `order`, below that of a line, from a line that is not wholly free.
    pub(crate) fn take_from_line(&self, line: u32, order: Order, off: &IrqOff<P>) -> Option<Block> {
        if line >= self.line_count() {
            return None;
        }
        let cell = self.cell_of(line * PLACES);
        let local = self.with(cell, off, |shard| {
            let line = line - cell.first / PLACES;
            let info = shard.info(line);
            let serves = info.class() >= order.get() as i8;
            if !serves || info.is_whole() || info.is_isolated() {
                return None;
            }
            shard.take_in(line, order.get())
        })?;
        let pfn = Pfn(self.base + u64::from(cell.first + local));
        Some(Block::new(pfn, order))
    }

    /// Whether a request of a kind could be served without a fallback, as far as can be told without a lock.
    pub(crate) fn could_serve(&self, order: Order, mobility: Mobility) -> bool {
        let mut shards = self.shards_from(0);
        shards.any(|cell| cell.may_serve(mobility, order))
    }
}
