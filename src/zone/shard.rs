//! A run of lines under one lock: taking and giving blocks of orders 0 to 18.
//!
//! Owns: the lines' bits, their infos, the sets of lines by kind and class, and the pool of wholly free lines.
//! Invariants: a line is in the set that its info names. A wholly free line of a mergeable kind is in the pool instead:
//! a bit of its giant (512 lines, 1 GiB of 4 KiB frames), which has a class of its own, and so gives orders 9 to 18.
//! `available` has a bit for each set that is not empty. `free` counts every free frame that is not isolated.
//! Lock ranks: it is the data under `Rank::Shard`.
//! Used by: zone.
//!
//! Frames and lines are numbered from the shard's start here; the zone adds the rest.

use super::Lend;
use super::holes::Holes;
use super::index::Index;
use super::info::{Fault, Info};
use super::line::{self, ALL_FREE, Line, PLACES, WHOLE};
use super::mobility::Mobility;
use crate::rank::Rank;
use crate::sync::Ranked;
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Sets of lines: five kinds (nothing is taken from isolated lines), ten classes each.
pub(super) const SETS: u32 = 50;

/// Smallest class that a movable request claims: half the order of a pageblock.
const SENSIBLE: u8 = WHOLE / 2;

/// Lines and their state.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) lines: &'static [Line],
    pub(super) infos: &'static [AtomicU32],
    /// Whole lines of the pool, 512 to a giant.
    pub(super) giants: &'static [Line],
    /// Count and class of each giant, in an [`Info`].
    pub(super) giant_infos: &'static [AtomicU32],
    pub(super) index: Index,
    /// Giants by class.
    pub(super) pool: Index,
    pub(super) holes: Holes,
    /// Lines of the first giant that lie before the shard.
    pub(super) skew: u32,
    pub(super) counts: Counts,
}

/// Sums over a shard's lines.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    /// Bit per set that is not empty: `SETS` of lines, then ten of giants.
    pub(super) available: u64,
    /// Free frames that are not isolated.
    pub(super) free: u64,
    /// Those of them that lie in CMA lines.
    pub(super) free_cma: u64,
    /// Those of them that lie in highatomic lines.
    pub(super) free_highatomic: u64,
    /// Free frames that are isolated.
    pub(super) isolated: u64,
    /// Lines whose bits contradicted their infos.
    pub(super) faults: u64,
    /// Changes of the counts that only lines set apart have, since they were last made known.
    pub(super) apart: u64,
}

impl Ranked for Shard {
    const RANK: Rank = Rank::Shard;
}

impl Counts {
    /// Bit per class from `order` up of which `kind` has lines.
    #[inline]
    pub(super) const fn classes(&self, kind: Mobility, order: u8) -> u32 {
        if order > WHOLE || kind as u32 >= 5 {
            return 0;
        }
        (self.available >> (kind as u32 * 10)) as u32 & 0x3ff & (0x3ff << order)
    }

    /// Bit per class of giant from which `order` can be served.
    #[inline]
    pub(super) const fn pooled(&self, order: u8) -> u32 {
        (self.available >> SETS) as u32 & 0x3ff & (0x3ff << order.saturating_sub(WHOLE))
    }

    /// Whether a request can be served without a fallback.
    #[inline]
    pub(super) const fn can_serve(&self, kind: Mobility, order: u8) -> bool {
        self.classes(kind, order) != 0 || kind.is_mergeable() && self.pooled(order) != 0
    }

    /// Counts `frames` as free, according to the line that they are in.
    #[inline]
    pub(super) fn add(&mut self, info: Info, frames: u32) {
        self.change(info, u64::from(frames));
    }

    /// Undoes [`add`](Self::add).
    #[inline]
    pub(super) fn sub(&mut self, info: Info, frames: u32) {
        self.change(info, u64::from(frames).wrapping_neg());
    }

    #[inline]
    fn change(&mut self, info: Info, frames: u64) {
        if info.is_lending() {
            self.free = self.free.wrapping_add(frames);
        } else {
            self.change_apart(info, frames);
        }
    }
}

