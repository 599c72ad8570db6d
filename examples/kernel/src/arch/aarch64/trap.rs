//! Exceptions and interrupts.

use aarch64_cpu::registers::{
    CNTFRQ_EL0, CNTV_CTL_EL0, CNTV_TVAL_EL0, ESR_EL1, FAR_EL1, Readable, Writeable,
};

use super::gic;
use crate::arch;

/// What an entry in boot.s keeps.
#[repr(C)]
struct Frame {
    x: [u64; 20],
    x29: u64,
    x30: u64,
    elr: u64,
    spsr: u64,
    fpcr: u64,
    fpsr: u64,
}

/// From the kernel itself, on its own stack: the second four of the vectors.
const SYNCHRONOUS: u64 = 4;
const IRQ: u64 = 5;
/// A data abort taken without a change of level (ESR_EL1.EC).
const DATA_ABORT: u64 = 0x25;
const WRITE: u64 = 1 << 6;
const MASKED: u64 = 1 << 7;
/// Ticks a second.
const HERTZ: u64 = 250;

pub(super) fn start_timer() {
    CNTV_TVAL_EL0.set(CNTFRQ_EL0.get() / HERTZ);
    CNTV_CTL_EL0.set(1);
}

#[unsafe(no_mangle)]
extern "C" fn exception(kind: u64, frame: &mut Frame) {
    match kind {
        SYNCHRONOUS if ESR_EL1.get() >> 26 == DATA_ABORT => data_abort(frame),
        IRQ => interrupt(),
        _ => panic!(
            "exception {kind}, ESR {:#x}, at {:#x}, FAR {:#x}",
            ESR_EL1.get(),
            frame.elr,
            FAR_EL1.get()
        ),
    }
}

fn interrupt() {
    let Some(id) = gic::acknowledge() else { return };
    gic::end(id);
    if id == gic::TIMER {
        start_timer();
        crate::cpu::tick();
    } else if id == gic::IPI {
        crate::ipi::serve();
    }
}

/// The handler may wait for a disk and for other CPUs: with interrupts on, if they were.
fn data_abort(frame: &Frame) {
    let address = FAR_EL1.get();
    let syndrome = ESR_EL1.get();
    let from = frame.elr;
    if frame.spsr & MASKED != 0 {
        panic!("page fault at {address:#x} with interrupts masked, from {from:#x}");
    }
    arch::irq_on();
    if let Err(why) = crate::fault::handle(address, syndrome & WRITE != 0) {
        panic!("page fault at {address:#x} from {from:#x}: {why}");
    }
    arch::irq_save();
}
