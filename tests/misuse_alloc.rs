//! Wrong calls of the page allocator: each gets a typed error, and nothing changes.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use framekeeper::alloc::{Cause, Contradiction, MAX_CPUS, Shortage};
use framekeeper::boot::{BootMap, MapError, Memory, MemoryError};
use framekeeper::node::Tuning;
use framekeeper::node::formulas::Edition;
use framekeeper::zone::Level;
use framekeeper::{
    AllocError, Config, InitError, Mobility, NodeId, Order, PageAllocator, Pfn, PhysAddr, RawError,
    Reclaim, Refused, Request, ZoneKind,
};
use host::{Host, run_as, storage};
use machine::{allocator, memory, one_region};

const ONE: Request = Request::new(Order::ZERO);

/// Asserts that making an instance fails, and that the map is as it was and still makes one.
fn refused(mut map: BootMap, config: &Config, expected: impl Fn(InitError) -> bool) {
    let before = map.clone();
    let Refused(error, memory) =
        PageAllocator::new(memory(&mut map), config).expect_err("must be refused");
    assert!(expected(error), "{error:?}: {error}");
    assert_eq!(*memory.map(), before);
    assert_eq!(map, before);
}

fn config() -> Config {
    Config::default()
}

/// misuse 1: no regions; only zero-length regions; only reserved ones
#[test]
fn a_map_without_a_free_frame_makes_no_instance() {
    let empty = |error| error == InitError::Memory(MemoryError::Map(MapError::Empty));
    refused(BootMap::new(), &config(), empty);
    refused(one_region(1000, 0), &config(), empty);
    let mut reserved = one_region(1000, 16);
    reserved.reserve(PhysAddr(0), 1 << 30).unwrap();
    refused(reserved, &config(), empty);
}

/// misuse 6
#[test]
fn frame_zero_is_never_handed_out() {
    let allocator = allocator(one_region(0, 64), &config()).unwrap();
    assert_eq!(allocator.free_frames(), 63);
    let all: Vec<_> =
        std::iter::from_fn(|| allocator.try_alloc(ONE.ignore_watermarks()).ok()).collect();
    assert_eq!(all.len(), 63);
    assert!(all.iter().all(|pages| pages.pfn() != Pfn(0)));
}

/// misuse 7: frames span more than 2^32
#[test]
fn a_zone_of_more_frames_than_its_numbers_express_is_refused() {
    let mut map = one_region(1 << 20, 1 << 10);
    map.add(NodeId(0), PhysAddr(1 << 50), 1 << 20).unwrap();
    refused(map, &config(), |error| {
        error == InitError::ZoneTooLarge(NodeId(0))
    });
}

/// misuse 8: metadata area too small, unaligned
#[test]
fn storage_that_is_too_small_comes_back_with_the_map() {
    let mut map = one_region(1 << 20, 1 << 16);
    let before = map.clone();
    for bytes in [0, 1, 4096, 20_000] {
        // SAFETY: the host's frames are numbers; nobody uses the memory behind them.
        #[allow(unsafe_code)]
        let memory: Memory<'_, Host> = unsafe { Memory::claim(&mut map) };
        let Refused(error, memory) =
            PageAllocator::new(memory.with_storage(storage(bytes)), &config()).unwrap_err();
        assert!(matches!(error, InitError::Memory(MemoryError::Full(_))));
        assert_eq!(*memory.map(), before);
    }
}

/// misuse 8, 11: outside the direct map (the host has none)
#[test]
fn metadata_that_the_direct_map_does_not_reach_is_refused_and_the_map_restored() {
    let mut map = one_region(1 << 20, 1 << 16);
    let before = map.clone();
    // SAFETY: as above.
    #[allow(unsafe_code)]
    let memory: Memory<'_, Host> = unsafe { Memory::claim(&mut map) };
    let Refused(error, memory) = PageAllocator::new(memory, &config()).unwrap_err();
    assert!(matches!(error, InitError::Memory(MemoryError::Storage(_))));
    assert_eq!(*memory.map(), before);
}

