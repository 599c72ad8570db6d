//! How much of a group reclaim leaves alone, and how long those over `high` wait.
//!
//! Owns: [`effective`], [`high_delay_ms`]: pure functions; [`Shield`], the protections along a walk from a reclaim's root down.
//! Invariants: effective protection depends on the reclaim's root, so it is computed along the way down and never stored.
//! Lock ranks: none. Used by: memcg (charge), reclaim, kernels (delays).

use super::counter::Protection;
use super::{MemcgId, Memcgs, ROOT, Slot};
use crate::platform::Platform;

/// What [`effective`] needs to know, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Usage of the group.
    pub usage: u64,
    /// Usage of its parent.
    pub parent_usage: u64,
    /// The group's own setting.
    pub setting: u64,
    /// What is in effect for the parent.
    pub parent_effective: u64,
    /// Sum of the parts, each the smaller of usage and setting, that the parent's children claim.
    pub siblings: u64,
}

/// What a parent does with protection that its children do not claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unclaimed {
    /// It protects nobody.
    Lost,
    /// It is shared among the children by their unprotected usage (`memory_recursiveprot`).
    Shared,
}

/// The protection in effect for a group below a reclaim's root, in frames (`effective_protection` of Linux's page_counter.c).
///
/// Children that claim more than their parent has share it in proportion to their claims.
///
/// ```
/// use framekeeper::memcg::{Claim, Unclaimed, effective};
/// let claim = Claim { usage: 80, parent_usage: 160, setting: 80, parent_effective: 100, siblings: 120 };
/// assert_eq!(effective(claim, Unclaimed::Lost), 66);
/// ```
#[must_use]
pub fn effective(claim: Claim, unclaimed: Unclaimed) -> u64 {
    let part = claim.usage.min(claim.setting);
    if claim.siblings > claim.parent_effective {
        return share(part, claim.parent_effective, claim.siblings);
    }
    let left = claim.parent_effective - claim.siblings;
    if unclaimed == Unclaimed::Shared
        && left > 0
        && claim.parent_usage > claim.siblings
        && claim.usage > part
    {
        let unprotected = claim.parent_usage - claim.siblings;
        return part.saturating_add(share(claim.usage - part, left, unprotected));
    }
    part
}

/// `amount × of ÷ total`, without overflow.
fn share(amount: u64, of: u64, total: u64) -> u64 {
    let frames = u128::from(amount) * u128::from(of) / u128::from(total.max(1));
    u64::try_from(frames).unwrap_or(u64::MAX)
}

/// The longest delay, and the one that is not worth a sleep (`MEMCG_MAX_HIGH_DELAY_JIFFIES`, `HZ / 100`).
const LONGEST_MS: u64 = 2000;
const SHORTEST_MS: u64 = 10;
/// Frames of one charge that the formula is scaled for (`MEMCG_CHARGE_BATCH`).
const SCALE: u64 = super::stock::BATCH;

/// How many milliseconds a thread should wait that charged `frames` to a group whose usage is above its `high`: the square
/// of the overage in proportion to `high`, at most two seconds (`calculate_high_delay` of Linux's memcontrol.c).
///
/// ```
/// use framekeeper::memcg::high_delay_ms;
/// let mib = |n: u64| n << 8;
/// assert_eq!(high_delay_ms(mib(110), mib(100), 64), 639);
/// ```
#[must_use]
pub fn high_delay_ms(usage: u64, high: u64, frames: u64) -> u64 {
    let overage = (u128::from(usage.saturating_sub(high)) << 20) / u128::from(high.max(1));
    // Above 2^40 the square exceeds every delay that is not cut off.
    let overage = overage.min(1 << 40);
    let delay = (overage * overage * 1000) >> 20 >> 14;
    let delay = delay.min(1 << 60) * u128::from(frames) / u128::from(SCALE);
    delay.min(u128::from(LONGEST_MS)) as u64
}

/// The protections in effect for one group, for a reclaim from some root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shield {
    /// Frames never to be reclaimed.
    pub min: u64,
    /// Frames to be reclaimed only when nothing else is left.
    pub low: u64,
}

