//! How long a thread should wait before it reclaims again.
//!
//! Owns: [`Throttle`], and when there is a reason for it. Invariants: a value for the kernel to wait on: nothing here sleeps.
//! Reclaim itself takes at most 32 folios in hand a thread, and as many threads as there are claims, so that what is isolated is
//! bounded whether the kernel waits or not.
//! Lock ranks: none. Used by: entry, relief, oom, kernels.

use super::evict::Evict;
use super::scan::Progress;
use crate::lru::{Reach, most_isolated};
use crate::mm::Mm;

/// Why a thread should wait, and how long at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Throttle {
    /// Folios that reclaim waits for came round twice before they were written: until some are.
    Writeback,
    /// Other threads have more folios in hand than an eighth of those that are inactive: until they put some back.
    Isolated,
    /// Nothing was freed.
    NoProgress,
}

impl Throttle {
    /// The longest wait, as Linux has it (reclaim.md 3.7). A scheduler's tick may be longer: then one tick.
    #[must_use]
    pub const fn milliseconds(self) -> u32 {
        match self {
            Self::Writeback => 100,
            Self::Isolated => 20,
            Self::NoProgress => 1,
        }
    }
}

impl<P: Evict> Mm<P> {
    /// Why whoever made this progress should wait before it goes on; `None` if it got what it wanted.
    pub(super) fn throttle(&self, progress: &Progress) -> Option<Throttle> {
        if progress.left() == 0 {
            return None;
        }
        if progress.waits > 0 {
            return Some(Throttle::Writeback);
        }
        let nodes = (0..self.memcgs().nodes()).filter_map(|node| self.view().isolated(node));
        let isolated: u64 = nodes.flatten().sum();
        if isolated > most_isolated(progress.inactive, Reach::IoAndFiles) {
            return Some(Throttle::Isolated);
        }
        (progress.freed == 0).then_some(Throttle::NoProgress)
    }
}
