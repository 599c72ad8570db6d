//! The memory manager: every layer below, owned together, and the handles that callers hold.
//!
//! Owns: [`Mm`]; [`Folio`], a counted reference to charged frames; [`Isolated`], a folio off its list; `check()`.
//! Invariants: a frame is in one state at a time: free (in the allocator), [`Pages`], or a folio. A folio
//! is charged from `charge_to` until its last reference is dropped, and then leaves its list, its group and returns to the allocator, in that order.
//! Lock ranks: none of its own. Used by: kernels; reclaim adds what needs the eviction hooks.

mod account;
mod check;
mod config;
mod folio;
mod groups;
mod isolated;
mod limits;
#[cfg(all(test, loom))]
mod loom_tests;
mod moving;
mod objects;
mod reown;

use core::fmt;

use crate::addr::CpuId;
use crate::alloc::{AllocError, PageAllocator, Pages, Request};
use crate::boot::Memory;
use crate::frame::{FrameNo, FrameTable, Put};
use crate::list_lru::{self, ListLrus};
use crate::lru::{Lru, View};
use crate::memcg::Memcgs;
use crate::platform::{IrqOff, Platform};
use crate::shrinker::Shrinkers;
use crate::sync::Claims;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::zone::Block;

pub use account::StateChange;
pub use check::MmFault;
pub use config::{MmConfig, MmInitError};
pub(crate) use folio::Refusal;
pub use folio::{ChargeError, Folio, FolioView, LruError};
pub use groups::NoSuchGroup;
pub use isolated::Isolated;
pub use moving::{MoveError, Moving};

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
}

impl<P: Platform> Mm<P> {
    /// Takes over the memory, with metadata carved from it or from the storage that came with it.
    ///
    /// # Errors
    /// [`MmInitError`], together with the memory, of which nothing was used.
    pub fn new<'b, const N: usize>(
        memory: Memory<'b, P, N>,
        config: &MmConfig,
    ) -> Result<Self, (MmInitError, Memory<'b, P, N>)> {
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

    /// Completes every pending LRU move of every CPU.
    pub fn drain_lru(&self) {
        for cpu in 0..self.lru.cpus() {
            let off = IrqOff::new();
            let dead = self.view().drain(CpuId(cpu), &off);
            self.free_dead(&dead, &off);
        }
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

    #[inline]
    pub(crate) fn shrinkers(&self) -> &Shrinkers<P> {
        &self.shrinkers
    }

    #[inline]
    pub(crate) fn memcgs(&self) -> &Memcgs<P> {
        &self.memcgs
    }

    /// Drops one reference; frees the folio with the last.
    #[inline]
    fn put(&self, frame: FrameNo) {
        match self.frames.record(frame).put() {
            Put::Shared => {}
            Put::Last => self.free_dead(&[frame], &IrqOff::new()),
            Put::Refused => {
                self.refused_puts.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Frees frames without references: off their lists, out of their groups, back to the allocator.
    pub(crate) fn free_dead(&self, dead: &[FrameNo], off: &IrqOff<P>) {
        if dead.is_empty() {
            return;
        }
        self.view().remove_dead(dead, off);
        for &frame in dead {
            self.uncharge(frame, off);
        }
        self.alloc.free_blocks(
            dead.iter().map(|&frame| {
                Block::new(self.frames.pfn(frame), self.frames.record(frame).order())
            }),
        );
    }
}

impl<P: Platform> Mm<P> {
    /// Takes a dead frame out of its group's counts.
    fn uncharge(&self, frame: FrameNo, off: &IrqOff<P>) {
        let record = self.frames.record(frame);
        if let Some(owner) = record.owner() {
            self.view().leave_states(frame, off);
            record.set_owner(None);
            self.memcgs.uncharge(owner, record.order().frames(), off);
        }
    }
}

impl<P: Platform> fmt::Debug for Mm<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mm({:?}, {} memcgs)", self.alloc, self.memcg_count())
    }
}
