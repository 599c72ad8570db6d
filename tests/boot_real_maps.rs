//! Memory maps of real machines: each is read, and gives the frames that were counted by other means.

use framekeeper::NodeId;
use framekeeper::boot::{BootMap, MapError};

#[path = "../examples/common/capture.rs"]
mod capture;
#[path = "common/captures.rs"]
mod captures;
#[path = "../examples/common/memory_map.rs"]
mod memory_map;

use capture::Capture;
use captures::CAPTURES;
use memory_map::{MemoryMap, Problem, TextError};

const SHIFT: u32 = 12;

fn boot_map(text: &str) -> BootMap {
    MemoryMap::parse(text).unwrap().boot_map().unwrap()
}

fn free_frames(map: &BootMap) -> Vec<(u64, u64)> {
    map.free_frames(SHIFT)
        .map(|(_, frames)| (frames.start().0, frames.end().0))
        .collect()
}

/// Usable frames of each node.
fn present(map: &BootMap) -> Vec<u64> {
    let mut nodes = Vec::new();
    for (NodeId(node), frames) in map.usable_frames(SHIFT) {
        let node = usize::from(node);
        nodes.resize(nodes.len().max(node + 1), 0);
        nodes[node] += frames.frames();
    }
    nodes
}

#[test]
fn the_firmware_maps_of_three_machines_give_their_frames() {
    let map = boot_map(include_str!("data/e820/laptop-3g.txt"));
    assert_eq!(free_frames(&map), [(1, 0x9d), (0x100, 0xbeeb0)]);
    assert_eq!(map.free_frame_count(SHIFT), 781_900);
    assert_eq!(map.reserved().count(), 9, "{map}");

    let map = boot_map(include_str!("data/e820/netbook-3g-fragmented.txt"));
    assert_eq!(
        free_frames(&map),
        [(1, 0x55), (0x60, 0x98), (0x100, 0xbd222)]
    );
    assert_eq!(map.free_frame_count(SHIFT), 774_574);

    let map = boot_map(include_str!("data/e820/virtualbox-4g.txt"));
    assert_eq!(
        free_frames(&map),
        [(1, 0x9f), (0x100, 0xdfff0), (0x10_0000, 0x12_0000)]
    );
    assert_eq!(map.free_frame_count(SHIFT), 1_048_462);
}

#[test]
fn a_captured_machine_has_the_present_frames_that_its_own_zoneinfo_shows() {
    let expected: [&[u64]; 6] = [
        &[32_637],
        &[130_941],
        &[1_048_445],
        &[2_097_021],
        &[1_048_445, 1_048_576],
        &[4_194_173, 4_194_304],
    ];
    for ((name, text), expected) in CAPTURES.into_iter().zip(expected) {
        let capture = Capture::parse(text).unwrap();
        let map: BootMap = capture.memory.boot_map().unwrap();
        assert_eq!(present(&map), expected, "{name}");
        for (node, &frames) in expected.iter().enumerate() {
            let zones = capture
                .zones
                .iter()
                .filter(|zone| usize::from(zone.node) == node);
            assert_eq!(
                zones.clone().map(|zone| zone.present).sum::<u64>(),
                frames,
                "{name}"
            );
        }
    }
}

#[test]
fn a_captured_machine_has_the_ranges_that_linux_printed_at_boot() {
    for (name, text) in CAPTURES {
        let capture = Capture::parse(text).unwrap();
        let map: BootMap = capture.memory.boot_map().unwrap();
        let usable: Vec<_> = map
            .usable_frames(SHIFT)
            .map(|(node, frames)| (node.0, frames.start().0 << SHIFT, frames.end().0 << SHIFT))
            .collect();
        let early: Vec<_> = capture
            .memory
            .early
            .iter()
            .map(|range| (range.node, range.first, range.last + 1))
            .collect();
        assert_eq!(usable, early, "{name}");
    }
}

