//! Recounting a zone from scratch.
//!
//! Owns: [`Zone::check`], [`ZoneFault`]. Invariants: none of its own; it states those of the layer.
//! Lock ranks: `Shard`, one at a time, a whole shard a hold: a debugging aid, not for a busy system.
//! Used by: tests, report, the kernel's own debugging.

use core::fmt;

use super::Zone;
use super::counts::Counts;
use super::info::Info;
use super::line::{ALL_FREE, PLACES};
use super::mobility::Mobility;
use super::shape::Shape;
use super::shard::{SETS, Shard};
use crate::addr::Pfn;
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;

/// A place where a zone's bookkeeping contradicts itself: memory corruption, or a bug here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ZoneFault {
    /// The line that starts here: its bits and its count of free frames differ.
    FreeCount(Pfn),
    /// The line that starts here: its largest free block is not the one noted.
    Class(Pfn),
    /// The line that starts here is in a set that it should not be in, or is missing from one.
    Set(Pfn),
    /// The line that starts here is fuller than its group is said to be.
    Fullness(Pfn),
    /// The line that starts here: a frame is free that is absent or bad.
    FreeHole(Pfn),
    /// The line that starts here: its record of absent and bad frames is not there, or empty.
    Record(Pfn),
    /// The run of 2^18 frames that starts here: its whole lines are not the ones noted.
    Pool(Pfn),
    /// A set of lines has members that it should not have, or contradicts its own summary, in the shard that starts here.
    Summary(Pfn),
    /// A counter of the shard that starts here differs from the recount.
    Counter(Pfn),
    /// The highatomic lines do not make up the reserve.
    Reserve {
        /// As noted.
        noted: u64,
        /// As counted.
        counted: u64,
    },
    /// The CMA lines do not make up what is counted as CMA.
    Cma {
        /// As noted.
        noted: u64,
        /// As counted.
        counted: u64,
    },
    /// The number of managed frames differs from the recount.
    Managed {
        /// As noted.
        noted: u64,
        /// As counted.
        counted: u64,
    },
}

impl<P: Platform> Zone<P> {
    /// Recounts everything: bits, classes, sets, counters. Call it when nothing else changes the zone.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn check(&self) -> Result<(), ZoneFault> {
        let off = IrqOff::new();
        let mut managed = 0;
        for cell in self.shards {
            let start = Pfn(self.base + u64::from(cell.first));
            let at = |line: u32| Pfn(start.0 + u64::from(line) * u64::from(PLACES));
            let shard = cell.lock.lock(&off);
            let mut counts = Counts {
                faults: shard.counts.faults,
                ..Counts::default()
            };
            let mut members = [0; SETS as usize];
            for line in cell.lines() {
                let checked = shard.check_line(line, &mut counts, &mut members);
                managed += checked.map_err(|fault| fault(at(line)))?;
            }
            shard.check_pool(&mut counts).map_err(|giant| {
                let start = start.0 - u64::from(shard.skew) * u64::from(PLACES);
                ZoneFault::Pool(Pfn(start + (u64::from(giant) << 18)))
            })?;
            // Each line is in its set, so a set with more members has one that should not be there.
            if !shard.summaries_hold(&members) {
                return Err(ZoneFault::Summary(start));
            }
            counts.apart = 0;
            if counts != shard.counts
                || cell.available.load(Relaxed) != counts.available
                || cell.free.load(Relaxed) != counts.free
                || cell.free_cma.load(Relaxed) != counts.free_cma
                || cell.free_highatomic.load(Relaxed) != counts.free_highatomic
                || cell.isolated.load(Relaxed) != counts.isolated
            {
                return Err(ZoneFault::Counter(start));
            }
        }
        let noted = self.managed() + self.ballooned();
        if managed != noted {
            return Err(ZoneFault::Managed {
                noted,
                counted: managed,
            });
        }
        let frames_of = |kind: Mobility| {
            let lines = self.infos.iter();
            let lines = lines.filter(|&info| Info(info.load(Relaxed)).kind() == kind);
            lines.count() as u64 * u64::from(PLACES)
        };
        let (noted, counted) = (self.reserved_highatomic(), frames_of(Mobility::HighAtomic));
        if noted != counted {
            return Err(ZoneFault::Reserve { noted, counted });
        }
        let (noted, counted) = (self.cma_frames(), frames_of(Mobility::Cma));
        if noted != counted {
            return Err(ZoneFault::Cma { noted, counted });
        }
        let behind = self
            .free
            .load(Relaxed)
            .wrapping_sub(self.free_frames_exact()) as i64;
        if behind.unsigned_abs() > self.drift() {
            return Err(ZoneFault::Counter(self.span().start()));
        }
        Ok(())
    }
}

