//! What is asked for.
//!
//! Owns: [`Request`] and [`AllocError`]. Invariants: none. Lock ranks: none. Used by: alloc, and those who allocate.

use core::fmt;

use super::place::Sort;
use crate::addr::{NodeId, Order, ZoneKind};
use crate::pageset::ListId;
use crate::zone::Mobility;

/// A request for one block.
///
/// ```
/// use framekeeper::{Mobility, Order, Request, ZoneKind};
/// let for_a_device = Request::new(Order::ZERO).zone(ZoneKind::Dma32);
/// let for_a_process = Request::new(Order::ZERO).mobility(Mobility::Movable);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
#[must_use]
pub struct Request(u64);

/// From which nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Nodes {
    /// The CPU's, then the others by distance.
    Local,
    /// This one, then the others by distance from it.
    Prefer(NodeId),
    /// This one only.
    Only(NodeId),
}

// One word, so that the fast way touches no memory for it: the order and the pageset list stand where a `Place` has
// them, the rest where it has zone and frame.
const MOBILITY_AT: u32 = 0;
const HIGHEST_AT: u32 = 8;
/// Whether the highest zone was named, and does not follow from the mobility.
const NAMED: u64 = 1 << 15;
/// Whether the block is to be zero.
const ZEROED: u64 = 1 << 14;
const NODES_AT: u32 = 16;
const NODE_AT: u32 = 24;
const BYTE: u64 = 0xff;

impl Request {
    /// A block of `order`: unmovable, from any zone but Movable, from the CPU's node or the nearest that has one.
    #[inline]
    pub const fn new(order: Order) -> Self {
        let list = ListId::new(order, Mobility::Unmovable);
        Self(
            Sort::new(order, list).bits()
                | (Mobility::Unmovable as u64) << MOBILITY_AT
                | (ZoneKind::Normal as u64) << HIGHEST_AT,
        )
    }

    /// What may happen to its contents: unmovable, movable or reclaimable. Movable blocks may come from
    /// [`ZoneKind::Movable`] as well.
    #[inline]
    pub const fn mobility(self, mobility: Mobility) -> Self {
        let highest = match mobility {
            _ if self.0 & NAMED != 0 => self.highest(),
            Mobility::Movable => ZoneKind::Movable,
            _ => ZoneKind::Normal,
        };
        let sort = self.sort().with_mobility(mobility).bits();
        Self(sort | self.0 & Sort::REST & !BYTE | mobility as u64).with_highest(highest)
    }

    /// From this zone or a lower one.
    #[inline]
    pub const fn zone(self, highest: ZoneKind) -> Self {
        Self(self.with_highest(highest).0 | NAMED)
    }

    const fn with_highest(self, highest: ZoneKind) -> Self {
        let this = Self(self.0 & !(3 << HIGHEST_AT) | (highest as u64) << HIGHEST_AT);
        // What contradicts itself has no list: the fast way leaves it to the way that checks.
        let kind = match (highest, this.kind()) {
            (ZoneKind::Movable, kind) if !matches!(kind, Mobility::Movable) => Mobility::Isolate,
            (_, kind) => kind,
        };
        Self(this.sort().with_mobility(kind).bits() | this.0 & Sort::REST)
    }

    /// All bytes zero. The direct map must reach the memory.
    #[inline]
    pub const fn zeroed(self) -> Self {
        Self(self.0 | ZEROED)
    }

    /// Whether the block is to be zero.
    #[inline]
    pub(super) const fn is_zeroed(self) -> bool {
        self.0 & ZEROED != 0
    }

    /// From this node, or else from the nearest to it that has a block.
    #[inline]
    pub const fn node(self, node: NodeId) -> Self {
        self.with_nodes(1, node)
    }

    /// From this node or not at all.
    #[inline]
    pub const fn only_node(self, node: NodeId) -> Self {
        self.with_nodes(2, node)
    }

    const fn with_nodes(self, nodes: u64, node: NodeId) -> Self {
        let rest = self.0 & !(BYTE << NODES_AT | BYTE << NODE_AT);
        Self(rest | nodes << NODES_AT | (node.0 as u64) << NODE_AT)
    }

    /// The order asked for.
    #[must_use]
    pub fn order(self) -> Order {
        self.sort().order()
    }

    /// Order and list.
    #[inline]
    pub(super) const fn sort(self) -> Sort {
        Sort::from_bits(self.0)
    }

    /// The mobility asked for.
    #[inline]
    pub(super) const fn kind(self) -> Mobility {
        Mobility::ALL[(self.0 >> MOBILITY_AT & BYTE) as usize % Mobility::COUNT]
    }

    /// The highest zone that may serve.
    #[inline]
    pub(crate) const fn highest(self) -> ZoneKind {
        ZoneKind::ALL[(self.0 >> HIGHEST_AT) as usize % ZoneKind::ALL.len()]
    }

    /// The nodes that may serve.
    #[inline]
    pub(super) const fn nodes(self) -> Nodes {
        let node = NodeId((self.0 >> NODE_AT) as u8);
        match self.0 >> NODES_AT & BYTE {
            0 => Nodes::Local,
            1 => Nodes::Prefer(node),
            _ => Nodes::Only(node),
        }
    }

    /// Whether any node may serve, the CPU's first.
    #[inline]
    pub(super) const fn is_local(self) -> bool {
        self.0 >> NODES_AT & BYTE == 0
    }

    /// Whether pagesets of the CPU's first zone may serve it without more ado.
    pub(super) const fn is_plain(self) -> bool {
        self.is_local() && self.sort().is_cached() && !self.is_zeroed()
    }

    /// Whether its parts go together.
    pub(super) fn check(self) -> Result<(), AllocError> {
        let movable_zone = self.highest() == ZoneKind::Movable;
        if !self.kind().is_mergeable() || (movable_zone && self.kind() != Mobility::Movable) {
            return Err(AllocError::Contradiction);
        }
        Ok(())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("order", &self.order())
            .field("mobility", &self.kind())
            .field("highest", &self.highest())
            .field("nodes", &self.nodes())
            .finish()
    }
}

/// Why there is no block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocError {
    /// Unmovable contents in the Movable zone, or a mobility that is no request's.
    Contradiction,
    /// There is no such node.
    NoSuchNode(NodeId),
    /// No zone of the kinds and nodes asked for has memory.
    NoSuchZone(ZoneKind),
    /// No zone that may serve is long enough for the order.
    TooLarge(Order),
    /// Every block that was tried had been written to while it was free.
    Damaged,
    /// Nothing is free; the zone is the one that was asked first.
    OutOfMemory {
        /// Its node.
        node: NodeId,
        /// Its kind.
        zone: ZoneKind,
    },
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contradiction => {
                f.write_str("only movable contents may go to the Movable zone, and only the first three mobility types can be asked for")
            }
            Self::NoSuchNode(node) => write!(f, "there is no node {}", node.0),
            Self::NoSuchZone(kind) => write!(f, "no zone up to {kind} has memory on the nodes asked for"),
            Self::TooLarge(order) => write!(f, "no zone is long enough for a block of order {order}"),
            Self::Damaged => f.write_str("every block that was tried was written to while free"),
            Self::OutOfMemory { node, zone } => {
                write!(f, "node {} zone {zone} and those below it have no free block", node.0)
            }
        }
    }
}

impl core::error::Error for AllocError {}