impl Counts {
    #[cold]
    fn change_apart(&mut self, info: Info, frames: u64) {
        self.apart += 1;
        if info.is_isolated() {
            self.isolated = self.isolated.wrapping_add(frames);
            return;
        }
        self.free = self.free.wrapping_add(frames);
        match info.kind() {
            Mobility::Cma => self.free_cma = self.free_cma.wrapping_add(frames),
            Mobility::HighAtomic => {
                self.free_highatomic = self.free_highatomic.wrapping_add(frames);
            }
            _ => {}
        }
    }
}

impl Shard {
    #[inline]
    pub(super) fn info(&self, line: u32) -> Info {
        Info(self.infos[line as usize].load(Relaxed))
    }

    /// Stores the info of a line whose free count and class may have changed; the commonest case is that its class has not.
    #[inline]
    fn settle(&mut self, line: u32, old: Info, new: Info) {
        if old.class() == new.class() {
            self.infos[line as usize].store(new.0, Relaxed);
        } else {
            self.update(line, new);
        }
    }

    /// Stores the info and moves the line to the set or the pool that it names.
    pub(super) fn update(&mut self, line: u32, new: Info) {
        let old = self.info(line);
        self.infos[line as usize].store(new.0, Relaxed);
        let (from, to) = (old.set(), new.set());
        if from != to {
            if let Some(set) = from {
                self.leave(set, line);
            }
            if let Some(set) = to {
                self.enter(set, line);
            }
        }
        match (old.is_pooled(), new.is_pooled()) {
            (false, true) => self.pool_give(line, 0),
            (true, false) => self.pool_remove(line, 0),
            _ => {}
        }
    }

    #[inline]
    fn enter(&mut self, set: u32, line: u32) {
        if self.index.insert(set, line) {
            self.counts.available |= 1 << set;
        }
    }

    #[inline]
    fn leave(&mut self, set: u32, line: u32) {
        if self.index.remove(set, line) {
            self.counts.available &= !(1 << set);
        }
    }

    /// Takes the lowest block of `order` in a fullest line of `kind`, or in a smallest run of wholly free lines.
    #[inline]
    pub(super) fn take(&mut self, order: u8, kind: Mobility) -> Option<u32> {
        let classes = self.counts.classes(kind, order);
        if classes != 0 {
            let class = classes.trailing_zeros();
            let line = self.index.first(kind as u32 * 10 + class);
            return self.take_in(line, order);
        }
        if kind.is_mergeable() {
            return self.take_pooled(order, kind);
        }
        None
    }

    /// Takes a block of `order` from a line of at least that class.
    pub(super) fn take_in(&mut self, line: u32, order: u8) -> Option<u32> {
        let info = self.info(line);
        let frames = 1 << order;
        if order == WHOLE {
            if !info.is_whole() {
                return self.lost(line);
            }
            self.counts.sub(info, PLACES);
            self.update(line, info.with(0, -1));
            return Some(line * PLACES);
        }
        let class = info.class();
        let mut words = if info.is_whole() {
            self.lines[line as usize].store(&ALL_FREE);
            ALL_FREE
        } else {
            self.lines[line as usize].load()
        };
        let found = if class == order as i8 {
            line::first(&words, order)
        } else {
            line::best(&words, order)
        };
        let Some(place) = found else {
            return self.lost(line);
        };
        line::clear(&mut words, place, order);
        self.lines[line as usize].clear(place, order);
        // Best fit splits a block of the line's class only if there is no smaller one; its upper half then remains.
        let class = if info.free() == frames {
            -1
        } else if line::any(&words, class as u8) {
            class
        } else if class > order as i8 {
            class - 1
        } else {
            line::class_at_most(&words, class - 1)
        };
        self.counts.sub(info, frames);
        self.settle(
            line,
            info,
            info.with(info.free().wrapping_sub(frames), class),
        );
        Some(line * PLACES + place)
    }

