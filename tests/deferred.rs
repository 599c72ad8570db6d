//! Memory that comes online after boot: deferred sections, on-demand growth, late frees.
//!
//! allocator.md 4 and cases R20 to R27; misuse 12, 15, 18, 30.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use framekeeper::alloc::Moved;
use framekeeper::boot::{BootMap, Memory};
use framekeeper::node::{Tuning, ZoneLimits};
use framekeeper::pageset::tune::Policy;
use framekeeper::{
    Config, CpuId, FinishError, FrameRange, MapError, NodeId, OnlineError, Order, PageAllocator,
    Pfn, PhysAddr, Rank, RawError, ReleaseError, Released, Request,
};
use host::{Host, locks_held, locks_taken};
use machine::{Random, allocator, late, one_region};

/// Frames of a section.
const SECTION: u64 = 1 << 15;
/// 4 GiB: where the highest zone begins.
const HIGH: u64 = 1 << 20;

fn range(start: u64, end: u64) -> FrameRange {
    FrameRange::new(Pfn(start), Pfn(end))
}

fn deferred(policy: Policy) -> Config {
    Config {
        deferred: true,
        tuning: Tuning {
            policy,
            ..Tuning::default()
        },
        ..Config::default()
    }
}

/// A zone of `sections` sections above 4 GiB, deferred.
fn high_zone(sections: u64, config: &Config) -> PageAllocator<Host> {
    allocator(one_region(HIGH, sections * SECTION), config).unwrap()
}

/// Batch and both limits of CPU 0's pageset of the highest zone.
fn limits(allocator: &PageAllocator<Host>) -> (u32, u32, u32) {
    let pageset = allocator.pageset_counts().last().unwrap();
    let limits = pageset.limits;
    (limits.batch, limits.high_min, limits.high_max)
}

/// Everything that can be had, one by one.
fn take_all(allocator: &PageAllocator<Host>) -> u64 {
    let mut taken = 0;
    while let Ok(pages) = allocator.try_alloc(Request::new(Order::ZERO).ignore_watermarks()) {
        taken += 1;
        pages.into_raw();
    }
    taken
}

/// R1: 7/42 before, 63/378 after; 7, 28 and 63, 252 at least where limits tune themselves.
#[test]
fn limits_follow_the_early_part_until_the_end_and_all_memory_after() {
    let fixed = high_zone(8, &deferred(Policy::Fixed));
    assert_eq!(fixed.managed_frames(), SECTION);
    assert_eq!(limits(&fixed), (7, 42, 42));
    fixed.check().unwrap();
    assert_eq!(fixed.deferred_init(CpuId(0)), 7 * SECTION);
    assert_eq!(limits(&fixed), (7, 42, 42), "S2's stale limits");
    fixed.finish_deferred().unwrap();
    assert_eq!(limits(&fixed), (63, 378, 378));
    fixed.check().unwrap();

    let auto = high_zone(8, &deferred(Policy::Auto));
    assert_eq!(limits(&auto), (7, 28, 4096));
    assert_eq!(auto.deferred_init(CpuId(0)), 7 * SECTION);
    auto.finish_deferred().unwrap();
    let low = auto.zones().last().unwrap().levels().low as u32;
    assert_eq!(limits(&auto), (63, low.max(252), 8 * SECTION as u32 / 8));
    assert_eq!(auto.managed_frames(), 8 * SECTION);
    assert_eq!(auto.free_frames(), 8 * SECTION);
    auto.check().unwrap();
}

/// A zone of fewer frames than a section has nothing to defer: the fix changes nothing there, but for the watermarks.
#[test]
fn a_board_of_one_section_is_whole_from_the_start() {
    let board = high_zone(1, &deferred(Policy::Fixed));
    assert_eq!(board.managed_frames(), SECTION);
    assert_eq!(board.deferred_init(CpuId(0)), 0);
    assert_eq!(board.zones().last().unwrap().levels().min, 0);
    board.finish_deferred().unwrap();
    assert_eq!(limits(&board), (7, 42, 42));
    assert_ne!(board.zones().last().unwrap().levels().min, 0);
    board.check().unwrap();
}

