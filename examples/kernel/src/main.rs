//! A kernel whose memory is managed by framekeeper, for x86-64 and arm64 under QEMU; `run` builds and boots it.
//!
//! What a port author needs to copy is in `port.rs`. From there: `space.rs` (page tables, the reverse map in a folio's word),
//! `fault.rs` (the page fault), `evict.rs` (what reclaim asks), `ipi.rs` (shoot-downs and the barrier), `cpu.rs` (CPUs that
//! come and go), `disk.rs` (swap). `scenario/` is what the kernel does with it.
#![no_std]
#![no_main]

mod arch;
mod console;
mod cpu;
mod disk;
mod evict;
mod fault;
mod ipi;
mod options;
mod port;
mod scenario;
mod space;

use core::panic::PanicInfo;

use console::println;

/// The machine is read, this CPU runs on its boot stack; everything else is still to come.
fn main(machine: arch::Machine) -> ! {
    println!("framekeeper-kernel");
    let result = run(&machine);
    match &result {
        Ok(()) => println!("framekeeper-kernel: PASS"),
        Err(why) => println!("framekeeper-kernel: FAIL: {why}"),
    }
    arch::power_off(result.is_ok())
}

fn run(machine: &arch::Machine) -> Result<(), scenario::Failure> {
    let options = options::Options::read(machine.command_line())?;
    cpu::check(machine)?;
    port::start(machine, &options)?;
    disk::start(machine);
    cpu::start_all(machine);
    scenario::run(&options)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    console::force();
    println!("framekeeper-kernel: FAIL: CPU {}: {info}", arch::cpu());
    arch::power_off(false)
}
