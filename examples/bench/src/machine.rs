//! framekeeper as a subject: threads pinned to cores are its CPUs, its frames are numbers only.

use std::cell::Cell;
use std::hint::black_box;
use std::mem::MaybeUninit;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::sync::SpinLock;
use framekeeper::{
    Config, CpuId, CpuIds, NodeId, Order, PageAllocator, Pages, Pfn, PhysAddr, Platform, Refused,
    Request,
};

use crate::subject::{FRAMES, Subject};

/// The bench's platform.
#[derive(Debug)]
pub enum Bench {}

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

// SAFETY: no frame's memory is used, so the direct map covers nothing; each thread has a CPU id of its own.
unsafe impl Platform for Bench {
    const CPU_IDS: CpuIds = CpuIds::Exclusive;
    type RawLock = SpinLock;

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
}

/// Makes the calling thread CPU `cpu`, and keeps it on a core of its own if there are enough.
pub fn run_as(cpu: u32) {
    CPU.set(cpu);
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a valid set to write to.
    let known = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if known != 0 {
        return;
    }
    let mut allowed = (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the index is below CPU_SETSIZE.
        .filter(|&core| unsafe { libc::CPU_ISSET(core, &set) });
    let Some(core) = allowed.nth(cpu as usize) else {
        return;
    };
    // SAFETY: as above.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `core` is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(core, &mut one) };
    // SAFETY: `one` is a valid set; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(&one), &raw const one) };
}

/// A request for each order, as a kernel would keep the few that it makes. They take the last frame, as the peers do.
static REQUESTS: [Request; Order::COUNT] = {
    let mut requests = [Request::new(Order::ZERO).ignore_watermarks(); Order::COUNT];
    let mut n = 0;
    while n < Order::COUNT {
        if let Some(order) = Order::new(n as u8) {
            requests[n] = Request::new(order).ignore_watermarks();
        }
        n += 1;
    }
    requests
};

/// The subject.
pub struct Framekeeper(PageAllocator<Bench>);

impl Framekeeper {
    /// Bytes of metadata a frame: without room in the pagesets and without the codes of raw frees; with the codes; with both CPUs'
    /// pagesets too.
    pub fn metadata() -> [f64; 3] {
        [(1, false), (1, true), (4096, true)].map(|(pageset_slots, raw_codes)| {
            let built = Self::built(&Config {
                cpus: 2,
                pageset_slots,
                raw_codes,
                ..Config::default()
            });
            built.0.metadata_bytes() as f64 / f64::from(FRAMES)
        })
    }

    fn built(config: &Config) -> Self {
        let mut map: BootMap = BootMap::new();
        map.add(NodeId(0), PhysAddr(4 << 30), u64::from(FRAMES) << 12)
            .expect("one region fits");
        let mut storage = Vec::<MaybeUninit<u8>>::with_capacity(4 << 20);
        storage.resize_with(4 << 20, MaybeUninit::uninit);
        // SAFETY: the frames are numbers; nobody uses the memory behind them.
        let memory = unsafe { Memory::claim(&mut map) };
        let memory = memory.with_storage(Storage::from_static(storage.leak()));
        let allocator = PageAllocator::new(memory, config);
        Self(allocator.map_err(Refused::into_error).expect("fits"))
    }

    /// Frames given out as bare numbers and taken back, checked: a call is half of such a pair.
    pub fn raw_ping_pong(&self, calls: u32) {
        for _ in 0..calls / 2 {
            let pages = self.0.try_alloc(REQUESTS[0]).expect("memory is free");
            let pfn = black_box(pages.into_raw());
            drop(self.0.try_from_raw(pfn, Order::ZERO).expect("given"));
        }
    }

    /// Wrong frees of bare numbers: freed twice, a tail, another order, no memory.
    pub fn wrong_raw_frees(&self, calls: u32) {
        let twice = self.0.try_alloc(REQUESTS[0]).expect("memory is free");
        let twice = twice.pfn();
        let block = self.0.try_alloc(REQUESTS[3]).expect("memory is free");
        let block = block.into_raw();
        let order = Order::new(3).expect("an order");
        let wrong = [
            (twice, Order::ZERO),
            (Pfn(block.0 + 1), Order::ZERO),
            (block, Order::ZERO),
            (Pfn(u64::MAX), order),
        ];
        for call in 0..calls {
            let (pfn, order) = black_box(wrong[call as usize % wrong.len()]);
            assert!(self.0.try_from_raw(pfn, order).is_err());
        }
    }
}

impl Subject for Framekeeper {
    type Block<'a> = Pages<'a, Bench>;
    const NAME: &'static str = "framekeeper";

    fn new() -> Self {
        Self::built(&Config {
            cpus: 2,
            ..Config::default()
        })
    }

    #[inline(always)]
    fn alloc(&self, order: u8) -> Option<Pages<'_, Bench>> {
        self.0.try_alloc(REQUESTS[usize::from(order)]).ok()
    }

    #[inline(always)]
    fn free<'a>(&'a self, block: Pages<'a, Bench>, _order: u8) {
        drop(block);
    }

    fn drain(&self) {
        self.0.drain_all();
    }
}
