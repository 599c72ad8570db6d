//! The one lock of the crate (UNSAFE 3).
//!
//! Owns: [`Lock`], a value that only the holder of the raw lock reaches; [`Held`], the guard.
//! Invariants: `value` is touched only between `raw.lock()` (or a successful `try_lock`) and `raw.unlock()`.
//! Lock ranks: each type of data has one, [`Ranked::RANK`]; debug builds check the order through the token.
//! Used by: every layer that keeps shared data that is not a lone atomic.
#![allow(unsafe_code)]

use core::fmt;
use core::ops::{Deref, DerefMut};

use super::counted::{CountedLock, LockStats};
use crate::platform::{IrqOff, Nesting, Platform, RawLock};
use crate::rank::Rank;

#[cfg(not(loom))]
use core::cell::UnsafeCell;
#[cfg(loom)]
use loom::cell::UnsafeCell;

// SAFETY: `lock_api::RawMutex` is an unsafe trait with the same contract.
#[cfg(not(loom))]
unsafe impl<M: lock_api::RawMutex + Send + Sync + 'static> RawLock for M {
    #[inline]
    fn new() -> Self {
        M::INIT
    }
    #[inline]
    fn lock(&self) {
        lock_api::RawMutex::lock(self);
    }
    #[inline]
    fn try_lock(&self) -> bool {
        lock_api::RawMutex::try_lock(self)
    }
    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { lock_api::RawMutex::unlock(self) }
    }
}

// SAFETY: the lock inside excludes, and every call of it is passed on; what is counted excludes nobody.
unsafe impl<L: RawLock, S: LockStats> RawLock for CountedLock<L, S> {
    #[inline]
    fn new() -> Self {
        Self::around(L::new(), Rank::Hotplug)
    }
    #[inline]
    fn of_rank(rank: Rank) -> Self {
        Self::around(L::of_rank(rank), rank)
    }
    #[inline]
    fn lock(&self) {
        if self.raw.try_lock() {
            self.took(None);
        } else {
            let began = S::now();
            self.raw.lock();
            self.took(Some(began));
        }
    }
    #[inline]
    fn try_lock(&self) -> bool {
        let taken = self.raw.try_lock();
        if taken {
            self.took(None);
        }
        taken
    }
    #[inline]
    unsafe fn unlock(&self) {
        self.leaves();
        // SAFETY: the caller holds the lock.
        unsafe { self.raw.unlock() }
    }
}

/// Data that stands under a lock, with that lock's place in the order.
pub trait Ranked {
    /// Rank of the lock around this data.
    const RANK: Rank;
}

/// A value behind the platform's lock.
pub struct Lock<T: Ranked, P: Platform> {
    raw: P::RawLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached by one thread at a time, through the raw lock.
unsafe impl<T: Ranked + Send, P: Platform> Sync for Lock<T, P> {}
// SAFETY: moving the lock moves the value; the raw lock is Send.
unsafe impl<T: Ranked + Send, P: Platform> Send for Lock<T, P> {}

/// A held lock: access to the value, released on drop.
#[must_use]
pub struct Held<'a, T: Ranked, P: Platform> {
    lock: &'a Lock<T, P>,
    off: &'a IrqOff<P>,
    /// Loom's proof of exclusive access; dropped before the unlock.
    #[cfg(loom)]
    value: Option<loom::cell::MutPtr<T>>,
}

