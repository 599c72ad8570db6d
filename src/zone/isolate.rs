//! Collecting a range: nothing is given from it, what is freed in it stays there.
//!
//! Owns: [`Isolation`], the claim to a range of lines; taking its free frames; taking it offline.
//! Invariants: a line is isolated by one claim at a time, and keeps its kind meanwhile; its free frames are in
//! `isolated_frames` only. Blocks that reach over the edge of an isolated range are cut there.
//! Lock ranks: `Shard`, one at a time, at most `MAX_LINES_PER_HOLD` lines a hold.
//! Used by: alloc (contiguous ranges, CMA), node (offlining).

use core::ops::Range;

use super::holes::{Ahead, Hole};
use super::info::{Info, Isolated};
use super::line::{ALL_FREE, PLACES, WHOLE, Words};
use super::shard::Shard;
use super::{Mobility, Zone};
use crate::addr::{FrameRange, Pfn};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;

/// What a range is collected for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A contiguous block outside CMA areas.
    Contiguous,
    /// A block of a CMA area.
    Cma,
    /// Taking the range offline.
    Offline,
}

/// Why a range cannot be isolated. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IsolateError {
    /// The range is empty, or part of it is outside the zone.
    Range(FrameRange),
    /// Somebody else collects this frame's pageblock.
    Busy(Pfn),
    /// No frame of this frame's pageblock is online.
    Absent(Pfn),
    /// This frame's pageblock is kept for another purpose.
    Kept(Pfn),
}

/// The claim to an isolated range. Give it back with [`Zone::release`].
#[must_use = "dropping a claim leaves its range isolated for ever"]
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Isolation {
    range: FrameRange,
    /// Lines that it touches, from the zone's base.
    lines: Range<u32>,
}

impl Isolation {
    /// The frames that were asked for; the pageblocks around its ends are isolated too.
    pub(crate) fn range(&self) -> FrameRange {
        self.range
    }

    /// All frames of the pageblocks that it touches, those before and after the zone included.
    pub(super) fn lines_in<P: Platform>(&self, zone: &Zone<P>) -> FrameRange {
        FrameRange::new(
            zone.line_start(self.lines.start),
            zone.line_start(self.lines.end),
        )
    }
}

impl<P: Platform> Zone<P> {
    /// Isolates the lines of `range`: all of them or none.
    ///
    /// # Errors
    /// [`IsolateError`], with nothing changed.
    pub(crate) fn isolate(
        &self,
        range: FrameRange,
        purpose: Purpose,
        off: &IrqOff<P>,
    ) -> Result<Isolation, IsolateError> {
        if range.is_empty() || !self.span().covers(range) {
            return Err(IsolateError::Range(range));
        }
        let mut failed = None;
        let mut done = 0;
        self.each_part(range, off, |shard, line, _| {
            if failed.is_none() {
                match shard.isolate(line, purpose) {
                    Ok(()) => done += 1,
                    Err(error) => failed = Some(error),
                }
            }
        });
        let start = ((range.start().0 - self.base) / u64::from(PLACES)) as u32;
        let lines = start..start + done;
        match failed {
            None => Ok(Isolation { range, lines }),
            Some(error) => {
                let at = self.line_start(lines.end);
                self.unisolate(lines, off);
                Err(error(at))
            }
        }
    }

    /// Ends the isolation, once; free frames join their neighbours of the same kind again.
    pub(crate) fn release(&self, isolation: &Isolation, off: &IrqOff<P>) {
        self.unisolate(isolation.lines.clone(), off);
    }

    fn unisolate(&self, lines: Range<u32>, off: &IrqOff<P>) {
        let frames = FrameRange::new(self.line_start(lines.start), self.line_start(lines.end));
        self.each_part(frames, off, |shard, line, _| {
            shard.set_isolated(line, Isolated::No)
        });
    }

    /// The first frame that is online and not free, bad ones that nobody uses apart: what stands in the way of taking a range. Looks at as many lines as it must, without a lock; the answer may be stale.
    pub(crate) fn next_used(&self, range: FrameRange) -> Option<Pfn> {
        let range = self.span().intersect(range);
        self.masks(range).find_map(|(line, mask)| {
            let used = self.used(line, &mask);
            let i = used.iter().position(|&word| word != 0)?;
            let place = i as u64 * 64 + u64::from(used[i].trailing_zeros());
            Some(Pfn(self.line_start(line).0 + place))
        })
    }