/// R3: two nodes; the second one's sections come first, and one call of finish does both.
#[test]
fn every_zone_has_fresh_limits_after_the_end_whichever_node_was_first() {
    let mut map = BootMap::new();
    for node in 0..2 {
        let base = (HIGH + u64::from(node) * 8 * SECTION) << 12;
        map.add(NodeId(node), PhysAddr(base), (8 * SECTION) << 12)
            .unwrap();
    }
    let config = Config {
        cpus: 4,
        node_of: |cpu| NodeId((cpu.0 / 2) as u8),
        ..deferred(Policy::Auto)
    };
    let machine = allocator(map, &config).unwrap();
    assert_eq!(machine.managed_frames(), 2 * SECTION);
    // A worker of node 1 brings its own node's sections first.
    let request = Request::new(Order::new(15).unwrap()).node(NodeId(1));
    assert_eq!(machine.deferred_init(CpuId(3)), 14 * SECTION);
    drop(machine.try_alloc(request).unwrap());
    machine.finish_deferred().unwrap();
    machine.check().unwrap();
    for pageset in machine.pageset_counts() {
        assert_eq!(pageset.limits.batch, 63);
        assert_eq!(pageset.limits.high_max, 8 * SECTION as u32 / 8 / 2);
    }
}

/// R20: the reserve of a low zone is the formula's at once when the upper zone changes.
#[test]
fn reserves_follow_each_change_of_the_zone_above() {
    let mut map = BootMap::new();
    map.add(NodeId(0), PhysAddr(1 << 24), 1 << 30).unwrap();
    map.add(NodeId(0), PhysAddr(HIGH << 12), (2 * SECTION) << 12)
        .unwrap();
    map.reserve(PhysAddr(HIGH << 12), 4096 << 12).unwrap();
    map.add_hotplug(
        NodeId(0),
        PhysAddr((HIGH + 2 * SECTION) << 12),
        SECTION << 12,
    )
    .unwrap();
    let machine = allocator(map, &Config::default()).unwrap();
    let reserve = || {
        let zone = machine.zone_counts().next().unwrap();
        (zone.reserves, machine.zones().last().unwrap().managed())
    };
    let upper = 2 * SECTION - 4096;
    assert_eq!(reserve(), ([0, 0, upper / 256, upper / 256], upper));
    machine.release_reserved(late(HIGH, HIGH + 4096)).unwrap();
    assert_eq!(reserve().0[2], 2 * SECTION / 256);
    let added = HIGH + 2 * SECTION;
    machine.hot_add(late(added, added + SECTION)).unwrap();
    assert_eq!(reserve().0, [0, 0, 3 * SECTION / 256, 3 * SECTION / 256]);
    machine.check().unwrap();
    let _gone = machine
        .hot_remove(range(added, added + SECTION), |_| Moved::Unmovable)
        .unwrap();
    assert_eq!(reserve().0[2], 2 * SECTION / 256);
    machine.check().unwrap();
}

/// R21: before the end there are no watermarks, so no test of them fails: what is empty grows.
#[test]
fn requests_that_find_the_zone_empty_bring_sections_until_all_memory_is_out() {
    let machine = high_zone(6, &deferred(Policy::Fixed));
    assert_eq!(machine.zones().last().unwrap().levels().high, 0);
    assert_eq!(machine.managed_frames(), SECTION);
    assert_eq!(take_all(&machine), 6 * SECTION);
    assert_eq!(machine.managed_frames(), 6 * SECTION);
    assert_eq!(machine.deferred_init(CpuId(0)), 0);
    machine.check().unwrap();
    machine.finish_deferred().unwrap();
    machine.check().unwrap();
}

/// R22: three quarters of the first section are a crash kernel's. Boot allocates more than is left of it.
#[test]
fn a_first_section_that_is_mostly_reserved_is_enough_to_boot_on() {
    let mut map = one_region(HIGH, 4 * SECTION);
    map.reserve(PhysAddr(HIGH << 12), (SECTION / 4 * 3) << 12)
        .unwrap();
    let machine = allocator(map, &deferred(Policy::Fixed)).unwrap();
    assert_eq!(machine.managed_frames(), SECTION / 4);
    let hash_table = machine
        .try_alloc(Request::new(Order::new(14).unwrap()))
        .unwrap();
    assert_eq!(machine.managed_frames(), SECTION / 4 + SECTION);
    let larger = machine
        .try_alloc(Request::new(Order::new(15).unwrap()))
        .unwrap();
    // A section at a time, until a block of the order is there.
    assert_eq!(machine.managed_frames(), SECTION / 4 + 2 * SECTION);
    drop((hash_table, larger));
    machine.check().unwrap();
}

