//! Nodes and zones of a machine: which there are, who owns a frame, and who is asked in which order.
//!
//! Owns: [`Nodes`]: the zones, each node's list of them, and where memory is and is not.
//! Invariants: zones are ordered by node and then kind, and never change place; a frame belongs to at most one zone;
//! spans of zones may overlap, so a frame's zone is found from the runs of memory, never from spans.
//! Lock ranks: none of its own. Used by: alloc, and through it frame, lru and reclaim.

mod cpus;
pub mod formulas;
mod limits;
mod plan;
mod sections;
mod zonelist;

use arrayvec::ArrayVec;

use crate::addr::{CpuId, FrameRange, NodeId, Order, Pfn, ZoneKind};
use crate::boot::{BootMap, Bump, StorageFull};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::zone::{Zone, ZoneSpec};

use cpus::OnlineCpus;
pub use cpus::{CpuError, StartCpus};
use limits::Marks;
pub use limits::Tuning;
use plan::Piece;
pub use plan::ZoneLimits;
pub(crate) use sections::{Claimant, NotReserved, Prepare, Section, Stage, section_frames};
use sections::{NEVER, Sections};
use zonelist::{NodeOrders, NodeSet};

/// Node ids are below this.
pub const MAX_NODES: usize = 63;

/// Zone indices are below this.
const MAX_ZONES: usize = MAX_NODES * ZoneKind::ALL.len();

/// No zone: every kind on each of the nodes needs the indices below.
const NO_ZONE: u8 = u8::MAX;

/// A zone and whose it is.
#[derive(Debug)]
pub(crate) struct NodeZone<P: Platform> {
    pub(crate) node: NodeId,
    pub(crate) kind: ZoneKind,
    pub(crate) zone: Zone<P>,
    marks: Marks,
    /// First frame that is deferred; [`NEVER`] for none.
    cut: Pfn,
    /// Sections before this one have none of its frames waiting.
    next_section: AtomicU32,
}

/// A run of frames that exist, all of one zone.
#[derive(Clone, Copy, Debug)]
struct Run {
    frames: FrameRange,
    zone: u8,
}

/// The zone that is asked first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    /// Index of the CPU's pageset of the zone among all; beyond them if there is no zone, or no fast way.
    pub(crate) pageset: u32,
    /// Index of the zone, or [`NO_ZONE`].
    pub(crate) zone: u8,
}

impl First {
    const NONE: Self = Self {
        pageset: u32::MAX,
        zone: NO_ZONE,
    };

    const fn word(self) -> u64 {
        self.pageset as u64 | (self.zone as u64) << 32
    }

    #[inline]
    const fn from_word(word: u64) -> Self {
        Self {
            pageset: word as u32,
            zone: (word >> 32) as u8,
        }
    }
}

/// The machine's shape, as the port describes it.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) cpus: u32,
    pub(crate) shards: Option<u32>,
    /// Whether requests may be served from pagesets without a look at the block.
    pub(crate) fast: bool,
    /// Which CPUs run from the start.
    pub(crate) start: StartCpus,
    /// Whether most of each node comes online later.
    pub(crate) deferred: bool,
    pub(crate) node_of: fn(CpuId) -> NodeId,
    pub(crate) distance: fn(NodeId, NodeId) -> u8,
}

/// Zones and nodes.
#[derive(Debug)]
pub(crate) struct Nodes<P: Platform> {
    zones: &'static [NodeZone<P>],
    /// Sorted.
    runs: &'static [Run],
    /// Frames that exist but were not free at boot. Sorted.
    reserved: &'static [FrameRange],
    /// By CPU, and by the highest kind that will do: words of [`First`]s, renewed with the limits.
    firsts: &'static [[AtomicU64; ZoneKind::ALL.len()]],
    /// Whether requests may be served from pagesets without a look at the block.
    fast: bool,
    /// By CPU.
    cpus: &'static [NodeId],
    online: OnlineCpus,
    sections: Sections,
    /// Number of nodes.
    nodes: usize,
    /// By node: all zones, in the order in which they are asked.
    lists: &'static [u8],
}

