//! Giving blocks back to a shard.
//!
//! Owns: the checks on what comes back, the rise of classes. Invariants: a block is given as a whole or refused as a
//! whole, with nothing changed.
//! Lock ranks: works on the data under `Rank::Shard`.
//! Used by: zone.

use super::info::{Fault, Info};
use super::line::{Bits, PLACES, WHOLE, span};
use super::shape::Shape;
use super::shard::Shard;

impl Shard {
    /// Gives a block back.
    #[inline]
    pub(super) fn give(&mut self, frame: u32, order: u8) -> Result<(), Fault> {
        if order <= 6 && self.give_in_word(frame, order).is_some() {
            return Ok(());
        }
        if order > WHOLE {
            return self.give_lines(frame / PLACES, order);
        }
        let (line, place) = (frame / PLACES, frame % PLACES);
        let info = self.info(line);
        if !info.is_plain() {
            return self.give_around_holes(line, place, order);
        }
        if order == WHOLE && info.is_lending() && info.free() == 0 {
            self.set_info(line, info.with(PLACES, WHOLE as i8));
            self.counts.free += u64::from(PLACES);
            self.pool_give(line, 0);
            return Ok(());
        }
        let new = self.set_places(line, place, order, info)?;
        self.counts.add(info, 1 << order);
        self.settle(line, info, new);
        Ok(())
    }

    /// [`give`](Self::give) of what nearly every block is: at most a word, in a line that is no special one and does not
    /// become wholly free. `None`, with nothing changed, if it is not that, or cannot be given.
    #[inline]
    fn give_in_word(&mut self, frame: u32, order: u8) -> Option<()> {
        let (line, place) = (frame / PLACES, frame % PLACES);
        let (i, mask) = span(place, order);
        let info = self.info(line);
        let free = info.free() + (1 << order);
        let bits = &self.lines[line as usize];
        let word = bits.word(i);
        if !info.is_plain() || free >= PLACES || word & mask != 0 {
            return None;
        }
        bits.set_word(i, word | mask);
        let (shape, grown) = self.shape(line).risen(place, word | mask);
        self.set_shape(line, shape);
        self.counts.add(info, 1 << order);
        let class = info.class();
        if grown < 6 && grown as i8 <= class {
            // A class can only rise here, and mostly does not. Only whole words join across words.
            self.set_info(line, info.with(free, class));
        } else {
            self.settle(line, info, info.with(free, shape.class()));
        }
        Some(())
    }

    /// Sets a block's bits, and returns the info that the line has then.
    fn set_places(&self, line: u32, place: u32, order: u8, info: Info) -> Result<Info, Fault> {
        let free = info.free() + (1 << order);
        if free > PLACES {
            return Err(Fault::AlreadyFree);
        }
        let bits = &self.lines[line as usize];
        let given = self.shape(line).give(bits, place, order);
        let shape = given.ok_or(Fault::AlreadyFree)?;
        if free < PLACES {
            self.set_shape(line, shape);
            return Ok(info.with(free, shape.class()));
        }
        bits.store(&[0; 8]);
        self.set_shape(line, Shape::NONE);
        Ok(info.with(PLACES, WHOLE as i8))
    }

    /// Gives back a block of several lines. Nothing changes unless all of it can be given.
    fn give_lines(&mut self, first: u32, order: u8) -> Result<(), Fault> {
        let lines = first..first + (1 << (order - WHOLE));
        let mut pool = true;
        for line in lines.clone() {
            let info = self.info(line);
            if info.is_absent() {
                return Err(Fault::Unmanaged);
            }
            if info.free() != 0 {
                return Err(Fault::AlreadyFree);
            }
            let hole = self.holes.of(info.holes());
            if hole.is_some_and(|hole| hole.absent.load() != [0; 8]) {
                return Err(Fault::Unmanaged);
            }
            pool &= info.is_plain() && info.kind().is_mergeable() && !info.is_isolated();
        }
        if pool {
            for line in lines {
                let info = self.info(line).with(PLACES, WHOLE as i8);
                self.set_info(line, info);
            }
            self.pool_give(first, order - WHOLE);
            self.counts.free += 1 << order;
        } else {
            for line in lines {
                self.give(line * PLACES, WHOLE)?;
            }
        }
        Ok(())
    }

    /// Gives back frames of a line some of which are absent or bad. Bad ones are dropped.
    #[cold]
    fn give_around_holes(&mut self, line: u32, place: u32, order: u8) -> Result<(), Fault> {
        let info = self.info(line);
        let Some(hole) = self.holes.of(info.holes()).filter(|_| !info.is_absent()) else {
            return Err(Fault::Unmanaged);
        };
        if !hole.absent.is_taken(place, order) {
            return Err(Fault::Unmanaged);
        }
        if !self.lines[line as usize].is_taken(place, order) {
            return Err(Fault::AlreadyFree);
        }
        for place in place..place + (1 << order) {
            if hole.bad.is_taken(place, 0) {
                self.put(line, place);
            }
        }
        let block = super::online::mask(place, place + (1 << order));
        self.holes.drop_awaited(hole, &block);
        Ok(())
    }

