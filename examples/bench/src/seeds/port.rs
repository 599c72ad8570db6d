//! Two platforms over one crate: [`Sim`], one thread that plays every CPU and writes down each use of a lock, and [`Real`], pinned
//! threads whose locks count first tries that failed.
//!
//! **One lock per node**, the "before" of S0 and S1: while an instance is built with [`sharing`] a rank, all its locks of that rank are
//! one lock. Both variants take exactly as many locks, one for each use; only which one differs. (All memory here is on one node.)

use std::cell::{Cell, RefCell};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::sync::SpinLock;
use framekeeper::{
    Barrier, Config, CpuId, CpuIds, Mm, MmConfig, NodeId, Order, PageAllocator, PhysAddr, Platform,
    Rank, RawLock, Refused, Request,
};

/// Plays every CPU on one thread.
#[derive(Debug)]
pub enum Sim {}

/// Threads pinned to cores.
#[derive(Debug)]
pub enum Real {}

/// A use of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Acquire(u32, Rank),
    Release(u32, Rank),
}

/// A request for one frame. It takes the last frame: watermarks are not what is measured.
pub const ONE: Request = Request::new(Order::ZERO).ignore_watermarks();

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static SHARED: Cell<Option<(Rank, u32, &'static SpinLock)>> = const { Cell::new(None) };
    static EVENTS: RefCell<Option<Vec<Event>>> = const { RefCell::new(None) };
    static ONLY: Cell<Option<Rank>> = const { Cell::new(None) };
    static ACQUIRED: [Cell<u64>; Rank::COUNT] = const { [const { Cell::new(0) }; Rank::COUNT] };
    static CONTENDED: [Cell<u64>; Rank::COUNT] = const { [const { Cell::new(0) }; Rank::COUNT] };
}

static NEXT_LOCK: AtomicU32 = AtomicU32::new(0);

/// Builds an instance whose locks of `rank`, if one is given, are all the same lock.
pub fn sharing<T>(rank: Option<Rank>, build: impl FnOnce() -> T) -> T {
    let lock: &'static SpinLock = Box::leak(Box::new(<SpinLock as RawLock>::new()));
    let id = NEXT_LOCK.fetch_add(1, Ordering::Relaxed);
    SHARED.set(rank.map(|rank| (rank, id, lock)));
    let built = build();
    SHARED.set(None);
    built
}

/// Acts as a CPU.
pub fn act_as(cpu: u32) {
    CPU.set(cpu);
}

/// Does something as a CPU of [`Sim`], and returns what locks it used.
pub fn record<T>(cpu: u32, work: impl FnOnce() -> T) -> (T, Vec<Event>) {
    act_as(cpu);
    EVENTS.set(Some(Vec::new()));
    let result = work();
    (result, EVENTS.take().unwrap_or_default())
}

/// As [`record`], for locks of one rank: what else the work needs is part of its time.
pub fn record_of<T>(rank: Rank, cpu: u32, work: impl FnOnce() -> T) -> (T, Vec<Event>) {
    ONLY.set(Some(rank));
    let recorded = record(cpu, work);
    ONLY.set(None);
    recorded
}

/// What is left if a lock that is dropped and taken again at once stays held: one lock per node needs no more.
pub fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut joined: Vec<Event> = Vec::new();
    for event in events {
        match (joined.last(), event) {
            (Some(Event::Release(last, _)), Event::Acquire(next, _)) if *last == next => {
                joined.pop();
            }
            _ => joined.push(event),
        }
    }
    joined
}

/// How many locks of a rank events took.
pub fn taken(events: &[Event], rank: Rank) -> u64 {
    let of_rank = |event: &&Event| matches!(event, Event::Acquire(_, of) if *of == rank);
    events.iter().filter(of_rank).count() as u64
}

/// What the calling thread's uses of [`Real`]'s locks came to since the last call: taken, and not free at first.
pub fn counted(rank: Rank) -> (u64, u64) {
    let take = |counts: &[Cell<u64>; Rank::COUNT]| counts[rank as usize].take();
    (ACQUIRED.with(take), CONTENDED.with(take))
}

/// [`Sim`]'s lock.
pub struct RecordLock {
    held: AtomicBool,
    id: u32,
    rank: Rank,
}

// SAFETY: the swap lets one holder in; there is one thread, which never waits for itself (it would spin, not go on).
unsafe impl RawLock for RecordLock {
    fn new() -> Self {
        Self::of_rank(Rank::Hotplug)
    }
    fn of_rank(rank: Rank) -> Self {
        let shared = SHARED.get().filter(|shared| shared.0 == rank);
        let id = shared.map_or_else(
            || NEXT_LOCK.fetch_add(1, Ordering::Relaxed),
            |shared| shared.1,
        );
        Self {
            held: AtomicBool::new(false),
            id,
            rank,
        }
    }
    fn lock(&self) {
        while !self.try_lock() {}
    }
    fn try_lock(&self) -> bool {
        let taken = !self.held.swap(true, Ordering::Acquire);
        if taken {
            note(self.rank, Event::Acquire(self.id, self.rank));
        }
        taken
    }
    unsafe fn unlock(&self) {
        note(self.rank, Event::Release(self.id, self.rank));
        self.held.store(false, Ordering::Release);
    }
}

fn note(rank: Rank, event: Event) {
    if ONLY.get().is_some_and(|only| only != rank) {
        return;
    }
    EVENTS.with_borrow_mut(|events| {
        if let Some(events) = events {
            events.push(event);
        }
    });
}

/// [`Real`]'s lock.
pub struct TryLock {
    own: SpinLock,
    shared: Option<&'static SpinLock>,
    rank: Rank,
}