    /// The run of such frames that the first one begins, within its pageblock.
    pub(crate) fn next_used_run(&self, range: FrameRange) -> Option<FrameRange> {
        let start = self.next_used(range)?;
        let line = (start.0 - self.base) / u64::from(PLACES);
        let end = self.line_start(line as u32 + 1).0.min(range.end().0);
        let used = self.used(line as u32, &ALL_FREE);
        let is_used = |pfn: u64| {
            let place = (pfn - self.base) % u64::from(PLACES);
            used[place as usize / 64] >> (place % 64) & 1 != 0
        };
        let after = (start.0 + 1..end).find(|&pfn| !is_used(pfn));
        Some(FrameRange::new(start, Pfn(after.unwrap_or(end))))
    }

    /// The first frame that is not managed, or bad.
    pub(crate) fn next_unusable(&self, range: FrameRange) -> Option<Pfn> {
        self.next_of(range, Hole::unusable)
    }

    /// The first frame that is not managed.
    pub(crate) fn next_absent(&self, range: FrameRange) -> Option<Pfn> {
        self.next_of(range, |hole| hole.absent.load())
    }

    fn next_of(&self, range: FrameRange, places: impl Fn(&Hole) -> Words) -> Option<Pfn> {
        self.masks(range).find_map(|(line, mask)| {
            let info = Info(self.infos[line as usize].load(Relaxed));
            let unusable = match self.holes.of(info.holes()) {
                _ if info.is_absent() => ALL_FREE,
                Some(hole) => places(hole),
                None => [0; 8],
            };
            let i = (0..8).find(|&i| mask[i] & unusable[i] != 0)?;
            let place = i as u64 * 64 + u64::from((mask[i] & unusable[i]).trailing_zeros());
            Some(Pfn(self.line_start(line).0 + place))
        })
    }

    /// Places of `mask` that are online and not free, bad ones that nobody uses apart.
    fn used(&self, line: u32, mask: &Words) -> Words {
        let info = Info(self.infos[line as usize].load(Relaxed));
        if info.is_absent() || info.is_whole() {
            return [0; 8];
        }
        let out_of_use = match self.holes.of(info.holes()) {
            Some(hole) => hole.out_of_use(),
            None => [0; 8],
        };
        let free = self.lines[line as usize].load();
        core::array::from_fn(|i| mask[i] & !free[i] & !out_of_use[i])
    }

    /// Takes the frames of an isolated range: all of them, or none if one is in use, absent or bad; that one is the error.
    /// They are the caller's then, to be given back as blocks of any order.
    pub(crate) fn take_range(&self, isolation: &Isolation, off: &IrqOff<P>) -> Result<(), Pfn> {
        // Nobody takes frames from isolated lines, so what is free now stays free.
        for (line, mask) in self.masks(isolation.range) {
            let info = Info(self.infos[line as usize].load(Relaxed));
            let free = if info.is_whole() {
                ALL_FREE
            } else {
                self.lines[line as usize].load()
            };
            if let Some(i) = (0..8).find(|&i| mask[i] & !free[i] != 0) {
                let place = i as u64 * 64 + u64::from((mask[i] & !free[i]).trailing_zeros());
                return Err(Pfn(self.line_start(line).0 + place));
            }
        }
        self.each_part(isolation.range, off, |shard, line, mask| {
            shard.take_places(line, mask);
        });
        Ok(())
    }

