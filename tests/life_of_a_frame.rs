//! The way of a frame, from the firmware's memory map to a page taken back, in one walk.

#![allow(unsafe_code)]

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use framekeeper::boot::{BootMap, Memory};
use framekeeper::{Backing, MemcgId, Mm, MmConfig, Mobility, NodeId, Order, PhysAddr, Request};
use host::Host;
use kernel::ACCESSED;

#[test]
fn a_frame_is_mapped_charged_used_and_taken_back() {
    // The firmware's map, as it may come: unsorted, unaligned, with a reserved piece inside.
    let mut map = BootMap::<16>::new();
    map.add(NodeId(0), PhysAddr(0x10_0000), 63 << 20).unwrap();
    map.add(NodeId(0), PhysAddr(0), 0x9_fc00).unwrap();
    map.reserve(PhysAddr(0x20_0000), 0x1_0001).unwrap();
    let free = map.free_frame_count(12);

    // SAFETY: simulated frames; nothing reads or writes them.
    let memory = unsafe { Memory::<Host, 16>::claim(&mut map) };
    let memory = memory.with_storage(host::storage(16 << 20));
    let mm = Mm::new(memory, &MmConfig::new(1, 4)).unwrap();
    assert_eq!(mm.allocator().managed_frames(), free);
    assert_eq!(mm.allocator().free_frames(), free);

    // Out of a shard, through the pageset, to one owner.
    let pages = mm
        .alloc(Request::new(Order::ZERO).mobility(Mobility::Movable))
        .unwrap();
    let pfn = pages.pfn();
    assert!(
        pfn.0 != 0 && !(0x200..0x211).contains(&pfn.0),
        "frame 0 and reserved frames are never given"
    );

    // Charged to a group below another: both pay.
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    mm.set_memcg_max(parent, 8).unwrap();
    let folio = pages.charge_to(&mm, child).unwrap();
    assert_eq!(
        (mm.memcg_usage(child), mm.memcg_usage(parent)),
        (Ok(1), Ok(1))
    );
    assert_eq!(folio.memcg(), Some(child));

    // Through the add batch onto its lruvec, mapped, used, activated by way of a batch.
    folio.add_to_lru(Backing::Anon).unwrap();
    assert!(
        folio.isolate().is_err(),
        "it waits in a batch, on no list yet"
    );
    mm.drain_lru();
    folio.mark_accessed();
    folio.mark_accessed();
    assert!(!folio.is_active());
    mm.drain_lru();
    assert!(folio.is_active());
    kernel::map(folio);
    mm.check().unwrap();

    // Its group ends: the parent inherits it, without touching it.
    mm.remove_memcg(child).unwrap();
    let folio = mm.try_get(pfn).unwrap();
    assert_eq!(folio.memcg(), Some(parent));
    folio.set_word_bits(ACCESSED);
    drop(folio);
    mm.check().unwrap();

    // Reclaim deactivates it, gives it a second chance since it was used, then unmaps and frees it.
    let reclaimed = mm.shrink_memcg(parent, 1).unwrap();
    assert_eq!(reclaimed.freed, 1);
    assert!(mm.try_get(pfn).is_none(), "nobody can reach a free frame");
    assert_eq!(mm.memcg_usage(parent), Ok(0));
    mm.remove_memcg(parent).unwrap();

    // And it is back where it came from.
    mm.allocator().drain_all();
    assert_eq!(mm.allocator().free_frames(), free);
    assert_eq!(mm.refused_puts(), 0);
    mm.check().unwrap();
}
