//! Memory maps as firmware gives them, byte by byte: E820, PVH, UEFI, SRAT.

use framekeeper::boot::firmware::{
    Entry, EntryKind, FirmwareError, NodeRange, e820, pvh, srat, uefi,
};
use framekeeper::{BootMap, MapError, NodeId, Pfn, PhysAddr};
use proptest::prelude::*;

fn bytes(fields: &[(u64, usize)]) -> Vec<u8> {
    let field = |&(value, size): &(u64, usize)| value.to_le_bytes()[..size].to_vec();
    fields.iter().flat_map(field).collect()
}

fn entry(base: u64, bytes: u64, kind: EntryKind) -> Entry {
    Entry {
        base: PhysAddr(base),
        bytes,
        kind,
    }
}

/// What a table of two entries says, as E820 with and without attributes, and as PVH.
#[test]
fn e820_and_pvh_tables_of_every_shape_say_the_same() {
    let expected = [
        entry(0, 0x9fc00, EntryKind::Usable),
        entry(0xf0000, 0x10000, EntryKind::Reserved),
        entry(0x7ffe0000, 0x20000, EntryKind::Reclaimable),
    ];
    let types = [1, 2, 3];
    let table = |more: &[(u64, usize)]| -> Vec<u8> {
        let fields = |(entry, kind): (&Entry, u64)| {
            let mut fields = vec![(entry.base.0, 8), (entry.bytes, 8), (kind, 4)];
            fields.extend(more);
            bytes(&fields)
        };
        expected.iter().zip(types).flat_map(fields).collect()
    };
    let (short, long) = (table(&[]), table(&[(1, 4)]));
    let all = |entries: Result<Vec<Entry>, FirmwareError>| entries.unwrap();
    assert_eq!(all(e820(&short, 20).unwrap().collect()), expected);
    assert_eq!(all(e820(&long, 24).unwrap().collect()), expected);
    assert_eq!(all(pvh(&table(&[(0, 4)])).unwrap().collect()), expected);
    let silent = table(&[(0, 4)]);
    assert_eq!(
        e820(&silent, 24).unwrap().count(),
        0,
        "attributes say that they say nothing"
    );
}

#[test]
fn uefi_descriptors_have_the_stride_that_firmware_states() {
    let descriptor = |kind, base, pages, attributes| {
        bytes(&[
            (kind, 4),
            (0, 4),
            (base, 8),
            (0, 8),
            (pages, 8),
            (attributes, 8),
            (!0, 8),
        ])
    };
    let map = [
        descriptor(7, 0x100000, 16, 0xf),
        descriptor(2, 0x200000, 1, 0xf),
        descriptor(4, 0x300000, 2, 0xf),
        descriptor(11, 0xfec00000, 1, 0x1),
        descriptor(7, 0x400000, 4, 1 << 18),
    ]
    .concat();
    let read: Result<Vec<_>, _> = uefi(&map, 48).unwrap().collect();
    assert_eq!(
        read.unwrap(),
        [
            entry(0x100000, 16 << 12, EntryKind::Usable),
            entry(0x200000, 1 << 12, EntryKind::Reclaimable),
            entry(0x300000, 2 << 12, EntryKind::Usable),
            entry(0xfec00000, 1 << 12, EntryKind::Reserved),
            entry(0x400000, 4 << 12, EntryKind::Reserved),
        ]
    );
    assert!(matches!(
        uefi(&map, 40).map(|_| ()),
        Ok(()) | Err(FirmwareError::Stride { .. })
    ));
    assert_eq!(
        uefi(&map, 47).map(|_| ()).unwrap_err(),
        FirmwareError::Stride {
            bytes: 240,
            stride: 47
        }
    );
    assert!(uefi(&map, 0).is_err() && e820(&map, 0).is_err());
    let huge = descriptor(7, 0x1000, 1 << 60, 0);
    let at = uefi(&huge, 48).unwrap().next().unwrap();
    assert_eq!(at, Err(FirmwareError::Overflow { at: 0 }));
}

fn srat_of(structures: &[Vec<u8>]) -> Vec<u8> {
    let mut table = b"SRAT".to_vec();
    table.resize(48, 0);
    table.extend(structures.concat());
    let length = (table.len() as u32).to_le_bytes();
    table[4..8].copy_from_slice(&length);
    table
}

