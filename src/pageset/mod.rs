//! Per-CPU caches of free frames, so that most allocations and frees touch no zone.
//!
//! Owns: [`Pagesets`], one [`Cache`] for each CPU and zone. A cache holds frame numbers in chunks of one pool, in a
//! list for each cached order and mobility type; the top of a list is hot, its bottom cold.
//! Invariants: a frame on a list is free, of the cache's zone, in no other list and in no shard; `parked` is the number
//! of frames on all lists; every chunk is in one list or spare; only a list's top and bottom chunk may be part full.
//! Lock ranks: Pageset, and Shard inside it for one batch. The owner only tries the lock: taken means that the request goes
//! to the shard. Interrupts are masked while it is held, so any CPU may also wait for it, to drain.
//! Used by: node, alloc.

mod chunks;

use crate::addr::{CpuId, Order};
use crate::boot::{Bump, StorageFull};
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::{CachePadded, Lock, Ranked};
use crate::zone::{Mobility, Zone};

pub(crate) use chunks::CHUNK_FRAMES;
use chunks::Chunks;

/// Mobility types that have lists of their own: the first of [`Mobility`].
const TYPES: usize = 3;
/// Orders that have lists: 0..=3, and [`Order::PAGEBLOCK`].
const ORDERS: usize = 5;
const LISTS: usize = ORDERS * TYPES;

/// Which list of a cache: an order with a mobility type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListId(u8);

impl ListId {
    /// The first of all lists.
    pub(crate) const FIRST: Self = Self(0);

    /// The list for blocks of `order` and type `mobility`; `None` if such blocks are not cached.
    #[inline]
    pub(crate) fn new(order: Order, mobility: Mobility) -> Option<Self> {
        let order = match order.get() {
            n @ 0..=3 => n,
            9 => 4,
            _ => return None,
        };
        let mobility = mobility as u8;
        (usize::from(mobility) < TYPES).then_some(Self(order * TYPES as u8 + mobility))
    }

    /// Order of the blocks on this list.
    pub(crate) fn order(self) -> Order {
        match self.0 / TYPES as u8 {
            4 => Order::PAGEBLOCK,
            n => Order::new(n).expect("0..=3 are orders"),
        }
    }

    /// Mobility type of the blocks on this list.
    fn mobility(self) -> Mobility {
        [
            Mobility::Unmovable,
            Mobility::Movable,
            Mobility::Reclaimable,
        ][usize::from(self.0) % TYPES]
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..LISTS as u8).map(Self)
    }
}

/// How many frames move at once, and how many may be parked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Frames per exchange with the zone; at least 1.
    pub(crate) batch: u32,
    /// A cache that holds this many frames after a free gives `batch` of them back.
    pub(crate) high: u32,
}

/// One CPU's free frames of one zone.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Frames on all lists.
    parked: u32,
    limits: Limits,
    chunks: Chunks<LISTS>,
}

impl Ranked for Cache {
    const RANK: Rank = Rank::Pageset;
}

/// The caches of every CPU and zone.
#[derive(Debug)]
pub(crate) struct Pagesets<P: Platform> {
    /// That of CPU c and zone z is at c × zones + z.
    caches: &'static [CachePadded<Lock<Cache, P>>],
    zones: usize,
}

impl<P: Platform> Pagesets<P> {
    /// Empty caches of `slots` frames each.
    pub(crate) fn build(
        bump: &mut Bump<'_>,
        cpus: u32,
        zones: usize,
        slots: u32,
    ) -> Result<Self, StorageFull> {
        let caches = bump.slots_with(cpus as usize * zones, |bump, _| {
            Ok::<_, StorageFull>(CachePadded(Lock::new(Cache::build(bump, slots)?)))
        })?;
        Ok(Self { caches, zones })
    }

    /// The cache of `cpu` for the zone with index `zone`; `None` for a CPU that has none.
    #[inline]
    pub(crate) fn of(&self, cpu: CpuId, zone: u8) -> Option<&'static Lock<Cache, P>> {
        // An id out of range cannot wrap into the range: it is 32 bits long, and so is `zones`' product with it.
        let index = cpu.0 as usize * self.zones + usize::from(zone);
        self.caches.get(index).map(|padded| &padded.0)
    }

    /// Every CPU's cache of one zone, in order of their ids.
    pub(crate) fn of_zone(
        &self,
        zone: u8,
    ) -> impl Iterator<Item = (CpuId, &'static Lock<Cache, P>)> + use<P> {
        self.caches
            .iter()
            .skip(usize::from(zone))
            .step_by(self.zones.max(1))
            .enumerate()
            .map(|(cpu, padded)| (CpuId(cpu as u32), &padded.0))
    }
}

