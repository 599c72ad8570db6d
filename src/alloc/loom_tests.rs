//! Models of frames found bad while others allocate and free, run by loom on the code itself.
//!
//! Owns: nothing. Invariants: checked, not held: once a frame was marked bad, and nobody uses it, nobody gets it again, and
//! pagesets park as before. Lock ranks: as the code under test.
//! Used by: `RUSTFLAGS="--cfg loom" cargo test --release --lib`.
//!
//! Bounds: one who marks, one who frees, two CPUs, a zone of four frames; `LOOM_MAX_PREEMPTIONS` bounds the
//! schedules. The broken twins, which must be caught: without the drain, a parked frame is given again; without the look for
//! what the drain brought back, the pagesets stay closed.

extern crate std;

use core::mem::MaybeUninit;
use std::boxed::Box;
use std::vec::Vec;

use super::{Config, PageAllocator, Request};
use crate::addr::{NodeId, Order, Pfn, PhysAddr};
use crate::boot::{BootMap, Bump, Storage};
use crate::loom_host::{LoomHost, LoomLock, model_platform, run_as};
use crate::node::Tuning;
use crate::pageset::tune::Policy;
use crate::platform::Platform;

model_platform!(
    /// Does not empty the pagesets that it closes.
    WithoutDrain,
    LoomLock,
    LEFT_OUT: &'static str = "bad: what was parked before is drained"
);

model_platform!(
    /// Does not look whether the frame came back while it was being marked.
    WithoutLook,
    LoomLock,
    LEFT_OUT: &'static str = "bad: the drain may bring it back"
);

const ONE: Request = Request::new(Order::ZERO).ignore_watermarks();

fn machine<P: Platform>() -> &'static PageAllocator<P> {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(1 << 32), 4 << 12).unwrap();
    let mut memory = Vec::with_capacity(1 << 16);
    memory.resize_with(1 << 16, MaybeUninit::uninit);
    let mut storage = Storage::from_static(memory.leak());
    let config = Config {
        cpus: 2,
        pageset_slots: 64,
        raw_codes: false,
        // Parks in zones of any size.
        tuning: Tuning {
            policy: Policy::Auto,
            ..Tuning::default()
        },
        ..Config::default()
    };
    let allocator = PageAllocator::build(&mut Bump::new(&mut storage), &map, &config).unwrap();
    allocator.populate(&map);
    Box::leak(Box::new(allocator))
}

/// A frame is marked while its user frees it; then `check` looks at what is left.
fn a_frame_is_marked_while_it_is_freed<P: Platform>(check: fn(&PageAllocator<P>, Pfn)) {
    loom::model(move || {
        let allocator = machine::<P>();
        let pages = allocator.try_alloc(ONE).unwrap();
        let bad = pages.pfn();
        let user = loom::thread::spawn(move || {
            run_as(1);
            drop(pages);
        });
        allocator.mark_bad(bad).unwrap();
        user.join().unwrap();
        // Where it would be parked.
        run_as(1);
        check(allocator, bad);
    });
}

fn is_never_given<P: Platform>(allocator: &PageAllocator<P>, bad: Pfn) {
    // Bare numbers: a twin's panic must not free.
    let take = || Some(allocator.try_alloc(ONE).ok()?.into_raw());
    let held: Vec<_> = core::iter::from_fn(take).collect();
    assert!(!held.contains(&bad), "given again");
    assert_eq!(held.len(), 3);
}

fn parks<P: Platform>(allocator: &PageAllocator<P>, _: Pfn) {
    drop(allocator.try_alloc(ONE).unwrap());
    assert!(allocator.parked_frames() > 0, "pagesets are closed");
}

#[test]
fn a_frame_marked_bad_while_it_is_freed_is_never_given_again() {
    a_frame_is_marked_while_it_is_freed::<LoomHost>(is_never_given);
}

#[test]
fn pagesets_park_again_once_a_frame_marked_bad_was_freed() {
    a_frame_is_marked_while_it_is_freed::<LoomHost>(parks);
}

#[test]
#[should_panic(expected = "given again")]
fn without_the_drain_a_parked_bad_frame_is_given_again() {
    a_frame_is_marked_while_it_is_freed::<WithoutDrain>(is_never_given);
}

#[test]
#[should_panic(expected = "pagesets are closed")]
fn without_the_look_behind_the_drain_pagesets_stay_closed() {
    a_frame_is_marked_while_it_is_freed::<WithoutLook>(parks);
}
