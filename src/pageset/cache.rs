//! One CPU's free frames of one zone.
//!
//! Owns: [`Cache`]: lists of blocks, and the state of the rule that says how much moves and stays.
//! Invariants: `ceiling - left` is the weight of all lists (their frames, but for large blocks under the fixed rule); at rest `left` is above 0, unless the ceiling was lowered.
//! Lock ranks: is the data under Pageset; takes Shard. Used by: alloc.
//!
//! The fast ways keep the rule's two histories (`free_count` rises with frees and halves with allocations,
//! `alloc_factor` the other way round) and leave everything else to the slow ones, which run when a list is empty, a
//! chunk is full or the ceiling is reached. What a slow way must know of the zone's pressure is therefore seen 63 frees late at most.

use super::ListId;
use super::chunks::{CHUNK_FRAMES, Chunks, LISTS};
use super::tune::{Limits, Policy};
use crate::addr::Order;
use crate::boot::{Bump, StorageFull};
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::Ranked;
use crate::zone::Zone;

/// log2 of the most batches that one refill, or one hold of a drain, moves.
const SCALE_MAX: u32 = 5;

/// Pageblocks that one exchange moves under the fixed rule, at least.
const LARGE_BLOCKS: u32 = 3;

/// What a zone lacks, as far as pagesets must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pressure {
    /// Nothing.
    #[default]
    None,
    /// It fell below its high watermark: limits do not grow, frees beyond them leave.
    BelowHigh,
    /// It is being reclaimed: pagesets keep four batches.
    Reclaiming,
}

/// One CPU's free frames of one zone.
#[derive(Debug)]
pub(crate) struct Cache {
    chunks: Chunks,
    /// Weight that frees may add before they reach the ceiling, so `ceiling` less the weight of all lists. Below zero
    /// after the ceiling was lowered.
    left: i32,
    /// Frames freed of late; halves with each allocation.
    free_count: u16,
    /// log2 of the batches in the next refill; halves with each free.
    alloc_factor: u8,
    /// The list that the last free went to.
    last_freed: ListId,
    /// By list: what one of its blocks counts.
    weights: [u16; LISTS],
    /// By list: the `free_count` from which on a free does not raise it, or, for orders 1 to 3, must look at what was
    /// freed before.
    calm: [u16; LISTS],
    /// A free that makes the weight of all lists reach it has to trim: the rule's current `high`.
    ceiling: u32,
    limits: Limits,
    exchanges: Exchanges,
}

/// How often a cache went to its zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exchanges {
    /// Refills.
    pub refills: u64,
    /// Batches given back.
    pub trims: u64,
}

impl Ranked for Cache {
    const RANK: Rank = Rank::Pageset;
}

impl Cache {
    /// An empty cache with room for `slots` blocks, which parks nothing yet.
    pub(super) fn build(bump: &mut Bump<'_>, slots: u32) -> Result<Self, StorageFull> {
        Ok(Self {
            chunks: Chunks::build(bump, slots)?,
            left: 0,
            free_count: 0,
            alloc_factor: 0,
            last_freed: ListId::FIRST,
            weights: [0; LISTS],
            calm: [0; LISTS],
            ceiling: 0,
            limits: Limits::BOOT,
            exchanges: Exchanges::default(),
        })
    }

    /// Takes the block that was put on the list last, if that takes no work.
    #[inline]
    pub(crate) fn pop(&mut self, list: ListId) -> Option<u32> {
        let frame = self.chunks.pop(list.index())?;
        self.left += i32::from(self.weights[list.index()]);
        self.free_count >>= 1;
        Some(frame)
    }

    /// Puts a block on top, if that takes no work: `false`, with nothing done, if the list's chunk is full, the cache
    /// would reach its ceiling, or so much was freed that blocks of orders 1 to 3 may not stay.
    #[inline]
    pub(crate) fn push(&mut self, list: ListId, frame: u32) -> bool {
        let weight = self.weights[list.index()];
        if self.left <= i32::from(weight) {
            return false;
        }
        let mut free_count = self.free_count;
        if free_count < self.calm[list.index()] {
            free_count += weight;
        } else if list.is_small() {
            return false;
        }
        if !self.chunks.push(list.index(), frame) {
            return false;
        }
        self.left -= i32::from(weight);
        self.free_count = free_count;
        self.alloc_factor >>= 1;
        self.last_freed = list;
        true
    }

