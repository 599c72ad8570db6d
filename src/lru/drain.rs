//! Draining everyone's batches, and turning batches off.
//!
//! Owns: [`DrainAll`], the generation by which callers of a full drain share one; the drain itself.
//! Invariants: the generation moves before the scan of the CPUs. A caller that queued something and then read generation g
//! is served by any scan that moved the generation on from g: that scan began after the reading. Moved after the scan, it
//! would tell a caller whose CPU the scan had passed already that it was served.
//! Lock ranks: `LruBatch`, one at a time. Scans that share are told apart by a claim, for which others wait a bounded while.
//! Used by: mm.

use super::View;
use super::batch::{Move, Switch};
use crate::addr::CpuId;
use crate::frame::FrameNo;
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::twin::left_out;

/// What callers of a full drain share.
#[derive(Debug)]
pub(super) struct DrainAll {
    /// Scans begun.
    generation: AtomicU64,
    /// One scan at a time.
    claimed: AtomicBool,
}

/// Looks at a claim that someone else has before a caller stops waiting for it.
const PATIENCE: u32 = 16;

/// Whether a drain that someone else began meanwhile will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Share {
    /// It will.
    Any,
    /// No: every CPU must be looked at after the call.
    None,
}

impl DrainAll {
    pub(super) fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            claimed: AtomicBool::new(false),
        }
    }
}

impl<P: Platform> View<'_, P> {
    /// Completes every move that any CPU queued before the call. `free` gets the frames that this killed, under no lock.
    pub(crate) fn drain_all(self, share: Share, mut free: impl FnMut(&[FrameNo], &IrqOff<P>)) {
        let all = &self.lru.drain_all;
        // Partner: the fence below. What the caller queued is there for any scan whose step of the generation this
        // reading does not see.
        fence(Ordering::SeqCst);
        let mine = all.generation.load(Ordering::Acquire);
        let claim = || {
            // Acquire pairs with the Release below: the last scan is complete.
            all.claimed
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
        };
        let mut claimed = claim().is_ok();
        for _ in 0..PATIENCE {
            if claimed {
                break;
            }
            P::relax();
            claimed = claim().is_ok();
        }
        if !claimed {
            // Scans do not disturb each other, so one of the caller's own will do; in an interrupt on top of the
            // claimant it is the only one that can.
            self.scan(&mut free);
            return;
        }
        let early = !left_out::<P>("drain-all: the generation moves before the scan");
        if share == Share::None || all.generation.load(Ordering::Relaxed) == mine {
            // Only the claimant writes it.
            let next = all.generation.load(Ordering::Relaxed).wrapping_add(1);
            if early {
                all.generation.store(next, Ordering::Release);
                fence(Ordering::SeqCst);
            }
            self.scan(&mut free);
            if !early {
                all.generation.store(next, Ordering::Release);
            }
        }
        all.claimed.store(false, Ordering::Release);
    }

    fn scan(self, free: &mut impl FnMut(&[FrameNo], &IrqOff<P>)) {
        for cpu in 0..self.lru.cpus() {
            self.drain_cpu(CpuId(cpu), free);
        }
    }

    /// Completes every move that one CPU queued before the call, whether it runs or not.
    pub(crate) fn drain_cpu(self, cpu: CpuId, free: &mut impl FnMut(&[FrameNo], &IrqOff<P>)) {
        if self.is_drained(cpu, &IrqOff::new()) {
            return;
        }
        for kind in Move::EACH {
            let off = IrqOff::new();
            let dead = self.drain(cpu, kind, &off);
            free(&dead, &off);
        }
    }

    /// Turns all batches off, or on again. When it returns from turning them off, nothing waits in any, and nothing will.
    pub(crate) fn switch_all(self, to: Switch, mut free: impl FnMut(&[FrameNo], &IrqOff<P>)) {
        for cpu in 0..self.lru.cpus() {
            // The switch is read under the batches' lock, so whoever saw batches on has queued by now, and this finds it.
            self.switch(CpuId(cpu), to, &IrqOff::new());
            if to == Switch::Off {
                self.drain_cpu(CpuId(cpu), &mut free);
            }
        }
    }
}
