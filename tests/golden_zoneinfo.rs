//! Zones, watermarks, reserves and pagesets equal Linux's, on seven machines.

#[path = "../examples/common/capture.rs"]
mod capture;
#[path = "common/captures.rs"]
mod captures;
#[path = "../examples/common/check.rs"]
mod check;
#[path = "../examples/common/describe.rs"]
mod describe;
#[path = "../examples/common/device_tree.rs"]
mod device_tree;
#[path = "common/host.rs"]
mod host;
#[path = "../examples/common/limits.rs"]
mod limits;
#[path = "../examples/common/machine.rs"]
mod machine;
#[path = "../examples/common/memory_map.rs"]
mod memory_map;

use capture::{Capture, Zone, parse_zoneinfo};
use captures::CAPTURES;
use describe::{Columns, describe};
use framekeeper::node::formulas::stat_threshold;
use framekeeper::{FrameRange, NodeId, Pfn, ZoneKind};
use host::Host;
use machine::Machine;
use proptest::prelude::*;

#[test]
fn zones_start_and_span_where_linux_puts_them() {
    for (name, text) in CAPTURES {
        let capture = Capture::parse(text).unwrap();
        let machine = Machine::from_capture(&capture).unwrap();
        let mut compared = 0;
        for zone in machine.zones() {
            let linux = capture
                .zones
                .iter()
                .find(|linux| linux.node == zone.node && linux.name == zone.kind.to_string())
                .unwrap();
            let start = linux.start_pfn.unwrap_or(0);
            let span = FrameRange::new(Pfn(start), Pfn(start + linux.spanned));
            if linux.present != 0 {
                assert_eq!(zone.span, span, "{name} node {} {}", zone.node, zone.kind);
            }
            assert_eq!(zone.span.frames(), linux.spanned, "{name} {}", zone.kind);
            assert_eq!(zone.present, linux.present, "{name} {}", zone.kind);
            compared += 1;
        }
        let nodes = capture.nodes.len();
        assert_eq!(compared, nodes * ZoneKind::ALL.len(), "{name}");
    }
}

#[test]
fn counters_may_lag_as_far_as_linux_says() {
    for (name, text) in CAPTURES {
        let capture = Capture::parse(text).unwrap();
        let mut compared = 0;
        for zone in &capture.zones {
            let ours = stat_threshold(capture.cpus, zone.managed << 12);
            for pageset in &zone.pagesets {
                let linux = pageset.stat_threshold.unwrap();
                assert_eq!(u64::from(ours), linux, "{name} {} {}", zone.node, zone.name);
                compared += 1;
            }
        }
        assert!(compared > 0, "{name}");
    }
}

#[test]
fn a_node_without_cpus_divides_by_all_of_them() {
    let text = "==NPROC==\n4\n==NODECPUS==\nnode0 cpus 0-3 distance 10 20\nnode1 cpus  distance 20 10\n\
        ==ZONEINFO==\nNode 0, zone DMA\nmin 0\nlow 0\nhigh 0\nspanned 0\npresent 0\nmanaged 0\n";
    let capture = Capture::parse(text).unwrap();
    assert_eq!(capture.nodes[1].cpus, []);
    let machine = Machine::from_capture(&capture).unwrap();
    assert_eq!([0, 1, 2].map(|node| machine.cpus_for_limits(node)), [4; 3]);
}

#[test]
fn every_value_that_a_capture_determines_equals_linuxs() {
    // By capture: nodes, zones with memory, CPUs.
    let shapes = [
        (1, 2, 1),
        (1, 2, 2),
        (1, 3, 2),
        (1, 3, 8),
        (2, 4, 4),
        (2, 4, 8),
    ];
    for ((name, text), (nodes, populated, cpus)) in CAPTURES.into_iter().zip(shapes) {
        let capture = Capture::parse(text).unwrap();
        let result = check::compare(&capture).unwrap();
        assert_eq!(result.differences, [], "{name}");
        // Of each of a node's four zones: spanned, present, reserves of five columns. Of those with memory: the start,
        // three watermarks, and two values of each CPU's pageset.
        let values = nodes * 4 * (2 + 5) + populated * (1 + 3 + 2 * cpus);
        assert_eq!(result.equal, values, "{name}");
    }
}

