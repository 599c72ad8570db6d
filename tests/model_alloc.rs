//! The page allocator against a naive model: a list of the blocks that are out.

#[path = "common/host.rs"]
pub(crate) mod host;
#[path = "common/machine.rs"]
pub(crate) mod machine;

use std::collections::BTreeMap;

use framekeeper::boot::BootMap;
use framekeeper::node::{Tuning, formulas};
use framekeeper::pageset::tune::Policy;
use framekeeper::zone::Zone;
use framekeeper::{
    AllocError, Config, CpuId, Mobility, NodeId, Order, PageAllocator, Pages, Pfn, PhysAddr,
    RawError, Request, ZoneKind,
};
use host::{Host, run_as};
use machine::{Choices, allocator, one_region};

/// Pagesets of today's rule, which parks more and caches in zones of any size.
fn automatic(cpus: u32) -> Config {
    Config {
        cpus,
        tuning: Tuning {
            policy: Policy::Auto,
            ..Tuning::default()
        },
        ..Config::default()
    }
}

const KINDS: [Mobility; 3] = [
    Mobility::Unmovable,
    Mobility::Movable,
    Mobility::Reclaimable,
];

/// What is out: first frame to order.
#[derive(Default)]
struct Model(BTreeMap<u64, u8>);

impl Model {
    fn take(&mut self, pfn: Pfn, order: Order) {
        assert!(pfn.is_aligned(order), "{pfn} {order}");
        let end = pfn.0 + order.frames();
        if let Some((&before, &n)) = self.0.range(..end).next_back() {
            assert!(before + (1 << n) <= pfn.0, "{pfn} is out twice");
        }
        self.0.insert(pfn.0, order.get());
    }

    fn give(&mut self, pfn: Pfn, order: Order) {
        assert_eq!(self.0.remove(&pfn.0), Some(order.get()));
    }

    fn frames(&self) -> u64 {
        self.0.values().map(|&n| 1u64 << n).sum()
    }
}

/// How far down a request may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgency {
    None,
    High,
    Atomic,
    Memalloc,
}

impl Urgency {
    fn of(self, request: Request) -> Request {
        match self {
            Self::None => request,
            Self::High => request.urgent(),
            Self::Atomic => request.atomic(),
            Self::Memalloc => request.ignore_watermarks(),
        }
    }
}

fn free_by_zone(allocator: &PageAllocator<Host>) -> Vec<u64> {
    allocator.zones().map(Zone::free_frames_exact).collect()
}

/// What must stay free in each zone, allocator.md 2.3 and 2.6.
fn floors(allocator: &PageAllocator<Host>, kind: Mobility, urgency: Urgency) -> Vec<u64> {
    let highest = match kind {
        Mobility::Movable => ZoneKind::Movable,
        _ => ZoneKind::Normal,
    };
    let zones = || allocator.zones();
    let floor = |zone: &Zone<Host>| {
        let mut managed = [0; 4];
        zones()
            .filter(|other| other.node() == zone.node())
            .for_each(|other| managed[other.kind() as usize] = other.managed());
        let reserve = formulas::reserves(managed)[zone.kind() as usize][highest as usize];
        let min = zone.levels().min;
        match urgency {
            Urgency::None => min + reserve,
            Urgency::High => min - min / 2 + reserve,
            Urgency::Atomic => min - min / 2 - (min - min / 2) / 4 + reserve,
            Urgency::Memalloc => 0,
        }
    };
    zones().map(floor).collect()
}

/// A program of at most so many steps, of one that has pagesets or one of many zones.
#[cfg(not(test))]
pub(crate) fn program(choices: &mut impl Choices) {
    match choices.below(3) {
        0 => walk(one_region(1 << 20, 5000), &automatic(2), 4, 2000, choices),
        1 => walk(
            one_region(1 << 20, 1 << 15),
            &automatic(3),
            15,
            2000,
            choices,
        ),
        _ => walk(ragged().0, &ragged().1, 12, 2000, choices),
    }
}

#[cfg(test)]
fn random_walk(map: BootMap, config: &Config, max_order: u64, steps: u32, seed: u64) {
    walk(map, config, max_order, steps, &mut machine::Random(seed));
}

