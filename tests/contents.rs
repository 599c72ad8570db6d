//! What blocks hold when they change hands, with real memory behind the frames.

#[path = "common/host.rs"]
mod host;

use std::alloc::{Layout, alloc_zeroed};
use std::sync::OnceLock;

use framekeeper::alloc::{Contents, Damage, POISON};
use framekeeper::boot::{BootMap, Memory};
use framekeeper::{
    Backing, Config, ContigError, Copied, CpuId, Evict, FrameRange, InitError, Isolated, MemcgId,
    Migrate, Mm, MmConfig, Mobility, Moved, NodeId, Order, PageAllocator, Pages, Pfn, PhysAddr,
    Platform, Refused, Release, Request, Unmap, WriteOut,
};
use host::YieldLock;

/// Where the arenas' memory pretends to be. Each test has one of its own.
const BASE: u64 = 1 << 32;
const FRAMES: u64 = 1024;
const ARENAS: u64 = 16;

/// A platform whose direct map covers all arenas and nothing else.
#[derive(Debug)]
enum Mapped {}

fn arenas() -> *mut u8 {
    static START: OnceLock<usize> = OnceLock::new();
    let start = START.get_or_init(|| {
        let layout = Layout::from_size_align((ARENAS * FRAMES) as usize * 4096, 4096).unwrap();
        // SAFETY: the layout is not empty.
        #[allow(unsafe_code)]
        let start = unsafe { alloc_zeroed(layout) };
        start.expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*start)
}

// SAFETY: the arenas are never freed and are mapped once; each is given to one instance.
#[allow(unsafe_code)]
unsafe impl Platform for Mapped {
    type RawLock = YieldLock;

    fn cpu() -> CpuId {
        CpuId(0)
    }
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_state: usize) {}
    fn direct_map(addr: PhysAddr) -> *mut u8 {
        match addr.0.checked_sub(BASE) {
            Some(offset) if offset < ARENAS * FRAMES * 4096 => {
                arenas().wrapping_add(offset as usize)
            }
            _ => std::ptr::null_mut(),
        }
    }
}

/// Nothing is ever mapped: a folio has only the reference that the test holds, until it lets go.
impl Evict for Mapped {
    fn referenced(_: &Isolated<'_, Self>) -> u32 {
        0
    }
    fn unmap(_: &Isolated<'_, Self>) -> Unmap {
        Unmap::Done
    }
    fn write_out(_: &Isolated<'_, Self>) -> WriteOut {
        WriteOut::Done
    }
    fn release(folio: &Isolated<'_, Self>) -> Release {
        if folio.clear_word_bits(1) & 1 != 0 {
            // SAFETY: the test gave the reference up as a number, and set the bit.
            #[allow(unsafe_code)]
            drop(unsafe { folio.mm().folio_from_raw(folio.pfn()) });
        }
        Release::Done
    }
    fn remap(folio: &Isolated<'_, Self>) {
        folio.set_word_bits(1);
        let _kept = folio.reference().into_raw();
    }
}

impl Migrate for Mapped {
    fn copy(moving: &framekeeper::Moving) -> Copied {
        stray_write(moving.to.addr(12), moving.word as u8);
        Copied::Done
    }
}

fn region(n: u64) -> BootMap {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(BASE + n * FRAMES * 4096), FRAMES * 4096)
        .unwrap();
    map
}

fn arena(n: u64, contents: Contents) -> Result<PageAllocator<Mapped>, InitError> {
    let mut map = region(n);
    // SAFETY: arena `n` is one test's.
    #[allow(unsafe_code)]
    let memory: Memory<'_, Mapped> = unsafe { Memory::claim(&mut map) };
    let config = Config {
        contents,
        ..Config::default()
    };
    PageAllocator::new(memory, &config).map_err(Refused::into_error)
}

