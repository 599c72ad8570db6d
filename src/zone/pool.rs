//! The wholly free lines of a shard, whatever lending kind they were.
//!
//! Owns: the giants: 512 lines (1 GiB of 4 KiB frames) each, a set bit is a wholly free line. A giant has a class as a
//! line has, and so gives orders 9 to 18.
//! Invariants: a bit is set exactly if the line's info says that it is pooled, except within one call.
//! Lock ranks: works on the data under `Rank::Shard`.
//! Used by: shard (take, give, update), zone.

use super::info::Info;
use super::line::{self, PLACES, WHOLE};
use super::shard::{CLASSES, SETS, Shard};
use crate::sync::atomic::Ordering::Relaxed;

impl Shard {
    /// Adds a block of order `k` lines to the pool; its infos say so already.
    #[inline]
    pub(super) fn pool_give(&mut self, line: u32, k: u8) {
        let (giant, place) = self.giant(line);
        let bits = &self.giants[giant as usize];
        bits.set(place, k);
        let old = self.giant_info(giant);
        let class = bits.class_after_free(place, k, old.class());
        self.giant_update(giant, old, old.free() + (1 << k), class);
    }

    /// Removes one line from the pool, wherever it is.
    pub(super) fn pool_remove(&mut self, line: u32) {
        self.pool_remove_block(line, 0);
    }

    fn pool_remove_block(&mut self, line: u32, k: u8) {
        let (giant, place) = self.giant(line);
        let bits = &self.giants[giant as usize];
        bits.clear(place, k);
        let old = self.giant_info(giant);
        let free = old.free().wrapping_sub(1 << k);
        let class = line::class_at_most(bits, old.class());
        self.giant_update(giant, old, free, class);
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
        let old = self.giant_info(giant);
        let bits = &self.giants[giant as usize];
        let (place, class) = line::take_best(bits, k, old.class())?;
        self.giant_update(giant, old, old.free().wrapping_sub(1 << k), class);
        Some(giant * PLACES + place - self.skew)
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
    fn giant_update(&mut self, giant: u32, old: Info, free: u32, class: i8) {
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
