//! Zones: a span of one node's frames, handed out in blocks of orders 0 to 18.
//!
//! Owns: [`Zone`]: its shards, the infos and bits of its lines, its counters.
//! Invariants: a frame that is free is managed and good, and is counted in exactly one shard. Blocks never leave the
//! zone's span, nor cross an absolute multiple of 2^18 frames, where shards may meet. [`Zone::check`] recounts it all.
//! Lock ranks: `Shard`, one at a time.
//! Used by: pageset, node, alloc.
//!
//! A **line** is 512 bits, one cache line, for one aligned pageblock of 512 frames; a set bit is a free frame. Beside it
//! stand its kind ([`Mobility`]) and its class, the order of its largest free block. A **shard** keeps sets of lines by
//! kind and class, so that the fullest line that can serve a request is a few bit operations away. Wholly free lines
//! form the same structure one level up, a bit to a line. No link ever lies in a free frame.

mod bad;
mod block;
mod check;
mod counts;
mod drift;
mod exchange;
mod fullness;
mod give;
mod holes;
mod index;
mod info;
mod isolate;
mod lend;
mod line;
mod mobility;
mod online;
mod pool;
mod refill;
mod reporting;
mod reserve;
mod shape;
mod shard;
mod take;
mod vacate;
mod view;
mod watermark;

#[cfg(all(test, not(loom)))]
mod tests;

pub use bad::{MarkError, WasBad};
pub(crate) use block::Block;
pub use check::ZoneFault;
pub use info::Fault;
pub(crate) use isolate::Isolation;
pub(crate) use isolate::{IsolateError, OfflineError, Purpose};
pub use mobility::Mobility;
pub(crate) use online::OnlineError;
pub(crate) use refill::Sink;
pub(crate) use reporting::REPORT;
pub use reserve::Keep;
pub use watermark::{Access, BadLevels, Level, Levels};

use crate::addr::{FrameRange, NodeId, Order, ZoneKind};
use crate::boot::{Bump, StorageFull};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::{CachePadded, Lock};

use counts::Counts;
use drift::Drift;
use fullness::Fullness;
use holes::Holes;
use index::Index;
use info::{Info, MAX_HOLES};
use line::{Line, PLACES};
use shape::Shape;
use shard::{SETS, Shard};
use watermark::Watermarks;

/// Most lines that one hold of a shard's lock changes.
pub(crate) const MAX_LINES_PER_HOLD: usize = 2016;

/// What a zone is to cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSpec {
    /// Its node.
    pub node: NodeId,
    /// Its kind.
    pub kind: ZoneKind,
    /// Its frames, holes included.
    pub span: FrameRange,
    /// Shards wanted, about two per CPU. Boundaries lie on absolute multiples of 2^18 frames, so there may be fewer;
    /// there is at least one.
    pub shards: u32,
    /// Lines, at most, that hold fewer than their 512 frames when the zone is first filled. Room is made for a few more.
    pub ragged: u32,
}

/// A span of frames of one node and kind.
#[derive(Debug)]
pub struct Zone<P: Platform> {
    spec: ZoneSpec,
    /// First frame of the first line.
    base: u64,
    shards: &'static [CachePadded<Cell<P>>],
    /// log2 of the giants in a shard.
    giants_per_shard: u32,
    /// Lines of the first giant that lie before the zone.
    skew: u32,
    /// Lines' infos, also reached through the shards.
    infos: &'static [AtomicU32],
    /// Lines' bits, also reached through the shards.
    lines: &'static [Line],
    holes: Holes,
    /// Sum of the shards' free counts, behind by `drift` at most.
    free: AtomicU64,
    drift: Drift,
    /// CPUs that the shards were made for.
    home_cpus: u32,
    /// Shards for each of them, with 32 bits of fraction, rounded up.
    home_step: u64,
    /// Frames that can be given: changes under `changing`.
    managed: AtomicU64,
    /// Frames that exist, reserved ones included.
    present: AtomicU64,
    /// Frees that named frames outside the zone or frames that were free.
    faults: AtomicU64,
    /// Frames in highatomic lines.
    reserved: AtomicU64,
    /// Frames in CMA lines.
    cma: AtomicU64,
    /// Frames marked bad.
    bad: AtomicU64,
    /// Frames lent to the hypervisor; neither free nor managed.
    ballooned: AtomicU64,
    /// Line at which the next report to the hypervisor begins; only a hint.
    report_at: AtomicU32,
    /// Whether frames are being brought online or taken offline.
    changing: AtomicBool,
    watermarks: Watermarks,
    /// Whether kinds are kept apart; off on zones too small for it.
    grouping: AtomicBool,
    /// Times a shard was locked.
    #[cfg(test)]
    holds: AtomicU64,
}