/// The bytes of a block that the test owns.
fn bytes<'p>(pages: &'p mut Pages<'_, Mapped>) -> &'p mut [u8] {
    let len = 4096 << pages.order().get();
    // SAFETY: the test owns the block, and its memory is in the arena.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts_mut(Mapped::direct_map(pages.addr()), len)
    }
}

/// Writes one byte of memory that the test does not own: what a bug would do.
fn stray_write(at: PhysAddr, byte: u8) {
    // SAFETY: the address is in an arena, and no reference to it is alive.
    #[allow(unsafe_code)]
    unsafe {
        Mapped::direct_map(at).write(byte);
    }
}

fn orders() -> impl Iterator<Item = Request> {
    [0, 1, 3, 5, 9]
        .into_iter()
        .filter_map(Order::new)
        .map(Request::new)
}

#[test]
fn metadata_comes_from_the_top_of_the_memory_when_no_storage_is_given() {
    let allocator = arena(0, Contents::Keep).unwrap();
    let frames = allocator.free_frames();
    assert!(frames < FRAMES && frames > FRAMES - 64);
    let all: Vec<_> = std::iter::from_fn(|| {
        allocator
            .try_alloc(Request::new(Order::ZERO).ignore_watermarks())
            .ok()
    })
    .collect();
    assert_eq!(all.len() as u64, frames);
    assert!(
        all.iter()
            .all(|pages| pages.addr().0 < BASE + frames * 4096)
    );
}