    /// [`pop`](Self::pop) with the work: moves on to the next chunk, or blocks from the zone to the list first, at most
    /// `most` of them.
    #[expect(clippy::too_many_arguments, reason = "what a refill depends on")]
    pub(crate) fn refill<P: Platform>(
        &mut self,
        list: ListId,
        order: Order,
        zone: &Zone<P>,
        home: u32,
        pressure: Pressure,
        most: u64,
        off: &IrqOff<P>,
    ) -> Option<u32> {
        let index = list.index();
        let frame = self.chunks.pop_below(index).or_else(|| {
            let mobility = list.mobility().filter(|_| most > 0)?;
            let wanted = u64::from(self.refill_blocks(order, pressure)).min(most);
            let mut refill = self.chunks.refill(index, wanted as usize);
            zone.take_into(order, mobility, home, &mut refill, off);
            let taken = refill.finish() as i32;
            self.left -= taken * self.weight(list);
            self.exchanges.refills += 1;
            self.chunks.pop(index)
        })?;
        self.left += self.weight(list);
        self.free_count >>= 1;
        Some(frame)
    }

    /// Blocks of `order` that the next refill takes (Linux: `nr_pcp_alloc`).
    fn refill_blocks(&mut self, order: Order, pressure: Pressure) -> u32 {
        let (batch, low, most) = (self.limits.batch, self.high_min(), self.high_max());
        let mut high = self.ceiling.clamp(low, most);
        if high < batch {
            self.set_ceiling(high);
            return 1;
        }
        let mut frames = match (self.limits.policy, order) {
            (Policy::Auto, Order::ZERO) => batch << self.alloc_factor,
            _ => batch,
        };
        if low != most && pressure == Pressure::None {
            high = (high + frames).min(most);
        }
        self.set_ceiling(high);
        if self.limits.policy == Policy::Auto && order == Order::ZERO {
            let room = high.saturating_sub(self.load() + batch).max(batch);
            if frames <= room && u32::from(self.alloc_factor) < SCALE_MAX {
                self.alloc_factor += 1;
            }
            frames = frames.min(room);
        }
        match (self.limits.policy, order) {
            (Policy::Fixed, Order::PAGEBLOCK) if self.limits.is_large() => {
                // Twice as many each time that a CPU only allocates.
                let most = (self.limits.pageblocks * 3 / 4).max(LARGE_BLOCKS);
                let blocks = (LARGE_BLOCKS << self.alloc_factor).min(most);
                if blocks < most {
                    self.alloc_factor += 1;
                }
                blocks
            }
            (Policy::Fixed, Order::PAGEBLOCK) => 1,
            _ if frames > 1 => (frames >> order.get()).max(2),
            _ => 1,
        }
    }

    /// [`push`](Self::push) with the work. Returns the frames that must now be trimmed, coldest first; `None`, with the
    /// block not taken, if there is no room for it.
    pub(crate) fn push_growing<P: Platform>(
        &mut self,
        list: ListId,
        frame: u32,
        pressure: Pressure,
        zone: &Zone<P>,
        off: &IrqOff<P>,
    ) -> Option<u32> {
        if self.high_max() == 0 || list == ListId::NONE {
            return None;
        }
        if !self.chunks.push_growing(list.index(), frame) {
            // Part-full chunks of many lists can use the pool up below the ceiling.
            self.trim(list, self.limits.batch, zone, off);
            if !self.chunks.push_growing(list.index(), frame) {
                return None;
            }
        }
        self.left -= self.weight(list);
        let batch = self.limits.batch;
        let leave =
            list.is_small() && self.last_freed.is_small() && self.freed() >= self.leave_from();
        self.last_freed = list;
        self.alloc_factor >>= 1;
        if self.freed() < self.free_most() {
            self.free_count += self.weights[list.index()];
        }
        let limit = self.limit(leave, pressure);
        Some(if self.load() < limit {
            0
        } else if leave {
            self.load().min(batch << SCALE_MAX)
        } else if limit < batch {
            1
        } else if self.limits.policy == Policy::Fixed {
            // Of large blocks as many as were freed of late, but for a quarter of what may stay.
            let large = match list.order() {
                Order::PAGEBLOCK => self.freed().clamp(limit / 4, limit - limit / 4),
                _ => 0,
            };
            batch.max(large).min(limit)
        } else {
            self.freed().max(batch).min(limit - batch)
        })
    }

