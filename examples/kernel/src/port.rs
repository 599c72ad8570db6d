//! The port: all that this kernel gives the library so that it can work. Copy this file first.

use framekeeper::boot::{BootMap, Memory};
use framekeeper::{
    Barrier, CpuId, CpuIds, Mm, MmConfig, NodeId, PhysAddr, Platform, Rank, StartCpus,
};
use spin::Once;

use crate::arch::{self, Machine};
use crate::options::Options;
use crate::scenario::Failure;
use crate::{cpu, ipi, locks};

/// The platform.
#[derive(Debug)]
pub enum Port {}

// SAFETY: the direct map reaches all memory that `start` hands over, for good. A CPU's number is its own and threads do not
// move, so ids are exclusive; `ipi::barrier_all` waits until every CPU that is online ran a fence.
unsafe impl Platform for Port {
    const CPU_IDS: CpuIds = CpuIds::Exclusive;
    const BARRIER: Barrier = Barrier::Asymmetric;
    type RawLock = locks::Counted; // or `framekeeper::sync::SpinLock`

    fn cpu() -> CpuId {
        CpuId(arch::cpu())
    }

    fn irq_save() -> usize {
        arch::irq_save()
    }

    fn irq_restore(state: usize) {
        arch::irq_restore(state);
    }

    fn direct_map(addr: PhysAddr) -> *mut u8 {
        arch::direct_map(addr.0)
    }

    fn barrier_all() {
        ipi::barrier_all();
    }

    fn now() -> Option<u64> {
        Some(arch::now())
    }

    fn lock_acquired(rank: Rank) {
        locks::acquired(rank);
    }

    fn lock_released(rank: Rank) {
        locks::released(rank);
    }
}

static MM: Once<Mm<Port>> = Once::new();

/// The memory manager, once it runs.
pub fn mm() -> Option<&'static Mm<Port>> {
    MM.get()
}

/// Gives the machine's memory to the library, the first time that it is called.
pub fn start(machine: &Machine, options: &Options) -> Result<(), Failure> {
    MM.try_call_once(|| manage(machine, options)).map(|_| ())
}

fn manage(machine: &Machine, options: &Options) -> Result<Mm<Port>, Failure> {
    let mut map: BootMap = BootMap::new();
    for memory in machine.usable() {
        map.add(memory.node, PhysAddr(memory.base), memory.bytes)
            .map_err(Failure::Map)?;
    }
    for region in machine.reserved() {
        map.reserve(PhysAddr(region.base), region.bytes)
            .map_err(Failure::Map)?;
    }
    let cpus = options.cpus.unwrap_or(cpu::count() as u32);
    let mut config = MmConfig::new(cpus, options.groups + 1).nodes(machine.nodes());
    config.alloc.node_of = |cpu| NodeId(cpu::node(cpu.0 as usize));
    // Most memory comes later, by `late.rs`; the other CPUs, by `cpu::start`.
    config.alloc.deferred = true;
    config.alloc.start_cpus = StartCpus::First;
    // SAFETY: firmware says that the memory is there and free; the kernel image and firmware's own are reserved; `start` comes
    // here until an instance was made, and one that was not made used nothing.
    let memory = unsafe { Memory::<Port>::claim(&mut map) };
    Mm::new(memory, &config).map_err(|refused| Failure::Init(refused.0))
}
