//! x86-64: a PC as QEMU's q35 has it, entered by PVH.

mod acpi;
mod apic;
mod clock;
mod disk;
pub mod pte;
mod trap;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use framekeeper::{Pfn, PhysAddr};
use spin::Mutex;
use uart_16550::{Config, Uart16550, backend::PioBackend};
use x86_64::VirtAddr;
use x86_64::instructions::{interrupts, port::Port, tlb};
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::registers::model_specific::GsBase;
use x86_64::structures::paging::PhysFrame;

use super::{Cpu, Machine};
use crate::cpu::MAX_CPUS;

pub use clock::now;
pub use disk::{Disk, disk};

core::arch::global_asm!(include_str!("boot.s"), options(att_syntax));

/// Where the direct map starts: the first 512 GiB, mapped by boot.s.
const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;
const DIRECT_MAP_BYTES: u64 = 1 << 39;
/// What the linker adds to the kernel's addresses.
const HIGH: u64 = 0xffff_ffff_8000_0000;
/// Entries of a root table from here on are the kernel's, the same in every space.
pub const KERNEL_ENTRIES: core::ops::Range<usize> = 256..512;
/// Where the start-up code of further CPUs is copied to; all below 1 MiB is reserved.
const TRAMPOLINE: u64 = 0x8000;
const DEBUG_EXIT: u16 = 0xf4;

unsafe extern "C" {
    static kernel_end: u8;
    static ap_trampoline: u8;
    static ap_trampoline_end: u8;
}

/// Read by boot.s: where the stack of the CPU that starts now ends.
#[unsafe(no_mangle)]
static ap_stack_top: AtomicU64 = AtomicU64::new(0);
static AP_INDEX: AtomicU32 = AtomicU32::new(0);
/// What each CPU finds at the base of its GS segment: its number.
static NUMBERS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static CONSOLE: Mutex<Option<Uart16550<PioBackend>>> = Mutex::new(None);

/// The start info of PVH, version 1 (Xen, public/arch-x86/hvm/start_info.h).
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_entries: u32,
}

