//! Per-CPU caches of free frames, so that most allocations and frees touch no zone.
//!
//! Owns: [`Pagesets`], one [`Cache`] for each CPU and zone. A cache holds frame numbers in chunks of one pool, in a
//! list for each cached order and mobility type; the top of a list is hot, its bottom cold.
//! Invariants: a frame on a list is free, of the cache's zone, in no other list and in no shard.
//! Lock ranks: Pageset, and Shard inside it for one batch. The owner only tries the lock: taken means that the request goes
//! to the shard. Interrupts are masked while it is held, so any CPU may also wait for it, to drain.
//! Used by: node, alloc.

mod cache;
#[cfg(all(test, not(loom)))]
mod cache_tests;
mod chunks;
#[cfg(all(test, not(loom)))]
mod chunks_tests;
pub mod tune;

use crate::addr::{CpuId, Order};
use crate::boot::{Bump, StorageFull};
use crate::platform::Platform;
use crate::sync::{CachePadded, Lock};
use crate::zone::Mobility;

pub(crate) use cache::Cache;
pub use cache::{Exchanges, Pressure};
pub(crate) use chunks::CHUNK_FRAMES;
use chunks::LISTS;

/// Mobility types that have lists of their own: the first of [`Mobility`].
const TYPES: u8 = Mobility::PCP as u8;

/// Which list of a cache: an order (0 to 3, or 9) with a mobility type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListId(u8);

impl ListId {
    /// The first of all lists.
    pub(crate) const FIRST: Self = Self(0);
    /// The list of blocks that are not cached. It stays empty.
    pub(crate) const NONE: Self = Self(LISTS as u8 - 1);

    /// The list for blocks of `order` and type `mobility`.
    #[inline]
    pub(crate) const fn new(order: Order, mobility: Mobility) -> Self {
        let order = match order.get() {
            n @ 0..=3 => n,
            9 => 4,
            _ => return Self::NONE,
        };
        if mobility as u8 >= TYPES {
            return Self::NONE;
        }
        Self(order * TYPES + mobility as u8)
    }

    /// Its number.
    #[inline]
    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    /// The list with a number; no list of blocks has one above [`NONE`](Self::NONE)'s.
    #[inline]
    pub(crate) const fn from_number(number: u8) -> Self {
        Self(number % LISTS as u8)
    }

    /// Whether its blocks are of order 1 to 3.
    #[inline]
    const fn is_small(self) -> bool {
        self.0.wrapping_sub(TYPES) < 3 * TYPES
    }

    #[inline]
    fn index(self) -> usize {
        usize::from(self.0) % LISTS
    }

    /// Order of the blocks on this list.
    fn order(self) -> Order {
        match self.0 / TYPES {
            4 => Order::PAGEBLOCK,
            n => Order::new(n).expect("0..=3 are orders"),
        }
    }

    /// Mobility type of the blocks on this list.
    fn mobility(self) -> Option<Mobility> {
        (self != Self::NONE).then(|| Mobility::ALL[usize::from(self.0 % TYPES)])
    }

    /// Every list that can hold blocks once, from `first` on, around.
    fn all_from(first: Self) -> impl Iterator<Item = Self> {
        let all = LISTS as u8 - 1;
        (0..all).map(move |i| Self((first.0 % all + i) % all))
    }
}

/// The caches of every CPU and zone.
#[derive(Debug)]
pub(crate) struct Pagesets<P: Platform> {
    /// That of CPU c and zone z is at c × zones + z.
    caches: &'static [CachePadded<Lock<Cache, P>>],
    zones: usize,
}

impl<P: Platform> Pagesets<P> {
    /// Empty caches of `slots` blocks each.
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
    pub(crate) fn of(&self, cpu: CpuId, zone: u32) -> Option<&'static Lock<Cache, P>> {
        // An id out of range cannot wrap into the range: it is 32 bits long, and the number of zones 8.
        let index = cpu.0 as usize * self.zones + zone as usize;
        self.caches.get(index).map(|padded| &padded.0)
    }

    /// The cache with this index: CPU × zones + zone.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&'static Lock<Cache, P>> {
        self.caches.get(index as usize).map(|padded| &padded.0)
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
