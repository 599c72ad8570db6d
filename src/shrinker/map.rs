//! Which shrinkers have something to give, and what was put off, by group and node.
//!
//! Owns: [`Maps`]: a bit and a count of deferred objects for each shrinker, group and node.
//! Invariants: whoever adds an object stores it, then sets the bit; whoever clears a bit clears it, then counts again, and sets it if there
//! is something. A full fence stands between on both sides, so one of the two sees the other: no object is left behind a clear
//! bit. A bit that is set for nothing costs one count. (In Linux a bit was once set on a dead group's map, where nobody looks.)
//! Lock ranks: none; lone atomics. Used by: shrinker, list_lru (through `mark`).

use super::Shrinkers;
use crate::boot::{Bump, StorageFull};
use crate::memcg::{LruVecIndex, Memcgs, Removal};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::twin::left_out;

/// Shrinkers in one word of bits.
const WORD: u32 = u64::BITS;

/// Bits and deferred work.
#[derive(Debug)]
pub(super) struct Maps {
    shrinkers: u32,
    /// Words by lruvec.
    bits: &'static [AtomicU64],
    /// Objects by lruvec and shrinker.
    deferred: &'static [AtomicU64],
}

impl Maps {
    pub(super) fn build(
        bump: &mut Bump<'_>,
        shrinkers: u32,
        lruvecs: u32,
    ) -> Result<Self, StorageFull> {
        let zero = |_| AtomicU64::new(0);
        let words = lruvecs as usize * shrinkers.div_ceil(WORD) as usize;
        Ok(Self {
            shrinkers,
            bits: bump.slots(words, zero)?,
            deferred: bump.slots(lruvecs as usize * shrinkers as usize, zero)?,
        })
    }

    /// The words of bits of an lruvec.
    fn words(&self, lruvec: LruVecIndex) -> &[AtomicU64] {
        let count = self.shrinkers.div_ceil(WORD) as usize;
        let first = lruvec as usize * count;
        self.bits.get(first..first + count).unwrap_or_default()
    }

    fn deferred_of(&self, lruvec: LruVecIndex) -> &[AtomicU64] {
        let count = self.shrinkers as usize;
        let first = lruvec as usize * count;
        self.deferred.get(first..first + count).unwrap_or_default()
    }

    /// Work put off.
    pub(super) fn deferred(&self, lruvec: LruVecIndex, shrinker: u32) -> Option<&AtomicU64> {
        self.deferred_of(lruvec).get(shrinker as usize)
    }

    /// Shrinkers whose bit is set.
    pub(super) fn set(&self, lruvec: LruVecIndex) -> impl Iterator<Item = u32> {
        (0..).zip(self.words(lruvec)).flat_map(|(i, word)| {
            let word = word.load(Ordering::Relaxed);
            (0..WORD)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| i * WORD + bit)
        })
    }

    /// After something was added: sets the bit if it is clear.
    pub(super) fn mark<P: Platform>(&self, lruvec: LruVecIndex, shrinker: u32) {
        let Some(word) = self.words(lruvec).get((shrinker / WORD) as usize) else {
            return;
        };
        // Partner: the fence in `clear`. Either this load sees the bit cleared, or the count after the clear sees what was added.
        if !left_out::<P>("shrinker: the fence of a mark") {
            fence(Ordering::SeqCst);
        }
        let bit = 1 << (shrinker % WORD);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Clears the bit. The caller then counts once more, and marks if it finds something.
    pub(super) fn clear<P: Platform>(&self, lruvec: LruVecIndex, shrinker: u32) {
        if let Some(word) = self.words(lruvec).get((shrinker / WORD) as usize) {
            word.fetch_and(!(1 << (shrinker % WORD)), Ordering::Relaxed);
        }
        if !left_out::<P>("shrinker: the fence of a clear") {
            fence(Ordering::SeqCst);
        }
    }

    /// What an earlier shrinker in this place put off is not the new one's.
    pub(super) fn forget(&self, shrinker: u32) {
        let count = self.shrinkers.max(1) as usize;
        let of_shrinker = self.deferred.iter().skip(shrinker as usize).step_by(count);
        of_shrinker.for_each(|deferred| deferred.store(0, Ordering::Relaxed));
    }
}

impl<P: Platform> Shrinkers<P> {
    /// There is something for this shrinker in a group and node now.
    pub(crate) fn mark(&self, shrinker: u32, lruvec: LruVecIndex) {
        self.maps.mark::<P>(lruvec, shrinker);
    }

    /// Whether the bit is set.
    #[cfg(all(test, loom))]
    pub(crate) fn is_marked(&self, shrinker: u32, lruvec: LruVecIndex) -> bool {
        self.maps.set(lruvec).any(|set| set == shrinker)
    }

    /// Clears the bit.
    #[cfg(all(test, loom))]
    pub(crate) fn unmark(&self, lruvec: LruVecIndex, shrinker: u32) {
        self.maps.clear::<P>(lruvec, shrinker);
    }

    /// Gives a dying group's bits and deferred work to its parent. Called after a grace period in which it was dying: whoever
    /// adds to its deferred work saw it alive, pinned, before.
    pub(crate) fn reparent(&self, memcgs: &Memcgs<P>, removal: &Removal) {
        for node in 0..memcgs.nodes() {
            let [child, parent] =
                [removal.child, removal.parent].map(|slot| memcgs.lruvec_of(slot, node));
            for (from, to) in self.maps.words(child).iter().zip(self.maps.words(parent)) {
                to.fetch_or(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
            let pairs = self.maps.deferred_of(child).iter();
            for (from, to) in pairs.zip(self.maps.deferred_of(parent)) {
                add(to, from.swap(0, Ordering::Relaxed));
            }
        }
    }
}

/// Adds, up to the largest number.
pub(super) fn add(deferred: &AtomicU64, objects: u64) {
    let sum = |old: u64| Some(old.saturating_add(objects));
    if objects > 0 {
        // Never fails: `sum` always gives a value.
        let _ = deferred.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }
}
