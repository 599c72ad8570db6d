//! What differs between the two architectures. Each gives the same names:
//!
//! - `boot` reads the machine; `start_cpu`, `init_cpu`, `park` bring CPUs up and down;
//! - `cpu`, `irq_save`, `irq_restore`, `irq_on`, `idle`, `now`, `direct_map`: what the port needs;
//! - `switch_space`, `flush_page`, `barrier_all`, and `pte`: page tables and their caches;
//! - `console_write`, `disk`, `power_off`: devices.

use framekeeper::{NodeId, PhysAddr};

use crate::cpu::MAX_CPUS;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// A CPU of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    /// What the hardware calls it.
    pub hardware: u64,
    pub node: NodeId,
}

/// Memory that firmware gives, or takes away.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub base: u64,
    pub bytes: u64,
}

/// Which node some memory is on.
#[derive(Clone, Copy, Debug)]
pub struct NodeMemory {
    pub node: NodeId,
    pub base: u64,
    pub bytes: u64,
}

/// What firmware says of the machine. Lists are as long as this kernel can use; what did not fit is counted.
pub struct Machine {
    usable: List<Region, 64>,
    reserved: List<Region, 64>,
    node_memory: List<NodeMemory, 64>,
    cpus: List<Cpu, MAX_CPUS>,
    /// Entries that did not fit.
    pub lost: usize,
    /// Where the configuration space of PCI is mapped.
    #[cfg_attr(
        target_arch = "aarch64",
        expect(dead_code, reason = "device trees say it otherwise")
    )]
    pub pci_config: Option<PhysAddr>,
    command_line: &'static str,
    /// Holes that are made in each piece of usable memory.
    holes: u64,
}

/// Bytes of such a hole: its ends lie within pages.
const HOLE: u64 = 0x1a00;

/// A list of at most N.
struct List<T, const N: usize>([Option<T>; N], usize);

impl<T: Copy, const N: usize> List<T, N> {
    fn push(&mut self, value: T) -> bool {
        let fits = self.1 < N;
        if fits {
            self.0[self.1] = Some(value);
            self.1 += 1;
        }
        fits
    }

    fn iter(&self) -> impl Iterator<Item = T> {
        self.0.iter().map_while(|entry| *entry)
    }
}

impl Machine {
    fn new() -> Self {
        Self {
            usable: List([None; 64], 0),
            reserved: List([None; 64], 0),
            node_memory: List([None; 64], 0),
            cpus: List([None; MAX_CPUS], 0),
            lost: 0,
            pci_config: None,
            command_line: "",
            holes: 0,
        }
    }

    fn add_usable(&mut self, base: u64, bytes: u64) {
        let fits = self.usable.push(Region { base, bytes });
        self.lost += usize::from(!fits);
    }

    fn reserve(&mut self, base: u64, bytes: u64) {
        let fits = self.reserved.push(Region { base, bytes });
        self.lost += usize::from(!fits);
    }

    fn add_node_memory(&mut self, memory: NodeMemory) {
        let fits = self.node_memory.push(memory);
        self.lost += usize::from(!fits);
    }

    fn add_cpu(&mut self, cpu: Cpu) {
        let fits = self.cpus.push(cpu);
        self.lost += usize::from(!fits);
    }

    #[cfg_attr(
        target_arch = "aarch64",
        expect(dead_code, reason = "device trees say it otherwise")
    )]
    fn set_node(&mut self, hardware: u64, node: NodeId) {
        for cpu in self.cpus.0.iter_mut().flatten() {
            if cpu.hardware == hardware {
                cpu.node = node;
            }
        }
    }

    /// Makes holes in what `usable` says, at even distances: memory maps of real machines have such.
    pub fn punch(&mut self, holes: u32) {
        self.holes = holes.into();
    }

    /// Usable memory, with the holes.
    pub fn usable(&self) -> impl Iterator<Item = NodeMemory> {
        let holes = self.holes;
        self.whole().flat_map(move |memory| {
            let step = memory.bytes / (holes + 1);
            (0..=holes).map(move |i| {
                let before = if i == 0 { 0 } else { HOLE.min(step) };
                let end = if i == holes {
                    memory.bytes
                } else {
                    (i + 1) * step
                };
                NodeMemory {
                    base: memory.base + i * step + before,
                    bytes: end - i * step - before,
                    ..memory
                }
            })
        })
    }

    /// Usable memory, cut where nodes meet. What no table puts on a node is on node 0.
    fn whole(&self) -> impl Iterator<Item = NodeMemory> {
        let whole = [NodeMemory {
            node: NodeId(0),
            base: 0,
            bytes: u64::MAX,
        }];
        let known = self.node_memory.1 > 0;
        self.usable.iter().flat_map(move |region| {
            let nodes = self
                .node_memory
                .iter()
                .chain(whole.into_iter().filter(move |_| !known));
            nodes.filter_map(move |memory| {
                let base = region.base.max(memory.base);
                let end =
                    (region.base + region.bytes).min(memory.base.saturating_add(memory.bytes));
                (base < end).then(|| NodeMemory {
                    node: memory.node,
                    base,
                    bytes: end - base,
                })
            })
        })
    }

    /// Memory that is not to be touched, also where it was called usable.
    pub fn reserved(&self) -> impl Iterator<Item = Region> {
        self.reserved.iter()
    }

    /// The CPUs; the one that booted is the first.
    pub fn cpus(&self) -> impl Iterator<Item = Cpu> {
        self.cpus.iter()
    }

    /// How many nodes are named.
    pub fn nodes(&self) -> u32 {
        let memory = self.node_memory.iter().map(|memory| memory.node);
        let last = memory
            .chain(self.cpus().map(|cpu| cpu.node))
            .max()
            .unwrap_or(NodeId(0));
        u32::from(last.0) + 1
    }

    /// What the kernel was started with.
    pub fn command_line(&self) -> &'static str {
        self.command_line
    }
}
