//! How much a shrinker is asked for.
//!
//! Owns: [`Shrinkers::shrink`], the calls for one group and node; the arithmetic of one shrinker's work.
//! Invariants: no lock is held and nothing is pinned while a shrinker runs. Whatever a shrinker answers, it is called a bounded number of
//! times: at most [`MOST_SCANS`] scans a round, the rest is deferred.
//! Lock ranks: `Shrinkers` between calls. Used by: reclaim.
//!
//! The work (reclaim.md 6.4): `delta = (freeable >> priority) * 4 / seeks`, half of freeable if a seek costs nothing; together with
//! `deferred >> priority`, at most twice what is freeable, in batches; what is left is deferred.

use super::map::{Maps, add};
use super::{Call, Count, Scan, Scope, ShrinkerConfig, Shrinkers, Target};
use crate::addr::NodeId;
use crate::memcg::{MemcgId, Memcgs, ROOT};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::twin::left_out;

/// Scans of one shrinker in one round. Linux has no such bound, and hangs on a count of 2^64 - 1.
const MOST_SCANS: u32 = 1024;

/// What shrinkers did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Totals {
    /// Objects freed, as they said.
    pub(crate) freed: u64,
    /// Objects asked for.
    pub(crate) scanned: u64,
}

/// What one call found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Empty,
    Something,
}

impl<P: Platform> Shrinkers<P> {
    /// Asks every shrinker that has something of a group on a node; for the root, every one that there is.
    pub(crate) fn shrink(
        &self,
        memcgs: &Memcgs<P>,
        memcg: MemcgId,
        node: NodeId,
        priority: u32,
    ) -> Totals {
        let mut totals = Totals::default();
        if u32::from(node.0) >= memcgs.nodes() || !memcgs.is_live(memcg) {
            return totals;
        }
        let lruvec = memcgs.lruvec_of(memcg.slot, u32::from(node.0));
        let target = Target { memcg, node };
        let mut one = |shrinker| {
            let work = Work {
                maps: &self.maps,
                memcgs,
                target,
                shrinker,
            };
            let Some(call) = self.begin(shrinker) else {
                self.maps.clear::<P>(lruvec, shrinker);
                return;
            };
            if call.config.scope == Scope::Machine && memcg.slot != ROOT {
                self.maps.clear::<P>(lruvec, shrinker);
                return;
            }
            if work.shrink(&call, priority, &mut totals) == Found::Empty {
                self.maps.clear::<P>(lruvec, shrinker);
                // What was added before the clear is counted here; what is added after it sets the bit.
                if !left_out::<P>("shrinker: the count after the clear")
                    && work.shrink(&call, priority, &mut totals) == Found::Something
                {
                    self.maps.mark::<P>(lruvec, shrinker);
                }
            }
        };
        if memcg.slot == ROOT {
            (0..self.entries.len() as u32).for_each(&mut one);
        } else {
            self.maps.set(lruvec).for_each(&mut one);
        }
        totals
    }
}

/// One shrinker and what it is asked about.
struct Work<'a, P: Platform> {
    maps: &'a Maps,
    memcgs: &'a Memcgs<P>,
    target: Target,
    shrinker: u32,
}

impl<P: Platform> Work<'_, P> {
    fn shrink(&self, call: &Call<'_, P>, priority: u32, totals: &mut Totals) -> Found {
        let freeable = match call.shrinker.count(self.target) {
            Count::Empty => return Found::Empty,
            Count::Objects(0) => return Found::Something,
            Count::Objects(freeable) => freeable,
        };
        let parent = {
            let _pin = self.memcgs.pin();
            self.memcgs.heir_of(self.target.memcg)
        };
        let deferred = self.take_deferred();
        let plan = Plan::new(freeable, call.config, priority, deferred);
        let scanned = plan.run(|objects| {
            let scan = call.shrinker.scan(self.target, objects);
            if let Scan::Done { freed, .. } = scan {
                totals.freed = totals.freed.saturating_add(freed);
            }
            scan
        });
        totals.scanned = totals.scanned.saturating_add(scanned);
        self.defer(plan.left(scanned), parent);
        Found::Something
    }

    fn take_deferred(&self) -> u64 {
        // Pinned: a living group's slot is its own until the pin is dropped.
        let _pin = self.memcgs.pin();
        let deferred = self.deferred_of(Some(self.target.memcg));
        deferred.map_or(0, |deferred| deferred.swap(0, Ordering::Relaxed))
    }

    /// Puts work off: to the group, or if it ended meanwhile, to its parent; or to the root, if that ended too.
    fn defer(&self, objects: u64, parent: Option<MemcgId>) {
        let _pin = self.memcgs.pin();
        let deferred = self
            .deferred_of(Some(self.target.memcg))
            .or_else(|| self.deferred_of(parent))
            .or_else(|| self.deferred_of(Some(MemcgId::ROOT)));
        if let Some(deferred) = deferred {
            add(deferred, objects);
        }
    }

    fn deferred_of(&self, memcg: Option<MemcgId>) -> Option<&AtomicU64> {
        let memcg = memcg.filter(|&memcg| self.memcgs.is_live(memcg))?;
        let lruvec = self
            .memcgs
            .lruvec_of(memcg.slot, u32::from(self.target.node.0));
        self.maps.deferred(lruvec, self.shrinker)
    }
}