impl<T: Ranked, P: Platform> Lock<T, P> {
    /// An unlocked lock around `value`.
    pub fn new(value: T) -> Self {
        Self {
            raw: P::RawLock::of_rank(T::RANK),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// In debug builds, if a lock of the same or a higher rank is held under `off`.
    #[inline]
    pub fn lock<'a>(&'a self, off: &'a IrqOff<P>) -> Held<'a, T, P> {
        off.acquire(T::RANK, Nesting::Above);
        self.raw.lock();
        self.held(off)
    }

    /// Takes the lock if it is free now.
    ///
    /// # Panics
    /// In debug builds, as [`lock`](Self::lock).
    #[inline]
    pub fn try_lock<'a>(&'a self, off: &'a IrqOff<P>) -> Option<Held<'a, T, P>> {
        // Checked before it is taken, so that the panic leaves no lock held that nobody releases.
        off.acquire(T::RANK, Nesting::Above);
        if self.raw.try_lock() {
            Some(self.held(off))
        } else {
            off.release(T::RANK);
            None
        }
    }

    /// Takes two locks of one rank: first the child's, then its parent's. The one way to hold two.
    ///
    /// # Panics
    /// If both are the same lock, which would never return. In debug builds, as [`lock`](Self::lock).
    #[inline]
    pub fn lock_pair<'a>(
        child: &'a Self,
        parent: &'a Self,
        off: &'a IrqOff<P>,
    ) -> (Held<'a, T, P>, Held<'a, T, P>) {
        assert!(
            !core::ptr::eq(child, parent),
            "a group is not its own parent"
        );
        let child = child.lock(off);
        off.acquire(T::RANK, Nesting::Pair);
        parent.raw.lock();
        (child, parent.held(off))
    }

    #[inline]
    fn held<'a>(&'a self, off: &'a IrqOff<P>) -> Held<'a, T, P> {
        // Made first, so that a port's hook that panics leaves no lock held that nobody releases.
        let held = Held {
            lock: self,
            off,
            #[cfg(loom)]
            value: Some(self.value.get_mut()),
        };
        P::lock_acquired(T::RANK);
        held
    }
}

impl<T: Ranked, P: Platform> Held<'_, T, P> {
    /// The token under which the lock is held.
    #[inline]
    #[must_use]
    pub fn off(&self) -> &IrqOff<P> {
        self.off
    }
}

impl<T: Ranked, P: Platform> Deref for Held<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        #[cfg(not(loom))]
        // SAFETY: this guard holds the raw lock, so nobody else has access while the borrow lasts.
        unsafe {
            &*self.lock.value.get()
        }
        #[cfg(loom)]
        // SAFETY: as above; loom checks it.
        unsafe {
            self.value.as_ref().expect("present until drop").deref()
        }
    }
}

impl<T: Ranked, P: Platform> DerefMut for Held<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        #[cfg(not(loom))]
        // SAFETY: this guard holds the raw lock and is borrowed mutably, so this is the only access.
        unsafe {
            &mut *self.lock.value.get()
        }
        #[cfg(loom)]
        // SAFETY: as above; loom checks it.
        unsafe {
            self.value.as_ref().expect("present until drop").deref()
        }
    }
}

impl<T: Ranked, P: Platform> Drop for Held<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(loom)]
        drop(self.value.take());
        // Unlocks when it goes out of scope, also if the port's hook panics.
        let _unlock = Unlock(self);
        P::lock_released(T::RANK);
    }
}

/// The last step of a guard's drop.
struct Unlock<'h, 'a, T: Ranked, P: Platform>(&'h Held<'a, T, P>);

impl<T: Ranked, P: Platform> Drop for Unlock<'_, '_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.0.off.release(T::RANK);
        // SAFETY: the guard was made by whoever took the lock, and is dropped once; so is this.
        unsafe { self.0.lock.raw.unlock() }
    }
}

impl<T: Ranked, P: Platform> fmt::Debug for Lock<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lock({:?})", T::RANK)
    }
}

