//! One value per CPU, each in cache lines of its own.
//!
//! Owns: [`PerCpu`]. Invariants: an id out of range gives `None`, never another CPU's value.
//! Lock ranks: none; each value guards itself. Used by: pageset, lru batches, memcg stock and stats, `Epoch`.

use core::ops::Deref;

use crate::addr::CpuId;

/// A value alone in its cache lines (128 bytes: x86-64 prefetches pairs of lines).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

impl<T> Deref for CachePadded<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// One `T` for each CPU.
#[derive(Debug)]
pub struct PerCpu<T: 'static> {
    values: &'static [CachePadded<T>],
}

impl<T> PerCpu<T> {
    /// The value at index i belongs to CPU i.
    #[must_use]
    pub const fn new(values: &'static [CachePadded<T>]) -> Self {
        Self { values }
    }

    /// The value of `cpu`, `None` if there is no such CPU.
    #[inline]
    #[must_use]
    pub fn of(&self, cpu: CpuId) -> Option<&'static T> {
        self.values.get(cpu.0 as usize).map(|padded| &padded.0)
    }

    /// Every CPU's value, in order of their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (CpuId, &'static T)> + use<T> {
        self.values
            .iter()
            .enumerate()
            .map(|(i, padded)| (CpuId(i as u32), &padded.0))
    }
}