#[test]
fn metadata_that_no_free_range_holds_is_refused() {
    let mut map = one_region(1 << 20, 2);
    let before = map.clone();
    // SAFETY: as above.
    #[allow(unsafe_code)]
    let memory: Memory<'_, Host> = unsafe { Memory::claim(&mut map) };
    let Refused(error, memory) = PageAllocator::new(memory, &config()).unwrap_err();
    assert!(matches!(
        error,
        InitError::Memory(MemoryError::Map(MapError::NoSpace { .. }))
    ));
    assert_eq!(*memory.map(), before);
}

/// misuse 9: CPUs 0 or above the limit; nodes above Config
#[test]
fn impossible_numbers_of_cpus_nodes_and_shards_are_refused() {
    let map = || one_region(1 << 20, 1 << 10);
    for cpus in [0, MAX_CPUS + 1, u32::MAX] {
        refused(map(), &Config { cpus, ..config() }, |error| {
            error == InitError::Cpus(cpus)
        });
    }
    for nodes in [0, 65] {
        refused(map(), &Config { nodes, ..config() }, |error| {
            error == InitError::Nodes(nodes)
        });
    }
    for shards in [0, u32::MAX] {
        let config = Config {
            shards: Some(shards),
            ..config()
        };
        refused(map(), &config, |error| error == InitError::Shards(shards));
    }
    let mut far = map();
    far.add(NodeId(7), PhysAddr(1 << 40), 1 << 20).unwrap();
    refused(
        far,
        &Config {
            nodes: 7,
            ..config()
        },
        |error| error == InitError::NodeOutOfRange(NodeId(7)),
    );
    let config = Config {
        nodes: 2,
        node_of: |_| NodeId(2),
        ..config()
    };
    refused(map(), &config, |error| {
        error == InitError::NodeOutOfRange(NodeId(2))
    });
}

/// misuse 9
#[test]
fn a_node_without_memory_and_a_node_without_cpus_are_accepted() {
    let mut map = one_region(1 << 20, 1 << 10);
    map.add(NodeId(5), PhysAddr(1 << 40), 1 << 20).unwrap();
    let config = Config {
        cpus: 2,
        node_of: |cpu| NodeId(cpu.0 as u8 * 3),
        ..config()
    };
    let allocator = allocator(map, &config).unwrap();
    run_as(1);
    let pages = allocator.try_alloc(ONE).unwrap();
    assert!(allocator.node_of(pages.pfn()).is_some());
    let pages = allocator.try_alloc(ONE.only_node(NodeId(5))).unwrap();
    assert_eq!(allocator.node_of(pages.pfn()), Some(NodeId(5)));
    assert_eq!(
        allocator.try_alloc(ONE.only_node(NodeId(3))).err(),
        Some(AllocError::NoSuchZone(ZoneKind::Normal))
    );
}

/// misuse 10: asymmetric, zero, or below the local one
#[test]
fn distances_that_no_machine_has_are_refused() {
    let distances: [fn(NodeId, NodeId) -> u8; 3] = [
        |a, b| 10 + a.0.saturating_sub(b.0),
        |a, b| if a == b { 10 } else { 0 },
        |a, b| if a == b { 10 } else { 9 },
    ];
    for distance in distances {
        let config = Config {
            nodes: 2,
            distance,
            ..config()
        };
        refused(one_region(1 << 20, 64), &config, |error| {
            matches!(error, InitError::Distance(..))
        });
    }
}

/// misuse 12
#[test]
fn zones_of_one_frame_and_boundaries_inside_a_line_work() {
    let boundary = 1 << 20;
    let map = one_region(boundary - 3, 4);
    let allocator = allocator(map, &config()).unwrap();
    let kinds: Vec<_> = allocator
        .zone_counts()
        .map(|zone| (zone.kind, zone.managed))
        .collect();
    assert_eq!(kinds, [(ZoneKind::Dma32, 3), (ZoneKind::Normal, 1)]);
    let all: Vec<_> = std::iter::from_fn(|| allocator.try_alloc(ONE).ok()).collect();
    assert_eq!(all.len(), 4);
    drop(all);
    // Buddies on both sides of the boundary never merge.
    allocator.drain_all();
    assert!(
        allocator
            .try_alloc(Request::new(Order::new(2).unwrap()))
            .is_err()
    );
    assert_eq!(allocator.free_frames(), 4);
    allocator.check().unwrap();
}