/// One round of a shrinker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    freeable: u64,
    batch: u64,
    /// This round's own share and all that was deferred: what is not scanned of it is deferred.
    due: u64,
    /// Objects to scan now.
    total: u64,
}

impl Plan {
    fn new(freeable: u64, config: ShrinkerConfig, priority: u32, deferred: u64) -> Self {
        let delta = match u64::from(config.seeks) {
            0 => freeable / 2,
            seeks => at_priority(freeable, priority).saturating_mul(4) / seeks,
        };
        let total = at_priority(deferred, priority).saturating_add(delta);
        Self {
            freeable,
            batch: config.batch.max(1),
            due: deferred.saturating_add(delta),
            total: total.min(freeable.saturating_mul(2)),
        }
    }

    /// Calls `scan` with up to a batch at a time. Returns the objects that were scanned.
    fn run(&self, mut scan: impl FnMut(u64) -> Scan) -> u64 {
        let (mut left, mut scanned) = (self.total, 0u64);
        for _ in 0..MOST_SCANS {
            // A rest below a batch waits for more, unless it is all there is.
            if left == 0 || (left < self.batch && left < self.freeable) {
                break;
            }
            let Scan::Done { scanned: now, .. } = scan(left.min(self.batch)) else {
                break;
            };
            scanned = scanned.saturating_add(now);
            left = left.saturating_sub(now);
        }
        scanned
    }

    /// What is deferred after a round.
    fn left(&self, scanned: u64) -> u64 {
        let left = self.due.saturating_sub(scanned);
        left.min(self.freeable.saturating_mul(2))
    }
}

fn at_priority(objects: u64, priority: u32) -> u64 {
    objects.checked_shr(priority).unwrap_or(0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn plan(freeable: u64, seeks: u32, priority: u32, deferred: u64) -> Plan {
        let config = ShrinkerConfig {
            seeks,
            ..ShrinkerConfig::default()
        };
        Plan::new(freeable, config, priority, deferred)
    }

    /// A shrinker that does what it is asked for.
    fn honest(objects: u64) -> Scan {
        assert!(objects > 0, "never asked for nothing");
        Scan::Done {
            scanned: objects,
            freed: objects,
        }
    }

    #[test]
    fn the_work_follows_the_published_formula() {
        // reclaim.md 6.4: (freeable, seeks, priority, deferred) -> (delta, total, scanned, deferred).
        let vectors = [
            ((1000, 2, 12, 0), (0, 0, 0, 0)),
            ((1000, 2, 3, 0), (250, 250, 128, 122)),
            ((100, 2, 0, 0), (200, 200, 128, 72)),
            ((50, 2, 0, 0), (100, 100, 100, 0)),
            ((100_000, 2, 12, 0), (48, 48, 0, 48)),
            ((1000, 0, 12, 0), (500, 500, 384, 116)),
            ((1000, 2, 3, 5000), (250, 875, 768, 2000)),
        ];
        for ((freeable, seeks, priority, nr), (delta, total, scanned, deferred)) in vectors {
            let plan = plan(freeable, seeks, priority, nr);
            assert_eq!((plan.due - nr, plan.total), (delta, total), "{plan:?}");
            let done = plan.run(honest);
            assert_eq!((done, plan.left(done)), (scanned, deferred), "{plan:?}");
        }
    }

    /// misuse 46.
    #[test]
    fn a_shrinker_that_lies_is_called_a_bounded_number_of_times_and_nothing_overflows() {
        for freeable in [1, 127, 128, u64::MAX / 2, u64::MAX] {
            for deferred in [0, 1, u64::MAX] {
                for scanned in [0, 1, u64::MAX] {
                    for priority in [0, 12, 63, 64, u32::MAX] {
                        let plan = plan(freeable, 2, priority, deferred);
                        let mut calls = 0;
                        let done = plan.run(|_| {
                            calls += 1;
                            Scan::Done { scanned, freed: 0 }
                        });
                        assert!(calls <= MOST_SCANS);
                        assert!(plan.left(done) <= freeable.saturating_mul(2));
                    }
                }
            }
        }
    }

    #[test]
    fn a_shrinker_that_stops_is_not_asked_again_in_the_round_and_its_work_is_deferred() {
        let plan = plan(1000, 2, 0, 0);
        let mut calls = 0;
        let done = plan.run(|objects| {
            calls += 1;
            if calls == 3 {
                Scan::Stop
            } else {
                honest(objects)
            }
        });
        assert_eq!((calls, done, plan.left(done)), (3, 256, 2000 - 256));
    }
}
