//! `Host`: a platform on which threads of a test process play CPUs.
//!
//! Frames are numbers only: the direct map answers null. A thread is CPU 0 until it calls [`run_as`].
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses the part it needs"
)]

extern crate std;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread_local;
use std::vec::Vec;

use framekeeper::{CpuId, PhysAddr, Platform, Rank, RawLock};

/// The platform of the host tests.
#[derive(Debug)]
pub enum Host {}

/// A spin lock that gives its time slice away, since test threads outnumber cores.
#[derive(Debug)]
pub struct YieldLock(AtomicBool);

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static HELD: [Cell<u64>; Rank::COUNT] = const { [const { Cell::new(0) }; Rank::COUNT] };
    static MOST: [Cell<u64>; Rank::COUNT] = const { [const { Cell::new(0) }; Rank::COUNT] };
    static LOCKS: [Cell<u64>; Rank::COUNT] = const { [const { Cell::new(0) }; Rank::COUNT] };
}

/// How often the calling thread took a lock of this rank so far.
pub fn locks_taken(rank: Rank) -> u64 {
    LOCKS.with(|locks| locks[rank as usize].get())
}

/// Locks that the calling thread holds.
pub fn locks_held() -> u64 {
    HELD.with(|held| held.iter().map(Cell::get).sum())
}

/// The most locks of this rank that the calling thread ever held at once.
pub fn most_held_of(rank: Rank) -> u64 {
    MOST.with(|most| most[rank as usize].get())
}

/// Makes the calling thread act as `cpu` from now on.
pub fn run_as(cpu: u32) {
    CPU.with(|c| c.set(cpu));
}

/// Blocks of memory by first byte and length: those that instances have, and those of instances that are gone.
#[derive(Debug)]
struct Blocks {
    lent: Vec<(usize, usize)>,
    spare: Vec<(usize, usize)>,
}

static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks {
    lent: Vec::new(),
    spare: Vec::new(),
});

/// Memory for one instance's metadata. Never freed: an instance keeps it until the program ends, or [`recycle`] is called.
pub fn storage(bytes: usize) -> framekeeper::boot::Storage {
    let mut blocks = BLOCKS.lock().expect("nobody panics with it");
    let fits = |&(_, length): &(usize, usize)| length == bytes;
    let spare = blocks.spare.iter().position(fits);
    let (start, length) = spare.map_or_else(
        || {
            let mut memory = Vec::<MaybeUninit<u8>>::with_capacity(bytes);
            memory.resize_with(bytes, MaybeUninit::uninit);
            (memory.leak().as_mut_ptr().expose_provenance(), bytes)
        },
        |at| blocks.spare.swap_remove(at),
    );
    blocks.lent.push((start, length));
    // SAFETY: the block was leaked, and nobody else has it: `recycle`'s caller promised that of a spare one.
    #[allow(unsafe_code)]
    let memory = unsafe {
        core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(start), length)
    };
    framekeeper::boot::Storage::from_static(memory)
}

/// Lets later instances use the metadata memory of earlier ones, for a fuzzer that builds more than memory can hold.
///
/// # Safety
/// Every instance that was built on [`storage`] is gone.
#[allow(unsafe_code)]
pub unsafe fn recycle() {
    let mut blocks = BLOCKS.lock().expect("nobody panics with it");
    let Blocks { lent, spare } = &mut *blocks;
    spare.append(lent);
}

/// Storage in physical memory, of which the host's direct map covers none: every call fails.
pub fn unmapped_storage(
    start: u64,
    bytes: u64,
) -> Result<framekeeper::boot::Storage, framekeeper::boot::StorageError> {
    // SAFETY: no byte is used, since the direct map answers null.
    #[allow(unsafe_code)]
    unsafe {
        framekeeper::boot::Storage::from_direct_map::<Host>(PhysAddr(start), bytes)
    }
}

// SAFETY: no memory is ever given to an instance of this platform, so the direct map has nothing to cover.
#[allow(unsafe_code)]
unsafe impl Platform for Host {
    type RawLock = YieldLock;

    fn cpu() -> CpuId {
        CpuId(CPU.with(Cell::get))
    }
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_state: usize) {}
    fn direct_map(_addr: PhysAddr) -> *mut u8 {
        core::ptr::null_mut()
    }
    fn relax() {
        std::thread::yield_now();
    }
    fn lock_acquired(rank: Rank) {
        LOCKS.with(|locks| locks[rank as usize].set(locks[rank as usize].get() + 1));
        let held = HELD.with(|held| {
            held[rank as usize].set(held[rank as usize].get() + 1);
            held[rank as usize].get()
        });
        MOST.with(|most| most[rank as usize].set(most[rank as usize].get().max(held)));
    }
    fn lock_released(rank: Rank) {
        HELD.with(|held| held[rank as usize].set(held[rank as usize].get() - 1));
    }
}

// SAFETY: the swap from false to true succeeds for one thread at a time; Acquire and Release order the holders.
#[allow(unsafe_code)]
unsafe impl RawLock for YieldLock {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }
    fn lock(&self) {
        while !self.try_lock() {
            std::thread::yield_now();
        }
    }
    fn try_lock(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}
