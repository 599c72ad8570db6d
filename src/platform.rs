//! What a port must give, and the token that proves interrupts are masked.
//!
//! Owns: the [`Platform`] trait and the [`RawLock`] it names; [`IrqOff`].
//! Invariants: an [`IrqOff`] never leaves the CPU that made it, and restores what it found, the innermost first. It carries the ranks
//! of the locks held under it, so that debug builds check the lock order without per-CPU state.
//! Lock ranks: checks them all.
//! Used by: every layer above.

use core::cell::Cell;
use core::marker::PhantomData;

use crate::addr::{CpuId, PhysAddr};
use crate::rank::Rank;

/// Whether a CPU id can be held by two threads at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuIds {
    /// Two threads may act under one id (a host test whose threads migrate): per-CPU words are updated atomically.
    Shared,
    /// Between `preempt_off` and `preempt_on` no other thread acts under this id, except interrupts that return first.
    Exclusive,
}

/// What orders a reader's pin against a writer's grace period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Barrier {
    /// Every pin executes a full fence.
    Fenced,
    /// Pins execute no fence: [`Platform::barrier_all`] makes every CPU run one (an IPI, or `membarrier`).
    Asymmetric,
}

/// What the crate needs from a kernel. One type without values; all functions are static.
///
/// # Safety
///
/// - [`direct_map`](Self::direct_map) gives, for every byte of memory that an instance of this platform was given,
///   a pointer valid for reads and writes until the program ends, and distinct bytes give distinct pointers.
/// - [`CPU_IDS`](Self::CPU_IDS) and [`BARRIER`](Self::BARRIER) are what they claim.
///
/// A wrong [`cpu`](Self::cpu) costs speed only.
#[expect(
    unsafe_code,
    reason = "declares the port's duty; holds no unsafe operation"
)]
pub unsafe trait Platform: Sized + 'static {
    /// log2 of the page size in bytes: 12, 14 or 16.
    const PAGE_SHIFT: u32 = 12;
    /// Whether two threads may hold one CPU id.
    const CPU_IDS: CpuIds = CpuIds::Shared;
    /// What orders pins against grace periods.
    const BARRIER: Barrier = Barrier::Fenced;
    /// The mutual exclusion below every lock: any `lock_api` 0.4 `RawMutex`, for example
    /// [`SpinLock`](crate::sync::SpinLock).
    type RawLock: RawLock;

    /// The CPU this code runs on. An id of `Config::cpus` or more is served without per-CPU caches.
    fn cpu() -> CpuId;

    /// Masks interrupts on this CPU and returns what [`irq_restore`](Self::irq_restore) needs to undo it.
    fn irq_save() -> usize;

    /// Restores the interrupt mask that [`irq_save`](Self::irq_save) found.
    fn irq_restore(state: usize);

    /// Keeps the current thread on its CPU until [`preempt_on`](Self::preempt_on); nests.
    fn preempt_off() {}

    /// Undoes one [`preempt_off`](Self::preempt_off).
    fn preempt_on() {}

    /// Where the byte at a physical address is mapped.
    fn direct_map(addr: PhysAddr) -> *mut u8;

    /// Makes every CPU execute a full memory barrier before it returns. Needed with [`Barrier::Asymmetric`] only.
    fn barrier_all() {}

    /// Nanoseconds since some fixed moment, if the port has a clock.
    fn now() -> Option<u64> {
        None
    }

    /// Whether this CPU runs something that no mask keeps out: a non-maskable interrupt, a machine check. Debug builds ask wherever
    /// interrupts are about to be masked, and panic there: whatever masks them may take a lock that the code below holds. What an
    /// NMI may call takes none: [`Mm::try_get`](crate::Mm::try_get) and what a reference says of its folio,
    /// [`PageAllocator::managed_frames`](crate::PageAllocator::managed_frames).
    fn in_nmi() -> bool {
        false
    }

    /// A hint in spin loops.
    fn relax() {
        core::hint::spin_loop();
    }

    /// Called after each acquisition of a lock.
    fn lock_acquired(_rank: Rank) {}

    /// Called before each release of a lock.
    fn lock_released(_rank: Rank) {}

    /// The step that a model of this crate leaves out, to show that it would be missed.
    #[cfg(loom)]
    #[doc(hidden)]
    const LEFT_OUT: &'static str = "";
}

