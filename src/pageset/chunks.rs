//! Stacks of frame numbers that share one pool of chunks.
//!
//! Owns: [`Chunks`]. Invariants: every chunk is in one list or spare; a list's chunks between top and bottom are full.
//! Lock ranks: none; its owner stands under one. Used by: [`Cache`](super::Cache).
//!
//! A linked list through the frames' records would touch a cold line per frame and let a wild write break it; one
//! array per list would need room for every list's worst case. A chunk holds 63 numbers: Linux's batch.

use crate::boot::{Bump, StorageFull};

/// Frame numbers per chunk, so that a chunk with its links fills four cache lines.
pub(crate) const CHUNK_FRAMES: usize = 63;

/// No chunk.
const NONE: u16 = u16::MAX;

#[derive(Debug)]
#[repr(align(64))]
struct Chunk {
    /// The chunk below (colder), [`NONE`] at the bottom. For a spare chunk, the next spare one.
    below: u16,
    /// The chunk above (hotter), [`NONE`] at the top.
    above: u16,
    frames: [u32; CHUNK_FRAMES],
}

#[derive(Clone, Copy, Debug)]
struct List {
    top: u16,
    bottom: u16,
    /// Frames in the top chunk. Zero if there is none, or if the next pop moves down.
    len: u8,
    /// Frames in the bottom chunk, if that is not the top one.
    bottom_len: u8,
}

/// `LISTS` stacks.
#[derive(Debug)]
pub(super) struct Chunks<const LISTS: usize> {
    lists: [List; LISTS],
    spare: u16,
    pool: &'static mut [Chunk],
}

impl<const LISTS: usize> Chunks<LISTS> {
    /// Empty stacks with a pool of at least `slots` frame numbers.
    pub(super) fn build(bump: &mut Bump<'_>, slots: u32) -> Result<Self, StorageFull> {
        let count = (slots as usize)
            .div_ceil(CHUNK_FRAMES)
            .min(usize::from(NONE));
        let pool = bump.slots_mut(count, |i| Chunk {
            below: if i + 1 == count { NONE } else { i as u16 + 1 },
            above: NONE,
            frames: [0; CHUNK_FRAMES],
        })?;
        Ok(Self {
            lists: [List {
                top: NONE,
                bottom: NONE,
                len: 0,
                bottom_len: 0,
            }; LISTS],
            spare: if pool.is_empty() { NONE } else { 0 },
            pool,
        })
    }

    /// Frame numbers that the pool has room for.
    pub(super) fn capacity(&self) -> u32 {
        (self.pool.len() * CHUNK_FRAMES) as u32
    }

    #[inline]
    pub(super) fn pop(&mut self, list: usize) -> Option<u32> {
        let state = &mut self.lists[list];
        if state.len == 0 {
            return self.pop_below(list);
        }
        let at = state.len - 1;
        // NONE is beyond the pool.
        let frame = *self
            .pool
            .get(usize::from(state.top))?
            .frames
            .get(usize::from(at))?;
        state.len = at;
        Some(frame)
    }

    /// Puts `frame` on top if there is room in the top chunk.
    #[inline]
    pub(super) fn push(&mut self, list: usize, frame: u32) -> bool {
        let state = &mut self.lists[list];
        let Some(chunk) = self.pool.get_mut(usize::from(state.top)) else {
            return false;
        };
        let Some(slot) = chunk.frames.get_mut(usize::from(state.len)) else {
            return false;
        };
        *slot = frame;
        state.len += 1;
        true
    }

    /// [`pop`](Self::pop) when the top chunk is empty: drops it and moves to the one below.
    #[cold]
    fn pop_below(&mut self, list: usize) -> Option<u32> {
        let state = self.lists[list];
        let below = self.pool.get(usize::from(state.top))?.below;
        if below == NONE {
            return None;
        }
        self.release(list, state.top);
        let state = &mut self.lists[list];
        state.len = if state.top == state.bottom {
            state.bottom_len
        } else {
            CHUNK_FRAMES as u8
        };
        self.pop(list)
    }

