//! arm64: QEMU's virt machine, described by a device tree.

mod disk;
mod gic;
pub mod pte;
mod trap;
mod tree;

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aarch64_cpu::asm::barrier;
use aarch64_cpu::registers::{
    CNTFRQ_EL0, CNTVCT_EL0, DAIF, MPIDR_EL1, Readable, TPIDR_EL1, Writeable,
};
use arm_pl011_uart::{PL011Registers, Uart};
use framekeeper::{Pfn, PhysAddr};
use safe_mmio::UniqueMmioPointer;
use smccc::{Hvc, psci};
use spin::Mutex;

use super::Machine;

pub use disk::{Disk, disk};

core::arch::global_asm!(include_str!("boot.s"));

/// Where the direct map starts: the first 512 GiB, mapped by boot.s. The kernel is linked in it.
const DIRECT_MAP: u64 = 0xffff_0000_0000_0000;
const DIRECT_MAP_BYTES: u64 = 1 << 39;
/// Where the loader leaves the device tree of a kernel that is not Linux's.
const TREE_AT: u64 = 0x4000_0000;
const TREE_MAGIC: u32 = 0xd00d_feed;
/// MPIDR: the affinity fields.
const AFFINITY: u64 = 0xff_00ff_ffff;

unsafe extern "C" {
    static kernel_start: u8;
    static kernel_end: u8;
    static boot_l0: u8;
    static ap_start: u8;
}

static AP_INDEX: AtomicU32 = AtomicU32::new(0);
static CONSOLE: Mutex<Option<Uart<'static>>> = Mutex::new(None);
static UART_AT: AtomicU64 = AtomicU64::new(0x900_0000);

#[unsafe(no_mangle)]
extern "C" fn first_cpu(given: u64) -> ! {
    TPIDR_EL1.set(0);
    let mut machine = Machine::new();
    // SAFETY: memory starts at TREE_AT; nothing was written yet.
    let is_tree =
        |at: u64| unsafe { direct_map(at).cast::<u32>().read_volatile() } == TREE_MAGIC.to_be();
    let at = if given != 0 && given.is_multiple_of(8) && is_tree(given) {
        given
    } else {
        TREE_AT
    };
    let read = is_tree(at).then(|| tree::read(at, &mut machine));
    let registers = core::ptr::NonNull::new(direct_map(UART_AT.load(Ordering::Relaxed)));
    let registers = registers.expect("mapped").cast::<PL011Registers>();
    // SAFETY: the tree, or QEMU's fixed layout, has the UART there; QEMU leaves it on.
    *CONSOLE.lock() = Some(Uart::new(unsafe { UniqueMmioPointer::new(registers) }));
    match read {
        Some(Ok(())) => {}
        Some(Err(why)) => panic!("the device tree cannot be read: {why}"),
        None => panic!("there is no device tree"),
    }
    let (start, end) = (
        physical(&raw const kernel_start).0,
        physical(&raw const kernel_end).0,
    );
    machine.reserve(start, end - start);
    let own = MPIDR_EL1.get() & AFFINITY;
    let first = machine
        .cpus()
        .position(|cpu| cpu.hardware == own)
        .unwrap_or(0);
    machine.cpus.0.swap(0, first);
    gic::start(machine.cpus().count());
    crate::main(machine)
}

#[unsafe(no_mangle)]
extern "C" fn further_cpu() -> ! {
    let index = AP_INDEX.load(Ordering::Acquire);
    TPIDR_EL1.set(index.into());
    crate::cpu::further_cpu(index as usize)
}

/// Interrupts and timer of the calling CPU.
pub fn init_cpu(index: usize) {
    gic::init_cpu(index);
    trap::start_timer();
}

/// Starts a CPU; it runs `further_cpu` on the stack that ends at `stack_top`.
pub fn start_cpu(index: usize, hardware: u64, stack_top: u64) {
    AP_INDEX.store(index as u32, Ordering::Release);
    let entry = physical(&raw const ap_start).0;
    // One that was taken offline may still be on its way.
    while psci::cpu_on::<Hvc>(hardware, entry, stack_top) == Err(psci::error::Error::AlreadyOn) {
        core::hint::spin_loop();
    }
}