    /// A line's class promised a block that its bits do not hold: memory corruption. The line is believed by its bits.
    #[cold]
    fn lost(&mut self, line: u32) -> Option<u32> {
        let info = self.info(line);
        let words = if info.is_whole() {
            ALL_FREE
        } else {
            self.lines[line as usize].load()
        };
        let free = words.iter().map(|word| word.count_ones()).sum();
        self.counts.faults += 1;
        self.counts.sub(info, info.free());
        self.counts.add(info, free);
        let class = line::class_at_most(&words, WHOLE as i8);
        if free == PLACES {
            self.lines[line as usize].store(&[0; 8]);
        }
        self.update(line, info.with(free, class));
        None
    }

    /// Takes a block from the pool of wholly free lines, and makes its lines `kind`.
    pub(super) fn take_pooled(&mut self, order: u8, kind: Mobility) -> Option<u32> {
        let line = self.pool_take(order)?;
        if order < WHOLE {
            self.lines[line as usize].store(&ALL_FREE);
            self.lines[line as usize].clear(0, order);
            let info = self.info(line).with_kind(kind);
            let info = info.with(PLACES - (1 << order), WHOLE as i8 - 1);
            self.infos[line as usize].store(info.0, Relaxed);
            self.enter(kind as u32 * 10 + u32::from(WHOLE) - 1, line);
        } else {
            for line in line..line + (1 << (order - WHOLE)) {
                let info = self.info(line).with_kind(kind).with(0, -1);
                self.infos[line as usize].store(info.0, Relaxed);
            }
        }
        self.counts.free -= 1 << order;
        Some(line * PLACES)
    }

    /// Takes up to `out.len()` blocks of `order`, from `kind`'s own lines and the pool only. Numbers count from `base`.
    ///
    /// The work is per line and word: a word's frames leave it together.
    pub(super) fn take_many(
        &mut self,
        order: u8,
        kind: Mobility,
        base: u32,
        out: &mut [u32],
    ) -> usize {
        let mut done = 0;
        while done < out.len() {
            let rest = &mut out[done..];
            let classes = self.counts.classes(kind, order);
            let taken = if order > 6 || (classes == 0 && !kind.is_mergeable()) {
                match self.take(order, kind) {
                    Some(frame) => {
                        rest[0] = base + frame;
                        1
                    }
                    None => 0,
                }
            } else if classes != 0 {
                let class = classes.trailing_zeros();
                let line = self.index.first(kind as u32 * 10 + class);
                self.take_run(line, order, base, rest)
            } else {
                match self.pool_take(WHOLE) {
                    Some(line) => {
                        let info = self.info(line).with_kind(kind);
                        self.infos[line as usize].store(info.0, Relaxed);
                        self.take_run(line, order, base, rest)
                    }
                    None => 0,
                }
            };
            if taken == 0 {
                break;
            }
            done += taken;
        }
        done
    }

    /// Takes blocks of `order <= 6` from one line, lowest first. The line is in its set, or wholly free and in none.
    fn take_run(&mut self, line: u32, order: u8, base: u32, out: &mut [u32]) -> usize {
        let info = self.info(line);
        let first = base + line * PLACES;
        let mut words = if info.is_whole() {
            ALL_FREE
        } else {
            self.lines[line as usize].load()
        };
        let mut done = 0;
        let mut changed = 8..8;
        for (i, word) in words.iter_mut().enumerate() {
            let found = line::fold(*word, order);
            if found == 0 {
                continue;
            }
            changed = changed.start.min(i)..i + 1;
            let (taken, blocks) = unpack(found, first + i as u32 * 64, order, &mut out[done..]);
            // A block's bits are those from its lowest one on.
            *word &= !taken.wrapping_mul(!0 >> (64 - (1u32 << order)));
            done += blocks;
            if done == out.len() {
                break;
            }
        }
        if done == 0 {
            self.lost(line);
            return 0;
        }
        let frames = (done as u32) << order;
        let free = info.free().wrapping_sub(frames);
        self.counts.sub(info, frames);
        if info.is_whole() {
            self.lines[line as usize].store(&words);
        } else {
            for i in changed {
                self.lines[line as usize].set_word(i, words[i]);
            }
        }
        let class = if free == 0 {
            -1
        } else {
            line::class_at_most(&words, info.class())
        };
        let new = info.with(free, class);
        if info.is_pooled() {
            // Already out of the pool: only a set may have to be entered.
            self.infos[line as usize].store(new.0, Relaxed);
            if let Some(set) = new.set() {
                self.enter(set, line);
            }
        } else {
            self.settle(line, info, new);
        }
        done
    }

