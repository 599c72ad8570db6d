//! CPUs: their stacks, who is online, what each does, and its timer.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use framekeeper::{CpuId, Mm, Order, Pfn, Request};

use crate::arch::{self, Machine};
use crate::port::{self, Port};
use crate::scenario::{self, Failure};
use crate::{ipi, late};

/// CPUs that this kernel has stacks for.
pub const MAX_CPUS: usize = 16;

#[repr(C, align(16))]
struct Stack(core::cell::UnsafeCell<[u8; 1 << 16]>);

// SAFETY: only the CPU that a stack belongs to uses it.
unsafe impl Sync for Stack {}

static STACKS: [Stack; MAX_CPUS] =
    [const { Stack(core::cell::UnsafeCell::new([0; 1 << 16])) }; MAX_CPUS];
static ONLINE: AtomicU64 = AtomicU64::new(0);
static HARDWARE: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static NODES: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];
static COUNT: AtomicU32 = AtomicU32::new(1);
static TICKS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Frames that a timer interrupt holds on to, as numbers above 0; each tick gives one back and takes another.
const HELD: usize = 8;
static TICK_FRAMES: [[AtomicU64; HELD]; MAX_CPUS] =
    [const { [const { AtomicU64::new(0) }; HELD] }; MAX_CPUS];
static QUIET: AtomicBool = AtomicBool::new(false);
static TICK_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The CPUs that run, a bit each.
pub fn online() -> u64 {
    ONLINE.load(Ordering::SeqCst)
}

/// How many CPUs the machine has.
pub fn count() -> usize {
    COUNT.load(Ordering::Relaxed) as usize
}

/// The node that a CPU is on.
pub fn node(index: usize) -> u8 {
    NODES
        .get(index)
        .map_or(0, |node| node.load(Ordering::Relaxed)) as u8
}

/// Records the machine's CPUs.
pub fn check(machine: &Machine) -> Result<(), Failure> {
    if machine.lost > 0 {
        return Err(Failure::Machine {
            lost: machine.lost,
            cpus: MAX_CPUS,
        });
    }
    for (index, cpu) in machine.cpus().enumerate() {
        HARDWARE[index].store(cpu.hardware, Ordering::Relaxed);
        NODES[index].store(cpu.node.0.into(), Ordering::Relaxed);
        COUNT.store(index as u32 + 1, Ordering::Relaxed);
    }
    Ok(())
}

/// Brings every CPU up.
pub fn start_all() -> Result<(), Failure> {
    arch::init_cpu(0);
    ONLINE.fetch_or(1, Ordering::SeqCst);
    arch::irq_on();
    (1..count()).try_for_each(start)
}

/// Starts a CPU that is not online, waits until it is, and lets the library keep frames for it.
pub fn start(index: usize) -> Result<(), Failure> {
    let stack_top = STACKS[index].0.get().addr() + size_of::<Stack>();
    arch::start_cpu(
        index,
        HARDWARE[index].load(Ordering::Relaxed),
        stack_top as u64,
    );
    while online() & 1 << index == 0 {
        ipi::serve();
        core::hint::spin_loop();
    }
    let mm = port::mm().expect("started before the other CPUs");
    mm.cpu_online(CpuId(index as u32))
        .map(|_| ())
        .map_err(Failure::Cpu)
}

/// Takes back what the library keeps for a CPU that stopped.
pub fn stopped(index: usize) -> Result<(), Failure> {
    let mm = port::mm().expect("it ran");
    mm.cpu_offline(CpuId(index as u32))
        .map(|_| ())
        .map_err(Failure::Cpu)
}

/// Where a further CPU begins, each time that it is started.
pub fn further_cpu(index: usize) -> ! {
    let phase = scenario::phase(); // before others can see that it runs, and begin the next
    arch::init_cpu(index);
    ONLINE.fetch_or(1 << index, Ordering::SeqCst);
    arch::irq_on();
    late::help();
    scenario::work(index, phase)
}

/// Takes the calling CPU offline: others do not wait for it from now on, and what it has cached is given back.
pub fn go_offline() -> ! {
    let index = arch::cpu();
    arch::irq_save(); // for good
    release_tick_frames(index as usize);
    arch::switch_space(arch::kernel_root());
    ONLINE.fetch_and(!(1 << index), Ordering::SeqCst);
    ipi::leave();
    arch::park()
}

/// The timer interrupt: takes a frame and gives one back, on top of whatever it interrupted.
pub fn tick() {
    let index = arch::cpu() as usize;
    let tick = TICKS[index].fetch_add(1, Ordering::Relaxed);
    let Some(mm) = port::mm() else { return };
    if QUIET.load(Ordering::Acquire) {
        return;
    }
    let slot = &TICK_FRAMES[index][tick as usize % HELD];
    give_back(mm, slot);
    if let Ok(pages) = mm.try_alloc(Request::new(Order::ZERO)) {
        TICK_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        slot.store(pages.into_raw().0, Ordering::Relaxed);
    }
    if tick.is_multiple_of(256) {
        mm.allocator().tick();
    }
}

/// Whether ticks leave memory alone, from the next one on.
pub fn tick_without_frames(quiet: bool) {
    QUIET.store(quiet, Ordering::Release);
}

/// Gives back what a CPU's timer holds. The CPU is offline, or the caller is on it with interrupts masked.
pub fn release_tick_frames(index: usize) {
    let Some(mm) = port::mm() else { return };
    for slot in &TICK_FRAMES[index] {
        give_back(mm, slot);
    }
}

/// Frees the frame that a place holds, if it does.
fn give_back(mm: &Mm<Port>, slot: &AtomicU64) {
    match slot.swap(0, Ordering::Relaxed) {
        0 => {}
        held => drop(
            mm.allocator()
                .try_from_raw(Pfn(held), Order::ZERO)
                .expect("given by into_raw"),
        ),
    }
}

/// Frames that timer interrupts allocated, and ticks of all CPUs.
pub fn tick_counts() -> (u64, u64) {
    let ticks = TICKS
        .iter()
        .map(|ticks| ticks.load(Ordering::Relaxed))
        .sum();
    (TICK_ALLOCATIONS.load(Ordering::Relaxed), ticks)
}