    /// [`push`](Self::push), with a new chunk if the top one is full. `false` if there is none.
    pub(super) fn push_growing(&mut self, list: usize, frame: u32) -> bool {
        if self.push(list, frame) {
            return true;
        }
        let Some(new) = self.take_spare() else {
            return false;
        };
        let state = &mut self.lists[list];
        self.pool[usize::from(new)].below = state.top;
        match self.pool.get_mut(usize::from(state.top)) {
            Some(old) => old.above = new,
            None => state.bottom = new,
        }
        if state.top == state.bottom {
            state.bottom_len = state.len;
        }
        state.top = new;
        state.len = 0;
        self.push(list, frame)
    }

    /// Lets `fill` write up to `count` frame numbers into a chunk at the bottom of a list whose chunks are all
    /// full or that is empty. `fill` returns how many it wrote, lowest first; they will leave the list in that order.
    /// `None` if there is no chunk.
    pub(super) fn fill(
        &mut self,
        list: usize,
        count: usize,
        fill: impl FnOnce(&mut [u32]) -> usize,
    ) -> Option<usize> {
        let state = &mut self.lists[list];
        let reuse = state.len == 0 && state.top != NONE && state.top == state.bottom;
        let chunk = if reuse { state.top } else { self.take_spare()? };
        let out = &mut self.pool[usize::from(chunk)].frames[..count.min(CHUNK_FRAMES)];
        let limit = out.len();
        let got = fill(out).min(limit);
        out[..got].reverse();
        let state = &mut self.lists[list];
        if reuse || state.top == NONE {
            state.top = chunk;
            state.bottom = chunk;
            state.len = got as u8;
        } else if got == 0 {
            self.put_spare(chunk);
        } else {
            self.pool[usize::from(state.bottom)].below = chunk;
            self.pool[usize::from(chunk)].above = state.bottom;
            state.bottom = chunk;
            state.bottom_len = got as u8;
        }
        Some(got)
    }

    /// Gives up to `count` of the coldest frames of one chunk to `take`, which may sort them. Returns how many.
    pub(super) fn take_cold(
        &mut self,
        list: usize,
        count: usize,
        take: impl FnOnce(&mut [u32]),
    ) -> usize {
        let state = self.lists[list];
        let Some(chunk) = self.pool.get_mut(usize::from(state.bottom)) else {
            return 0;
        };
        let len = usize::from(if state.top == state.bottom {
            state.len
        } else {
            state.bottom_len
        });
        let given = count.min(len);
        if given > 0 {
            take(&mut chunk.frames[..given]);
        }
        if given == len {
            self.release(list, state.bottom);
            let left = &mut self.lists[list];
            // The chunk above was full, or is the top one, whose length stands in `len`.
            left.bottom_len = CHUNK_FRAMES as u8;
            if left.top == NONE {
                left.len = 0;
            }
            return given;
        }
        chunk.frames.copy_within(given..len, 0);
        let state = &mut self.lists[list];
        let left = (len - given) as u8;
        if state.top == state.bottom {
            state.len = left;
        } else {
            state.bottom_len = left;
        }
        given
    }

    /// Frames on a list, hottest first.
    pub(super) fn frames(&self, list: usize) -> impl Iterator<Item = u32> {
        let state = self.lists[list];
        self.chain(state.top).flat_map(move |(index, chunk)| {
            let len = if index == state.top {
                usize::from(state.len)
            } else if index == state.bottom {
                usize::from(state.bottom_len)
            } else {
                CHUNK_FRAMES
            };
            chunk.frames[..len].iter().rev().copied()
        })
    }

    /// Whether the links are whole and every chunk is in one list or spare.
    pub(super) fn check(&self) -> bool {
        let links_agree = |list: &List| {
            let mut above = NONE;
            self.chain(list.top).all(|(index, chunk)| {
                let agrees = chunk.above == above;
                above = index;
                agrees
            }) && above == list.bottom
        };
        let listed: usize = self
            .lists
            .iter()
            .map(|list| self.chain(list.top).count())
            .sum();
        self.lists.iter().all(links_agree)
            && listed + self.chain(self.spare).count() == self.pool.len()
    }

    /// The chunks from `index` down. Ends after as many as there are, even if the links go round.
    fn chain(&self, index: u16) -> impl Iterator<Item = (u16, &Chunk)> {
        let mut next = index;
        core::iter::from_fn(move || {
            let index = next;
            let chunk = self.pool.get(usize::from(index))?;
            next = chunk.below;
            Some((index, chunk))
        })
        .take(self.pool.len())
    }

