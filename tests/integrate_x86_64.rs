//! The adapters of the feature `x86_64`.
#![cfg(feature = "x86_64")]
#![allow(unsafe_code)]

#[path = "common/host.rs"]
mod host;

use framekeeper::boot::{BootMap, Memory};
use framekeeper::integrate::PageTableFrames;
use framekeeper::{Config, NodeId, PageAllocator, PhysAddr};
use host::{Host, storage};
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, PhysFrame, Size1GiB, Size2MiB, Size4KiB,
};

#[test]
fn frames_of_all_three_sizes_come_aligned_and_go_back_once() {
    let mut map = BootMap::<8>::new();
    map.add(NodeId(0), PhysAddr(4 << 30), 2 << 30).unwrap();
    // SAFETY: simulated frames; nothing reads or writes them.
    let memory = unsafe { Memory::<Host, 8>::claim(&mut map) };
    let allocator =
        PageAllocator::new(memory.with_storage(storage(8 << 20)), &Config::default()).unwrap();
    let free = allocator.free_frames();
    let mut frames = PageTableFrames(&allocator);
    let small: PhysFrame<Size4KiB> = frames.allocate_frame().unwrap();
    let large: PhysFrame<Size2MiB> = frames.allocate_frame().unwrap();
    let huge: PhysFrame<Size1GiB> = frames.allocate_frame().unwrap();
    assert_eq!(allocator.free_frames(), free - 1 - 512 - (1 << 18));
    // SAFETY: nothing was mapped. The second call of each shows that a double free changes nothing.
    for _ in 0..2 {
        unsafe { frames.deallocate_frame(small) };
        unsafe { frames.deallocate_frame(large) };
        unsafe { frames.deallocate_frame(huge) };
    }
    assert_eq!(allocator.free_frames(), free);
    allocator.check().unwrap();
}