    /// Frames at which frees trim (Linux: `nr_pcp_high`). `leave`: blocks of order 1 to 3 are freed in a row, so keep none.
    fn limit(&mut self, leave: bool, pressure: Pressure) -> u32 {
        let (batch, low, most) = (self.limits.batch, self.high_min(), self.high_max());
        let high = self.ceiling.clamp(low, most);
        let lowered = |by: u32| high.saturating_sub(by).max(low);
        let calm = self.freed().max(batch);
        let (ceiling, limit) = if leave {
            (lowered(batch << SCALE_MAX), 0)
        } else if pressure == Pressure::Reclaiming {
            (lowered(calm), lowered(calm).min(4 * batch))
        } else if low == most {
            (high, high)
        } else if pressure == Pressure::BelowHigh {
            (lowered(calm), self.load().max(low))
        } else if self.load() >= high {
            (high.max((self.freed() + batch).clamp(low, most)), high)
        } else {
            (high, high)
        };
        self.set_ceiling(ceiling);
        limit
    }

    /// Gives at least `weight` back, or all: the coldest of `first`, then those of the lists after it, around. The
    /// last block may overshoot. At most [`CHUNK_FRAMES`] blocks go in one hold of the zone's lock.
    pub(crate) fn trim<P: Platform>(
        &mut self,
        first: ListId,
        weight: u32,
        zone: &Zone<P>,
        off: &IrqOff<P>,
    ) {
        let target = self.load().saturating_sub(weight);
        for list in ListId::all_from(first) {
            while self.load() > target {
                let weight = self.weight(list);
                let wanted = (self.load() - target).div_ceil(weight as u32) as usize;
                let given = self.give_cold(list, wanted.min(CHUNK_FRAMES), zone, off);
                if given == 0 {
                    break;
                }
                self.left += given as i32 * weight;
                self.exchanges.trims += 1;
            }
        }
    }

    /// Gives up to `wanted` blocks of one list back in one hold, and returns how many there were.
    fn give_cold<P: Platform>(
        &mut self,
        list: ListId,
        wanted: usize,
        zone: &Zone<P>,
        off: &IrqOff<P>,
    ) -> usize {
        let (index, order) = (list.index(), list.order());
        if self.chunks.cold_len(index) >= wanted {
            return self.chunks.take_cold(index, wanted, |frames| {
                zone.give_blocks(order, frames, off);
            });
        }
        // They lie in several chunks.
        let mut batch = [0; CHUNK_FRAMES];
        let mut len = 0;
        while len < wanted {
            let room = &mut batch[len..wanted];
            let given = self.chunks.take_cold(index, room.len(), |frames| {
                room[..frames.len()].copy_from_slice(frames);
            });
            if given == 0 {
                break;
            }
            len += given;
        }
        if len > 0 {
            zone.give_blocks(order, &mut batch[..len], off);
        }
        len
    }

