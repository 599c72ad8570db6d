//! Which memory exists, and which of it is taken, before there is an allocator.
//!
//! Owns: [`BootMap`], usable memory per node, reserved memory, memory that may come later; the early allocation from it.
//! Invariants: both lists are sorted, disjoint and maximal, whatever the firmware's order; reserved wins over usable;
//! a call that fails leaves the map as it was; frame 0 is never given out.
//! Lock ranks: none; single-threaded until the instance exists.
//! Used by: carve.rs, and the constructors of zones and nodes.

use core::fmt;

use super::error::{MapError, RegionKind};
use super::regions::{ListFull, Region, RegionList};
use crate::addr::{FrameRange, NodeId, Pfn, PhysAddr};

/// Regions end at or below this address, 2^52: what the page tables of x86-64 and arm64 can express.
pub const PHYS_LIMIT: PhysAddr = PhysAddr(1 << 52);

/// Early allocations start at or above this address. It is one frame of the largest page size (64 KiB), because
/// the map does not know the page size, and frame 0 must not be given out with any.
pub const TAKE_FLOOR: PhysAddr = PhysAddr(1 << 16);

/// Memory comes online, and comes and goes, in sections of 128 MiB.
pub const SECTION_BYTES: u64 = 1 << 27;

/// Ranges, at most, in which memory may be added later.
const MOST_HOTPLUG: usize = 8;

/// Usable and reserved memory, at most `N` regions of each after neighbours were merged.
///
/// ```
/// use framekeeper::boot::BootMap;
/// use framekeeper::{FrameRange, NodeId, Pfn, PhysAddr};
///
/// let mut map: BootMap = BootMap::new();
/// map.add(NodeId(0), PhysAddr(0), 0x9fc00)?;          // ends inside a frame: the frame is not usable
/// map.reserve(PhysAddr(0x8000), 100)?;                // the whole frame is reserved
/// let free: Vec<_> = map.free_frames(12).collect();
/// assert_eq!(free, [
///     (NodeId(0), FrameRange::new(Pfn(1), Pfn(8))),   // frame 0 is never given out
///     (NodeId(0), FrameRange::new(Pfn(9), Pfn(0x9f))),
/// ]);
/// # Ok::<(), framekeeper::boot::MapError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BootMap<const N: usize = 128> {
    usable: RegionList<N>,
    reserved: RegionList<N>,
    /// Memory that does not exist yet; usable and reserved besides.
    hotplug: RegionList<MOST_HOTPLUG>,
}

