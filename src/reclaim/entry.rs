//! Who asks for frames, and how hard is tried.
//!
//! Owns: allocation and charging that reclaim when they must; reclaim of a group and of the machine.
//! Invariants: a round looks at all groups of the subtree at rising priority until it freed its target; every caller
//! makes a bounded number of rounds. A thread inside its own reclaim is refused, with an error.
//! Lock ranks: `MemcgTree` for each step of the walk. Used by: kernels.

use super::evict::Evict;
use super::scan::Progress;
use super::throttle::Throttle;
use crate::addr::{NodeId, ZoneKind};
use crate::alloc::{AllocError, Oom, Pages, Request};
use crate::boot::Refused;
use crate::memcg::{self, Event, Force, MemcgId};
use crate::mm::{ByteCharge, ChargeError, Folio, Mm, NoSuchGroup, Refusal};
use crate::sync::NoClaim;

/// Rounds of reclaim that one request makes before it gives up (`MAX_RECLAIM_RETRIES`).
const ROUNDS: u32 = 16;
/// Frames that a round frees at least, if it can (`SWAP_CLUSTER_MAX`).
const CLUSTER: u64 = 32;
/// A group at its limit gives up a 128th of it at most for one charge: all that is freed beyond need stands empty.
const SHARE_SHIFT: u32 = 7;

/// A group's limit does not ask where its frames are.
const ANY_ZONE: ZoneKind = ZoneKind::Movable;

/// Why a reclaim ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It freed what it was asked for.
    Enough,
    /// Every list was looked at in full; there was no more to free.
    Exhausted,
    /// The calling thread reclaims already: a hook may not reclaim again.
    Nested,
    /// Too many threads reclaim at once; wait for one of them.
    Crowded,
}

/// What a reclaim did.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reclaimed {
    /// Base frames freed.
    pub freed: u64,
    /// Folios looked at.
    pub scanned: u64,
    /// Objects that shrinkers freed, as they said.
    pub objects: u64,
    /// Why it ended.
    pub stop: Stop,
    /// Why the caller should wait before it reclaims again.
    pub throttle: Option<Throttle>,
}

impl Reclaimed {
    /// Whether anything was freed. Objects may or may not have freed frames with them: worth another try.
    pub(super) fn any(&self) -> bool {
        self.freed > 0 || self.objects > 0
    }
}

impl<P: Evict> Mm<P> {
    /// Allocates frames, reclaiming others if too few are free, as far as the request allows. May call every hook of
    /// [`Evict`]; a request that may not reclaim directly calls [`Evict::wake_background`] at most.
    ///
    /// # Errors
    /// [`AllocError`] if memory is short and nothing more could be reclaimed.
    #[inline(always)]
    pub fn alloc(&self, request: Request) -> Result<Pages<'_, P>, AllocError> {
        self.allocator().alloc_with(request, self)
    }

    /// Frees up to `target` frames, from every group.
    pub fn reclaim(&self, target: u64) -> Reclaimed {
        self.reclaim_subtree(MemcgId::ROOT, target, ANY_ZONE)
    }

    /// Frees up to `target` frames of one node, from every group.
    pub fn reclaim_node(&self, node: NodeId, target: u64) -> Reclaimed {
        let mut progress = Progress::new(MemcgId::ROOT, ANY_ZONE, target);
        progress.node = Some(node.0.into());
        self.reclaim_with(progress)
    }

    /// Frees up to `target` frames that are charged to a group or below it.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn shrink_memcg(&self, memcg: MemcgId, target: u64) -> Result<Reclaimed, NoSuchGroup> {
        self.memcgs().usage(memcg).ok_or(NoSuchGroup(memcg))?;
        Ok(self.reclaim_subtree(memcg, target, ANY_ZONE))
    }

    /// Sets a group's limit in frames and reclaims until its usage fits, as far as that is possible.
    /// Returns the usage that is left above the limit.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id, or the root, which has no limit.
    pub fn shrink_memcg_to(&self, memcg: MemcgId, frames: u64) -> Result<u64, NoSuchGroup> {
        self.set_memcg_max(memcg, frames)?;
        for _ in 0..ROUNDS {
            let excess = self.memcg_usage(memcg)?.saturating_sub(frames);
            if excess == 0 || !self.reclaim_subtree(memcg, excess, ANY_ZONE).any() {
                break;
            }
        }
        Ok(self.memcg_usage(memcg)?.saturating_sub(frames))
    }

    /// Scans a subtree at rising priority until `target` frames of zones up to `highest` are free.
    pub(super) fn reclaim_subtree(
        &self,
        root: MemcgId,
        target: u64,
        highest: ZoneKind,
    ) -> Reclaimed {
        self.reclaim_with(Progress::new(root, highest, target))
    }

    fn reclaim_with(&self, mut progress: Progress) -> Reclaimed {
        let none = |stop| Reclaimed {
            freed: 0,
            scanned: 0,
            objects: 0,
            stop,
            throttle: None,
        };
        let _claim = match self.reclaimers.claim(P::task()) {
            Ok(claim) => claim,
            Err(NoClaim::Nested) => return none(Stop::Nested),
            Err(NoClaim::Full) => return none(Stop::Crowded),
        };
        // What waits in this CPU's batches is on no list yet.
        self.drain_lru_cpu(P::cpu());
        self.scan_subtree(&mut progress);
        if progress.freed > 0 {
            self.renew_efforts();
        }
        let stop = if progress.left() == 0 {
            Stop::Enough
        } else {
            Stop::Exhausted
        };
        Reclaimed {
            freed: progress.freed,
            scanned: progress.scanned,
            objects: progress.objects,
            stop,
            throttle: self.throttle(&progress),
        }
    }
}

