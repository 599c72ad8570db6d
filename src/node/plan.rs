//! Which zones the memory makes.
//!
//! Owns: the rule that assigns each frame to a zone: movable ranges first, then the address limits.
//! Invariants: a frame is in exactly one piece; pieces of a map come in ascending order.
//! Lock ranks: none. Used by: [`Nodes`](super::Nodes), at construction.

use arrayvec::ArrayVec;

use super::MAX_NODES;
use crate::addr::{FrameRange, NodeId, Pfn, PhysAddr, ZoneKind};
use crate::boot::BootMap;

/// How memory is cut into zones.
#[derive(Clone, Debug)]
pub struct ZoneLimits {
    /// End of the DMA zone; 0 for none.
    pub dma: PhysAddr,
    /// End of the DMA32 zone; 0 for none.
    pub dma32: PhysAddr,
    /// Ranges that hold only what can be migrated, wherever they lie.
    pub movable: ArrayVec<FrameRange, 8>,
}

impl Default for ZoneLimits {
    /// Linux's on x86-64: 16 MiB, 4 GiB, nothing movable.
    fn default() -> Self {
        Self {
            dma: PhysAddr(16 << 20),
            dma32: PhysAddr(4 << 30),
            movable: ArrayVec::new(),
        }
    }
}

/// A run of frames of one zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) node: NodeId,
    pub(crate) kind: ZoneKind,
    pub(crate) frames: FrameRange,
}

impl ZoneLimits {
    /// One zone's worth from the start of `frames`, and its kind.
    fn first(&self, frames: FrameRange, page_shift: u32) -> (ZoneKind, FrameRange) {
        let start = frames.start();
        let mut end = frames.end();
        let mut cut = |at: Pfn| {
            if at > start && at < end {
                end = at;
            }
        };
        let (dma, dma32) = (self.dma.pfn(page_shift), self.dma32.pfn(page_shift));
        cut(dma);
        cut(dma32);
        for range in &self.movable {
            cut(range.start());
            cut(range.end());
        }
        let kind = if self.movable.iter().any(|range| range.contains(start)) {
            ZoneKind::Movable
        } else if start < dma {
            ZoneKind::Dma
        } else if start < dma32 {
            ZoneKind::Dma32
        } else {
            ZoneKind::Normal
        };
        (kind, FrameRange::new(start, end))
    }

    /// Cuts frames of one node at every zone boundary.
    pub(crate) fn cut(
        &self,
        (node, frames): (NodeId, FrameRange),
        page_shift: u32,
    ) -> impl Iterator<Item = Piece> {
        let mut rest = frames;
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (kind, frames) = self.first(rest, page_shift);
            rest = FrameRange::new(frames.end(), rest.end());
            Some(Piece { node, kind, frames })
        })
    }

    /// Every frame that exists.
    pub(crate) fn pieces<const N: usize>(
        &self,
        map: &BootMap<N>,
        page_shift: u32,
    ) -> impl Iterator<Item = Piece> {
        map.usable_frames(page_shift)
            .flat_map(move |run| self.cut(run, page_shift))
    }

    /// The zones that have frames, by node and then kind, each with its span.
    pub(crate) fn zones<const N: usize>(
        &self,
        map: &BootMap<N>,
        page_shift: u32,
    ) -> impl Iterator<Item = Piece> {
        let all = (0..MAX_NODES as u8).flat_map(|node| ZoneKind::ALL.map(|kind| (node, kind)));
        all.filter_map(move |(node, kind)| {
            let node = NodeId(node);
            let mut of_zone = self
                .pieces(map, page_shift)
                .filter(|piece| (piece.node, piece.kind) == (node, kind))
                .map(|piece| piece.frames);
            let first = of_zone.next()?;
            let last = of_zone.last().unwrap_or(first);
            let frames = FrameRange::new(first.start(), last.end());
            Some(Piece { node, kind, frames })
        })
    }
}
