//! A run of lines under one lock.
//!
//! Owns: the lines' bits, their infos, the sets of lines by kind and class; pool.rs has the wholly free lines, take.rs
//! and give.rs what is done with them.
//! Invariants: a line is in the set that its info names. A wholly free line of a lending kind is in the pool instead.
//! Lock ranks: it is the data under `Rank::Shard`.
//! Used by: zone.
//!
//! Frames and lines are numbered from the shard's start here; the zone adds the rest.

use super::counts::Counts;
use super::fullness::Fullness;
use super::holes::Holes;
use super::index::Index;
use super::info::Info;
use super::line::{ALL_FREE, Line, PLACES, Words};
use super::shape::Shape;
use crate::rank::Rank;
use crate::sync::Ranked;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Classes of a line: the orders 0 to 9 of its largest free block.
pub(super) const CLASSES: u32 = 10;
/// Sets of lines: five kinds (nothing is taken from isolated lines), each by class.
pub(super) const SETS: u32 = 5 * CLASSES;

/// Lines and their state.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) lines: &'static [Line],
    pub(super) infos: &'static [AtomicU32],
    /// Where the free blocks of each line are: told of the bits that are kept, so of a wholly free line nothing.
    pub(super) shapes: &'static [AtomicU64],
    /// Whole lines of the pool, 512 to a giant.
    pub(super) giants: &'static [Line],
    /// Count and class of each giant, in an [`Info`].
    pub(super) giant_infos: &'static [AtomicU32],
    /// Where the free blocks of each giant are.
    pub(super) giant_shapes: &'static [AtomicU64],
    pub(super) index: Index,
    pub(super) fullness: Fullness,
    /// Giants by class.
    pub(super) pool: Index,
    pub(super) holes: Holes,
    /// Lines of the first giant that lie before the shard.
    pub(super) skew: u32,
    pub(super) counts: Counts,
    #[cfg(all(test, debug_assertions))]
    pub(super) work: Work,
}

impl Ranked for Shard {
    const RANK: Rank = Rank::Shard;
}

impl Shard {
    #[inline]
    pub(super) fn info(&self, line: u32) -> Info {
        Info(self.infos[line as usize].load(Relaxed))
    }

    #[inline]
    pub(super) fn set_info(&self, line: u32, info: Info) {
        #[cfg(all(test, debug_assertions))]
        self.work.changes(line);
        self.infos[line as usize].store(info.0, Relaxed);
    }

    #[inline]
    pub(super) fn shape(&self, line: u32) -> Shape {
        Shape(self.shapes[line as usize].load(Relaxed))
    }

    #[inline]
    pub(super) fn set_shape(&self, line: u32, shape: Shape) {
        self.shapes[line as usize].store(shape.0, Relaxed);
    }

    /// Stores all bits of a line anew, with their shape, and returns the info that follows from `info` then.
    pub(super) fn rewrite(&self, line: u32, words: &Words, info: Info) -> Info {
        let free = words.iter().map(|word| word.count_ones()).sum();
        let (words, class, shape) = if free == PLACES {
            (&[0; 8], Shape::ALL.class(), Shape::NONE)
        } else {
            (words, Shape::of(words).class(), Shape::of(words))
        };
        self.lines[line as usize].store(words);
        self.set_shape(line, shape);
        info.with(free, class)
    }

    /// Stores the info of a line that gained or lost free frames. Mostly its class has not changed.
    #[inline]
    pub(super) fn settle(&mut self, line: u32, old: Info, new: Info) {
        let (from, to) = (old.class(), new.class());
        if from == to {
            self.set_info(line, new);
            if new.free() < old.free() {
                self.fullness.lower(line, new);
            }
        } else if old.is_ordinary() && new.is_ordinary() {
            self.set_info(line, new);
            let sets = new.kind_number() * CLASSES;
            if from >= 0 {
                self.leave(sets + from as u32, line);
            }
            if to >= 0 {
                self.enter(sets + to as u32, line);
                self.fullness.lower(line, new);
            }
        } else {
            self.update(line, new);
        }
    }

    /// Stores any info of a line, and moves it to the set or the pool that the info names.
    pub(super) fn update(&mut self, line: u32, new: Info) {
        let old = self.info(line);
        self.set_info(line, new);
        let (from, to) = (old.set(), new.set());
        if from != to {
            if let Some(set) = from {
                self.leave(set, line);
            }
            if let Some(set) = to {
                self.enter(set, line);
            }
        }
        if to.is_some() {
            self.fullness.lower(line, new);
        }
        match (old.is_pooled(), new.is_pooled()) {
            (false, true) => self.pool_give(line, 0),
            (true, false) => self.pool_remove(line),
            _ => {}
        }
    }

    #[inline]
    pub(super) fn enter(&mut self, set: u32, line: u32) {
        if self.index.insert(set, line) {
            self.counts.available |= 1 << set;
        }
    }

    #[inline]
    pub(super) fn leave(&mut self, set: u32, line: u32) {
        if self.index.remove(set, line) {
            self.counts.available &= !(1 << set);
        }
    }

    /// The free places of a line, whole lines included.
    #[inline]
    pub(super) fn words(&self, line: u32) -> Words {
        if self.info(line).is_whole() {
            ALL_FREE
        } else {
            self.lines[line as usize].load()
        }
    }

    /// Whether a frame is free, isolated or not.
    pub(super) fn is_free(&self, frame: u32) -> bool {
        let line = frame / PLACES;
        self.info(line).is_whole() || self.lines[line as usize].is_free(frame % PLACES, 0)
    }
}

/// Lines changed under one hold of the lock, counted so that each test checks the bound.
#[cfg(all(test, debug_assertions))]
#[derive(Debug, Default)]
pub(super) struct Work {
    lines: AtomicU32,
    last: AtomicU32,
}

#[cfg(all(test, debug_assertions))]
impl Work {
    fn changes(&self, line: u32) {
        if self.last.swap(line, Relaxed) != line {
            self.lines.fetch_add(1, Relaxed);
        }
    }

    /// Lines changed since the last call.
    pub(super) fn take(&self) -> u32 {
        self.last.store(u32::MAX, Relaxed);
        self.lines.swap(0, Relaxed)
    }
}
