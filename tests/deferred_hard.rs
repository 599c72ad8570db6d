//! Deferred initialisation under interrupts, workers that stop half-way, other page sizes, machines of many nodes, and with groups.
//!
//! allocator.md 4 and case R25; misuse 9, 12, 13, 28, 30.

#[path = "common/stepper.rs"]
mod stepper;

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use framekeeper::boot::{BootMap, LateMemory, Memory, SECTION_BYTES, Storage};
use framekeeper::node::ZoneLimits;
use framekeeper::{
    Backing, Config, CpuId, FinishError, FrameRange, MemcgId, Mm, MmConfig, Moved, NodeId, Order,
    PageAllocator, Pages, Pfn, PhysAddr, Platform, Rank, Released, Request,
};
use stepper::{Stepped, at_every_point};

thread_local! {
    /// Locks after which the platform panics.
    static LOCKS_LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    /// Locks that are held, and the most that were at once.
    static HELD: Cell<u32> = const { Cell::new(0) };
    static MOST_HELD: Cell<u32> = const { Cell::new(0) };
    /// Times that a turn at recomputing was taken.
    static TURNS: Cell<u32> = const { Cell::new(0) };
}

/// Pages of `1 << SHIFT` bytes, whose frames are numbers only; a lock may make the CPU stop.
#[derive(Debug)]
enum Paged<const SHIFT: u32> {}

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
    fn lock_acquired(rank: Rank) {
        HELD.set(HELD.get() + 1);
        MOST_HELD.set(MOST_HELD.get().max(HELD.get()));
        TURNS.set(TURNS.get() + u32::from(rank == Rank::Hotplug));
        let left = LOCKS_LEFT.get();
        if left == 0 {
            LOCKS_LEFT.set(u32::MAX);
            panic!("the CPU stops");
        }
        if left != u32::MAX {
            LOCKS_LEFT.set(left - 1);
        }
    }
    fn lock_released(_: Rank) {
        HELD.set(HELD.get() - 1);
    }
}

fn storage(bytes: usize) -> Storage {
    let mut memory = Vec::<MaybeUninit<u8>>::with_capacity(bytes);
    memory.resize_with(bytes, MaybeUninit::uninit);
    Storage::from_static(memory.leak())
}

fn memory<P: Platform>(map: &mut BootMap, bytes: usize) -> Memory<'_, P> {
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    unsafe { Memory::claim(map) }.with_storage(storage(bytes))
}

fn late(frames: FrameRange) -> LateMemory {
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    unsafe {
        LateMemory::claim(frames)
    }
}

/// 4 GiB: where the highest zone begins.
const HIGH: u64 = 1 << 32;
const ONE: Request = Request::new(Order::ZERO).ignore_watermarks();

fn sections(count: u64) -> BootMap {
    let mut map = BootMap::new();
    map.add(NodeId(0), PhysAddr(HIGH), count * SECTION_BYTES)
        .unwrap();
    map
}

fn deferred() -> Config {
    Config {
        deferred: true,
        pageset_slots: 256,
        raw_codes: false,
        ..Config::default()
    }
}

fn machine<P: Platform>(count: u64) -> PageAllocator<P> {
    let mut map = sections(count);
    PageAllocator::new(memory(&mut map, 1 << 18), &deferred()).unwrap()
}

type State = (PageAllocator<Stepped>, RefCell<Option<FinishError>>);

/// misuse 28, 30: an interrupt that allocates more than is online, frees, works and tries to finish, at any point of a
/// worker's way and of the end.
#[test]
fn interrupts_on_top_of_workers_and_of_the_end_find_every_frame_once() {
    const FRAMES: u64 = 5 * (SECTION_BYTES >> 12);
    // No handle outlives the interrupt: it holds all that it could get.
    let interrupt = |(machine, error): &State| {
        let block = Request::new(Order::new(15).unwrap()).ignore_watermarks();
        let held: Vec<Pages<'_, Stepped>> =
            core::iter::from_fn(|| machine.try_alloc(block).ok()).collect();
        let mut frames: Vec<_> = held.iter().map(Pages::pfn).collect();
        frames.sort_unstable();
        frames.dedup();
        assert_eq!(frames.len(), held.len());
        drop(held);
        machine.deferred_init(CpuId(1));
        *error.borrow_mut() = machine.finish_deferred().err();
    };
    let check = |(machine, _): &State| {
        assert!(!machine.is_deferring());
        assert_eq!(machine.managed_frames(), FRAMES);
        assert_eq!(machine.free_frames(), FRAMES);
        machine.check().unwrap();
    };
    let points = at_every_point(
        || (machine(5), RefCell::new(None)),
        |(machine, error)| {
            machine.deferred_init(CpuId(0));
            match machine.finish_deferred() {
                Ok(()) => {}
                // The interrupt did.
                Err(FinishError::Finished) => assert_eq!(*error.borrow(), None),
                Err(error) => panic!("{error}"),
            }
        },
        interrupt,
        check,
    );
    assert!(points > 20, "{points}");
}