/// Never returns; another start begins anew.
pub fn park() -> ! {
    let _ = psci::cpu_off::<Hvc>();
    loop {
        aarch64_cpu::asm::wfi();
    }
}

#[inline]
pub fn cpu() -> u32 {
    TPIDR_EL1.get() as u32
}

#[inline]
pub fn irq_save() -> usize {
    let state = DAIF.get();
    // SAFETY: masks interrupts.
    unsafe { asm!("msr daifset, #2", options(nostack, preserves_flags)) };
    state as usize
}

#[inline]
pub fn irq_restore(state: usize) {
    DAIF.set(state as u64);
}

pub fn irq_on() {
    // SAFETY: vectors and GIC are set up before the first call.
    unsafe { asm!("msr daifclr, #2", options(nostack, preserves_flags)) };
}

/// Waits for an interrupt, also for one that came since the caller masked them; they are on when it returns.
pub fn idle() {
    aarch64_cpu::asm::wfi();
    irq_on();
}

#[inline]
pub fn direct_map(address: u64) -> *mut u8 {
    if address < DIRECT_MAP_BYTES {
        (DIRECT_MAP + address) as *mut u8
    } else {
        core::ptr::null_mut()
    }
}

/// Where a byte of the kernel image, a stack, or the direct map is in memory.
pub fn physical(address: *const u8) -> PhysAddr {
    PhysAddr(address.addr() as u64 - DIRECT_MAP)
}

/// Nanoseconds since the machine started.
pub fn now() -> u64 {
    let frequency = CNTFRQ_EL0.get().max(1);
    (u128::from(CNTVCT_EL0.get()) * 1_000_000_000 / u128::from(frequency)) as u64
}

/// Lets the calling CPU see a space. Drops what it cached of another.
pub fn switch_space(root: Pfn) {
    // SAFETY: the lower half is the space's alone; the kernel runs in the upper one.
    unsafe {
        asm!(
            "msr ttbr0_el1, {root}",
            "isb",
            "tlbi vmalle1",
            "dsb nsh",
            "isb",
            root = in(reg) root.0 << 12,
            options(nostack, preserves_flags)
        );
    }
}

/// The root that has nothing a scenario would use.
pub fn kernel_root() -> Pfn {
    Pfn(physical(&raw const boot_l0).0 >> 12)
}

/// Makes every CPU forget a page, and returns when all did.
pub fn flush_page(address: u64, _cpus: impl Fn() -> u64) {
    // SAFETY: drops cached translations.
    unsafe {
        asm!(
            "dsb ishst",
            "tlbi vaae1is, {page}",
            "dsb ish",
            "isb",
            page = in(reg) address >> 12 & ((1 << 44) - 1),
            options(nostack, preserves_flags)
        );
    }
}

/// The calling CPU's part of what is asked of all: the hardware's broadcast reaches them anyway.
pub fn flush_own(address: u64) {
    flush_page(address, || 0);
}

/// Walks see an entry that was written before.
pub fn publish_entry() {
    barrier::dsb(barrier::ISHST);
    barrier::isb(barrier::SY);
}

/// Interrupts every CPU whose bit is set.
pub fn send_ipi(others: u64) {
    if others != 0 {
        barrier::dsb(barrier::ISHST); // the request is seen before the interrupt
        gic::interrupt_others();
    }
}

pub fn console_write(bytes: &[u8]) {
    if let Some(uart) = CONSOLE.lock().as_mut() {
        for &byte in bytes {
            if byte == b'\n' {
                uart.write_word(b'\r');
            }
            while uart.is_tx_fifo_full() {}
            uart.write_word(byte);
        }
    }
}

/// Ends the machine. What QEMU returns says nothing: the last line on the console does.
pub fn power_off(_good: bool) -> ! {
    let _ = psci::system_off::<Hvc>();
    loop {
        aarch64_cpu::asm::wfi();
    }
}