#[test]
fn contents_stay_as_they_are_unless_zero_is_asked_for() {
    let allocator = arena(1, Contents::Keep).unwrap();
    for request in orders() {
        let mut pages = allocator.try_alloc(request).unwrap();
        bytes(&mut pages).fill(0x55);
        let was = pages.pfn();
        drop(pages);
        let mut again = allocator.try_alloc(request).unwrap();
        if again.pfn() == was {
            assert!(bytes(&mut again).iter().all(|&byte| byte == 0x55));
        }
        drop(again);
        let mut zeroed = allocator.try_alloc(request.zeroed()).unwrap();
        assert!(bytes(&mut zeroed).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn blocks_are_zero_on_alloc_or_since_they_were_freed() {
    for (n, contents) in [(2, Contents::ZeroOnAlloc), (3, Contents::ZeroOnFree)] {
        let allocator = arena(n, contents).unwrap();
        for request in orders().chain(orders()) {
            let mut pages = allocator.try_alloc(request).unwrap();
            assert!(bytes(&mut pages).iter().all(|&byte| byte == 0));
            bytes(&mut pages).fill(0x55);
            let at = pages.addr();
            let pfn = pages.into_raw();
            drop(allocator.try_from_raw(pfn, request.order()).unwrap());
            if contents == Contents::ZeroOnFree {
                // SAFETY: the test reads memory that nobody owns.
                #[allow(unsafe_code)]
                let first = unsafe { Mapped::direct_map(at).read() };
                assert_eq!(first, 0);
            }
        }
        allocator.check().unwrap();
    }
}

/// misuse 52: the crate keeps nothing of its own in free memory.
#[test]
fn writing_over_all_free_memory_reaches_no_state_of_the_allocator() {
    let allocator = arena(12, Contents::Keep).unwrap();
    let all = || -> Vec<_> {
        let request = Request::new(Order::ZERO).ignore_watermarks();
        std::iter::from_fn(|| allocator.try_alloc(request).ok()).collect()
    };
    let addresses: Vec<_> = all().iter().map(|pages| pages.addr()).collect();
    for (i, at) in addresses.iter().enumerate() {
        for offset in 0..4096 {
            stray_write(PhysAddr(at.0 + offset), (i as u8) ^ 0xa5);
        }
    }
    allocator.check().unwrap();
    let mut again: Vec<_> = all().iter().map(|pages| pages.addr()).collect();
    let mut before = addresses;
    before.sort_unstable();
    again.sort_unstable();
    assert_eq!(again, before);
    allocator.drain_all();
    allocator.check().unwrap();
}

/// misuse 26: into a frame on a pageset, in a shard, inside a bigger free block
#[test]
fn a_write_to_a_free_frame_is_reported_and_its_block_never_given_again() {
    let allocator = arena(4, Contents::Poison).unwrap();
    assert_eq!(allocator.damage(), None);
    let free = allocator.free_frames();
    for (request, offset) in orders().zip([0u64, 4095, 4096, 8 * 4096 + 17, 100 * 4096 + 5]) {
        let mut pages = allocator.try_alloc(request).unwrap();
        assert!(bytes(&mut pages).iter().all(|&byte| byte == POISON));
        bytes(&mut pages).fill(0x55);
        let (pfn, at) = (pages.pfn(), pages.addr());
        drop(pages);
        stray_write(PhysAddr(at.0 + offset), POISON ^ 1);
        let before = allocator.damage().map_or(0, |damage| damage.leaked);
        // Taken until the block would have come: it never does.
        let held: Vec<_> = std::iter::from_fn(|| allocator.try_alloc(request).ok()).collect();
        assert!(held.iter().all(|pages| pages.pfn() != pfn));
        let damage = allocator.damage().unwrap();
        let expected = Damage {
            pfn: Pfn(pfn.0 + offset / 4096),
            offset: (offset % 4096) as u32,
            found: POISON ^ 1,
            leaked: before + request.order().frames(),
        };
        assert_eq!(damage, expected);
        drop(held);
        assert_eq!(allocator.free_frames(), free - damage.leaked);
        allocator.check().unwrap();
    }
}

/// misuse 26
#[test]
fn a_range_that_holds_a_frame_written_to_while_free_is_not_had_and_only_that_frame_is_leaked() {
    let allocator = arena(6, Contents::Poison).unwrap();
    let free = allocator.free_frames();
    let first = allocator.zones().next().unwrap().span().start().0;
    let range = |start, end| FrameRange::new(Pfn(first + start), Pfn(first + end));
    for (n, frame) in [(1, 100), (2, 199), (3, 150)] {
        let pfn = Pfn(first + frame);
        stray_write(PhysAddr(pfn.addr(12).0 + 77), 1);
        // The first is found first; each is leaked before the next is found.
        let got = allocator.alloc_contig(range(100, 200), |_| Moved::Tried);
        let expected = match n {
            1 => ContigError::Damaged(pfn),
            _ => ContigError::InUse(Pfn(first + 100)),
        };
        assert_eq!(got.map(drop), Err(expected));
        let got = allocator.alloc_contig(range(frame - 20, frame + 1), |_| Moved::Tried);
        let damaged = if n == 1 {
            Err(ContigError::InUse(pfn))
        } else {
            Err(ContigError::Damaged(pfn))
        };
        assert_eq!(got.map(drop), damaged);
        let damage = allocator.damage().unwrap();
        let found = (damage.pfn, damage.offset, damage.found, damage.leaked);
        assert_eq!(found, (pfn, 77, 1, n));
        assert_eq!(allocator.free_frames(), free - n);
        allocator.check().unwrap();
    }
    let got = allocator.alloc_contig(range(101, 150), |_| Moved::Tried);
    drop(got.unwrap());
    assert_eq!(allocator.free_frames(), free - 3);
}

#[test]
fn what_comes_online_holds_what_free_memory_holds_whatever_was_written_meanwhile() {
    for (n, contents, byte) in [
        (7, Contents::Poison, POISON),
        (8, Contents::ZeroOnFree, 0),
        (9, Contents::ZeroOnAlloc, 0),
    ] {
        let allocator = arena(n, contents).unwrap();
        let first = allocator.zones().next().unwrap().span().start().0;
        let gone = FrameRange::new(Pfn(first + 10), Pfn(first + 50));
        allocator.offline(gone, |_| Moved::Unmovable).unwrap();
        for pfn in gone.iter() {
            stray_write(PhysAddr(pfn.addr(12).0 + 5), 0x55);
        }
        allocator.online(gone).unwrap();
        let contig = allocator.alloc_contig(gone, |_| Moved::Unmovable).unwrap();
        for pfn in contig.frames().iter() {
            // SAFETY: the test owns the frames.
            #[allow(unsafe_code)]
            let found = unsafe { Mapped::direct_map(PhysAddr(pfn.addr(12).0 + 5)).read() };
            assert_eq!(found, byte, "{contents:?}");
        }
        drop(contig);
        assert_eq!(allocator.damage(), None);
        allocator.check().unwrap();
    }
}

/// misuse 26
#[test]
fn compaction_moves_no_folio_to_a_frame_that_was_written_to_while_it_was_free() {
    let mut map = region(11);
    // SAFETY: arena 11 is this test's.
    #[allow(unsafe_code)]
    let memory: Memory<'_, Mapped> = unsafe { Memory::claim(&mut map) };
    let mut config = MmConfig::new(1, 2);
    config.alloc.contents = Contents::Poison;
    let mm = Mm::new(memory.with_storage(host::storage(1 << 20)), &config);
    let mm = mm.map_err(Refused::into_error).unwrap();
    let movable = Request::new(Order::ZERO)
        .mobility(Mobility::Movable)
        .ignore_watermarks();
    let mut all: Vec<_> = std::iter::from_fn(|| mm.try_alloc(movable).ok()).collect();
    assert_eq!(all.len() as u64, FRAMES);
    all.sort_by_key(Pages::pfn);
    let first = all[0].pfn().0;
    for (i, pages) in all.into_iter().enumerate() {
        if i % 4 == 0 {
            let folio = pages.try_charge_to(&mm, MemcgId::ROOT).unwrap();
            folio.add_to_lru(Backing::Anon).unwrap();
            folio.set_word_bits(1);
            let _kept = folio.into_raw();
        }
    }
    mm.drain_lru();
    // Some of the free frames that folios would move to: the second half is free but for 128 frames.
    let written: Vec<_> = (0..40).map(|n| Pfn(first + 512 + 4 * n + 1)).collect();
    for pfn in &written {
        stray_write(pfn.addr(12), 7);
    }
    let moved = mm.compact(NodeId(0), Order::PAGEBLOCK).moved;
    assert_eq!(moved, 128, "the first half was emptied");
    let damage = mm.allocator().damage().unwrap();
    assert!(written.contains(&damage.pfn));
    assert_eq!((damage.offset, damage.found), (0, 7));
    assert!(written.iter().all(|&pfn| mm.try_get(pfn).is_none()));
    mm.check().unwrap();
}

#[test]
fn nothing_is_reported_to_a_hypervisor_that_would_wipe_the_poison() {
    let allocator = arena(10, Contents::Poison).unwrap();
    let least = Order::PAGEBLOCK;
    assert_eq!(
        allocator.report_free(least, |_| unreachable!("poisoned")),
        0
    );
}

#[test]
fn poison_and_zero_go_together() {
    let allocator = arena(5, Contents::Poison).unwrap();
    let mut zeroed = allocator
        .try_alloc(Request::new(Order::ZERO).zeroed())
        .unwrap();
    assert!(bytes(&mut zeroed).iter().all(|&byte| byte == 0));
}

/// misuse 11: more memory than the direct map reaches
#[test]
fn contents_of_memory_that_is_not_mapped_are_refused_at_the_start() {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(1 << 40), 1 << 22).unwrap();
    // SAFETY: the memory does not exist and is never touched.
    #[allow(unsafe_code)]
    let memory: Memory<'_, Mapped> = unsafe { Memory::claim(&mut map) };
    let config = Config {
        contents: Contents::Poison,
        ..Config::default()
    };
    let memory = memory.with_storage(host::storage(1 << 20));
    let Refused(error, memory) = PageAllocator::new(memory, &config).unwrap_err();
    assert_eq!(error, InitError::Unmapped(PhysAddr(1 << 40)));
    assert_eq!(memory.map().free_bytes(), 1 << 22);
}
