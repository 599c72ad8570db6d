//! The boot map: whatever the firmware says is normalised, whatever is wrong is refused without a trace.

use framekeeper::boot::{BootMap, MapError, PHYS_LIMIT, RegionKind, TAKE_FLOOR};
use framekeeper::{FrameRange, NodeId, Order, Pfn, PhysAddr};
use proptest::collection::vec;
use proptest::prelude::*;

#[path = "common/boot_model.rs"]
mod boot_model;

use boot_model::{BASES, Op, Pair, WINDOW};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const FRAME: u64 = 4096;
const SHIFT: u32 = 12;

/// Half of the ranges have coarse ends, so that ranges often touch, nest and end together.
fn range(base: u64) -> impl Strategy<Value = (u64, u64)> {
    let grain = prop_oneof![Just(1), Just(WINDOW / 8)];
    let inside = (grain, 0..=WINDOW, 0..=WINDOW).prop_map(move |(grain, a, b)| {
        let (a, b) = (a / grain * grain, b / grain * grain);
        (base + a.min(b), a.abs_diff(b))
    });
    let refused = prop_oneof![
        (PHYS_LIMIT.0 - 8..=u64::MAX, 9..=u64::MAX),
        (base..base + WINDOW, PHYS_LIMIT.0..=u64::MAX),
    ];
    prop_oneof![12 => inside, 1 => refused]
}

