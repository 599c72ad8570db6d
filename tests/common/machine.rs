//! Machines for tests: allocators over frames that exist as numbers only.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses the part it needs"
)]

use std::collections::BTreeMap;

use framekeeper::boot::{BootMap, LateMemory, Memory};
use framekeeper::{
    Config, FrameRange, InitError, Moved, NodeId, PageAllocator, Pages, Pfn, PhysAddr, Refused,
    Request,
};

use super::host::{Host, storage};

/// Bytes of metadata that every test machine has room for.
const METADATA: usize = 8 << 20;

/// A map with one usable region on node 0: `frames` frames from `first` on.
pub fn one_region(first: u64, frames: u64) -> BootMap {
    let mut map = BootMap::new();
    map.add(NodeId(0), PhysAddr(first << 12), frames << 12)
        .expect("one region fits");
    map
}

/// The map's memory, promised to one instance.
pub fn memory(map: &mut BootMap) -> Memory<'_, Host> {
    // SAFETY: the host's frames are numbers; nobody uses the memory behind them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::claim(map) };
    memory.with_storage(storage(METADATA))
}

/// An allocator of the map's memory.
pub fn allocator(mut map: BootMap, config: &Config) -> Result<PageAllocator<Host>, InitError> {
    PageAllocator::new(memory(&mut map), config).map_err(Refused::into_error)
}

/// First frame of a machine whose memory is all one zone: 4 GiB.
pub const FIRST: u64 = 1 << 20;

/// A range of such a machine's frames, counted from its first.
pub fn range(start: u64, end: u64) -> FrameRange {
    FrameRange::new(Pfn(FIRST + start), Pfn(FIRST + end))
}

/// Memory that an instance is given later.
pub fn late(start: u64, end: u64) -> LateMemory {
    // SAFETY: the host's frames are numbers; nobody uses the memory behind them.
    #[allow(unsafe_code)]
    unsafe {
        LateMemory::claim(FrameRange::new(Pfn(start), Pfn(end)))
    }
}

/// All that a request can have, block by block, by first frame.
pub fn all(allocator: &PageAllocator<Host>, request: Request) -> BTreeMap<u64, Pages<'_, Host>> {
    std::iter::from_fn(|| allocator.try_alloc(request).ok())
        .map(|pages| (pages.pfn().0, pages))
        .collect()
}

/// The hook of a kernel that cannot move anything.
pub fn stay(_: FrameRange) -> Moved {
    Moved::Unmovable
}

/// Where a program's choices come from.
pub trait Choices {
    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64;
    /// Whether the program is to end.
    fn are_over(&self) -> bool;
}

/// A fuzzer's: as many bytes as the limit needs for each choice. The program ends with them.
pub struct Bytes<'a>(pub &'a [u8]);

impl Choices for Bytes<'_> {
    fn below(&mut self, limit: u64) -> u64 {
        let needed = (u64::BITS - (limit - 1).leading_zeros()).div_ceil(8);
        let byte = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
        let (now, rest) = self.0.split_at(self.0.len().min(needed as usize));
        self.0 = rest;
        now.iter().fold(0, byte) % limit
    }

    fn are_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// Numbers from a 64-bit linear congruential generator, without end.
pub struct Random(pub u64);

impl Choices for Random {
    fn below(&mut self, limit: u64) -> u64 {
        Self::below(self, limit)
    }

    fn are_over(&self) -> bool {
        false
    }
}

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}