/// A shard and what may be read of it without its lock.
#[derive(Debug)]
struct Cell<P: Platform> {
    lock: Lock<Shard, P>,
    /// Copies of the shard's counts at the last release of the lock.
    available: AtomicU64,
    free: AtomicU64,
    free_cma: AtomicU64,
    free_highatomic: AtomicU64,
    isolated: AtomicU64,
    /// How full the fullest lines are, as `Fullness::lowest` has it.
    lowest: AtomicU64,
    /// The part of `free` that the zone's sum has. Written under the lock.
    reported: AtomicU64,
    /// First frame, from the zone's base.
    first: u32,
    /// One past the last frame.
    end: u32,
}

impl<P: Platform> Zone<P> {
    /// Carves the metadata of a zone. All frames are absent until [`online`](Self::online).
    pub(crate) fn build(bump: &mut Bump<'_>, spec: ZoneSpec) -> Result<Self, StorageFull> {
        let first_line = spec.span.start().0 / u64::from(PLACES);
        let lines = spec.span.end().0.div_ceil(u64::from(PLACES)) - first_line;
        // Relative frame numbers are 32 bits wide; no storage holds the lines of a longer zone.
        let lines = u32::try_from(lines.max(1))
            .ok()
            .filter(|&lines| lines <= u32::MAX / PLACES)
            .ok_or(StorageFull {
                needed: usize::MAX,
                available: 0,
            })?;
        let skew = (first_line % u64::from(PLACES)) as u32;
        let giants = (lines + skew).div_ceil(PLACES);
        let per_shard = giants
            .div_ceil(spec.shards.clamp(1, giants))
            .next_power_of_two();
        let shards = giants.div_ceil(per_shard);

        let bits = bump.slots(lines as usize, |_| Line::default())?;
        let giant_bits = bump.slots(giants as usize, |_| Line::default())?;
        let infos = bump.slots(lines as usize, |_| AtomicU32::new(Info::ABSENT.0))?;
        let giant_infos = bump.slots(giants as usize, |_| {
            AtomicU32::new(Info::ABSENT.present(0).with(0, -1).0)
        })?;
        let shapes = bump.slots(lines as usize, |_| AtomicU64::new(Shape::NONE.0))?;
        let giant_shapes = bump.slots(giants as usize, |_| AtomicU64::new(Shape::NONE.0))?;
        let holes = Holes::build(bump, holes_for(lines, spec.ragged))?;

        // The lines of shard `i`: whole giants, clipped to the zone.
        let lines_of = |i: u32| {
            let at = |i: u32| (i * per_shard * PLACES).saturating_sub(skew).min(lines);
            (at(i), at(i + 1))
        };
        let giants_of = |i: u32| (i * per_shard, ((i + 1) * per_shard).min(giants));
        let words_of = |i: u32| {
            let ((line, line_end), (giant, giant_end)) = (lines_of(i), giants_of(i));
            (
                Index::words(SETS, line_end - line),
                Index::words(10, giant_end - giant),
            )
        };
        let bounds_of = |i: u32| Fullness::bounds(lines_of(i).1 - lines_of(i).0);
        let bounds = bump.slots((0..shards).map(bounds_of).sum(), |_| Fullness::fresh())?;
        let words = (0..shards).map(words_of).map(|(a, b)| a + b).sum();
        let words = bump.slots(words, |_| AtomicU64::new(0))?;
        let (mut at, mut bound) = (0, 0);
        let cells = bump.slots(shards as usize, |i| {
            let i = i as u32;
            let ((from, to), (giant, giant_end)) = (lines_of(i), giants_of(i));
            let (of_lines, of_giants) = words_of(i);
            let (split, end) = (at + of_lines, at + of_lines + of_giants);
            let shard = Shard {
                lines: part(bits, from, to),
                infos: part(infos, from, to),
                shapes: part(shapes, from, to),
                giants: part(giant_bits, giant, giant_end),
                giant_shapes: part(giant_shapes, giant, giant_end),
                giant_infos: part(giant_infos, giant, giant_end),
                index: Index::over(part(words, at as u32, split as u32), to - from),
                fullness: Fullness::over(
                    part(bounds, bound as u32, (bound + bounds_of(i)) as u32),
                    to - from,
                ),
                pool: Index::over(part(words, split as u32, end as u32), giant_end - giant),
                holes,
                skew: if i == 0 { skew } else { 0 },
                counts: Counts::default(),
                #[cfg(all(test, debug_assertions))]
                work: shard::Work::default(),
            };
            at = end;
            bound += bounds_of(i);
            CachePadded(Cell::new(shard, from * PLACES, to * PLACES))
        })?;
        // Shards were wanted two per CPU; where there are fewer, CPUs share them evenly.
        let cpus = u64::from(spec.shards / 2).max(1);
        let home_step = (u64::from(shards) << 32).div_ceil(cpus);
        Ok(Self {
            spec,
            base: first_line * u64::from(PLACES),
            shards: cells,
            giants_per_shard: per_shard.trailing_zeros(),
            skew,
            infos,
            lines: bits,
            holes,
            free: AtomicU64::new(0),
            drift: Drift::default(),
            home_cpus: cpus as u32,
            home_step,
            managed: AtomicU64::new(0),
            present: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            cma: AtomicU64::new(0),
            bad: AtomicU64::new(0),
            ballooned: AtomicU64::new(0),
            report_at: AtomicU32::new(0),
            changing: AtomicBool::new(false),
            watermarks: Watermarks::default(),
            grouping: AtomicBool::new(true),
            #[cfg(test)]
            holds: AtomicU64::new(0),
        })
    }
}

