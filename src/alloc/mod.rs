//! The page allocator: blocks of frames for the asking, usable alone.
//!
//! Owns: [`PageAllocator`]: the nodes with their zones, the pagesets, the codes of frames given as numbers.
//! Invariants: a frame is in exactly one place: a shard of its zone, a pageset, or out with one owner.
//! [`check`](PageAllocator::check) recounts it.
//! Lock ranks: Hotplug, alone; Pageset, then Shard. Used by: frame, memcg, mm, reclaim; a hypervisor may use nothing above it.

mod attempt;
mod bad;
mod balance;
mod balloon;
mod bulk;
mod check;
mod cma;
mod codes;
mod compact;
mod config;
mod contents;
mod contig;
mod cpus;
mod deferred;
#[cfg(all(test, loom))]
mod deferred_loom_tests;
mod error;
mod fast;
mod hotplug;
#[cfg(all(test, loom))]
mod loom_tests;
mod offline;
mod pages;
mod place;
mod raw;
mod relief;
mod reporting;
mod request;
mod slow;
#[cfg(all(test, not(loom)))]
mod slow_tests;

use core::fmt;

use crate::addr::{CpuId, FrameRange, NodeId, Pfn, ZoneKind};
use crate::boot::{BootMap, Bump, Memory, Refused};
use crate::node::{Nodes, Prepare, Shape};
use crate::pageset::tune::Limits;
use crate::pageset::{Cache, Pagesets, Pressure};
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::sync::twin::left_out;
use crate::sync::{Lock, Ranked};
use crate::zone::{Mobility, Zone};

pub use balance::Boosts;
pub use balloon::Balloon;
pub use check::{CheckError, PagesetCounts, ZoneCounts};
pub use cma::{Cma, CmaBlock, CmaError};
use codes::Codes;
pub use codes::RawError;
pub use config::{Config, InitError, MAX_CPUS};
pub use contents::{Contents, Damage, POISON};
pub use contig::{Contig, ContigError, Moved};
use deferred::Deferral;
pub use deferred::FinishError;
pub use error::{AllocError, Cause, Contradiction, Shortage};
pub use hotplug::{HotplugError, ReleaseError, Released};
pub use offline::OnlineError;
pub use pages::Pages;
pub use relief::{Caller, Compaction, Need, Oom, Progress, Relief};
pub use reporting::Reported;
pub use request::{Reclaim, Request};
pub use slow::{OOM_CALLS, RETRIES, ROUNDS};

/// Hands out the frames of one machine, or of one guest.
pub struct PageAllocator<P: Platform> {
    nodes: Nodes<P>,
    pagesets: Pagesets<P>,
    /// By zone; empty if the instance keeps none.
    codes: &'static [Codes],
    config: Config,
    deferral: Deferral<P>,
    /// What must be readied above before a section's frames are given.
    prepare: Option<&'static dyn Prepare>,
    /// Taken while watermarks are recomputed: of two who do, the later one sees what both have changed.
    turn: Lock<Turn, P>,
    /// Address of the last write to a free frame that was found, times 256, and the byte found there.
    damage: AtomicU64,
    /// Frames leaked for such writes.
    leaked: AtomicU64,
    /// Frames of the map that no zone could record.
    refused: AtomicU64,
    /// Whether an out-of-memory hook runs for a request.
    oom: AtomicBool,
    /// Bytes of metadata, for reports.
    metadata: usize,
}

/// Whose turn it is to recompute watermarks.
#[derive(Debug)]
struct Turn;

impl Ranked for Turn {
    const RANK: Rank = Rank::Hotplug;
}