    /// Makes one frame free, which is known to be taken and usable.
    pub(super) fn put(&mut self, line: u32, place: u32) {
        let info = self.info(line);
        if let Ok(new) = self.set_places(line, place, 0, info) {
            self.counts.add(info, 1);
            self.update(line, new);
        }
    }

    /// Gives back `frames`, blocks of `order`, as numbers from `base`; returns how many were refused.
    ///
    /// Neighbours that fall into one word are set together; any order is served, ascending or descending ones fastest.
    pub(super) fn give_many(&mut self, order: u8, base: u32, frames: &[u32]) -> u64 {
        let mut refused = 0;
        if order == WHOLE {
            return self.give_whole_lines(base, frames);
        }
        if order > 5 {
            for &frame in frames {
                refused += u64::from(self.give(frame.wrapping_sub(base), order).is_err());
            }
            return refused;
        }
        let block = !0u64 >> (64 - (1u32 << order));
        let mut at = 0;
        while let Some(&frame) = frames.get(at) {
            let frame = frame - base;
            let next = frames.get(at + 1).map(|next| next.wrapping_sub(base) >> 6);
            let mut end = at + 1;
            if next == Some(frame >> 6) {
                let mask;
                (mask, end) = same_word(frames, base, at, block);
                if self.give_bits(frame, mask).is_some() {
                    at = end;
                    continue;
                }
            }
            // Lone ones, and the rare cases, one block at a time.
            for &frame in &frames[at..end] {
                refused += u64::from(self.give(frame - base, order).is_err());
            }
            at = end;
        }
        refused
    }

    /// Gives back the frames `mask` of the word that holds `frame`, unless the line is a special one or becomes wholly
    /// free, or one of them is free.
    fn give_bits(&mut self, frame: u32, mask: u64) -> Option<()> {
        let (line, i) = (frame / PLACES, (frame >> 6 & 7) as usize);
        let info = self.info(line);
        let free = info.free() + mask.count_ones();
        let bits = &self.lines[line as usize];
        let word = bits.word(i);
        if !info.is_plain() || free >= PLACES || word & mask != 0 {
            return None;
        }
        bits.set_word(i, word | mask);
        let shape = self.shape(line).with_word(i, word | mask);
        self.set_shape(line, shape);
        self.counts.add(info, mask.count_ones());
        self.settle(line, info, info.with(free, shape.class()));
        Some(())
    }
}

impl Shard {
    /// [`give_many`](Self::give_many) of single lines: those that are neighbours join the pool together.
    fn give_whole_lines(&mut self, base: u32, frames: &[u32]) -> u64 {
        let mut refused = 0;
        // Giant, word, and the lines of it that were given but are not in the pool yet.
        let mut word = (0, 0);
        let mut mask = 0u64;
        for &frame in frames {
            let line = (frame - base) / PLACES;
            let info = self.info(line);
            if !info.is_plain() || !info.is_lending() || info.free() != 0 {
                refused += u64::from(self.give(frame - base, WHOLE).is_err());
                continue;
            }
            let (giant, place) = self.giant(line);
            let here = (giant, place as usize / 64);
            if here != word && mask != 0 {
                self.pool_give_lines(word.0, word.1, mask);
                mask = 0;
            }
            word = here;
            mask |= 1 << (place % 64);
            self.set_info(line, info.with(PLACES, WHOLE as i8));
        }
        if mask != 0 {
            self.pool_give_lines(word.0, word.1, mask);
        }
        refused
    }
}

/// Gathers the blocks from `at` on that lie in one word and do not overlap. Returns their bits, and where the next is.
#[inline]
fn same_word(frames: &[u32], base: u32, at: usize, block: u64) -> (u64, usize) {
    let first = frames[at] - base;
    let place = first & 63;
    if block == 1
        && let Some(run) = neighbours(&frames[at..], place)
    {
        let ones = !0u64 >> (64 - run);
        let up = frames[at] < frames[at + 1];
        let start = if up { place } else { place + 1 - run };
        return (ones << start, at + run as usize);
    }
    let mut mask = 0;
    let mut next = at;
    while let Some(&frame) = frames.get(next) {
        let frame = frame - base;
        let bits = block << (frame & 63);
        if frame >> 6 != first >> 6 || mask & bits != 0 {
            break;
        }
        mask |= bits;
        next += 1;
    }
    (mask, next)
}

/// How many of the first frames, the first of which has this place in its word, follow each other up or down to the
/// end of the word; `None` if not all do.
#[inline]
fn neighbours(frames: &[u32], place: u32) -> Option<u32> {
    let (first, second) = (*frames.first()?, *frames.get(1)?);
    let (step, room) = if second == first.wrapping_add(1) {
        (1, 64 - place)
    } else if second == first.wrapping_sub(1) {
        (u32::MAX, place + 1)
    } else {
        return None;
    };
    let run = room.min(frames.len() as u32);
    let mut differs = 0;
    let mut expected = first;
    // No early exit: this way four frames are compared at once.
    for &frame in &frames[..run as usize] {
        differs |= frame ^ expected;
        expected = expected.wrapping_add(step);
    }
    (differs == 0 && run > 1).then_some(run)
}
