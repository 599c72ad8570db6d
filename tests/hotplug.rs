//! Sections of memory that are added and removed while the machine runs.
//!
//! allocator.md 5.5 and cases R20, R34; misuse 15, 18.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use framekeeper::boot::{BootMap, SECTION_BYTES};
use framekeeper::{
    Backing, Config, ContigError, CpuId, FrameRange, HotplugError, LruError, MapError, MemcgId, Mm,
    MmConfig, Moved, NodeId, OnlineError, Order, PageAllocator, Pfn, PhysAddr, Refused,
    ReleaseError, Request, ZoneKind,
};
use host::Host;
use machine::{allocator, late, memory};

/// Frames of a section.
const SECTION: u64 = SECTION_BYTES >> 12;
/// 4 GiB.
const HIGH: u64 = 1 << 20;
/// Where memory may be added.
const LATER: u64 = HIGH + 4 * SECTION;
const LATER_2: u64 = LATER + SECTION;

fn range(start: u64, end: u64) -> FrameRange {
    FrameRange::new(Pfn(start), Pfn(end))
}

/// Two sections of memory, and room for two more two sections behind.
fn map() -> BootMap {
    let mut map = BootMap::new();
    map.add(NodeId(0), PhysAddr(HIGH << 12), 2 * SECTION_BYTES)
        .unwrap();
    map.add_hotplug(NodeId(0), PhysAddr(LATER << 12), 2 * SECTION_BYTES)
        .unwrap();
    map
}

fn managed(machine: &PageAllocator<Host>) -> (u64, u64) {
    let zone = machine.zone_counts().last().unwrap();
    (zone.managed, zone.present)
}

const ONE: Request = Request::new(Order::ZERO).ignore_watermarks();

#[test]
fn added_sections_are_memory_like_any_other_and_limits_follow() {
    let machine = allocator(map(), &Config::default()).unwrap();
    assert_eq!(managed(&machine), (2 * SECTION, 2 * SECTION));
    let limits = || machine.pageset_counts().next().unwrap().limits.batch;
    let marks = || machine.zones().next().unwrap().levels();
    let (batch, before) = (limits(), marks());
    machine.hot_add(late(LATER, LATER + 2 * SECTION)).unwrap();
    assert_eq!(managed(&machine), (4 * SECTION, 4 * SECTION));
    assert_ne!(limits(), batch);
    assert!(marks().low > before.low);
    machine.check().unwrap();
    let section = machine
        .alloc_contig(range(LATER, LATER_2), |_| Moved::Unmovable)
        .unwrap();
    drop(section);
    let gone = machine
        .hot_remove(range(LATER, LATER + 2 * SECTION), |_| Moved::Unmovable)
        .unwrap();
    assert_eq!(managed(&machine), (2 * SECTION, 2 * SECTION));
    assert_eq!((limits(), marks()), (batch, before));
    machine.check().unwrap();
    // The memory came back with its right: it is added again without a new promise.
    machine.hot_add(gone).unwrap();
    machine.check().unwrap();
    assert_eq!(machine.free_frames(), 4 * SECTION);
}

#[test]
fn a_section_in_use_is_emptied_by_the_hook_or_stays() {
    let machine = allocator(map(), &Config::default()).unwrap();
    machine.hot_add(late(LATER, LATER_2)).unwrap();
    let mut held = Vec::new();
    while let Ok(pages) = machine.try_alloc(ONE) {
        held.push(pages);
    }
    assert_eq!(held.len() as u64, 3 * SECTION);
    let removed = machine.hot_remove(range(LATER, LATER_2), |_| Moved::Unmovable);
    let error = HotplugError::Kept(ContigError::Unmovable(Pfn(LATER)));
    assert_eq!(removed.unwrap_err(), error);
    assert_eq!(managed(&machine), (3 * SECTION, 3 * SECTION));
    machine.check().unwrap();
    let (mut stay, mut go): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|pages| pages.pfn() < Pfn(LATER));
    // Room for what moves.
    stay.truncate(1000);
    let removed = machine.hot_remove(range(LATER, LATER_2), |run| {
        go.retain(|pages| !run.contains(pages.pfn()));
        Moved::Tried
    });
    assert_eq!(removed.unwrap().frames(), range(LATER, LATER_2));
    assert_eq!(managed(&machine), (2 * SECTION, 2 * SECTION));
    drop(stay);
    assert_eq!(machine.free_frames(), 2 * SECTION);
    machine.check().unwrap();
}

