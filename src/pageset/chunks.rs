//! Stacks of frame numbers that share one pool of chunks.
//!
//! Owns: [`Chunks`]. Invariants: every chunk is in one list or spare; a list's chunks between top and bottom are full.
//! Lock ranks: none; its owner stands under one. Used by: [`Cache`](super::Cache).
//!
//! A linked list through the frames' records would touch a cold line per frame and let a wild write break it; one
//! array per list would need room for every list's worst case. A chunk is 64 words, four cache lines: its links, and
//! 63 frame numbers, which is Linux's batch. A list's place in the pool is one number, the top frame's, and the words
//! that hold links are those whose place is a multiple of 64: so "nothing here" and "chunk full" are each one test.

use crate::boot::{Bump, StorageFull};
use crate::zone::Sink;

/// Frame numbers per chunk.
pub(crate) const CHUNK_FRAMES: usize = 63;
/// Words per chunk: its links, and its frame numbers.
const WORDS: u32 = 64;

/// Number of lists. The last is never filled: it stands for blocks that are not cached.
pub(super) const LISTS: usize = 16;

/// No chunk.
const NONE: u16 = u16::MAX;
/// The top of a list without chunks: a multiple of 64 beyond every pool.
const NOWHERE: u32 = 0u32.wrapping_sub(WORDS);

/// The chunks on both sides of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Links {
    /// Colder; for a spare chunk the next spare one.
    below: u16,
    /// Hotter.
    above: u16,
}

/// [`LISTS`] stacks.
#[derive(Debug)]
pub(super) struct Chunks {
    pool: &'static mut [u32],
    /// Of each list the place of its top frame, or of its top chunk's links if that chunk is empty.
    tops: [u32; LISTS],
    /// Of each list the bottom chunk.
    bottoms: [u16; LISTS],
    /// Of each list the frames in the bottom chunk, if that is not the top one too.
    bottom_lens: [u8; LISTS],
    spare: u16,
}

impl Chunks {
    /// Empty stacks with a pool of at least `slots` frame numbers.
    pub(super) fn build(bump: &mut Bump<'_>, slots: u32) -> Result<Self, StorageFull> {
        let count = (slots as usize)
            .div_ceil(CHUNK_FRAMES)
            .min(usize::from(NONE));
        let pool = bump.slots_mut(count * WORDS as usize, |_| 0)?;
        let mut chunks = Self {
            pool,
            tops: [NOWHERE; LISTS],
            bottoms: [NONE; LISTS],
            bottom_lens: [0; LISTS],
            spare: NONE,
        };
        // In the end the first chunk is the first to be used.
        for chunk in (0..chunks.pool.len() / WORDS as usize).rev() {
            chunks.put_spare(chunk as u16);
        }
        Ok(chunks)
    }

    /// Frame numbers that the pool has room for.
    pub(super) fn capacity(&self) -> u32 {
        (self.pool.len() / WORDS as usize * CHUNK_FRAMES) as u32
    }

    /// Takes the top frame of the top chunk. `None` if that has none, though others may.
    #[inline]
    pub(super) fn pop(&mut self, list: usize) -> Option<u32> {
        let top = &mut self.tops[list % LISTS];
        if top.is_multiple_of(WORDS) {
            return None;
        }
        let frame = *self.pool.get(*top as usize)?;
        *top -= 1;
        Some(frame)
    }

    /// Puts `frame` on top if there is room in the top chunk.
    #[inline]
    pub(super) fn push(&mut self, list: usize, frame: u32) -> bool {
        let top = &mut self.tops[list % LISTS];
        let next = *top as usize + 1;
        if next.is_multiple_of(WORDS as usize) {
            return false;
        }
        // Beyond the pool if the list has no chunk.
        let Some(slot) = self.pool.get_mut(next) else {
            return false;
        };
        *slot = frame;
        *top = next as u32;
        true
    }

    /// [`pop`](Self::pop) that moves to the chunk below if the top one is empty.
    pub(super) fn pop_below(&mut self, list: usize) -> Option<u32> {
        if let Some(frame) = self.pop(list) {
            return Some(frame);
        }
        let top = self.top(list)?;
        let below = self.links(top).below;
        if below == NONE {
            return None;
        }
        self.release(list, top);
        self.tops[list] = first_word(below)
            + if below == self.bottoms[list] {
                u32::from(self.bottom_lens[list])
            } else {
                CHUNK_FRAMES as u32
            };
        self.pop(list)
    }