impl Cache {
    fn build(bump: &mut Bump<'_>, slots: u32) -> Result<Self, StorageFull> {
        Ok(Self {
            parked: 0,
            limits: Limits { batch: 1, high: 0 },
            chunks: Chunks::build(bump, slots)?,
        })
    }

    /// Takes the block that was put there last.
    #[inline]
    pub(crate) fn pop(&mut self, list: ListId) -> Option<u32> {
        let frame = self.chunks.pop(usize::from(list.0))?;
        self.parked -= 1 << list.order().get();
        Some(frame)
    }

    /// Puts a block on top, if that takes no work: `false`, with nothing done, if the list's chunk is full or
    /// the cache would reach its limit.
    #[inline]
    pub(crate) fn push(&mut self, list: ListId, frame: u32) -> bool {
        let parked = self.parked + (1 << list.order().get());
        if parked >= self.limits.high || !self.chunks.push(usize::from(list.0), frame) {
            return false;
        }
        self.parked = parked;
        true
    }

    /// [`pop`](Self::pop) for an empty list: moves a batch from the zone to the cache first.
    pub(crate) fn refill<P: Platform>(
        &mut self,
        list: ListId,
        zone: &Zone<P>,
        home: u32,
        off: &IrqOff<P>,
    ) -> Option<u32> {
        if let Some(frame) = self.pop(list) {
            return Some(frame);
        }
        let order = list.order();
        let mut wanted = self.refill_blocks(order);
        let index = usize::from(list.0);
        while wanted > 0 {
            let ask = wanted.min(CHUNK_FRAMES as u32);
            let got = self.chunks.fill(index, ask as usize, |out| {
                zone.take_blocks(order, list.mobility(), home, out, off)
            });
            let Some(got) = got else { break };
            self.parked += (got as u32) << order.get();
            if got < ask as usize {
                break;
            }
            wanted -= ask;
        }
        self.pop(list)
    }

    /// Blocks of `order` that one refill takes.
    fn refill_blocks(&self, order: Order) -> u32 {
        if self.limits.high < self.limits.batch {
            return 1;
        }
        match self.limits.batch >> order.get() {
            _ if order == Order::ZERO => self.limits.batch,
            blocks => blocks.max(2),
        }
    }

    /// [`push`](Self::push) for a list without room or a cache at its limit: gives cold frames back to the zone.
    /// `false`, with the block not taken, if there is no chunk for it.
    pub(crate) fn push_and_trim<P: Platform>(
        &mut self,
        list: ListId,
        frame: u32,
        zone: &Zone<P>,
        off: &IrqOff<P>,
    ) -> bool {
        if self.limits.high == 0 || !self.chunks.push_growing(usize::from(list.0), frame) {
            return false;
        }
        self.parked += 1 << list.order().get();
        if self.parked >= self.limits.high {
            self.trim(list, self.limits.batch, zone, off);
        }
        true
    }

    /// Gives at least `frames` frames back, the coldest of `first` before those of the other lists; fewer if there are
    /// not so many. The last block may overshoot.
    pub(crate) fn trim<P: Platform>(
        &mut self,
        first: ListId,
        frames: u32,
        zone: &Zone<P>,
        off: &IrqOff<P>,
    ) {
        let target = self.parked.saturating_sub(frames);
        for list in ListId::all()
            .skip(usize::from(first.0))
            .chain(ListId::all())
        {
            let order = list.order();
            while self.parked > target {
                let blocks = (self.parked - target).div_ceil(1 << order.get());
                let given = self
                    .chunks
                    .take_cold(usize::from(list.0), blocks as usize, |frames| {
                        zone.give_blocks(order, frames, off);
                    });
                if given == 0 {
                    break;
                }
                self.parked -= (given as u32) << order.get();
            }
        }
    }

    /// Frames on all lists.
    pub(crate) fn parked(&self) -> u32 {
        self.parked
    }

    /// The limits in force.
    #[allow(dead_code, reason = "for the recompute check")]
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets the limits. What is parked above them leaves with the next frees.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = Limits {
            batch: limits.batch.max(1),
            high: limits.high.min(self.chunks.capacity()),
        };
    }

    /// Every block on a list.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u32, Order)> {
        ListId::all().flat_map(|list| {
            self.chunks
                .frames(usize::from(list.0))
                .map(move |frame| (frame, list.order()))
        })
    }

    /// Recounts: frames parked, and the chunks' own rules.
    pub(crate) fn check(&self) -> bool {
        let parked: u64 = self.blocks().map(|(_, order)| order.frames()).sum();
        self.chunks.check() && parked == u64::from(self.parked)
    }
}