impl TryLock {
    #[inline]
    fn raw(&self) -> &SpinLock {
        self.shared.unwrap_or(&self.own)
    }
}

fn add(counts: &[Cell<u64>; Rank::COUNT], rank: Rank) {
    let count = &counts[rank as usize];
    count.set(count.get() + 1);
}

// SAFETY: passes every call on to one spin lock, always the same.
unsafe impl RawLock for TryLock {
    fn new() -> Self {
        Self::of_rank(Rank::Hotplug)
    }
    fn of_rank(rank: Rank) -> Self {
        let shared = SHARED.get().filter(|shared| shared.0 == rank);
        Self {
            own: <SpinLock as RawLock>::new(),
            shared: shared.map(|shared| shared.2),
            rank,
        }
    }
    #[inline]
    fn lock(&self) {
        ACQUIRED.with(|counts| add(counts, self.rank));
        if !RawLock::try_lock(self.raw()) {
            CONTENDED.with(|counts| add(counts, self.rank));
            RawLock::lock(self.raw());
        }
    }
    #[inline]
    fn try_lock(&self) -> bool {
        let taken = RawLock::try_lock(self.raw());
        if taken {
            ACQUIRED.with(|counts| add(counts, self.rank));
        }
        taken
    }
    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds it.
        unsafe { RawLock::unlock(self.raw()) }
    }
}

// SAFETY: no frame's memory is used, so the direct map covers nothing; one thread has every id.
unsafe impl Platform for Sim {
    const CPU_IDS: CpuIds = CpuIds::Exclusive;
    type RawLock = RecordLock;
    fn cpu() -> CpuId {
        CpuId(CPU.get())
    }
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_state: usize) {}
    fn direct_map(_addr: PhysAddr) -> *mut u8 {
        core::ptr::null_mut()
    }
}

// SAFETY: no frame's memory is used; each thread has an id of its own; `barrier_all` is the kernel's membarrier, which `ready` registered.
unsafe impl Platform for Real {
    const CPU_IDS: CpuIds = CpuIds::Exclusive;
    const BARRIER: Barrier = Barrier::Asymmetric;
    type RawLock = TryLock;
    #[inline]
    fn cpu() -> CpuId {
        CpuId(CPU.get())
    }
    #[inline]
    fn irq_save() -> usize {
        0
    }
    #[inline]
    fn irq_restore(_state: usize) {}
    fn direct_map(_addr: PhysAddr) -> *mut u8 {
        core::ptr::null_mut()
    }
    fn barrier_all() {
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    }
}

fn membarrier(command: i32) {
    // SAFETY: the call takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    assert_eq!(result, 0, "the kernel has no membarrier");
}

/// Makes [`Real`]'s barrier usable. Once, before its first instance.
pub fn ready() {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

/// An instance, and the storage of its metadata, which goes when it goes.
pub struct Owned<T> {
    instance: ManuallyDrop<T>,
    storage: *mut [MaybeUninit<u8>],
}

// SAFETY: the storage is reached through the instance alone.
unsafe impl<T: Send> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Owned<T> {}

impl<T> Deref for Owned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.instance
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: it is dropped here alone.
        unsafe { ManuallyDrop::drop(&mut self.instance) };
        // SAFETY: it came from a box. What refers to it lived in the instance, or borrowed that.
        drop(unsafe { Box::from_raw(self.storage) });
    }
}

fn memory<P: Platform, T>(
    frames: u64,
    storage: usize,
    build: impl FnOnce(Memory<'_, P, 64>) -> T,
) -> Owned<T> {
    let mut map: BootMap<64> = BootMap::new();
    map.add(NodeId(0), PhysAddr(4 << 30), frames << 12)
        .expect("one region fits");
    let mut bytes = Vec::<MaybeUninit<u8>>::with_capacity(storage);
    bytes.resize_with(storage, MaybeUninit::uninit);
    // SAFETY: the frames are numbers; nobody uses the memory behind them.
    let memory = unsafe { Memory::claim(&mut map) };
    let storage = Box::into_raw(bytes.into_boxed_slice());
    // SAFETY: nobody else has it; `Owned` frees it after the instance.
    let bytes = unsafe { &mut *storage };
    Owned {
        instance: ManuallyDrop::new(build(memory.with_storage(Storage::from_static(bytes)))),
        storage,
    }
}

/// An allocator of one zone.
pub fn allocator<P: Platform>(frames: u64, config: &Config) -> Owned<PageAllocator<P>> {
    let pools = config.cpus as usize * (config.pageset_slots as usize * 4 + 8192);
    memory(
        frames,
        (frames as usize / 2) + pools + (8 << 20),
        |memory| {
            PageAllocator::new(memory, config)
                .map_err(Refused::into_error)
                .expect("the metadata fits")
        },
    )
}

/// A machine of one node and 1 GiB.
pub fn machine<P: Platform>(config: &MmConfig) -> Owned<Mm<P>> {
    machine_of(1 << 18, config)
}

/// A machine of one node and so many frames.
pub fn machine_of<P: Platform>(frames: u64, config: &MmConfig) -> Owned<Mm<P>> {
    let per_frame = frames as usize * 40;
    let per_cpu = config.alloc.cpus as usize * (64 << 10);
    let per_group = config.memcgs.groups as usize * (4096 + config.alloc.cpus as usize * 1024);
    let storage = (38 << 20) + per_frame + per_cpu + per_group;
    memory(frames, storage, |memory| {
        Mm::new(memory, config)
            .map_err(Refused::into_error)
            .expect("the metadata fits")
    })
}
