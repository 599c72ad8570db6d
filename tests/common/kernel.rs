//! A kernel in one word: how `Host` answers reclaim's hooks, as the folio's own word tells it.
//!
//! A test maps a folio by giving its reference to the word ([`map`]); the hooks unmap it again. Other bits make hooks refuse.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses the part it needs"
)]

extern crate std;

use std::cell::{Cell, RefCell};
use std::thread_local;
use std::vec::Vec;

use framekeeper::boot::{BootMap, Memory};
use framekeeper::{
    Backing, CompactStop, Copied, Evict, Evicted, Folio, Isolated, MemcgId, Migrate, Mm, MmConfig,
    Moving, NodeId, Oom, Order, PhysAddr, Policy, Refused, Release, Request, Unmap, WriteOut,
};

use super::host::Host;

/// The folio was used through its mapping since the last look.
pub const ACCESSED: u64 = 1;
/// A mapping holds a reference.
pub const MAPPED: u64 = 1 << 1;
/// `unmap` refuses.
pub const STUCK: u64 = 1 << 2;
/// `write_out` refuses.
pub const NO_SWAP: u64 = 1 << 3;
/// `release` refuses.
pub const PRIVATE: u64 = 1 << 4;
/// `unmap` says done, but keeps the mapping's reference.
pub const LIAR: u64 = 1 << 5;
/// `write_out` allocates and charges with reclaim allowed.
pub const NESTS: u64 = 1 << 6;
/// `referenced` panics.
pub const PANICS: u64 = 1 << 7;

/// `write_out` starts the writing, and the test ends it.
pub const SLOW: u64 = 1 << 8;
/// With `SLOW`: the writing ends before `write_out` returns.
pub const FAST: u64 = 1 << 9;
/// A cache has a reference.
pub const CACHED: u64 = 1 << 10;

/// `copy` refuses.
pub const NO_COPY: u64 = 1 << 11;
/// `copy` panics.
pub const COPY_PANICS: u64 = 1 << 12;

thread_local! {
    /// What was moved to other frames on this thread.
    pub static MOVED: RefCell<Vec<Moving>> = const { RefCell::new(Vec::new()) };
    /// How often the out-of-memory hook was called on this thread.
    pub static OOM_CALLS: Cell<u32> = const { Cell::new(0) };
    /// What was evicted on this thread: frame and shadow.
    pub static EVICTED: RefCell<Vec<Evicted>> = const { RefCell::new(Vec::new()) };
    /// How often hooks were called on this thread.
    pub static HOOK_CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Host threads give up the CPU anywhere, so each names itself.
fn thread_name() -> u64 {
    thread_local!(static NAME: Cell<u8> = const { Cell::new(0) });
    NAME.with(|name| name.as_ptr() as u64)
}

impl Evict for Host {
    fn referenced(folio: &Isolated<'_, Self>) -> u32 {
        HOOK_CALLS.set(HOOK_CALLS.get() + 1);
        let word = folio.clear_word_bits(ACCESSED);
        assert!(word & PANICS == 0, "the hook was told to panic");
        u32::from(word & ACCESSED != 0)
    }

    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        let word = folio.word();
        if word & STUCK != 0 {
            return Unmap::Busy;
        }
        if word & LIAR == 0 && folio.clear_word_bits(MAPPED) & MAPPED != 0 {
            unmap(folio.mm(), folio.pfn());
        }
        Unmap::Done
    }

    fn write_out(folio: &Isolated<'_, Self>) -> WriteOut {
        let word = folio.word();
        if word & NESTS != 0 {
            let mm = folio.mm();
            let pages = mm
                .try_alloc(Request::new(Order::ZERO))
                .expect("frames are left");
            let memcg = folio.memcg().expect("charged");
            drop(
                pages
                    .charge_to(mm, memcg)
                    .expect_err("reclaim does not nest"),
            );
        }
        if word & SLOW != 0 {
            // The cache's reference, which `release` drops.
            folio.set_word_bits(CACHED);
            let _cached: framekeeper::Pfn = folio.reference().into_raw();
            folio.start_writeback();
            if word & FAST != 0 {
                folio.end_writeback();
            }
            folio.clear_word_bits(SLOW);
            return WriteOut::Started;
        }
        if word & NO_SWAP != 0 {
            WriteOut::Busy
        } else {
            WriteOut::Done
        }
    }

    fn release(folio: &Isolated<'_, Self>) -> Release {
        if folio.word() & PRIVATE != 0 {
            return Release::Busy;
        }
        if folio.clear_word_bits(CACHED) & CACHED != 0 {
            unmap(folio.mm(), folio.pfn());
        }
        Release::Done
    }

    fn evicted(_mm: &Mm<Self>, gone: &Evicted) {
        EVICTED.with_borrow_mut(|evicted| evicted.push(*gone));
    }

    fn remap(folio: &Isolated<'_, Self>) {
        if folio.word() & LIAR == 0 {
            let _mapped: framekeeper::Pfn = map(folio.reference());
        }
    }

    fn compact(mm: &Mm<Self>, node: NodeId, order: Order) -> bool {
        mm.compact(node, order).stop == CompactStop::Enough
    }

    fn oom(_memcg: Option<MemcgId>) -> Oom {
        OOM_CALLS.set(OOM_CALLS.get() + 1);
        Oom::Fail
    }

    fn task() -> u64 {
        thread_name()
    }
}

