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

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    fn numbers(cpus: u32) -> PerCpu<u32> {
        let values: Vec<_> = (0..cpus).map(|cpu| CachePadded(cpu * 10)).collect();
        PerCpu::new(Box::leak(values.into_boxed_slice()))
    }

    #[test]
    fn an_id_out_of_range_has_no_value() {
        let numbers = numbers(3);
        assert_eq!(numbers.of(CpuId(2)), Some(&20));
        for absent in [3, 4, u32::MAX] {
            assert_eq!(numbers.of(CpuId(absent)), None);
        }
        assert!(PerCpu::<u32>::new(&[]).of(CpuId(0)).is_none());
    }

    #[test]
    fn values_come_in_order_of_their_cpus_and_share_no_cache_lines() {
        let numbers = numbers(4);
        let seen: Vec<_> = numbers.iter().map(|(cpu, value)| (cpu.0, *value)).collect();
        assert_eq!(seen, [(0, 0), (1, 10), (2, 20), (3, 30)]);
        let mut last = None;
        for (_, value) in numbers.iter() {
            let address = core::ptr::from_ref(value).addr();
            assert_eq!(address % 128, 0);
            assert_ne!(last.replace(address / 128), Some(address / 128));
        }
    }
}
