//! Free blocks out of scattered free frames, by moving what is between them.
//!
//! Owns: [`Migrate`], what the kernel does for it; [`Mm::compact`], [`Mm::compact_zone`]; the two scanners of a zone.
//! Invariants: folios move from lower lines to higher ones, never back, so the scanners meet after as many steps as the zone has
//! lines. A call looks at no more lines than its budget; the next one goes on where it ended. One thread compacts a
//! zone at a time. A folio that cannot move stays where it is, mapped as before.
//! Lock ranks: none is held when a hook is called; takes `LruBatch`, `LruVec`, `Pageset`, `Shard` in turn. Used by: kernels.

use super::evict::{Evict, Release, Unmap};
use crate::addr::{NodeId, Order, Pfn, ZoneKind};
use crate::frame::Flags;
use crate::mm::{Frozen, Isolated, Mm, Scan};
use crate::platform::IrqOff;
use crate::zone::{Block, Mobility, Zone};

/// A move that the kernel is asked to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moving {
    /// First frame now.
    pub from: Pfn,
    /// First frame from now on.
    pub to: Pfn,
    /// log2 of the number of frames.
    pub order: Order,
    /// The kernel's own word of the folio.
    pub word: u64,
}

/// Whether contents were copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// They were: the new frames stand for the folio.
    Done,
    /// They must stay where they are.
    Refused,
}

/// How a kernel lets folios move to other frames. For each, [`Evict::unmap`] and [`Evict::release`] are called first. Then nobody
/// has a reference, `copy` copies, and [`Evict::remap`] gives the folio back: in its new frames, or, if it could not move, in its old
/// ones. Folios that are being written are left alone.
pub trait Migrate: Evict {
    /// Copies the contents. Nobody has a reference to the old frames or can take one; the new ones are nobody's yet.
    fn copy(moving: &Moving) -> Copied;
}

/// Why a compaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompactStop {
    /// A free block of the order is there.
    Enough,
    /// The scanners met in every zone: there is no more to move.
    Exhausted,
    /// As many lines were looked at as one call may; call again to go on.
    Budget,
    /// Others compact every zone that was left, or the caller is a hook of one who does.
    Busy,
}

/// What a compaction did.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compacted {
    /// Base frames moved.
    pub moved: u64,
    /// Base frames of folios that could not be.
    pub refused: u64,
    /// Lines of 512 frames that were looked at.
    pub lines: u32,
    /// Why it ended.
    pub stop: CompactStop,
}

/// Lines that one call looks at: 128 MiB of 4 KiB pages.
const LINES: u32 = 64;

impl<P: Migrate> Mm<P> {
    /// Moves folios within the node's zones until one has a free block of `order` for movable frames. Looks at a bounded number
    /// of lines; [`CompactStop::Budget`] asks to be called again. Not for interrupt handlers.
    pub fn compact(&self, node: NodeId, order: Order) -> Compacted {
        self.compact_zones(node, order, |_| true)
    }

    /// As [`compact`](Self::compact), within one zone: for a block that must lie in it. [`CompactStop::Exhausted`] if there is none.
    pub fn compact_zone(&self, node: NodeId, zone: ZoneKind, order: Order) -> Compacted {
        self.compact_zones(node, order, |kind| kind == zone)
    }

    fn compact_zones(
        &self,
        node: NodeId,
        order: Order,
        wanted: impl Fn(ZoneKind) -> bool,
    ) -> Compacted {
        let mut done = Compacted {
            moved: 0,
            refused: 0,
            lines: 0,
            stop: CompactStop::Exhausted,
        };
        // What waits in batches has a reference too many, and is on no list; what waits in pagesets is not free in its line.
        self.drain_lru();
        self.allocator().drain_all();
        let zones = self.allocator().zones_of(node);
        for (index, _, zone) in zones.filter(|&(_, kind, _)| wanted(kind)) {
            let Some(scanners) = self.scanners.get(index as usize) else {
                continue;
            };
            if zone.could_serve(order, Mobility::Movable) {
                done.stop = CompactStop::Enough;
                return done;
            }
            let Some(mut scan) = Scan::claim(scanners, zone.line_count()) else {
                done.stop = CompactStop::Busy;
                continue;
            };
            match self.compact_within(zone, order, &mut scan, &mut done) {
                CompactStop::Exhausted => {}
                stop => {
                    done.stop = stop;
                    return done;
                }
            }
        }
        done
    }

    fn compact_within(
        &self,
        zone: &Zone<P>,
        order: Order,
        scan: &mut Scan<'_>,
        done: &mut Compacted,
    ) -> CompactStop {
        while scan.source < scan.target {
            if done.lines == LINES {
                return CompactStop::Budget;
            }
            done.lines += 1;
            if self.is_worth_emptying(zone, scan.source, order) {
                self.empty_line(zone, scan, done);
                // Once more what this put in pagesets: reclaim beside it frees to them.
                if zone.could_serve(order, Mobility::Movable) {
                    return CompactStop::Enough;
                }
            }
            scan.source += 1;
        }
        CompactStop::Exhausted
    }

