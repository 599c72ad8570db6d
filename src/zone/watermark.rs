//! How much of a zone must stay free, and for whom.
//!
//! Owns: [`Levels`]; [`Watermarks`], a zone's levels and boost; [`Access`], what a request may use.
//! Invariants: min <= low <= high <= promo. Levels and boost are lone atomics: a reader may see one new and one old, and
//! decides a single request by it.
//! Lock ranks: none.
//! Used by: zone, node (computes), alloc (asks), reclaim (boost).

use bitflags::bitflags;

use super::{Mobility, Zone};
use crate::addr::Order;
use crate::platform::Platform;
use crate::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Frames in a pageblock.
const BLOCK: u64 = Order::PAGEBLOCK.frames();
/// A boost reaches at most this many ten-thousandths of the high watermark.
const BOOST_FACTOR: u64 = 15_000;

/// Free frames below which something happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Levels {
    /// Below it only urgent requests are served.
    pub min: u64,
    /// Below it background reclaim wakes.
    pub low: u64,
    /// At it background reclaim stops.
    pub high: u64,
    /// Above it frames may be promoted into the zone from slower memory.
    pub promo: u64,
}

/// Which of the levels a request must leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// [`Levels::min`].
    Min,
    /// [`Levels::low`].
    Low,
    /// [`Levels::high`].
    High,
    /// [`Levels::promo`].
    Promo,
}

bitflags! {
    /// What a request may use beyond what every request may.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: u8 {
        /// Half of the minimum.
        const MIN_RESERVE = 1;
        /// It cannot wait: the highatomic frames, and with `MIN_RESERVE` another quarter of what that leaves of the minimum.
        const NON_BLOCK = 2;
        /// Blocks kept for urgent requests of orders above 0.
        const HIGHATOMIC = 4;
        /// It is about to die and give much back: another half.
        const OOM = 8;
        /// CMA lines, for frames that can be migrated.
        const CMA = 16;
    }
}

/// Levels are out of order or above the zone's size. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadLevels {
    /// What was to be set.
    pub levels: Levels,
    /// The zone's managed frames.
    pub managed: u64,
}

/// A zone's levels. All zero, and so always left, until they are set.
#[derive(Debug, Default)]
pub(super) struct Watermarks {
    min: AtomicU64,
    low: AtomicU64,
    high: AtomicU64,
    promo: AtomicU64,
    /// Added to every level while kinds were mixed lately.
    boost: AtomicU64,
    /// Whether the boost was raised since somebody last woke the background for it.
    boosted: AtomicBool,
}

impl Levels {
    /// One of them.
    #[must_use]
    pub const fn at(self, level: Level) -> u64 {
        match level {
            Level::Min => self.min,
            Level::Low => self.low,
            Level::High => self.high,
            Level::Promo => self.promo,
        }
    }
}

impl<P: Platform> Zone<P> {
    /// The levels without boost.
    #[must_use]
    pub fn levels(&self) -> Levels {
        let marks = &self.watermarks;
        Levels {
            min: marks.min.load(Relaxed),
            low: marks.low.load(Relaxed),
            high: marks.high.load(Relaxed),
            promo: marks.promo.load(Relaxed),
        }
    }

    /// Sets the levels, and ends a boost.
    ///
    /// # Errors
    /// [`BadLevels`] if they are out of order, or one is above the zone's managed frames.
    pub fn set_levels(&self, levels: Levels) -> Result<(), BadLevels> {
        let managed = self.managed();
        let ordered = levels.min <= levels.low && levels.low <= levels.high;
        if !ordered || levels.high > levels.promo || levels.promo > managed {
            return Err(BadLevels { levels, managed });
        }
        self.store_levels(levels);
        Ok(())
    }

    /// [`set_levels`](Self::set_levels) as the formulas have them. In a small zone that keeps much free they are above its size, as
    /// Linux's are: then whoever keeps to them is served by other zones.
    pub(crate) fn store_levels(&self, levels: Levels) {
        let marks = &self.watermarks;
        marks.min.store(levels.min, Relaxed);
        marks.low.store(levels.low, Relaxed);
        marks.high.store(levels.high, Relaxed);
        marks.promo.store(levels.promo, Relaxed);
        marks.boost.store(0, Relaxed);
    }

    /// One level with the boost.
    #[inline]
    #[must_use]
    pub fn mark(&self, level: Level) -> u64 {
        let marks = &self.watermarks;
        let stored = match level {
            Level::Min => &marks.min,
            Level::Low => &marks.low,
            Level::High => &marks.high,
            Level::Promo => &marks.promo,
        };
        stored
            .load(Relaxed)
            .saturating_add(marks.boost.load(Relaxed))
    }

    /// By how much every level is raised now.
    #[must_use]
    pub fn boost(&self) -> u64 {
        self.watermarks.boost.load(Relaxed)
    }

    /// Raises the levels by a pageblock, so that background reclaim frees room in which kinds need not mix. A zone
    /// of less than four pageblocks, or one without watermarks, is left alone: the boost would take all of it.
    pub(super) fn raise_boost(&self) {
        let high = self.watermarks.high.load(Relaxed);
        if high == 0 || self.managed() < 4 * BLOCK {
            return;
        }
        let most = BLOCK.max(
            (u128::from(high) * u128::from(BOOST_FACTOR) / 10_000).min(u64::MAX.into()) as u64,
        );
        // Relaxed: lone words; of two who raise it at once, each is heard.
        let _ = self
            .watermarks
            .boost
            .fetch_update(Relaxed, Relaxed, |boost| Some((boost + BLOCK).min(most)));
        // Release pairs with the Acquire of `take_boosted`: who takes the mark sees the boost that it stands for.
        self.watermarks.boosted.store(true, Release);
    }

