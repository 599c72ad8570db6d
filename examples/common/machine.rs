//! A machine from a file: firmware list, kernel log, iomem, device tree, or a whole capture.
//!
//! Owns: [`Machine`], its boot map, nodes and CPUs; [`ZoneLayout`], the zones that its memory makes.
//! Invariants: bad input is an error that names the line or the byte, never a panic.
//! Lock ranks: none. Used by: examples/zoneinfo.rs and the golden tests, through `#[path]`, with capture.rs,
//! device_tree.rs and memory_map.rs beside it.
#![allow(
    unreachable_pub,
    dead_code,
    reason = "each example and test uses the part it needs"
)]

use std::fmt;

use framekeeper::boot::{BootMap, MapError, Memory, Storage};
use framekeeper::node::Tuning;
use framekeeper::pageset::tune::Policy;
use framekeeper::{
    Config, CpuId, FrameRange, InitError, NodeId, PageAllocator, Pfn, PhysAddr, Platform, Refused,
    ZoneKind,
};

use super::capture::{Capture, NodeCpus};
use super::device_tree::{self, Item, TreeError};
use super::memory_map::{MemoryMap, TextError};

/// Frames are 4 KiB in every capture.
pub const PAGE_SHIFT: u32 = 12;

/// Regions that a machine may have; large ones list hundreds.
pub type Map = BootMap<1024>;

/// Memory, nodes and CPUs.
#[derive(Debug)]
pub struct Machine {
    /// The memory.
    pub map: Map,
    /// Number of CPUs.
    pub cpus: u32,
    /// CPUs and distances per node; empty if the file does not say.
    pub nodes: Vec<NodeCpus>,
}

/// A zone before anything is handed over; sizes in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneLayout {
    /// Its node.
    pub node: u8,
    /// Its kind.
    pub kind: ZoneKind,
    /// The part of its node's span that lies in its address range, holes included.
    pub span: FrameRange,
    /// Frames that exist.
    pub present: u64,
    /// Frames that are not reserved.
    pub free: u64,
}

/// Why a file is not a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MachineError {
    /// A text is wrong.
    Text(TextError),
    /// A device tree is wrong.
    Tree(TreeError),
    /// A device tree names memory that the map refuses.
    Map(MapError),
    /// Neither a device tree nor UTF-8 text.
    Binary,
}

impl Machine {
    /// Reads a file's bytes. What it does not say is one node with one CPU.
    pub fn read(file: &[u8]) -> Result<Self, MachineError> {
        if file.starts_with(&device_tree::MAGIC.to_be_bytes()) {
            return Self::from_tree(file);
        }
        let text = std::str::from_utf8(file).map_err(|_| MachineError::Binary)?;
        let machine = if text.contains("==ZONEINFO==") {
            Self::from_zones(&Capture::parse(text)?)?
        } else {
            Self {
                map: MemoryMap::parse(text)?.boot_map()?,
                cpus: 1,
                nodes: Vec::new(),
            }
        };
        machine.map.validate(PAGE_SHIFT)?;
        Ok(machine)
    }

    /// The machine that a capture shows; its map is empty if the capture has no firmware list.
    pub fn from_capture(capture: &Capture) -> Result<Self, MachineError> {
        Ok(Self {
            map: capture.memory.boot_map()?,
            cpus: capture.cpus.max(1),
            nodes: capture.nodes.clone(),
        })
    }

    /// As [`from_capture`](Self::from_capture); without a firmware list, memory is as much as each zone has, its holes behind it, and
    /// what boot kept at its end.
    fn from_zones(capture: &Capture) -> Result<Self, MachineError> {
        let mut machine = Self::from_capture(capture)?;
        if machine.map.usable().next().is_some() {
            return Ok(machine);
        }
        let bytes = |frames: u64| frames.saturating_mul(1 << PAGE_SHIFT);
        for zone in &capture.zones {
            let Some(start) = zone.start_pfn.filter(|_| zone.present > 0) else {
                continue;
            };
            let kept = zone.present.saturating_sub(zone.managed);
            let end = bytes(start.saturating_add(zone.present));
            machine.map.add(
                NodeId(zone.node),
                PhysAddr(bytes(start)),
                bytes(zone.present),
            )?;
            machine
                .map
                .reserve(PhysAddr(end.saturating_sub(bytes(kept))), bytes(kept))?;
        }
        Ok(machine)
    }

    fn from_tree(blob: &[u8]) -> Result<Self, MachineError> {
        let mut map = Map::new();
        let mut nodes: Vec<NodeCpus> = Vec::new();
        let mut cpus = 0;
        let mut refused = Ok(());
        device_tree::scan(blob, &mut |item| match item {
            Item::Memory { node, base, bytes } => {
                let added = map.add(NodeId(node), PhysAddr(base), bytes);
                refused = refused.and(added);
            }
            Item::Reserved { base, bytes } => {
                let reserved = map.reserve(PhysAddr(base), bytes);
                refused = refused.and(reserved);
            }
            Item::Cpu { node } => {
                match nodes.iter_mut().find(|entry| entry.node == node) {
                    Some(entry) => entry.cpus.push(cpus),
                    None => nodes.push(NodeCpus {
                        node,
                        cpus: vec![cpus],
                        distances: Vec::new(),
                    }),
                }
                cpus += 1;
            }
        })?;
        refused?;
        map.validate(PAGE_SHIFT)?;
        Ok(Self {
            map,
            cpus: cpus.max(1),
            nodes,
        })
    }

