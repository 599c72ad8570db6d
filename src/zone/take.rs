//! Taking blocks from a shard.
//!
//! Owns: the choice of the line and of the block in it. Invariants: a request is served from the fullest line of its
//! kind that fits (by class; among lines of all classes for bulk requests of single frames), else from the smallest
//! run of wholly free lines; in a line, from the smallest free block that fits, the lowest of equals.
//! Lock ranks: works on the data under `Rank::Shard`.
//! Used by: zone.

use super::fullness::NONE;
use super::info::Info;
use super::line::{ALL_FREE, Bits, PLACES, WHOLE};
use super::mobility::Mobility;
use super::shape::{Shape, fold};
use super::shard::{CLASSES, Shard};

impl Shard {
    /// Takes a block of `order` from `kind`'s own lines, else from the pool.
    #[inline]
    pub(super) fn take(&mut self, order: u8, kind: Mobility) -> Option<u32> {
        let classes = self.counts.classes(kind, order);
        if classes != 0 {
            let set = kind as u32 * CLASSES + classes.trailing_zeros();
            return self.take_in(self.index.first(set), order);
        }
        if kind.is_mergeable() {
            return self.take_pooled(order, kind);
        }
        None
    }

    /// Takes a block of `order` from a line of at least that class.
    #[inline]
    pub(super) fn take_in(&mut self, line: u32, order: u8) -> Option<u32> {
        let info = self.info(line);
        if info.is_whole() {
            return self.take_in_whole(line, order);
        }
        let bits = &self.lines[line as usize];
        let Some((place, shape)) = self.shape(line).take(bits, order) else {
            return self.lost(line);
        };
        self.set_shape(line, shape);
        let frames = 1 << order;
        let free = info.free().wrapping_sub(frames);
        self.counts.sub(info, frames);
        self.settle(line, info, info.with(free, shape.class()));
        Some(line * PLACES + place)
    }

    /// Takes a block from a wholly free line that is in a set, not in the pool: its bits are not kept.
    fn take_in_whole(&mut self, line: u32, order: u8) -> Option<u32> {
        let info = self.info(line);
        self.counts.sub(info, 1 << order);
        if order == WHOLE {
            self.update(line, info.with(0, -1));
        } else {
            self.open_for(line, order);
            self.update(line, info.with(PLACES - (1 << order), WHOLE as i8 - 1));
        }
        Some(line * PLACES)
    }

    /// Writes the bits of a line of which all is free but its first block of `order`.
    fn open_for(&self, line: u32, order: u8) {
        let bits = &self.lines[line as usize];
        bits.store(&ALL_FREE);
        self.set_shape(line, Shape::ALL.take_at(bits, 0, order));
    }

    /// A line's class promised a block that its bits do not hold: memory corruption. The line is believed by its bits.
    #[cold]
    fn lost(&mut self, line: u32) -> Option<u32> {
        let info = self.info(line);
        let words = self.words(line);
        let new = self.rewrite(line, &words, info);
        self.counts.faults += 1;
        self.counts.sub(info, info.free());
        self.counts.add(info, new.free());
        self.update(line, new);
        None
    }

    /// Takes a block from the pool of wholly free lines, and makes its lines `kind`.
    pub(super) fn take_pooled(&mut self, order: u8, kind: Mobility) -> Option<u32> {
        let line = self.pool_take(order)?;
        if order < WHOLE {
            self.open_for(line, order);
            let info = self.info(line).with_kind(kind);
            self.open(line, info.with(PLACES - (1 << order), WHOLE as i8 - 1));
        } else {
            for line in line..line + (1 << (order - WHOLE)) {
                let info = self.info(line).with_kind(kind).with(0, -1);
                self.set_info(line, info);
            }
        }
        self.counts.free -= 1 << order;
        Some(line * PLACES)
    }

    /// A line that has just left the pool is partly used from now on.
    fn open(&mut self, line: u32, info: Info) {
        self.set_info(line, info);
        if let Some(set) = info.set() {
            self.enter(set, line);
            self.fullness.lower(line, info);
        }
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
            let taken =
                if order == WHOLE && kind.is_mergeable() && self.counts.classes(kind, order) == 0 {
                    self.pool_take_lines(kind, base, rest)
                } else if order > 6 || !kind.is_mergeable() {
                    match self.take(order, kind) {
                        Some(frame) => {
                            rest[0] = base + frame;
                            1
                        }
                        None => 0,
                    }
                } else if let Some(line) = self.choose(order, kind) {
                    self.take_run(line, order, base, rest)
                } else if let Some(line) = self.pool_take(WHOLE) {
                    let info = self.info(line).with_kind(kind);
                    self.set_info(line, info);
                    self.take_run(line, order, base, rest)
                } else {
                    0
                };
            if taken == 0 {
                break;
            }
            done += taken;
        }
        done
    }

    /// [`take_many`](Self::take_many) of single frames, only from lines with at most `limit` free ones.
    pub(super) fn take_full(
        &mut self,
        kind: Mobility,
        limit: u16,
        base: u32,
        out: &mut [u32],
    ) -> usize {
        let mut done = 0;
        while done < out.len()
            && let Some(line) = self.fullness.fullest(self.infos, kind, limit)
        {
            done += self.take_run(line, 0, base, &mut out[done..]);
        }
        done
    }

    /// The fullest line of a lending kind that can serve `order`; above order 0 by its class only.
    #[inline]
    fn choose(&mut self, order: u8, kind: Mobility) -> Option<u32> {
        let classes = self.counts.classes(kind, order);
        if classes == 0 {
            return None;
        }
        let fullest = if order == 0 {
            self.fullness.fullest(self.infos, kind, NONE)
        } else {
            None
        };
        fullest.or_else(|| {
            let set = kind as u32 * CLASSES + classes.trailing_zeros();
            Some(self.index.first(set))
        })
    }

    /// Takes blocks of `order <= 6` from one line, lowest first. The line is in its set, or has just left the pool.
    pub(super) fn take_run(&mut self, line: u32, order: u8, base: u32, out: &mut [u32]) -> usize {
        let info = self.info(line);
        let first = base + line * PLACES;
        let bits = &self.lines[line as usize];
        let mut shape = self.shape(line);
        if info.is_whole() {
            bits.store(&ALL_FREE);
            shape = Shape::ALL;
        }
        let mut words = shape.words_with(order);
        let mut done = 0;
        while words != 0 && done < out.len() {
            let i = words.trailing_zeros() as usize;
            words &= words - 1;
            let word = bits.word(i);
            let found = fold(word, order);
            let (taken, blocks) = unpack(found, first + i as u32 * 64, order, &mut out[done..]);
            // A block's bits are those from its lowest one on; blocks do not overlap, so nothing carries.
            let left = word & !taken.wrapping_mul(!0 >> (64 - (1u32 << order)));
            bits.set_word(i, left);
            shape = if left == 0 {
                shape.without(i)
            } else {
                shape.with_word(i, left)
            };
            done += blocks;
        }
        if done == 0 {
            self.lost(line);
            return 0;
        }
        let frames = (done as u32) << order;
        let free = info.free().wrapping_sub(frames);
        self.set_shape(line, shape);
        let new = info.with(free, shape.class());
        self.counts.sub(info, frames);
        if info.is_pooled() {
            self.open(line, new);
        } else {
            self.settle(line, info, new);
        }
        done
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