    /// Gives a block back.
    #[inline]
    pub(super) fn give(&mut self, frame: u32, order: u8) -> Result<(), Fault> {
        if order > WHOLE {
            return self.give_lines(frame / PLACES, order);
        }
        let (line, place) = (frame / PLACES, frame % PLACES);
        let info = self.info(line);
        if !info.is_plain() {
            return self.give_around_holes(line, place, order);
        }
        let free = info.free() + (1 << order);
        let bits = &self.lines[line as usize];
        if free > PLACES || order < WHOLE && !bits.is_taken(place, order) {
            return Err(Fault::AlreadyFree);
        }
        let new = if free == PLACES {
            if order < WHOLE {
                bits.store(&[0; 8]);
            }
            info.with(free, WHOLE as i8)
        } else {
            bits.set(place, order);
            info.with(free, bits.class_after_free(place, order, info.class()))
        };
        self.counts.add(info, 1 << order);
        self.settle(line, info, new);
        Ok(())
    }

    /// Gives back a block of several lines. Nothing changes unless all of it can be given.
    fn give_lines(&mut self, first: u32, order: u8) -> Result<(), Fault> {
        let lines = first..first + (1 << (order - WHOLE));
        let mut pool = true;
        for line in lines.clone() {
            let info = self.info(line);
            if info.is_absent() {
                return Err(Fault::Unmanaged);
            }
            if info.free() != 0 {
                return Err(Fault::AlreadyFree);
            }
            pool &= info.is_plain() && info.kind().is_mergeable() && !info.is_isolated();
        }
        if pool {
            for line in lines {
                let info = self.info(line).with(PLACES, WHOLE as i8);
                self.infos[line as usize].store(info.0, Relaxed);
            }
            self.pool_give(first, order - WHOLE);
            self.counts.free += 1 << order;
        } else {
            for line in lines {
                self.give(line * PLACES, WHOLE)?;
            }
        }
        Ok(())
    }

    /// Gives back frames of a line some of which are absent or bad. Bad ones are dropped.
    #[cold]
    fn give_around_holes(&mut self, line: u32, place: u32, order: u8) -> Result<(), Fault> {
        let info = self.info(line);
        let Some(hole) = self.holes.of(info.holes()).filter(|_| !info.is_absent()) else {
            return Err(Fault::Unmanaged);
        };
        if !hole.absent.is_taken(place, order) {
            return Err(Fault::Unmanaged);
        }
        if !self.lines[line as usize].is_taken(place, order) {
            return Err(Fault::AlreadyFree);
        }
        for place in place..place + (1 << order) {
            if hole.bad.is_taken(place, 0) {
                self.put(line, place);
            }
        }
        Ok(())
    }

    /// Makes one frame free, which is known to be taken and usable.
    pub(super) fn put(&mut self, line: u32, place: u32) {
        let info = self.info(line);
        let bits = &self.lines[line as usize];
        bits.set(place, 0);
        let class = bits.class_after_free(place, 0, info.class());
        let free = info.free() + 1;
        if free == PLACES {
            bits.store(&[0; 8]);
        }
        self.counts.add(info, 1);
        self.update(line, info.with(free, class));
    }

