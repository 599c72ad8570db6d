//! Platforms for the models: a thread of a model is a CPU, and a lock is one that loom understands.
//!
//! A spin lock would exceed loom's limit of branches, so locks are `loom::sync::Mutex`: the models show what the
//! code does with mutual exclusion, and say nothing about the port's own lock.
#![allow(
    dead_code,
    unreachable_pub,
    unused_macros,
    reason = "each test binary uses the part it needs"
)]

extern crate std;

use core::cell::{Cell, UnsafeCell};
use std::vec::Vec;

use framekeeper::RawLock;
use framekeeper::sync::{CachePadded, PerCpu};

loom::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
}

/// Makes the calling thread of the model act as `cpu` from now on.
pub fn run_as(cpu: u32) {
    CPU.with(|c| c.set(cpu));
}

/// The CPU of the calling thread of the model.
pub fn cpu() -> u32 {
    CPU.with(Cell::get)
}

/// A value per CPU for one execution of a model. Leaked: `PerCpu` keeps its values until the program ends.
pub fn per_cpu<T: Default + 'static>(cpus: u32) -> PerCpu<T> {
    let values: Vec<_> = (0..cpus).map(|_| CachePadded(T::default())).collect();
    PerCpu::new(values.leak())
}

/// Declares a platform: its name, what replaces the defaults of the trait, its lock, and a clock that stands still if it has one.
macro_rules! model_platform {
    ($(#[$doc:meta])* $name:ident, $lock:ty $(, $constant:ident: $type:ty = $value:expr)* $(; now $now:expr)?) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}

        // SAFETY: no memory is ever given to an instance of this platform, so the direct map has nothing to cover. A
        // thread of a model keeps its CPU id, which models give to one thread where ids are exclusive.
        #[allow(unsafe_code)]
        unsafe impl framekeeper::Platform for $name {
            $(const $constant: $type = $value;)*
            type RawLock = $lock;

            fn cpu() -> framekeeper::CpuId {
                framekeeper::CpuId($crate::loom_host::cpu())
            }
            fn irq_save() -> usize {
                0
            }
            fn irq_restore(_state: usize) {}
            fn direct_map(_addr: framekeeper::PhysAddr) -> *mut u8 {
                core::ptr::null_mut()
            }
            $(fn now() -> Option<u64> {
                Some($now)
            })?
            fn relax() {
                loom::thread::yield_now();
            }
        }
    };
}
pub(crate) use model_platform;

/// A lock that loom schedules and checks.
pub struct LoomLock {
    mutex: loom::sync::Mutex<()>,
    /// The guard of whoever holds the mutex; only the holder touches it.
    guard: UnsafeCell<Option<loom::sync::MutexGuard<'static, ()>>>,
}

// SAFETY: `guard` is reached only between lock and unlock, by the holder.
#[allow(unsafe_code)]
unsafe impl Sync for LoomLock {}
// SAFETY: as above; a lock that is moved is not held.
#[allow(unsafe_code)]
unsafe impl Send for LoomLock {}

impl LoomLock {
    fn keep(&self, guard: loom::sync::MutexGuard<'_, ()>) {
        // SAFETY: the guard stays inside this lock, beside the mutex it borrows, and goes before it in `unlock`.
        #[allow(unsafe_code)]
        let guard = unsafe {
            core::mem::transmute::<
                loom::sync::MutexGuard<'_, ()>,
                loom::sync::MutexGuard<'static, ()>,
            >(guard)
        };
        // SAFETY: the mutex is held, so nobody else touches the cell.
        #[allow(unsafe_code)]
        unsafe {
            *self.guard.get() = Some(guard);
        }
    }
}

// SAFETY: the mutex gives the exclusion and the ordering.
#[allow(unsafe_code)]
unsafe impl RawLock for LoomLock {
    fn new() -> Self {
        Self {
            mutex: loom::sync::Mutex::new(()),
            guard: UnsafeCell::new(None),
        }
    }
    fn lock(&self) {
        self.keep(self.mutex.lock().expect("models do not poison"));
    }
    fn try_lock(&self) -> bool {
        self.mutex.try_lock().map(|guard| self.keep(guard)).is_ok()
    }
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the mutex, so nobody else touches the cell.
        #[allow(unsafe_code)]
        let guard = unsafe { (*self.guard.get()).take() };
        if std::thread::panicking() {
            // The model has already failed; loom may have no current thread left to unlock for.
            core::mem::forget(guard);
        }
    }
}

model_platform!(
    /// The platform of the models: shared CPU ids, a fence in every pin.
    LoomHost,
    LoomLock
);