/// Mutual exclusion without data. Implemented for every `lock_api` 0.4 `RawMutex`.
///
/// # Safety
/// Between a return of `lock` (or `true` from `try_lock`) and the next `unlock`, no other call of these returns.
/// Acquiring synchronises with the release before it.
#[expect(
    unsafe_code,
    reason = "declares the lock's duty; holds no unsafe operation"
)]
pub unsafe trait RawLock: Sized + Send + Sync + 'static {
    /// An unlocked lock.
    fn new() -> Self;
    /// An unlocked lock around data of this rank: for locks that count or tell apart, as
    /// [`CountedLock`](crate::sync::CountedLock) does.
    #[must_use]
    fn of_rank(_rank: Rank) -> Self {
        Self::new()
    }
    /// Waits until the lock is free, and takes it.
    fn lock(&self);
    /// Takes the lock if it is free now.
    fn try_lock(&self) -> bool;
    /// Releases the lock.
    ///
    /// # Safety
    /// The caller holds it.
    unsafe fn unlock(&self);
}

/// Proof that interrupts are masked on this CPU; restores the previous mask when dropped.
///
/// Locks are taken against one, so that no interrupt handler can wait for a lock its own CPU holds. Ports get one from
/// [`with`](Self::with).
#[derive(Debug)]
pub struct IrqOff<P: Platform> {
    state: usize,
    #[cfg(debug_assertions)]
    held: [Cell<u8>; Rank::COUNT],
    /// Not `Send`: the mask belongs to this CPU.
    cpu: PhantomData<(*mut (), Cell<P>)>,
}

impl<P: Platform> IrqOff<P> {
    /// Does `work` with interrupts masked and the thread kept on its CPU.
    ///
    /// Tokens nest by construction: an inner one is gone, and has restored the mask that it found, before the outer one is. Two
    /// that could be dropped in any order would unmask interrupts while one of them still promises that they are masked.
    #[inline]
    pub fn with<T>(work: impl FnOnce(&Self) -> T) -> T {
        work(&Self::new())
    }

    /// Masks interrupts and keeps the thread on its CPU. For a local variable, which goes before those that were there first.
    ///
    /// # Panics
    /// In debug builds, in a non-maskable interrupt.
    #[inline]
    #[must_use]
    pub(crate) fn new() -> Self {
        debug_assert!(
            !P::in_nmi(),
            "called from a non-maskable interrupt: what it came upon may hold the lock"
        );
        P::preempt_off();
        Self {
            state: P::irq_save(),
            #[cfg(debug_assertions)]
            held: [const { Cell::new(0) }; Rank::COUNT],
            cpu: PhantomData,
        }
    }

    /// The CPU this code stays on while the token lives.
    #[inline]
    #[must_use]
    pub fn cpu(&self) -> CpuId {
        P::cpu()
    }

    /// Records a lock about to be taken.
    ///
    /// # Panics
    /// In debug builds, if a lock of the same or a higher rank is held under this token (`Nesting::Pair` allows the same).
    #[inline]
    pub(crate) fn acquire(&self, rank: Rank, nesting: Nesting) {
        #[cfg(debug_assertions)]
        {
            let from = rank as usize + usize::from(nesting == Nesting::Pair);
            if let Some(held) = (from..Rank::COUNT).find(|&r| self.held[r].get() > 0) {
                panic!("lock order: {rank:?} taken while a lock of rank {held} is held");
            }
            let count = &self.held[rank as usize];
            count.set(count.get() + 1);
        }
        let _ = (rank, nesting);
    }

    /// Records a lock about to be released.
    #[inline]
    pub(crate) fn release(&self, rank: Rank) {
        #[cfg(debug_assertions)]
        {
            let count = &self.held[rank as usize];
            count.set(count.get() - 1);
        }
        let _ = rank;
    }
}

impl<P: Platform> Drop for IrqOff<P> {
    #[inline]
    fn drop(&mut self) {
        P::irq_restore(self.state);
        P::preempt_on();
    }
}

/// How a lock is nested in those already held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nesting {
    /// Above every rank that is held.
    Above,
    /// The second of a pair of one rank.
    Pair,
}