impl<P: Platform> Nodes<P> {
    /// The zones of a map's memory, without free frames.
    pub(crate) fn build<const N: usize>(
        bump: &mut Bump<'_>,
        map: &BootMap<N>,
        limits: &ZoneLimits,
        shape: &Shape,
    ) -> Result<Self, StorageFull> {
        let mut kinds = ArrayVec::<(NodeId, ZoneKind), MAX_ZONES>::new();
        let mut memory = NodeSet::default();
        for zone in limits.zones(map, P::PAGE_SHIFT) {
            kinds.push((zone.node, zone.kind));
            memory.insert(zone.node);
        }
        let zones = kinds.len();
        let mut with_cpus = NodeSet::default();
        (0..shape.cpus).for_each(|cpu| with_cpus.insert((shape.node_of)(CpuId(cpu))));
        let nodes = memory
            .iter()
            .chain(with_cpus.iter())
            .map(|node| usize::from(node.0) + 1)
            .max()
            .unwrap_or(0);

        let mut runs = limits.pieces(map, P::PAGE_SHIFT);
        let run_count = limits.pieces(map, P::PAGE_SHIFT).count();
        let runs = bump.slots(run_count, |_| {
            let piece = runs.next().expect("counted above");
            let zone = kinds.iter().position(|&of| of == (piece.node, piece.kind));
            Run {
                frames: piece.frames,
                zone: zone.expect("each piece is in a zone") as u8,
            }
        })?;

        // Taking the metadata's own bytes from the map, after the measuring, may add one range.
        let spare = usize::from(bump.is_measuring());
        let mut reserved = reserved_frames(map, P::PAGE_SHIFT);
        let reserved_count = reserved_frames(map, P::PAGE_SHIFT).count() + spare;
        let reserved = bump.slots(reserved_count, |_| reserved.next().expect("counted above"))?;

        let mut orders = NodeOrders::new(memory, with_cpus, shape.distance);
        let mut asked = ArrayVec::<NodeId, MAX_NODES>::new();
        let lists = bump.slots(nodes * zones, |i| {
            if i % zones == 0 {
                asked = orders.of(NodeId((i / zones) as u8));
            }
            // By node in the list's order, inside a node from the highest kind down.
            let mut list = asked.iter().flat_map(|&node| {
                let all = kinds.iter().enumerate().rev();
                all.filter(move |(_, zone)| zone.0 == node)
            });
            list.nth(i % zones).map_or(NO_ZONE, |(zone, _)| zone as u8)
        })?;

        let firsts = bump.slots(shape.cpus as usize, |_| {
            ZoneKind::ALL.map(|_| AtomicU64::new(First::NONE.word()))
        })?;
        let cpus = bump.slots(shape.cpus as usize, |cpu| {
            (shape.node_of)(CpuId(cpu as u32))
        })?;

        // A run of free frames may end within a line on both sides.
        let measuring = bump.is_measuring();
        let ragged = |zone: Piece| {
            let runs = map
                .free_frames(P::PAGE_SHIFT)
                .flat_map(|run| limits.cut(run, P::PAGE_SHIFT));
            // The metadata, not taken yet while measuring, may cut one run in two.
            let cut = u32::from(measuring);
            2 * (cut
                + runs
                    .filter(|run| (run.node, run.kind) == (zone.node, zone.kind))
                    .count() as u32)
        };
        let cut = |node, kind| match shape.deferred {
            true => sections::cut(map, limits, (node, kind), P::PAGE_SHIFT),
            false => NEVER,
        };
        let cuts: ArrayVec<Pfn, MAX_ZONES> =
            kinds.iter().map(|&(node, kind)| cut(node, kind)).collect();
        let cut_of = |node, kind| {
            let zone = kinds.iter().position(|&of| of == (node, kind));
            zone.map_or(NEVER, |zone| cuts[zone])
        };
        let sections = Sections::build(bump, map, limits, P::PAGE_SHIFT, cut_of)?;
        let online = OnlineCpus::build(bump, cpus, nodes, shape)?;
        let mut specs = limits.zones(map, P::PAGE_SHIFT);
        let zones = bump.slots_with(zones, |bump, _| {
            let spec = specs.next().expect("counted above");
            let shards = shape
                .shards
                .unwrap_or_else(|| default_shards(shape.cpus, spec.frames));
            Ok::<_, StorageFull>(NodeZone {
                node: spec.node,
                kind: spec.kind,
                marks: Marks::default(),
                cut: cut_of(spec.node, spec.kind),
                next_section: AtomicU32::new(0),
                zone: Zone::build(
                    bump,
                    ZoneSpec {
                        node: spec.node,
                        kind: spec.kind,
                        span: spec.frames,
                        shards,
                        ragged: ragged(spec),
                    },
                )?,
            })
        })?;
        Ok(Self {
            zones,
            runs,
            reserved,
            firsts,
            fast: shape.fast,
            cpus,
            online,
            sections,
            nodes,
            lists,
        })
    }