    /// Whether the boost was raised since the last call: the background is to be woken for it, once.
    pub(crate) fn take_boosted(&self) -> bool {
        // A load first: nearly always it was not, and the word is read by all CPUs.
        self.watermarks.boosted.load(Relaxed) && self.watermarks.boosted.swap(false, Acquire)
    }

    /// Takes back what a round of background reclaim has made good. Stops at zero.
    pub fn lower_boost(&self, frames: u64) {
        let lower = |boost: u64| Some(boost.saturating_sub(frames));
        let _ = self.watermarks.boost.fetch_update(Relaxed, Relaxed, lower);
    }

    /// Whether the zone can serve `order` and keep more than `mark` plus `reserve` free, `free` frames being free.
    ///
    /// `reserve` protects a low zone from requests that could also use a higher one. The mark is lowered by what `access`
    /// makes the request's own.
    #[must_use]
    pub fn suffices(
        &self,
        order: Order,
        mark: u64,
        reserve: u64,
        access: Access,
        free: u64,
    ) -> bool {
        self.surplus(order, mark, reserve, access, free).is_some()
    }

    /// [`suffices`](Self::suffices), and by how many frames: at least those of the block.
    fn surplus(
        &self,
        order: Order,
        mark: u64,
        reserve: u64,
        access: Access,
        free: u64,
    ) -> Option<u64> {
        // Signed: more may be kept for others than is free.
        let usable = free.min(i64::MAX as u64) as i64 - self.kept_from(access) as i64;
        let needed = access.lowered(mark).saturating_add(reserve);
        let surplus = usable.saturating_sub(needed.min(i64::MAX as u64) as i64);
        let fits = surplus >= order.frames() as i64
            && (order == Order::ZERO || self.has_block(order, access));
        fits.then_some(surplus as u64)
    }

    /// Free frames that are kept for other requests.
    #[inline]
    fn kept_from(&self, access: Access) -> u64 {
        let mut kept = 0;
        if !access.intersects(Access::RESERVES) {
            kept += self.free_highatomic_near();
        }
        if !access.contains(Access::CMA) {
            kept += self.free_cma_near();
        }
        kept
    }

    /// How many frames the zone can give and keep more than `mark` plus `reserve` free; `None` if it cannot give a block of
    /// `order`. Mostly in a few loads: near the mark, where the counter that lags cannot decide, the exact sum is read.
    #[inline]
    #[must_use]
    pub fn spare_above(
        &self,
        order: Order,
        mark: u64,
        reserve: u64,
        access: Access,
    ) -> Option<u64> {
        let sure = self.free_frames().saturating_sub(self.drift());
        self.surplus(order, mark, reserve, access, sure)
            .or_else(|| self.surplus(order, mark, reserve, access, self.free_frames_exact()))
    }

    /// [`spare_above`](Self::spare_above) a level with its boost. A boost does not starve those who may go below the minimum.
    #[inline]
    #[must_use]
    pub fn spare(&self, order: Order, level: Level, reserve: u64, access: Access) -> Option<u64> {
        let spare = self.spare_above(order, self.mark(level), reserve, access);
        if spare.is_none()
            && level == Level::Min
            && order == Order::ZERO
            && access.contains(Access::MIN_RESERVE)
        {
            return self.spare_above(order, self.levels().min, reserve, access);
        }
        spare
    }

    /// Free frames, exact where the counter that lags is too near `mark` to decide.
    #[must_use]
    pub fn free_near(&self, mark: u64) -> u64 {
        let free = self.free_frames();
        if free.saturating_sub(self.drift()) > mark {
            free
        } else {
            self.free_frames_exact()
        }
    }

    /// Whether some shard has a block of `order` that a request may use.
    fn has_block(&self, order: Order, access: Access) -> bool {
        let urgent = access.intersects(Access::HIGHATOMIC | Access::OOM);
        let usable = |kind: Mobility| match kind {
            Mobility::HighAtomic => urgent,
            Mobility::Cma => access.contains(Access::CMA),
            Mobility::Isolate => false,
            _ => true,
        };
        let mut kinds = Mobility::ALL.into_iter().filter(|&kind| usable(kind));
        kinds.any(|kind| self.shards.iter().any(|cell| cell.may_serve(kind, order)))
    }
}

impl Access {
    /// Whoever has one of these may use what is kept for urgent requests of orders above 0.
    const RESERVES: Self = Self::MIN_RESERVE
        .union(Self::NON_BLOCK)
        .union(Self::HIGHATOMIC)
        .union(Self::OOM);

    /// How low a level is for a request with this access.
    #[must_use]
    pub const fn lowered(self, mark: u64) -> u64 {
        let mut lowered = mark;
        if self.contains(Self::MIN_RESERVE) {
            lowered -= lowered / 2;
            if self.contains(Self::NON_BLOCK) {
                lowered -= lowered / 4;
            }
        }
        if self.contains(Self::OOM) {
            lowered -= lowered / 2;
        }
        lowered
    }
}

impl core::fmt::Display for BadLevels {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Levels {
            min,
            low,
            high,
            promo,
        } = self.levels;
        write!(
            f,
            "watermarks {min}, {low}, {high}, {promo} are out of order or above {} managed frames",
            self.managed
        )
    }
}

impl core::error::Error for BadLevels {}
