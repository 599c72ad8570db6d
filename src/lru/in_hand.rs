//! How many frames are off their lists, in isolators' hands.
//!
//! Owns: [`InHand`], a node's counts of isolated frames (`NR_ISOLATED_ANON` and `_FILE`); how many reclaim may take
//! ([`most_isolated`]).
//! Invariants: a frame is counted from its isolation until it is linked again or freed, as what it was when it was isolated: its
//! flags say which, so that `check()` can recount. A frame stays on its node, so its end is counted where its beginning was.
//! Lock ranks: none; lone atomics, changed once for the frames of one call. Used by: isolate, mm (check), reclaim.

use super::View;
use crate::boot::{Bump, StorageFull};
use crate::frame::Flags;
use crate::memcg::LruVecIndex;
use crate::platform::Platform;
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Base frames isolated: anonymous, and listed with files.
type Counts = [AtomicU64; 2];

/// Every node's counts.
#[derive(Debug)]
pub(super) struct InHand(&'static [CachePadded<Counts>]);

impl InHand {
    pub(super) fn build(bump: &mut Bump<'_>, nodes: u32) -> Result<Self, StorageFull> {
        let none = |_| CachePadded([AtomicU64::new(0), AtomicU64::new(0)]);
        Ok(Self(bump.slots(nodes as usize, none)?))
    }
}

/// Which way frames go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hands {
    Taken,
    Given,
}

/// Frames that went one way in one call; counted when it is dropped, once for each run of one node.
pub(super) struct Tally<'a, P: Platform> {
    view: View<'a, P>,
    way: Hands,
    node: usize,
    frames: [u64; 2],
}

impl<'a, P: Platform> View<'a, P> {
    pub(super) fn tally(self, way: Hands) -> Tally<'a, P> {
        Tally {
            view: self,
            way,
            node: 0,
            frames: [0; 2],
        }
    }

    /// Base frames of a node that are isolated now: anonymous, and listed with files.
    pub(crate) fn isolated(self, node: u32) -> Option<[u64; 2]> {
        // Relaxed: lone counts, exact at rest.
        let counts = self.lru.in_hand.0.get(node as usize)?;
        Some(counts.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }
}

impl<P: Platform> Tally<'_, P> {
    /// Counts frames of an lruvec; nothing if `isolated` does not say that they are.
    #[inline]
    pub(super) fn add(&mut self, lruvec: LruVecIndex, isolated: Flags, frames: u64) {
        let backing = if isolated.contains(Flags::ISOLATED_FILE) {
            1
        } else if isolated.contains(Flags::ISOLATED_ANON) {
            0
        } else {
            return;
        };
        let node = (lruvec % self.view.memcgs.nodes()) as usize;
        if node != self.node {
            self.flush();
            self.node = node;
        }
        self.frames[backing] += frames;
    }

    fn flush(&mut self) {
        let Some(counts) = self.view.lru.in_hand.0.get(self.node) else {
            return;
        };
        for (count, frames) in counts.iter().zip(&mut self.frames) {
            let frames = core::mem::take(frames);
            if frames == 0 {
                continue;
            }
            // A frame is given only after it was taken, by whoever took it or was handed it: never below 0.
            match self.way {
                Hands::Taken => count.fetch_add(frames, Ordering::Relaxed),
                Hands::Given => count.fetch_sub(frames, Ordering::Relaxed),
            };
        }
    }
}

impl<P: Platform> Drop for Tally<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.flush();
    }
}

/// What a reclaimer may do to make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Write, and call file systems: others wait for such a one less than it for them.
    IoAndFiles,
    /// Less: it may hold what the others wait for, so it is let through first.
    Less,
}

/// The most base frames that may be isolated beside `inactive` ones on lists before a reclaimer waits; background reclaim never
/// does (reclaim.md 3.4).
#[must_use]
pub const fn most_isolated(inactive: u64, reach: Reach) -> u64 {
    match reach {
        Reach::IoAndFiles => inactive >> 3,
        Reach::Less => inactive,
    }
}