#[test]
fn a_capture_is_read_to_the_last_pageset() {
    for (name, text) in CAPTURES {
        let capture = Capture::parse(text).unwrap();
        assert_eq!(capture.command_line, "console=ttyS0 panic=-1", "{name}");
        let listed: usize = capture.nodes.iter().map(|node| node.cpus.len()).sum();
        assert_eq!(listed, capture.cpus as usize, "{name}");
        for zone in &capture.zones {
            let populated = zone.present != 0;
            let pagesets = if populated { capture.cpus as usize } else { 0 };
            assert_eq!(zone.pagesets.len(), pagesets, "{name} {}", zone.name);
            assert_eq!(zone.start_pfn.is_some(), populated, "{name} {}", zone.name);
            assert_eq!(zone.protection.len(), 5);
            assert!(zone.min <= zone.low && zone.low <= zone.high);
            assert!(zone.managed <= zone.present && zone.present <= zone.spanned);
        }
    }
    let (_, text) = CAPTURES[4];
    let capture = Capture::parse(text).unwrap();
    assert_eq!(
        (capture.min_free_kib, capture.scale_factor),
        (Some(90_112), Some(10))
    );
    assert_eq!(capture.nodes[1].cpus, [2, 3]);
    assert_eq!(capture.nodes[1].distances, [20, 10]);
    let zone = &capture.zones[1];
    assert_eq!((zone.node, zone.name.as_str()), (0, "DMA32"));
    assert_eq!(
        (zone.min, zone.low, zone.high, zone.boost),
        (5565, 6956, 8347, 0)
    );
    assert_eq!(
        (zone.spanned, zone.present, zone.managed),
        (1_044_480, 520_159, 503_775)
    );
    assert_eq!(zone.protection, [0, 0, 1983, 1983, 1983]);
    let last = &zone.pagesets[3];
    assert_eq!(
        (last.cpu, last.count, last.high, last.batch),
        (3, 268, 3478, 63)
    );
    assert_eq!((last.high_min, last.stat_threshold), (None, Some(30)));
}

#[test]
fn a_live_machine_shows_both_ends_of_a_pagesets_limit() {
    let text = include_str!("data/linux-live/linux-6.18-24g-c2.txt");
    let capture = Capture::parse(text).unwrap();
    let zone = &capture.zones[2];
    assert_eq!((zone.name.as_str(), zone.promo), ("Normal", Some(24_712)));
    assert_eq!(zone.start_pfn, Some(1 << 20));
    let pageset = &zone.pagesets[1];
    assert_eq!((pageset.count, pageset.high), (6889, 8752));
    assert_eq!(
        (pageset.high_min, pageset.high_max),
        (Some(8752), Some(225_280))
    );
    assert_eq!((capture.cpus, capture.memory.ranges.len()), (2, 0));
}

#[test]
fn iomem_is_read_like_any_other_list() {
    let map = boot_map(
        "00000000-00000fff : Reserved\n\
         00001000-0009fbff : System RAM\n\
         00100000-07fdefff : System RAM\n\
         \x20 01000000-01ffffff : Kernel code\n",
    );
    assert_eq!(
        free_frames(&map),
        [(1, 0x9f), (0x100, 0x1000), (0x2000, 0x7fdf)]
    );
}

#[test]
fn memory_that_no_node_claims_is_on_node_0() {
    let map = boot_map(
        "[    0.000000] BIOS-e820: [mem 0x100000-0x4fffff] usable\n\
         [    0.000001] ACPI: SRAT: Node 3 PXM 7 [mem 0x200000-0x2fffff]\n\
         [    0.000002] something that is not about memory\n",
    );
    let nodes: Vec<_> = map
        .usable()
        .map(|region| (region.node().unwrap().0, region.start().0))
        .collect();
    assert_eq!(nodes, [(0, 0x10_0000), (3, 0x20_0000), (0, 0x30_0000)]);
}

