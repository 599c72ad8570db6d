//! The wholly free lines of a shard, whatever lending kind they were.
//!
//! Owns: the giants: 512 lines (1 GiB of 4 KiB frames) each, a set bit is a wholly free line. A giant has a class as a
//! line has, and so gives orders 9 to 18.
//! Invariants: a bit is set exactly if the line's info says that it is pooled, except within one call.
//! Lock ranks: works on the data under `Rank::Shard`.
//! Used by: shard (take, give, update), zone.

use super::info::Info;
use super::line::{Bits, PLACES, WHOLE};
use super::mobility::Mobility;
use super::shape::Shape;
use super::shard::{CLASSES, SETS, Shard};
use crate::sync::atomic::Ordering::Relaxed;

impl Shard {
    /// Adds a block of order `k` lines to the pool; its infos say so already.
    #[inline]
    pub(super) fn pool_give(&mut self, line: u32, k: u8) {
        let (giant, place) = self.giant(line);
        let bits = &self.giants[giant as usize];
        if let Some(shape) = self.giant_shape(giant).give(bits, place, k) {
            self.giant_update(giant, shape, 1 << k);
        }
    }

    /// Removes one line from the pool, wherever it is.
    pub(super) fn pool_remove(&mut self, line: u32) {
        self.pool_remove_block(line, 0);
    }

    fn pool_remove_block(&mut self, line: u32, k: u8) {
        let (giant, place) = self.giant(line);
        let bits = &self.giants[giant as usize];
        let shape = self.giant_shape(giant).take_at(bits, place, k);
        self.giant_update(giant, shape, -(1 << k));
    }

    /// Takes the lines of a block of `order` out of the pool and returns the first; the rest of their state is stale.
    #[inline]
    pub(super) fn pool_take(&mut self, order: u8) -> Option<u32> {
        let k = order.max(WHOLE) - WHOLE;
        let classes = self.counts.pooled(order);
        if classes == 0 {
            return None;
        }
        let giant = self.pool.first(classes.trailing_zeros());
        let bits = &self.giants[giant as usize];
        let (place, shape) = self.giant_shape(giant).take(bits, k)?;
        self.giant_update(giant, shape, -(1 << k));
        Some(giant * PLACES + place - self.skew)
    }

    /// Takes up to `out.len()` single lines for `kind`, in pieces as large as may be. Numbers of frames count from `base`.
    pub(super) fn pool_take_lines(&mut self, kind: Mobility, base: u32, out: &mut [u32]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let classes = self.counts.pooled(WHOLE);
            if classes == 0 {
                break;
            }
            let giant = self.pool.first(classes.trailing_zeros());
            let bits = &self.giants[giant as usize];
            let mut shape = self.giant_shape(giant);
            let before = done;
            while done < out.len() && shape != Shape::NONE {
                // As much of a smallest free block as is wanted, so that larger ones stay whole.
                let k = shape.smallest().min((out.len() - done).ilog2() as u8);
                let Some((place, left)) = shape.take(bits, k) else {
                    break;
                };
                shape = left;
                let first = giant * PLACES + place - self.skew;
                for line in first..first + (1 << k) {
                    let info = self.info(line).with_kind(kind).with(0, -1);
                    self.set_info(line, info);
                    if let Some(slot) = out.get_mut(done) {
                        *slot = base + line * PLACES;
                        done += 1;
                    }
                }
            }
            if done == before {
                break;
            }
            self.giant_update(giant, shape, -((done - before) as i32));
        }
        self.counts.free -= done as u64 * u64::from(PLACES);
        done
    }

    /// Adds lines to the pool, all in one giant: those of word `i` that `mask` says. Their infos say so already.
    pub(super) fn pool_give_lines(&mut self, giant: u32, i: usize, mask: u64) {
        let bits = &self.giants[giant as usize];
        let word = bits.word(i) | mask;
        bits.set_word(i, word);
        let shape = self.giant_shape(giant).with_word(i, word);
        self.giant_update(giant, shape, mask.count_ones() as i32);
        self.counts.free += u64::from(mask.count_ones() * PLACES);
    }

    /// Takes a block of order `k` lines that is in the pool.
    pub(super) fn take_pooled_at(&mut self, line: u32, k: u8) {
        self.pool_remove_block(line, k);
        for line in line..line + (1 << k) {
            let info = self.info(line).with(0, -1);
            self.set_info(line, info);
        }
        self.counts.free -= u64::from(PLACES) << k;
    }

    #[inline]
    pub(super) fn giant_info(&self, giant: u32) -> Info {
        Info(self.giant_infos[giant as usize].load(Relaxed))
    }

    #[inline]
    pub(super) fn giant_shape(&self, giant: u32) -> Shape {
        Shape(self.giant_shapes[giant as usize].load(Relaxed))
    }

    /// Stores the shape of a giant that gained or lost lines, and what follows from it.
    #[inline]
    fn giant_update(&mut self, giant: u32, shape: Shape, change: i32) {
        self.giant_shapes[giant as usize].store(shape.0, Relaxed);
        let (old, class) = (self.giant_info(giant), shape.class());
        let free = old.free().wrapping_add_signed(change);
        self.giant_infos[giant as usize].store(old.with(free, class).0, Relaxed);
        if old.class() == class {
            return;
        }
        if (0..CLASSES as i8).contains(&old.class()) && self.pool.remove(old.class() as u32, giant)
        {
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
}