impl<T: Ranked + fmt::Debug, P: Platform> fmt::Debug for Held<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::host::Host;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    /// Two numbers that every holder leaves equal.
    #[derive(Default)]
    struct Twice(u64, u64);

    impl Ranked for Twice {
        const RANK: Rank = Rank::LruVec;
    }

    /// Something above it in the order.
    struct Above;

    impl Ranked for Above {
        const RANK: Rank = Rank::Shard;
    }

    type HostLock<T> = Lock<T, Host>;

    fn panics(action: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(action)).is_err()
    }

    #[test]
    fn threads_that_add_under_a_lock_lose_nothing_and_see_no_half_update() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 5_000;
        let lock = HostLock::new(Twice::default());
        let tried: u64 = thread::scope(|scope| {
            let threads: [_; THREADS as usize] = core::array::from_fn(|_| {
                scope.spawn(|| {
                    let mut tried = 0;
                    for _ in 0..ROUNDS {
                        let off = IrqOff::new();
                        let mut held = lock.lock(&off);
                        assert_eq!(held.0, held.1);
                        held.0 += 1;
                        held.1 += 1;
                        drop(held);
                        if let Some(mut held) = lock.try_lock(&off) {
                            assert_eq!(held.0, held.1);
                            held.0 += 1;
                            held.1 += 1;
                            tried += 1;
                        }
                    }
                    tried
                })
            });
            threads
                .map(|thread| thread.join().expect("no thread panics"))
                .iter()
                .sum()
        });
        let off = IrqOff::new();
        let held = lock.lock(&off);
        assert_eq!(
            (held.0, held.1),
            (THREADS * ROUNDS + tried, THREADS * ROUNDS + tried)
        );
    }

    #[test]
    fn a_taken_lock_is_not_taken_again_by_trying() {
        let lock = HostLock::new(Twice::default());
        let off = IrqOff::new();
        let held = lock.lock(&off);
        // As an interrupt would: its own token.
        assert!(lock.try_lock(&IrqOff::new()).is_none());
        drop(held);
        assert!(lock.try_lock(&off).is_some());
        assert!(lock.try_lock(&off).is_some(), "the guard released it");
    }

    #[test]
    fn a_pair_gives_the_child_first_and_releases_both() {
        let child = HostLock::new(Twice(1, 1));
        let parent = HostLock::new(Twice(2, 2));
        let off = IrqOff::new();
        let (mut first, second) = Lock::lock_pair(&child, &parent, &off);
        assert_eq!((first.0, second.0), (1, 2));
        first.1 = 7;
        drop((first, second));
        assert_eq!(child.lock(&off).1, 7);
        assert_eq!(parent.lock(&off).0, 2);
    }

    #[test]
    fn a_pair_of_one_lock_panics_and_takes_nothing() {
        let lock = HostLock::new(Twice::default());
        let off = IrqOff::new();
        assert!(panics(|| drop(Lock::lock_pair(&lock, &lock, &off))));
        assert!(lock.try_lock(&off).is_some());
    }

    #[test]
    fn locks_of_ascending_rank_may_be_released_in_any_order() {
        let low = HostLock::new(Twice::default());
        let high = HostLock::new(Above);
        let off = IrqOff::new();
        let first = low.lock(&off);
        let second = high.lock(&off);
        drop(first);
        drop(second);
        let first = low.lock(&off);
        let second = high.lock(&off);
        drop(second);
        assert!(high.try_lock(&off).is_some());
        drop(first);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn debug_builds_refuse_a_lock_that_is_not_above_all_that_are_held() {
        let low = HostLock::new(Twice::default());
        let peer = HostLock::new(Twice::default());
        let high = HostLock::new(Above);
        let off = IrqOff::new();
        let held = high.lock(&off);
        assert!(panics(|| drop(low.lock(&off))));
        assert!(panics(|| drop(low.try_lock(&off))));
        assert!(panics(|| drop(Lock::lock_pair(&low, &peer, &off))));
        drop(held);
        let held = low.lock(&off);
        assert!(panics(|| drop(peer.lock(&off))), "the same rank");
        drop(held);
        let pair = Lock::lock_pair(&low, &peer, &off);
        let third = HostLock::new(Twice::default());
        assert!(panics(|| drop(third.lock(&off))), "a third of one rank");
        drop(pair);
        // Nothing that panicked left a lock or a rank behind.
        for lock in [&low, &peer, &third] {
            assert!(lock.try_lock(&off).is_some());
        }
        assert!(high.try_lock(&off).is_some());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn the_order_of_every_two_ranks_is_checked() {
        use Rank::*;
        let ranks = [
            Hotplug, MemcgTree, ListLruSet, Shrinkers, MemcgStock, Pressure, Deferred, LruBatch,
            LruVec, ListLru, Pageset, Shard,
        ];
        assert_eq!(ranks.len(), Rank::COUNT);
        let off = IrqOff::<Host>::new();
        for held in ranks {
            for wanted in ranks {
                off.acquire(held, Nesting::Above);
                let refused = panics(|| off.acquire(wanted, Nesting::Above));
                assert_eq!(refused, wanted <= held, "{wanted:?} under {held:?}");
                if !refused {
                    off.release(wanted);
                }
                let refused = panics(|| off.acquire(wanted, Nesting::Pair));
                assert_eq!(refused, wanted < held, "{wanted:?} beside {held:?}");
                if !refused {
                    off.release(wanted);
                }
                off.release(held);
            }
        }
    }
}