/// misuse 14
#[test]
fn an_order_that_no_zone_can_hold_is_an_error() {
    let allocator = allocator(one_region(1 << 20, 1 << 17), &config()).unwrap();
    assert!(Order::new(19).is_none());
    assert_eq!(
        allocator.try_alloc(Request::new(Order::MAX)).err(),
        Some(AllocError::TooLarge(Order::MAX))
    );
    assert_eq!(allocator.free_frames(), 1 << 17);
}

/// misuse 15, 18: never managed; in a hole; of another instance; reserved; owned by a handle; free
#[test]
fn a_raw_free_of_a_frame_that_was_never_given_is_an_error() {
    let mut map = one_region(1 << 20, 1 << 10);
    map.add(NodeId(0), PhysAddr((1 << 32) + (1 << 30)), 1 << 22)
        .unwrap();
    map.reserve(PhysAddr(1 << 32), 4096).unwrap();
    let allocator = allocator(map, &config()).unwrap();
    let free = allocator.free_frames();
    let owned = allocator.try_alloc(ONE).unwrap();
    let raw_error = |pfn| allocator.try_from_raw(pfn, Order::ZERO).err();
    for outside in [
        0,
        1,
        (1 << 20) - 1,
        (1 << 20) + (1 << 10),
        1 << 30,
        u64::MAX,
    ] {
        assert_eq!(
            raw_error(Pfn(outside)),
            Some(RawError::NoSuchFrame),
            "{outside:#x}"
        );
    }
    assert_eq!(raw_error(Pfn(1 << 20)), Some(RawError::Reserved));
    assert_eq!(raw_error(owned.pfn()), Some(RawError::NotGiven));
    assert_eq!(raw_error(Pfn((1 << 20) + 1023)), Some(RawError::NotGiven));
    drop(owned);
    assert_eq!(allocator.free_frames(), free);
    allocator.check().unwrap();
}

/// misuse 16: on a pageset, in a shard, inside a bigger free block
#[test]
fn a_second_raw_free_is_an_error_wherever_the_frame_is_by_then() {
    let allocator = allocator(one_region(1 << 20, 1 << 12), &config()).unwrap();
    for order in (0..=12).filter_map(Order::new) {
        let request = Request::new(order).ignore_watermarks();
        let pfn = allocator.try_alloc(request).unwrap().into_raw();
        assert_eq!(allocator.free_frames(), (1 << 12) - order.frames());
        drop(allocator.try_from_raw(pfn, order).unwrap());
        let again = |when: &str| {
            assert_eq!(
                allocator.try_from_raw(pfn, order).err(),
                Some(RawError::NotGiven),
                "{when}"
            );
            assert_eq!(allocator.free_frames(), 1 << 12);
        };
        again("parked");
        allocator.drain_all();
        again("in its shard");
    }
    allocator.check().unwrap();
}

/// misuse 17: bigger, smaller, unaligned, a tail
#[test]
fn a_raw_free_with_another_order_or_of_a_tail_is_an_error() {
    let allocator = allocator(one_region(1 << 20, 1 << 20), &config()).unwrap();
    let orders = || (0..=18).filter_map(Order::new);
    let given: Vec<_> = orders()
        .map(|order| {
            (
                allocator.try_alloc(Request::new(order)).unwrap().into_raw(),
                order,
            )
        })
        .collect();
    let free = allocator.free_frames();
    for &(pfn, order) in &given {
        for wrong in orders().filter(|&wrong| wrong != order) {
            let error = allocator.try_from_raw(pfn, wrong).err();
            let expected = if pfn.is_aligned(wrong) {
                RawError::WrongOrder
            } else {
                RawError::Misaligned
            };
            assert_eq!(error, Some(expected), "{pfn} of {order} as {wrong}");
        }
        for tail in [1, 2, 3, 16, 28, 31, 32, 63, 64, 511, order.frames() - 1] {
            if (1..order.frames()).contains(&tail) {
                let tail = Pfn(pfn.0 + tail);
                assert_eq!(
                    allocator.try_from_raw(tail, Order::ZERO).err(),
                    Some(RawError::Tail)
                );
            }
        }
    }
    assert_eq!(allocator.free_frames(), free);
    allocator.check().unwrap();
    for (pfn, order) in given {
        drop(allocator.try_from_raw(pfn, order).unwrap());
    }
    assert_eq!(allocator.free_frames(), 1 << 20);
    allocator.check().unwrap();
}

