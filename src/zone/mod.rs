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
#![allow(dead_code, reason = "pageset and alloc use it")]

mod block;
mod check;
mod holes;
mod index;
mod info;
mod line;
mod mobility;
mod online;
mod refill;
mod shard;
mod vacate;
pub mod watermark;

#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use block::Block;
pub use check::ZoneFault;
pub use info::Fault;
pub use mobility::Mobility;
pub use online::OnlineError;
pub(crate) use refill::Sink;

use core::fmt;

use crate::addr::{FrameRange, NodeId, Order, Pfn, ZoneKind};
use crate::boot::{Bump, StorageFull};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::{CachePadded, Lock};

use holes::Holes;
use index::Index;
use info::{Info, MAX_HOLES};
use line::{Line, PLACES, WHOLE};
use shard::{Counts, SETS, Shard};

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
    holes: Holes,
    /// Sum of the shards' free counts, each at most `drift` behind.
    free: AtomicU64,
    /// How far a shard's free count may move before it is added to `free`.
    drift: AtomicU64,
    /// Frames that can be given: changes under `changing`.
    managed: AtomicU64,
    /// Frames that exist, reserved ones included.
    present: AtomicU64,
    /// Frees that named frames outside the zone or frames that were free.
    faults: AtomicU64,
    /// Whether frames are being brought online or taken offline.
    changing: AtomicBool,
    /// Whether kinds are kept apart; off on zones too small for it.
    grouping: AtomicBool,
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
        let holes = Holes::build(bump, holes_for(lines))?;

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
        let words = (0..shards).map(words_of).map(|(a, b)| a + b).sum();
        let words = bump.slots(words, |_| AtomicU64::new(0))?;
        let mut at = 0;
        let cells = bump.slots(shards as usize, |i| {
            let i = i as u32;
            let ((from, to), (giant, giant_end)) = (lines_of(i), giants_of(i));
            let (of_lines, of_giants) = words_of(i);
            let (split, end) = (at + of_lines, at + of_lines + of_giants);
            let shard = Shard {
                lines: part(bits, from, to),
                infos: part(infos, from, to),
                giants: part(giant_bits, giant, giant_end),
                giant_infos: part(giant_infos, giant, giant_end),
                index: Index::over(part(words, at as u32, split as u32), to - from),
                pool: Index::over(part(words, split as u32, end as u32), giant_end - giant),
                holes,
                skew: if i == 0 { skew } else { 0 },
                counts: Counts::default(),
            };
            at = end;
            CachePadded(Cell::new(shard, from * PLACES, to * PLACES))
        })?;
        let drift = if shards == 1 { 0 } else { DRIFT };
        Ok(Self {
            spec,
            base: first_line * u64::from(PLACES),
            shards: cells,
            giants_per_shard: per_shard.trailing_zeros(),
            skew,
            infos,
            holes,
            free: AtomicU64::new(0),
            drift: AtomicU64::new(drift),
            managed: AtomicU64::new(0),
            present: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            changing: AtomicBool::new(false),
            grouping: AtomicBool::new(true),
        })
    }

    /// Takes a block: from lines of `mobility` in any shard, the CPU's `home` first, then from wholly free lines, and
    /// only then, for the kinds that lend to each other, from lines of others.
    #[inline]
    pub(crate) fn take(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        off: &IrqOff<P>,
    ) -> Option<Block> {
        let mut frame = [0];
        let took = |frame: u32| Block::new(Pfn(self.base + u64::from(frame)), order);
        for cell in self.shards_from(home) {
            if cell.may_serve(mobility, order) {
                let taken = self.with(cell, off, |shard| shard.take(order.get(), mobility));
                if let Some(local) = taken {
                    return Some(took(cell.first + local));
                }
            }
        }
        (self.take_lent(order, mobility, home, &mut frame, off) == 1).then(|| took(frame[0]))
    }

    /// Takes up to `out.len()` blocks of `order` and returns how many; `out` then starts with their first frames,
    /// counted from [`base`](Self::base), ascending within a line.
    pub(crate) fn take_blocks(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        out: &mut [u32],
        off: &IrqOff<P>,
    ) -> usize {
        let mut done = 0;
        for cell in self.shards_from(home) {
            while done < out.len() && cell.may_serve(mobility, order) {
                let end = out.len().min(done + hold(order));
                let rest = &mut out[done..end];
                let taken = self.with(cell, off, |shard| {
                    shard.take_many(order.get(), mobility, cell.first, rest)
                });
                done += taken;
                if taken == 0 {
                    break;
                }
            }
        }
        if done < out.len() {
            done += self.take_lent(order, mobility, home, &mut out[done..], off);
        }
        done
    }

    /// Gives a block back.
    ///
    /// # Errors
    /// [`Fault`], with nothing changed, if it does not fit; it is counted in [`faults`](Self::faults) too.
    #[inline]
    pub(crate) fn give(&self, block: Block, off: &IrqOff<P>) -> Result<(), Fault> {
        let (pfn, order) = block.into_parts();
        let given = self.locate(pfn, order).and_then(|frame| {
            let cell = self.cell_of(frame);
            self.with(cell, off, |shard| {
                shard.give(frame - cell.first, order.get())
            })
        });
        if given.is_err() {
            self.faults.fetch_add(1, Relaxed);
        }
        given
    }

    /// Gives back blocks of `order` by their first frames, counted from [`base`](Self::base). May reorder `frames`.
    /// Those that do not fit are skipped, and counted in [`faults`](Self::faults).
    pub(crate) fn give_blocks(&self, order: Order, frames: &mut [u32], off: &IrqOff<P>) {
        let Some((&lowest, &highest)) = frames.iter().min().zip(frames.iter().max()) else {
            return;
        };
        let bits = frames.iter().fold(0, |all, frame| all | frame);
        let pfn = |frame: u32| Pfn(self.base + u64::from(frame));
        let all_fit = self.locate(pfn(lowest), order).is_ok()
            && self.locate(pfn(highest), order).is_ok()
            && u64::from(bits) & (order.frames() - 1) == 0;
        let (mut rest, mut refused) = if all_fit {
            (frames, 0)
        } else {
            self.without_strays(order, frames)
        };
        while let Some(&first) = rest.first() {
            let cell = self.cell_of(first);
            let inside = cell.first..cell.end;
            let len = if inside.contains(&lowest) && inside.contains(&highest) {
                rest.len()
            } else {
                move_to_front(rest, |frame| inside.contains(&frame))
            };
            let (here, others) = rest.split_at_mut(len);
            for part in here.chunks(hold(order)) {
                refused += self.with(cell, off, |shard| {
                    shard.give_many(order.get(), cell.first, part)
                });
            }
            rest = others;
        }
        if refused > 0 {
            self.faults.fetch_add(refused, Relaxed);
        }
    }

    /// Those of `frames` that can start a block of `order` here, and how many cannot.
    #[cold]
    fn without_strays<'f>(&self, order: Order, frames: &'f mut [u32]) -> (&'f mut [u32], u64) {
        let len = move_to_front(frames, |frame| {
            self.locate(Pfn(self.base + u64::from(frame)), order)
                .is_ok()
        });
        let (fit, strays) = frames.split_at_mut(len);
        (fit, strays.len() as u64)
    }

    /// From lines that belong to other kinds, whichever lend to `mobility`.
    #[cold]
    fn take_lent(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        out: &mut [u32],
        off: &IrqOff<P>,
    ) -> usize {
        let mut done = 0;
        if mobility == Mobility::Movable {
            // CMA lines are kept free for contiguous areas by migration, so only what can migrate may have them.
            for cell in self.shards_from(home) {
                while done < out.len() && cell.may_serve(Mobility::Cma, order) {
                    let end = out.len().min(done + hold(order));
                    let rest = &mut out[done..end];
                    let taken = self.with(cell, off, |shard| {
                        shard.take_many(order.get(), Mobility::Cma, cell.first, rest)
                    });
                    done += taken;
                    if taken == 0 {
                        break;
                    }
                }
            }
        }
        let grouping = self.grouping.load(Relaxed);
        for lend in [Lend::Claim, Lend::Steal] {
            for cell in self.shards_from(home) {
                while done < out.len() && cell.may_lend(mobility, order) {
                    let end = out.len().min(done + hold(order));
                    let rest = &mut out[done..end];
                    let taken = self.with(cell, off, |shard| {
                        shard.take_lent(order.get(), mobility, lend, grouping, cell.first, rest)
                    });
                    done += taken;
                    if taken == 0 {
                        break;
                    }
                }
            }
        }
        done
    }

    /// Every shard, from `home` on, around.
    #[inline]
    fn shards_from(&self, home: u32) -> impl Iterator<Item = &'static Cell<P>> + use<P> {
        let home = (home as usize).min(self.shards.len());
        let (before, from) = self.shards.split_at(home);
        from.iter().chain(before).map(|padded| &padded.0)
    }

    /// Where a block starts, from the base.
    #[inline]
    fn locate(&self, pfn: Pfn, order: Order) -> Result<u32, Fault> {
        if !pfn.is_aligned(order) {
            return Err(Fault::Unaligned);
        }
        if !self.spec.span.covers(FrameRange::block(pfn, order)) {
            return Err(Fault::Outside);
        }
        Ok((pfn.0 - self.base) as u32)
    }

    /// The shard of a frame in the zone.
    #[inline]
    fn cell_of(&self, frame: u32) -> &'static Cell<P> {
        let giant = (frame / PLACES + self.skew) / PLACES;
        &self.shards[(giant >> self.giants_per_shard) as usize]
    }

    /// One hold of a shard's lock. What may be read without it is brought up to date before the release.
    #[inline]
    fn with<T>(&self, cell: &Cell<P>, off: &IrqOff<P>, work: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = cell.lock.lock(off);
        let result = work(&mut shard);
        let counts = shard.counts;
        cell.available.store(counts.available, Relaxed);
        cell.free.store(counts.free, Relaxed);
        if counts.apart != 0 {
            cell.free_cma.store(counts.free_cma, Relaxed);
            cell.free_highatomic.store(counts.free_highatomic, Relaxed);
            cell.isolated.store(counts.isolated, Relaxed);
            shard.counts.apart = 0;
        }
        let change = counts.free.wrapping_sub(cell.reported.load(Relaxed));
        if (change as i64).unsigned_abs() > self.drift.load(Relaxed) {
            cell.reported.store(counts.free, Relaxed);
            self.free.fetch_add(change, Relaxed);
        }
        result
    }

    /// First frame of the first line: relative frame numbers count from here. The span may start later.
    #[inline]
    pub(crate) fn base(&self) -> Pfn {
        Pfn(self.base)
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.spec.node
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ZoneKind {
        self.spec.kind
    }

    /// Its frames, holes included.
    #[must_use]
    pub fn span(&self) -> FrameRange {
        self.spec.span
    }

    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shards.len() as u32
    }

    /// Frames that it hands out and gets back.
    #[must_use]
    pub fn managed(&self) -> u64 {
        self.managed.load(Relaxed)
    }

    /// Frames that exist: managed ones and those kept by others since boot.
    #[must_use]
    pub fn present(&self) -> u64 {
        self.present.load(Relaxed)
    }

    /// Free frames, from one load. It may be behind by [`drift`](Self::drift) frames.
    #[inline]
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        // Shards add and subtract on their own, so the sum may pass below zero for a moment.
        (self.free.load(Relaxed) as i64).max(0) as u64
    }

    /// Free frames, summed over the shards; exact when nothing runs.
    #[must_use]
    pub fn free_frames_exact(&self) -> u64 {
        self.sum(|cell| &cell.free)
    }

    /// By how much [`free_frames`](Self::free_frames) may be wrong.
    #[must_use]
    pub fn drift(&self) -> u64 {
        self.drift.load(Relaxed) * self.shards.len() as u64
    }

    /// Free frames in CMA lines.
    #[must_use]
    pub fn free_cma(&self) -> u64 {
        self.sum(|cell| &cell.free_cma)
    }

    /// Free frames in highatomic lines.
    #[must_use]
    pub fn free_highatomic(&self) -> u64 {
        self.sum(|cell| &cell.free_highatomic)
    }

    /// Free frames in isolated lines, which no other count includes.
    #[must_use]
    pub fn isolated_frames(&self) -> u64 {
        self.sum(|cell| &cell.isolated)
    }

    fn sum(&self, count: impl Fn(&Cell<P>) -> &AtomicU64) -> u64 {
        self.shards
            .iter()
            .map(|cell| count(cell).load(Relaxed))
            .sum()
    }

    /// Frees that were refused because they did not fit.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    /// Whether `pfn` is in the span.
    #[inline]
    #[must_use]
    pub fn contains(&self, pfn: Pfn) -> bool {
        self.spec.span.contains(pfn)
    }

    /// Whether `pfn` can be given by this zone: in the span, online, and not bad.
    #[must_use]
    pub fn is_managed(&self, pfn: Pfn) -> bool {
        if !self.contains(pfn) {
            return false;
        }
        let frame = pfn.0 - self.base;
        let info = self.info_of(pfn);
        let place = (frame % u64::from(PLACES)) as u32;
        !info.is_absent()
            && self
                .holes
                .of(info.holes())
                .is_none_or(|hole| hole.absent.is_taken(place, 0) && hole.bad.is_taken(place, 0))
    }

    /// What the pageblock of `pfn` is used for; frames outside the zone are `Isolate`. A plain load.
    #[inline]
    #[must_use]
    pub fn mobility_of(&self, pfn: Pfn) -> Mobility {
        self.info_of(pfn).mobility()
    }

    #[inline]
    fn info_of(&self, pfn: Pfn) -> Info {
        let line = pfn.0.wrapping_sub(self.base) / u64::from(PLACES);
        match self.infos.get(line as usize) {
            Some(info) => Info(info.load(Relaxed)),
            None => Info::ABSENT.with_isolated(info::Isolated::Yes),
        }
    }

    /// The shard that a CPU searches first. CPUs are spread over the shards.
    #[inline]
    #[must_use]
    pub fn home_shard(&self, cpu: crate::addr::CpuId) -> u32 {
        // Shards were wanted two per CPU; where there are fewer, CPUs share them evenly.
        let shards = self.shards.len().max(1) as u64;
        let cpus = u64::from(self.spec.shards / 2).max(1);
        (u64::from(cpu.0) * shards / cpus % shards) as u32
    }

    /// Largest free blocks of each order, as `/proc/buddyinfo` counts them: each free frame is in one block.
    pub fn free_blocks_by_order(&self) -> [u64; Order::COUNT] {
        let mut counts = [0; Order::COUNT];
        let off = IrqOff::new();
        for cell in self.shards {
            let lines = cell.lines();
            for first in lines.clone().step_by(MAX_LINES_PER_HOLD) {
                let end = lines.end.min(first + MAX_LINES_PER_HOLD as u32);
                cell.lock.lock(&off).count_lines(first..end, &mut counts);
            }
            cell.lock.lock(&off).count_pool(&mut counts);
        }
        counts
    }

    /// One entry of [`free_blocks_by_order`](Self::free_blocks_by_order).
    pub fn free_blocks(&self, order: Order) -> u64 {
        self.free_blocks_by_order()[order.get() as usize]
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

impl<P: Platform> fmt::Display for Zone<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Node {}, zone {} {}: {} of {} managed frames free",
            self.spec.node.0,
            self.spec.kind,
            self.spec.span,
            self.free_frames_exact(),
            self.managed()
        )
    }
}

