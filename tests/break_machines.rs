//! Machines of odd shapes: each frame is handed out once and comes back, with every page size.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::node::ZoneLimits;
use framekeeper::{
    Backing, Config, CpuId, FrameRange, InitError, MemcgId, Mm, MmConfig, Mobility, NodeId, Order,
    PageAllocator, Pfn, PhysAddr, Platform, Refused, Request,
};

/// A machine with pages of `1 << SHIFT` bytes, whose frames are numbers only.
struct Paged<const SHIFT: u32>;

// SAFETY: no memory is ever given to an instance, so the direct map has nothing to cover. There is one thread.
#[allow(unsafe_code)]
unsafe impl<const SHIFT: u32> Platform for Paged<SHIFT> {
    const PAGE_SHIFT: u32 = SHIFT;
    type RawLock = framekeeper::sync::SpinLock;
    fn cpu() -> CpuId {
        CpuId(0)
    }
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_: usize) {}
    fn direct_map(_: PhysAddr) -> *mut u8 {
        core::ptr::null_mut()
    }
}

/// Memory for metadata, from the start of a page on.
fn storage(bytes: usize) -> Storage {
    let mut memory = Vec::<MaybeUninit<u8>>::with_capacity(bytes + 4096);
    memory.resize_with(bytes + 4096, MaybeUninit::uninit);
    let memory = memory.leak();
    let skipped = memory.as_ptr().align_offset(4096);
    Storage::from_static(&mut memory[skipped..skipped + bytes])
}

fn claim<const S: u32, const N: usize>(
    map: &mut BootMap<N>,
    bytes: usize,
) -> Memory<'_, Paged<S>, N> {
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    unsafe { Memory::claim(map) }.with_storage(storage(bytes))
}

/// All frames, one by one and charged; then back.
fn empty_and_fill<const S: u32>(mm: &Mm<Paged<S>>, frames: u64) {
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    assert_eq!(mm.allocator().managed_frames(), frames);
    let mut seen = BTreeSet::new();
    let mut folios = Vec::new();
    let movable = Request::new(Order::ZERO)
        .mobility(Mobility::Movable)
        .ignore_watermarks();
    while let Ok(pages) = mm.try_alloc(movable) {
        assert!(seen.insert(pages.pfn()));
        let folio = pages.try_charge_to(mm, group).map_err(|e| e.0).unwrap();
        folio.add_to_lru(Backing::Anon).unwrap();
        folios.push(folio);
    }
    assert_eq!(folios.len() as u64, frames);
    assert_eq!(mm.allocator().free_frames(), 0);
    mm.drain_lru();
    mm.check().unwrap();
    for folio in &folios {
        assert!(mm.try_get(folio.pfn()).is_some());
    }
    drop(folios);
    mm.check().unwrap();
    assert_eq!(mm.allocator().free_frames(), frames);
    assert_eq!(mm.memcg_usage(group), Ok(0));
}

fn shape<const S: u32>(regions: &[(u64, u64)], limits: Option<ZoneLimits>) {
    let mut map: BootMap = BootMap::new();
    for &(first, frames) in regions {
        map.add(NodeId(0), PhysAddr(first << S), frames << S)
            .unwrap();
    }
    let frames = map.free_frame_count(S);
    let mut config = MmConfig::new(1, 2);
    if let Some(limits) = limits {
        config.alloc.zones = limits;
    }
    let span = map.frame_span(S).frames() as usize;
    let memory = claim::<S, 128>(&mut map, (8 << 20) + span * 2 + frames as usize * 64);
    let mm = Mm::new(memory, &config).map_err(|e| e.0).unwrap();
    empty_and_fill(&mm, frames);
}

fn shapes<const S: u32>() {
    shape::<S>(&[(1, 1)], None);
    shape::<S>(&[(0, 2)], None);
    shape::<S>(&[(511, 2)], None);
    shape::<S>(&[(1 << (45 - S), 1)], None);
    shape::<S>(&[((1 << (45 - S)) + 77, 700)], None);
    shape::<S>(&[(7, 1), (9, 1), (511, 1), (513, 1), (1025, 3)], None);
    // A zone boundary inside a line, on both sides of memory.
    let limits = |dma: u64, dma32: u64, movable: &[(u64, u64)]| ZoneLimits {
        dma: PhysAddr(dma << S),
        dma32: PhysAddr(dma32 << S),
        movable: movable
            .iter()
            .map(|&(a, b)| FrameRange::new(Pfn(a), Pfn(b)))
            .collect(),
    };
    shape::<S>(&[(1, 2000)], Some(limits(700, 701, &[])));
    shape::<S>(&[(1, 2000)], Some(limits(1, 2, &[(100, 101), (512, 513)])));
    shape::<S>(&[(1, 2000)], Some(limits(3000, 100, &[(0, u64::MAX)])));
    shape::<S>(
        &[(1, 2000)],
        Some(limits(0, 0, &[(1999, 1998), (3, 5), (4, 6), (4, 6)])),
    );
}

/// misuse 12, 13
#[test]
fn machines_of_a_frame_of_two_and_of_scattered_ones_work_with_every_page_size() {
    shapes::<12>();
    shapes::<14>();
    shapes::<16>();
}

/// misuse 8: each byte less than what is needed is refused, and the map is as it was.
#[test]
fn metadata_storage_of_every_size_below_what_is_needed_is_refused() {
    let config = Config {
        pageset_slots: 64,
        ..Config::default()
    };
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4096), 40 << 12).unwrap();
    let before = map.clone();
    let mut needed = None;
    for bytes in (0..6_000).step_by(61) {
        let result = PageAllocator::new(claim::<12, 128>(&mut map, bytes), &config);
        match result {
            Ok(alloc) => {
                alloc.check().unwrap();
                needed.get_or_insert(bytes);
            }
            Err(Refused(error, _)) => {
                assert!(matches!(error, InitError::Memory(_)), "{error}");
                assert_eq!(needed, None, "{bytes}");
            }
        }
        assert_eq!(map, before);
    }
    assert!(needed.is_some());
}