    /// The CPUs by which a zone of `node` divides its limits: the node's own, or all if it has none.
    pub fn cpus_for_limits(&self, node: u8) -> u32 {
        self.nodes
            .iter()
            .find(|entry| entry.node == node)
            .map(|entry| entry.cpus.len() as u32)
            .filter(|&cpus| cpus != 0)
            .unwrap_or(self.cpus)
    }

    /// Gives the machine another number of CPUs, spread evenly over the nodes that had some.
    pub fn set_cpus(&mut self, cpus: u32) {
        self.cpus = cpus;
        let mut with_cpus: Vec<_> = self
            .nodes
            .iter_mut()
            .filter(|entry| !entry.cpus.is_empty())
            .collect();
        let nodes = with_cpus.len() as u32;
        for (i, entry) in (0..).zip(&mut with_cpus) {
            let share = |i: u32| (u64::from(cpus) * u64::from(i) / u64::from(nodes)) as u32;
            entry.cpus = (share(i)..share(i + 1)).collect();
        }
    }

    /// An allocator of the machine's memory as it is early in boot: most of it is deferred. Frames are numbers only; its
    /// metadata lies elsewhere, in what `storage` gives for a number of bytes.
    pub fn allocator<P: Platform>(
        &self,
        node_of: fn(CpuId) -> NodeId,
        storage: impl FnOnce(usize) -> Storage,
    ) -> Result<PageAllocator<P>, InitError> {
        let config = Config {
            cpus: self.cpus,
            node_of,
            deferred: true,
            tuning: Tuning {
                policy: Policy::Auto,
                ..Tuning::default()
            },
            ..Config::default()
        };
        let mut map = self.map.clone();
        // SAFETY: nothing is ever stored in a frame that the allocator gives out.
        #[allow(unsafe_code)]
        let memory = unsafe { Memory::<P, _>::claim(&mut map) };
        let memory = memory.with_storage(storage(self.room()));
        PageAllocator::new(memory, &config).map_err(Refused::into_error)
    }

    /// More bytes than the metadata need: a byte a frame, and a full pageset for each CPU and zone.
    fn room(&self) -> usize {
        let frames: u64 = self.map.usable_bytes() >> PAGE_SHIFT;
        let zones = self.zones().iter().filter(|zone| zone.present != 0).count() as u64;
        let pagesets = (u64::from(self.cpus) * zones) << 16;
        usize::try_from(frames + pagesets + (4 << 20)).unwrap_or(usize::MAX)
    }

    /// The node of a CPU; 0 if the file does not say.
    pub fn node_of(&self, cpu: u32) -> NodeId {
        let entry = self.nodes.iter().find(|entry| entry.cpus.contains(&cpu));
        NodeId(entry.map_or(0, |entry| entry.node))
    }

    /// Every kind of zone of every node with memory or CPUs, empty ones included, by node and then kind.
    /// DMA ends at 16 MiB, DMA32 at 4 GiB, and nothing is movable only.
    pub fn zones(&self) -> Vec<ZoneLayout> {
        let with_memory = self.map.usable_frames(PAGE_SHIFT).map(|(node, _)| node.0);
        let with_cpus = self.nodes.iter().map(|entry| entry.node);
        let mut nodes: Vec<u8> = with_memory.chain(with_cpus).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let kinds = |node| ZoneKind::ALL.map(|kind| self.zone(node, kind));
        nodes.into_iter().flat_map(kinds).collect()
    }

    fn zone(&self, node: u8, kind: ZoneKind) -> ZoneLayout {
        let limits = address_limits(kind);
        let span = self.map.node_span(NodeId(node), PAGE_SHIFT);
        let sum = |frames: &mut dyn Iterator<Item = (NodeId, FrameRange)>| {
            frames
                .filter(|(owner, _)| owner.0 == node)
                .map(|(_, frames)| frames.intersect(limits).frames())
                .sum()
        };
        ZoneLayout {
            node,
            kind,
            span: span.intersect(limits),
            present: sum(&mut self.map.usable_frames(PAGE_SHIFT)),
            free: sum(&mut self.map.free_frames(PAGE_SHIFT)),
        }
    }
}

/// Frame numbers that belong to a kind of zone.
fn address_limits(kind: ZoneKind) -> FrameRange {
    let (dma, dma32) = (Pfn(16 << (20 - PAGE_SHIFT)), Pfn(4 << (30 - PAGE_SHIFT)));
    match kind {
        ZoneKind::Dma => FrameRange::new(Pfn(0), dma),
        ZoneKind::Dma32 => FrameRange::new(dma, dma32),
        ZoneKind::Normal => FrameRange::new(dma32, Pfn(u64::MAX)),
        ZoneKind::Movable => FrameRange::default(),
    }
}

impl From<TextError> for MachineError {
    fn from(error: TextError) -> Self {
        Self::Text(error)
    }
}

impl From<TreeError> for MachineError {
    fn from(error: TreeError) -> Self {
        Self::Tree(error)
    }
}

impl From<MapError> for MachineError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

impl fmt::Display for MachineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(error) => write!(f, "{error}"),
            Self::Tree(error) => write!(f, "{error}"),
            Self::Map(error) => write!(f, "{error}"),
            Self::Binary => write!(f, "neither a device tree nor text"),
        }
    }
}

impl std::error::Error for MachineError {}
