//! What an allocation must leave free: by zone, node, urgency, and by counts that cannot be wrong.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use std::cell::RefCell;

use framekeeper::alloc::{Cause, Need, Progress, Relief};
use framekeeper::boot::BootMap;
use framekeeper::node::{Tuning, formulas};
use framekeeper::pageset::tune::Policy;
use framekeeper::zone::{Access, Level, Levels, Zone};
use framekeeper::{
    AllocError, Config, Mobility, NodeId, Order, PageAllocator, Pages, PhysAddr, Reclaim, Request,
    ZoneKind,
};
use host::{Host, run_as};
use machine::{allocator, one_region};

const ONE: Request = Request::new(Order::ZERO);
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn order(n: u8) -> Order {
    Order::new(n).unwrap()
}

fn map(regions: &[(u8, u64, u64)]) -> BootMap {
    let mut map = BootMap::new();
    for &(node, start, bytes) in regions {
        map.add(NodeId(node), PhysAddr(start), bytes).unwrap();
    }
    map
}

/// What is left when such requests are refused.
fn all<'a>(allocator: &'a PageAllocator<Host>, request: Request) -> Vec<Pages<'a, Host>> {
    std::iter::from_fn(|| allocator.try_alloc(request).ok()).collect()
}

fn free(allocator: &PageAllocator<Host>) -> Vec<u64> {
    allocator.zones().map(Zone::free_frames_exact).collect()
}

fn the_zone(allocator: &PageAllocator<Host>) -> &'static Zone<Host> {
    allocator.zones().next().unwrap()
}

/// Blocks of a pageblock and larger.
fn whole_lines(zone: &Zone<Host>) -> u64 {
    zone.free_blocks_by_order()[9..].iter().sum()
}

/// All levels of the first zone at one number.
fn flat(allocator: &PageAllocator<Host>, frames: u64) {
    let levels = Levels {
        min: frames,
        low: frames,
        high: frames,
        promo: frames,
    };
    the_zone(allocator).set_levels(levels).unwrap();
}

#[test]
fn each_zone_keeps_its_minimum_and_what_it_reserves_from_requests_that_could_go_higher() {
    // allocator.md 2.3, 2.6: DMA, DMA32 and Normal of one node.
    let regions = [(0, 0, 16 * MIB), (0, 16 * MIB, GIB), (0, 4 * GIB, GIB)];
    let allocator = allocator(map(&regions), &Config::default()).unwrap();
    let zones: Vec<_> = allocator.zones().collect();
    let mut managed = [0; 4];
    zones
        .iter()
        .for_each(|zone| managed[zone.kind() as usize] = zone.managed());
    let reserves = formulas::reserves(managed);
    let floors = |highest: ZoneKind| -> Vec<u64> {
        zones
            .iter()
            .map(|zone| zone.levels().min + reserves[zone.kind() as usize][highest as usize])
            .collect()
    };
    assert!(reserves[0][2] > 2000 && reserves[1][2] > 1000);
    let mut held = all(&allocator, ONE);
    assert_eq!(free(&allocator), floors(ZoneKind::Normal));
    held.extend(all(&allocator, ONE.zone(ZoneKind::Dma32)));
    let mut expected = floors(ZoneKind::Dma32);
    expected[2] = floors(ZoneKind::Normal)[2];
    assert_eq!(free(&allocator), expected);
    held.extend(all(&allocator, ONE.zone(ZoneKind::Dma)));
    expected[0] = zones[0].levels().min;
    assert_eq!(free(&allocator), expected);
    held.extend(all(&allocator, ONE.ignore_watermarks()));
    assert_eq!(free(&allocator), [0, 0, 0]);
    drop(held);
    allocator.check().unwrap();
}

#[test]
fn every_node_gives_down_to_low_before_any_goes_below() {
    // allocator.md 2.8, 2.9
    let config = Config {
        cpus: 2,
        node_of: |cpu| NodeId(cpu.0 as u8),
        ..Config::default()
    };
    let regions = [(0, 4 * GIB, GIB), (1, 8 * GIB, GIB)];
    let allocator = allocator(map(&regions), &config).unwrap();
    let levels = the_zone(&allocator).levels();
    run_as(0);
    let mut held = Vec::new();
    let mut lowest = [1 << 18; 2];
    let mut seen = Vec::new();
    while let Ok(pages) = allocator.try_alloc(ONE) {
        held.push(pages);
        let now = free(&allocator);
        for node in 0..2 {
            if now[node] < lowest[node] {
                if seen.last() != Some(&node) {
                    seen.push(node);
                }
                lowest[node] = now[node];
            }
        }
        assert!(now.iter().all(|&free| free >= levels.min), "{now:?}");
        assert!(now[0] >= levels.low || now[1] <= levels.low, "{now:?}");
    }
    assert_eq!(seen, [0, 1, 0, 1], "low, low, min, min");
    assert_eq!(lowest, [levels.min; 2]);
}