#[test]
fn without_codes_a_raw_free_is_an_error() {
    let config = Config {
        raw_codes: false,
        ..config()
    };
    let allocator = allocator(one_region(1 << 20, 64), &config).unwrap();
    let pfn = allocator.try_alloc(ONE).unwrap().into_raw();
    assert_eq!(
        allocator.try_from_raw(pfn, Order::ZERO).err(),
        Some(RawError::NoCodes)
    );
}

/// misuse 19
#[test]
fn contradictory_requests_are_errors() {
    let allocator = allocator(one_region(1 << 20, 1 << 10), &config()).unwrap();
    let contradictions = [
        (ONE.zone(ZoneKind::Movable), Contradiction::Pinned),
        (
            ONE.mobility(Mobility::Reclaimable).zone(ZoneKind::Movable),
            Contradiction::Pinned,
        ),
        (
            ONE.mobility(Mobility::Isolate),
            Contradiction::Mobility(Mobility::Isolate),
        ),
        (
            ONE.mobility(Mobility::Cma),
            Contradiction::Mobility(Mobility::Cma),
        ),
        (
            ONE.mobility(Mobility::HighAtomic),
            Contradiction::Mobility(Mobility::HighAtomic),
        ),
        (
            ONE.zone(ZoneKind::Dma).zone(ZoneKind::Dma32),
            Contradiction::TwoZones,
        ),
        (
            ONE.no_fail().reclaim(Reclaim::Background),
            Contradiction::NoFail,
        ),
        (ONE.atomic().no_fail(), Contradiction::NoFail),
    ];
    for (request, contradiction) in contradictions {
        assert_eq!(
            allocator.try_alloc(request).err(),
            Some(AllocError::Contradiction(contradiction))
        );
    }
    // What is said twice, or taken back, contradicts nothing.
    for request in [
        ONE.zone(ZoneKind::Dma32).zone(ZoneKind::Dma32),
        ONE.no_fail()
            .reclaim(Reclaim::None)
            .reclaim(Reclaim::Direct),
        ONE.atomic().no_fail().no_retry(),
        ONE.mobility(Mobility::Cma).mobility(Mobility::Movable),
    ] {
        assert!(!matches!(
            allocator.try_alloc(request).err(),
            Some(AllocError::Contradiction(_))
        ));
    }
    assert_eq!(allocator.free_frames(), 1 << 10);
}

/// misuse 20: with memory out and nobody to reclaim, the error names zone, watermark, free frames and minimum.
#[test]
fn a_request_with_memory_out_names_the_zone_and_the_watermark() {
    let allocator = allocator(one_region(1 << 20, 1000), &config()).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| allocator.try_alloc(ONE).ok()).collect();
    // 4000 KiB: the root of 64000, in frames.
    let min = 63;
    assert_eq!(all.len(), 1000 - 63);
    let shortage = Shortage {
        node: NodeId(0),
        zone: ZoneKind::Normal,
        order: Order::ZERO,
        free: min,
        min,
        cause: Cause::Watermark {
            level: Level::Min,
            kept: min,
        },
    };
    let error = allocator.try_alloc(ONE).unwrap_err();
    assert_eq!(error, AllocError::OutOfMemory(shortage));
    assert_eq!(
        error.to_string(),
        "node 0 zone Normal, and those after it: 63 frames free, minimum 63; a block of order 0 must leave more than 63 (Min): free memory, reclaim, or ask more urgently"
    );
    assert_eq!(allocator.free_frames(), min);
    // Each kind of urgency goes on to its own part of the minimum, allocator.md 2.6.
    let mut urgent = Vec::new();
    for (request, left) in [
        (ONE.urgent(), 32),
        (ONE.atomic(), 24),
        (ONE.ignore_watermarks().keep_reserves(), 24),
        (ONE.ignore_watermarks(), 0),
    ] {
        urgent.extend(std::iter::from_fn(|| allocator.try_alloc(request).ok()));
        assert_eq!(allocator.free_frames(), left);
    }
    let empty = AllocError::OutOfMemory(Shortage {
        free: 0,
        cause: Cause::Watermark {
            level: Level::Min,
            kept: 0,
        },
        ..shortage
    });
    assert_eq!(
        allocator.try_alloc(ONE.ignore_watermarks()).err(),
        Some(empty)
    );
    drop((all, urgent));
    assert_eq!(allocator.free_frames(), 1000);
    allocator.check().unwrap();
}

