//! Device trees: those of two machines are read, damaged ones are refused.

use framekeeper::boot::BootMap;
use framekeeper::{NodeId, PhysAddr};
use proptest::prelude::*;

#[path = "../examples/common/device_tree.rs"]
mod device_tree;

use device_tree::{Item, TreeError, scan};

const ONE_NODE: &[u8] = include_bytes!("data/dtb/qemu-virt-512m-c2.dtb");
const TWO_NODES: &[u8] = include_bytes!("data/dtb/qemu-virt-6g-n2-c4.dtb");

fn items(blob: &[u8]) -> Result<Vec<Item>, TreeError> {
    let mut items = Vec::new();
    scan(blob, &mut |item| items.push(item))?;
    Ok(items)
}

#[test]
fn a_machine_with_one_node_has_its_memory_and_cpus() {
    assert_eq!(
        items(ONE_NODE).unwrap(),
        [
            Item::Memory {
                node: 0,
                base: 1 << 30,
                bytes: 512 << 20
            },
            Item::Cpu { node: 0 },
            Item::Cpu { node: 0 },
        ]
    );
}

#[test]
fn a_machine_with_two_nodes_has_both_whatever_their_order() {
    let items = items(TWO_NODES).unwrap();
    let mut map: BootMap = BootMap::new();
    for item in &items {
        if let &Item::Memory { node, base, bytes } = item {
            map.add(NodeId(node), PhysAddr(base), bytes).unwrap();
        }
    }
    let frames: Vec<_> = map
        .free_frames(12)
        .map(|(node, frames)| (node.0, frames.start().0, frames.end().0))
        .collect();
    assert_eq!(frames, [(0, 0x4_0000, 0xc_0000), (1, 0xc_0000, 0x1c_0000)]);
    let cpus: Vec<_> = items
        .iter()
        .filter(|item| matches!(item, Item::Cpu { .. }))
        .copied()
        .collect();
    assert_eq!(cpus, [0, 0, 1, 1].map(|node| Item::Cpu { node }));
}

/// A tree with a reservation in the header, one node under `/reserved-memory`, and memory that is off.
#[test]
fn reservations_are_found_in_both_places_and_disabled_memory_is_not() {
    let mut tree = Builder::default();
    tree.begin("");
    tree.property("#address-cells", &[0, 0, 0, 1]);
    tree.property("#size-cells", &[0, 0, 0, 1]);
    tree.begin("reserved-memory");
    tree.property("#address-cells", &[0, 0, 0, 2]);
    tree.property("#size-cells", &[0, 0, 0, 1]);
    tree.begin("firmware@100000");
    tree.property("reg", &[0, 0, 0, 1, 0, 0x10, 0, 0, 0, 0, 0x20, 0]);
    tree.end();
    tree.end();
    tree.begin("memory@0");
    tree.property("device_type", b"memory\0");
    tree.property(
        "reg",
        &[0, 0, 0, 0, 0x10, 0, 0, 0, 0x40, 0, 0, 0, 1, 0, 0, 0],
    );
    tree.end();
    tree.begin("memory@80000000");
    tree.property("device_type", b"memory\0");
    tree.property("status", b"disabled\0");
    tree.property("reg", &[0x80, 0, 0, 0, 1, 0, 0, 0]);
    tree.end();
    tree.end();
    let blob = tree.finish(&[(0x8000, 0x1000)]);
    assert_eq!(
        items(&blob).unwrap(),
        [
            Item::Reserved {
                base: 0x8000,
                bytes: 0x1000
            },
            Item::Reserved {
                base: 0x1_0010_0000,
                bytes: 0x2000
            },
            Item::Memory {
                node: 0,
                base: 0,
                bytes: 0x1000_0000
            },
            Item::Memory {
                node: 0,
                base: 0x4000_0000,
                bytes: 0x100_0000
            },
        ]
    );
}

#[test]
fn every_truncated_tree_is_refused() {
    for end in 0..ONE_NODE.len() {
        assert!(items(&ONE_NODE[..end]).is_err(), "{end}");
        let mut short = ONE_NODE[..end].to_vec();
        if let Some(size) = short.get_mut(4..8) {
            size.copy_from_slice(&(end as u32).to_be_bytes());
        }
        let _ = items(&short);
    }
}

#[test]
fn a_damaged_tree_names_the_byte() {
    assert_eq!(items(b"").unwrap_err().offset, 0);
    assert_eq!(items(&[0; 64]).unwrap_err().problem, "not a device tree");
    let mut tree = Builder::default();
    tree.begin("");
    let blob = tree.finish(&[]);
    assert_eq!(
        items(&blob).unwrap_err().problem,
        "the tree ends inside a node"
    );
    let mut tree = Builder::default();
    tree.begin("");
    tree.begin("memory@0");
    tree.property("device_type", b"memory\0");
    tree.property("reg", &[0; 7]);
    tree.end();
    tree.end();
    let error = items(&tree.finish(&[])).unwrap_err();
    assert!(error.to_string().contains("whole pairs"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_never_panic(changes in proptest::collection::vec((0..TWO_NODES.len(), any::<u8>()), 1..20)) {
        let mut blob = TWO_NODES.to_vec();
        for (at, byte) in changes {
            blob[at] = byte;
        }
        let _ = items(&blob);
    }
}

/// Writes a tree.
#[derive(Default)]
struct Builder {
    structure: Vec<u8>,
    strings: Vec<u8>,
}

impl Builder {
    fn word(&mut self, word: u32) {
        self.structure.extend(word.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.structure.extend(bytes);
        self.structure
            .resize(self.structure.len().next_multiple_of(4), 0);
    }

    fn begin(&mut self, name: &str) {
        self.word(1);
        self.bytes(&[name.as_bytes(), b"\0"].concat());
    }

    fn end(&mut self) {
        self.word(2);
    }

    fn property(&mut self, name: &str, value: &[u8]) {
        self.word(3);
        self.word(value.len() as u32);
        self.word(self.strings.len() as u32);
        self.strings.extend(name.as_bytes());
        self.strings.push(0);
        self.bytes(value);
    }

    fn finish(mut self, reservations: &[(u64, u64)]) -> Vec<u8> {
        self.word(9);
        let mut reserved = Vec::new();
        for &(base, bytes) in reservations.iter().chain(&[(0, 0)]) {
            reserved.extend(base.to_be_bytes());
            reserved.extend(bytes.to_be_bytes());
        }
        let structure = 40 + reserved.len();
        let strings = structure + self.structure.len();
        let total = strings + self.strings.len();
        let header = [
            0xd00d_feed,
            total,
            structure,
            strings,
            40,
            17,
            16,
            0,
            self.strings.len(),
            self.structure.len(),
        ];
        let mut blob: Vec<u8> = header
            .iter()
            .flat_map(|&word| (word as u32).to_be_bytes())
            .collect();
        blob.extend(reserved);
        blob.extend(self.structure);
        blob.extend(self.strings);
        blob
    }
}