fn op(base: u64) -> impl Strategy<Value = Op> {
    let align = prop_oneof![8 => (0..8u32).prop_map(|log| 1 << log), 1 => 0..9u64];
    let limit = base..base + WINDOW + 1;
    prop_oneof![
        4 => (0..3u8, range(base)).prop_map(|(node, (at, bytes))| Op::Add(node, at, bytes)),
        3 => range(base).prop_map(|(at, bytes)| Op::Reserve(at, bytes)),
        2 => range(base).prop_map(|(at, bytes)| Op::Free(at, bytes)),
        2 => (0..200u64, align.clone()).prop_map(|(bytes, align)| Op::Take(bytes, align)),
        1 => (limit, proptest::option::of(0..3u8), 0..200u64, align)
            .prop_map(|(limit, node, bytes, align)| Op::TakeBelow(limit, node, bytes, align)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_leave_the_map_equal_to_a_map_of_single_bytes(
        (base, ops) in prop_oneof![Just(BASES[0]), Just(BASES[1])]
            .prop_flat_map(|base| (Just(base), vec(op(base), 1..40)))
    ) {
        let mut roomy = Pair::<128>::new(base);
        let mut tight = Pair::<3>::new(base);
        for op in ops {
            roomy.step(op);
            tight.step(op);
        }
    }

    #[test]
    fn the_order_of_regions_of_one_node_does_not_matter(
        regions in vec((0..WINDOW, 0..WINDOW), 1..20).prop_shuffle(),
    ) {
        let mut sorted = regions.clone();
        sorted.sort_unstable();
        let build = |regions: &[(u64, u64)]| {
            let mut map: BootMap = BootMap::new();
            for &(base, bytes) in regions {
                map.add(NodeId(0), PhysAddr(base), bytes).unwrap();
            }
            map
        };
        prop_assert_eq!(build(&regions), build(&sorted));
    }
}

fn free<const N: usize>(map: &BootMap<N>) -> Vec<(u8, u64, u64)> {
    map.free_frames(SHIFT)
        .map(|(node, frames)| (node.0, frames.start().0, frames.end().0))
        .collect()
}

/// Every other frame from `first` on.
fn every_other(first: u64, count: u64) -> impl Iterator<Item = PhysAddr> {
    (0..count).map(move |i| PhysAddr((first + 2 * i) * FRAME))
}

/// misuse 1: no regions; only zero-length regions; only reserved ones.
#[test]
fn a_map_without_a_free_frame_is_an_error_when_it_is_used() {
    let mut map: BootMap = BootMap::new();
    assert_eq!(map.validate(SHIFT), Err(MapError::Empty));
    map.add(NodeId(0), PhysAddr(MIB), 0).unwrap();
    map.reserve(PhysAddr(MIB), 0).unwrap();
    map.free(PhysAddr(MIB), 0).unwrap();
    map.add(NodeId(0), PhysAddr(u64::MAX), 0).unwrap();
    assert_eq!(map, BootMap::new());
    map.reserve(PhysAddr(0), 64 * MIB).unwrap();
    assert_eq!(map.validate(SHIFT), Err(MapError::Empty));
    assert_eq!(map.frame_span(SHIFT), FrameRange::default());
    map.add(NodeId(0), PhysAddr(MIB), MIB).unwrap();
    assert_eq!(map.validate(SHIFT), Err(MapError::Empty));
    assert_eq!(free(&map), []);
    let (bytes, align) = (1, 1);
    assert_eq!(
        map.take(bytes, align),
        Err(MapError::NoSpace { bytes, align })
    );
}

/// misuse 2: regions unsorted, overlapping, duplicate, touching, nested; usable over reserved.
#[test]
fn any_order_and_overlap_is_normalised_and_reserved_wins() {
    let mut map: BootMap = BootMap::new();
    map.reserve(PhysAddr(4 * MIB), MIB).unwrap();
    for (node, base, bytes) in [
        (0, 8 * MIB, 8 * MIB), // unsorted
        (0, 2 * MIB, 4 * MIB),
        (0, 2 * MIB, 4 * MIB),  // duplicate
        (0, 3 * MIB, MIB),      // nested
        (0, 5 * MIB, 3 * MIB),  // overlapping on the left, touching on the right
        (1, 15 * MIB, 2 * MIB), // overlapping another node: the first keeps its part
    ] {
        map.add(NodeId(node), PhysAddr(base), bytes).unwrap();
    }
    map.reserve(PhysAddr(4 * MIB), MIB).unwrap();
    assert_eq!(
        free(&map),
        [(0, 512, 1024), (0, 1280, 4096), (1, 4096, 4352)]
    );
    assert_eq!(
        map.to_string(),
        "usable   0x0000000000200000..0x0000000001000000 node 0 (14680064 bytes)\n\
         usable   0x0000000001000000..0x0000000001100000 node 1 (1048576 bytes)\n\
         reserved 0x0000000000400000..0x0000000000500000 (1048576 bytes)\n\
         15728640 bytes usable, 14680064 of them free"
    );
}

/// misuse 3: region end past 2^64 or past the physical limit; base + size overflows.
#[test]
fn a_region_that_ends_too_high_is_named_and_changes_nothing() {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(MIB), MIB).unwrap();
    map.reserve(PhysAddr(MIB), KIB).unwrap();
    let before = map.clone();
    let limit = PHYS_LIMIT.0;
    for (base, bytes) in [
        (u64::MAX, 2),
        (MIB, u64::MAX),
        (u64::MAX - FRAME + 1, FRAME),
    ] {
        let error = Err(MapError::Overflow {
            base: PhysAddr(base),
            bytes,
        });
        assert_eq!(map.add(NodeId(0), PhysAddr(base), bytes), error);
        assert_eq!(map.reserve(PhysAddr(base), bytes), error);
        assert_eq!(map.free(PhysAddr(base), bytes), error);
    }
    for (base, bytes) in [(limit - FRAME, FRAME + 1), (limit, 1), (0, limit + 1)] {
        let error = Err(MapError::BeyondLimit {
            base: PhysAddr(base),
            bytes,
        });
        assert_eq!(map.add(NodeId(0), PhysAddr(base), bytes), error);
        assert_eq!(map.reserve(PhysAddr(base), bytes), error);
        assert_eq!(map.free(PhysAddr(base), bytes), error);
    }
    assert_eq!(map, before);
    let text = map
        .add(NodeId(0), PhysAddr(limit), 1)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("0x10000000000000") && text.contains("1 bytes"),
        "{text}"
    );
    map.add(NodeId(0), PhysAddr(limit - FRAME), FRAME).unwrap();
}

/// misuse 4: ends not page aligned.
#[test]
fn usable_memory_shrinks_to_whole_frames_and_reserved_memory_grows() {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(MIB + 1), MIB - 2).unwrap();
    assert_eq!(free(&map), [(0, 257, 511)]);
    map.reserve(PhysAddr(MIB + 64 * KIB - 1), 2).unwrap();
    assert_eq!(free(&map), [(0, 257, 271), (0, 273, 511)]);
    assert_eq!(map.free_frame_count(SHIFT), 14 + 238);
    assert_eq!(map.free_bytes(), MIB - 4);
}