/// R23: the parallel phase holds no lock while it initialises, and one section's lines at most while it hands over.
#[test]
fn a_hold_of_a_lock_covers_one_section_at_most() {
    let machine = high_zone(6, &deferred(Policy::Fixed));
    let before = locks_taken(Rank::Shard);
    machine.deferred_init(CpuId(0));
    assert_eq!(
        locks_taken(Rank::Shard) - before,
        5,
        "a hold for each section"
    );
    assert_eq!(locks_held(), 0);
    let others = [Rank::Hotplug, Rank::Deferred, Rank::Pageset].map(locks_taken);
    let grown = high_zone(3, &deferred(Policy::Fixed));
    let made = [Rank::Hotplug, Rank::Deferred, Rank::Pageset].map(locks_taken);
    grown.deferred_init(CpuId(0));
    assert_eq!(
        [Rank::Hotplug, Rank::Deferred, Rank::Pageset].map(locks_taken),
        made,
        "no other lock is taken at all; {others:?} were before"
    );
}

/// R24, misuse 18: reserved memory that is freed while its section is deferred is there after the end; twice is an error.
#[test]
fn late_frees_of_a_deferred_part_are_queued_and_not_lost() {
    let initrd = HIGH + 3 * SECTION + 100..HIGH + 4 * SECTION + 10;
    let loader = HIGH + 7..HIGH + 19;
    let mut map = one_region(HIGH, 6 * SECTION);
    for reserved in [&initrd, &loader] {
        let bytes = (reserved.end - reserved.start) << 12;
        map.reserve(PhysAddr(reserved.start << 12), bytes).unwrap();
    }
    let kept = (initrd.end - initrd.start) + (loader.end - loader.start);
    let machine = allocator(map, &deferred(Policy::Fixed)).unwrap();
    let give = |start, end| machine.release_reserved(late(start, end));
    // The loader's section is online from the start.
    assert_eq!(give(loader.start, loader.end).unwrap(), Released::Now);
    assert_eq!(machine.managed_frames(), SECTION);
    let half = initrd.start + 500;
    assert_eq!(give(initrd.start, half).unwrap(), Released::AtFinish);
    assert_eq!(machine.managed_frames(), SECTION);
    for (start, end, error) in [
        (
            loader.start,
            loader.start + 1,
            ReleaseError::Released(Pfn(loader.start)),
        ),
        (half - 1, half + 1, ReleaseError::Released(Pfn(half - 1))),
        (HIGH, HIGH + 1, ReleaseError::NotReserved(Pfn(HIGH))),
        (
            loader.end - 1,
            loader.end + 1,
            ReleaseError::Released(Pfn(loader.end - 1)),
        ),
        (5, 9, ReleaseError::NotReserved(Pfn(5))),
        (half, half, ReleaseError::Empty),
    ] {
        let refused = give(start, end).unwrap_err();
        if start == loader.end - 1 {
            // One frame is free already, the other was never reserved: either is a reason.
            assert!(
                matches!(refused.0, ReleaseError::NotReserved(_)),
                "{refused}"
            );
        } else {
            assert_eq!(refused.0, error);
        }
        assert_eq!(refused.1.frames(), range(start, end), "it comes back");
    }
    machine.check().unwrap();
    machine.deferred_init(CpuId(0));
    // Its section came online meanwhile.
    assert_eq!(give(half, initrd.end).unwrap(), Released::Now);
    assert_eq!(
        machine.managed_frames(),
        6 * SECTION - (half - initrd.start)
    );
    machine.finish_deferred().unwrap();
    assert_eq!(machine.managed_frames(), 6 * SECTION);
    assert_eq!(machine.refused_frames(), 0);
    machine.check().unwrap();
    assert_eq!(
        give(initrd.start, half).unwrap_err().0,
        ReleaseError::Released(Pfn(initrd.start))
    );
    // They are ordinary frames now, also as bare numbers.
    let taken = take_all(&machine);
    assert!(taken > 5 * SECTION + kept, "{taken}");
    drop(
        machine
            .try_from_raw(Pfn(loader.start), Order::ZERO)
            .unwrap(),
    );
    machine.check().unwrap();
}

#[test]
fn a_queue_that_is_full_refuses_and_loses_nothing() {
    let mut map = one_region(HIGH, 4 * SECTION);
    let at = |i: u64| HIGH + 2 * SECTION + 2 * i;
    map.reserve(PhysAddr(at(0) << 12), 200 << 12).unwrap();
    let machine = allocator(map, &deferred(Policy::Fixed)).unwrap();
    for i in 0..64 {
        let queued = machine.release_reserved(late(at(i), at(i) + 1));
        assert_eq!(queued.unwrap(), Released::AtFinish);
    }
    let refused = machine.release_reserved(late(at(64), at(64) + 1));
    assert_eq!(refused.unwrap_err().0, ReleaseError::QueueFull);
    machine.deferred_init(CpuId(0));
    machine.finish_deferred().unwrap();
    assert_eq!(machine.managed_frames(), 4 * SECTION - 200 + 64);
    machine.check().unwrap();
}