    /// Whether moving a line's folios could help: for a block as large as a line, only if all that is not free is on lists.
    fn is_worth_emptying(&self, zone: &Zone<P>, line: u32, order: Order) -> bool {
        let Some(line) = zone.line_use(line).filter(|line| line.is_source) else {
            return false;
        };
        let whole = 1 << Order::PAGEBLOCK.get();
        if order < Order::PAGEBLOCK {
            return line.free > 0;
        }
        let listed = self.listed_frames(line.frames);
        line.frames.frames() == whole && listed > 0 && listed + u64::from(line.free) >= whole
    }

    /// Moves every folio of the line at the scan's source that can move.
    fn empty_line(&self, zone: &Zone<P>, scan: &mut Scan<'_>, done: &mut Compacted) {
        let Some(line) = zone.line_use(scan.source) else {
            return;
        };
        let (mut next, end) = self.frame_numbers(line.frames);
        while next < end {
            for folio in self.isolate_some(&mut next, end) {
                let order = folio.order();
                let Some(target) = self.take_target(zone, scan, order) else {
                    done.refused += order.frames();
                    continue; // dropped: put back
                };
                if self.migrate(folio, target) {
                    done.moved += order.frames();
                } else {
                    done.refused += order.frames();
                }
            }
        }
    }

    /// A block of `order` from the highest line above the source that has one.
    fn take_target(&self, zone: &Zone<P>, scan: &mut Scan<'_>, order: Order) -> Option<Block> {
        let off = IrqOff::new();
        let mut line = scan.target;
        while line > scan.source + 1 {
            let fits = zone.line_use(line - 1).is_some_and(|line| line.is_target);
            let target = || self.allocator().take_target(zone, line - 1, order, &off);
            if fits && let Some(block) = target() {
                return Some(block);
            }
            line -= 1;
            // A larger folio may be too large for what is free here, though others fit.
            if order == Order::ZERO {
                scan.target = line;
            }
        }
        None
    }

    /// Moves a folio to the block and says whether it did; if not, the block goes back to its zone.
    pub(super) fn migrate(&self, folio: Isolated<'_, P>, block: Block) -> bool {
        let mut target = Target(self, Some(block));
        if folio.record().flags().contains(Flags::WRITEBACK) || P::unmap(&folio) == Unmap::Busy {
            return false;
        }
        let unmapped = Unmapped(Some(folio));
        if unmapped.0.as_ref().map(P::release) != Some(Release::Done) {
            return false;
        }
        let Some(frozen) = unmapped.freeze() else {
            return false; // someone uses it
        };
        let Some((from, order, word)) = frozen.0.as_ref().map(Frozen::parts) else {
            return false;
        };
        let to = target.1.as_ref().map_or(from, Block::pfn);
        let moving = Moving {
            from,
            to,
            order,
            word,
        };
        P::copy(&moving) == Copied::Done && frozen.move_to(&mut target)
    }
}

/// A block for a folio to move to, given back to its zone when dropped.
struct Target<'m, P: Evict>(&'m Mm<P>, Option<Block>);

impl<P: Evict> Drop for Target<'_, P> {
    fn drop(&mut self) {
        if let Some(block) = self.1.take() {
            self.0.allocator().give_to_zone(block, &IrqOff::new());
        }
    }
}

/// An unmapped folio: given back to the kernel, and then to its list, when dropped, also by a hook that panics.
struct Unmapped<'m, P: Evict>(Option<Isolated<'m, P>>);

impl<'m, P: Evict> Unmapped<'m, P> {
    fn freeze(mut self) -> Option<Unreachable<'m, P>> {
        match self.0.take()?.freeze() {
            Ok(frozen) => Some(Unreachable(Some(frozen))),
            Err(folio) => {
                self.0 = Some(folio);
                None
            }
        }
    }
}

impl<P: Evict> Drop for Unmapped<'_, P> {
    fn drop(&mut self) {
        if let Some(folio) = &self.0 {
            P::remap(folio);
        }
    }
}

/// The same for a folio that is frozen too.
struct Unreachable<'m, P: Evict>(Option<Frozen<'m, P>>);

impl<P: Evict> Unreachable<'_, P> {
    /// Moves the folio and gives it back to the kernel in its new frames; says whether it could.
    fn move_to(mut self, target: &mut Target<'_, P>) -> bool {
        let (Some(frozen), Some(block)) = (self.0.take(), target.1.take()) else {
            return false;
        };
        match frozen.move_to(block) {
            Ok(moved) => {
                drop(Unmapped(Some(moved)));
                true
            }
            Err((frozen, block)) => {
                (self.0, target.1) = (Some(frozen), Some(block));
                false
            }
        }
    }
}

impl<P: Evict> Drop for Unreachable<'_, P> {
    fn drop(&mut self) {
        if let Some(frozen) = self.0.take() {
            drop(Unmapped(Some(frozen.thaw())));
        }
    }
}