/// misuse 5: more regions than fit.
#[test]
fn a_region_too_many_names_the_capacity_and_changes_nothing() {
    let mut map: BootMap<8> = BootMap::new();
    for base in every_other(16, 8) {
        map.add(NodeId(0), base, FRAME).unwrap();
        map.reserve(base, 1).unwrap();
    }
    let before = map.clone();
    let kind = RegionKind::Usable;
    let error = MapError::TooManyRegions { kind, capacity: 8 };
    assert_eq!(map.add(NodeId(0), PhysAddr(MIB), 1), Err(error));
    // The pieces between the regions of node 0 do not fit, even if one could go in.
    assert_eq!(map.add(NodeId(1), PhysAddr(0), MIB), Err(error));
    assert!(error.to_string().contains("8 usable regions"));
    let kind = RegionKind::Reserved;
    let error = Err(MapError::TooManyRegions { kind, capacity: 8 });
    assert_eq!(map.reserve(PhysAddr(MIB), 1), error);
    assert_eq!(map, before);
    // What merges still goes in.
    map.add(NodeId(0), PhysAddr(16 * FRAME), 15 * FRAME)
        .unwrap();
    map.reserve(PhysAddr(0), 2 * MIB).unwrap();
    assert_eq!((map.usable().count(), map.reserved().count()), (1, 1));
}

/// misuse 6: frame 0.
#[test]
fn frame_0_is_neither_handed_over_nor_taken_early() {
    for shift in [12, 14, 16] {
        let mut map: BootMap = BootMap::new();
        map.add(NodeId(0), PhysAddr(0), 4 << shift).unwrap();
        let frames: Vec<_> = map.free_frames(shift).collect();
        assert_eq!(frames, [(NodeId(0), FrameRange::new(Pfn(1), Pfn(4)))]);
        while let Ok(base) = map.take(512, 512) {
            assert!(base.pfn(shift) > Pfn(0));
            assert!(base >= TAKE_FLOOR);
        }
    }
}

/// misuse 18, before handover: memory is freed twice, or was never reserved.
#[test]
fn memory_that_is_not_reserved_cannot_be_freed_before_handover() {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(0), MIB).unwrap();
    let base = map.take(64 * KIB, FRAME).unwrap();
    map.free(base, 64 * KIB).unwrap();
    let before = map.clone();
    let bytes = 64 * KIB;
    assert_eq!(
        map.free(base, bytes),
        Err(MapError::NotReserved { base, bytes })
    );
    assert_eq!(map, before);
    map.reserve(base, FRAME).unwrap();
    let before = map.clone();
    assert_eq!(
        map.free(base, bytes),
        Err(MapError::NotReserved { base, bytes })
    );
    assert_eq!(map, before);
}

/// misuse 5: freeing the middle of a reserved region needs one region more.
#[test]
fn a_free_that_would_split_a_region_in_a_full_map_is_refused() {
    let mut map: BootMap<1> = BootMap::new();
    map.reserve(PhysAddr(MIB), MIB).unwrap();
    let before = map.clone();
    let error = MapError::TooManyRegions {
        kind: RegionKind::Reserved,
        capacity: 1,
    };
    assert_eq!(map.free(PhysAddr(MIB + KIB), KIB), Err(error));
    assert_eq!(map, before);
    map.free(PhysAddr(MIB), MIB - KIB).unwrap();
    assert_eq!(map.reserved().count(), 1);
}

#[test]
fn an_early_request_of_no_bytes_or_a_strange_alignment_is_refused() {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(0), 64 * MIB).unwrap();
    let before = map.clone();
    for (bytes, align) in [(0, 1), (1, 0), (1, 3), (1, u64::MAX)] {
        assert_eq!(
            map.take(bytes, align),
            Err(MapError::BadRequest { bytes, align })
        );
    }
    for (bytes, align) in [(u64::MAX, 1), (1, 1 << 63), (64 * MIB, 1)] {
        assert_eq!(
            map.take(bytes, align),
            Err(MapError::NoSpace { bytes, align })
        );
    }
    assert_eq!(map, before);
}