/// R19: many CPUs' counts lag behind in their shards; nothing is decided by the sum that misses them.
#[test]
fn a_counter_that_lags_neither_serves_a_request_nor_balances_a_zone() {
    let config = Config {
        cpus: 8,
        ..Config::default()
    };
    let allocator = allocator(one_region(4 << 18, 16 << 18), &config).unwrap();
    let zone = the_zone(&allocator);
    let fresh = zone.levels();
    assert_eq!(zone.shards(), 16);
    let mut held = Vec::new();
    for cpu in 0..8 {
        run_as(cpu);
        held.push(allocator.try_alloc(Request::new(order(7))).unwrap());
    }
    let exact = zone.free_frames_exact();
    assert_eq!(zone.free_frames(), exact + 8 * 128, "the counter lags");
    flat(&allocator, exact);
    assert!(!allocator.is_balanced(NodeId(0), Order::ZERO, ZoneKind::Normal));
    for cpu in 0..8 {
        run_as(cpu);
        let error = allocator.try_alloc(ONE).unwrap_err();
        let AllocError::OutOfMemory(shortage) = error else {
            panic!("{error}");
        };
        assert_eq!((shortage.free, shortage.min), (exact, exact));
    }
    assert_eq!(zone.free_frames_exact(), exact, "never below min");
    // From each CPU in turn, by refills of up to 2016 frames: to the frame.
    flat(&allocator, exact - 10_000);
    assert!(allocator.is_balanced(NodeId(0), Order::ZERO, ZoneKind::Normal));
    let mut cpu = 0;
    while let Ok(pages) = allocator.try_alloc(ONE) {
        held.push(pages);
        cpu = (cpu + 3) % 8;
        run_as(cpu);
        assert!(zone.free_frames_exact() >= exact - 10_000);
    }
    assert_eq!(zone.free_frames_exact(), exact - 10_000);
    run_as(0);
    drop(held);
    zone.set_levels(fresh).unwrap();
    allocator.check().unwrap();
}

/// R28: the array fits exactly.
#[test]
fn a_refill_takes_no_more_than_is_above_the_mark_and_a_bulk_request_neither() {
    let config = Config {
        tuning: Tuning {
            policy: Policy::Auto,
            ..Tuning::default()
        },
        ..Config::default()
    };
    let allocator = allocator(one_region(1 << 20, 1 << 18), &config).unwrap();
    let zone = the_zone(&allocator);
    let fresh = zone.levels();
    for need in [1, 2, 63, 64, 500] {
        let mark = zone.free_frames_exact() - need;
        flat(&allocator, mark);
        let mut slots: Vec<_> = (0..2 * need).map(|_| None).collect();
        for slot in slots.iter_mut().skip(1).step_by(2) {
            *slot = allocator.try_alloc(ONE).ok();
        }
        assert!(zone.free_frames_exact() >= mark);
        let left = need as usize - slots.iter().flatten().count();
        let filled = allocator.try_alloc_bulk(ONE, &mut slots);
        assert_eq!(slots.iter().flatten().count(), need as usize);
        assert!(filled >= left && filled <= slots.len());
        assert_eq!(
            (zone.free_frames_exact(), allocator.parked_frames()),
            (mark, 0)
        );
        assert!(allocator.try_alloc(ONE).is_err());
        allocator.free_all(slots.into_iter().flatten());
        allocator.drain_all();
    }
    zone.set_levels(fresh).unwrap();
    allocator.check().unwrap();
}

