//! A port whose locks are unfair, and one of whose CPUs masks nothing: slower, never wrong.

#[path = "common/objects.rs"]
mod objects;
#[path = "common/race.rs"]
mod race;
#[path = "common/shared.rs"]
mod shared;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::list_lru::{AddError, DeleteError, Scope, Verdict};
use framekeeper::{
    Backing, CpuId, ListLru, MemcgId, Mm, MmConfig, NodeId, Order, PhysAddr, Platform, RawLock,
    Refused, Request,
};
use objects::{Collect, Thing};
use race::{rounds, run, tests, together};
use shared::Shared as Pointer;

const NODE: NodeId = NodeId(0);

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static MASKS: Cell<u32> = const { Cell::new(0) };
}

#[derive(Debug)]
enum Odd {}

/// Whoever had it last gets it again: waiters look only now and then, and CPU 1's hardly ever.
#[derive(Debug)]
struct UnfairLock(AtomicBool);

// SAFETY: no memory is ever given to an instance of this platform, so the direct map has nothing to cover.
#[allow(unsafe_code)]
unsafe impl Platform for Odd {
    type RawLock = UnfairLock;
    fn cpu() -> CpuId {
        CpuId(CPU.get())
    }
    fn irq_save() -> usize {
        if CPU.get() == 1 {
            return 0; // it has no interrupts to mask, and says nothing of it
        }
        MASKS.replace(MASKS.get() + 1) as usize
    }
    fn irq_restore(state: usize) {
        if CPU.get() != 1 {
            MASKS.set(state as u32);
        }
    }
    fn direct_map(_addr: PhysAddr) -> *mut u8 {
        core::ptr::null_mut()
    }
    fn relax() {
        std::thread::yield_now();
    }
}

// SAFETY: the swap from false to true succeeds for one thread at a time; Acquire and Release order the holders.
#[allow(unsafe_code)]
unsafe impl RawLock for UnfairLock {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }
    fn lock(&self) {
        while !self.try_lock() {
            let looks_away = if CPU.get() == 1 { 40 } else { 5 };
            (0..looks_away).for_each(|_| std::thread::yield_now());
        }
    }
    fn try_lock(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

fn machine() -> Mm<Odd> {
    let mut map = BootMap::<8>::new();
    map.add(NodeId(0), PhysAddr(4096), 600 << 12).expect("fits");
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Odd, 8>::claim(&mut map) };
    let mut bytes = Vec::<MaybeUninit<u8>>::with_capacity(1 << 20);
    bytes.resize_with(1 << 20, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(bytes.leak()));
    let mut config = MmConfig::new(3, 8);
    config.alloc.pageset_slots = 64;
    Mm::new(memory, &config)
        .map_err(Refused::into_error)
        .expect("a valid machine")
}

/// misuse 48: lists, charges and the ends of groups.
fn a_port_with_unfair_locks_and_a_cpu_that_masks_nothing_loses_nothing() {
    let mm = machine();
    let list: ListLru<'_, Thing, Odd> = mm.list_lru(Scope::Groups, None).expect("configured");
    let top = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.set_memcg_max(top, 200).unwrap();
    together(3, |cpu| {
        CPU.set(cpu);
        for round in 0..rounds(400) {
            let brief = mm.create_memcg(top).expect("three at once");
            let thing: Pointer = Thing::named(round);
            let other: Pointer = Thing::named(round);
            for thing in [&thing, &other] {
                match list.add(brief, NODE, thing.clone()) {
                    Ok(group) => assert_eq!(group, brief),
                    Err(Refused(error, _)) => assert_eq!(error, AddError::InsideWalk),
                }
            }
            let request = Request::new(Order::ZERO);
            let folio = mm.try_alloc(request).expect("frames are free");
            let folio = folio.try_charge_to(&mm, brief).map_err(Refused::into_error);
            let folio = folio.expect("below the limit");
            folio.add_to_lru(Backing::Anon).unwrap();
            let bytes = mm.try_charge_bytes(brief, NODE, 700).expect("below it");
            let mut walk = Collect::new(|_: &Thing| Verdict::Rotate);
            let _ = list.walk(brief, NODE, 10, &mut walk);
            mm.remove_memcg(brief).expect("nobody else knows it");
            assert_eq!(folio.memcg(), Some(top));
            drop(folio);
            for thing in [thing, other] {
                match list.delete(&thing) {
                    Ok(_) | Err(DeleteError::NotListed | DeleteError::InsideWalk) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            drop(bytes);
            if round % 16 == 0 {
                mm.drain_lru();
            }
        }
        assert_eq!(MASKS.get(), 0, "every mask was undone");
    });
    mm.drain_lru();
    (0..3).for_each(|cpu| mm.drain_memcg_cpu(CpuId(cpu)));
    mm.check().unwrap();
    assert_eq!(list.count_node(NODE), 0);
    assert_eq!(mm.memcg_usage(top), Ok(0));
    mm.remove_memcg(top).unwrap();
    let allocator = mm.allocator();
    assert_eq!(allocator.free_frames(), allocator.managed_frames());
}

fn main() -> ExitCode {
    run(&tests![
        a_port_with_unfair_locks_and_a_cpu_that_masks_nothing_loses_nothing
    ])
}