/// misuse 30: a worker that stops at any lock, for ever: others go on, the end names its section, and nothing is given twice.
#[test]
fn a_worker_that_stops_half_way_keeps_its_section_and_nobody_waits() {
    type Host = Paged<12>;
    let section = SECTION_BYTES >> 12;
    let mut stopped = 0;
    for locks in 0.. {
        let machine = machine::<Host>(4);
        LOCKS_LEFT.set(locks);
        let result = catch_unwind(AssertUnwindSafe(|| machine.deferred_init(CpuId(0))));
        LOCKS_LEFT.set(u32::MAX);
        if result.is_ok() {
            machine.finish_deferred().unwrap();
            machine.check().unwrap();
            break;
        }
        stopped += 1;
        let before = machine.managed_frames();
        let brought = machine.deferred_init(CpuId(1));
        assert_eq!(machine.managed_frames(), before + brought);
        let error = machine.finish_deferred().unwrap_err();
        let FinishError::Unfinished(at) = error else {
            panic!("{error}");
        };
        let first = HIGH >> 12;
        assert_eq!(at.start().0, first + (1 + u64::from(locks)) * section);
        assert_eq!(at.frames(), section);
        assert_eq!(machine.finish_deferred(), Err(error), "and again");
        assert!(machine.is_deferring());
        // All but the one section can be had.
        let mut taken = 0;
        while let Ok(pages) = machine.try_alloc(ONE) {
            assert!(!at.contains(pages.pfn()));
            pages.into_raw();
            taken += 1;
        }
        assert_eq!(taken, 3 * section);
        machine.check().unwrap();
    }
    assert_eq!(stopped, 3, "each section has a hold of its own");
}

/// R2: the end recomputes with no other lock held than the one that says whose turn it is, and each lock that it takes it takes alone.
#[test]
fn the_end_recomputes_outside_every_lock() {
    type Host = Paged<12>;
    let mut map = sections(4);
    let kept = HIGH + 2 * SECTION_BYTES;
    map.reserve(PhysAddr(kept), 64 << 12).unwrap();
    let machine: PageAllocator<Host> =
        PageAllocator::new(memory(&mut map, 1 << 18), &deferred()).unwrap();
    let frames = FrameRange::new(Pfn(kept >> 12), Pfn((kept >> 12) + 64));
    assert_eq!(
        machine.release_reserved(late(frames)).unwrap(),
        Released::AtFinish
    );
    MOST_HELD.set(0);
    TURNS.set(0);
    machine.deferred_init(CpuId(0));
    assert_eq!(TURNS.get(), 0, "workers recompute nothing");
    machine.finish_deferred().unwrap();
    assert_eq!((TURNS.get(), MOST_HELD.get(), HELD.get()), (1, 1, 0));
    machine.check().unwrap();
}

/// misuse 13: with pages of 16 and 64 KiB a section has fewer frames; all else is the same.
#[test]
fn sections_of_other_page_sizes_are_deferred_and_added_alike() {
    fn run<const SHIFT: u32>() {
        let section = SECTION_BYTES >> SHIFT;
        let mut map = sections(5);
        let initrd = HIGH + 2 * SECTION_BYTES + 12_345;
        map.reserve(PhysAddr(initrd), 1 << 20).unwrap();
        let added = HIGH + 8 * SECTION_BYTES;
        map.add_hotplug(NodeId(0), PhysAddr(added), SECTION_BYTES)
            .unwrap();
        let machine: PageAllocator<Paged<SHIFT>> =
            PageAllocator::new(memory(&mut map, 1 << 20), &deferred()).unwrap();
        assert_eq!(machine.managed_frames(), section);
        let frames = |base: u64, bytes: u64| {
            let end = (base + bytes).div_ceil(1 << SHIFT);
            FrameRange::new(Pfn(base >> SHIFT), Pfn(end))
        };
        let kept = frames(initrd, 1 << 20);
        assert_eq!(machine.deferred_init(CpuId(0)), 4 * section - kept.frames());
        assert_eq!(machine.release_reserved(late(kept)).unwrap(), Released::Now);
        let memory = frames(added, SECTION_BYTES);
        machine.hot_add(late(memory)).unwrap();
        machine.check().unwrap();
        machine.finish_deferred().unwrap();
        assert_eq!(machine.managed_frames(), 6 * section);
        machine.check().unwrap();
        let gone = machine.hot_remove(memory, |_| Moved::Unmovable).unwrap();
        assert_eq!(gone.frames(), memory);
        assert_eq!(machine.managed_frames(), 5 * section);
        machine.check().unwrap();
    }
    run::<12>();
    run::<14>();
    run::<16>();
}

