//! Exceptions and interrupts.

use spin::Once;
use x86_64::VirtAddr;
use x86_64::registers::control::Cr2;
use x86_64::structures::idt::InterruptDescriptorTable;

use super::apic;
use crate::arch;

/// What an entry in boot.s pushed.
#[repr(C)]
#[derive(Debug)]
struct Frame {
    registers: [u64; 15],
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    flags: u64,
    rsp: u64,
    ss: u64,
}

static TABLE: Once<InterruptDescriptorTable> = Once::new();
const PAGE_FAULT: u64 = 14;
const WRITE: u64 = 1 << 1;
const INTERRUPTS_ON: u64 = 1 << 9;

pub(super) fn load() {
    unsafe extern "C" {
        static interrupt_entries: u8;
    }
    let entries = (&raw const interrupt_entries).addr() as u64;
    let entry = |vector: u8| VirtAddr::new(entries + 16 * u64::from(vector));
    TABLE
        .call_once(|| {
            let mut table = InterruptDescriptorTable::new();
            // SAFETY: the entries of boot.s keep every register and know which vectors push an error code.
            unsafe {
                table.divide_error.set_handler_addr(entry(0));
                table.breakpoint.set_handler_addr(entry(3));
                table.invalid_opcode.set_handler_addr(entry(6));
                table.double_fault.set_handler_addr(entry(8));
                table.stack_segment_fault.set_handler_addr(entry(12));
                table.general_protection_fault.set_handler_addr(entry(13));
                table.page_fault.set_handler_addr(entry(14));
                for vector in [apic::TIMER_VECTOR, apic::IPI_VECTOR, apic::SPURIOUS_VECTOR] {
                    table[vector].set_handler_addr(entry(vector));
                }
            }
            table
        })
        .load();
}

#[unsafe(no_mangle)]
extern "C" fn interrupt(frame: &mut Frame) {
    match frame.vector {
        PAGE_FAULT => page_fault(frame),
        vector if vector == u64::from(apic::TIMER_VECTOR) => {
            apic::end_of_interrupt();
            crate::cpu::tick();
        }
        vector if vector == u64::from(apic::IPI_VECTOR) => {
            apic::end_of_interrupt();
            crate::ipi::serve();
        }
        vector if vector == u64::from(apic::SPURIOUS_VECTOR) => {}
        _ => panic!(
            "exception {} at {:#x}, error {:#x}",
            frame.vector, frame.rip, frame.error
        ),
    }
}

/// The handler may wait for a disk and for other CPUs: with interrupts on, if they were.
fn page_fault(frame: &Frame) {
    let address = Cr2::read_raw();
    let masked = frame.flags & INTERRUPTS_ON == 0;
    if masked {
        panic!(
            "page fault at {address:#x} with interrupts masked, from {:#x}",
            frame.rip
        );
    }
    arch::irq_on();
    if let Err(why) = crate::fault::handle(address, frame.error & WRITE != 0) {
        panic!("page fault at {address:#x} from {:#x}: {why}", frame.rip);
    }
    x86_64::instructions::interrupts::disable();
}