#[test]
fn a_capture_without_a_firmware_list_is_a_machine_of_its_zones() {
    let text = include_str!("data/linux-live/linux-6.18-24g-c2.txt");
    let machine = Machine::read(text.as_bytes()).unwrap();
    let shown = Capture::parse(text).unwrap();
    let zones = machine.zones();
    assert!(zones.len() >= 3);
    for zone in zones.iter().filter(|zone| zone.present > 0) {
        let name = zone.kind.to_string();
        let linux = shown.zones.iter().find(|linux| linux.name == name).unwrap();
        assert_eq!((zone.present, zone.free), (linux.present, linux.managed));
    }
}

#[test]
fn a_live_machines_pagesets_and_reserves_follow_from_what_it_shows() {
    let text = include_str!("data/linux-live/linux-6.18-24g-c2.txt");
    let capture = Capture::parse(text).unwrap();
    let result = check::compare(&capture).unwrap();
    assert_eq!(result.differences, []);
    // Four zones' reserves of five columns, and three values of two pagesets of three zones.
    assert_eq!(result.equal, 4 * 5 + 3 * 2 * 3);
}

/// A capture in which one number is changed.
fn changed(from: &str, to: &str) -> check::Comparison {
    let (_, text) = CAPTURES[4];
    assert_eq!(text.matches(from).count(), 1, "{from}");
    let capture = Capture::parse(&text.replace(from, to)).unwrap();
    check::compare(&capture).unwrap()
}

#[test]
fn a_changed_value_is_found_and_named() {
    for (from, to, zone, value, linux, ours) in [
        (
            "min      5565",
            "min      5566",
            "node 0 DMA32",
            "min",
            5566,
            5565,
        ),
        (
            "low      7011",
            "low      7010",
            "node 0 Normal",
            "low",
            7010,
            7011,
        ),
        (
            "high     16964",
            "high     1",
            "node 1 Normal",
            "high",
            1,
            16_964,
        ),
        (
            "(0, 0, 1983, 1983, 1983)",
            "(0, 0, 1984, 1983, 1983)",
            "node 0 DMA32",
            "protection[2]",
            1984,
            1983,
        ),
        (
            "spanned  4095",
            "spanned  4096",
            "node 0 DMA",
            "spanned",
            4096,
            4095,
        ),
        (
            "present  520159",
            "present  520160",
            "node 0 DMA32",
            "present",
            520_160,
            520_159,
        ),
        (
            "start_pfn:           1572864",
            "start_pfn:           1",
            "node 1 Normal",
            "start_pfn",
            1,
            1_572_864,
        ),
        (
            "count: 2823\n              high:  7068",
            "count: 2823\n              high:  7",
            "node 1 Normal",
            "cpu 0 high",
            7,
            7068,
        ),
        (
            "count: 2823\n              high:  7068\n              batch: 63",
            "count: 2823\n high: 7068\n batch: 62",
            "node 1 Normal",
            "cpu 0 batch",
            62,
            63,
        ),
    ] {
        let result = changed(from, to);
        let [difference] = &result.differences[..] else {
            panic!("{from}: {result}");
        };
        assert_eq!(
            (difference.zone.as_str(), difference.value.as_str()),
            (zone, value)
        );
        assert_eq!((difference.linux, difference.ours), (linux, Some(ours)));
        assert!(result.to_string().ends_with("values equal, 1 differ"));
    }
}

#[test]
fn a_zone_of_a_kind_that_this_crate_has_not_is_a_difference() {
    let result = changed("Node 1, zone      DMA\n", "Node 1, zone  HighMem\n");
    assert_eq!(result.differences.len(), 1);
    assert!(result.to_string().contains("has no such zone"));
}

/// The machine's zones as `describe` prints them, read back.
fn described(machine: &Machine, columns: Columns) -> Vec<Zone> {
    let allocator = machine
        .allocator::<Host>(|_| NodeId(0), host::storage)
        .unwrap();
    let text = describe(machine, &allocator, columns).unwrap();
    // The last column of each line, the name being what comes before the first number.
    let last = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().is_ok();
        match words.iter().position(|word| number(word)) {
            Some(at) if !line.starts_with("Node") && !line.contains("cpu:") => {
                format!("{} {}", words[..at].join(" "), words[words.len() - 1])
            }
            _ => line.to_owned(),
        }
    };
    let lines: Vec<String> = text
        .lines()
        .skip_while(|line| !line.starts_with("Node"))
        .map(last)
        .collect();
    let without_protection = lines
        .iter()
        .map(String::as_str)
        .filter(|line| !line.contains("protection"));
    parse_zoneinfo((1..).zip(without_protection)).unwrap()
}

