//! What one CPU makes all others do: forget a page, or run a memory barrier.
//!
//! One request at a time. A CPU that waits, for its turn or for a line of the console, serves the request of another, so that
//! two who ask at once do not wait for each other, even with interrupts masked.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crate::{arch, cpu};

/// A request that names no page.
const BARRIER: u64 = u64::MAX;

static BUSY: AtomicBool = AtomicBool::new(false);
static REQUEST: AtomicU64 = AtomicU64::new(0);
/// The CPUs that have not served it yet.
static PENDING: AtomicU64 = AtomicU64::new(0);

/// Makes some CPUs, and this one, forget the page at an address; returns when all did.
#[cfg_attr(
    target_arch = "aarch64",
    expect(dead_code, reason = "its hardware tells the others")
)]
pub fn forget_page(address: u64, cpus: impl Fn() -> u64) {
    ask(address, cpus);
}

/// Makes every CPU run a full memory barrier.
pub fn barrier_all() {
    ask(BARRIER, || u64::MAX);
}

fn ask(request: u64, cpus: impl Fn() -> u64) {
    while BUSY.swap(true, Ordering::SeqCst) {
        serve();
        core::hint::spin_loop();
    }
    REQUEST.store(request, Ordering::Relaxed);
    // A CPU that goes offline clears its bit first, then waits until nobody is busy: it is either not asked, or answers.
    let others = cpu::online() & cpus() & !own();
    PENDING.store(others, Ordering::SeqCst); // before the interrupt; pairs with serve's Acquire
    arch::send_ipi(others);
    perform(request);
    while PENDING.load(Ordering::Acquire) != 0 {
        core::hint::spin_loop();
    }
    BUSY.store(false, Ordering::Release);
}

/// Does what is asked of this CPU, if anything is. Called by the interrupt, and by those who wait.
pub fn serve() {
    let own = own();
    // Masked, so that the interrupt does not serve the same request between the test and the answer.
    let state = arch::irq_save();
    if PENDING.load(Ordering::Acquire) & own != 0 {
        perform(REQUEST.load(Ordering::Relaxed));
        PENDING.fetch_and(!own, Ordering::Release);
    }
    arch::irq_restore(state);
}

/// Waits until no request that might be for this CPU is open. It has left the set of those online.
pub fn leave() {
    while BUSY.load(Ordering::SeqCst) {
        serve();
        core::hint::spin_loop();
    }
}

fn perform(request: u64) {
    fence(Ordering::SeqCst);
    if request != BARRIER {
        arch::flush_own(request);
    }
}

fn own() -> u64 {
    1 << arch::cpu()
}