#[test]
fn ranges_that_cannot_be_added_or_removed_are_errors_and_change_nothing() {
    let machine = allocator(map(), &Config::default()).unwrap();
    machine.hot_add(late(LATER, LATER_2)).unwrap();
    let end = LATER + 2 * SECTION;
    for (start, end, error) in [
        (LATER, LATER, HotplugError::NotSections(range(LATER, LATER))),
        (
            LATER_2,
            end - 1,
            HotplugError::NotSections(range(LATER_2, end - 1)),
        ),
        (
            LATER_2 + 1,
            end,
            HotplugError::NotSections(range(LATER_2 + 1, end)),
        ),
        (HIGH, HIGH + SECTION, HotplugError::Unplanned(Pfn(HIGH))),
        (LATER_2, end + SECTION, HotplugError::Unplanned(Pfn(end))),
        (LATER, end, HotplugError::Present(Pfn(LATER))),
    ] {
        let Refused(found, memory) = machine.hot_add(late(start, end)).unwrap_err();
        assert_eq!(found, error);
        assert_eq!(memory.frames(), range(start, end), "it comes back");
        assert!(!found.to_string().is_empty());
    }
    for (start, end, error) in [
        (LATER_2, end, HotplugError::Absent(Pfn(LATER_2))),
        (LATER, end, HotplugError::Absent(Pfn(LATER_2))),
        (HIGH, HIGH + SECTION, HotplugError::Unplanned(Pfn(HIGH))),
    ] {
        let removed = machine.hot_remove(range(start, end), |_| Moved::Tried);
        assert_eq!(removed.unwrap_err(), error);
    }
    assert_eq!(managed(&machine), (3 * SECTION, 3 * SECTION));
    // What was claimed on the way is as it was.
    machine.hot_add(late(LATER_2, end)).unwrap();
    machine.check().unwrap();
}

#[test]
fn a_section_that_is_being_removed_is_busy_for_others() {
    let machine = allocator(map(), &Config::default()).unwrap();
    machine.hot_add(late(LATER, LATER_2)).unwrap();
    let pages = machine
        .alloc_contig(range(LATER + 5, LATER + 6), |_| Moved::Tried)
        .unwrap();
    let mut pages = Some(pages);
    let gone = machine.hot_remove(range(LATER, LATER_2), |_| {
        let again = machine.hot_remove(range(LATER, LATER_2), |_| Moved::Tried);
        assert_eq!(again.unwrap_err(), HotplugError::Busy(Pfn(LATER)));
        let add = machine.hot_add(late(LATER, LATER_2)).unwrap_err();
        assert_eq!(add.0, HotplugError::Busy(Pfn(LATER)));
        drop(pages.take());
        Moved::Tried
    });
    drop(gone.unwrap());
    machine.check().unwrap();
}

#[test]
fn absent_sections_are_nobodys_and_parts_go_offline_like_any_range() {
    let machine = allocator(map(), &Config::default()).unwrap();
    let part = range(LATER, LATER + 512);
    assert!(machine.try_from_raw(Pfn(LATER), Order::ZERO).is_err());
    assert!(machine.mark_bad(Pfn(LATER)).is_err());
    assert!(machine.alloc_contig(part, |_| Moved::Tried).is_err());
    assert_eq!(machine.online(part), Err(OnlineError::Reserved(Pfn(LATER))));
    let refused = machine.release_reserved(late(LATER, LATER + 512));
    assert_eq!(refused.unwrap_err().0, ReleaseError::Hotplug(Pfn(LATER)));
    machine.hot_add(late(LATER, LATER_2)).unwrap();
    machine.offline(part, |_| Moved::Unmovable).unwrap();
    assert_eq!(managed(&machine), (3 * SECTION - 512, 3 * SECTION - 512));
    // All of it must be there to be removed.
    let error = HotplugError::Kept(ContigError::Unusable(Pfn(LATER)));
    let removed = machine.hot_remove(range(LATER, LATER_2), |_| Moved::Tried);
    assert_eq!(removed.unwrap_err(), error);
    machine.online(part).unwrap();
    drop(
        machine
            .hot_remove(range(LATER, LATER_2), |_| Moved::Tried)
            .unwrap(),
    );
    machine.check().unwrap();
}