/// How much a shard's free count moves before the zone hears of it: a few refills of a pageset.
const DRIFT: u64 = 256;

/// Blocks of `order` that one hold may take or give, at most [`MAX_LINES_PER_HOLD`] lines.
#[inline]
fn hold(order: Order) -> usize {
    // Larger blocks touch a word for each of their lines, and one bit of the pool.
    (MAX_LINES_PER_HOLD >> order.get().saturating_sub(WHOLE)).max(1)
}

/// Records of lines with holes: every memory map has a few, and bad frames stay few.
fn holes_for(lines: u32) -> usize {
    (lines as usize)
        .min(lines as usize / 64 + 16)
        .min(MAX_HOLES)
}

/// Moves the frames for which `belongs` holds to the front, and returns how many they are.
fn move_to_front(frames: &mut [u32], belongs: impl Fn(u32) -> bool) -> usize {
    let mut len = 0;
    for i in 0..frames.len() {
        if belongs(frames[i]) {
            frames.swap(i, len);
            len += 1;
        }
    }
    len
}

/// `from..to` of slots; nothing while measuring.
fn part<T>(slots: &'static [T], from: u32, to: u32) -> &'static [T] {
    slots.get(from as usize..to as usize).unwrap_or(&[])
}

/// How memory of another kind is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lend {
    /// The line changes its kind, and the request is served as from its own.
    Claim,
    /// The line keeps its kind.
    Steal,
}