    /// Gives back `frames`, blocks of `order`, as numbers from `base`; returns how many were refused.
    ///
    /// Neighbours that fall into one word are set together; any order is served, ascending or descending ones fastest.
    pub(super) fn give_many(&mut self, order: u8, base: u32, frames: &[u32]) -> u64 {
        let mut refused = 0;
        if order > 5 {
            for &frame in frames {
                refused += u64::from(self.give(frame.wrapping_sub(base), order).is_err());
            }
            return refused;
        }
        let block = !0u64 >> (64 - (1u32 << order));
        let mut at = 0;
        while at < frames.len() {
            let frame = frames[at] - base;
            let (line, i) = (frame / PLACES, (frame >> 6 & 7) as usize);
            let mut mask = 0u64;
            let start = at;
            while let Some(next) = frames.get(at).map(|&next| next - base) {
                let bits = block << (next & 63);
                if next >> 6 != frame >> 6 || mask & bits != 0 {
                    break;
                }
                mask |= bits;
                at += 1;
            }
            let info = self.info(line);
            let free = info.free() + mask.count_ones();
            let word = self.lines[line as usize].word(i);
            if !info.is_plain() || free >= PLACES || word & mask != 0 {
                // The rare cases, and the whole line, one block at a time.
                for &frame in &frames[start..at] {
                    refused += u64::from(self.give(frame - base, order).is_err());
                }
                continue;
            }
            let bits = &self.lines[line as usize];
            bits.set_word(i, word | mask);
            let class = bits.class_after_word(i, info.class());
            self.counts.add(info, mask.count_ones());
            self.settle(line, info, info.with(free, class));
        }
        refused
    }

    /// Adds a block of order `k` lines to the pool; its infos say so already.
    #[inline]
    fn pool_give(&mut self, line: u32, k: u8) {
        let (giant, place) = self.giant(line);
        let bits = &self.giants[giant as usize];
        bits.set(place, k);
        let old = self.giant_info(giant);
        let class = bits.class_after_free(place, k, old.class());
        self.giant_update(giant, old, old.free() + (1 << k), class);
    }

    /// Removes a block of order `k` lines from the pool.
    #[inline]
    fn pool_remove(&mut self, line: u32, k: u8) {
        let (giant, place) = self.giant(line);
        let bits = &self.giants[giant as usize];
        bits.clear(place, k);
        let old = self.giant_info(giant);
        let class = line::class_at_most(&bits.load(), old.class());
        self.giant_update(giant, old, old.free() - (1 << k), class);
    }

    /// Takes the lines of a block of `order` out of the pool and returns the first; the rest of their state is stale.
    #[inline]
    fn pool_take(&mut self, order: u8) -> Option<u32> {
        let k = order.max(WHOLE) - WHOLE;
        let classes = self.counts.pooled(order);
        if classes == 0 {
            return None;
        }
        let class = classes.trailing_zeros();
        let giant = self.pool.first(class);
        let words = self.giants[giant as usize].load();
        let place = if class == u32::from(k) {
            line::first(&words, k)
        } else {
            line::best(&words, k)
        }?;
        let line = giant * PLACES + place - self.skew;
        self.pool_remove(line, k);
        Some(line)
    }

    #[inline]
    pub(super) fn giant_info(&self, giant: u32) -> Info {
        Info(self.giant_infos[giant as usize].load(Relaxed))
    }

    #[inline]
    fn giant_update(&mut self, giant: u32, old: Info, free: u32, class: i8) {
        self.giant_infos[giant as usize].store(old.with(free, class).0, Relaxed);
        if old.class() == class {
            return;
        }
        if old.class() >= 0 && self.pool.remove(old.class() as u32, giant) {
            self.counts.available &= !(1 << (SETS + old.class() as u32));
        }
        if class >= 0 && self.pool.insert(class as u32, giant) {
            self.counts.available |= 1 << (SETS + class as u32);
        }
    }

    /// The giant that holds a line, and the line's place in it.
    #[inline]
    pub(super) const fn giant(&self, line: u32) -> (u32, u32) {
        let at = line + self.skew;
        (at / PLACES, at % PLACES)
    }

    /// Takes up to `out.len()` blocks from kinds that lend to `kind`.
    pub(super) fn take_lent(
        &mut self,
        order: u8,
        kind: Mobility,
        lend: Lend,
        grouping: bool,
        base: u32,
        out: &mut [u32],
    ) -> usize {
        let mut done = 0;
        while done < out.len() {
            let rest = &mut out[done..];
            let taken = match lend {
                Lend::Claim if self.claim(order, kind, grouping) => {
                    self.take_many(order, kind, base, rest)
                }
                Lend::Claim => 0,
                Lend::Steal => self.steal(order, kind, base, rest),
            };
            if taken == 0 {
                break;
            }
            done += taken;
        }
        done
    }

