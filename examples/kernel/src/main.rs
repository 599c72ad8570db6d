//! A kernel whose memory is managed by framekeeper, for x86-64 and arm64 under QEMU; `run` builds and boots it.
//!
//! What a port author needs to copy is in `port.rs`. From there: `evict.rs` (what reclaim asks), `late.rs` (memory that comes
//! online after boot), `ipi.rs` (shoot-downs and the barrier), `cpu.rs` (CPUs that come and go), `page.rs` (the reverse map in a
//! folio's word), `table.rs` and `space.rs` (page tables), `fault.rs` (the page fault), `large.rs` (mappings of 2 MiB and 1 GiB),
//! `slab.rs` and `objects.rs` (a cache with a shrinker), `disk.rs` (swap), `locks.rs` (lock counts). `scenario/` is what the kernel does
//! with it.
#![no_std]
#![no_main]

mod arch;
mod console;
mod cpu;
mod disk;
mod evict;
mod fault;
mod ipi;
mod large;
mod late;
mod locks;
mod objects;
mod options;
mod page;
mod port;
mod recount;
mod scenario;
mod slab;
mod space;
mod table;

use core::panic::PanicInfo;

use console::println;

/// The machine is read, this CPU runs on its boot stack; everything else is still to come.
fn main(mut machine: arch::Machine) -> ! {
    println!("framekeeper-kernel");
    let result = run(&mut machine);
    match &result {
        Ok(()) => println!("framekeeper-kernel: PASS"),
        Err(why) => println!("framekeeper-kernel: FAIL: {why}"),
    }
    arch::power_off(result.is_ok())
}

fn run(machine: &mut arch::Machine) -> Result<(), scenario::Failure> {
    let options = options::Options::read(machine.command_line())?;
    cpu::check(machine)?;
    machine.punch(options.holes);
    port::start(machine, &options)?;
    disk::start(machine);
    large::start()?;
    cpu::start_all()?;
    late::finish()?;
    scenario::run(&options)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    console::force();
    println!("framekeeper-kernel: FAIL: CPU {}: {info}", arch::cpu());
    arch::power_off(false)
}
