//! The three tables of ACPI that say where processors, nodes and PCI configuration space are. Layouts: ACPI 6.5, 5.2.

use super::super::{Cpu, Machine, NodeMemory};
use framekeeper::{NodeId, PhysAddr};

/// Reads MADT, SRAT and MCFG from the root pointer at `rsdp` into the machine.
pub(super) fn read(rsdp: u64, machine: &mut Machine) {
    let Some(rsdp) = Table::at(rsdp, 36).filter(|table| table.bytes(0, 8) == Some(b"RSD PTR "))
    else {
        return;
    };
    let (root, width) = match rsdp.u64(24) {
        Some(xsdt) if rsdp.u8(15) >= Some(2) && xsdt != 0 => (xsdt, 8),
        _ => (u64::from(rsdp.u32(16).unwrap_or(0)), 4),
    };
    let Some(root) = Table::described(root) else {
        return;
    };
    let tables = || {
        let addresses = (36..root.0.len()).step_by(width);
        let address = move |at| match width {
            8 => root.u64(at),
            _ => root.u32(at).map(u64::from),
        };
        addresses.filter_map(move |at| Table::described(address(at)?))
    };
    // Processors first: affinities are of those, and firmware may list the tables in any order.
    for table in tables() {
        match table.bytes(0, 4) {
            Some(b"APIC") => table.entries(44, |kind, entry| processor(kind, entry, machine)),
            Some(b"MCFG") => machine.pci_config = table.u64(44).map(PhysAddr),
            _ => {}
        }
    }
    for table in tables().filter(|table| table.bytes(0, 4) == Some(b"SRAT")) {
        table.entries(48, |kind, entry| affinity(kind, entry, machine));
    }
}

fn processor(kind: u8, entry: Table, machine: &mut Machine) {
    if kind == 0 && entry.u32(4).unwrap_or(0) & 1 == 1 {
        let hardware = u64::from(entry.u8(3).unwrap_or(0));
        machine.add_cpu(Cpu {
            hardware,
            node: NodeId(0),
        });
    }
}

fn affinity(kind: u8, entry: Table, machine: &mut Machine) {
    match kind {
        0 if entry.u32(4).unwrap_or(0) & 1 == 1 => {
            let hardware = u64::from(entry.u8(3).unwrap_or(0));
            machine.set_node(hardware, NodeId(entry.u8(2).unwrap_or(0)));
        }
        1 if entry.u32(28).unwrap_or(0) & 1 == 1 => machine.add_node_memory(NodeMemory {
            node: NodeId(entry.u32(2).unwrap_or(0) as u8),
            base: entry.u64(8).unwrap_or(0),
            bytes: entry.u64(16).unwrap_or(0),
        }),
        _ => {}
    }
}

/// Bytes of a table, read where the direct map has them.
#[derive(Clone, Copy)]
struct Table(&'static [u8]);

impl Table {
    fn at(address: u64, bytes: usize) -> Option<Self> {
        let start = super::direct_map(address).cast_const();
        // SAFETY: the boot tables map the first 512 GiB; firmware's tables stay where they are.
        (address != 0 && address < 1 << 38)
            .then(|| Self(unsafe { core::slice::from_raw_parts(start, bytes) }))
    }

    /// A table with the usual header, whose fifth byte starts its length.
    fn described(address: u64) -> Option<Self> {
        let length = Self::at(address, 36)?.u32(4)?;
        (36..1 << 20)
            .contains(&length)
            .then(|| Self::at(address, length as usize))?
    }

    /// Entries of a kind byte and a length byte, from `at` on.
    fn entries(self, mut at: usize, mut each: impl FnMut(u8, Self)) {
        while let (Some(kind), Some(length @ 2..)) = (self.u8(at), self.u8(at + 1)) {
            let end = at + usize::from(length);
            let Some(entry) = self.0.get(at..end) else {
                return;
            };
            each(kind, Self(entry));
            at = end;
        }
    }

    fn bytes(self, at: usize, count: usize) -> Option<&'static [u8]> {
        self.0.get(at..at + count)
    }

    fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u32(self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(at, 4)?.try_into().ok()?))
    }

    fn u64(self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(at, 8)?.try_into().ok()?))
    }
}