/// R26: the map's own record of a reservation must not need memory that is being reserved. It lies in the map
/// itself, so with one entry left and one hole the reservation succeeds, and one too many leaves the hole untouched.
#[test]
fn the_last_entry_serves_a_reservation_in_the_only_hole() {
    const N: usize = 128;
    let hole = 64 * MIB;
    let mut map: BootMap<N> = BootMap::new();
    map.add(NodeId(0), PhysAddr(0), 128 * MIB).unwrap();
    for i in 0..N as u64 - 2 {
        // MiBs with a free byte at the end, too short for anything; the hole comes after 64 of them.
        let base = if i < 64 { i } else { i + 1 } * MIB;
        map.reserve(PhysAddr(base), MIB - 1).unwrap();
    }
    map.reserve(PhysAddr(127 * MIB), MIB).unwrap();
    assert_eq!(map.reserved().count(), N - 1);

    // At the top of the hole a reservation merges with its neighbour; in the middle it takes the last entry.
    let free_before = map.free_bytes();
    assert_eq!(map.take(FRAME, FRAME), Ok(PhysAddr(hole + MIB - FRAME)));
    assert_eq!(map.reserved().count(), N - 1);
    let below = PhysAddr(hole + 512 * KIB);
    assert_eq!(
        map.take_below(below, None, FRAME, FRAME),
        Ok(PhysAddr(below.0 - FRAME))
    );
    assert_eq!(map.reserved().count(), N);
    assert_eq!(map.free_bytes(), free_before - 2 * FRAME);

    let before = map.clone();
    let kind = RegionKind::Reserved;
    let error = MapError::TooManyRegions { kind, capacity: N };
    let below = PhysAddr(hole + 256 * KIB);
    assert_eq!(map.take_below(below, None, FRAME, FRAME), Err(error));
    assert_eq!(map.reserve(PhysAddr(hole + KIB), KIB), Err(error));
    assert_eq!(map, before);
}

/// R27: frame 0 has no lowest set bit. A map never hands frame 0 over, so the widest case is the range that starts
/// at 1; the order of a block at 0 is still defined.
#[test]
fn four_mib_from_address_0_are_cut_into_blocks_without_a_shift_overflow() {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(0), 4 * MIB).unwrap();
    let ten = Order::new(10).unwrap();
    let (_, frames) = map.free_frames(SHIFT).next().unwrap();
    let orders: Vec<_> = frames.blocks(ten).map(|(_, order)| order.get()).collect();
    assert_eq!(orders, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let whole = FrameRange::new(Pfn(0), Pfn(1024));
    assert!(whole.blocks(ten).eq([(Pfn(0), ten)]));
}

/// R22: three quarters of the first section are reserved for a crash kernel. Bytes and frames have different types
/// (`PhysAddr` and `Pfn`), and the free frames are those left.
#[test]
fn a_crash_kernel_reservation_leaves_the_rest_of_its_section_free() {
    let section = 128 * MIB;
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4096 * MIB), 4 * section)
        .unwrap();
    map.reserve(PhysAddr(4096 * MIB), section / 4 * 3).unwrap();
    let first = FrameRange::new(Pfn(1 << 20), Pfn((1 << 20) + 32768));
    let left: u64 = map
        .free_frames(SHIFT)
        .map(|(_, frames)| frames.intersect(first).frames())
        .sum();
    assert_eq!(left, 32768 / 4);
}

/// R24, before handover: what is freed early is free at handover, to the last frame.
#[test]
fn a_reservation_that_is_freed_before_handover_is_handed_over() {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(MIB), 512 * MIB).unwrap();
    let all = map.free_frame_count(SHIFT);
    map.reserve(PhysAddr(100 * MIB + 1), 140 * MIB).unwrap();
    assert_eq!(map.free_frame_count(SHIFT), all - 140 * 256 - 1);
    map.free(PhysAddr(100 * MIB + 1), 140 * MIB).unwrap();
    assert_eq!(map.free_frame_count(SHIFT), all);
}