impl Shard {
    /// Adds a line to `counts` and returns how many of its frames are managed.
    fn check_line(
        &self,
        line: u32,
        counts: &mut Counts,
        members: &mut [u32; SETS as usize],
    ) -> Result<u64, fn(Pfn) -> ZoneFault> {
        let info = self.info(line);
        let bits = self.lines[line as usize].load();
        let words = if info.is_whole() {
            if bits != [0; 8] {
                return Err(ZoneFault::FreeCount);
            }
            ALL_FREE
        } else {
            bits
        };
        let free: u32 = words.iter().map(|word| word.count_ones()).sum();
        if free != info.free() {
            return Err(ZoneFault::FreeCount);
        }
        let agrees = self.shape(line).stands_for(Shape::of(&bits));
        if Shape::of(&words).class() != info.class() || !agrees {
            return Err(ZoneFault::Class);
        }
        let (giant, place) = self.giant(line);
        if self.giants[giant as usize].is_free(place, 0) != info.is_pooled() {
            return Err(ZoneFault::Set);
        }
        if let Some(set) = info.set() {
            if !self.index.contains(set, line) {
                return Err(ZoneFault::Set);
            }
            members[set as usize] += 1;
        }
        if !self.fullness.holds_for(line, info) {
            return Err(ZoneFault::Fullness);
        }
        let hole = self.holes.of(info.holes());
        let says_something = hole.is_some_and(|hole| hole.unusable() != [0; 8]);
        if (info.holes() != 0) != says_something {
            return Err(ZoneFault::Record);
        }
        let strays = hole.is_some_and(|hole| {
            let (bad, awaited) = (hole.bad.load(), hole.awaited.load());
            (0..8).any(|i| awaited[i] & !bad[i] != 0)
        });
        if strays {
            return Err(ZoneFault::Record);
        }
        let (absent, unusable) = match hole {
            _ if info.is_absent() => (ALL_FREE, ALL_FREE),
            Some(hole) => (hole.absent.load(), hole.unusable()),
            None => ([0; 8], [0; 8]),
        };
        if (0..8).any(|i| words[i] & unusable[i] != 0) {
            return Err(ZoneFault::FreeHole);
        }
        counts.add(info, free);
        if let Some(set) = info.set() {
            counts.available |= 1 << set;
        }
        let absent: u32 = absent.iter().map(|word| word.count_ones()).sum();
        Ok(u64::from(PLACES - absent))
    }

    /// Adds the pool's classes to `counts`; an error names the giant.
    fn check_pool(&self, counts: &mut Counts) -> Result<(), u32> {
        for giant in 0..self.giants.len() as u32 {
            let words = self.giants[giant as usize].load();
            let info: Info = self.giant_info(giant);
            let free: u32 = words.iter().map(|word| word.count_ones()).sum();
            let shape = Shape::of(&words);
            let class = shape.class();
            let in_sets = (0..10).all(|set: u32| {
                self.pool.contains(set, giant) == (class >= 0 && set == class as u32)
            });
            if free != info.free()
                || class != info.class()
                || shape != self.giant_shape(giant)
                || !in_sets
            {
                return Err(giant);
            }
            if class >= 0 {
                counts.available |= 1 << (SETS + class as u32);
            }
        }
        Ok(())
    }

    fn summaries_hold(&self, members: &[u32; SETS as usize]) -> bool {
        (0..SETS)
            .zip(members)
            .all(|(set, &lines)| self.index.is_consistent(set) && self.index.count(set) == lines)
            && (0..10).all(|set| self.pool.is_consistent(set))
    }
}

impl fmt::Display for ZoneFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FreeCount(pfn) => write!(f, "line {pfn}: free count and bits differ"),
            Self::Class(pfn) => write!(f, "line {pfn}: largest free block and bits differ"),
            Self::Set(pfn) => write!(f, "line {pfn}: in a wrong set, or missing from one"),
            Self::Fullness(pfn) => write!(f, "line {pfn}: fuller than its group is noted"),
            Self::FreeHole(pfn) => write!(f, "line {pfn}: an absent or bad frame is free"),
            Self::Record(pfn) => write!(f, "line {pfn}: its record of holes is missing or empty"),
            Self::Pool(pfn) => write!(f, "frames from {pfn}: pool of whole lines is wrong"),
            Self::Summary(pfn) => write!(f, "shard {pfn}: a summary of bitmaps is wrong"),
            Self::Counter(pfn) => write!(f, "shard {pfn}: a counter differs from the recount"),
            Self::Reserve { noted, counted } => {
                write!(f, "{noted} highatomic frames noted, {counted} counted")
            }
            Self::Cma { noted, counted } => {
                write!(f, "{noted} CMA frames noted, {counted} counted")
            }
            Self::Managed { noted, counted } => {
                write!(f, "{noted} managed frames noted, {counted} counted")
            }
        }
    }
}

impl core::error::Error for ZoneFault {}
