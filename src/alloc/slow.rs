//! What a request does when too little is free and somebody can make room.
//!
//! Owns: [`PageAllocator::alloc_with`]; the order of its steps (Linux: `__alloc_pages_slowpath`).
//! Invariants: every request ends: after [`RETRIES`] rounds without progress, as many waits for memory that others bring, [`OOM_CALLS`] calls of the out-of-memory hook, or
//! [`ROUNDS`] rounds in all. No lock is held, and interrupts are as the caller has them, while [`Relief`] is called. A
//! caller that reclaims is never made to reclaim.
//! Lock ranks: none while it waits; Pageset and Shard in turn for its attempts. Used by: kernels, by way of reclaim or their own relief.

use super::attempt::Attempt;
use super::deferred::Arrival;
use super::relief::{Caller, Compaction, Need, Oom, Progress, Relief};
use super::request::{Nodes, Persistence, Reclaim};
use super::{AllocError, PageAllocator, Pages, Request};
use crate::addr::{Order, ZoneKind};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::zone::{Access, Keep, Mobility};

/// Rounds without progress that a request makes (`MAX_RECLAIM_RETRIES`).
pub const RETRIES: u32 = 16;
/// Calls of the out-of-memory hook that a request makes.
pub const OOM_CALLS: u32 = 16;
/// Rounds in all. Linux has no such bound: there, others may take what was reclaimed for ever.
pub const ROUNDS: u32 = 512;
/// Compactions after which a request that reclaims goes on compacting (`MAX_COMPACT_RETRIES`), and for costly orders.
const COMPACTIONS: u32 = 16;
const COSTLY_COMPACTIONS: u32 = 4;
/// Frames that a round reclaims at least, if it can (`SWAP_CLUSTER_MAX`).
const CLUSTER: u64 = 32;
/// Blocks above this order may fail: to make one costs many others (`PAGE_ALLOC_COSTLY_ORDER`).
const CHEAP_ORDER: u8 = 3;

impl<P: Platform> PageAllocator<P> {
    /// Allocates a block, with the help of `relief` if too little is free: wakes the background below the low watermark,
    /// goes down to min, then compacts, reclaims and asks the out-of-memory hook, as far as the request allows.
    /// [`Mm::alloc`](crate::Mm::alloc) does this with its own reclaim.
    ///
    /// A request that may not reclaim directly takes bounded time and calls `wake_background` only.
    ///
    /// # Errors
    /// [`AllocError`]; [`OutOfMemory`](AllocError::OutOfMemory) says which watermark held the last attempt back.
    #[inline(always)]
    pub fn alloc_with<'a>(
        &'a self,
        request: Request,
        relief: &impl Relief,
    ) -> Result<Pages<'a, P>, AllocError> {
        match self.alloc_at_once(request) {
            Some(pages) => Ok(pages),
            None => self.alloc_relieved(request, relief),
        }
    }

    #[inline(never)]
    fn alloc_relieved<'a>(
        &'a self,
        request: Request,
        relief: &dyn Relief,
    ) -> Result<Pages<'a, P>, AllocError> {
        self.prepared(request, || {
            request.check()?;
            let pages = match self.alloc_first(request) {
                Some(pages) => Ok(pages),
                None => self.alloc_in_rounds(request, relief),
            }?;
            self.wake_for_boost(pages.place.zone(), request, relief);
            Ok(pages)
        })
    }

    #[cold]
    fn alloc_in_rounds<'a>(
        &'a self,
        request: Request,
        relief: &dyn Relief,
    ) -> Result<Pages<'a, P>, AllocError> {
        self.feasible(request)?;
        let node = self.node_for(request, IrqOff::<P>::new().cpu());
        let may_compact = request.order() > Order::ZERO && request.reclaims() == Reclaim::Direct;
        let mut rounds = Rounds {
            allocator: self,
            request,
            relief,
            need: Need {
                node,
                highest: request.highest(),
                order: request.order(),
            },
            access: Access::empty(),
            compact_first: may_compact
                && (is_costly(request) || request.kind() != Mobility::Movable),
            may_compact,
            idle: 0,
            arrived: 0,
            waits: 0,
            compactions: 0,
            oom_calls: 0,
        };
        for _ in 0..ROUNDS {
            match rounds.round() {
                Round::Served(pages) => return Ok(pages),
                Round::Again => {}
                Round::Failed => break,
            }
        }
        if request.persistence() == Persistence::NoFail {
            // It may take what urgent requests may: somebody has to go on.
            rounds.access |= Access::MIN_RESERVE;
        }
        self.alloc_last(request, rounds.access)
    }

    /// Gives a pageblock that is kept for urgent requests to this one's kind. Returns whether there was one.
    fn unreserve_for(&self, request: Request, keep: Keep) -> bool {
        let off = IrqOff::<P>::new();
        let Ok(mut zones) = self.zones_for(request, off.cpu()) else {
            return false;
        };
        zones.any(|zone| {
            let zone = self.nodes.zone(zone);
            zone.unreserve_highatomic(request.kind(), keep, &off)
        })
    }
}