/// misuse 27: an id out of range
#[test]
fn a_cpu_without_caches_is_served_by_the_zone() {
    let allocator = allocator(one_region(1 << 20, 512), &config()).unwrap();
    for cpu in [1, 2, 1000, u32::MAX] {
        run_as(cpu);
        let pages = allocator.try_alloc(ONE).unwrap();
        assert_eq!(allocator.free_frames(), 511);
        drop(pages);
        assert_eq!(
            (allocator.free_frames(), allocator.parked_frames()),
            (512, 0)
        );
    }
    allocator.drain_cpu(framekeeper::CpuId(u32::MAX));
    allocator.check().unwrap();
}

/// misuse 19: a request that contradicts itself fails the same way whether or not a frame happens to be parked.
#[test]
fn a_contradictory_request_is_an_error_even_when_a_frame_is_parked() {
    let allocator = allocator(one_region(1 << 20, 2048), &Config::default()).unwrap();
    drop(allocator.try_alloc(Request::new(Order::ZERO)).unwrap());
    for (contradictory, what) in [
        (ONE.zone(ZoneKind::Movable), Contradiction::Pinned),
        (
            ONE.zone(ZoneKind::Movable).zone(ZoneKind::Normal),
            Contradiction::TwoZones,
        ),
        (ONE.reclaim(Reclaim::None).no_fail(), Contradiction::NoFail),
    ] {
        let error = allocator.try_alloc(contradictory).unwrap_err();
        assert_eq!(error, AllocError::Contradiction(what));
    }
    // A named zone that does not contradict the kind still comes from the pageset.
    assert!(allocator.try_alloc(ONE.zone(ZoneKind::Normal)).is_ok());
}

/// misuse 14: an order that the machine cannot hold is no shortage, which reclaim would try to mend.
#[test]
fn a_pageblock_on_a_machine_of_a_hundred_frames_is_too_large() {
    let allocator = allocator(one_region(1 << 20, 100), &Config::default()).unwrap();
    let error = allocator
        .try_alloc(Request::new(Order::PAGEBLOCK))
        .unwrap_err();
    assert_eq!(error, AllocError::TooLarge(Order::PAGEBLOCK));
    let fits = allocator.try_alloc(Request::new(Order::new(6).unwrap()));
    assert!(fits.is_ok());
}

/// Bad input of deferred limits: distances and shares that Linux does not accept either, each at its edges.
#[test]
fn factors_and_fractions_out_of_range_are_refused() {
    let build = |tuning: Tuning| {
        let config = Config {
            tuning,
            ..Config::default()
        };
        allocator(one_region(1 << 20, 2048), &config).map(|allocator| allocator.check())
    };
    for (edition, most) in [(Edition::V5_4, 1000), (Edition::Now, 3000)] {
        for scale_factor in [0, 1, most, most + 1, u32::MAX] {
            let built = build(Tuning {
                edition,
                scale_factor,
                ..Tuning::default()
            });
            match scale_factor {
                1.. if scale_factor <= most => assert_eq!(built.unwrap(), Ok(())),
                _ => assert_eq!(built.unwrap_err(), InitError::ScaleFactor(scale_factor)),
            }
        }
    }
    for fraction in [0, 1, 7, 8, u32::MAX] {
        let built = build(Tuning {
            fraction: Some(fraction),
            ..Tuning::default()
        });
        match fraction {
            0..8 => assert_eq!(built.unwrap_err(), InitError::Fraction(fraction)),
            _ => assert_eq!(built.unwrap(), Ok(())),
        }
    }
}

/// misuse 60: a minimum of free memory above all memory.
#[test]
fn a_min_free_of_all_memory_or_more_is_refused() {
    for kib in [4 * 2048, u64::MAX] {
        let mut config = Config::default();
        config.tuning.min_free_kib = Some(kib);
        let refused = allocator(one_region(1 << 20, 2048), &config).unwrap_err();
        assert!(
            matches!(
                refused,
                InitError::MinFree {
                    memory_kib: 8192,
                    ..
                }
            ),
            "{refused}"
        );
    }
}