    /// Hands over the frames that the map leaves free, but for deferred ones; `ready` is told each run before. Returns how
    /// many could not be: a zone keeps a bounded number of records for pageblocks with holes.
    pub(crate) fn populate<const N: usize>(
        &self,
        map: &BootMap<N>,
        limits: &ZoneLimits,
        ready: impl Fn(FrameRange),
    ) -> u64 {
        let off = IrqOff::new();
        let pieces = map
            .free_frames(P::PAGE_SHIFT)
            .flat_map(|run| limits.cut(run, P::PAGE_SHIFT));
        let mut refused = 0;
        for piece in pieces {
            let Some(zone) = self.zone_of(piece.frames.start()) else {
                refused += piece.frames.frames();
                continue;
            };
            let cut = self.zones[usize::from(zone)].cut;
            let early = piece.frames.intersect(FrameRange::new(Pfn(0), cut));
            if early.is_empty() {
                continue;
            }
            ready(early);
            if self.zone(zone).online(early, &off).is_err() {
                refused += early.frames();
            }
        }
        for (index, zone) in self.zones.iter().enumerate() {
            let of_zone = self
                .runs
                .iter()
                .filter(|run| usize::from(run.zone) == index);
            let there = of_zone
                .flat_map(|run| sections::without(run.frames, map.hotplug_frames(P::PAGE_SHIFT)));
            let present: u64 = there.map(FrameRange::frames).sum();
            zone.zone
                .add_present(present.saturating_sub(zone.zone.present()));
        }
        refused
    }

