//! Time that tasks lose for want of memory, by a clock that the tests turn.

#[path = "common/host.rs"]
mod host;

use std::cell::Cell;
use std::mem::MaybeUninit;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::report::MemoryPressure;
use framekeeper::{
    Backing, CpuId, Evict, Folio, Isolated, MemcgId, Mm, MmConfig, NodeId, Order, PhysAddr,
    Platform, Refused, Request, Unmap, WriteOut,
};
use host::{Host, YieldLock, storage};

const MS: u64 = 1_000_000;

thread_local! {
    static CLOCK: Cell<u64> = const { Cell::new(5 << 30) };
}

fn wait(ns: u64) {
    CLOCK.set(CLOCK.get() + ns);
}

/// A platform with a clock.
#[derive(Debug)]
enum Clocked {}

// SAFETY: no memory is ever given to an instance of this platform, so the direct map has nothing to cover.
#[allow(unsafe_code)]
unsafe impl Platform for Clocked {
    type RawLock = YieldLock;
    fn cpu() -> CpuId {
        CpuId(0)
    }
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_state: usize) {}
    fn direct_map(_addr: PhysAddr) -> *mut u8 {
        std::ptr::null_mut()
    }
    fn now() -> Option<u64> {
        Some(CLOCK.get())
    }
}

/// Writing a page takes a millisecond.
impl Evict for Clocked {
    fn referenced(_: &Isolated<'_, Self>) -> u32 {
        0
    }
    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        if folio.clear_word_bits(1) & 1 != 0 {
            // SAFETY: `fault` gave the number out, and its bit was set until now.
            #[allow(unsafe_code)]
            drop(unsafe { folio.mm().folio_from_raw(folio.pfn()) });
        }
        Unmap::Done
    }
    fn write_out(_: &Isolated<'_, Self>) -> WriteOut {
        wait(MS);
        WriteOut::Done
    }
    fn remap(folio: &Isolated<'_, Self>) {
        map(folio.reference());
    }
}

fn map(folio: Folio<'_, Clocked>) {
    folio.set_word_bits(1);
    let _entry = folio.into_raw();
}

fn fault(mm: &Mm<Clocked>, memcg: MemcgId) {
    let pages = mm.alloc(Request::new(Order::ZERO)).unwrap();
    let folio = pages.charge_to(mm, memcg).unwrap();
    folio.add_to_lru(Backing::Anon).unwrap();
    map(folio);
}

fn machine(frames: u64) -> Mm<Clocked> {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4096), frames << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Clocked>::claim(&mut map) };
    let mut bytes = Vec::<MaybeUninit<u8>>::new();
    bytes.resize_with(4 << 20, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(bytes.leak()));
    Mm::new(memory, &MmConfig::new(1, 4))
        .map_err(Refused::into_error)
        .unwrap()
}

/// Microseconds that a group lost: some, full.
fn lost(mm: &Mm<Clocked>, memcg: MemcgId) -> (u64, u64) {
    let pressure = mm.memcg_pressure(memcg).unwrap().unwrap();
    (pressure.some.total, pressure.full.total)
}

#[test]
fn stalls_count_in_the_group_and_all_above_it_and_in_full_while_nobody_works() {
    let mm = machine(300);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let [one, two] = [0, 1].map(|_| mm.create_memcg(parent).unwrap());
    let (busy_one, busy_two) = (mm.task_busy(one), mm.task_busy(two));
    let stall = mm.task_stalls(one);
    wait(7000);
    assert_eq!(lost(&mm, one), (7, 7));
    assert_eq!(lost(&mm, two), (0, 0));
    assert_eq!(lost(&mm, parent), (7, 0), "the other one works");
    drop(busy_two); // it sleeps
    wait(2000);
    assert_eq!(lost(&mm, parent), (9, 2));
    assert_eq!(lost(&mm, MemcgId::ROOT), (9, 2));
    drop((stall, busy_one));
    wait(5000);
    assert_eq!(lost(&mm, MemcgId::ROOT), (9, 2));
    mm.check().unwrap();
}

#[test]
fn a_stall_outlives_its_group_and_the_next_group_in_its_place_has_none() {
    let mm = machine(300);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    let stall = mm.task_stalls(child);
    wait(1000);
    mm.remove_memcg(child).unwrap();
    assert!(mm.memcg_pressure(child).is_err());
    let next = mm.create_memcg(MemcgId::ROOT).unwrap();
    wait(1000);
    assert_eq!(lost(&mm, next), (0, 0));
    mm.check().unwrap();
    mm.remove_memcg(parent).unwrap();
    wait(1000);
    drop(stall);
    wait(1000);
    assert_eq!(lost(&mm, MemcgId::ROOT), (3, 3));
    assert_eq!(lost(&mm, next), (0, 0));
    // A task of a group that is gone counts nowhere.
    drop(mm.task_stalls(child));
    mm.check().unwrap();
}

#[test]
fn reclaim_for_a_limit_and_for_a_request_is_a_stall() {
    let mm = machine(300);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.set_memcg_max(group, 64).unwrap();
    (0..64).for_each(|_| fault(&mm, group));
    assert_eq!(lost(&mm, group), (0, 0));
    fault(&mm, group);
    let of_group = lost(&mm, group).0;
    assert!(of_group >= 1000, "a page at least was written");
    assert_eq!(lost(&mm, MemcgId::ROOT).0, of_group);
    // Proactive reclaim stalls nobody.
    let freed = mm.shrink_memcg(group, 8).unwrap().freed;
    assert!(freed > 0);
    assert_eq!(lost(&mm, group).0, of_group);
    // Memory of the machine runs out.
    while mm
        .memcg_pressure(MemcgId::ROOT)
        .unwrap()
        .unwrap()
        .some
        .total
        == of_group
    {
        fault(&mm, MemcgId::ROOT);
    }
    assert_eq!(lost(&mm, group).0, of_group);
    mm.check().unwrap();
}

#[test]
fn the_text_is_linuxs() {
    let mm = machine(300);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let stall = mm.task_stalls(group);
    wait(2000 * MS);
    let text = MemoryPressure::of(&mm, group).unwrap().unwrap().to_string();
    assert_eq!(
        text,
        "some avg10=18.11 avg60=3.27 avg300=0.68 total=2000000\n\
         full avg10=18.11 avg60=3.27 avg300=0.68 total=2000000\n"
    );
    drop(stall);
}

#[test]
fn without_a_clock_there_are_no_figures_and_nothing_is_counted() {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4096), 300 << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Host>::claim(&mut map) };
    let memory = memory.with_storage(storage(4 << 20));
    let mm = Mm::new(memory, &MmConfig::new(1, 2))
        .map_err(Refused::into_error)
        .unwrap();
    let stall = mm.task_stalls(MemcgId::ROOT);
    assert_eq!(mm.memcg_pressure(MemcgId::ROOT), Ok(None));
    assert_eq!(MemoryPressure::of(&mm, MemcgId::ROOT), Ok(None));
    drop(stall);
    mm.check().unwrap();
}