/// misuse 9: four nodes at unequal distances, one without CPUs, one without memory, one with low memory only.
#[test]
fn nodes_of_unequal_shape_defer_what_each_has() {
    type Host = Paged<12>;
    let section = SECTION_BYTES >> 12;
    let mut map = BootMap::new();
    // Node 0 has low memory only; its highest zone is DMA32. Node 1 has no CPU, node 2 no memory, node 3 a section and a bit.
    for (node, base, bytes) in [
        (0, 1 << 20, 6 * SECTION_BYTES),
        (1, HIGH, 7 * SECTION_BYTES),
        (
            3,
            HIGH + 7 * SECTION_BYTES + 4096,
            SECTION_BYTES + (8 << 20),
        ),
    ] {
        map.add(NodeId(node), PhysAddr(base), bytes).unwrap();
    }
    let config = Config {
        cpus: 6,
        nodes: 4,
        node_of: |cpu| NodeId([0, 0, 2, 2, 3, 3][cpu.0 as usize % 6]),
        distance: |a, b| match (a.0.min(b.0), a.0.max(b.0)) {
            (a, b) if a == b => 10,
            (0, 1) | (2, 3) => 12,
            (0, 3) => 40,
            _ => 21,
        },
        ..deferred()
    };
    let total: u64 = map
        .usable_frames(12)
        .map(|(_, frames)| frames.frames())
        .sum();
    for worker in 0..6 {
        let mut map = map.clone();
        let machine: PageAllocator<Host> =
            PageAllocator::new(memory(&mut map, 4 << 20), &config).unwrap();
        let managed = |node: u8| -> u64 {
            let zones = machine.zone_counts();
            zones
                .filter(|zone| zone.node == NodeId(node))
                .map(|zone| zone.managed)
                .sum()
        };
        assert!(managed(0) < 3 * section);
        assert_eq!(managed(1), section);
        let of_3 = managed(3);
        // A request grows the node that it names, and no other.
        let large = Request::new(Order::new(16).unwrap()).only_node(NodeId(1));
        let pages = machine.try_alloc(large).unwrap();
        assert!(managed(1) > 2 * section && managed(3) == of_3);
        drop(pages);
        machine.deferred_init(CpuId(worker));
        machine.finish_deferred().unwrap();
        assert_eq!(machine.managed_frames(), total);
        machine.check().unwrap();
        for pageset in machine.pageset_counts() {
            assert!(pageset.limits.batch > 0);
        }
    }
}

/// Movable memory in the middle of sections: its zone is the highest, so only it is deferred.
#[test]
fn a_section_that_two_zones_share_is_deferred_for_one_of_them() {
    type Host = Paged<12>;
    let section = SECTION_BYTES >> 12;
    let first = HIGH >> 12;
    let mut zones = ZoneLimits::default();
    let movable = FrameRange::new(
        Pfn(first + section / 2 + 77),
        Pfn(first + 4 * section + section / 3),
    );
    zones.movable.push(movable);
    let mut map = sections(6);
    let config = Config {
        zones,
        ..deferred()
    };
    let machine: PageAllocator<Host> =
        PageAllocator::new(memory(&mut map, 1 << 20), &config).unwrap();
    let managed = || -> Vec<u64> { machine.zone_counts().map(|zone| zone.managed).collect() };
    let normal = 6 * section - movable.frames();
    // The first boundary after a section's worth.
    assert_eq!(managed(), [normal, 2 * section - section / 2 - 77]);
    machine.deferred_init(CpuId(0));
    machine.finish_deferred().unwrap();
    assert_eq!(managed(), [normal, movable.frames()]);
    machine.check().unwrap();
}

/// Records of deferred sections are initialised before their frames are given, by whoever brings them online.
#[test]
fn frames_of_deferred_sections_are_charged_and_listed_as_soon_as_they_come() {
    type Host = Paged<16>;
    let section = SECTION_BYTES >> 16;
    let mut map = sections(6);
    let mut config = MmConfig::new(1, 3);
    config.alloc.deferred = true;
    let mm: Mm<Host> = Mm::new(memory(&mut map, 1 << 22), &config).unwrap();
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let mut folios = Vec::new();
    mm.check().unwrap();
    for round in 1.. {
        let Ok(pages) = mm.try_alloc(Request::new(Order::new(8).unwrap()).ignore_watermarks())
        else {
            break;
        };
        let folio = pages.try_charge_to(&mm, group).map_err(|e| e.0).unwrap();
        folio.add_to_lru(Backing::Anon).unwrap();
        folios.push(folio);
        if round % 7 == 0 {
            mm.drain_lru();
            mm.check().unwrap();
        }
        if round == 20 {
            // The rest comes by a worker.
            assert!(mm.allocator().deferred_init(CpuId(0)) > 0);
            mm.allocator().finish_deferred().unwrap();
        }
    }
    assert_eq!(folios.len() as u64, (6 * section) >> 8);
    mm.drain_lru();
    mm.check().unwrap();
    mm.remove_memcg(group).unwrap();
    drop(folios);
    mm.check().unwrap();
    assert_eq!(mm.allocator().free_frames(), 6 * section);
}
