//! Frames coming into a zone.
//!
//! Owns: [`Zone::online`]. Invariants: a line whose frames are all managed has no record of holes; any other present
//! line has one. Only one range changes at a time, by the claim `changing`.
//! Lock ranks: `Shard`, one at a time, at most `MAX_LINES_PER_HOLD` lines a hold.
//! Used by: node.

use super::holes::Ahead;
use super::info::{Fault, Info};
use super::line::{ALL_FREE, PLACES, WHOLE, Words};
use super::shard::Shard;
use super::{MAX_LINES_PER_HOLD, Zone};
use crate::addr::FrameRange;
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// While it lives, nobody else changes which frames are online.
pub(super) struct Changing<'z>(&'z AtomicBool);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire of `change`.
        self.0.store(false, Release);
    }
}

/// Why frames cannot come online. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnlineError {
    /// Part of the range is outside the zone's span.
    Outside {
        /// What was to come online.
        range: FrameRange,
    },
    /// Part of the range is online already.
    AlreadyManaged {
        /// What was to come online.
        range: FrameRange,
    },
    /// Too many lines of the zone have holes or bad frames: align the range to 512 frames.
    TooManyHoles,
    /// Another range is being changed now; try again.
    Busy,
}

impl<P: Platform> Zone<P> {
    /// Makes frames present, managed and free. The work is per line of 512 frames.
    ///
    /// # Errors
    /// [`OnlineError`], with nothing changed.
    pub(crate) fn online(&self, range: FrameRange, off: &IrqOff<P>) -> Result<(), OnlineError> {
        let (_changing, mut records) = self.claim_absent(range)?;
        self.add_present(self.bring_lines(range, &mut records, off));
        Ok(())
    }

    /// [`online`](Self::online); once nothing stands in the way, and before anybody can get a frame, `ready` is called, with no lock
    /// held and interrupts as the caller has them.
    pub(crate) fn online_after(
        &self,
        range: FrameRange,
        ready: impl FnOnce(),
    ) -> Result<(), OnlineError> {
        let frames = self.online_reserved(range, ready)?;
        self.add_present(frames);
        Ok(())
    }

    /// [`online_after`](Self::online_after) of frames that count as present since boot. Returns how many they are.
    pub(crate) fn online_reserved(
        &self,
        range: FrameRange,
        ready: impl FnOnce(),
    ) -> Result<u64, OnlineError> {
        let (_changing, mut records) = self.claim_absent(range)?;
        ready();
        Ok(self.bring_lines(range, &mut records, &IrqOff::new()))
    }

    /// The right to bring a range online, all of which is absent, and the records that it takes.
    fn claim_absent(&self, range: FrameRange) -> Result<(Changing<'_>, Ahead), OnlineError> {
        if !self.spec.span.covers(range) {
            return Err(OnlineError::Outside { range });
        }
        let changing = self.change().ok_or(OnlineError::Busy)?;
        Ok((changing, self.records_for(range)?))
    }

    /// Makes absent frames managed and free, on lines that the caller alone may change. Returns how many: all, unless the zone has
    /// no room left to record lines that are not whole. Whether they become present is the caller's to say.
    pub(crate) fn online_lines(&self, range: FrameRange, off: &IrqOff<P>) -> u64 {
        let none = self.holes.ahead(0);
        none.map_or(0, |mut none| self.bring_lines(range, &mut none, off))
    }

    fn bring_lines(&self, range: FrameRange, records: &mut Ahead, off: &IrqOff<P>) -> u64 {
        let mut frames = 0;
        self.each_part(range, off, |shard, line, mask| {
            frames += u64::from(shard.online(line, mask, records));
        });
        self.managed.fetch_add(frames, Relaxed);
        self.regroup(self.managed().saturating_sub(self.levels().high));
        frames
    }

    /// Counts `frames` as existing from now on.
    pub(crate) fn add_present(&self, frames: u64) {
        self.present.fetch_add(frames, Relaxed);
    }

    /// Gives a range back whose every frame the caller has. The work is per line of 512 frames.
    ///
    /// # Errors
    /// [`Fault`], with nothing changed.
    pub(crate) fn give_range(&self, range: FrameRange, off: &IrqOff<P>) -> Result<(), Fault> {
        let check = || {
            if !self.span().covers(range) {
                return Err(Fault::Outside);
            }
            for (line, mask) in self.masks(range) {
                let info = Info(self.infos[line as usize].load(Relaxed));
                let hole = self.holes.of(info.holes());
                let absent = hole.map_or([0; 8], |hole| hole.absent.load());
                if info.is_absent() || (0..8).any(|i| absent[i] & mask[i] != 0) {
                    return Err(Fault::Unmanaged);
                }
                let free = self.lines[line as usize].load();
                if info.is_whole() || (0..8).any(|i| free[i] & mask[i] != 0) {
                    return Err(Fault::AlreadyFree);
                }
            }
            Ok(())
        };
        // The frames are the caller's, so nobody else changes what was seen.
        check().inspect_err(|_| {
            self.faults.fetch_add(1, Relaxed);
        })?;
        self.each_part(range, off, |shard, line, mask| {
            shard.free_places(line, mask);
        });
        Ok(())
    }