impl<P: Evict> Mm<P> {
    /// Charges an object's bytes to a group, for memory on `node`, reclaiming from whichever group's limit is in the way.
    /// 0 bytes count as 1.
    ///
    /// # Errors
    /// [`ChargeError`], if nothing more could be reclaimed there; a node that is none counts as no such group.
    pub fn charge_bytes(
        &self,
        memcg: MemcgId,
        node: NodeId,
        bytes: u32,
    ) -> Result<ByteCharge<'_, P>, ChargeError> {
        let frames = u64::from(bytes).div_ceil(1 << P::PAGE_SHIFT);
        self.charge_reclaiming(memcg, frames, || {
            self.charge_bytes_or_full(memcg, node, bytes, Force::Within)
        })
        .map_err(|refusal| self.charge_error(memcg, refusal))
    }

    /// Attempts a charge of `frames`, reclaiming between attempts from the group that is full.
    fn charge_reclaiming<T>(
        &self,
        memcg: MemcgId,
        frames: u64,
        mut attempt: impl FnMut() -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut stall = None;
        for round in 0..=ROUNDS {
            let refusal = match attempt() {
                Ok(charged) => return Ok(charged),
                Err(refusal) => refusal,
            };
            if round == 0 {
                self.note_refusal(refusal);
            }
            let Refusal::Memcg(memcg::Refusal::Full(full)) = refusal else {
                return Err(refusal);
            };
            if round == ROUNDS {
                break;
            }
            let Some(full) = self.memcgs().id_of(full) else {
                continue; // it ends, and with it its limit
            };
            stall.get_or_insert_with(|| self.task_stalls(memcg));
            let cluster = self.memcgs().max(full).unwrap_or(0) >> SHARE_SHIFT;
            let target = cluster.min(CLUSTER).max(frames);
            let reclaimed = self.reclaim_subtree(full, target, ANY_ZONE);
            if let Some(reason) = reclaimed.throttle {
                P::throttle(reason);
            }
            match reclaimed.stop {
                Stop::Nested => break,
                Stop::Crowded => P::relax(),
                Stop::Enough | Stop::Exhausted if reclaimed.any() => {}
                Stop::Enough | Stop::Exhausted => {
                    self.count_memcg_event(full, Event::Oom);
                    if self.out_of_memory(Some(full)) == Oom::Fail {
                        break;
                    }
                }
            }
        }
        attempt()
    }
}

impl<'m, P: Evict> Pages<'m, P> {
    /// Charges the frames to a group, reclaiming from whichever group's limit is in the way.
    ///
    /// # Errors
    /// [`ChargeError`], together with the pages, if nothing more could be reclaimed there.
    pub fn charge_to(
        self,
        mm: &'m Mm<P>,
        memcg: MemcgId,
    ) -> Result<Folio<'m, P>, Refused<ChargeError, Self>> {
        let frames = self.order().frames();
        let mut pages = Some(self);
        let charged = mm.charge_reclaiming(memcg, frames, || {
            let attempted = pages.take().expect("each refusal gives them back");
            attempted
                .charge_or_full(mm, memcg, Force::Within)
                .map_err(|(refusal, back)| {
                    pages = Some(back);
                    refusal
                })
        });
        charged.map_err(|refusal| {
            let pages = pages.expect("each refusal gives them back");
            Refused(mm.charge_error(memcg, refusal), pages)
        })
    }
}