#[test]
fn a_map_names_only_whole_sections_without_memory() {
    let mut map = map();
    let before = map.clone();
    for (base, bytes) in [
        (HIGH << 12, SECTION_BYTES),
        ((LATER + 8 * SECTION + 1) << 12, SECTION_BYTES),
        ((LATER + 8 * SECTION) << 12, SECTION_BYTES + 4096),
        ((LATER_2) << 12, 2 * SECTION_BYTES),
        (0, SECTION_BYTES),
    ] {
        let added = map.add_hotplug(NodeId(0), PhysAddr(base), bytes);
        let base = PhysAddr(base);
        assert_eq!(added, Err(MapError::NotSections { base, bytes }));
        assert_eq!(map, before);
    }
    // It is reserved, but for good: there is nothing to free.
    let base = PhysAddr(LATER << 12);
    let bytes = SECTION_BYTES;
    assert_eq!(
        map.free(base, bytes),
        Err(MapError::NotReserved { base, bytes })
    );
    assert_eq!(map, before);
    assert!(map.to_string().contains("absent   0x"));
    for i in 0..6 {
        // Not next to each other, or they would be one.
        let base = PhysAddr((LATER + (10 + 2 * i) * SECTION) << 12);
        map.add_hotplug(NodeId(1), base, SECTION_BYTES).unwrap();
    }
    let base = PhysAddr((LATER + 40 * SECTION) << 12);
    map.add_hotplug(NodeId(1), base, SECTION_BYTES).unwrap();
    let before = map.clone();
    let base = PhysAddr((LATER + 50 * SECTION) << 12);
    let full = map.add_hotplug(NodeId(1), base, SECTION_BYTES);
    assert!(matches!(
        full,
        Err(MapError::TooManyRegions { capacity: 8, .. })
    ));
    assert_eq!(map, before);
}

/// R34: a zone whose last section goes, and comes back; a node that has no memory but what is added.
#[test]
fn a_zone_that_was_emptied_is_refilled_and_its_pagesets_follow() {
    let mut map = map();
    let far = LATER + 16 * SECTION;
    map.add_hotplug(NodeId(1), PhysAddr(far << 12), 2 * SECTION_BYTES)
        .unwrap();
    let config = Config {
        cpus: 2,
        node_of: |cpu| NodeId(cpu.0 as u8),
        ..Config::default()
    };
    let machine = allocator(map, &config).unwrap();
    let of_node_1 = || {
        let mut pagesets = machine.pageset_counts();
        pagesets
            .find(|pageset| pageset.node == NodeId(1) && pageset.cpu == CpuId(1))
            .unwrap()
    };
    let only = Request::new(Order::ZERO).only_node(NodeId(1));
    for round in 0..3 {
        assert!(machine.try_alloc(only).is_err(), "round {round}");
        assert_eq!(of_node_1().limits.high_max, 0);
        host::run_as(1);
        // CPU 1 is served from afar, and from its own pageset of that zone.
        drop(machine.try_alloc(Request::new(Order::ZERO)).unwrap());
        let parked = machine.parked_frames();
        assert!(parked > 0);
        drop(machine.try_alloc(Request::new(Order::ZERO)).unwrap());
        assert_eq!(machine.parked_frames(), parked);
        host::run_as(0);
        machine.hot_add(late(far, far + SECTION)).unwrap();
        machine.check().unwrap();
        assert_eq!(of_node_1().limits.high_max, 42);
        host::run_as(1);
        let near = machine.try_alloc(Request::new(Order::ZERO)).unwrap();
        assert_eq!(machine.node_of(near.pfn()), Some(NodeId(1)));
        drop(near);
        host::run_as(0);
        // What CPU 1 parks of it goes with the section.
        assert!(of_node_1().parked > 0);
        let gone = machine.hot_remove(range(far, far + SECTION), |_| Moved::Unmovable);
        assert_eq!(gone.unwrap().frames().frames(), SECTION);
        assert_eq!(of_node_1().parked, 0);
        machine.check().unwrap();
    }
    assert_eq!(machine.zone_of(Pfn(far)), Some(ZoneKind::Normal));
}

/// The frame table knows a section's frames from the moment that it is added: they can be charged and listed.
#[test]
fn frames_of_added_sections_are_charged_and_listed_like_others() {
    let mut map = map();
    let config = MmConfig::new(1, 2);
    let mm = Mm::new(memory(&mut map), &config).unwrap();
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let alloc = mm.allocator();
    let charge = || {
        let block = Request::new(Order::new(14).unwrap()).ignore_watermarks();
        let pages = mm.try_alloc(block).unwrap();
        let folio = pages.try_charge_to(&mm, group).map_err(|e| e.0).unwrap();
        assert_eq!(folio.add_to_lru(Backing::Anon), Ok::<(), LruError>(()));
        folio
    };
    let boot: Vec<_> = (0..4).map(|_| charge()).collect();
    for _ in 0..3 {
        alloc.hot_add(late(LATER, LATER_2)).unwrap();
        let added: Vec<_> = (0..2).map(|_| charge()).collect();
        assert!(added.iter().all(|folio| folio.pfn() >= Pfn(LATER)));
        mm.drain_lru();
        mm.check().unwrap();
        drop(added);
        mm.check().unwrap();
        drop(
            alloc
                .hot_remove(range(LATER, LATER_2), |_| Moved::Unmovable)
                .unwrap(),
        );
        mm.check().unwrap();
    }
    drop(boot);
    mm.check().unwrap();
}
