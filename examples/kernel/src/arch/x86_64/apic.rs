//! The local APIC, by memory-mapped registers. Numbers: Intel SDM volume 3, chapter 11.

use crate::arch;

const BASE: u64 = 0xfee0_0000;
const ID: u64 = 0x20;
const END: u64 = 0xb0;
const SPURIOUS: u64 = 0xf0;
const COMMAND: u64 = 0x300;
const TARGET: u64 = 0x310;
const TIMER: u64 = 0x320;
const INITIAL: u64 = 0x380;
const CURRENT: u64 = 0x390;
const DIVIDE: u64 = 0x3e0;

pub(super) const TIMER_VECTOR: u8 = 0x40;
pub(super) const IPI_VECTOR: u8 = 0x41;
pub(super) const SPURIOUS_VECTOR: u8 = 0x4f;
/// Between two ticks, in nanoseconds.
const TICK: u64 = 4_000_000;

fn read(register: u64) -> u32 {
    // SAFETY: a register of this CPU's APIC.
    unsafe {
        arch::direct_map(BASE + register)
            .cast::<u32>()
            .read_volatile()
    }
}

fn write(register: u64, value: u32) {
    // SAFETY: as above; what is written is chosen below.
    unsafe {
        arch::direct_map(BASE + register)
            .cast::<u32>()
            .write_volatile(value)
    }
}

pub(super) fn id() -> u32 {
    read(ID) >> 24
}

/// Switches it on and starts the timer.
pub(super) fn init() {
    write(SPURIOUS, 0x100 | u32::from(SPURIOUS_VECTOR));
    write(DIVIDE, 0b1011); // by 1
    write(TIMER, 1 << 16); // masked
    write(INITIAL, u32::MAX);
    wait(1_000_000);
    let per_ms = u64::from(u32::MAX - read(CURRENT));
    write(TIMER, 1 << 17 | u32::from(TIMER_VECTOR)); // periodic
    write(
        INITIAL,
        (per_ms * TICK / 1_000_000).clamp(1, u64::from(u32::MAX)) as u32,
    );
}

pub(super) fn end_of_interrupt() {
    write(END, 0);
}

pub(super) fn interrupt_others() {
    let state = arch::irq_save();
    settle();
    write(COMMAND, 0b11 << 18 | 1 << 14 | u32::from(IPI_VECTOR));
    arch::irq_restore(state);
}

/// INIT, then the start-up IPI twice, with the pauses that the manual asks for.
pub(super) fn start(id: u32, page: u8) {
    command(id, 0x4500);
    wait(10_000_000);
    for _ in 0..2 {
        command(id, 0x4600 | u32::from(page));
        wait(200_000);
    }
}

fn command(id: u32, command: u32) {
    let state = arch::irq_save();
    settle();
    write(TARGET, id << 24);
    write(COMMAND, command);
    settle();
    arch::irq_restore(state);
}

/// Waits until the last command was delivered.
fn settle() {
    while read(COMMAND) & 1 << 12 != 0 {
        core::hint::spin_loop();
    }
}

fn wait(nanoseconds: u64) {
    let until = arch::now() + nanoseconds;
    while arch::now() < until {
        core::hint::spin_loop();
    }
}