impl<const N: usize> BootMap<N> {
    /// A map of no memory.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            usable: RegionList::new(),
            reserved: RegionList::new(),
            hotplug: RegionList::new(),
        }
    }

    /// Adds usable memory, `bytes` long, on `node`. Bytes that are usable already keep their node; no bytes, no effect.
    ///
    /// # Errors
    /// [`Overflow`](MapError::Overflow), [`BeyondLimit`](MapError::BeyondLimit),
    /// [`TooManyRegions`](MapError::TooManyRegions).
    pub fn add(&mut self, node: NodeId, base: PhysAddr, bytes: u64) -> Result<(), MapError> {
        let Some(mut region) = region(base, bytes)? else {
            return Ok(());
        };
        region.node = Some(node);
        self.usable
            .insert(region)
            .map_err(|ListFull| Self::too_many(RegionKind::Usable))
    }

    /// Names whole sections of [`SECTION_BYTES`] in which memory may be added later, on `node`. An instance carves metadata for
    /// them, and takes them by [`hot_add`](crate::PageAllocator::hot_add). Until then they count as reserved. No bytes, no effect.
    ///
    /// # Errors
    /// [`NotSections`](MapError::NotSections), also where memory is usable or reserved already, and as [`add`](Self::add).
    pub fn add_hotplug(
        &mut self,
        node: NodeId,
        base: PhysAddr,
        bytes: u64,
    ) -> Result<(), MapError> {
        let Some(mut region) = region(base, bytes)? else {
            return Ok(());
        };
        region.node = Some(node);
        let whole = [base.0, bytes].map(|at| at.is_multiple_of(SECTION_BYTES)) == [true; 2];
        let meets = |other: &Region| other.start < region.end && region.start < other.end;
        if !whole || self.usable().chain(self.reserved()).any(meets) || region.start == 0 {
            return Err(MapError::NotSections { base, bytes });
        }
        self.hotplug
            .insert(region)
            .map_err(|ListFull| MapError::TooManyRegions {
                kind: RegionKind::Hotplug,
                capacity: MOST_HOTPLUG,
            })?;
        // No list had any part of it, so cutting it out again leaves each as it was, and there is room for that.
        self.add(node, base, bytes)
            .and_then(|()| {
                self.reserve(base, bytes).inspect_err(|_| {
                    let _fits = self.usable.remove(region.start, region.end);
                })
            })
            .inspect_err(|_| {
                let _fits = self.hotplug.remove(region.start, region.end);
            })
    }

    /// Whole sections in which memory may be added later, ascending.
    pub fn hotplug_frames(&self, page_shift: u32) -> impl Iterator<Item = FrameRange> {
        self.hotplug.as_slice().iter().map(move |region| {
            let at = |addr| Pfn(frames_down(addr, page_shift));
            FrameRange::new(at(region.start), at(region.end))
        })
    }

    /// Marks memory as taken, whether it is usable or not; no bytes, no effect.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn reserve(&mut self, base: PhysAddr, bytes: u64) -> Result<(), MapError> {
        let Some(region) = region(base, bytes)? else {
            return Ok(());
        };
        self.reserved
            .insert(region)
            .map_err(|ListFull| Self::too_many(RegionKind::Reserved))
    }

    /// Gives back memory that [`reserve`](Self::reserve) or [`take`](Self::take) marked, or a part of it.
    ///
    /// # Errors
    /// [`NotReserved`](MapError::NotReserved), and as [`add`](Self::add): freeing the middle of a region leaves two.
    pub fn free(&mut self, base: PhysAddr, bytes: u64) -> Result<(), MapError> {
        let Some(region) = region(base, bytes)? else {
            return Ok(());
        };
        let is_absent = |other: &Region| other.start < region.end && region.start < other.end;
        if !self.reserved.covers(region.start, region.end)
            || self.hotplug.as_slice().iter().any(is_absent)
        {
            return Err(MapError::NotReserved { base, bytes });
        }
        self.reserved
            .remove(region.start, region.end)
            .map_err(|ListFull| Self::too_many(RegionKind::Reserved))
    }

    /// Allocates early: the highest free range of `bytes` on any node, its start a multiple of `align`, reserved
    /// before it is returned. Never below [`TAKE_FLOOR`].
    ///
    /// # Errors
    /// [`BadRequest`](MapError::BadRequest), [`NoSpace`](MapError::NoSpace),
    /// [`TooManyRegions`](MapError::TooManyRegions).
    pub fn take(&mut self, bytes: u64, align: u64) -> Result<PhysAddr, MapError> {
        self.take_below(PHYS_LIMIT, None, bytes, align)
    }

    /// [`take`](Self::take) from memory below `limit` alone, and from `node` alone if one is named: for what the
    /// direct map or a device must reach, or what should lie near its users.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_below(
        &mut self,
        limit: PhysAddr,
        node: Option<NodeId>,
        bytes: u64,
        align: u64,
    ) -> Result<PhysAddr, MapError> {
        if bytes == 0 || !align.is_power_of_two() {
            return Err(MapError::BadRequest { bytes, align });
        }
        let no_space = MapError::NoSpace { bytes, align };
        let start = self
            .usable
            .as_slice()
            .iter()
            .rev()
            .filter(|usable| node.is_none() || usable.node == node)
            .find_map(|&usable| {
                let low = Region {
                    end: usable.end.min(limit.0),
                    ..usable
                };
                // The pieces come in ascending order; the last that fits is the highest.
                self.reserved
                    .uncovered(low)
                    .filter_map(|free| highest_fit(free, TAKE_FLOOR.0, bytes, align))
                    .last()
            })
            .ok_or(no_space)?;
        self.reserve(PhysAddr(start), bytes)?;
        Ok(PhysAddr(start))
    }

    /// Free frames of `1 << page_shift` bytes, ascending: usable and not reserved, whole frames only (a usable end
    /// inside a frame loses the frame, a reserved one takes it), never frame 0.
    pub fn free_frames(&self, page_shift: u32) -> impl Iterator<Item = (NodeId, FrameRange)> {
        self.usable_frames(page_shift)
            .flat_map(move |(node, frames)| {
                self.unreserved(frames, page_shift)
                    .map(move |free| (node, free))
            })
    }

    /// Frames that exist, reserved or not, ascending; whole frames only, never frame 0.
    pub fn usable_frames(&self, page_shift: u32) -> impl Iterator<Item = (NodeId, FrameRange)> {
        self.usable().filter_map(move |region| {
            let start = frames_up(region.start, page_shift).max(1);
            let frames = FrameRange::new(Pfn(start), Pfn(frames_down(region.end, page_shift)));
            Some((region.node?, frames)).filter(|_| !frames.is_empty())
        })
    }

    /// From the first usable frame to the last, holes included; empty if there is none.
    #[must_use]
    pub fn frame_span(&self, page_shift: u32) -> FrameRange {
        span(self.usable_frames(page_shift))
    }

    /// [`frame_span`](Self::frame_span) of one node. Spans of nodes may overlap.
    #[must_use]
    pub fn node_span(&self, node: NodeId, page_shift: u32) -> FrameRange {
        let of_node = self.usable_frames(page_shift);
        span(of_node.filter(|&(owner, _)| owner == node))
    }

    /// Whether an allocator can be built on the map.
    ///
    /// # Errors
    /// [`Empty`](MapError::Empty) if there is no free frame.
    pub fn validate(&self, page_shift: u32) -> Result<(), MapError> {
        self.free_frames(page_shift)
            .next()
            .map(|_| ())
            .ok_or(MapError::Empty)
    }

    /// The usable regions, ascending; reserved parts are still in them.
    pub fn usable(&self) -> impl Iterator<Item = &Region> {
        self.usable.as_slice().iter()
    }

    /// The reserved regions, ascending; they may lie outside usable memory.
    pub fn reserved(&self) -> impl Iterator<Item = &Region> {
        self.reserved.as_slice().iter()
    }

    /// Bytes of usable memory, reserved or not.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        self.usable.bytes()
    }

    /// Bytes of usable memory that is not reserved.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.usable()
            .flat_map(|&region| self.reserved.uncovered(region))
            .map(|piece| piece.bytes())
            .sum()
    }

    /// Number of [free frames](Self::free_frames).
    #[must_use]
    pub fn free_frame_count(&self, page_shift: u32) -> u64 {
        self.free_frames(page_shift)
            .map(|(_, frames)| frames.frames())
            .sum()
    }

    /// The parts of `frames` that hold no reserved byte, ascending.
    fn unreserved(&self, frames: FrameRange, page_shift: u32) -> impl Iterator<Item = FrameRange> {
        let first_byte = frames_to_bytes(frames.start().0, page_shift);
        let mut reserved = self.reserved.as_slice()[self.reserved.first_ending_after(first_byte)..]
            .iter()
            .map(move |region| {
                (
                    frames_down(region.start, page_shift),
                    frames_up(region.end, page_shift),
                )
            });
        let mut start = frames.start().0;
        core::iter::from_fn(move || {
            while start < frames.end().0 {
                let (taken, next) = reserved.next().unwrap_or((u64::MAX, u64::MAX));
                let free = FrameRange::new(Pfn(start), Pfn(taken.min(frames.end().0)));
                start = next;
                if !free.is_empty() {
                    return Some(free);
                }
            }
            None
        })
    }

    const fn too_many(kind: RegionKind) -> MapError {
        MapError::TooManyRegions { kind, capacity: N }
    }
}