    /// [`push`](Self::push), with a new chunk if the top one is full. `false` if there is none.
    pub(super) fn push_growing(&mut self, list: usize, frame: u32) -> bool {
        if self.push(list, frame) {
            return true;
        }
        if list == LISTS - 1 {
            return false;
        }
        let Some(new) = self.take_spare() else {
            return false;
        };
        match self.top(list) {
            Some(top) => {
                self.set_links(new, top, NONE);
                let below = self.links(top).below;
                self.set_links(top, below, new);
                if top == self.bottoms[list] {
                    self.bottom_lens[list] = CHUNK_FRAMES as u8;
                }
            }
            None => self.bottoms[list] = new,
        }
        self.tops[list] = first_word(new);
        self.push(list, frame)
    }

    /// Starts to refill a list that has no frames with up to `wanted` of them.
    pub(super) fn refill(&mut self, list: usize, wanted: usize) -> Refill<'_> {
        debug_assert_eq!(self.frames(list).next(), None);
        Refill {
            chunks: self,
            list,
            wanted,
            chunk: None,
            len: 0,
            total: 0,
        }
    }

    /// Frames in a list's bottom chunk.
    pub(super) fn cold_len(&self, list: usize) -> usize {
        match self.top(list) {
            Some(_) => self.len_of(list, self.bottoms[list]),
            None => 0,
        }
    }

    /// Gives up to `count` of the coldest frames of one chunk to `take`, which may sort them. Returns how many.
    pub(super) fn take_cold(
        &mut self,
        list: usize,
        count: usize,
        take: impl FnOnce(&mut [u32]),
    ) -> usize {
        let Some(top) = self.top(list) else {
            return 0;
        };
        let bottom = self.bottoms[list];
        let len = self.len_of(list, bottom);
        let given = count.min(len);
        let frames = self.frames_of(bottom, len);
        if given > 0 {
            take(&mut frames[..given]);
        }
        if given < len {
            frames.copy_within(given.., 0);
            if bottom == top {
                self.tops[list] -= given as u32;
            } else {
                self.bottom_lens[list] -= given as u8;
            }
            return given;
        }
        self.release(list, bottom);
        if bottom == top {
            self.tops[list] = NOWHERE;
        } else {
            // The chunk above was full, or is the top one, whose length `tops` tells.
            self.bottom_lens[list] = CHUNK_FRAMES as u8;
        }
        given
    }

    /// Number of frames on a list, in steps per chunk.
    pub(super) fn len(&self, list: usize) -> usize {
        let top = self.top(list).unwrap_or(NONE);
        self.chain(top).map(|chunk| self.len_of(list, chunk)).sum()
    }

    /// Frames on a list, hottest first.
    pub(super) fn frames(&self, list: usize) -> impl Iterator<Item = u32> {
        let top = self.top(list).unwrap_or(NONE);
        self.chain(top).flat_map(move |chunk| {
            let from = first_word(chunk) as usize + 1;
            let len = self.len_of(list, chunk);
            self.pool[from..from + len].iter().rev().copied()
        })
    }

    /// Whether the links are whole and every chunk is in one list or spare.
    pub(super) fn check(&self) -> bool {
        let links_agree = |list: usize| {
            let mut above = NONE;
            self.chain(self.top(list).unwrap_or(NONE)).all(|chunk| {
                let agrees = self.links(chunk).above == above;
                above = chunk;
                agrees
            }) && above == self.bottoms[list]
        };
        let tops = (0..LISTS).filter_map(|list| self.top(list));
        let listed: usize = tops.map(|top| self.chain(top).count()).sum();
        (0..LISTS).all(links_agree)
            && self.top(LISTS - 1).is_none()
            && listed + self.chain(self.spare).count() == self.pool.len() / WORDS as usize
    }

    /// The chunks from `chunk` down. Ends after as many as there are, even if the links go round.
    fn chain(&self, chunk: u16) -> impl Iterator<Item = u16> {
        let mut next = chunk;
        core::iter::from_fn(move || {
            let chunk = next;
            if chunk == NONE {
                return None;
            }
            next = self.links(chunk).below;
            Some(chunk)
        })
        .take(self.pool.len() / WORDS as usize)
    }

    fn top(&self, list: usize) -> Option<u16> {
        let top = self.tops[list];
        (top != NOWHERE).then_some((top / WORDS) as u16)
    }

    /// Frames in one of a list's chunks.
    fn len_of(&self, list: usize, chunk: u16) -> usize {
        if Some(chunk) == self.top(list) {
            (self.tops[list] % WORDS) as usize
        } else if chunk == self.bottoms[list] {
            usize::from(self.bottom_lens[list])
        } else {
            CHUNK_FRAMES
        }
    }

    fn frames_of(&mut self, chunk: u16, len: usize) -> &mut [u32] {
        let from = first_word(chunk) as usize + 1;
        &mut self.pool[from..from + len]
    }

    fn links(&self, chunk: u16) -> Links {
        let word = self.pool[first_word(chunk) as usize];
        Links {
            below: word as u16,
            above: (word >> 16) as u16,
        }
    }

    fn set_links(&mut self, chunk: u16, below: u16, above: u16) {
        self.pool[first_word(chunk) as usize] = u32::from(below) | u32::from(above) << 16;
    }

    /// Unlinks a list's top or bottom chunk. The caller says where the top is then.
    fn release(&mut self, list: usize, chunk: u16) {
        let Links { below, above } = self.links(chunk);
        if below != NONE {
            let lower = self.links(below).below;
            self.set_links(below, lower, above);
        } else {
            self.bottoms[list] = above;
        }
        if above != NONE {
            let upper = self.links(above).above;
            self.set_links(above, below, upper);
        }
        self.put_spare(chunk);
    }

    fn take_spare(&mut self) -> Option<u16> {
        let chunk = self.spare;
        if chunk == NONE {
            return None;
        }
        self.spare = self.links(chunk).below;
        self.set_links(chunk, NONE, NONE);
        Some(chunk)
    }

    fn put_spare(&mut self, chunk: u16) {
        let next = self.spare;
        self.set_links(chunk, next, NONE);
        self.spare = chunk;
    }
}