/// R25: sections come online in any order, by workers and by requests; the end is as if all had been there at once.
#[test]
fn the_order_in_which_sections_come_does_not_matter() {
    let map = || {
        let mut map = BootMap::new();
        // Two nodes that take turns by section and a half, with holes and reserved frames.
        for piece in 0..8u64 {
            let start = HIGH + piece * 3 * SECTION / 2 + piece * 700;
            let frames = 3 * SECTION / 2 - piece * 33;
            map.add(
                NodeId((piece % 2) as u8),
                PhysAddr(start << 12),
                frames << 12,
            )
            .unwrap();
            map.reserve(PhysAddr((start + 5000) << 12), (piece + 1) << 12)
                .unwrap();
        }
        map
    };
    let config = |deferred| Config {
        cpus: 2,
        node_of: |cpu| NodeId(cpu.0 as u8),
        deferred,
        ..Config::default()
    };
    let at_once = allocator(map(), &config(false)).unwrap();
    at_once.check().unwrap();
    let all: Vec<_> = at_once.zone_counts().collect();
    for seed in 0..20 {
        let machine = allocator(map(), &config(true)).unwrap();
        assert!(machine.managed_frames() < at_once.managed_frames() / 2);
        let mut random = Random(seed);
        for _ in 0..random.below(12) {
            // A request of a size that some node cannot meet yet brings a few of its sections.
            let order = Order::new(random.below(16) as u8).unwrap();
            let node = NodeId(random.below(2) as u8);
            let mut held = Vec::new();
            for _ in 0..random.below(4) {
                held.extend(machine.try_alloc(Request::new(order).node(node)));
            }
            machine.check().unwrap();
        }
        machine.deferred_init(CpuId(random.below(2) as u32));
        machine.finish_deferred().unwrap();
        machine.drain_all();
        machine.check().unwrap();
        assert_eq!(
            machine.zone_counts().collect::<Vec<_>>(),
            all,
            "seed {seed}"
        );
    }
}

/// R26: a map with no room for one region more stays as it was, and the memory that it names is still handed over in full.
#[test]
fn a_full_map_refuses_what_would_overlap_and_defers_what_it_has() {
    let mut map: BootMap<1> = BootMap::new();
    map.add(NodeId(0), PhysAddr(HIGH << 12), (4 * SECTION) << 12)
        .unwrap();
    let refused = map.add_hotplug(
        NodeId(0),
        PhysAddr((HIGH + 8 * SECTION) << 12),
        SECTION << 12,
    );
    assert!(matches!(refused, Err(MapError::TooManyRegions { .. })));
    assert_eq!(map.hotplug_frames(12).count(), 0);
    assert_eq!(map.reserved().count(), 0);
    // The metadata takes the one region of the reserved list, at the top.
    // SAFETY: the host's frames are numbers; nobody uses the memory behind them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Host, 1>::claim(&mut map) };
    let memory = memory.with_storage(host::storage(8 << 20));
    let machine = PageAllocator::new(memory, &deferred(Policy::Fixed)).unwrap();
    machine.deferred_init(CpuId(0));
    machine.finish_deferred().unwrap();
    assert_eq!(machine.managed_frames(), 4 * SECTION);
}

/// R27: a zone that starts at frame 0, less that frame; its blocks are the largest that fit.
#[test]
fn memory_from_address_0_on_comes_in_blocks_without_an_overflow() {
    let config = Config {
        zones: ZoneLimits {
            dma: PhysAddr(0),
            dma32: PhysAddr(0),
            ..ZoneLimits::default()
        },
        ..deferred(Policy::Fixed)
    };
    let machine = allocator(one_region(0, 8 * SECTION), &config).unwrap();
    // More than a section's worth: frame 0 is not among them.
    assert_eq!(machine.managed_frames(), 2 * SECTION - 1);
    machine.deferred_init(CpuId(0));
    machine.finish_deferred().unwrap();
    assert_eq!(machine.managed_frames(), 8 * SECTION - 1);
    let blocks = machine.zone_counts().next().unwrap().free_blocks;
    assert_eq!(blocks[..18], [1; 18]);
    assert_eq!(blocks[18], 0);
    let giant = machine.zone_counts().next().unwrap().span;
    assert_eq!(giant, range(1, 8 * SECTION));
    machine.check().unwrap();
}