/// The region, if it is not empty, without a node.
fn region(base: PhysAddr, bytes: u64) -> Result<Option<Region>, MapError> {
    if bytes == 0 {
        return Ok(None);
    }
    let end = base
        .0
        .checked_add(bytes)
        .ok_or(MapError::Overflow { base, bytes })?;
    if end > PHYS_LIMIT.0 {
        return Err(MapError::BeyondLimit { base, bytes });
    }
    Ok(Some(Region {
        start: base.0,
        end,
        node: None,
    }))
}

/// From the first frame to the last of ascending ranges.
fn span(ranges: impl Iterator<Item = (NodeId, FrameRange)>) -> FrameRange {
    let mut frames = ranges.map(|(_, frames)| frames);
    let first = frames.next().unwrap_or_default();
    let last = frames.last().unwrap_or(first);
    FrameRange::new(first.start(), last.end())
}

/// The highest multiple of `align` from which `bytes` lie in `free` and above `lowest`.
fn highest_fit(free: Region, lowest: u64, bytes: u64, align: u64) -> Option<u64> {
    let start = free.end.checked_sub(bytes)? & !(align - 1);
    (start >= free.start.max(lowest)).then_some(start)
}

// A shift of 64 or more, which no platform has, gives frames larger than all memory instead of a panic.

fn frames_down(addr: u64, page_shift: u32) -> u64 {
    addr >> page_shift.min(63)
}

fn frames_up(addr: u64, page_shift: u32) -> u64 {
    let whole = frames_down(addr, page_shift);
    whole + u64::from(frames_to_bytes(whole, page_shift) < addr)
}