fn walk(map: BootMap, config: &Config, max_order: u64, steps: u32, random: &mut impl Choices) {
    let allocator = allocator(map.clone(), config).unwrap();
    let total = allocator.free_frames();
    assert_eq!(total, map.free_frame_count(12));
    assert_eq!(total, allocator.managed_frames());
    let mut model = Model::default();
    let mut out: Vec<Pages<'_, Host>> = Vec::new();
    let mut raw: Vec<(Pfn, Order)> = Vec::new();
    for step in 0..steps {
        if random.are_over() {
            break;
        }
        run_as(random.below(4) as u32);
        match random.below(8) {
            0..4 => {
                let order = Order::new(random.below(max_order + 1) as u8).unwrap();
                let kind = KINDS[random.below(3) as usize];
                // Urgent ones wait in vain for nothing: an atomic one of order 0 keeps no blocks for its like.
                let urgency = match random.below(8) {
                    0 => Urgency::None,
                    1 => Urgency::High,
                    2 if order == Order::ZERO => Urgency::Atomic,
                    _ => Urgency::Memalloc,
                };
                let before = free_by_zone(&allocator);
                match allocator.try_alloc(urgency.of(Request::new(order).mobility(kind))) {
                    Ok(pages) => {
                        assert_eq!(pages.order(), order);
                        model.take(pages.pfn(), order);
                        out.push(pages);
                        let floors = floors(&allocator, kind, urgency);
                        for ((now, before), floor) in
                            free_by_zone(&allocator).into_iter().zip(before).zip(floors)
                        {
                            assert!(now >= before || now >= floor, "{now} {floor} {urgency:?}");
                        }
                    }
                    Err(AllocError::OutOfMemory(_)) => {
                        // Every zone is at its floor, or has no such block.
                        let floors = floors(&allocator, kind, urgency);
                        for (zone, floor) in allocator.zone_counts().zip(floors) {
                            let blocks: u64 =
                                zone.free_blocks[usize::from(order.get())..].iter().sum();
                            assert!(
                                zone.free < order.frames() + floor || blocks == 0,
                                "order {order} failed while such a block was free"
                            );
                        }
                    }
                    Err(error) => assert!(matches!(error, AllocError::TooLarge(_)), "{error}"),
                }
            }
            4..7 if !out.is_empty() => {
                let pages = out.swap_remove(random.below(out.len() as u64) as usize);
                let (pfn, order) = (pages.pfn(), pages.order());
                if random.below(4) == 0 {
                    assert_eq!(pages.into_raw(), pfn);
                    raw.push((pfn, order));
                } else {
                    model.give(pfn, order);
                    drop(pages);
                }
            }
            7 if !raw.is_empty() => {
                let (pfn, order) = raw.swap_remove(random.below(raw.len() as u64) as usize);
                drop(allocator.try_from_raw(pfn, order).unwrap());
                model.give(pfn, order);
                assert_eq!(
                    allocator.try_from_raw(pfn, order).err(),
                    Some(RawError::NotGiven)
                );
            }
            _ if random.below(50) == 0 => allocator.drain_cpu(CpuId(random.below(5) as u32)),
            _ => {}
        }
        assert_eq!(allocator.free_frames() + model.frames(), total);
        if step % 256 == 0 {
            allocator.check().unwrap();
        }
    }
    drop(out);
    for (pfn, order) in raw {
        drop(allocator.try_from_raw(pfn, order).unwrap());
    }
    allocator.drain_all();
    assert_eq!(allocator.parked_frames(), 0);
    assert_eq!(allocator.free_frames(), total);
    allocator.check().unwrap();
}

#[test]
fn random_blocks_of_one_small_zone_are_never_out_twice_and_all_come_back() {
    random_walk(one_region(1 << 20, 5000), &automatic(2), 4, 20_000, 1);
}

#[test]
fn random_blocks_of_four_gib_come_back_up_to_order_18() {
    let config = Config {
        cpus: 4,
        ..Config::default()
    };
    random_walk(one_region(1 << 20, 1 << 20), &config, 18, 6_000, 2);
    random_walk(one_region(1 << 20, 1 << 20), &automatic(3), 9, 6_000, 4);
}