/// misuse 30: more workers than sections, twice; finish before they begin; finish twice; finish without anything deferred.
#[test]
fn workers_and_ends_that_are_too_many_or_too_early_are_errors_or_idle() {
    let machine = high_zone(4, &deferred(Policy::Fixed));
    let second = range(HIGH + SECTION, HIGH + 2 * SECTION);
    assert_eq!(machine.finish_deferred(), Err(FinishError::Waiting(second)));
    assert_eq!(limits(&machine), (7, 42, 42), "nothing was changed");
    machine.check().unwrap();
    for (cpu, frames) in [(0, 3 * SECTION), (1, 0), (77, 0), (u32::MAX, 0)] {
        assert_eq!(machine.deferred_init(CpuId(cpu)), frames);
    }
    assert!(machine.is_deferring());
    machine.finish_deferred().unwrap();
    assert!(!machine.is_deferring());
    assert_eq!(machine.finish_deferred(), Err(FinishError::Finished));
    assert_eq!(machine.deferred_init(CpuId(0)), 0);
    let whole = high_zone(4, &Config::default());
    assert_eq!(whole.finish_deferred(), Err(FinishError::NotDeferred));
    whole.check().unwrap();
}

/// misuse 15: a frame of a deferred section was never given, whatever is asked of it.
#[test]
fn frames_of_deferred_sections_are_nobodys() {
    let machine = high_zone(4, &deferred(Policy::Fixed));
    let pfn = Pfn(HIGH + 2 * SECTION + 3);
    let raw = machine.try_from_raw(pfn, Order::ZERO);
    assert_eq!(raw.unwrap_err(), RawError::NotGiven);
    assert!(machine.mark_bad(pfn).is_err());
    let part = range(pfn.0, pfn.0 + 512);
    assert!(machine.alloc_contig(part, |_| Moved::Tried).is_err());
    assert!(machine.offline(part, |_| Moved::Tried).is_err());
    assert_eq!(machine.online(part), Err(OnlineError::Deferred(pfn)));
    let refused = machine.release_reserved(late(pfn.0, pfn.0 + 1));
    assert_eq!(refused.unwrap_err().0, ReleaseError::NotReserved(pfn));
    machine.deferred_init(CpuId(0));
    machine.finish_deferred().unwrap();
    assert_eq!(machine.managed_frames(), 4 * SECTION);
    machine.check().unwrap();
}

/// misuse 12: a zone boundary within a section, sections that are there in part, a hole in the middle of one.
#[test]
fn odd_maps_are_deferred_by_section_and_whole_in_the_end() {
    let mut map = BootMap::new();
    let mut total = 0;
    for (start, end) in [
        (1, 300),
        (4000, 40_000),
        (40_100, 40_101),
        (70_000, 140_000),
        (141_111, 250_007),
        (1 << 19, (1 << 19) + 5),
    ] {
        map.add(NodeId(0), PhysAddr(start << 12), (end - start) << 12)
            .unwrap();
        total += end - start;
    }
    let mut zones = ZoneLimits {
        dma: PhysAddr(20_000 << 12),
        dma32: PhysAddr(50_000 << 12),
        ..ZoneLimits::default()
    };
    // Movable memory is the highest zone, so it is deferred, and what lies around it is not.
    for movable in [None, Some(range(90_001, 200_003))] {
        zones.movable.clear();
        zones.movable.extend(movable);
        let config = Config {
            zones: zones.clone(),
            ..deferred(Policy::Fixed)
        };
        let machine = allocator(map.clone(), &config).unwrap();
        let early = machine.managed_frames();
        assert!(early < total, "{early}");
        assert_eq!(machine.deferred_init(CpuId(0)), total - early);
        machine.finish_deferred().unwrap();
        assert_eq!(machine.managed_frames(), total);
        let whole = allocator(
            map.clone(),
            &Config {
                deferred: false,
                ..config
            },
        )
        .unwrap();
        let blocks = |machine: &PageAllocator<Host>| {
            let zones = machine.zone_counts();
            zones.map(|zone| zone.free_blocks).collect::<Vec<_>>()
        };
        assert_eq!(blocks(&machine), blocks(&whole));
        machine.check().unwrap();
    }
}