#[test]
fn bad_text_is_an_error_that_names_the_line() {
    let number = |text: &str| Problem::Number(text.to_owned());
    for (text, line, problem) in [
        ("# fine\n\nhello\n", 3, Problem::Unknown),
        ("0x1000", 1, Problem::Missing("the last byte")),
        ("0x1000 0x1fff", 1, Problem::Missing("the kind of range")),
        ("0x1000 1fffz usable", 1, number("1fffz")),
        ("0x1000 -1 usable", 1, number("-1")),
        ("0x 0x1000 usable", 1, number("0x")),
        (
            "0x10000000000000000 0x1 usable",
            1,
            number("0x10000000000000000"),
        ),
        ("0x2000 0x1fff usable", 1, Problem::Reversed),
        (
            "\nBIOS-e820: [mem 0x1000] usable",
            2,
            Problem::Missing("the last byte"),
        ),
        (
            "BIOS-e820: 0x1000-0x2000 usable",
            1,
            Problem::Missing("[mem FIRST-LAST]"),
        ),
        (
            "[ 0.1] SRAT: Node 256 PXM 0 [mem 0x0-0x1]",
            1,
            number("256"),
        ),
        ("[ 0.1] SRAT: Node x PXM 0 [mem 0x0-0x1]", 1, number("")),
        (
            "[ 0.1] node 0: [mem 0x0]",
            1,
            Problem::Missing("the last byte"),
        ),
        ("1000 : System RAM", 1, Problem::Missing("the last byte")),
        ("q-1000 : System RAM", 1, number("q")),
    ] {
        let error = MemoryMap::parse(text).unwrap_err();
        assert_eq!(error, TextError { line, problem }, "{text:?}");
    }
}

#[test]
fn a_range_that_the_map_refuses_names_its_line() {
    for last in ["0x0010000000000000", "0xffffffffffffffff"] {
        let text = format!("0x1000 0x1fff usable\n0x0 {last} usable\n");
        let parsed = MemoryMap::parse(&text).unwrap();
        let error = parsed.boot_map::<8>().unwrap_err();
        assert_eq!(error.line, 2);
        assert!(matches!(
            error.problem,
            Problem::Refused(MapError::BeyondLimit { .. })
        ));
    }
    let many: String = (0..9)
        .map(|i| format!("{:#x} {:#x} usable\n", i * 8192, i * 8192 + 4095))
        .collect();
    let error = MemoryMap::parse(&many)
        .unwrap()
        .boot_map::<8>()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 9: more than 8 usable regions: give the boot map a larger N"
    );
}

#[test]
fn a_bad_capture_is_an_error_that_names_the_line() {
    let zone = "==ZONEINFO==\nNode 0, zone DMA\n";
    for (text, line) in [
        (String::new(), 0),
        ("==NPROC==\n".to_owned(), 1),
        ("==NPROC==\ntwo\n".to_owned(), 2),
        ("==MINFREE==\n1\n".to_owned(), 1),
        ("==MINFREE==\n1\nx\n".to_owned(), 3),
        ("==NODECPUS==\nnode0\n".to_owned(), 2),
        ("==NODECPUS==\nnode0 cpus 3-1 distance 10\n".to_owned(), 2),
        (
            "==NODECPUS==\nnode0 cpus 0-4294967295 distance 10\n".to_owned(),
            2,
        ),
        (
            "==NODECPUS==\nnode0 cpus 0 distance 10\nnode0 cpus 1 distance 10\n".to_owned(),
            3,
        ),
        ("==ZONEINFO==\n managed 5\n".to_owned(), 2),
        ("==ZONEINFO==\nNode 0 zone DMA\n".to_owned(), 2),
        (format!("{zone}Node 0, zone DMA\n"), 3),
        (format!("{zone} managed 0x5\n"), 3),
        (format!("{zone} managed\n"), 3),
        (format!("{zone} managed 1099511627777\n"), 3),
        (format!("{zone} protection: (1, b)\n"), 3),
        (format!("{zone} managed 5\n"), 2),
        (format!("{zone} count: 5\n"), 3),
        (
            format!("{zone} cpu: 0\n count: 99999999999999999999999\n"),
            4,
        ),
    ] {
        let error = Capture::parse(&text).unwrap_err();
        assert_eq!(error.line, line, "{text:?}: {error}");
    }
}
