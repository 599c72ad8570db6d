//! The port: the machine as framekeeper sees it. Memory is an array of the host, CPUs are threads.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use framekeeper::boot::{BootMap, MapError, Memory};
use framekeeper::{CpuId, CpuIds, NodeId, Pfn, PhysAddr, Platform, Rank};

use crate::page::{PAGE_SHIFT, Page};

/// The platform of this example.
#[derive(Debug)]
pub(crate) enum Port {}

/// Where memory starts: above the first MiB, as on a PC, so that it has a DMA zone and a DMA32 zone.
const MEMORY_START: PhysAddr = PhysAddr(1 << 20);

/// The memory, frame by frame.
static MEMORY: OnceLock<Box<[Page]>> = OnceLock::new();

/// CPUs at most: 256 of `--threads`, the main thread and the background.
pub(crate) const MOST_CPUS: usize = 258;

/// One CPU's locks taken, by rank; changed by that CPU alone.
#[repr(align(128))]
struct Taken([AtomicU64; Rank::COUNT]);

static TAKEN: [Taken; MOST_CPUS] =
    [const { Taken([const { AtomicU64::new(0) }; Rank::COUNT]) }; MOST_CPUS];

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

/// Why there is no memory.
#[derive(Debug)]
pub(crate) enum MemoryError {
    /// The host has less.
    Short { mib: u32 },
    /// It was taken before.
    Taken,
    /// The boot map refused.
    Map(MapError),
}

/// Makes the calling thread act as `cpu` from now on. No two threads may act as one.
pub(crate) fn run_as(cpu: u32) {
    CPU.set(cpu);
}

/// Locks of a rank that all CPUs took so far.
pub(crate) fn locks_taken(rank: Rank) -> u64 {
    let of_cpu = |taken: &Taken| taken.0[rank as usize].load(Ordering::Relaxed);
    TAKEN.iter().map(of_cpu).sum()
}

/// The contents of a frame.
pub(crate) fn frame(pfn: Pfn) -> &'static Page {
    let first = MEMORY_START.pfn(PAGE_SHIFT).0;
    // The library gives out only frames of the map below.
    &MEMORY.get().expect("taken at boot")[(pfn.0 - first) as usize]
}

/// Takes memory from the host, touches all of it, and describes it as firmware would.
pub(crate) fn take_memory(mib: u32) -> Result<BootMap, MemoryError> {
    let frames = (mib as usize) << (20 - PAGE_SHIFT);
    let mut memory = Vec::new();
    if memory.try_reserve_exact(frames).is_err() {
        return Err(MemoryError::Short { mib });
    }
    memory.resize_with(frames, Page::zeroed);
    MEMORY.set(memory.into()).map_err(|_| MemoryError::Taken)?;
    let mut map = BootMap::new();
    map.add(NodeId(0), MEMORY_START, u64::from(mib) << 20)
        .map_err(MemoryError::Map)?;
    Ok(map)
}

/// Hands the map's memory to framekeeper.
#[expect(unsafe_code, reason = "the port's promise about its memory")]
pub(crate) fn claim(map: &mut BootMap) -> Memory<'_, Port> {
    // SAFETY: the map lists bytes of MEMORY alone, which this program reads and writes only in frames it was given. It
    // is claimed once: `take_memory` makes one map.
    unsafe { Memory::claim(map) }
}

// SAFETY: the direct map answers with the bytes of MEMORY, which lives as long as the program, and with null elsewhere.
// They are atomics, so that writing through a pointer is allowed; the pointer comes from the whole array. Each CPU id
// is one thread's (`run_as`); BARRIER and PAGE_SHIFT are the defaults.
#[expect(unsafe_code, reason = "the port's promises to the library")]
unsafe impl Platform for Port {
    const PAGE_SHIFT: u32 = PAGE_SHIFT;
    const CPU_IDS: CpuIds = CpuIds::Exclusive;
    /// Gives its time slice away while it waits: threads may outnumber the host's CPUs.
    type RawLock = spin::mutex::SpinMutex<(), spin::Yield>;

    fn cpu() -> CpuId {
        CpuId(CPU.get())
    }

    // No interrupt handler of the host calls the library.
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_state: usize) {}

    fn direct_map(addr: PhysAddr) -> *mut u8 {
        let memory = MEMORY.get().map_or(&[][..], |memory| memory);
        match addr.0.checked_sub(MEMORY_START.0) {
            Some(offset) if offset < size_of_val(memory) as u64 => memory
                .as_ptr()
                .cast::<u8>()
                .wrapping_add(offset as usize)
                .cast_mut(),
            _ => std::ptr::null_mut(),
        }
    }

    fn relax() {
        std::thread::yield_now();
    }

    fn lock_acquired(rank: Rank) {
        if let Some(taken) = TAKEN.get(CPU.get() as usize) {
            let count = &taken.0[rank as usize];
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { mib } => write!(
                f,
                "this host has no {mib} MiB for the machine's memory: use --memory"
            ),
            Self::Taken => f.write_str("the machine's memory was taken before"),
            Self::Map(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MemoryError {}