/// A virtual machine of allocator.md 7.1: 2 CPUs, 3 GiB below the line, 1 GiB above it.
const VIRTUAL_MACHINE: &[u8] =
    b"0x1000 0x9ffff usable\n0x100000 0xbfffffff usable\n0x100000000 0x13fffffff usable\n";

#[test]
fn what_is_printed_reads_back_as_the_zones_of_the_allocator() {
    let mut machine = Machine::read(VIRTUAL_MACHINE).unwrap();
    machine.set_cpus(2);
    for columns in [Columns::After, Columns::EarlyAndAfter] {
        let zones = described(&machine, columns);
        let sizes: Vec<_> = zones
            .iter()
            .map(|zone| (zone.start_pfn, zone.spanned, zone.managed))
            .collect();
        assert_eq!(
            sizes,
            [
                (Some(1), 4095, 3999),
                (Some(4096), 1_044_480, 782_336),
                (Some(1 << 20), 262_144, 262_144),
                (None, 0, 0)
            ]
        );
        let normal = &zones[2];
        assert_eq!([normal.min, normal.low, normal.high], [511, 773, 1035]);
        let pageset = &normal.pagesets[1];
        assert_eq!(
            (pageset.batch, pageset.high_min, pageset.high_max),
            (63, Some(386), Some(16_384))
        );
    }
}

#[test]
fn early_limits_are_those_of_the_first_section() {
    let mut machine = Machine::read(VIRTUAL_MACHINE).unwrap();
    machine.set_cpus(2);
    let allocator = machine
        .allocator::<Host>(|_| NodeId(0), host::storage)
        .unwrap();
    let text = describe(&machine, &allocator, Columns::EarlyAndAfter).unwrap();
    let normal = text
        .split("Node ")
        .find(|zone| zone.starts_with("0, zone   Normal"))
        .unwrap();
    let value = |name: &str| {
        let line = normal
            .lines()
            .find(|line| line.trim_start().starts_with(name))
            .unwrap();
        let numbers: Vec<u64> = line
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        (numbers[0], numbers[1])
    };
    // allocator.md 7.1: 7, 28, 2048 before; 63, low over 2, 16384 after. Watermarks are 0 before.
    assert_eq!(value("managed"), (32_768, 262_144));
    assert_eq!(value("low"), (0, 773));
    assert_eq!(value("batch:"), (7, 63));
    assert_eq!(value("high_min:"), (28, 386));
    assert_eq!(value("high_max:"), (2_048, 16_384));
    // A zone below the highest is complete from the start.
    assert!(text.contains("managed  782336    782336"));
}

#[test]
fn cpus_given_by_hand_are_spread_over_the_nodes_that_had_some() {
    let (_, text) = CAPTURES[4];
    let mut machine = Machine::read(text.as_bytes()).unwrap();
    machine.set_cpus(7);
    assert_eq!([0, 1].map(|node| machine.cpus_for_limits(node)), [3, 4]);
    assert_eq!([0, 2, 3, 6].map(|cpu| machine.node_of(cpu).0), [0, 0, 1, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Lines are dropped, doubled, cut, or get a character of another line.
    #[test]
    fn a_damaged_capture_never_panics(
        which in 0..CAPTURES.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..4, any::<prop::sample::Index>()), 1..12),
    ) {
        let mut lines: Vec<String> = CAPTURES[which].1.lines().map(str::to_owned).collect();
        for (line, change, at) in changes {
            let line = line.index(lines.len());
            match change {
                0 => drop(lines.remove(line)),
                1 => lines.insert(line, lines[at.index(lines.len())].clone()),
                2 => {
                    let length = at.index(lines[line].len() + 1);
                    lines[line].truncate(length);
                }
                _ => {
                    let length = lines[line].len() + 1;
                    lines[line].insert(at.index(length), ['9', '-', ']', 'x'][at.index(4)]);
                }
            }
        }
        if let Ok(capture) = Capture::parse(&lines.join("\n")) {
            let _ = check::compare(&capture);
        }
    }
}