/// A list that is being refilled, chunk by chunk, each below the one before. The frames will leave in the order in which
/// they come.
#[derive(Debug)]
pub(super) struct Refill<'a> {
    chunks: &'a mut Chunks,
    list: usize,
    /// Frames still to come.
    wanted: usize,
    /// The chunk that is being filled, in the list at its bottom already.
    chunk: Option<u16>,
    /// Frames in it.
    len: usize,
    /// Frames that came.
    total: usize,
}

impl Refill<'_> {
    /// Ends it, and returns how many frames came.
    pub(super) fn finish(mut self) -> usize {
        self.close();
        self.total
    }

    /// Puts an empty chunk at the bottom.
    fn open(&mut self) -> Option<u16> {
        let list = self.list;
        let chunks = &mut *self.chunks;
        let top = chunks.top(list);
        if let Some(top) = top.filter(|_| chunks.tops[list].is_multiple_of(WORDS)) {
            // The empty chunk that the last pop left.
            return Some(top);
        }
        let chunk = chunks.take_spare()?;
        if top.is_none() {
            chunks.tops[list] = first_word(chunk);
        } else {
            let bottom = chunks.bottoms[list];
            let above = chunks.links(bottom).above;
            chunks.set_links(bottom, chunk, above);
            chunks.set_links(chunk, NONE, bottom);
        }
        chunks.bottoms[list] = chunk;
        chunks.bottom_lens[list] = 0;
        Some(chunk)
    }

    /// Finishes the chunk that is being filled.
    fn close(&mut self) {
        let Some(chunk) = self.chunk.take() else {
            return;
        };
        let len = core::mem::take(&mut self.len);
        // The top of a stack leaves first.
        self.chunks.frames_of(chunk, len).reverse();
        if self.chunks.top(self.list) == Some(chunk) {
            self.chunks.tops[self.list] = first_word(chunk) + len as u32;
        } else if len == 0 {
            self.chunks.release(self.list, chunk);
            self.chunks.bottom_lens[self.list] = CHUNK_FRAMES as u8;
        } else {
            self.chunks.bottom_lens[self.list] = len as u8;
        }
    }
}

impl Sink for Refill<'_> {
    fn room(&mut self) -> &mut [u32] {
        if self.len == CHUNK_FRAMES {
            self.close();
        }
        if self.wanted == 0 {
            return &mut [];
        }
        if self.chunk.is_none() {
            self.chunk = self.open();
        }
        let Some(chunk) = self.chunk else {
            return &mut [];
        };
        let end = CHUNK_FRAMES.min(self.len + self.wanted);
        &mut self.chunks.frames_of(chunk, end)[self.len..]
    }

    fn wrote(&mut self, count: usize) {
        self.len += count;
        self.wanted -= count;
        self.total += count;
    }
}

/// Place of a chunk's links.
const fn first_word(chunk: u16) -> u32 {
    chunk as u32 * WORDS
}
