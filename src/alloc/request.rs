//! What is asked for.
//!
//! Owns: [`Request`] and [`AllocError`]. Invariants: none. Lock ranks: none. Used by: alloc, and those who allocate.

use core::fmt;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Request {
    pub(super) order: Order,
    pub(super) mobility: Mobility,
    /// The pageset list of blocks of this order and mobility.
    pub(super) list: ListId,
    /// The highest zone that may serve.
    pub(super) highest: ZoneKind,
    /// Whether `highest` was named, and does not follow from the mobility.
    named: bool,
    pub(super) nodes: Nodes,
}

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

impl Request {
    /// A block of `order`: unmovable, from any zone but Movable, from the CPU's node or the nearest that has one.
    #[inline]
    pub const fn new(order: Order) -> Self {
        Self {
            order,
            mobility: Mobility::Unmovable,
            list: ListId::new(order, Mobility::Unmovable),
            highest: ZoneKind::Normal,
            named: false,
            nodes: Nodes::Local,
        }
    }

    /// What may happen to its contents: unmovable, movable or reclaimable. Movable blocks may come from
    /// [`ZoneKind::Movable`] as well.
    #[inline]
    pub const fn mobility(self, mobility: Mobility) -> Self {
        let highest = match mobility {
            _ if self.named => self.highest,
            Mobility::Movable => ZoneKind::Movable,
            _ => ZoneKind::Normal,
        };
        Self {
            mobility,
            list: ListId::new(self.order, mobility),
            highest,
            ..self
        }
    }

    /// From this zone or a lower one.
    #[inline]
    pub const fn zone(self, highest: ZoneKind) -> Self {
        Self {
            highest,
            named: true,
            ..self
        }
    }

    /// From this node, or else from the nearest to it that has a block.
    #[inline]
    pub const fn node(self, node: NodeId) -> Self {
        Self {
            nodes: Nodes::Prefer(node),
            ..self
        }
    }

    /// From this node or not at all.
    #[inline]
    pub const fn only_node(self, node: NodeId) -> Self {
        Self {
            nodes: Nodes::Only(node),
            ..self
        }
    }

    /// The order asked for.
    #[must_use]
    pub const fn order(self) -> Order {
        self.order
    }

    /// Whether its parts go together.
    pub(super) fn check(self) -> Result<(), AllocError> {
        let movable_zone = self.highest == ZoneKind::Movable;
        if !self.mobility.is_mergeable() || (movable_zone && self.mobility != Mobility::Movable) {
            return Err(AllocError::Contradiction);
        }
        Ok(())
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
            Self::OutOfMemory { node, zone } => {
                write!(f, "node {} zone {zone} and those below it have no free block", node.0)
            }
        }
    }
}

impl core::error::Error for AllocError {}
