//! Grace periods: memory that readers reach without a lock is freed only after every reader has gone.
//!
//! Owns: [`Epoch`]: two counters per CPU, and the phase that says which one new pins use.
//! Invariants: a counter is the number of pins made under it and not yet dropped. A pin that a grace period's scan
//! missed began after that grace period's fence, so it sees everything stored before it.
//! Lock ranks: none. Grace periods exclude each other by an atomic claim, and wait for pins, so a pinned thread must not start one.
//! Used by: memcg (per-group memory), list_lru, shrinker, state accounting.
//!
//! A pin that reads the phase, stalls, and counts itself only after the scan lands in the idle counter; the next
//! grace period therefore first waits for the idle counter, then flips the phase and waits for the other one.
//! Two counters, not one, since a stream of overlapping pins under a shared CPU id would keep a single one above zero for ever.

use core::marker::PhantomData;

use super::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use super::per_cpu::PerCpu;
use super::twin::left_out;
use crate::platform::{Barrier, CpuIds, Platform};

/// Pins of one CPU, by phase. 64 bits: leaked pins cannot make a counter wrap to 0 within a machine's life.
#[derive(Debug, Default)]
pub struct Pins([AtomicU64; 2]);

/// A domain of readers (pins) and grace periods.
#[derive(Debug)]
pub struct Epoch<P: Platform> {
    /// Bit 0 selects the counter that new pins use. Written by the holder of `claimed`.
    phase: AtomicUsize,
    /// One grace period at a time.
    claimed: AtomicBool,
    pins: PerCpu<Pins>,
    /// For CPU ids out of range: shared, always counted atomically.
    others: Pins,
    platform: PhantomData<P>,
}

/// While it lives, nothing that this thread can reach through the epoch is freed. Do not sleep.
#[must_use]
#[derive(Debug)]
pub struct Pinned<'a, P: Platform> {
    count: &'a AtomicU64,
    exclusive: bool,
    platform: PhantomData<(*mut (), P)>,
}

/// Another thread runs a grace period; try again later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraceBusy;

impl<P: Platform> Epoch<P> {
    /// An epoch without pins.
    pub fn new(pins: PerCpu<Pins>) -> Self {
        Self {
            phase: AtomicUsize::new(0),
            claimed: AtomicBool::new(false),
            pins,
            others: Pins::default(),
            platform: PhantomData,
        }
    }

    /// Holds off every grace period that starts from now on. Nests; costs a few instructions.
    #[inline]
    pub fn pin(&self) -> Pinned<'_, P> {
        P::preempt_off();
        let (pins, known) = match self.pins.of(P::cpu()) {
            Some(pins) => (pins, true),
            None => (&self.others, false),
        };
        // Relaxed: a stale phase only puts the pin in the counter that the next grace period waits for first.
        let count = &pins.0[self.phase.load(Ordering::Relaxed) & 1];
        let exclusive = known && P::CPU_IDS == CpuIds::Exclusive;
        if exclusive {
            // An interrupt between load and store pins and unpins in full, so the stored value is right.
            count.store(
                count.load(Ordering::Relaxed).wrapping_add(1),
                Ordering::Relaxed,
            );
        } else {
            count.fetch_add(1, Ordering::Relaxed);
        }
        match P::BARRIER {
            // Partner: the fence in `barrier`. Either the scan sees this pin, or this thread sees all that was
            // stored before the scan.
            Barrier::Fenced => fence(Ordering::SeqCst),
            // barrier_all runs the fence on this CPU; here only the compiler must not reorder.
            Barrier::Asymmetric => core::sync::atomic::compiler_fence(Ordering::SeqCst),
        }
        Pinned {
            count,
            exclusive,
            platform: PhantomData,
        }
    }

    /// Waits until every pin that existed at the call is gone. What the caller stored before is seen by all later pins.
    ///
    /// Never call it while pinned or under a lock that a pinned thread may wait for.
    ///
    /// # Errors
    /// [`GraceBusy`] if another grace period is running.
    pub fn synchronize(&self) -> Result<(), GraceBusy> {
        // Acquire pairs with the Release below: the phase and the counters as the last grace period left them.
        // Not a swap: one that finds the claim taken would store to a line that others read.
        self.claimed
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| GraceBusy)?;
        let current = self.phase.load(Ordering::Relaxed) & 1;
        self.barrier();
        if !left_out::<P>("epoch: the wait for the idle counter") {
            self.wait(current ^ 1);
        }
        self.phase.store(current ^ 1, Ordering::Relaxed);
        self.barrier();
        if !left_out::<P>("epoch: the wait for the current counter") {
            self.wait(current);
        }
        self.claimed.store(false, Ordering::Release);
        Ok(())
    }

    fn barrier(&self) {
        fence(Ordering::SeqCst);
        if P::BARRIER == Barrier::Asymmetric {
            P::barrier_all();
        }
    }

    /// Waits until no pin is counted under `phase`.
    fn wait(&self, phase: usize) {
        for pins in self.pins.iter().map(|(_, pins)| pins).chain([&self.others]) {
            // Acquire pairs with the Release of `Pinned::drop`: what the reader did happens before what follows.
            while pins.0[phase].load(Ordering::Acquire) != 0 {
                P::relax();
            }
        }
    }
}

impl<P: Platform> Drop for Pinned<'_, P> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire of `wait`.
        if self.exclusive {
            let pins = self.count.load(Ordering::Relaxed);
            self.count.store(pins.wrapping_sub(1), Ordering::Release);
        } else {
            self.count.fetch_sub(1, Ordering::Release);
        }
        P::preempt_on();
    }
}