impl<P: Platform> Cell<P> {
    fn new(shard: Shard, first: u32, end: u32) -> Self {
        Self {
            lock: Lock::new(shard),
            available: AtomicU64::new(0),
            free: AtomicU64::new(0),
            free_cma: AtomicU64::new(0),
            free_highatomic: AtomicU64::new(0),
            isolated: AtomicU64::new(0),
            lowest: AtomicU64::new(u64::MAX),
            reported: AtomicU64::new(0),
            first,
            end,
        }
    }

    /// Its lines, from its own start.
    fn lines(&self) -> core::ops::Range<u32> {
        0..(self.end - self.first) / PLACES
    }

    /// Whether the shard seemed able to serve a request without a fallback.
    #[inline]
    fn may_serve(&self, kind: Mobility, order: Order) -> bool {
        self.seen().can_serve(kind, order.get())
    }

    /// Whether some kind that lends to `kind` seemed able to.
    fn may_lend(&self, kind: Mobility, order: Order) -> bool {
        let seen = self.seen();
        let lenders = kind.fallbacks();
        lenders
            .iter()
            .any(|&lender| seen.can_serve(lender, order.get()))
    }

    #[inline]
    fn seen(&self) -> Counts {
        // Relaxed: only a hint of where to look; the shard decides under its lock.
        Counts {
            available: self.available.load(Relaxed),
            ..Counts::default()
        }
    }
}

/// Records of lines with holes: every memory map has a few, and bad frames stay few.
fn holes_for(lines: u32, ragged: u32) -> usize {
    (lines as usize)
        .min(lines as usize / 64 + 16 + ragged as usize)
        .min(MAX_HOLES)
}

/// `from..to` of slots; nothing while measuring.
fn part<T>(slots: &'static [T], from: u32, to: u32) -> &'static [T] {
    slots.get(from as usize..to as usize).unwrap_or(&[])
}