fn memory(domain: u64, base: u64, length: u64, flags: u64) -> Vec<u8> {
    bytes(&[
        (1, 1),
        (40, 1),
        (domain, 4),
        (0, 2),
        (base, 8),
        (length, 8),
        (0, 4),
        (flags, 4),
        (0, 8),
    ])
}

#[test]
fn a_srat_gives_the_ranges_of_nodes_and_a_map_is_cut_by_them() {
    let cpu = bytes(&[(0, 1), (16, 1), (0, 8), (0, 6)]);
    let table = srat_of(&[
        cpu,
        memory(0, 0, 0xa0000, 1),
        memory(0, 0x100000, 0x3ff00000, 1),
        memory(1, 0x40000000, 0x40000000, 1),
        memory(2, 0, 0, 0),
    ]);
    let nodes: Result<Vec<NodeRange>, _> = srat(&table).unwrap().collect();
    let nodes = nodes.unwrap();
    assert_eq!(nodes.len(), 3);
    let mut map: BootMap = BootMap::new();
    for entry in [
        entry(0, 0x9fc00, EntryKind::Usable),
        entry(0x100000, 0x7ff00000, EntryKind::Usable),
        entry(0x7fe00000, 0x200000, EntryKind::Reclaimable),
        entry(0xfffc_0000, !0 - 0xfffc_0000, EntryKind::Reserved),
    ] {
        map.add_firmware(entry, nodes.iter().copied()).unwrap();
    }
    let span = |node| map.node_span(NodeId(node), 12);
    assert_eq!((span(0).start(), span(0).end()), (Pfn(1), Pfn(0x40000)));
    assert_eq!(
        (span(1).start(), span(1).end()),
        (Pfn(0x40000), Pfn(0x80000))
    );
    assert_eq!(map.usable_bytes() - map.free_bytes(), 0x200000);
    map.validate(12).unwrap();
}

#[test]
fn tables_that_make_no_sense_are_refused_with_the_place() {
    let good = srat_of(&[memory(0, 0, 4096, 1)]);
    assert_eq!(
        srat(&good[..good.len() - 1]).map(|_| ()).unwrap_err(),
        FirmwareError::Table
    );
    assert_eq!(srat(b"FACP").map(|_| ()).unwrap_err(), FirmwareError::Table);
    let first = |structure| srat(&srat_of(&[structure])).unwrap().next().unwrap();
    assert_eq!(first(vec![1, 0]), Err(FirmwareError::Length { at: 48 }));
    assert_eq!(
        first(vec![1, 8, 0, 0, 0, 0, 0, 0]),
        Err(FirmwareError::Length { at: 48 })
    );
    assert_eq!(
        first(memory(300, 0, 1, 1)),
        Err(FirmwareError::Domain { domain: 300 })
    );
    assert_eq!(
        first(memory(0, !0, 2, 1)),
        Err(FirmwareError::Overflow { at: 48 })
    );
    let mut map: BootMap = BootMap::new();
    let beyond = entry(1 << 60, 4096, EntryKind::Usable);
    let refused = map.add_firmware(beyond, std::iter::empty());
    assert!(matches!(refused, Err(MapError::BeyondLimit { .. })));
    assert_eq!(map.usable_bytes(), 0);
}

proptest! {
    #[test]
    fn no_bytes_panic_or_run_for_ever(table in proptest::collection::vec(any::<u8>(), 0..300), stride in 0usize..64) {
        let mut map = BootMap::<8>::new();
        let mut srat_like = table.clone();
        if srat_like.len() >= 48 {
            srat_like[..4].copy_from_slice(b"SRAT");
            let length = (srat_like.len() as u32).to_le_bytes();
            srat_like[4..8].copy_from_slice(&length);
        }
        let nodes: Vec<NodeRange> = srat(&srat_like).into_iter().flatten().flatten().collect();
        for entry in e820(&table, stride).into_iter().flatten().flatten() {
            let _full = map.add_firmware(entry, nodes.iter().copied());
        }
        for entry in pvh(&table).into_iter().flatten().chain(uefi(&table, stride).into_iter().flatten()).flatten() {
            let _full = map.add_firmware(entry, nodes.iter().copied());
        }
    }
}
