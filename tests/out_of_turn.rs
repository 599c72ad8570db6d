//! Calls from where nobody may wait: beside a CPU that stalled while it held a lock, and from a non-maskable interrupt.

#[path = "common/stepper.rs"]
mod stepper;

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::{
    Backing, CpuId, Evict, Folio, Isolated, MemcgId, Mm, MmConfig, NodeId, Order, Pages, PhysAddr,
    Rank, Refused, Request, Unmap, WriteOut,
};
use stepper::{Stepped, as_nmi, holds, locks_held, remotely_at_every_point};

const ONE: Request = Request::new(Order::ZERO);

/// A kernel that maps nothing.
impl Evict for Stepped {
    fn referenced(_: &Isolated<'_, Self>) -> u32 {
        0
    }
    fn unmap(_: &Isolated<'_, Self>) -> Unmap {
        Unmap::Done
    }
    fn write_out(_: &Isolated<'_, Self>) -> WriteOut {
        WriteOut::Done
    }
    fn remap(_: &Isolated<'_, Self>) {}
}

struct State {
    mm: &'static Mm<Stepped>,
    group: MemcgId,
    folio: Folio<'static, Stepped>,
    held: RefCell<Vec<Pages<'static, Stepped>>>,
}

fn state() -> State {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(1 << 32), 2048 << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Stepped>::claim(&mut map) };
    let mut bytes = Vec::<MaybeUninit<u8>>::new();
    bytes.resize_with(512 << 10, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(bytes.leak()));
    let mm = Mm::new(memory, &MmConfig::new(2, 2)).map_err(Refused::into_error);
    let mm: &'static Mm<Stepped> = Box::leak(Box::new(mm.unwrap()));
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.set_memcg_max(group, 1000).unwrap();
    let pages = mm.try_alloc(ONE).unwrap();
    let folio = pages.try_charge_to(mm, group).unwrap();
    folio.add_to_lru(Backing::Anon).unwrap();
    State {
        mm,
        group,
        folio,
        held: RefCell::default(),
    }
}

/// misuse 57: a CPU stalls inside a drain of another's pageset. That other only tries the lock, and is served from the zone. The
/// locks of shards, lists and groups are waited for, and say so.
#[test]
fn a_cpu_whose_pageset_is_locked_by_one_that_stalls_allocates_and_frees_all_the_same() {
    let served = Rc::new(Cell::new(0));
    let count = Rc::clone(&served);
    remotely_at_every_point(
        0,
        state,
        |state| {
            stepper::run_as(1);
            state.mm.allocator().drain_cpu(CpuId(0));
            stepper::run_as(0);
        },
        move |state| {
            if !holds(Rank::Pageset) || holds(Rank::Shard) {
                return;
            }
            for order in [0, 3] {
                let request = Request::new(Order::new(order).unwrap());
                drop(state.mm.try_alloc(request).unwrap());
                let pages = state.mm.try_alloc(request).unwrap();
                state.held.borrow_mut().push(pages);
            }
            count.set(count.get() + 1);
        },
        |state| {
            state.held.borrow_mut().clear();
            state.mm.check().unwrap();
        },
    );
    assert!(
        served.get() > 0,
        "the drain holds the pageset's lock somewhere"
    );
}

/// misuse 56: whatever it comes upon, what the documentation of `in_nmi` lists takes no lock and masks nothing.
#[test]
fn a_non_maskable_interrupt_reads_counts_and_takes_references_under_any_lock() {
    let under = Rc::new(Cell::new(0));
    let count = Rc::clone(&under);
    remotely_at_every_point(
        0,
        state,
        |state| {
            let pages = state.mm.try_alloc(ONE).unwrap();
            let folio = pages.try_charge_to(state.mm, state.group).unwrap();
            folio.add_to_lru(Backing::File).unwrap();
            folio.activate();
            drop(folio);
            state.mm.drain_lru();
            state.mm.allocator().drain_cpu(CpuId(0));
            let _reclaimed = state.mm.reclaim(1);
        },
        move |state| {
            let locks = locks_held();
            as_nmi(|| {
                let folio = state.mm.try_get(state.folio.pfn()).unwrap();
                assert_eq!((folio.word(), folio.is_mlocked()), (0, false));
                drop(folio); // The test has a reference: this is not the last.
                let allocator = state.mm.allocator();
                assert!(allocator.managed_frames() > 1000);
            });
            assert_eq!(locks_held(), locks);
            count.set(count.get() + u32::from(locks > 0));
        },
        |state| state.mm.check().unwrap(),
    );
    assert!(under.get() > 10, "most points are under a lock");
}

/// misuse 56: in debug builds.
#[test]
#[cfg(debug_assertions)]
fn a_non_maskable_interrupt_that_might_wait_is_told_so() {
    let state = state();
    let told = catch_unwind(AssertUnwindSafe(|| {
        as_nmi(|| drop(state.mm.try_alloc(ONE)));
    }));
    as_nmi(|| ());
    let message = *told.unwrap_err().downcast::<&str>().unwrap();
    assert!(message.contains("non-maskable"), "{message}");
    drop(state.mm.try_alloc(ONE).unwrap());
    state.mm.check().unwrap();
}
