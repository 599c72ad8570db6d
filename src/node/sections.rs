//! Sections that come online after boot.
//!
//! Owns: [`Sections`]: the deferred sections of boot memory and those that memory may be added to, each with its state.
//! Invariants: whoever moves a section to `Claimed` alone brings it online or takes it offline; its lines are nobody else's
//! meanwhile. Deferred frames are those of a node's highest zone from its [`cut`](super::NodeZone) on; sections are whole lines, so no
//! two share one. `arrived` moves after the frames of a deferred section can be had.
//! Lock ranks: none: a claim is one compare-and-swap, and whoever waits for a claimed section does so outside every lock.
//! Used by: alloc (deferred initialisation, hot-plug).

use super::plan::{Piece, ZoneLimits};
use super::{Nodes, Run};
use crate::addr::{CpuId, FrameRange, NodeId, Pfn, ZoneKind};
use crate::boot::{BootMap, Bump, SECTION_BYTES, StorageFull};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::twin::left_out;

/// Where a section is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Stage {
    /// Boot memory that was not handed over yet.
    Waiting,
    /// Memory may be added here.
    Absent,
    /// Somebody is changing it.
    Claimed,
    /// Handed over.
    Online,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Waiting, Self::Absent, Self::Claimed, Self::Online];
    /// Bits of a stage in a section's word. Above them stands the CPU that claimed it.
    const BITS: u32 = 2;

    const fn of(word: u32) -> Self {
        Self::ALL[word as usize % Self::ALL.len()]
    }
}

/// One section that was not there from the start.
#[derive(Debug)]
pub(crate) struct Section {
    frames: FrameRange,
    /// Stage, and of a claimed one whose.
    stage: AtomicU32,
}

impl Section {
    pub(crate) fn frames(&self) -> FrameRange {
        self.frames
    }

    /// Acquire pairs with the Release of [`settle`](Self::settle): what is online has been counted as managed.
    pub(crate) fn stage(&self) -> Stage {
        Stage::of(self.stage.load(Ordering::Acquire))
    }

