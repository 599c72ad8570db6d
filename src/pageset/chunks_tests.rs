//! Tests of chunks.rs.
//!
//! Owns: nothing. Invariants: as chunks.rs states them. Lock ranks: none. Used by: `cargo test`.

extern crate std;

use std::vec::Vec;

use super::chunks::*;
use crate::boot::Bump;
use crate::host::storage;
use crate::zone::Sink;

/// `lists` stacks as vectors, coldest first.
struct Model {
    chunks: Chunks,
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
            3..6 => assert_eq!(model.chunks.pop_below(i), model.lists[i].pop()),
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
                let wanted = random(200) as usize;
                let got = refill(&mut model.chunks, i, wanted, step << 8);
                assert!(got <= wanted);
                model.lists[i].extend((0..got as u32).rev().map(|n| (step << 8) + n));
            }
            _ => {}
        }
        if step % 16 == 0 {
            model.compare();
        }
    }
    model.compare();
}

/// Refills with frames from `first` up, some at a time.
fn refill(chunks: &mut Chunks, list: usize, wanted: usize, first: u32) -> usize {
    let mut refill = chunks.refill(list, wanted);
    let mut next = first;
    loop {
        let room = refill.room();
        let len = room.len().min(50);
        if len == 0 {
            break;
        }
        (next..)
            .zip(&mut room[..len])
            .for_each(|(n, slot)| *slot = n);
        next += len as u32;
        refill.wrote(len);
    }
    refill.finish()
}

#[test]
fn a_refill_leaves_the_list_in_ascending_order() {
    let mut model = Model::new(1000);
    assert_eq!(refill(&mut model.chunks, 0, 150, 0), 150);
    let out: Vec<_> = core::iter::from_fn(|| model.chunks.pop_below(0)).collect();
    assert!(out.into_iter().eq(0..150));
}

#[test]
fn a_pool_without_chunks_parks_nothing() {
    let mut model = Model::new(0);
    assert!(!model.chunks.push_growing(0, 1));
    assert_eq!(model.chunks.pop_below(0), None);
    assert_eq!(refill(&mut model.chunks, 0, 5, 0), 0);
    assert_eq!(model.chunks.take_cold(0, 5, |_| {}), 0);
    assert!(model.chunks.check());
}