    /// Lowers the limit of a cache that was quiet, once a tick, and gives back what is above it (Linux: `decay_pcp_high`).
    pub(crate) fn decay<P: Platform>(&mut self, zone: &Zone<P>, off: &IrqOff<P>) {
        let low = self.high_min();
        if self.ceiling > low {
            let kept = self.load().saturating_sub(self.limits.batch << SCALE_MAX);
            self.set_ceiling(kept.max(self.ceiling - self.ceiling / 8).max(low));
        }
        let above = self.load().saturating_sub(self.ceiling);
        self.trim(
            ListId::FIRST,
            above.min(self.limits.batch << SCALE_MAX),
            zone,
            off,
        );
    }

    /// Frames freed of late.
    fn freed(&self) -> u32 {
        u32::from(self.free_count)
    }

    /// `free_count` does not rise from here on: the most batches that move at once.
    fn free_most(&self) -> u32 {
        // Room is left for a pageblock on top.
        (self.limits.batch << SCALE_MAX).min(u32::from(u16::MAX / 2))
    }

    /// From this `free_count` on, blocks of orders 1 to 3 that are freed in a row do not stay.
    fn leave_from(&self) -> u32 {
        match self.limits.policy {
            Policy::Auto => self.limits.batch.saturating_add(self.limits.high_min / 2),
            Policy::Fixed => u32::MAX,
        }
    }

    /// The weight of all lists.
    #[inline]
    pub(crate) fn load(&self) -> u32 {
        self.ceiling.wrapping_sub(self.left as u32)
    }

    /// Frames on all lists.
    pub(crate) fn parked(&self) -> u32 {
        ListId::all_from(ListId::FIRST)
            .map(|list| (self.chunks.len(list.index()) as u32) << list.order().get())
            .sum()
    }

    /// What one block of the list counts.
    fn weight(&self, list: ListId) -> i32 {
        i32::from(self.weights[list.index()])
    }

    fn set_ceiling(&mut self, ceiling: u32) {
        // Both are at most the pool's capacity, below 2^22, and a refill goes above by a few thousand at most.
        self.left += ceiling as i32 - self.ceiling as i32;
        self.ceiling = ceiling;
    }

    /// The limits that were set last, not clipped to the pool.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// How often the zone was asked.
    pub(crate) fn exchanges(&self) -> Exchanges {
        self.exchanges
    }

    /// The current limit: a free that reaches it trims.
    pub(crate) fn high(&self) -> u32 {
        self.ceiling
    }

    /// Sets the limits; `false` if they are the old ones. What is parked above them leaves with the next frees.
    pub(crate) fn set_limits(&mut self, limits: Limits) -> bool {
        let limits = Limits {
            batch: limits.batch.max(1),
            high_max: limits.high_max.max(limits.high_min),
            ..limits
        };
        if self.limits == limits {
            return false;
        }
        self.limits = limits;
        let mut load = 0;
        for list in ListId::all_from(ListId::FIRST) {
            let weight = limits.weight(list.order());
            self.weights[list.index()] = weight;
            load += self.chunks.len(list.index()) as i32 * i32::from(weight);
            self.calm[list.index()] = match list.is_small() {
                true => self.free_most().min(self.leave_from()),
                false => self.free_most(),
            } as u16;
        }
        self.ceiling = self.ceiling.clamp(self.high_min(), self.high_max());
        self.left = self.ceiling as i32 - load;
        true
    }

    /// The bounds of the limit, as far as the pool has room.
    fn high_min(&self) -> u32 {
        self.limits.high_min.min(self.chunks.capacity())
    }

    fn high_max(&self) -> u32 {
        self.limits.high_max.min(self.chunks.capacity())
    }

    /// Every block on a list.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u32, Order)> {
        ListId::all_from(ListId::FIRST).flat_map(|list| {
            let frames = self.chunks.frames(list.index());
            frames.map(move |frame| (frame, list.order()))
        })
    }

    /// Recounts: the weight, and the chunks' own rules.
    pub(crate) fn check(&self) -> bool {
        let lists = ListId::all_from(ListId::FIRST);
        let load: i64 = lists
            .map(|list| {
                self.chunks.frames(list.index()).count() as i64 * i64::from(self.weight(list))
            })
            .sum();
        self.chunks.check() && load == i64::from(self.load())
    }
}