fn frames_to_bytes(frames: u64, page_shift: u32) -> u64 {
    frames << page_shift.min(63)
}

impl<const N: usize> fmt::Display for BootMap<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for region in self.usable() {
            writeln!(f, "usable   {region}")?;
        }
        for region in self.reserved() {
            writeln!(f, "reserved {region}")?;
        }
        for region in self.hotplug.as_slice() {
            writeln!(f, "absent   {region}")?;
        }
        write!(
            f,
            "{} bytes usable, {} of them free",
            self.usable_bytes(),
            self.free_bytes()
        )
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::addr::Order;
    use std::string::ToString;
    use std::vec::Vec;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn map_of<const N: usize>(usable: &[(u8, u64, u64)], reserved: &[(u64, u64)]) -> BootMap<N> {
        let mut map = BootMap::new();
        for &(node, base, bytes) in usable {
            map.add(NodeId(node), PhysAddr(base), bytes).unwrap();
        }
        for &(base, bytes) in reserved {
            map.reserve(PhysAddr(base), bytes).unwrap();
        }
        map
    }

    fn free<const N: usize>(map: &BootMap<N>) -> Vec<(u8, u64, u64)> {
        map.free_frames(12)
            .map(|(node, frames)| (node.0, frames.start().0, frames.end().0))
            .collect()
    }

    #[test]
    fn an_early_allocation_comes_from_the_top_and_is_reserved_before_it_returns() {
        let mut map: BootMap = map_of(&[(0, 0, MIB), (1, 2 * MIB, MIB)], &[(3 * MIB - 100, 100)]);
        let first = map.take(4 * KIB, 4 * KIB).unwrap();
        assert_eq!(first, PhysAddr(3 * MIB - 8 * KIB));
        let second = map.take(1, 1).unwrap();
        assert_eq!(second, PhysAddr(3 * MIB - 101));
        let low = map.take_below(PhysAddr(640 * KIB), Some(NodeId(0)), 4 * KIB, 4 * KIB);
        assert_eq!(low, Ok(PhysAddr(636 * KIB)));
        assert_eq!(map.reserved().count(), 3);
    }

    #[test]
    fn misuse_6_frame_0_is_never_given_out() {
        let mut map: BootMap = map_of(&[(0, 0, MIB)], &[]);
        for shift in [12, 14, 16] {
            assert_eq!(map.free_frames(shift).next().unwrap().1.start(), Pfn(1));
        }
        let mut taken = Vec::new();
        while let Ok(base) = map.take(64, 64) {
            taken.push(base);
        }
        assert_eq!(taken.last(), Some(&TAKE_FLOOR));
        assert_eq!(taken.len() as u64, (MIB - TAKE_FLOOR.0) / 64);
        assert_eq!(map.reserved().count(), 1);
    }

    #[test]
    fn two_nodes_that_share_a_frame_both_lose_it() {
        let map: BootMap = map_of(&[(0, MIB, 6 * KIB), (1, MIB + 6 * KIB, 6 * KIB)], &[]);
        assert_eq!(free(&map), [(0, 256, 257), (1, 258, 259)]);
    }

    /// R27: start 0 has no lowest set bit; without frame 0 the blocks grow from order 0 up.
    #[test]
    fn the_first_four_mib_are_handed_over_as_one_block_less_frame_0() {
        let map: BootMap = map_of(&[(0, 0, 4 * MIB)], &[]);
        let (_, frames) = map.free_frames(12).next().unwrap();
        let orders: Vec<_> = frames
            .blocks(Order::MAX)
            .map(|(_, order)| order.get())
            .collect();
        assert_eq!(orders, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_page_shift_that_no_platform_has_gives_no_frames_and_no_panic() {
        let map: BootMap = map_of(&[(0, 0, PHYS_LIMIT.0)], &[(5, 1)]);
        for shift in [52, 63, 64, u32::MAX] {
            assert_eq!(map.free_frames(shift).count(), 0);
            assert_eq!(map.validate(shift), Err(MapError::Empty));
        }
    }

    #[test]
    fn the_map_prints_both_lists_and_the_totals() {
        let map: BootMap = map_of(&[(1, 0, 0x9fc00)], &[(0x9f000, 0x1000)]);
        assert_eq!(
            map.to_string(),
            "usable   0x0000000000000000..0x000000000009fc00 node 1 (654336 bytes)\n\
             reserved 0x000000000009f000..0x00000000000a0000 (4096 bytes)\n\
             654336 bytes usable, 651264 of them free"
        );
    }
}