/// misuse 12: every line of a zone has a hole, and every frame is handed over all the same.
#[test]
fn a_thousand_lines_with_holes_are_all_recorded() {
    let mut map = BootMap::<2000>::new();
    for line in 0..1000 {
        map.add(
            NodeId(0),
            PhysAddr(((1 << 20) + line * 512) << 12),
            100 << 12,
        )
        .unwrap();
    }
    // SAFETY: the host's frames are numbers; nobody uses the memory behind them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Host, 2000>::claim(&mut map) };
    let memory = memory.with_storage(storage(16 << 20));
    let allocator = PageAllocator::new(memory, &Config::default())
        .map_err(Refused::into_error)
        .unwrap();
    assert_eq!(allocator.refused_frames(), 0);
    assert_eq!(allocator.free_frames(), 100_000);
    allocator.check().unwrap();
}

/// Formulas are for any input, also what no machine has.
#[test]
fn limits_of_impossible_machines_are_numbers_and_no_panic() {
    use framekeeper::node::formulas::reserves;
    use framekeeper::pageset::tune::{Inputs, Limits, Policy};
    assert_eq!(reserves([u64::MAX; 4])[0][3], u64::MAX / 256);
    for policy in [Policy::Fixed, Policy::Auto] {
        for page_shift in [0, 63, 64, 200] {
            for fraction in [None, Some(0), Some(8)] {
                let inputs = Inputs {
                    page_shift,
                    fraction,
                    managed: u64::MAX,
                    low: u64::MAX,
                    cpus: 0,
                };
                let limits = Limits::new(policy, &inputs);
                assert!(limits.batch >= 1);
            }
        }
    }
}

/// misuse 22, R28: a full, an empty or a partly filled array
#[test]
fn a_bulk_request_fills_the_empty_slots_and_counts_the_full_ones() {
    let allocator = allocator(one_region(1 << 20, 1 << 14), &config()).unwrap();
    let free = allocator.free_frames();
    assert_eq!(allocator.try_alloc_bulk(ONE, &mut []), 0);
    let mut slots: Vec<_> = (0..500).map(|_| None).collect();
    for at in [0, 7, 8, 499] {
        slots[at] = Some(allocator.try_alloc(ONE).unwrap());
    }
    let kept: Vec<_> = [0, 7, 8, 499]
        .map(|at| slots[at].as_ref().unwrap().pfn())
        .into();
    assert_eq!(allocator.try_alloc_bulk(ONE, &mut slots), 500);
    assert_eq!(allocator.free_frames(), free - 500);
    assert!(
        [0, 7, 8, 499]
            .iter()
            .zip(&kept)
            .all(|(&at, &pfn)| slots[at].as_ref().unwrap().pfn() == pfn)
    );
    // Full: nothing is allocated.
    assert_eq!(allocator.try_alloc_bulk(ONE, &mut slots), 500);
    assert_eq!(allocator.free_frames(), free - 500);
    // More than there is: as many as there are, or as the watermark leaves.
    let mut all: Vec<_> = (0..free as usize).map(|_| None).collect();
    let down_to_the_minimum = allocator.try_alloc_bulk(ONE, &mut all);
    let zone = allocator.zones().next().unwrap();
    let left = allocator.free_frames();
    assert_eq!(down_to_the_minimum as u64, free - 500 - left);
    assert!(left.abs_diff(zone.levels().min) < 64, "{left} frames");
    assert_eq!(
        allocator.try_alloc_bulk(ONE.ignore_watermarks(), &mut all),
        free as usize - 500
    );
    assert_eq!(allocator.free_frames(), 0);
    let mut pfns: Vec<_> = all
        .iter()
        .chain(&slots)
        .flatten()
        .map(|pages| pages.pfn())
        .collect();
    pfns.sort();
    pfns.dedup();
    assert_eq!(pfns.len() as u64, free);
    allocator.free_all(all.into_iter().chain(slots).flatten());
    assert_eq!(allocator.free_frames(), free);
    // Contradictions and orders without a list go the same way as single requests.
    let mut slots = [const { None }; 3];
    assert_eq!(
        allocator.try_alloc_bulk(ONE.mobility(Mobility::Cma), &mut slots),
        0
    );
    let order5 = Request::new(Order::new(5).unwrap());
    assert_eq!(allocator.try_alloc_bulk(order5, &mut slots), 3);
    drop(slots);
    assert_eq!(allocator.free_frames(), free);
    allocator.check().unwrap();
}
