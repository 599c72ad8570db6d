//! Numbers that name memory, CPUs and nodes.
//!
//! Owns: the index types. They are plain numbers and give no rights to what they name.
//! Invariants: an [`Order`] is at most [`Order::MAX`]; a [`FrameRange`] never ends before it starts.
//! Lock ranks: none.
//! Used by: every other module.

use core::fmt;

/// A physical address in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PhysAddr(pub u64);

/// A page frame number: physical address shifted right by [`Platform::PAGE_SHIFT`](crate::Platform::PAGE_SHIFT).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pfn(pub u64);

/// A NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct NodeId(pub u8);

/// A CPU, as [`Platform::cpu`](crate::Platform::cpu) numbers them: dense, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct CpuId(pub u32);

/// The base-2 logarithm of a block's length in frames, 0 to [`Order::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Order(u8);

/// What kind of address range a zone covers, lowest addresses first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ZoneKind {
    /// Below 16 MiB: reachable by the oldest devices.
    Dma,
    /// Below 4 GiB: reachable by devices with 32-bit addresses.
    Dma32,
    /// The rest.
    Normal,
    /// Only memory whose contents can be migrated away.
    Movable,
}

/// A half-open range of frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FrameRange {
    start: u64,
    end: u64,
}

impl PhysAddr {
    /// The frame that holds this address, with pages of `1 << page_shift` bytes.
    #[must_use]
    pub const fn pfn(self, page_shift: u32) -> Pfn {
        Pfn(match self.0.checked_shr(page_shift) {
            Some(number) => number,
            None => 0,
        })
    }
}

impl Pfn {
    /// Address of the frame's first byte, with pages of `1 << page_shift` bytes.
    #[must_use]
    pub const fn addr(self, page_shift: u32) -> PhysAddr {
        PhysAddr(match self.0.checked_shl(page_shift) {
            Some(address) => address,
            None => 0,
        })
    }

    /// Whether a block of `order` may start here: blocks are aligned by absolute frame number.
    #[must_use]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.frames() - 1) == 0
    }
}

impl Order {
    /// One frame.
    pub const ZERO: Self = Self(0);
    /// 2^9 frames: a pageblock, one line of a zone.
    pub const PAGEBLOCK: Self = Self(9);
    /// 2^18 frames (1 GiB of 4 KiB pages): the largest block.
    pub const MAX: Self = Self(18);
    /// Number of orders.
    pub const COUNT: usize = 19;

    /// The order `n`, if there is one.
    ///
    /// ```
    /// use framekeeper::Order;
    /// assert_eq!(Order::new(9).unwrap().frames(), 512);
    /// assert!(Order::new(19).is_none());
    /// ```
    #[must_use]
    pub const fn new(n: u8) -> Option<Self> {
        if n <= Self::MAX.0 {
            Some(Self(n))
        } else {
            None
        }
    }

    /// The exponent.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Length of a block of this order, in frames.
    #[must_use]
    pub const fn frames(self) -> u64 {
        1 << self.0
    }

    /// The largest order of a naturally aligned block that starts at `range.start()` and ends within `range`,
    /// at most `limit`; `None` for an empty range.
    #[must_use]
    pub fn largest_at_start(range: FrameRange, limit: Self) -> Option<Self> {
        // `trailing_zeros` of frame 0 is 64: frame 0 is aligned to every order.
        let aligned = range.start.trailing_zeros();
        let fits = range.frames().checked_ilog2()?;
        Some(Self(aligned.min(fits).min(u32::from(limit.0)) as u8))
    }
}

impl FrameRange {
    /// The frames from `start` up to, not including, `end`; empty if `end <= start`.
    #[must_use]
    pub const fn new(start: Pfn, end: Pfn) -> Self {
        let end = if end.0 < start.0 { start.0 } else { end.0 };
        Self {
            start: start.0,
            end,
        }
    }

    /// The block of `order` at `start`. Saturates at the last frame number.
    #[must_use]
    pub const fn block(start: Pfn, order: Order) -> Self {
        Self {
            start: start.0,
            end: start.0.saturating_add(order.frames()),
        }
    }

    /// First frame.
    #[must_use]
    pub const fn start(self) -> Pfn {
        Pfn(self.start)
    }

    /// One past the last frame.
    #[must_use]
    pub const fn end(self) -> Pfn {
        Pfn(self.end)
    }

    /// Length in frames.
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.end - self.start
    }

    /// Whether no frame is in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether `pfn` is in it.
    #[must_use]
    pub const fn contains(self, pfn: Pfn) -> bool {
        self.start <= pfn.0 && pfn.0 < self.end
    }

    /// Whether all of `other` is in it. An empty range is in every range.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// The frames that are in both.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        Self::new(
            Pfn(self.start.max(other.start)),
            Pfn(self.end.min(other.end)),
        )
    }

    /// Every frame, in ascending order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Pfn> + Clone {
        (self.start..self.end).map(Pfn)
    }

    /// Cuts the range into the fewest naturally aligned blocks of at most `limit`, in ascending order.
    ///
    /// ```
    /// use framekeeper::{FrameRange, Order, Pfn};
    /// let range = FrameRange::new(Pfn(0), Pfn(1024));
    /// let blocks: Vec<_> = range.blocks(Order::MAX).collect();
    /// assert_eq!(blocks, [(Pfn(0), Order::new(10).unwrap())]);
    /// ```
    pub fn blocks(self, limit: Order) -> impl Iterator<Item = (Pfn, Order)> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let order = Order::largest_at_start(rest, limit)?;
            let start = rest.start();
            rest.start += order.frames();
            Some((start, order))
        })
    }
}

impl ZoneKind {
    /// Number of kinds.
    pub const COUNT: usize = 4;
    /// All kinds, lowest addresses first.
    pub const ALL: [Self; Self::COUNT] = [Self::Dma, Self::Dma32, Self::Normal, Self::Movable];
}

impl fmt::Display for ZoneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Padded, since `/proc/zoneinfo` and `/proc/buddyinfo` align the names.
        f.pad(match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::Movable => "Movable",
        })
    }
}

impl fmt::Display for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PhysAddr({:#x})", self.0)
    }
}

impl fmt::Display for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pfn({:#x})", self.0)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for FrameRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

impl fmt::Debug for FrameRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameRange({self})")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_range_is_cut_into_aligned_blocks_that_cover_it_exactly() {
        for (start, end) in [
            (0, 1 << 20),
            (1, 2),
            (3, 1030),
            (511, 513),
            (7, 7),
            (1 << 18, (1 << 19) + 5),
        ] {
            let range = FrameRange::new(Pfn(start), Pfn(end));
            let mut next = start;
            for (pfn, order) in range.blocks(Order::MAX) {
                assert_eq!(pfn.0, next);
                assert!(pfn.is_aligned(order));
                next += order.frames();
            }
            assert_eq!(next, end);
        }
    }

    /// R27: start 0 has no lowest set bit.
    #[test]
    fn the_first_four_mib_from_frame_zero_are_one_block_of_order_ten() {
        let blocks: Vec<_> = FrameRange::new(Pfn(0), Pfn(1024))
            .blocks(Order(10))
            .collect();
        assert_eq!(blocks, [(Pfn(0), Order(10))]);
    }

    #[test]
    fn a_reversed_range_is_empty_and_an_overflowing_block_saturates() {
        assert!(FrameRange::new(Pfn(9), Pfn(3)).is_empty());
        assert_eq!(
            FrameRange::block(Pfn(u64::MAX - 1), Order::MAX).end(),
            Pfn(u64::MAX)
        );
    }
}
