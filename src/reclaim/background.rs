//! What the kernel's reclaiming thread of a node does each time it is woken.
//!
//! Owns: [`Mm::balance_node`], [`Mm::wants_background`]. Invariants: a run takes at most two descents from the first priority,
//! so it ends after two dozen rounds whatever the hooks do; sixteen runs in a row that freed nothing make the node hopeless, and
//! then none is made until somebody frees something.
//! Lock ranks: as walk's. Used by: kernels.

use super::evict::Evict;
use super::scan::Progress;
use super::walk::FIRST_PRIORITY;
use crate::addr::{NodeId, Order, ZoneKind};
use crate::alloc::Need;
use crate::memcg::MemcgId;
use crate::mm::Mm;
use crate::sync::NoClaim;
use crate::zone::{Level, Zone};

/// Why a run of background reclaim ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackgroundStop {
    /// Some zone is above its high watermark, and no boost is left.
    Balanced,
    /// It freed frames, but could free no more.
    Short,
    /// It freed nothing.
    Failed,
    /// Nor did the sixteen runs before, and nobody else freed anything since: it was not tried.
    Hopeless,
    /// The calling thread reclaims already.
    Nested,
    /// Too many threads reclaim at once.
    Crowded,
}

/// What a run of background reclaim did.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Background {
    /// Base frames freed.
    pub freed: u64,
    /// Folios looked at.
    pub scanned: u64,
    /// Rounds over all groups.
    pub rounds: u32,
    /// Why it ended.
    pub stop: BackgroundStop,
}

/// What a run is to make good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Aim {
    /// A zone below its watermark.
    Shortage,
    /// Room in which kinds need not mix: not worth swapping, or trying hard, for.
    Boost,
}

/// A round frees so many frames for each zone at least, if it can (`SWAP_CLUSTER_MAX`).
const LEAST: u64 = 32;
/// The last priority in a shortage.
const LAST_PRIORITY: u32 = 1;
/// The last for a boost (`DEF_PRIORITY - 2`).
const LAST_FOR_BOOST: u32 = FIRST_PRIORITY - 2;

impl<P: Evict> Mm<P> {
    /// Whether the background thread of `need.node` has something to do that is not in vain: it sleeps while not.
    #[must_use]
    pub fn wants_background(&self, need: &Need) -> bool {
        let alloc = self.allocator();
        let boosted = alloc.boosts(need.node, need.highest).total() > 0;
        (boosted || !alloc.is_balanced(need.node, need.order, need.highest))
            && self
                .effort(need.node)
                .is_some_and(|effort| !effort.is_hopeless(self.free_of(need.node)))
    }

    /// Frees frames of `need.node` until a zone up to `need.highest` can give a block of `need.order` and keeps its high watermark:
    /// the body of the thread that [`Evict::wake_background`] wakes. May call every hook of [`Evict`] but `oom`.
    pub fn balance_node(&self, need: &Need) -> Background {
        let mut run = Background {
            freed: 0,
            scanned: 0,
            rounds: 0,
            stop: BackgroundStop::Hopeless,
        };
        let free = self.free_of(need.node);
        let Some(effort) = self.effort(need.node).filter(|it| !it.is_hopeless(free)) else {
            return run;
        };
        let _claim = match self.reclaimers.claim(P::task()) {
            Ok(claim) => claim,
            Err(refused) => {
                run.stop = match refused {
                    NoClaim::Nested => BackgroundStop::Nested,
                    NoClaim::Full => BackgroundStop::Crowded,
                };
                return run;
            }
        };
        self.drain_lru();
        let boosts = self.allocator().boosts(need.node, need.highest);
        let mut aim = Aim::Boost;
        let done = boosts.total() > 0 && self.descend(need, aim, &mut run);
        // Made good, or given up: a shortage is what counts then.
        self.allocator().lower_boosts(need.node, &boosts);
        if !done {
            aim = Aim::Shortage;
            self.descend(need, aim, &mut run);
        }
        run.stop = if aim == Aim::Boost || self.is_node_balanced(need, &run) {
            BackgroundStop::Balanced
        } else if run.freed > 0 {
            BackgroundStop::Short
        } else {
            BackgroundStop::Failed
        };
        match run.stop {
            BackgroundStop::Failed => effort.fail(self.free_of(need.node)),
            _ => effort.renew(),
        }
        run
    }

    /// Rounds at rising priority. Says whether the aim needs no more.
    fn descend(&self, need: &Need, aim: Aim, run: &mut Background) -> bool {
        let last = match aim {
            Aim::Shortage => LAST_PRIORITY,
            Aim::Boost => LAST_FOR_BOOST,
        };
        let boosted = self.allocator().boosts(need.node, need.highest).total();
        let mut priority = FIRST_PRIORITY;
        let before = run.freed;
        // A round that reaches its target is repeated at the same priority: as often as the frames of the machine allow.
        loop {
            let balanced = self.is_node_balanced(need, run);
            match aim {
                Aim::Shortage if balanced => return true,
                Aim::Boost if !balanced => return false,
                Aim::Boost if run.freed - before >= boosted => return true,
                _ => {}
            }
            let mut progress = Progress::new(
                MemcgId::ROOT,
                need.highest,
                self.target(need.node, need.highest),
            );
            progress.node = Some(need.node.0.into());
            progress.priority = priority;
            progress.alone = true;
            progress.spares_anon = aim == Aim::Boost;
            self.scan_node(need.node.0.into(), &mut progress);
            run.rounds += 1;
            run.freed += progress.freed;
            run.scanned += progress.scanned;
            if progress.freed > 0 {
                // What was freed waits in pagesets, where the watermarks do not see it.
                self.allocator().drain_all();
            } else if aim == Aim::Boost {
                return true; // not worth trying harder
            }
            if progress.scanned < progress.target || progress.freed == 0 {
                if priority == last {
                    return false;
                }
                priority -= 1;
            }
        }
    }

    /// A large block is given up once twice as many frames were freed: compaction has enough room then.
    fn is_node_balanced(&self, need: &Need, run: &Background) -> bool {
        let order = match need.order {
            order if run.freed >= 2 * order.frames() => Order::ZERO,
            order => order,
        };
        self.allocator().is_balanced(need.node, order, need.highest)
    }

    /// Base frames that a round is to free: what the zones lack, and no more, since a page that was freed too early is read again.
    fn target(&self, node: NodeId, highest: ZoneKind) -> u64 {
        let zones = self.allocator().zones_up_to(node, highest);
        let lacks = |zone: &Zone<P>| {
            zone.mark(Level::High)
                .saturating_sub(zone.free_frames_exact())
        };
        zones
            .map(|zone| lacks(zone).max(LEAST))
            .sum::<u64>()
            .max(LEAST)
    }

    fn free_of(&self, node: NodeId) -> u64 {
        let zones = self.allocator().zones_up_to(node, ZoneKind::Movable);
        zones.map(Zone::free_frames_exact).sum()
    }
}
