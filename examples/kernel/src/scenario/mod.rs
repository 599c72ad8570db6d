//! What the kernel does with its memory. The first CPU leads; all of them work.

mod memhog;

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use framekeeper::boot::MapError;
use framekeeper::memcg::{CreateError, RemoveError};
use framekeeper::mm::NoSuchGroup;
use framekeeper::{AllocError, CpuId, MmInitError};

use spin::Mutex;

use crate::console::println;
use crate::options::Options;
use crate::{arch, cpu, disk, evict, port, space};

/// The scenarios.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Groups over their limits, contents verified.
    Memhog,
}

/// Why the run is not good.
#[derive(Debug)]
pub enum Failure {
    /// A word of the command line that is no option, or out of range.
    Option(&'static str),
    /// The machine has more CPUs or memory regions than this kernel has room for.
    Machine {
        lost: usize,
        cpus: usize,
    },
    Map(MapError),
    Init(MmInitError),
    Group(CreateError),
    Limit(NoSuchGroup),
    Remove(RemoveError),
    Alloc(AllocError),
    /// The scenario needs so many slots of swap.
    Disk {
        needed: u64,
        slots: u64,
    },
    /// Pages that did not hold what was written.
    Corrupt(u64),
    /// Frames that are gone after all was given back.
    Leak {
        before: u64,
        after: u64,
    },
    /// Swap slots still in use at the end.
    Slots(u64),
    /// `check` found this.
    Check,
}

/// The work of a phase: called by every CPU with its number.
type Work = fn(usize);

static PHASE: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);
static WORK: Mutex<Work> = Mutex::new(|_| ());
/// Pages that did not hold what was written to them.
static CORRUPT: AtomicU64 = AtomicU64::new(0);

/// Runs the scenario that was asked for.
pub fn run(options: &Options) -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    println!(
        "{} CPUs, {} frames managed, {} swap slots",
        cpu::count(),
        mm.allocator().managed_frames(),
        disk::capacity()
    );
    let started = arch::now();
    match options.scenario {
        Kind::Memhog => memhog::run(options)?,
    }
    let (reads, writes) = disk::counts();
    let (allocations, ticks) = cpu::tick_counts();
    println!(
        "{} pages written out, {} read back, {} shoot-downs, {} ticks with {} frames, {} ms",
        writes,
        reads,
        evict::shoot_downs(),
        ticks,
        allocations,
        (arch::now() - started) / 1_000_000
    );
    Ok(())
}

/// The phase that is under way, or was the last.
pub fn phase() -> u32 {
    PHASE.load(Ordering::Acquire)
}

/// Where every further CPU ends up: does the work of each phase after `seen`.
pub fn work(index: usize, mut seen: u32) -> ! {
    loop {
        let phase = PHASE.load(Ordering::Acquire);
        if phase == seen {
            arch::idle(); // a tick wakes it
            continue;
        }
        seen = phase;
        let work = *WORK.lock();
        work(index);
        DONE.fetch_add(1, Ordering::Release);
    }
}

/// Lets every CPU do some work, and returns when all have.
fn all_cpus(work: Work) {
    *WORK.lock() = work;
    DONE.store(0, Ordering::Relaxed);
    PHASE.fetch_add(1, Ordering::Release);
    work(0);
    while DONE.load(Ordering::Acquire) + 1 < cpu::count() as u32 {
        arch::idle();
    }
}

/// Takes the last CPU offline, gives back what it has cached, and starts it again.
fn restart_last_cpu() {
    let last = cpu::count() - 1;
    if last == 0 {
        return;
    }
    all_cpus(|index| {
        if index == cpu::count() - 1 {
            DONE.fetch_add(1, Ordering::Release);
            cpu::go_offline();
        }
    });
    while cpu::online() & 1 << last != 0 {
        arch::irq_save();
        arch::idle();
    }
    let mm = port::mm().expect("started");
    let id = CpuId(last as u32);
    mm.drain_lru_cpu(id);
    mm.drain_memcg_cpu(id);
    mm.allocator().drain_cpu(id);
    cpu::start(last);
}

/// Lets the library's own check look at everything, while nothing runs.
fn check(when: &str) -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    cpu::tick_without_frames(true);
    all_cpus(|_| ()); // a tick that was under way has ended
    let result = mm.check();
    cpu::tick_without_frames(false);
    result.map_err(|fault| {
        println!("{when}: {fault}");
        Failure::Check
    })
}

/// Gives back what CPUs keep, and compares with what was free before.
fn account_for(before: u64) -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    mm.drain_lru();
    mm.allocator().drain_all();
    let after = free();
    if disk::used() > 0 {
        return Err(Failure::Slots(disk::used()));
    }
    if after != before {
        return Err(Failure::Leak { before, after });
    }
    Ok(())
}

/// Free frames while nothing runs and no timer holds any.
fn free() -> u64 {
    cpu::tick_without_frames(true);
    all_cpus(|index| {
        let state = arch::irq_save();
        space::leave();
        cpu::release_tick_frames(index);
        arch::irq_restore(state);
    });
    let mm = port::mm().expect("started");
    let free = mm.allocator().free_frames();
    cpu::tick_without_frames(false);
    free
}

impl Kind {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "memhog" => Some(Self::Memhog),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(word) => write!(f, "{word} is no option, or out of range"),
            Self::Machine { lost, cpus } => write!(
                f,
                "the machine has {lost} CPUs or regions more than fit: at most {cpus} CPUs"
            ),
            Self::Map(why) => write!(f, "the memory map: {why}"),
            Self::Init(why) => write!(f, "the memory cannot be managed: {why}"),
            Self::Group(why) => write!(f, "a group cannot be made: {why}"),
            Self::Limit(why) => write!(f, "a limit cannot be set: {why}"),
            Self::Remove(why) => write!(f, "a group cannot be removed: {why}"),
            Self::Alloc(why) => write!(f, "no frame for a table: {why}"),
            Self::Disk { needed, slots } => write!(
                f,
                "the scenario needs {needed} pages of swap, the disk has {slots}: attach a larger one"
            ),
            Self::Corrupt(pages) => write!(f, "{pages} pages do not hold what was written"),
            Self::Leak { before, after } => {
                write!(f, "{before} frames were free before, {after} are now")
            }
            Self::Slots(slots) => write!(f, "{slots} slots of swap were not given back"),
            Self::Check => f.write_str("the library's check found a fault"),
        }
    }
}