impl<P: Platform> Memcgs<P> {
    /// The protections in effect for the group in `slot` when `root` is reclaimed from. The root itself has none: its
    /// settings protect it from reclaim above it, not from its own. Nor has a group outside.
    pub(crate) fn shield(&self, root: Slot, slot: Slot) -> Shield {
        Shield {
            min: self.in_effect(root, slot, Protection::Min),
            low: self.in_effect(root, slot, Protection::Low),
        }
    }

    fn in_effect(&self, root: Slot, slot: Slot, kind: Protection) -> u64 {
        if slot == root || slot == ROOT || !self.is_at_or_below(slot, root) {
            return 0;
        }
        // From below the root down to the group: what the group above has decides. Depth squared, without a stack.
        let depth = self.path(slot).take_while(|&at| at != root).count();
        let mut above = 0;
        for steps in (0..depth).rev() {
            let Some(at) = self.path(slot).nth(steps) else {
                return 0;
            };
            let group = &self.groups[at as usize];
            let setting = group.counter.share(kind).setting();
            let usage = group.counter.usage();
            let parent = group.parent.load(crate::sync::atomic::Ordering::Relaxed);
            above = if parent == root {
                // Nobody beside the root competes in this reclaim.
                setting
            } else {
                let parent = &self.groups[parent as usize].counter;
                let claim = Claim {
                    usage,
                    parent_usage: parent.usage(),
                    setting,
                    parent_effective: above,
                    siblings: parent.share(kind).children(),
                };
                effective(claim, Unclaimed::Shared)
            };
        }
        above
    }

    /// How long a thread that charged `frames` should wait for the groups that are above their `high`, in milliseconds; 0 if
    /// it is not worth a sleep. `None` for a stale id.
    pub(crate) fn high_delay(&self, id: MemcgId, frames: u64) -> Option<u64> {
        let _pin = self.epoch.pin();
        self.live(id)?;
        let delays = self.path(id.slot).map(|at| {
            let counter = &self.groups[at as usize].counter;
            high_delay_ms(counter.usage(), counter.high(), frames)
        });
        Some(delays.max().filter(|&ms| ms > SHORTEST_MS).unwrap_or(0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn children_that_claim_too_much_share_in_proportion_and_unclaimed_protection_goes_to_those_without()
     {
        // reclaim.md 4.1
        let over = |usage, setting| Claim {
            usage,
            parent_usage: 160,
            setting,
            parent_effective: 100,
            siblings: 80 + 40,
        };
        assert_eq!(effective(over(80, 80), Unclaimed::Lost), 66);
        assert_eq!(effective(over(80, 40), Unclaimed::Lost), 33);
        // What is not used claims nothing.
        assert_eq!(effective(over(20, 80), Unclaimed::Lost), 16);
        let spare = |usage, setting| Claim {
            usage,
            parent_usage: 100,
            setting,
            parent_effective: 100,
            siblings: 20,
        };
        assert_eq!(effective(spare(60, 0), Unclaimed::Shared), 60);
        assert_eq!(effective(spare(40, 20), Unclaimed::Shared), 40);
        assert_eq!(effective(spare(60, 0), Unclaimed::Lost), 0);
        assert_eq!(effective(spare(30, 70), Unclaimed::Lost), 30);
        let most = Claim {
            usage: u64::MAX,
            parent_usage: u64::MAX,
            setting: u64::MAX,
            parent_effective: u64::MAX - 1,
            siblings: u64::MAX,
        };
        assert_eq!(effective(most, Unclaimed::Shared), u64::MAX - 1);
    }

    #[test]
    fn the_delay_grows_with_the_square_of_the_overage_and_ends_at_two_seconds() {
        // reclaim.md 4.4
        let mib = |n: u64| n << 8;
        for (usage, ms) in [
            (99, 0),
            (100, 0),
            (101, 6),
            (102, 25),
            (105, 159),
            (110, 639),
            (117, 1849),
            (118, 2000),
            (1 << 40, 2000),
        ] {
            assert_eq!(high_delay_ms(mib(usage), mib(100), 64), ms, "{usage} MiB");
        }
        assert_eq!(high_delay_ms(mib(110), mib(100), 32), 319);
        assert_eq!(high_delay_ms(u64::MAX, 0, u64::MAX), 2000);
        assert_eq!(high_delay_ms(5, u64::MAX, 64), 0);
    }
}