impl Migrate for Host {
    fn copy(moving: &Moving) -> Copied {
        assert!(moving.word & COPY_PANICS == 0, "the hook was told to panic");
        if moving.word & NO_COPY != 0 {
            return Copied::Refused;
        }
        MOVED.with_borrow_mut(|moved| moved.push(*moving));
        Copied::Done
    }
}

/// Gives the folio's reference to a mapping.
pub fn map(folio: Folio<'_, Host>) -> framekeeper::Pfn {
    if folio.set_word_bits(MAPPED) & MAPPED != 0 {
        // A hook was told to map it before its first mapping came: the one bit stands for one reference.
        return folio.pfn();
    }
    folio.into_raw()
}

/// Drops the reference that a mapping holds.
#[allow(unsafe_code)]
pub fn unmap(mm: &Mm<Host>, pfn: framekeeper::Pfn) {
    // SAFETY: `map` gave this number out, and the MAPPED bit was set until now.
    drop(unsafe { mm.folio_from_raw(pfn) });
}

/// The policy that this binary's instances have: tests of the name `two_lists` run what others run over generations.
pub fn policy() -> Policy {
    match module_path!().contains("two_lists") {
        true => Policy::TwoLists,
        false => Policy::Generations,
    }
}

/// An instance with `frames` simulated frames from frame 1 on, one node.
pub fn machine(frames: u64, cpus: u32, groups: u32) -> Mm<Host> {
    build(frames, &MmConfig::new(cpus, groups))
}

/// An instance with `frames` simulated frames from frame 1 on, and the binary's policy.
pub fn build(frames: u64, config: &MmConfig) -> Mm<Host> {
    try_build(frames, config).expect("a valid machine")
}

/// An instance with `frames` simulated frames from frame 1 on, or why there is none.
#[allow(unsafe_code)]
pub fn try_build(frames: u64, config: &MmConfig) -> Result<Mm<Host>, framekeeper::MmInitError> {
    let mut map = BootMap::<8>::new();
    map.add(NodeId(0), PhysAddr(4096), frames << 12)
        .expect("fits");
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    let memory = unsafe { Memory::<Host, 8>::claim(&mut map) };
    // Room for the records, and for pagesets of any size the tests ask for.
    let storage = super::host::storage((frames as usize * 64) + (4 << 20));
    let mut config = config.clone();
    config.policy = policy();
    Mm::new(memory.with_storage(storage), &config).map_err(Refused::into_error)
}

/// A charged folio on the LRU, mapped.
pub fn fault(mm: &Mm<Host>, memcg: MemcgId, backing: Backing) -> Option<framekeeper::Pfn> {
    let folio = mm
        .alloc(Request::new(Order::ZERO))
        .ok()?
        .charge_to(mm, memcg)
        .ok()?;
    folio.add_to_lru(backing).expect("new");
    Some(map(folio))
}

/// A charged folio of an order that is on no list yet.
pub fn folio(mm: &Mm<Host>, memcg: MemcgId, order: u8) -> Folio<'_, Host> {
    let order = Order::new(order).expect("an order");
    let pages = mm.try_alloc(Request::new(order)).expect("frames are left");
    pages.try_charge_to(mm, memcg).expect("below the limit")
}

/// Folios that were added, and are on their list.
pub fn listed(
    mm: &Mm<Host>,
    memcg: MemcgId,
    backing: Backing,
    count: usize,
) -> Vec<Folio<'_, Host>> {
    let folios: Vec<_> = (0..count).map(|_| folio(mm, memcg, 0)).collect();
    for folio in &folios {
        folio.add_to_lru(backing).expect("new");
    }
    mm.drain_lru();
    folios
}
