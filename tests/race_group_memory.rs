//! Groups whose memory comes from the allocator: there while they live, back when they have ended, whoever reads meanwhile.

#[path = "common/race.rs"]
mod race;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::memcg::{CreateError, GroupMemory};
use framekeeper::report::MemoryStat;
use framekeeper::sync::SpinLock;
use framekeeper::{
    CpuId, Folio, MemcgId, Mm, MmConfig, NodeId, Order, PageState, PhysAddr, Platform, Refused,
    Request, StateChange,
};
use race::{rounds, run, tests, together};

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    /// Frames are out of reach.
    static UNMAPPED: Cell<bool> = const { Cell::new(false) };
}

/// Frames are memory of this process, at their own addresses.
#[derive(Debug)]
enum Real {}

// SAFETY: every frame given to an instance lies in memory that is leaked to it; `cpu` may be wrong, ids are shared.
#[allow(unsafe_code)]
unsafe impl Platform for Real {
    type RawLock = SpinLock;
    fn cpu() -> CpuId {
        CpuId(CPU.get())
    }
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_: usize) {}
    fn direct_map(addr: PhysAddr) -> *mut u8 {
        if UNMAPPED.get() {
            return core::ptr::null_mut();
        }
        core::ptr::with_exposed_provenance_mut(addr.0 as usize)
    }
    fn relax() {
        std::thread::yield_now();
    }
}

const FRAMES: u64 = 600;

fn machine(cpus: u32, groups: u32) -> Mm<Real> {
    let bytes = (FRAMES as usize + 1) << 12;
    let ram = vec![0u8; bytes].leak().as_mut_ptr();
    let start = ram.expose_provenance().next_multiple_of(4096) as u64;
    let mut map = BootMap::<8>::new();
    map.add(NodeId(0), PhysAddr(start), FRAMES << 12).unwrap();
    // SAFETY: nothing else uses this memory.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Real, 8>::claim(&mut map) };
    let mut storage = Vec::<MaybeUninit<u8>>::with_capacity(4 << 20);
    storage.resize_with(4 << 20, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(storage.leak()));
    let mut config = MmConfig::new(cpus, groups);
    config.memcgs.memory = GroupMemory::OnDemand;
    config.alloc.pageset_slots = 64;
    Mm::new(memory, &config)
        .map_err(Refused::into_error)
        .expect("a valid machine")
}

fn free(mm: &Mm<Real>) -> u64 {
    mm.allocator().drain_all();
    mm.allocator().free_frames()
}

fn folio(mm: &Mm<Real>, memcg: MemcgId) -> Option<Folio<'_, Real>> {
    let pages = mm.try_alloc(Request::new(Order::ZERO)).ok()?;
    pages.try_charge_to(mm, memcg).ok()
}

fn a_groups_memory_is_there_while_it_lives_and_free_again_afterwards() {
    // 64 bytes for each of 100 CPUs and one more: two frames.
    let mm = machine(100, 50);
    let before = free(&mm);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    assert_eq!(free(&mm), before - 2);
    let below = mm.create_memcg(group).unwrap();
    assert_eq!(free(&mm), before - 4);
    let folios: Vec<_> = (0..10).map(|_| folio(&mm, below).unwrap()).collect();
    for (cpu, folio) in (0..).zip(&folios) {
        CPU.set(cpu * 12); // the last is out of range
        folio.account(PageState::MAPPED, StateChange::Enter);
    }
    CPU.set(0);
    let mapped = |id| MemoryStat::of(&mm, id).unwrap().state(PageState::MAPPED);
    assert_eq!((mapped(below), mapped(group)), (10, 10));
    mm.check().unwrap();
    mm.remove_memcg(below).unwrap();
    assert_eq!(mapped(group), 10);
    assert_eq!(free(&mm), before - 2 - 10, "its own two are back");
    for folio in &folios {
        folio.account(PageState::MAPPED, StateChange::Leave);
    }
    drop(folios);
    mm.check().unwrap();
    mm.remove_memcg(group).unwrap();
    mm.drain_lru();
    assert_eq!(free(&mm), before);
    // A place that is taken again counts from zero.
    let again = mm.create_memcg(MemcgId::ROOT).unwrap();
    assert_eq!(mapped(again), 0);
    mm.check().unwrap();
}

/// misuse 39: memory out while a group is made, or out of reach of the direct map; no place left.
fn a_group_for_which_there_is_no_memory_is_an_error_and_leaves_nothing_behind() {
    let mm = machine(100, 3);
    let before = free(&mm);
    let none = CreateError::NoMemory { order: 1 };
    UNMAPPED.set(true);
    assert_eq!(mm.create_memcg(MemcgId::ROOT), Err(none));
    UNMAPPED.set(false);
    assert_eq!(free(&mm), before);
    let mut taken = Vec::new();
    while let Ok(pages) = mm.try_alloc(Request::new(Order::ZERO).ignore_watermarks()) {
        taken.push(pages);
    }
    assert_eq!(mm.create_memcg(MemcgId::ROOT), Err(none));
    assert_eq!(mm.memcg_count(), 1);
    drop(taken);
    assert_eq!(free(&mm), before);
    let groups = [0; 3].map(|_| mm.create_memcg(MemcgId::ROOT).unwrap());
    let full = CreateError::TooMany { most: 4 };
    assert_eq!(mm.create_memcg(MemcgId::ROOT), Err(full));
    assert_eq!(free(&mm), before - 6, "what was taken for it is back");
    for group in groups {
        mm.remove_memcg(group).unwrap();
    }
    assert_eq!(free(&mm), before);
    mm.check().unwrap();
}

/// misuse 35: statistics are read, and states change, while groups and their memory come and go.
fn counts_that_are_read_while_their_groups_memory_goes_are_of_some_group() {
    let mm = machine(3, 12);
    let before = free(&mm);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let over = AtomicBool::new(false);
    together(4, |thread| {
        CPU.set(thread);
        if thread == 0 {
            while !over.load(Ordering::Acquire) {
                let stat = MemoryStat::of(&mm, parent).unwrap();
                assert!(stat.state(PageState::MAPPED) <= FRAMES, "{stat:?}");
            }
            return;
        }
        let mut left = Vec::new();
        for round in 0..rounds(1500) {
            let Ok(brief) = mm.create_memcg(parent) else {
                left.clear();
                continue;
            };
            for _ in 0..3 {
                if let Some(folio) = folio(&mm, brief) {
                    folio.account(PageState::MAPPED, StateChange::Enter);
                    left.push(folio);
                }
            }
            mm.remove_memcg(brief).expect("nobody else knows it");
            for folio in &left {
                folio.account(PageState::MAPPED, StateChange::Leave);
            }
            if round % 8 == 0 {
                left.clear();
            }
        }
        over.store(true, Ordering::Release);
    });
    CPU.set(0);
    mm.check().unwrap();
    assert_eq!(MemoryStat::of(&mm, parent).unwrap().states, [0; 7]);
    mm.remove_memcg(parent).unwrap();
    mm.drain_lru();
    mm.check().unwrap();
    assert_eq!(free(&mm), before);
}

fn main() -> ExitCode {
    run(&tests![
        a_groups_memory_is_there_while_it_lives_and_free_again_afterwards,
        a_group_for_which_there_is_no_memory_is_an_error_and_leaves_nothing_behind,
        counts_that_are_read_while_their_groups_memory_goes_are_of_some_group,
    ])
}