#[test]
fn blocks_for_urgent_requests_are_kept_up_to_a_hundredth_and_found_by_them() {
    // allocator.md 1.8
    let allocator = allocator(one_region(1 << 20, 1 << 18), &Config::default()).unwrap();
    let zone = the_zone(&allocator);
    let fresh = zone.levels();
    let atomic = Request::new(order(2)).atomic();
    // The first attempt takes what any request may have: only below low is anything kept.
    drop(allocator.try_alloc(atomic).unwrap());
    assert_eq!(zone.reserved_highatomic(), 0);
    allocator.drain_all();
    flat(
        &allocator,
        zone.free_frames_exact() + allocator.parked_frames(),
    );
    let first = allocator.try_alloc(atomic).unwrap();
    assert_eq!(zone.reserved_highatomic(), 512);
    let kept = zone.free_highatomic();
    assert_eq!(kept, 508);
    // An ordinary request does not count it as free, and leaves it; an urgent one comes from it.
    flat(&allocator, 0);
    let held = all(&allocator, ONE);
    assert_eq!(
        (zone.free_frames_exact(), zone.free_highatomic()),
        (kept, kept)
    );
    let error = allocator.try_alloc(Request::new(order(1))).unwrap_err();
    assert!(
        matches!(error, AllocError::OutOfMemory(short) if matches!(short.cause, Cause::Watermark { .. })),
        "{error}"
    );
    let second = allocator.try_alloc(atomic).unwrap();
    assert_eq!(zone.mobility_of(second.pfn()), Mobility::HighAtomic);
    // One that cannot wait may have it when there is nothing else, block or not.
    let waits_not = allocator.try_alloc(ONE.reclaim(Reclaim::None)).unwrap();
    assert_eq!(zone.mobility_of(waits_not.pfn()), Mobility::HighAtomic);
    drop((first, second, waits_not, held));
    allocator.drain_all();
    zone.set_levels(fresh).unwrap();
    allocator.check().unwrap();
}

#[test]
fn four_unlike_nodes_are_asked_by_distance_and_one_without_memory_asks_its_nearest() {
    // allocator.md 2.2, misuse 9: node 1 has no CPU, node 2 no memory; sizes and distances differ.
    fn distance(a: NodeId, b: NodeId) -> u8 {
        const TABLE: [[u8; 4]; 4] = [
            [10, 12, 21, 31],
            [12, 10, 17, 20],
            [21, 17, 10, 16],
            [31, 20, 16, 10],
        ];
        TABLE[usize::from(a.0)][usize::from(b.0)]
    }
    let config = Config {
        cpus: 3,
        nodes: 4,
        node_of: |cpu| NodeId([0, 2, 3][cpu.0 as usize]),
        distance,
        ..Config::default()
    };
    let regions = [
        (0, 4 * GIB, 64 * MIB),
        (1, 8 * GIB, 16 * MIB),
        (3, 12 * GIB, 256 * MIB),
    ];
    let allocator = allocator(map(&regions), &config).unwrap();
    assert_eq!(
        allocator
            .memory_nodes()
            .map(|node| node.0)
            .collect::<Vec<_>>(),
        [0, 1, 3]
    );
    for (cpu, order) in [(0, [0, 1, 3]), (1, [3, 1, 0]), (2, [3, 1, 0])] {
        run_as(cpu);
        let mut seen = Vec::new();
        let held = all(&allocator, ONE.ignore_watermarks());
        for pages in &held {
            let node = allocator.node_of(pages.pfn()).unwrap().0;
            if !seen.contains(&node) {
                seen.push(node);
            }
        }
        assert_eq!(seen, order, "CPU {cpu}");
        drop(held);
        allocator.drain_all();
    }
    // A node without memory serves nobody who insists; one that is not there is another error.
    let on_2 = ONE.only_node(NodeId(2));
    assert_eq!(
        allocator.try_alloc(on_2).err(),
        Some(AllocError::NoSuchZone(ZoneKind::Normal))
    );
    assert_eq!(
        allocator.try_alloc(ONE.only_node(NodeId(4))).err(),
        Some(AllocError::NoSuchNode(NodeId(4)))
    );
    let near_2 = allocator.try_alloc(ONE.node(NodeId(2))).unwrap();
    assert_eq!(allocator.node_of(near_2.pfn()), Some(NodeId(3)));
    // Who insists on one node gets no other's frames, though they are free.
    let held = all(&allocator, ONE.only_node(NodeId(1)));
    assert!(
        held.iter()
            .all(|pages| allocator.node_of(pages.pfn()) == Some(NodeId(1)))
    );
    let error = allocator.try_alloc(ONE.only_node(NodeId(1))).unwrap_err();
    assert!(
        matches!(error, AllocError::OutOfMemory(short) if short.node == NodeId(1)),
        "{error}"
    );
    drop((near_2, held));
    allocator.check().unwrap();
}

