//! A bounded set of holders, each at most once.
//!
//! Owns: [`Claims`]. Invariants: a name is in the set at most once per thread that obeys it: a thread that finds its own name
//! is nested in itself. No one waits: a full set answers so.
//! Lock ranks: none; lone atomics. Used by: reclaim (who reclaims now).

use super::atomic::{AtomicU64, Ordering};

/// Names held at the moment.
#[derive(Debug)]
pub(crate) struct Claims {
    /// A name plus one; 0 is free. The two highest names share a mark, so they only keep each other waiting.
    slots: &'static [AtomicU64],
}

/// Why a claim was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoClaim {
    /// This name holds a claim: the caller is inside its own work.
    Nested,
    /// Every slot is taken.
    Full,
}

/// A claim, released when dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct Claim<'a>(&'a AtomicU64);

impl Claims {
    pub(crate) fn new(slots: &'static [AtomicU64]) -> Self {
        Self { slots }
    }

    /// Whether the calling thread, whose own name it must be, holds a claim.
    pub(crate) fn holds(&self, name: u64) -> bool {
        let mark = name.saturating_add(1);
        // Only this thread writes its own mark, so it sees its own latest store without any ordering.
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.load(Ordering::Relaxed) == mark)
    }

    /// Claims a slot under `name`, which must be the calling thread's own: nobody else adds or removes it.
    pub(crate) fn claim(&self, name: u64) -> Result<Claim<'_>, NoClaim> {
        if self.holds(name) {
            return Err(NoClaim::Nested);
        }
        let mark = name.saturating_add(1);
        let free = |slot: &&AtomicU64| {
            slot.compare_exchange(0, mark, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        self.slots.iter().find(free).map(Claim).ok_or(NoClaim::Full)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::boxed::Box;

    #[test]
    fn a_name_is_claimed_once_and_a_full_set_refuses() {
        let claims = Claims::new(Box::leak(Box::new([AtomicU64::new(0), AtomicU64::new(0)])));
        let first = claims.claim(7).unwrap();
        assert_eq!(claims.claim(7).unwrap_err(), NoClaim::Nested);
        let second = claims.claim(8).unwrap();
        assert_eq!(claims.claim(9).unwrap_err(), NoClaim::Full);
        drop(first);
        assert!(claims.claim(7).is_ok());
        drop(second);
    }
}
