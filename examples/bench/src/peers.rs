//! Other allocators from crates.io, each behind one spin lock, as their users share them.

use std::alloc::Layout;
use std::mem::MaybeUninit;

use bitmap_allocator::{BitAlloc, BitAlloc1M};
use buddy_system_allocator::FrameAllocator;
use free_list::{FreeList, PageLayout, PageRange};
use spin::mutex::SpinMutex;
use talc::base::Talc;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;

use crate::subject::{FRAMES, Subject};

/// `buddy_system_allocator`: a sorted set of blocks for each order.
pub struct Buddy(SpinMutex<FrameAllocator<20>>);

impl Subject for Buddy {
    type Block<'a> = usize;
    const NAME: &'static str = "buddy_system_allocator";

    fn new() -> Self {
        let mut frames = FrameAllocator::new();
        frames.insert(0..FRAMES as usize);
        Self(SpinMutex::new(frames))
    }

    fn alloc(&self, order: u8) -> Option<usize> {
        self.0.lock().alloc(1 << order)
    }

    fn free(&self, block: usize, order: u8) {
        self.0.lock().dealloc(block, 1 << order);
    }
}

/// `bitmap-allocator`: a tree of 16-bit words.
pub struct Bitmap(SpinMutex<Box<BitAlloc1M>>);

impl Subject for Bitmap {
    type Block<'a> = usize;
    const NAME: &'static str = "bitmap-allocator";

    fn new() -> Self {
        let mut bits = Box::new(BitAlloc1M::DEFAULT);
        bits.insert(0..FRAMES as usize);
        Self(SpinMutex::new(bits))
    }

    fn alloc(&self, order: u8) -> Option<usize> {
        match order {
            0 => self.0.lock().alloc(),
            _ => self
                .0
                .lock()
                .alloc_contiguous(None, 1 << order, usize::from(order)),
        }
    }

    fn free(&self, block: usize, order: u8) {
        match order {
            0 => self.0.lock().dealloc(block),
            _ => self.0.lock().dealloc_contiguous(block, 1 << order),
        };
    }
}

/// `free-list`: a sorted array of free ranges. Its cost grows with their number, so it hosts what keeps them few.
pub struct Ranges(SpinMutex<Box<FreeList<16384>>>);

const PAGE: usize = free_list::PAGE_SIZE;

impl Subject for Ranges {
    type Block<'a> = PageRange;
    const NAME: &'static str = "free-list";

    fn new() -> Self {
        let mut list = Box::new(FreeList::new());
        let all = PageRange::from_start_len(PAGE, FRAMES as usize * PAGE).expect("whole pages");
        // SAFETY: the pages are numbers; nobody uses the memory behind them.
        unsafe { list.deallocate(all) }.expect("one range fits");
        Self(SpinMutex::new(list))
    }

    fn hosts(workload: &str) -> bool {
        matches!(
            workload,
            "pingpong_fresh"
                | "bulk_inorder_alloc"
                | "bulk_inorder_free"
                | "order9_pingpong"
                | "order9_bulk_alloc"
                | "order9_bulk_free"
        )
    }

    fn alloc(&self, order: u8) -> Option<PageRange> {
        let bytes = PAGE << order;
        let layout = PageLayout::from_size_align(bytes, PAGE).ok()?;
        self.0.lock().allocate(layout).ok()
    }

    fn free(&self, block: PageRange, _order: u8) {
        // SAFETY: as above.
        unsafe { self.0.lock().deallocate(block) }.expect("the hosted workloads keep ranges few");
    }
}

/// `talc`: a heap of bytes with a tag at each chunk. A frame stands for 256 of its bytes, the tag included, so
/// that 1 Mi frames fit in memory; blocks are not aligned to their size, which is less than the others must do.
pub struct Heap(SpinMutex<Talc<Manual, DefaultBinning>>);

/// A block of a heap.
pub struct HeapBlock(*mut u8);

// SAFETY: a block is an address; it is used by one thread at a time, under the heap's lock.
unsafe impl Send for HeapBlock {}

// SAFETY: the heap's pointers are followed under its lock only.
unsafe impl Sync for Heap {}

const UNIT: usize = 256;
const TAG: usize = 8;

impl Heap {
    fn layout(order: u8) -> Layout {
        Layout::from_size_align((UNIT << order) - TAG, 8).expect("small sizes")
    }
}

impl Subject for Heap {
    type Block<'a> = HeapBlock;
    const NAME: &'static str = "talc";

    fn new() -> Self {
        // Room for the heap's own tables beside the frames.
        let bytes = FRAMES as usize * UNIT + 4096;
        let mut arena = Vec::<MaybeUninit<u8>>::with_capacity(bytes);
        let base = arena.as_mut_ptr().cast();
        std::mem::forget(arena);
        let mut talc = Talc::new(Manual);
        // SAFETY: the arena is never freed and nobody else has it.
        unsafe { talc.claim(base, bytes) }.expect("large enough");
        Self(SpinMutex::new(talc))
    }

    fn alloc(&self, order: u8) -> Option<HeapBlock> {
        // SAFETY: the layout's size is not zero.
        let block = unsafe { self.0.lock().allocate(Self::layout(order)) };
        block.map(|block| HeapBlock(block.as_ptr()))
    }

    fn free(&self, block: HeapBlock, order: u8) {
        // SAFETY: the block came from `alloc` with the same order.
        unsafe { self.0.lock().deallocate(block.0, Self::layout(order)) };
    }
}