    /// Unlinks a list's top or bottom chunk.
    fn release(&mut self, list: usize, chunk: u16) {
        let Chunk { below, above, .. } = self.pool[usize::from(chunk)];
        let state = &mut self.lists[list];
        match self.pool.get_mut(usize::from(below)) {
            Some(lower) => lower.above = above,
            None => state.bottom = above,
        }
        match self.pool.get_mut(usize::from(above)) {
            Some(upper) => upper.below = below,
            None => state.top = below,
        }
        self.put_spare(chunk);
    }

    fn take_spare(&mut self) -> Option<u16> {
        let index = self.spare;
        let chunk = self.pool.get_mut(usize::from(index))?;
        self.spare = chunk.below;
        chunk.below = NONE;
        chunk.above = NONE;
        Some(index)
    }

    fn put_spare(&mut self, index: u16) {
        let chunk = &mut self.pool[usize::from(index)];
        chunk.below = self.spare;
        chunk.above = NONE;
        self.spare = index;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::host::storage;
    use std::vec::Vec;

    /// `lists` stacks as vectors, coldest first.
    struct Model {
        chunks: Chunks<3>,
        lists: [Vec<u32>; 3],
    }

    impl Model {
        fn new(slots: u32) -> Self {
            let mut storage = storage(64 << 10);
            let chunks = Chunks::build(&mut Bump::new(&mut storage), slots).unwrap();
            Self {
                chunks,
                lists: Default::default(),
            }
        }

        fn compare(&self) {
            assert!(self.chunks.check());
            for (i, list) in self.lists.iter().enumerate() {
                let frames: Vec<_> = self.chunks.frames(i).collect();
                assert!(frames.iter().eq(list.iter().rev()), "list {i}");
            }
        }
    }

    #[test]
    fn chunked_stacks_hold_what_plain_stacks_hold() {
        let mut model = Model::new(1000);
        let mut seed = 1u64;
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for step in 0..20_000u32 {
            let i = random(3) as usize;
            match random(8) {
                0..3 => {
                    let room = model.chunks.push_growing(i, step);
                    if room {
                        model.lists[i].push(step);
                    }
                    let held: usize = model.lists.iter().map(Vec::len).sum();
                    assert!(room || held > 1000 - 3 * CHUNK_FRAMES * 2);
                }
                3..6 => assert_eq!(model.chunks.pop(i), model.lists[i].pop()),
                6 => {
                    let count = random(100) as usize;
                    let mut cold = Vec::new();
                    let given = model
                        .chunks
                        .take_cold(i, count, |frames| cold.extend_from_slice(frames));
                    assert_eq!(given, cold.len());
                    assert!(model.lists[i].drain(..given).eq(cold));
                    assert!(given > 0 || count == 0 || model.lists[i].is_empty());
                }
                _ if model.lists[i].is_empty() => {
                    // A refill: full chunks, then a partial one.
                    let mut next = step << 8;
                    for want in [CHUNK_FRAMES, random(63) as usize] {
                        let got = model.chunks.fill(i, want, |out| {
                            out.iter_mut().for_each(|slot| {
                                *slot = next;
                                next += 1;
                            });
                            out.len()
                        });
                        let Some(got) = got else { break };
                        let filled = next - got as u32..next;
                        model.lists[i].splice(0..0, filled.rev());
                    }
                }
                _ => {}
            }
            if step % 16 == 0 {
                model.compare();
            }
        }
        model.compare();
    }

    #[test]
    fn a_refill_leaves_the_list_in_ascending_order() {
        let mut model = Model::new(1000);
        for start in [0, 63] {
            model.chunks.fill(0, 63, |out| {
                (start..)
                    .zip(out.iter_mut())
                    .for_each(|(n, slot)| *slot = n);
                out.len()
            });
        }
        let out: Vec<_> = core::iter::from_fn(|| model.chunks.pop(0)).collect();
        assert!(out.into_iter().eq(0..126));
    }

    #[test]
    fn a_pool_without_chunks_parks_nothing() {
        let mut model = Model::new(0);
        assert!(!model.chunks.push_growing(0, 1));
        assert_eq!(model.chunks.pop(0), None);
        assert_eq!(model.chunks.fill(0, 5, |out| out.len()), None);
        assert_eq!(model.chunks.take_cold(0, 5, |_| {}), 0);
        assert!(model.chunks.check());
    }
}