    /// Takes a range offline: its frames are not managed, nor present, any more. Bad ones stay bad.
    ///
    /// # Errors
    /// The isolation, and the first frame that is still in use.
    pub(crate) fn offline(
        &self,
        isolation: Isolation,
        off: &IrqOff<P>,
    ) -> Result<(), (Isolation, OfflineError)> {
        let range = isolation.range;
        if let Some(pfn) = self.next_used(range) {
            return Err((isolation, OfflineError::InUse(pfn)));
        }
        let Some(_changing) = self.change() else {
            return Err((isolation, OfflineError::Busy));
        };
        // Only the ends can touch a line in part, and only such a line needs a record of its own.
        let records = self.masks(range).filter(|(line, mask)| {
            let info = Info(self.infos[*line as usize].load(Relaxed));
            *mask != ALL_FREE && info.holes() == 0 && !info.is_absent()
        });
        let Some(mut records) = self.holes.ahead(records.count()) else {
            return Err((isolation, OfflineError::TooManyHoles));
        };
        let mut frames = 0;
        self.each_part(range, off, |shard, line, mask| {
            frames += u64::from(shard.offline(line, mask, &mut records));
            let info = shard.info(line);
            if info.is_absent() && info.kind() == Mobility::HighAtomic {
                shard.retag(line, Mobility::Movable);
                self.leave_reserve();
            }
        });
        self.unisolate(isolation.lines, off);
        self.managed.fetch_sub(frames, Relaxed);
        self.present.fetch_sub(frames, Relaxed);
        Ok(())
    }
}

/// Why a range cannot go offline. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OfflineError {
    /// This frame is in use, on a pageset, or in a batch.
    InUse(Pfn),
    /// Too many lines of the zone have holes or bad frames: align the range to 512 frames.
    TooManyHoles,
    /// Another range is being changed now; try again.
    Busy,
}

impl Shard {
    fn isolate(&mut self, line: u32, purpose: Purpose) -> Result<(), fn(Pfn) -> IsolateError> {
        let info = self.info(line);
        let kind = info.kind();
        if info.is_isolated() {
            return Err(IsolateError::Busy);
        }
        if info.is_absent() {
            return Err(IsolateError::Absent);
        }
        let fits = match purpose {
            Purpose::Contiguous | Purpose::Offline => kind != Mobility::Cma,
            Purpose::Cma => kind == Mobility::Cma,
        };
        if !fits {
            return Err(IsolateError::Kept);
        }
        self.set_isolated(line, Isolated::Yes);
        Ok(())
    }

    fn set_isolated(&mut self, line: u32, isolated: Isolated) {
        let old = self.info(line);
        let new = old.with_isolated(isolated);
        self.counts.sub(old, old.free());
        self.counts.add(new, old.free());
        self.update(line, new);
    }

    /// Takes places of a line, all of which are free.
    pub(super) fn take_places(&mut self, line: u32, mask: &Words) {
        let info = self.info(line);
        let words = self.words(line);
        let left: Words = core::array::from_fn(|i| words[i] & !mask[i]);
        let new = self.rewrite(line, &left, info);
        self.counts.sub(info, info.free() - new.free());
        self.update(line, new);
    }

    /// Takes the places of `mask` offline, which are free, bad or absent; returns how many were online. A line that stays in part takes
    /// one of the records, unless it has one.
    fn offline(&mut self, line: u32, mask: &Words, records: &mut Ahead) -> u32 {
        let info = self.info(line);
        if info.is_absent() {
            return 0;
        }
        let n = match info.holes() {
            0 if *mask == ALL_FREE => 0,
            // Without one the line would stay as it is.
            0 => match records.take() {
                Some(n) => n,
                None => return 0,
            },
            n => n,
        };
        let words = self.words(line);
        self.take_places(line, &core::array::from_fn(|i| words[i] & mask[i]));
        let info = self.info(line);
        let Some(hole) = self.holes.of(n) else {
            self.update(line, info.absent());
            return PLACES;
        };
        let before = hole.absent.load();
        let absent: Words = core::array::from_fn(|i| before[i] | mask[i]);
        hole.absent.store(&absent);
        let went: u32 = (0..8).map(|i| (absent[i] & !before[i]).count_ones()).sum();
        if absent != ALL_FREE {
            self.update(line, info.present(n));
        } else if hole.bad.load() == [0; 8] {
            self.holes.give(n);
            self.update(line, info.present(0).absent());
        } else {
            self.update(line, info.present(n).absent());
        }
        went
    }
}

const _: () = assert!(1 << WHOLE == PLACES);