    /// Claims the section for the calling CPU if it is at `from`. Exactly one of many succeeds.
    pub(crate) fn claim<P: Platform>(&self, from: Stage) -> bool {
        let claimed = Stage::Claimed as u32 | P::cpu().0 << Stage::BITS;
        if left_out::<P>("sections: a claim is one step") {
            let is_there = self.stage() == from;
            self.stage.store(claimed, Ordering::Relaxed);
            return is_there;
        }
        // Acquire pairs with the Release of `settle`: the last one's changes are complete.
        self.stage
            .compare_exchange(from as u32, claimed, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether a CPU has claimed it, and whether that is another one than `own`.
    fn claimed(&self, own: CpuId) -> Option<Claimant> {
        // Acquire pairs with the Release of `settle`: whoever sees a claim ended sees that its section has arrived.
        let word = self.stage.load(Ordering::Acquire);
        let claimant = match word >> Stage::BITS == own.0 & (u32::MAX >> Stage::BITS) {
            true => Claimant::Own,
            false => Claimant::Other,
        };
        (Stage::of(word) == Stage::Claimed).then_some(claimant)
    }

    /// Ends a claim.
    pub(crate) fn settle(&self, to: Stage) {
        self.stage.store(to as u32, Ordering::Release);
    }
}

/// Who is bringing a section online.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claimant {
    /// The CPU that asks: what it runs now stands in the way.
    Own,
    /// Another.
    Other,
}

impl Claimant {
    /// Of two, the one that may be waited for.
    pub(crate) fn or(self, other: Self) -> Self {
        match self {
            Self::Own => other,
            Self::Other => self,
        }
    }
}

/// What makes frames usable for the layers above before anybody gets them.
pub(crate) trait Prepare: Sync + core::fmt::Debug {
    /// Readies what is kept for the frames of one section.
    fn prepare(&self, section: FrameRange);
}

/// Frames in a section.
pub(crate) const fn section_frames(page_shift: u32) -> u64 {
    SECTION_BYTES >> page_shift
}

/// Where a zone's deferred frames begin: at the first boundary of a section after more than one section's worth of its
/// frames (Linux: `defer_init`). Only the highest zone of its node that has memory at boot has such.
pub(super) fn cut<const N: usize>(
    map: &BootMap<N>,
    limits: &ZoneLimits,
    (node, kind): (NodeId, ZoneKind),
    page_shift: u32,
) -> Pfn {
    let size = section_frames(page_shift);
    let of_node = || at_boot(map, limits, page_shift).filter(move |piece| piece.node == node);
    if of_node().any(|piece| piece.kind > kind) {
        return NEVER;
    }
    let mut seen = 0;
    for piece in of_node().filter(|piece| piece.kind == kind) {
        if seen + piece.frames.frames() > size {
            let first = piece.frames.start().0 + size.saturating_sub(seen);
            let boundary = Pfn(first.next_multiple_of(size));
            if boundary < piece.frames.end() {
                return boundary;
            }
        }
        seen += piece.frames.frames();
    }
    NEVER
}

/// No frame of a zone is deferred.
pub(super) const NEVER: Pfn = Pfn(u64::MAX);

/// Every frame that exists at boot.
fn at_boot<const N: usize>(
    map: &BootMap<N>,
    limits: &ZoneLimits,
    page_shift: u32,
) -> impl Iterator<Item = Piece> {
    limits.pieces(map, page_shift).flat_map(move |piece| {
        let there = without(piece.frames, map.hotplug_frames(page_shift));
        there.map(move |frames| Piece { frames, ..piece })
    })
}

/// The parts of `frames` that are in none of `holes`, which ascend and do not overlap.
pub(super) fn without(
    frames: FrameRange,
    holes: impl Iterator<Item = FrameRange>,
) -> impl Iterator<Item = FrameRange> {
    let mut holes = holes
        .map(move |hole| hole.intersect(frames))
        .filter(|hole| !hole.is_empty());
    let mut rest = Some(frames);
    core::iter::from_fn(move || {
        loop {
            let from = rest?;
            let hole = holes.next();
            rest = hole.map(|hole| FrameRange::new(hole.end(), from.end()));
            let part = FrameRange::new(from.start(), hole.map_or(from.end(), |hole| hole.start()));
            if !part.is_empty() {
                return Some(part);
            }
        }
    })
}

/// The sections that ascending ranges lie in, each once.
fn sections_of(
    ranges: impl Iterator<Item = FrameRange>,
    size: u64,
) -> impl Iterator<Item = FrameRange> {
    let mut next = 0;
    ranges
        .filter(|range| !range.is_empty())
        .flat_map(move |range| {
            let from = next.max(range.start().0 / size);
            next = range.end().0.div_ceil(size);
            from..next
        })
        .map(move |section| FrameRange::new(Pfn(section * size), Pfn((section + 1) * size)))
}

/// All of one instance.
#[derive(Debug)]
pub(super) struct Sections {
    /// With deferred frames; sorted.
    deferred: &'static [Section],
    /// That memory may be added to; sorted. None is among the others.
    hotplug: &'static [Section],
    /// Deferred ones that came online since boot.
    arrived: AtomicU32,
}

impl Sections {
    /// The sections of a map; `cut` says from where on the frames of a zone are deferred.
    pub(super) fn build<const N: usize>(
        bump: &mut Bump<'_>,
        map: &BootMap<N>,
        limits: &ZoneLimits,
        page_shift: u32,
        cut: impl Fn(NodeId, ZoneKind) -> Pfn,
    ) -> Result<Self, StorageFull> {
        let size = section_frames(page_shift);
        let late = |piece: Piece| {
            let from = cut(piece.node, piece.kind).max(piece.frames.start());
            FrameRange::new(from, piece.frames.end().max(from))
        };
        let deferred = || sections_of(at_boot(map, limits, page_shift).map(late), size);
        let hotplug = || sections_of(map.hotplug_frames(page_shift), size);
        Ok(Self {
            deferred: all(bump, deferred(), deferred().count(), Stage::Waiting)?,
            hotplug: all(bump, hotplug(), hotplug().count(), Stage::Absent)?,
            arrived: AtomicU32::new(0),
        })
    }
}

fn all(
    bump: &mut Bump<'_>,
    mut frames: impl Iterator<Item = FrameRange>,
    count: usize,
    stage: Stage,
) -> Result<&'static [Section], StorageFull> {
    bump.slots(count, |_| Section {
        frames: frames.next().expect("counted before"),
        stage: AtomicU32::new(stage as u32),
    })
}

