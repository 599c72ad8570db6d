//! Counts, and the recount of every layer.
//!
//! Owns: [`ZoneCounts`], [`CheckError`]. Invariants: counts are exact at rest, and else off by what moves meanwhile.
//! Lock ranks: Pageset, then Shard, one at a time. Used by: report, tests.

use core::fmt;

use super::PageAllocator;
use crate::addr::{CpuId, FrameRange, NodeId, Order, Pfn, ZoneKind};
use crate::pageset::Exchanges;
use crate::pageset::tune::Limits;
use crate::platform::{IrqOff, Platform};
use crate::zone::{Levels, ZoneFault};

/// Numbers of one zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneCounts {
    /// Its node.
    pub node: NodeId,
    /// Its kind.
    pub kind: ZoneKind,
    /// From its first frame to its last, holes included.
    pub span: FrameRange,
    /// Frames that exist.
    pub present: u64,
    /// Frames that were handed to the allocator.
    pub managed: u64,
    /// Frames free in the zone's shards.
    pub free: u64,
    /// Frames that CPUs park in their pagesets.
    pub parked: u64,
    /// Its watermarks, without boost.
    pub levels: Levels,
    /// Frames kept from requests whose highest zone is of another kind, by kind.
    pub reserves: [u64; ZoneKind::COUNT],
    /// Frames in pageblocks that are kept for urgent requests (the highatomic reserve), free or not.
    pub reserved_highatomic: u64,
    /// The free ones of them; they are among `free`.
    pub free_highatomic: u64,
    /// Frames in CMA areas, free or not.
    pub cma: u64,
    /// The free ones of them; they are among `free`.
    pub free_cma: u64,
    /// Free frames that are being collected, and not among `free`.
    pub isolated: u64,
    /// Frames marked bad.
    pub bad: u64,
    /// Frames lent to the hypervisor, and not among `managed`.
    pub ballooned: u64,
    /// Free blocks of each order.
    pub free_blocks: [u64; Order::COUNT],
}

/// Numbers of one CPU's pageset of one zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesetCounts {
    /// The CPU.
    pub cpu: CpuId,
    /// The zone's node.
    pub node: NodeId,
    /// The zone's kind.
    pub kind: ZoneKind,
    /// Frames parked.
    pub parked: u32,
    /// The limit now, between `limits.high_min` and `limits.high_max`.
    pub high: u32,
    /// What the zone's size allows.
    pub limits: Limits,
    /// How often it went to the zone.
    pub exchanges: Exchanges,
}

/// What a recount found wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CheckError {
    /// A zone's own records disagree.
    Zone(NodeId, ZoneKind, ZoneFault),
    /// A pageset's count or links are wrong.
    Pageset(CpuId, NodeId, ZoneKind),
    /// A pageset's limits are not those that follow from what the zone manages.
    StaleLimits(CpuId, NodeId, ZoneKind),
    /// A zone's watermarks, reserves or drift threshold are not those that follow from what it manages.
    StaleMarks(NodeId, ZoneKind),
    /// A frame is parked that is misaligned, of another zone, or marked as given out.
    Parked(CpuId, Pfn, Order),
    /// More frames are free and parked than there are.
    TooMany(NodeId, ZoneKind),
}

impl<P: Platform> PageAllocator<P> {
    /// The numbers of every zone, by node and then kind.
    pub fn zone_counts(&self) -> impl Iterator<Item = ZoneCounts> {
        (0..self.nodes.zones().len() as u8).map(|index| self.counts_of(index))
    }

    fn counts_of(&self, index: u8) -> ZoneCounts {
        let entry = &self.nodes.zones()[usize::from(index)];
        let zone = &entry.zone;
        ZoneCounts {
            node: entry.node,
            kind: entry.kind,
            span: zone.span(),
            present: zone.present(),
            managed: zone.managed(),
            free: zone.free_frames_exact(),
            parked: self.parked_in(index),
            levels: zone.levels(),
            reserves: entry.reserves(),
            reserved_highatomic: zone.reserved_highatomic(),
            free_highatomic: zone.free_highatomic(),
            cma: zone.cma_frames(),
            free_cma: zone.free_cma(),
            isolated: zone.isolated_frames(),
            bad: zone.bad_frames(),
            ballooned: zone.ballooned(),
            free_blocks: zone.free_blocks_by_order(),
        }
    }