/// How a round ended.
enum Round<'a, P: Platform> {
    Served(Pages<'a, P>),
    Again,
    Failed,
}

/// A request that goes on.
struct Rounds<'a, 'r, P: Platform> {
    allocator: &'a PageAllocator<P>,
    request: Request,
    relief: &'r dyn Relief,
    need: Need,
    /// What the caller is granted beyond what the request has.
    access: Access,
    may_compact: bool,
    /// Whether this round only compacts: what reclaim would free for a large block is mostly freed in vain.
    compact_first: bool,
    /// Rounds since the last progress.
    idle: u32,
    /// Deferred sections that were online when the round began.
    arrived: u32,
    /// How often it gave up the CPU for one that was late.
    waits: u32,
    compactions: u32,
    oom_calls: u32,
}

impl<'a, P: Platform> Rounds<'a, '_, P> {
    fn round(&mut self) -> Round<'a, P> {
        let (request, relief) = (self.request, self.relief);
        self.arrived = self.allocator.arrived();
        self.allocator.wake_for(request, relief);
        if let Some(pages) = self.attempt() {
            return Round::Served(pages);
        }
        let direct = request.reclaims() == Reclaim::Direct;
        // An interrupt on top of a thread that reclaims is not that thread: it cannot ask for direct reclaim.
        let caller = if direct {
            relief.caller()
        } else {
            Caller::Ordinary
        };
        let granted = !request.keeps_reserves();
        if granted && (request.ignores_watermarks() || caller == Caller::Reclaiming) {
            let unlimited = Attempt::unlimited(request);
            if let Some(pages) = self.allocator.attempt(request, unlimited) {
                return Round::Served(pages);
            }
        }
        if granted && caller == Caller::Dying && !self.access.contains(Access::OOM) {
            self.access |= Access::OOM;
            if let Some(pages) = self.attempt() {
                return Round::Served(pages);
            }
        }
        if !direct || caller == Caller::Reclaiming {
            return Round::Failed;
        }
        // Memory that is about to come costs nobody anything.
        if self.waits_for_arrival() {
            return Round::Again;
        }
        let progress = if self.compact_first {
            Progress::Freed(0)
        } else {
            let frames = CLUSTER.max(request.order().frames());
            relief.reclaim(&self.need, frames)
        };
        match progress {
            Progress::Nested => return Round::Failed,
            Progress::Crowded => {
                // Not in vain: those who reclaim now free for this request too.
                relief.wait();
                return match request.persistence() {
                    Persistence::Once => Round::Failed,
                    _ => Round::Again,
                };
            }
            Progress::Freed(0) | Progress::Exhausted => {}
            Progress::Freed(_) => {
                if let Some(pages) = self.attempt_drained() {
                    return Round::Served(pages);
                }
            }
        }
        let mut compaction = Compaction::Impossible;
        if self.may_compact {
            compaction = relief.compact(&self.need);
            if compaction == Compaction::Made
                && let Some(pages) = self.attempt()
            {
                return Round::Served(pages);
            }
        }
        if self.compact_first {
            self.compact_first = false;
            let only = matches!(request.nodes(), Nodes::Only(_));
            if only && request.persistence() == Persistence::Once {
                return Round::Failed;
            }
            return Round::Again;
        }
        if !self.goes_on(compaction) {
            return Round::Failed;
        }
        if self.retries(progress, compaction) {
            return Round::Again;
        }
        self.out_of_memory(caller)
    }

    /// From the pageset, where what was just reclaimed lies, or above min.
    fn attempt(&self) -> Option<Pages<'a, P>> {
        let attempt = Attempt::min(self.request, self.access);
        self.allocator
            .alloc_at_once(self.request)
            .or_else(|| self.allocator.attempt(self.request, attempt))
    }

    /// The same, and once more with what all pagesets and the highatomic reserve hold.
    fn attempt_drained(&self) -> Option<Pages<'a, P>> {
        self.attempt().or_else(|| {
            self.allocator.unreserve_for(self.request, Keep::One);
            self.allocator.drain_for(self.request);
            self.attempt()
        })
    }

    /// Whether more is online now than when the round began, or may be after the moment that this gives others.
    fn waits_for_arrival(&mut self) -> bool {
        if self.waits == RETRIES {
            return self.allocator.arrived() != self.arrived;
        }
        match self.allocator.await_arrival(self.request, self.arrived) {
            Arrival::Came => true,
            Arrival::Late => {
                self.waits += 1;
                self.relief.wait();
                true
            }
            Arrival::None => false,
        }
    }

    /// Whether a request of this kind makes more than one round.
    fn goes_on(&self, compaction: Compaction) -> bool {
        match self.request.persistence() {
            Persistence::NoFail => true,
            Persistence::Once => false,
            Persistence::Hard => !is_costly(self.request) || compaction != Compaction::Impossible,
            Persistence::Usual => !is_costly(self.request),
        }
    }

    /// Whether another round of reclaim, or of compaction, may serve it.
    fn retries(&mut self, progress: Progress, compaction: Compaction) -> bool {
        let freed = matches!(progress, Progress::Freed(1..));
        if freed && !is_costly(self.request) {
            self.idle = 0;
        } else {
            self.idle += 1;
        }
        if self.idle > RETRIES {
            return false;
        }
        if progress != Progress::Exhausted && self.could_suffice() {
            return true;
        }
        if self.allocator.unreserve_for(self.request, Keep::Nothing) {
            return true;
        }
        let most = match is_costly(self.request) {
            true => COSTLY_COMPACTIONS,
            false => COMPACTIONS,
        };
        if freed && compaction != Compaction::Impossible && self.compactions < most {
            self.compactions += 1;
            return true;
        }
        false
    }

    /// Whether some zone would do if all were reclaimed that can be.
    fn could_suffice(&self) -> bool {
        let (request, nodes) = (self.request, &self.allocator.nodes);
        let reclaimable = self.relief.reclaimable(&self.need);
        let attempt = match request.ignores_watermarks() {
            true => Attempt::unlimited(request),
            false => Attempt::min(request, self.access),
        };
        let Ok(mut zones) = self.allocator.zones_for(request, P::cpu()) else {
            return false;
        };
        zones.any(|zone| {
            attempt.could_suffice(&nodes.zones()[usize::from(zone)], request, reclaimable)
        })
    }

    /// The end, unless somebody gives his memory back.
    fn out_of_memory(&mut self, caller: Caller) -> Round<'a, P> {
        let request = self.request;
        // What is parked or was only boosted away must not cost a life.
        if let Some(pages) = self.attempt_drained() {
            return Round::Served(pages);
        }
        let spares_lives = request.order().get() > CHEAP_ORDER
            || request.persistence() == Persistence::Hard
            || matches!(request.nodes(), Nodes::Only(_))
            || request.highest() < ZoneKind::Normal;
        if spares_lives || caller == Caller::Dying || self.oom_calls == OOM_CALLS {
            return match request.persistence() {
                Persistence::NoFail if self.idle <= RETRIES => Round::Again,
                _ => Round::Failed,
            };
        }
        let Some(_claim) = self.allocator.claim_oom() else {
            // Another's hook runs: its victim's memory will do for this request too.
            self.relief.wait();
            return Round::Again;
        };
        let high = Attempt::high(request);
        if let Some(pages) = self.allocator.attempt(request, high) {
            return Round::Served(pages);
        }
        let last = Attempt::last(request, self.access);
        if let Some(pages) = self.allocator.attempt(request, last) {
            return Round::Served(pages);
        }
        if self.waits_for_arrival() {
            return Round::Again;
        }
        self.oom_calls += 1;
        match self.relief.oom(&self.need) {
            Oom::Retry => {
                self.idle = 0;
                Round::Again
            }
            Oom::Fail => Round::Failed,
        }
    }
}

fn is_costly(request: Request) -> bool {
    request.order().get() > CHEAP_ORDER
}

/// The right to call the out-of-memory hook, given back when dropped, also by a hook that panics.
struct OomClaim<'a, P: Platform>(&'a PageAllocator<P>);

impl<P: Platform> PageAllocator<P> {
    /// One at a time: two who find memory out at once need one victim.
    fn claim_oom(&self) -> Option<OomClaim<'_, P>> {
        // Acquire pairs with the Release of the claim before, whose hook's frees this one must see.
        let claimed = self.oom.compare_exchange(false, true, Acquire, Acquire);
        claimed.is_ok().then(|| OomClaim(self))
    }
}

impl<P: Platform> Drop for OomClaim<'_, P> {
    fn drop(&mut self) {
        self.0.oom.store(false, Release);
    }
}
