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
    platform: PhantomData<fn() -> P>,
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

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::host::{Host, run_as};
    use crate::stepper::{Stepped, at_every_point, disarm, interrupt_after};
    use crate::sync::CachePadded;
    use std::boxed::Box;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::thread;
    use std::vec::Vec;

    fn epoch<P: Platform>(cpus: u32) -> Epoch<P> {
        let pins: Vec<_> = (0..cpus).map(|_| CachePadded::default()).collect();
        Epoch::new(PerCpu::new(Box::leak(pins.into_boxed_slice())))
    }

    /// Pins that are counted, under both phases and on all CPUs.
    fn counted<P: Platform>(epoch: &Epoch<P>) -> u64 {
        let known = epoch.pins.iter().map(|(_, pins)| pins);
        known
            .chain([&epoch.others])
            .flat_map(|pins| &pins.0)
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    #[test]
    fn pins_of_exclusive_cpus_nest_and_interrupts_that_pin_leave_the_count_right() {
        let points = at_every_point(
            || epoch::<Stepped>(1),
            |epoch| {
                let outer = epoch.pin();
                let inner = epoch.pin();
                assert_eq!(counted(epoch), 2);
                drop(outer);
                assert_eq!(counted(epoch), 1, "pins may go in any order");
                drop(inner);
            },
            |epoch| {
                let before = counted(epoch);
                let pins = (epoch.pin(), epoch.pin());
                assert_eq!(counted(epoch), before + 2);
                drop(pins);
                assert_eq!(counted(epoch), before);
            },
            |epoch| assert_eq!(counted(epoch), 0),
        );
        assert_eq!(points, 6, "preempt_off, cpu and preempt_on of two pins");
    }

    #[test]
    fn a_grace_period_waits_for_a_pin_and_refuses_a_second_one_meanwhile() {
        let epoch: &'static Epoch<Stepped> = Box::leak(Box::new(epoch(2)));
        // The pin is in the current counter in the first round, in the idle one in the last.
        for flips in 0..3 {
            let pin = Rc::new(RefCell::new(Some(epoch.pin())));
            let kept = Rc::clone(&pin);
            if flips == 2 {
                epoch.phase.fetch_xor(1, Ordering::Relaxed);
            }
            interrupt_after(500, move || {
                assert_eq!(epoch.synchronize(), Err(GraceBusy));
                drop(kept.take());
            });
            assert_eq!(epoch.synchronize(), Ok(()));
            assert!(disarm(), "it waited until the interrupt dropped the pin");
            assert!(pin.take().is_none());
        }
        assert_eq!(epoch.synchronize(), Ok(()), "the claim was given back");
    }

    #[test]
    fn a_pin_outside_the_range_of_cpus_is_counted_too() {
        let epoch = epoch::<Host>(2);
        run_as(9);
        let pin = epoch.pin();
        assert_eq!(counted(&epoch), 1);
        assert_eq!(epoch.others.0[0].load(Ordering::Relaxed), 1);
        drop(pin);
        assert_eq!(counted(&epoch), 0);
    }

    #[test]
    fn readers_never_see_a_slot_after_its_grace_period() {
        const READERS: u32 = 3;
        const PERIODS: usize = 2_000;
        const SLOTS: usize = 4;
        let epoch = epoch::<Host>(2);
        // A slot is usable while it is published, and for as long as a reader may have found it.
        let usable: [AtomicBool; SLOTS] = core::array::from_fn(|slot| AtomicBool::new(slot == 0));
        let published = AtomicUsize::new(0);
        let finished = AtomicBool::new(false);
        thread::scope(|scope| {
            for cpu in 0..READERS {
                let (epoch, usable, published, finished) = (&epoch, &usable, &published, &finished);
                scope.spawn(move || {
                    // CPU 2 is out of range.
                    run_as(cpu);
                    while !finished.load(Ordering::Relaxed) {
                        let _pin = epoch.pin();
                        let slot = &usable[published.load(Ordering::Acquire)];
                        for _ in 0..8 {
                            assert!(slot.load(Ordering::Relaxed));
                        }
                    }
                });
            }
            for period in 0..PERIODS {
                let (old, new) = (period % SLOTS, (period + 1) % SLOTS);
                usable[new].store(true, Ordering::Relaxed);
                published.store(new, Ordering::Release);
                epoch.synchronize().expect("no other grace period runs");
                usable[old].store(false, Ordering::Relaxed);
            }
            finished.store(true, Ordering::Relaxed);
        });
        assert_eq!(counted(&epoch), 0);
        assert_eq!(epoch.phase.load(Ordering::Relaxed) & 1, PERIODS & 1);
    }
}
