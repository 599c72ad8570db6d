//! Windows of about 100 µs, and medians of those that nothing interrupted.

use std::time::Instant;

/// Nanoseconds per call of windows.
#[derive(Default)]
pub struct Windows {
    clean: Vec<f64>,
    all: Vec<f64>,
}

/// Times that the kernel took this thread off its core.
fn interruptions() -> i64 {
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid to write to.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw + usage.ru_nvcsw
}

impl Windows {
    /// Times one window of `calls` calls.
    pub fn time(&mut self, calls: usize, work: impl FnOnce()) {
        let before = interruptions();
        let start = Instant::now();
        work();
        let ns = start.elapsed().as_nanos() as f64 / calls.max(1) as f64;
        self.all.push(ns);
        if interruptions() == before {
            self.clean.push(ns);
        }
    }

    /// Adds another thread's windows.
    pub fn merge(&mut self, mut other: Self) {
        self.clean.append(&mut other.clean);
        self.all.append(&mut other.all);
    }

    /// The median of the clean windows, or of all if none was clean.
    pub fn median(self) -> f64 {
        median(if self.clean.is_empty() {
            self.all
        } else {
            self.clean
        })
    }
}

/// The middle value; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Numbers from a 64-bit linear congruential generator.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    /// Puts `values` in random order.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for i in (1..values.len()).rev() {
            values.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}