    /// The claim to change which frames are online; `None` while another has it.
    pub(super) fn change(&self) -> Option<Changing<'_>> {
        // Acquire pairs with the Release of the drop: the last change is complete.
        (!self.changing.swap(true, Acquire)).then(|| Changing(&self.changing))
    }

    /// The records that `range` takes, all of which must be absent: only where it begins and ends may it meet a line in part.
    fn records_for(&self, range: FrameRange) -> Result<Ahead, OnlineError> {
        let mut records = 0;
        for (line, mask) in self.masks(range) {
            let info = Info(self.infos[line as usize].load(Relaxed));
            let hole = self.holes.of(info.holes());
            let absent = match hole {
                _ if info.is_absent() => ALL_FREE,
                Some(hole) => hole.absent.load(),
                None => [0; 8],
            };
            if (0..8).any(|i| mask[i] & !absent[i] != 0) {
                return Err(OnlineError::AlreadyManaged { range });
            }
            records += usize::from(mask != ALL_FREE && hole.is_none());
        }
        self.holes.ahead(records).ok_or(OnlineError::TooManyHoles)
    }

    /// Every line that `range` touches, from the zone's base, with the places that it covers.
    pub(super) fn masks(&self, range: FrameRange) -> impl Iterator<Item = (u32, Words)> + use<P> {
        let (start, end) = (range.start().0 - self.base, range.end().0 - self.base);
        let places = u64::from(PLACES);
        let lines = if start == end {
            0..0
        } else {
            start / places..end.div_ceil(places)
        };
        lines.map(move |line| {
            let from = start.saturating_sub(line * places);
            let to = (end - line * places).min(places);
            (line as u32, mask(from as u32, to as u32))
        })
    }

    /// Works on every line of `range`, shard by shard, in bounded holds.
    pub(super) fn each_part(
        &self,
        range: FrameRange,
        off: &IrqOff<P>,
        mut work: impl FnMut(&mut Shard, u32, &Words),
    ) {
        let mut masks = self.masks(range).peekable();
        while let Some(&(line, _)) = masks.peek() {
            let cell = self.cell_of(line * PLACES);
            self.with(cell, off, |shard| {
                for _ in 0..MAX_LINES_PER_HOLD {
                    let Some((line, mask)) = masks.next_if(|(line, _)| line * PLACES < cell.end)
                    else {
                        break;
                    };
                    work(shard, line - cell.first / PLACES, &mask);
                }
            });
        }
    }
}

impl Shard {
    /// Brings the places of `mask`, which are absent, online and makes them free, except bad ones. Returns how many they are,
    /// or none if the line would need a record and there is none left.
    fn online(&mut self, line: u32, mask: &Words, records: &mut Ahead) -> u32 {
        let info = self.info(line);
        if *mask == ALL_FREE && info.holes() == 0 {
            let whole = info.present(0).with(PLACES, WHOLE as i8);
            self.counts.add(whole, PLACES);
            self.update(line, whole);
            return PLACES;
        }
        let n = match info.holes() {
            0 => records.take(),
            n => Some(n),
        };
        let Some((n, hole)) = n.and_then(|n| Some((n, self.holes.of(n)?))) else {
            return 0;
        };
        let absent = if info.is_absent() {
            ALL_FREE
        } else {
            hole.absent.load()
        };
        let absent: Words = core::array::from_fn(|i| absent[i] & !mask[i]);
        hole.absent.store(&absent);
        self.update(line, info.present(n));
        self.free_places(line, mask);
        self.drop_empty_record(line);
        mask.iter().map(|word| word.count_ones()).sum()
    }

    /// Makes the places of `mask`, which are taken, free, except those that must not be used.
    pub(super) fn free_places(&mut self, line: u32, mask: &Words) {
        let info = self.info(line);
        let unusable = match self.holes.of(info.holes()) {
            Some(hole) => {
                self.holes.drop_awaited(hole, mask);
                hole.unusable()
            }
            None => [0; 8],
        };
        let before = self.words(line);
        let words: Words = core::array::from_fn(|i| before[i] | mask[i] & !unusable[i]);
        let new = self.rewrite(line, &words, info);
        self.counts.add(info, new.free() - info.free());
        self.update(line, new);
    }

    /// Gives the record of a line back if it says nothing any more.
    pub(super) fn drop_empty_record(&mut self, line: u32) {
        let info = self.info(line);
        if let Some(hole) = self.holes.of(info.holes())
            && hole.unusable() == [0; 8]
        {
            self.update(line, info.present(0));
            self.holes.give(info.holes());
        }
    }
}

/// Places `from..to` of a line.
pub(super) fn mask(from: u32, to: u32) -> Words {
    core::array::from_fn(|i| {
        let start = i as u32 * 64;
        let (from, to) = (from.clamp(start, start + 64), to.clamp(start, start + 64));
        if from >= to {
            0
        } else {
            (!0 >> (64 - (to - from))) << (from - start)
        }
    })
}