    /// Retags one line to `kind`, if one can serve `order` and at least half of it is free. Largest class first, since
    /// that disturbs its kind for longest.
    fn claim(&mut self, order: u8, kind: Mobility, grouping: bool) -> bool {
        for class in (order..WHOLE).rev() {
            // Small pieces are claimed only by kinds that would otherwise pin many lines.
            if class < SENSIBLE && kind == Mobility::Movable && grouping {
                return false;
            }
            for &lender in kind.fallbacks() {
                if self.counts.classes(lender, class) & 1 << class == 0 {
                    continue;
                }
                let line = self.index.first(lender as u32 * 10 + u32::from(class));
                let info = self.info(line);
                if info.free() >= PLACES / 2 || !grouping {
                    self.update(line, info.with_kind(kind));
                    return true;
                }
            }
        }
        false
    }

    /// Takes from the smallest fitting class of the first kind that has one.
    fn steal(&mut self, order: u8, kind: Mobility, base: u32, out: &mut [u32]) -> usize {
        for class in order..WHOLE {
            for &lender in kind.fallbacks() {
                if self.counts.classes(lender, class) & 1 << class == 0 {
                    continue;
                }
                let line = self.index.first(lender as u32 * 10 + u32::from(class));
                if order <= 6 {
                    return self.take_run(line, order, base, out);
                }
                return self.take_in(line, order).map_or(0, |frame| {
                    out[0] = base + frame;
                    1
                });
            }
        }
        0
    }

    /// Adds the largest free blocks of some lines, those of the pool excepted.
    pub(super) fn count_lines(&self, lines: core::ops::Range<u32>, counts: &mut [u64; 19]) {
        for line in lines {
            let info = self.info(line);
            if info.is_pooled() || info.free() == 0 || info.is_isolated() {
                continue;
            }
            if info.is_whole() {
                counts[usize::from(WHOLE)] += 1;
            } else {
                let mut here = [0; 10];
                line::count_blocks(&self.lines[line as usize].load(), &mut here);
                counts.iter_mut().zip(here).for_each(|(sum, n)| *sum += n);
            }
        }
    }

    /// Adds the largest free blocks of the pool.
    pub(super) fn count_pool(&self, counts: &mut [u64; 19]) {
        for giant in self.giants {
            let mut here = [0; 10];
            line::count_blocks(&giant.load(), &mut here);
            let orders = counts.iter_mut().skip(usize::from(WHOLE));
            orders.zip(here).for_each(|(sum, n)| *sum += n);
        }
    }

    /// Whether a frame is free, isolated or not.
    pub(super) fn is_free(&self, frame: u32) -> bool {
        let line = frame / PLACES;
        self.info(line).is_whole() || self.lines[line as usize].is_free(frame % PLACES, 0)
    }
}

/// Writes the numbers of set bits, which count from `start`, lowest first, until `out` is full. Returns the bits written
/// and their number.
#[inline]
fn unpack(bits: u64, start: u32, order: u8, out: &mut [u32]) -> (u64, usize) {
    let wanted = out.len().min(bits.count_ones() as usize);
    let out = &mut out[..wanted];
    let mut rest = bits;
    if order == 0 && bits.count_ones() > 32 {
        // Mostly set: runs of neighbours, which are written without looking at each bit.
        let mut done = 0;
        while done < wanted {
            let place = rest.trailing_zeros();
            let run = ((!(rest >> place)).trailing_zeros() as usize).min(wanted - done);
            for (slot, frame) in out[done..done + run].iter_mut().zip(start + place..) {
                *slot = frame;
            }
            done += run;
            rest &= !((!0 >> (64 - run)) << place);
        }
    } else {
        for slot in out {
            *slot = start + rest.trailing_zeros();
            rest &= rest - 1;
        }
    }
    (bits & !rest, wanted)
}
