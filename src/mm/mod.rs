//! The memory manager: every layer below, owned together, and the handles that callers hold.
//!
//! Owns: [`Mm`]; [`Folio`], a counted reference to charged frames; [`Isolated`], a folio off its list; `check()`.
//! Invariants: a frame is in one state at a time: free (in the allocator), [`Pages`], or a folio. A folio
//! is charged from `charge_to` until its last reference is dropped, and then leaves its list, its group and returns to the allocator, in that order.
//! Lock ranks: none of its own. Used by: kernels; reclaim adds what needs the eviction hooks.

mod account;
mod batches;
mod bytes;
mod check;
mod config;
mod cpus;
mod efforts;
mod folio;
mod groups;
mod isolated;
mod limits;
#[cfg(all(test, loom))]
mod loom_tests;
mod migrate;
mod moves;
mod moving;
mod objects;
mod pressure;
mod release;
mod reown;
mod scanners;
mod shadow_nodes;
mod split;
mod stat;

use core::fmt;

use crate::addr::NodeId;
use crate::alloc::{AllocError, PageAllocator, Pages, Request};
use crate::boot::{Memory, Refused};
use crate::frame::FrameTable;
use crate::list_lru::{self, ListLrus};
use crate::lru::{Lru, Policy, View};
use crate::memcg::Memcgs;
use crate::platform::Platform;
use crate::shrinker::Shrinkers;
use crate::sync::Claims;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use account::StateChange;
pub use batches::BatchesOff;
pub use bytes::ByteCharge;
pub use check::MmFault;
pub use config::{MmConfig, MmInitError};
pub(crate) use efforts::Effort;
pub(crate) use folio::Refusal;
pub use folio::{ChargeError, Folio, FolioView};
pub use groups::NoSuchGroup;
pub use isolated::Isolated;
pub(crate) use migrate::Frozen;
pub use moves::LruError;
pub use moving::{MoveError, Moving};
pub use pressure::Task;
pub(crate) use scanners::{Scan, Scanners};
pub use shadow_nodes::{ShadowIndex, ShadowNodes, TakenOut};
pub use split::{Split, SplitError, SplitIsolated};
pub use stat::LruStat;

/// A memory manager over one machine's (or guest's) memory. Many may live side by side.
pub struct Mm<P: Platform> {
    alloc: PageAllocator<P>,
    frames: FrameTable,
    memcgs: Memcgs<P>,
    lru: Lru<P>,
    shrinkers: Shrinkers<P>,
    list_lrus: ListLrus<P>,
    /// Puts of references that nobody held; each leaked its frame. 0 in a correct kernel.
    refused_puts: AtomicU64,
    /// Number of the frame at which the next look for frames of dead groups begins; only a hint.
    reown_from: AtomicU32,
    /// Who reclaims now; see reclaim.
    pub(crate) reclaimers: Claims,
    /// Who has somebody killed now: one at a time.
    pub(crate) killers: Claims,
    /// Where compaction is, by zone; see reclaim.
    pub(crate) scanners: &'static [Scanners],
    /// How background reclaim fared, by node; see reclaim.
    efforts: &'static [Effort],
    /// As configured.
    swappiness: u8,
}

impl<P: Platform> Mm<P> {
    /// Takes over the memory, with metadata carved from it or from the storage that came with it.
    ///
    /// # Errors
    /// [`MmInitError`], together with the memory, of which nothing was used.
    pub fn new<'b, const N: usize>(
        memory: Memory<'b, P, N>,
        config: &MmConfig,
    ) -> Result<Self, Refused<MmInitError, Memory<'b, P, N>>> {
        let (mm, map) = memory.build(|bump, map| Self::build(bump, map, config))?;
        mm.alloc.populate(map);
        Ok(mm)
    }

    /// Allocates frames that are free now; never reclaims.
    ///
    /// # Errors
    /// [`AllocError`] says what was short.
    pub fn try_alloc(&self, request: Request) -> Result<Pages<'_, P>, AllocError> {
        self.alloc.try_alloc(request)
    }

    /// The page allocator.
    #[must_use]
    pub fn allocator(&self) -> &PageAllocator<P> {
        &self.alloc
    }

    /// Puts of references that nobody held. Each was refused and its frame leaked; 0 in a correct kernel.
    #[must_use]
    pub fn refused_puts(&self) -> u64 {
        self.refused_puts.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn view(&self) -> View<'_, P> {
        View {
            frames: &self.frames,
            memcgs: &self.memcgs,
            lru: &self.lru,
        }
    }

    #[inline]
    fn lists(&self) -> list_lru::View<'_, P> {
        list_lru::View {
            memcgs: &self.memcgs,
            shrinkers: &self.shrinkers,
            lists: &self.list_lrus,
        }
    }

    /// How background reclaim of a node fared lately.
    pub(crate) fn effort(&self, node: NodeId) -> Option<&Effort> {
        self.efforts.get(usize::from(node.0))
    }

    /// Something was reclaimed: background reclaim is worth another try.
    pub(crate) fn renew_efforts(&self) {
        self.efforts.iter().for_each(Effort::renew);
    }

    pub(crate) fn swappiness(&self) -> u64 {
        self.swappiness.into()
    }

    /// Which folios go first, as configured.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.lru.policy
    }

    #[inline]
    pub(crate) fn shrinkers(&self) -> &Shrinkers<P> {
        &self.shrinkers
    }

    #[inline]
    pub(crate) fn memcgs(&self) -> &Memcgs<P> {
        &self.memcgs
    }
}

impl<P: Platform> fmt::Debug for Mm<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mm({:?}, {} memcgs)", self.alloc, self.memcg_count())
    }
}
