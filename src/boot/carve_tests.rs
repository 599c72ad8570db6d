//! Tests of carve.rs.
//!
//! Owns: nothing. Invariants: as carve.rs states them. Lock ranks: none. Used by: `cargo test`.

extern crate std;

use core::mem::MaybeUninit;
use std::format;
use std::vec::Vec;

use super::carve::{Bump, Storage};
use super::error::{StorageError, StorageFull};
use crate::addr::PhysAddr;
use crate::host::{storage, unmapped_storage};

/// A slot with an alignment of its own.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(align(64))]
struct Line(u64);

/// Storage of `bytes` bytes whose address is `offset` past a page boundary.
fn storage_at(offset: usize, bytes: usize) -> Storage {
    let mut memory = Vec::<MaybeUninit<u8>>::with_capacity(bytes + 2 * 4096);
    memory.resize_with(bytes + 2 * 4096, MaybeUninit::uninit);
    let memory = memory.leak();
    let start = memory.as_ptr().addr();
    let first = start.next_multiple_of(4096) - start + offset;
    Storage::from_static(&mut memory[first..first + bytes])
}

/// Carves what a layer might: arrays of several alignments and lengths, empty ones too.
fn carve_some(bump: &mut Bump<'_>) -> Result<Vec<(usize, usize)>, StorageFull> {
    fn place<T>(slots: &[T]) -> (usize, usize) {
        (slots.as_ptr().addr(), core::mem::size_of_val(slots))
    }
    Ok(std::vec![
        place(bump.slots(3, |i| i as u8)?),
        place(bump.slots(5, |i| i as u64)?),
        place(bump.slots(0, |_| 0_u32)?),
        place(bump.slots(2, |i| Line(i as u64))?),
        place(bump.slots(1, |_| 0_u16)?),
        place(bump.slots(7, |_| ())?),
        {
            let per_cpu = bump.per_cpu(2, || 0_u32)?;
            let first = per_cpu.iter().next();
            (
                first.map_or(0, |(_, value)| core::ptr::from_ref(value).addr()),
                256,
            )
        },
        place(bump.slots(9, |_| 0_u8)?),
    ])
}

#[test]
fn slots_are_aligned_disjoint_and_hold_what_was_put_in() {
    for offset in [0, 1, 3, 8, 63, 65, 4095] {
        let mut storage = storage_at(offset, 4096);
        let mut bump = Bump::new(&mut storage);
        let bytes = bump.slots(3, |i| i as u8).unwrap();
        let lines = bump.slots(4, |i| Line(i as u64 * 7)).unwrap();
        let words = bump.slots(2, |i| i as u32 + 100).unwrap();
        assert_eq!(bytes, [0, 1, 2]);
        assert_eq!(lines, [Line(0), Line(7), Line(14), Line(21)]);
        assert_eq!(words, [100, 101]);
        assert_eq!(lines.as_ptr().addr() % 64, 0);
        assert_eq!(words.as_ptr().addr() % 4, 0);
        assert!(bytes.as_ptr_range().end.addr() <= lines.as_ptr().addr());
        assert!(lines.as_ptr_range().end.addr() <= words.as_ptr().addr());
    }
}

#[test]
fn every_carved_array_lies_within_the_storage_and_apart_from_the_others() {
    let mut storage = storage_at(5, 4096);
    let mut bump = Bump::new(&mut storage);
    let places = carve_some(&mut bump).unwrap();
    let used = bump.used();
    let mut end = 0;
    for (start, len) in places.into_iter().filter(|(_, len)| *len > 0) {
        assert!(start >= end);
        end = start + len;
    }
    assert!(used <= 4096);
    assert_eq!(
        end % 4096,
        (5 + used) % 4096,
        "nothing is counted that is not used"
    );
}

#[test]
fn what_measuring_says_is_enough_for_storage_of_any_alignment() {
    let mut measure = Bump::measuring();
    assert!(measure.is_measuring());
    carve_some(&mut measure).unwrap();
    let needed = measure.used();
    for offset in 0..=4096 {
        let mut storage = storage_at(offset, needed);
        let mut bump = Bump::new(&mut storage);
        assert!(!bump.is_measuring());
        carve_some(&mut bump).unwrap();
        assert!(bump.used() <= needed);
    }
}

#[test]
fn measuring_makes_no_slot_and_calls_nobody() {
    let mut measure = Bump::measuring();
    let slots = measure
        .slots(1000, |_| -> u64 { panic!("while measuring") })
        .unwrap();
    assert!(slots.is_empty());
    let per_cpu = measure
        .per_cpu(64, || -> u64 { panic!("while measuring") })
        .unwrap();
    assert_eq!(per_cpu.iter().count(), 0);
    assert!(measure.used() >= 8000 + 64 * 128);
}

#[test]
fn storage_that_is_too_small_gives_nothing_and_keeps_what_it_has() {
    let mut storage = storage_at(0, 100);
    let mut bump = Bump::new(&mut storage);
    let first = bump.slots(10, |i| i as u64).unwrap();
    for _ in 0..2 {
        let full = bump
            .slots(3, |_| -> u64 { panic!("not enough room") })
            .unwrap_err();
        assert_eq!(
            full,
            StorageFull {
                needed: 104,
                available: 100
            }
        );
        assert_eq!(bump.used(), 80);
    }
    // Alignment counts: 32 bytes at 80 would fit without it.
    assert!(bump.slots(1, |_| Line(0)).is_err());
    assert!(bump.per_cpu(1, || 0_u8).is_err());
    assert_eq!(bump.used(), 80);
    assert_eq!(
        bump.slots(20, |_| 7_u8).unwrap(),
        [7; 20],
        "to the last byte"
    );
    assert_eq!(bump.used(), 100);
    assert!(bump.slots(1, |_| 0_u8).is_err());
    assert!(bump.slots(0, |_| 0_u8).unwrap().is_empty());
    assert_eq!(first, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "untouched");
}

#[test]
fn a_length_that_overflows_is_refused_while_measuring_and_while_building() {
    let mut storage = storage_at(3, 64);
    let mut build = Bump::new(&mut storage);
    let mut measure = Bump::measuring();
    for bump in [&mut build, &mut measure] {
        bump.slots(1, |_| 0_u8).unwrap();
        let used = bump.used();
        for count in [usize::MAX, usize::MAX / 8, usize::MAX / 8 + 1] {
            let full = bump.slots(count, |_| 0_u64).unwrap_err();
            assert!(full.needed > full.available || full.needed == usize::MAX);
            assert_eq!(bump.used(), used);
        }
    }
}

#[test]
fn empty_storage_holds_only_empty_arrays() {
    let mut storage = storage(0);
    assert_eq!(storage.bytes(), 0);
    let mut bump = Bump::new(&mut storage);
    assert!(bump.slots(0, |_| 0_u8).unwrap().is_empty());
    assert_eq!(bump.slots(5, |_| ()).unwrap().len(), 5);
    assert!(bump.slots(1, |_| 0_u8).is_err());
}

#[test]
fn a_physical_range_that_overflows_or_is_not_mapped_is_no_storage() {
    assert_eq!(
        unmapped_storage(u64::MAX - 10, 10).unwrap_err(),
        StorageError::Unmapped {
            start: PhysAddr(u64::MAX - 10)
        }
    );
    let overflow = unmapped_storage(u64::MAX - 10, 11).unwrap_err();
    assert_eq!(
        overflow,
        StorageError::Overflow {
            start: PhysAddr(u64::MAX - 10),
            bytes: 11
        }
    );
    assert!(format!("{overflow}").contains("11 bytes at 0xfffffffffffffff5"));
}