#[repr(C)]
struct MemoryEntry {
    base: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

#[unsafe(no_mangle)]
extern "C" fn first_cpu(start_info: u64) -> ! {
    init_number(0);
    let mut uart = unsafe { Uart16550::new_port(0x3f8) }.expect("COM1 is a valid port");
    if uart.init(Config::default()).is_ok() {
        *CONSOLE.lock() = Some(uart);
    }
    let mut machine = Machine::new();
    read_start_info(start_info, &mut machine);
    clock::start();
    mask_pic();
    crate::main(machine)
}

#[unsafe(no_mangle)]
extern "C" fn further_cpu() -> ! {
    let index = AP_INDEX.load(Ordering::Acquire) as usize;
    init_number(index);
    crate::cpu::further_cpu(index)
}

fn init_number(index: usize) {
    NUMBERS[index].store(index as u64, Ordering::Relaxed);
    GsBase::write(VirtAddr::from_ptr(&NUMBERS[index]));
}

fn read_start_info(start_info: u64, machine: &mut Machine) {
    // SAFETY: the loader's structures are below 1 MiB, mapped, and never written.
    let info = unsafe { &*direct_map(start_info).cast::<StartInfo>() };
    assert!(
        info.magic == 0x336e_c578 && info.version >= 1,
        "no PVH start info"
    );
    let entries = unsafe {
        core::slice::from_raw_parts(
            direct_map(info.memory_map).cast::<MemoryEntry>(),
            info.memory_entries as usize,
        )
    };
    for entry in entries {
        match entry.kind {
            1 => machine.add_usable(entry.base, entry.bytes),
            _ => machine.reserve(entry.base, entry.bytes),
        }
    }
    let end = (&raw const kernel_end).addr() as u64;
    machine.reserve(0, end);
    if info.command_line != 0 {
        let text = direct_map(info.command_line).cast_const().cast();
        // SAFETY: the loader ends it with a zero.
        let text = unsafe { core::ffi::CStr::from_ptr(text) };
        machine.command_line = text.to_str().unwrap_or("");
    }
    acpi::read(info.rsdp, machine);
    // The one that runs now comes first.
    let own = u64::from(apic::id());
    if machine.cpus.1 == 0 {
        machine.add_cpu(Cpu {
            hardware: own,
            node: framekeeper::NodeId(0),
        });
    }
    let first = machine
        .cpus()
        .position(|cpu| cpu.hardware == own)
        .unwrap_or(0);
    machine.cpus.0.swap(0, first);
}

/// The firmware left its timer on, at vectors that are exceptions' here.
fn mask_pic() {
    for port in [0x21, 0xa1] {
        // SAFETY: the mask registers of the two controllers.
        unsafe { Port::new(port).write(0xffu8) };
    }
}

/// Interrupts and timer of the calling CPU.
pub fn init_cpu(_index: usize) {
    trap::load();
    apic::init();
}

/// Starts a CPU; it runs `further_cpu` on the stack that ends at `stack_top`.
pub fn start_cpu(index: usize, hardware: u64, stack_top: u64) {
    let code = &raw const ap_trampoline;
    let bytes = (&raw const ap_trampoline_end).addr() - code.addr();
    // SAFETY: the code lies in the kernel image, its copy in the first MiB, which nothing else uses.
    unsafe {
        core::ptr::copy(
            direct_map(code.addr() as u64),
            direct_map(TRAMPOLINE),
            bytes,
        )
    };
    ap_stack_top.store(stack_top, Ordering::Relaxed);
    AP_INDEX.store(index as u32, Ordering::Release);
    apic::start(hardware as u32, (TRAMPOLINE >> 12) as u8);
}

/// Never returns; another start begins anew.
pub fn park() -> ! {
    loop {
        interrupts::disable();
        x86_64::instructions::hlt();
    }
}

#[inline]
pub fn cpu() -> u32 {
    let number: u32;
    // SAFETY: each CPU's GS base is an entry of NUMBERS.
    unsafe {
        core::arch::asm!("mov {:e}, gs:[0]", out(reg) number, options(nostack, preserves_flags, readonly));
    }
    number
}

#[inline]
pub fn irq_save() -> usize {
    let on = interrupts::are_enabled();
    interrupts::disable();
    on.into()
}

#[inline]
pub fn irq_restore(state: usize) {
    if state != 0 {
        interrupts::enable();
    }
}

pub fn irq_on() {
    interrupts::enable();
}

/// Waits for an interrupt, also for one that came since the caller masked them; they are on when it returns.
pub fn idle() {
    interrupts::enable_and_hlt();
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
    let address = address.addr() as u64;
    PhysAddr(if address >= HIGH {
        address - HIGH
    } else {
        address - DIRECT_MAP
    })
}

/// Lets the calling CPU see a space. Drops what it cached of another.
pub fn switch_space(root: Pfn) {
    let frame = PhysFrame::containing_address(x86_64::PhysAddr::new(root.0 << 12));
    // SAFETY: the upper half of every root is the kernel's.
    unsafe { Cr3::write(frame, Cr3Flags::empty()) };
}

/// The root that has the kernel alone.
pub fn kernel_root() -> Pfn {
    unsafe extern "C" {
        static boot_pml4: u8;
    }
    Pfn((&raw const boot_pml4).addr() as u64 >> 12)
}

/// Makes every CPU that sees a space forget a page of it, and returns when all did. `cpus` says who sees it now: those who
/// come later find the entry as it is, since a switch drops what was cached.
pub fn flush_page(address: u64, cpus: impl Fn() -> u64) {
    crate::ipi::forget_page(address, cpus);
}

/// The calling CPU's part.
pub fn flush_own(address: u64) {
    tlb::flush(VirtAddr::new_truncate(address));
}

/// Whether this CPU can go on without being interrupted until it has seen new entries: hardware walks see them at once.
pub fn publish_entry() {}

/// Interrupts every CPU whose bit is set.
pub fn send_ipi(others: u64) {
    if others != 0 {
        apic::interrupt_others(); // who is not asked finds nothing to do
    }
}

pub fn console_write(bytes: &[u8]) {
    if let Some(uart) = CONSOLE.lock().as_mut() {
        for &byte in bytes {
            if byte == b'\n' {
                uart.send_bytes_exact(b"\r");
            }
            uart.send_bytes_exact(&[byte]);
        }
    }
}

/// Ends the machine.
pub fn power_off(good: bool) -> ! {
    let mut exit = Port::new(DEBUG_EXIT);
    // SAFETY: the device ends QEMU with (value << 1) | 1.
    unsafe { exit.write(if good { 0x10u32 } else { 0x11 }) };
    park()
}
