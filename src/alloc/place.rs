//! Where a block lies, in one word, so that a handle travels in two registers.
//!
//! Owns: [`Place`]. Invariants: the order is at most [`Order::MAX`]. Lock ranks: none. Used by: [`Pages`](super::Pages).

use super::MAX_CPUS;
use crate::addr::Order;
use crate::pageset::ListId;
use crate::zone::Mobility;

/// Zone, first frame, order, and the pageset list that the block goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct Place(u64);

/// What of a place is known before its block is: order and list, as they stand in a [`Place`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sort(u64);

const ZONE_AT: u32 = 32;
/// Set beside the zone of a block that is not cached: the row is then beyond all pagesets, so that the fast way ends
/// without a test of its own.
const UNCACHED: u64 = 1 << (ZONE_AT + ROW_BITS - 1);
const ROW_BITS: u32 = 23;
const ORDER_AT: u32 = 55;
// The topmost four bits, so that a shift alone gives the list; likewise the processor masks a shift by the order.
const LIST_AT: u32 = 60;

const _: () = assert!(1 << (ROW_BITS - 1) > MAX_CPUS as u64 * 256);

impl Sort {
    /// The bits of a word that a sort leaves to others.
    pub(super) const REST: u64 = (1 << ORDER_AT) - 1;

    /// Order and list of a word that has them in their places.
    #[inline]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits & !Self::REST)
    }

    #[inline]
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) const fn new(order: Order, list: ListId) -> Self {
        Self((order.get() as u64) << ORDER_AT | (list.number() as u64) << LIST_AT)
    }

    /// The same order with another list.
    #[inline]
    pub(super) const fn with_mobility(self, mobility: Mobility) -> Self {
        match Order::new((self.0 >> ORDER_AT & 31) as u8) {
            Some(order) => Self::new(order, ListId::new(order, mobility)),
            None => self,
        }
    }

    /// Whether there is a list for such blocks.
    #[inline]
    pub(super) const fn is_cached(self) -> bool {
        self.list().number() != ListId::NONE.number()
    }

    /// The list.
    #[inline]
    pub(super) const fn list(self) -> ListId {
        ListId::from_number((self.0 >> LIST_AT) as u8)
    }

    /// The order.
    #[inline]
    pub(super) fn order(self) -> Order {
        Order::new((self.0 >> ORDER_AT & 31) as u8).expect("made from an order")
    }
}

impl Place {
    /// The place of a block that a pageset may hold.
    #[inline]
    pub(super) const fn cached(zone: u8, frame: u32, sort: Sort) -> Self {
        Self(sort.0 | (zone as u64) << ZONE_AT | frame as u64)
    }

    /// The place of any block.
    #[inline]
    pub(super) const fn new(zone: u8, frame: u32, sort: Sort) -> Self {
        let place = Self::cached(zone, frame, sort);
        if sort.is_cached() {
            place
        } else {
            Self(place.0 | UNCACHED)
        }
    }

    /// The same place, where the fast way of a free does not find a pageset.
    #[inline]
    pub(super) const fn past_fast_way(self) -> Self {
        Self(self.0 | UNCACHED)
    }

    /// Index of the zone.
    #[inline]
    pub(super) const fn zone(self) -> u8 {
        (self.0 >> ZONE_AT) as u8
    }

    /// Index of the zone among a CPU's pagesets; beyond those of all CPUs if the block is not cached.
    #[inline]
    pub(super) const fn row(self) -> u32 {
        (self.0 >> ZONE_AT) as u32 & ((1 << ROW_BITS) - 1)
    }

    /// First frame, from the zone's base.
    #[inline]
    pub(super) const fn frame(self) -> u32 {
        self.0 as u32
    }

    /// Order and list.
    #[inline]
    pub(super) const fn sort(self) -> Sort {
        Sort::from_bits(self.0)
    }
}