/// A machine of two nodes whose memory begins and ends anywhere.
fn ragged() -> (BootMap, Config) {
    let mut map: BootMap = BootMap::new();
    let add = |map: &mut BootMap, node, start: u64, end: u64| {
        map.add(NodeId(node), PhysAddr(start), end - start).unwrap();
    };
    add(&mut map, 0, 0, 0x9fc00);
    add(&mut map, 0, 1 << 20, (3 << 30) + 0x1234);
    add(&mut map, 1, 5 << 30, (5 << 30) + (37 << 20) + 0x3000);
    add(&mut map, 0, 6 << 30, (6 << 30) + (9 << 20));
    map.reserve(PhysAddr(0x1000), 0x7000).unwrap();
    map.reserve(PhysAddr((2 << 30) + 0x4000), 33).unwrap();
    let config = Config {
        cpus: 4,
        node_of: |cpu| NodeId((cpu.0 % 2) as u8),
        ..Config::default()
    };
    (map, config)
}

#[test]
fn random_blocks_of_a_ragged_machine_of_two_nodes_come_back() {
    let (map, config) = ragged();
    random_walk(map, &config, 12, 6_000, 3);
}

#[test]
fn four_thousand_scattered_frames_serve_four_thousand_requests() {
    // A refill must not demand contiguous frames.
    let allocator = allocator(one_region(1 << 20, 8192), &Config::default()).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| {
        allocator
            .try_alloc(Request::new(Order::ZERO).ignore_watermarks())
            .ok()
    })
    .collect();
    assert_eq!(all.len(), 8192);
    let (kept, freed): (Vec<_>, Vec<_>) = all.into_iter().partition(|pages| pages.pfn().0 % 2 == 0);
    drop(freed);
    let again: Vec<_> = std::iter::from_fn(|| {
        allocator
            .try_alloc(Request::new(Order::ZERO).ignore_watermarks())
            .ok()
    })
    .collect();
    assert_eq!(again.len(), 4096);
    drop((kept, again));
    assert_eq!(allocator.free_frames(), 8192);
    allocator.check().unwrap();
}

/// misuse 59: memory out while pagesets elsewhere are full
#[test]
fn frames_parked_by_another_cpu_are_found_before_a_request_fails() {
    let config = automatic(2);
    let allocator = allocator(one_region(1 << 20, 512), &config).unwrap();
    run_as(1);
    drop(
        allocator
            .try_alloc(Request::new(Order::ZERO).ignore_watermarks())
            .unwrap(),
    );
    assert!(allocator.parked_frames() > 0);
    run_as(0);
    let whole = allocator
        .try_alloc(Request::new(Order::PAGEBLOCK).ignore_watermarks())
        .unwrap();
    assert_eq!(whole.order().frames(), 512);
    assert_eq!(allocator.free_frames(), 0);
}

#[test]
fn requests_go_to_the_zones_and_nodes_that_they_name() {
    let mut map = one_region(1 << 20, 1 << 16);
    map.add(NodeId(0), PhysAddr(1 << 20), 64 << 20).unwrap();
    map.add(NodeId(1), PhysAddr(8 << 30), 64 << 20).unwrap();
    let config = Config {
        cpus: 2,
        node_of: |cpu| NodeId(cpu.0 as u8),
        ..Config::default()
    };
    let allocator: PageAllocator<Host> = allocator(map, &config).unwrap();
    let zone_of = |request| {
        let pages = allocator.try_alloc(request).unwrap();
        (
            allocator.node_of(pages.pfn()).unwrap().0,
            allocator.zone_of(pages.pfn()).unwrap(),
        )
    };
    let one = Request::new(Order::ZERO).ignore_watermarks();
    run_as(0);
    assert_eq!(zone_of(one), (0, ZoneKind::Normal));
    assert_eq!(zone_of(one.zone(ZoneKind::Dma32)), (0, ZoneKind::Dma32));
    assert_eq!(zone_of(one.zone(ZoneKind::Dma)), (0, ZoneKind::Dma));
    assert_eq!(zone_of(one.node(NodeId(1))), (1, ZoneKind::Normal));
    assert_eq!(
        zone_of(one.node(NodeId(1)).zone(ZoneKind::Dma)),
        (0, ZoneKind::Dma)
    );
    run_as(1);
    assert_eq!(zone_of(one), (1, ZoneKind::Normal));
    assert_eq!(
        allocator
            .try_alloc(one.only_node(NodeId(1)).zone(ZoneKind::Dma))
            .err(),
        Some(AllocError::NoSuchZone(ZoneKind::Dma))
    );
    assert_eq!(
        allocator.try_alloc(one.node(NodeId(9))).err(),
        Some(AllocError::NoSuchNode(NodeId(9)))
    );
}