    /// Every zone, by its index.
    #[inline]
    pub(crate) fn zones(&self) -> &'static [NodeZone<P>] {
        self.zones
    }

    /// The zone with this index.
    #[inline]
    pub(crate) fn zone(&self, index: u8) -> &'static Zone<P> {
        &self.zones[usize::from(index)].zone
    }

    /// Index of the zone that `pfn` belongs to; `None` if there is no such frame.
    pub(crate) fn zone_of(&self, pfn: Pfn) -> Option<u8> {
        let after = self.runs.partition_point(|run| run.frames.start() <= pfn);
        let run = self.runs.get(after.checked_sub(1)?)?;
        run.frames.contains(pfn).then_some(run.zone)
    }

    /// Whether the frame was reserved at boot, and is still.
    pub(crate) fn is_reserved(&self, pfn: Pfn) -> bool {
        let mut was = self.reserved_in(FrameRange::block(pfn, Order::ZERO));
        let is_added = || {
            let section = self.hotplug_section(pfn);
            section.is_some_and(|section| section.stage() != Stage::Absent)
        };
        was.next().is_some()
            && !is_added()
            && self
                .zone_of(pfn)
                .is_some_and(|zone| !self.zone(zone).is_managed(pfn))
    }

    /// Whether some frames of the zone come online later.
    pub(crate) fn is_deferred(&self, index: u8) -> bool {
        self.zones[usize::from(index)].cut != NEVER
    }

    /// The first frame of a range that does not exist, or is in another zone.
    pub(crate) fn first_outside(&self, range: FrameRange, zone: u8) -> Option<Pfn> {
        let mut at = range.start();
        while at < range.end() {
            let after = self.runs.partition_point(|run| run.frames.start() <= at);
            let run = after.checked_sub(1).and_then(|i| self.runs.get(i));
            match run.filter(|run| run.zone == zone && run.frames.contains(at)) {
                Some(run) => at = run.frames.end(),
                None => return Some(at),
            }
        }
        None
    }

    /// The zone that a request from `cpu` asks first; `None` for a CPU without caches.
    #[inline]
    pub(crate) fn first(&self, cpu: CpuId, highest: ZoneKind) -> Option<First> {
        let first = &self.firsts.get(cpu.0 as usize)?[highest as usize];
        Some(First::from_word(first.load(Relaxed)))
    }

    /// Chooses for each CPU anew which zone is asked first: one without frames costs every request a look elsewhere.
    pub(crate) fn renew_firsts(&self) {
        for (cpu, firsts) in self.firsts.iter().enumerate() {
            for (highest, first) in ZoneKind::ALL.into_iter().zip(firsts) {
                let list = self.zonelist(self.node_of_cpu(CpuId(cpu as u32)), highest);
                let mut list = list.into_iter().flatten();
                let zone = { list.clone() }.find(|&zone| self.zone(zone).managed() > 0);
                let chosen = zone.or_else(|| list.next()).map(|zone| First {
                    pageset: match self.fast {
                        true => (cpu * self.zones.len()) as u32 + u32::from(zone),
                        false => u32::MAX,
                    },
                    zone,
                });
                // Relaxed: a lone word; a request that sees the old one asks a zone that it may ask as well.
                first.store(chosen.unwrap_or(First::NONE).word(), Relaxed);
            }
        }
    }

    /// The node that `cpu` is on; that of CPU 0 for an unknown one.
    pub(crate) fn node_of_cpu(&self, cpu: CpuId) -> NodeId {
        self.cpus
            .get(cpu.0 as usize)
            .or(self.cpus.first())
            .copied()
            .unwrap_or_default()
    }

    /// Indices of the zones of at most `highest`, in the order in which `node` asks them; `None` for an unknown node.
    pub(crate) fn zonelist(
        &self,
        node: NodeId,
        highest: ZoneKind,
    ) -> Option<impl Iterator<Item = u8> + Clone + use<P>> {
        if usize::from(node.0) >= self.nodes {
            return None;
        }
        let zones = self.zones;
        let from = usize::from(node.0) * zones.len();
        let list = self.lists.get(from..from + zones.len())?;
        let fits = move |zone: &u8| {
            zones
                .get(usize::from(*zone))
                .is_some_and(|zone| zone.kind <= highest)
        };
        Some(list.iter().copied().filter(fits))
    }
}

/// About two shards a CPU, none smaller than a largest block; the zone rounds to what its span allows.
fn default_shards(cpus: u32, span: FrameRange) -> u32 {
    let blocks = span.frames() >> crate::addr::Order::MAX.get();
    u32::try_from(blocks)
        .unwrap_or(u32::MAX)
        .min(cpus.saturating_mul(2))
        .max(1)
}

/// Frames that exist and are not free.
fn reserved_frames<const N: usize>(
    map: &BootMap<N>,
    page_shift: u32,
) -> impl Iterator<Item = FrameRange> {
    map.usable_frames(page_shift).flat_map(move |(_, frames)| {
        let free = map.free_frames(page_shift).map(|(_, free)| free);
        sections::without(frames, free)
    })
}
