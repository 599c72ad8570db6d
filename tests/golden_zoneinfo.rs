//! Zones, watermarks, reserves and pagesets equal Linux's, on seven machines.

#[path = "../examples/common/capture.rs"]
mod capture;
#[path = "../examples/common/device_tree.rs"]
mod device_tree;
#[path = "../examples/common/machine.rs"]
mod machine;
#[path = "../examples/common/memory_map.rs"]
mod memory_map;

use capture::Capture;
use framekeeper::{FrameRange, Pfn, ZoneKind};
use machine::Machine;

macro_rules! data {
    ($name:literal) => {
        ($name, include_str!(concat!("data/", $name)))
    };
}

const CAPTURES: [(&str, &str); 6] = [
    data!("linux-zoneinfo/linux-6.1-m128c1.txt"),
    data!("linux-zoneinfo/linux-6.1-m512c2.txt"),
    data!("linux-zoneinfo/linux-6.1-m4gc2.txt"),
    data!("linux-zoneinfo/linux-6.1-m8gc8.txt"),
    data!("linux-zoneinfo/linux-6.1-n2x4gc2.txt"),
    data!("linux-zoneinfo/linux-6.1-n2x16gc4.txt"),
];

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
fn a_node_without_cpus_divides_by_all_of_them() {
    let text = "==NPROC==\n4\n==NODECPUS==\nnode0 cpus 0-3 distance 10 20\nnode1 cpus  distance 20 10\n\
        ==ZONEINFO==\nNode 0, zone DMA\nmin 0\nlow 0\nhigh 0\nspanned 0\npresent 0\nmanaged 0\n";
    let capture = Capture::parse(text).unwrap();
    assert_eq!(capture.nodes[1].cpus, []);
    let machine = Machine::from_capture(&capture).unwrap();
    assert_eq!([0, 1, 2].map(|node| machine.cpus_for_limits(node)), [4; 3]);
}