fn find(sections: &'static [Section], pfn: Pfn) -> Option<&'static Section> {
    let after = sections.partition_point(|section| section.frames.start() <= pfn);
    let section = sections.get(after.checked_sub(1)?)?;
    section.frames.contains(pfn).then_some(section)
}

impl<P: Platform> Nodes<P> {
    /// The sections with deferred frames.
    pub(crate) fn deferred_sections(&self) -> &'static [Section] {
        self.sections.deferred
    }

    /// The section with deferred frames that `pfn` is in, deferred itself or not.
    pub(crate) fn deferred_section(&self, pfn: Pfn) -> Option<&'static Section> {
        find(self.sections.deferred, pfn)
    }

    /// The section that memory may be added to and that `pfn` is in.
    pub(crate) fn hotplug_section(&self, pfn: Pfn) -> Option<&'static Section> {
        find(self.sections.hotplug, pfn)
    }

    /// Whether the section is all to come: no frame in it is usable from the start.
    pub(crate) fn comes_late(&self, section: FrameRange) -> bool {
        let early = |run: Run| {
            let from = self.zones[usize::from(run.zone)].cut;
            let there = run.frames.intersect(section);
            there.start() < there.end().min(from)
        };
        self.hotplug_section(section.start()).is_some()
            || self.deferred_section(section.start()).is_some() && !self.runs_in(section).any(early)
    }

    /// The zone's next waiting section, claimed for the caller.
    pub(crate) fn claim_section(&self, zone: u8) -> Option<&'static Section> {
        let entry = &self.zones[usize::from(zone)];
        // A hint: claims are never given back, so what was passed need not be looked at again. Acquire pairs with the Release
        // below: whoever passes a section by sees its claim, and may wait for it.
        let seen = match left_out::<P>("sections: who passes one by sees its claim") {
            true => Ordering::Relaxed,
            false => Ordering::Acquire,
        };
        let from = entry.next_section.load(seen);
        let sections = self.sections.deferred.iter().enumerate();
        let found = sections.skip(from as usize).find(|(_, section)| {
            section.stage() == Stage::Waiting
                && self.deferred_in(section.frames).any(|run| run.zone == zone)
                && section.claim::<P>(Stage::Waiting)
        });
        let next = found.map_or(self.sections.deferred.len(), |(i, _)| i + 1);
        entry.next_section.fetch_max(next as u32, Ordering::Release);
        found.map(|(_, section)| section)
    }

    /// Whether the zone may have a waiting section.
    pub(crate) fn has_waiting(&self, zone: u8) -> bool {
        let next = self.zones[usize::from(zone)]
            .next_section
            .load(Ordering::Relaxed);
        (next as usize) < self.sections.deferred.len()
    }

    /// How many deferred sections have come online. Whoever found too little free, and finds that this has moved since, may
    /// look again.
    pub(crate) fn arrived(&self) -> u32 {
        // Acquire pairs with the Release of `bring_online`: the frames of what has arrived can be had.
        self.sections.arrived.load(Ordering::Acquire)
    }

    /// Who is bringing a section online that the zone has deferred frames in: others rather than the CPU that asks. A hint.
    pub(crate) fn arriving(&self, zone: u8, own: CpuId) -> Option<Claimant> {
        let of_zone = |section: &&Section| {
            let mut runs = self.deferred_in(section.frames);
            runs.any(|run| run.zone == zone)
        };
        let claimed = self.sections.deferred.iter().filter_map(|section| {
            let claimant = section.claimed(own)?;
            of_zone(&section).then_some(claimant)
        });
        claimed.reduce(Claimant::or)
    }

    /// Brings the deferred frames of a claimed section online. Returns how many; `ready` is told each run before.
    pub(crate) fn bring_online(&self, section: &Section, ready: impl Fn(FrameRange)) -> u64 {
        if left_out::<P>("sections: online after the frames are counted") {
            section.settle(Stage::Online);
        }
        let mut frames = 0;
        for run in self.deferred_in(section.frames) {
            for free in without(run.frames, self.reserved_in(run.frames)) {
                ready(free);
                let zone = self.zone(run.zone);
                frames += zone.online_lines(free, &IrqOff::new());
            }
        }
        if left_out::<P>("sections: counted as arrived before the claim ends") {
            section.settle(Stage::Online);
        }
        // Release pairs with the Acquire of `arrived`. Before the claim ends: who sees no claim any more sees this.
        self.sections.arrived.fetch_add(1, Ordering::Release);
        section.settle(Stage::Online);
        frames
    }

    /// Brings every frame of a claimed section online that had no memory. Its lines are whole, so they need no records.
    pub(crate) fn bring_section(&self, section: FrameRange) {
        for run in self.runs_in(section) {
            let zone = self.zone(run.zone);
            let frames = zone.online_lines(run.frames, &IrqOff::new());
            zone.add_present(frames);
        }
    }

    /// The runs of deferred frames, reserved ones included, in a section.
    fn deferred_in(&self, section: FrameRange) -> impl Iterator<Item = Run> {
        self.runs_in(section).filter_map(|run| {
            let from = self.zones[usize::from(run.zone)].cut;
            let frames = run.frames.intersect(FrameRange::new(from, NEVER));
            let is_hotplug = self.hotplug_section(frames.start()).is_some();
            let late = !frames.is_empty() && !is_hotplug;
            late.then_some(Run { frames, ..run })
        })
    }

    /// The parts of runs that lie in a range.
    pub(super) fn runs_in(&self, range: FrameRange) -> impl Iterator<Item = Run> {
        let first = self
            .runs
            .partition_point(|run| run.frames.end() <= range.start());
        let runs = self.runs[first..].iter();
        let inside = runs.take_while(move |run| run.frames.start() < range.end());
        inside.map(move |run| Run {
            frames: run.frames.intersect(range),
            ..*run
        })
    }

    /// The parts of a range that were reserved at boot.
    pub(super) fn reserved_in(&self, range: FrameRange) -> impl Iterator<Item = FrameRange> {
        let first = self
            .reserved
            .partition_point(|reserved| reserved.end() <= range.start());
        let all = self.reserved[first..].iter();
        all.take_while(move |reserved| reserved.start() < range.end())
            .map(move |reserved| reserved.intersect(range))
    }

    /// The first frame of a range that was reserved at boot; memory that was added since is not.
    pub(crate) fn first_reserved(&self, range: FrameRange) -> Option<Pfn> {
        let added = self.sections.hotplug.iter();
        let added = added.filter(|section| section.stage() == Stage::Online);
        let mut kept = self
            .reserved_in(range)
            .flat_map(|reserved| without(reserved, added.clone().map(Section::frames)));
        kept.next().map(FrameRange::start)
    }

    /// The first frame of a range whose section is deferred and not online yet.
    pub(crate) fn first_waiting(&self, range: FrameRange) -> Option<Pfn> {
        let size = section_frames(P::PAGE_SHIFT);
        let sections = range.start().0 / size..range.end().0.div_ceil(size);
        let waiting = sections.filter_map(|i| {
            let section = self.deferred_section(Pfn(i * size))?;
            (section.stage() != Stage::Online).then(|| range.start().max(section.frames().start()))
        });
        { waiting }.next()
    }

    /// The zone of a range whose every frame was reserved at boot, hot-pluggable or not.
    ///
    /// # Errors
    /// The first frame that was not, or is in another zone than the range's first.
    pub(crate) fn zone_of_reserved(&self, range: FrameRange) -> Result<u8, NotReserved> {
        let zone = self
            .zone_of(range.start())
            .ok_or(NotReserved::At(range.start()))?;
        if let Some(free) = without(range, self.reserved_in(range)).next() {
            return Err(NotReserved::At(free.start()));
        }
        match self.runs_in(range).find(|run| run.zone != zone) {
            Some(run) => Err(NotReserved::OtherZone(run.frames.start())),
            None => Ok(zone),
        }
    }
}

/// Why a range cannot come online late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotReserved {
    /// This frame does not exist, or was free at boot.
    At(Pfn),
    /// This frame is in another zone than the first.
    OtherZone(Pfn),
}