#[test]
fn a_lower_zone_of_the_node_serves_before_kinds_mix_in_the_first() {
    // allocator.md 2.9, NOFRAGMENT: Normal has only movable lines left, DMA32 whole ones.
    let regions = [(0, 2 * GIB, GIB), (0, 4 * GIB, 64 * MIB)];
    let allocator = allocator(map(&regions), &Config::default()).unwrap();
    let normal = allocator.zones().nth(1).unwrap();
    let movable = ONE.mobility(Mobility::Movable);
    // All of Normal, so that each of its lines is movable; then half of each line is free.
    let levels = normal.levels();
    normal.set_levels(Levels::default()).unwrap();
    let mut held = Vec::new();
    while normal.free_frames_exact() > 0 {
        held.push(allocator.try_alloc(movable).unwrap());
    }
    normal.set_levels(levels).unwrap();
    let mut keep = false;
    held.retain(|_| {
        keep = !keep;
        keep
    });
    allocator.drain_all();
    assert!(normal.free_frames_exact() > normal.levels().high);
    let pages = allocator.try_alloc(ONE).unwrap();
    assert_eq!(allocator.zone_of(pages.pfn()), Some(ZoneKind::Dma32));
    assert_eq!(normal.boost(), 0);
    let large = allocator.try_alloc(movable).unwrap();
    assert_eq!(allocator.zone_of(large.pfn()), Some(ZoneKind::Normal));
}

/// Whom it woke.
#[derive(Default)]
struct Woken(RefCell<Vec<Need>>);

impl Relief for Woken {
    fn wake_background(&self, need: &Need) {
        self.0.borrow_mut().push(*need);
    }
    fn reclaim(&self, _need: &Need, _frames: u64) -> Progress {
        Progress::Exhausted
    }
}

#[test]
fn mixing_kinds_raises_the_boost_and_wakes_the_background_once() {
    // allocator.md 2.5, 2.11
    let allocator = allocator(one_region(1 << 20, 1 << 18), &Config::default()).unwrap();
    let zone = the_zone(&allocator);
    let movable = ONE.mobility(Mobility::Movable);
    let mut held = Vec::new();
    while whole_lines(zone) > 0 || zone.free_frames_exact() > 1 << 17 {
        match allocator.try_alloc(movable.ignore_watermarks()) {
            Ok(pages) => held.push(pages),
            Err(_) => break,
        }
    }
    let mut at = 0;
    held.retain(|_| {
        at += 1;
        at % 4 != 0
    });
    allocator.drain_all();
    assert_eq!(zone.boost(), 0);
    let woken = Woken::default();
    let first = allocator.alloc_with(ONE, &woken).unwrap();
    assert_eq!(zone.boost(), 512);
    let need = Need {
        node: NodeId(0),
        highest: ZoneKind::Normal,
        order: Order::ZERO,
    };
    assert_eq!(*woken.0.borrow(), [need]);
    assert_eq!(zone.mark(Level::Low), zone.levels().low + 512);
    // The next refill of the same lines says nothing new until it mixes again; nobody is woken for one who forbids it.
    let second = allocator.alloc_with(ONE, &woken).unwrap();
    assert_eq!(woken.0.borrow().len(), 1);
    // The background takes back what it saw, and no more.
    let seen = allocator.boosts(NodeId(0), ZoneKind::Normal);
    assert_eq!(seen.total(), 512);
    allocator.lower_boosts(NodeId(0), &seen);
    assert_eq!(zone.boost(), 0);
    drop((first, second, held));
    allocator.check().unwrap();
}

/// misuse 60: levels above the zone's size are refused; of marks that are, no sum wraps.
#[test]
fn levels_beyond_all_memory_are_refused_and_such_marks_hold_back_whoever_keeps_to_them() {
    let allocator = allocator(one_region(1 << 20, 1 << 12), &Config::default()).unwrap();
    let zone = allocator.zones().next().unwrap();
    allocator.drain_all();
    let most = u64::MAX;
    let before = zone.levels();
    for promo in [most, (1 << 12) + 1] {
        let beyond = Levels { promo, ..before };
        let error = zone.set_levels(beyond).unwrap_err();
        assert_eq!((error.levels, error.managed), (beyond, 1 << 12));
    }
    assert_eq!(zone.levels(), before);
    assert!(!zone.suffices(Order::ZERO, most, most, Access::empty(), most));
    assert!(!zone.suffices(Order::ZERO, most, 0, Access::empty(), 1 << 12));
}
