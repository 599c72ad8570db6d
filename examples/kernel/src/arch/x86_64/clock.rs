//! The clock: an HPET, where QEMU's q35 has it.

use core::sync::atomic::{AtomicU64, Ordering};

const AT: u64 = 0xfed0_0000;
static REGISTERS: AtomicU64 = AtomicU64::new(0);
/// Femtoseconds of a tick.
static PERIOD: AtomicU64 = AtomicU64::new(0);

/// Starts it.
pub(super) fn start() {
    let hpet = super::direct_map(AT).cast::<u64>();
    // SAFETY: the HPET's registers, capabilities first; bit 0 of its configuration starts the counter.
    unsafe {
        PERIOD.store(hpet.read_volatile() >> 32, Ordering::Relaxed);
        let configuration = hpet.add(2);
        configuration.write_volatile(configuration.read_volatile() | 1);
    }
    REGISTERS.store(hpet.addr() as u64, Ordering::Release);
}

/// Nanoseconds since the machine started.
pub fn now() -> u64 {
    let hpet = REGISTERS.load(Ordering::Acquire) as *const u64;
    if hpet.is_null() {
        return 0;
    }
    // SAFETY: the main counter.
    let ticks = unsafe { hpet.add(30).read_volatile() };
    (u128::from(ticks) * u128::from(PERIOD.load(Ordering::Relaxed)) / 1_000_000) as u64
}