impl<P: Platform> PageAllocator<P> {
    /// Takes over the memory's free frames. The metadata goes to the memory's storage, or to the top of the memory itself.
    ///
    /// # Errors
    /// [`InitError`], and the memory as it was.
    pub fn new<'b, const N: usize>(
        memory: Memory<'b, P, N>,
        config: &Config,
    ) -> Result<Self, Refused<InitError, Memory<'b, P, N>>> {
        let (this, map) = memory.build(|bump, map| Self::build(bump, map, config))?;
        this.populate(map);
        Ok(this)
    }

    /// Carves an instance without free frames.
    pub(crate) fn build<const N: usize>(
        bump: &mut Bump<'_>,
        map: &BootMap<N>,
        config: &Config,
    ) -> Result<Self, InitError> {
        config.check()?;
        let memory_kib = map.usable_bytes() >> 10;
        if let Some(kib) = config.tuning.min_free_kib.filter(|&kib| kib >= memory_kib) {
            return Err(InitError::MinFree { kib, memory_kib });
        }
        for (node, _) in map.usable_frames(P::PAGE_SHIFT) {
            config.check_node(node)?;
        }
        for zone in config.zones.zones(map, P::PAGE_SHIFT) {
            // A line may start before the zone, so the last frame number must leave room for one.
            if zone.frames.frames() > u64::from(u32::MAX) - (1 << 10) {
                return Err(InitError::ZoneTooLarge(zone.node));
            }
        }
        if config.contents != Contents::Keep {
            let absent = |pfn| {
                let mut hotplug = map.hotplug_frames(P::PAGE_SHIFT);
                hotplug.any(|range| range.contains(pfn))
            };
            for (_, frames) in map.usable_frames(P::PAGE_SHIFT) {
                let last = Pfn(frames.end().0 - 1);
                let ends = [frames.start(), last].into_iter();
                for pfn in ends.filter(|&pfn| !absent(pfn)) {
                    let address = pfn.addr(P::PAGE_SHIFT);
                    if P::direct_map(address).is_null() {
                        return Err(InitError::Unmapped(address));
                    }
                }
            }
        }
        let shape = Shape {
            cpus: config.cpus,
            shards: config.shards,
            node_of: config.node_of,
            distance: config.distance,
            fast: config.contents == Contents::Keep,
            start: config.start_cpus,
            deferred: config.deferred,
        };
        let start = bump.used();
        let zones = config.zones.zones(map, P::PAGE_SHIFT);
        let count = zones.count();
        let nodes = Nodes::build(bump, map, &config.zones, &shape)?;
        let mut zones = config.zones.zones(map, P::PAGE_SHIFT);
        let coded = if config.raw_codes { count } else { 0 };
        let codes = bump.slots_with(coded, |bump, _| {
            let zone = zones.next().expect("counted above");
            Codes::build(bump, zone.frames).map_err(InitError::from)
        })?;
        let pagesets = Pagesets::build(bump, config.cpus, count, config.pageset_slots)?;
        Ok(Self {
            nodes,
            pagesets,
            codes,
            config: config.clone(),
            deferral: Deferral::new(config.deferred),
            prepare: None,
            turn: Lock::new(Turn),
            damage: AtomicU64::new(0),
            leaked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            oom: AtomicBool::new(false),
            metadata: bump.used() - start,
        })
    }

    /// Whether none of a section's frames can be had before it is brought online.
    pub(crate) fn comes_late(&self, section: FrameRange) -> bool {
        self.nodes.comes_late(section)
    }

    /// Names what must be readied above before a section's frames are given. Once, before [`populate`](Self::populate).
    pub(crate) fn set_prepare(&mut self, prepare: Option<&'static dyn Prepare>) {
        self.prepare = prepare;
    }

    /// Hands over the frames that the map leaves free, but for deferred ones. Once, after [`build`](Self::build).
    pub(crate) fn populate<const N: usize>(&self, map: &BootMap<N>) {
        let ready = |frames| self.clear(|| frames);
        let refused = self.nodes.populate(map, &self.config.zones, ready);
        self.refused.store(refused, Relaxed);
        self.recompute();
    }

    /// Recomputes watermarks, reserves, drift thresholds and pageset limits. Call it after every change of managed memory, once for all
    /// zones, without a lock. Returns how many pagesets got new limits. Until deferred initialisation is finished, watermarks and
    /// reserves stay zero: the sum that they are shares of is not known yet.
    pub(crate) fn recompute(&self) -> u32 {
        self.recompute_marks();
        (0..self.nodes.zones().len() as u8)
            .map(|index| self.refresh_pagesets(index))
            .sum()
    }

    /// The part of [`recompute`](Self::recompute) that is about zones.
    fn recompute_marks(&self) {
        let off = IrqOff::new();
        let _turn =
            (!left_out::<P>("limits: one recomputes at a time")).then(|| self.turn.lock(&off));
        self.nodes.renew_firsts();
        if self.deferral.is_done() {
            self.nodes.recompute(&self.config.tuning);
        }
        self.nodes.renew_drift(&off);
    }

    /// The part of [`recompute`](Self::recompute) that is about how far counts may lag.
    fn renew_drift(&self) {
        let off = IrqOff::new();
        let _turn = self.turn.lock(&off);
        self.nodes.renew_drift(&off);
    }

    /// Recomputes the limits of one zone's pagesets. Returns how many got new ones.
    fn refresh_pagesets(&self, index: u8) -> u32 {
        let pagesets = self.pagesets.of_zone(index);
        pagesets
            .map(|(cpu, pageset)| self.refresh(index, cpu, pageset))
            .sum()
    }

    /// Recomputes the limits of one pageset. Returns 1 if it got new ones.
    fn refresh(&self, index: u8, cpu: CpuId, pageset: &Lock<Cache, P>) -> u32 {
        let off = IrqOff::new();
        let mut cache = pageset.lock(&off);
        // Computed under the lock: of two who change the limits, the later one sees what both want.
        let limits = self.fresh_limits(index, cpu);
        u32::from(cache.set_limits(limits))
    }

    /// The limits that a pageset ought to have.
    fn fresh_limits(&self, index: u8, cpu: CpuId) -> Limits {
        let zone = &self.nodes.zones()[usize::from(index)];
        self.nodes.fresh_limits(zone, cpu, &self.config.tuning)
    }

    /// A tick of the calling CPU's housekeeping, about once a second: pagesets that were quiet give frames back.
    pub fn tick(&self) {
        for (index, zone) in self.nodes.zones().iter().enumerate() {
            let off = IrqOff::new();
            if let Some(pageset) = self.pagesets.of(off.cpu(), index as u32)
                && let Some(mut cache) = pageset.try_lock(&off)
            {
                cache.decay(&zone.zone, &off);
            }
        }
    }

    /// The zone's index, the frame's number in it, and the list it would be parked on.
    pub(crate) fn place(&self, pfn: Pfn) -> Option<(u8, u32, Mobility)> {
        let index = self.nodes.zone_of(pfn)?;
        let zone = self.nodes.zone(index);
        let frame = (pfn.0 - zone.base().0) as u32;
        Some((index, frame, list_mobility(zone.mobility_of(pfn))))
    }

    /// The node whose memory the frame is; `None` if there is no such frame.
    #[must_use]
    pub fn node_of(&self, pfn: Pfn) -> Option<NodeId> {
        let zone = self.nodes.zone_of(pfn)?;
        Some(self.nodes.zones()[usize::from(zone)].node)
    }

    /// The kind of the zone that the frame is in; `None` if there is no such frame.
    #[must_use]
    pub fn zone_of(&self, pfn: Pfn) -> Option<ZoneKind> {
        let zone = self.nodes.zone_of(pfn)?;
        Some(self.nodes.zones()[usize::from(zone)].kind)
    }

    /// Every zone, by node and then kind.
    pub fn zones(&self) -> impl Iterator<Item = &'static Zone<P>> + use<P> {
        self.nodes.zones().iter().map(|zone| &zone.zone)
    }

    /// From the first frame to the last, holes included.
    #[must_use]
    pub fn span(&self) -> FrameRange {
        let start = self.zones().map(|zone| zone.span().start()).min();
        let end = self.zones().map(|zone| zone.span().end()).max();
        FrameRange::new(start.unwrap_or_default(), end.unwrap_or_default())
    }

    /// Frames of the map that were left out, since a zone records at most 4095 lines of 512 frames that are not whole.
    #[must_use]
    pub fn refused_frames(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Tells the pagesets of every zone how memory stands: while reclaim runs they keep less. The kernel's reclaiming thread
    /// says when it starts and when it is done.
    pub fn set_pressure(&self, pressure: Pressure) {
        self.nodes
            .zones()
            .iter()
            .for_each(|zone| zone.set_pressure(pressure));
    }

    /// Bytes that the instance's metadata takes.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        self.metadata
    }

    /// What it was made for.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }
}

/// The list that a block from a line of this kind is parked on: special kinds are lent to movable requests.
fn list_mobility(mobility: Mobility) -> Mobility {
    if mobility.is_mergeable() {
        mobility
    } else {
        Mobility::Movable
    }
}

impl<P: Platform> fmt::Debug for PageAllocator<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PageAllocator({} of {} frames free)",
            self.free_frames(),
            self.managed_frames()
        )
    }
}