    /// The numbers of every pageset, by zone and then CPU.
    pub fn pageset_counts(&self) -> impl Iterator<Item = PagesetCounts> {
        let zones = self.nodes.zones().iter().enumerate();
        zones.flat_map(|(index, zone)| {
            let pagesets = self.pagesets.of_zone(index as u8);
            pagesets.map(|(cpu, pageset)| {
                let off = IrqOff::<P>::new();
                let cache = pageset.lock(&off);
                PagesetCounts {
                    cpu,
                    node: zone.node,
                    kind: zone.kind,
                    parked: cache.parked(),
                    high: cache.high(),
                    limits: cache.limits(),
                    exchanges: cache.exchanges(),
                }
            })
        })
    }

    fn parked_in(&self, index: u8) -> u64 {
        let off = IrqOff::<P>::new();
        let caches = self.pagesets.of_zone(index);
        caches
            .map(|(_, pageset)| u64::from(pageset.lock(&off).parked()))
            .sum()
    }

    /// Frames that could be had now: free in zones or parked in pagesets. Exact at rest.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        let free: u64 = self.zones().map(|zone| zone.free_frames_exact()).sum();
        free + self.parked_frames()
    }

    /// Frames parked in pagesets.
    #[must_use]
    pub fn parked_frames(&self) -> u64 {
        (0..self.nodes.zones().len() as u8)
            .map(|zone| self.parked_in(zone))
            .sum()
    }

    /// Frames that were handed to the allocator.
    #[must_use]
    pub fn managed_frames(&self) -> u64 {
        self.zones().map(|zone| zone.managed()).sum()
    }

    /// Recounts every layer from its records, at rest: zones, pagesets, and both against what is managed.
    ///
    /// # Errors
    /// The first [`CheckError`].
    pub fn check(&self) -> Result<(), CheckError> {
        let off = IrqOff::<P>::new();
        for (index, entry) in self.nodes.zones().iter().enumerate() {
            let index = index as u8;
            let (node, kind, zone) = (entry.node, entry.kind, &entry.zone);
            zone.check()
                .map_err(|fault| CheckError::Zone(node, kind, fault))?;
            for (cpu, pageset) in self.pagesets.of_zone(index) {
                let cache = pageset.lock(&off);
                if !cache.check() {
                    return Err(CheckError::Pageset(cpu, node, kind));
                }
                // Of a zone that is coming online still, they stay those of its early part.
                let settled = self.deferral.is_done() || !self.nodes.is_deferred(index);
                if settled && cache.limits() != self.fresh_limits(index, cpu) {
                    return Err(CheckError::StaleLimits(cpu, node, kind));
                }
                for (frame, order) in cache.blocks() {
                    let pfn = Pfn(zone.base().0 + u64::from(frame));
                    let sound = pfn.is_aligned(order)
                        && self.nodes.zone_of(pfn) == Some(index)
                        && self
                            .codes
                            .get(usize::from(index))
                            .is_none_or(|codes| codes.is_clear(pfn, order));
                    if !sound {
                        return Err(CheckError::Parked(cpu, pfn, order));
                    }
                }
            }
            if self.deferral.is_done()
                && (entry.zone.levels() != self.nodes.fresh_levels(entry, &self.config.tuning)
                    || entry.reserves() != self.nodes.fresh_reserves(entry)
                    || entry.zone.drift_threshold() != self.nodes.fresh_drift(entry))
            {
                return Err(CheckError::StaleMarks(node, kind));
            }
            let counts = self.counts_of(index);
            if counts.free + counts.parked > counts.managed {
                return Err(CheckError::TooMany(node, kind));
            }
        }
        Ok(())
    }
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zone(node, kind, fault) => write!(f, "node {} zone {kind}: {fault:?}", node.0),
            Self::Pageset(cpu, node, kind) => write!(
                f,
                "CPU {}'s pageset of node {} zone {kind}: count or links are wrong",
                cpu.0, node.0
            ),
            Self::StaleLimits(cpu, node, kind) => write!(
                f,
                "CPU {}'s pageset of node {} zone {kind}: limits are stale",
                cpu.0, node.0
            ),
            Self::StaleMarks(node, kind) => {
                write!(
                    f,
                    "node {} zone {kind}: watermarks, reserves or drift threshold are stale",
                    node.0
                )
            }
            Self::Parked(cpu, pfn, order) => write!(
                f,
                "CPU {} parks frame {pfn} of order {order}, which is not its to park",
                cpu.0
            ),
            Self::TooMany(node, kind) => {
                write!(
                    f,
                    "node {} zone {kind}: more frames free than managed",
                    node.0
                )
            }
        }
    }
}

impl core::error::Error for CheckError {}
