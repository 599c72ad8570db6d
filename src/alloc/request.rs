//! What is asked for.
//!
//! Owns: [`Request`], one word. Invariants: a request that contradicts itself has no pageset list, so the fast way leaves
//! it to the way that checks. Lock ranks: none. Used by: alloc, and those who allocate.

use core::fmt;

use super::error::{AllocError, Contradiction};
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
/// let in_an_interrupt = Request::new(Order::ZERO).atomic();
/// ```
///
/// | Linux | here |
/// | --- | --- |
/// | `GFP_KERNEL` | [`new`](Self::new) |
/// | `GFP_HIGHUSER_MOVABLE` | [`mobility`](Self::mobility)`(Movable)` |
/// | `GFP_NOWAIT` | [`reclaim`](Self::reclaim)`(Reclaim::Background)` |
/// | `GFP_ATOMIC` | [`atomic`](Self::atomic) |
/// | `__GFP_HIGH` | [`urgent`](Self::urgent) |
/// | `__GFP_MEMALLOC`, `__GFP_NOMEMALLOC` | [`ignore_watermarks`](Self::ignore_watermarks), [`keep_reserves`](Self::keep_reserves) |
/// | `__GFP_NORETRY`, `__GFP_RETRY_MAYFAIL`, `__GFP_NOFAIL` | [`no_retry`](Self::no_retry), [`retry_hard`](Self::retry_hard), [`no_fail`](Self::no_fail) |
/// | `__GFP_THISNODE` | [`only_node`](Self::only_node) |
/// | `__GFP_DMA`, `__GFP_DMA32` | [`zone`](Self::zone) |
/// | `__GFP_ZERO` | [`zeroed`](Self::zeroed) |
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

/// Whose time a request may take when little is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reclaim {
    /// The caller's own: it may sleep in reclaim.
    #[default]
    Direct,
    /// The background's: the caller cannot sleep.
    Background,
    /// Nobody's.
    None,
}

/// How long a request goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Persistence {
    /// As long as reclaim makes progress; large blocks only once.
    Usual,
    /// One round, and no out-of-memory hook.
    Once,
    /// Large blocks too as long as there is progress, and no out-of-memory hook.
    Hard,
    /// Until the out-of-memory hook says otherwise, or has said often enough that it will help.
    NoFail,
}

// One word, so that the fast way touches no memory for it: the order and the pageset list stand where a `Place` has
// them, the rest where it has zone and frame.
const MOBILITY_AT: u32 = 0;
const HIGHEST_AT: u32 = 8;
/// Whether the highest zone was named, and does not follow from the mobility.
const NAMED: u64 = 1 << 15;
/// Whether the block is to be zero.
const ZEROED: u64 = 1 << 14;
/// Whether two different zones were named.
const TWO_ZONES: u64 = 1 << 13;
const NODES_AT: u32 = 16;
const NODE_AT: u32 = 24;
const BYTE: u64 = 0xff;
const RECLAIM_AT: u32 = 32;
const URGENT: u64 = 1 << 34;
const IGNORES_MARKS: u64 = 1 << 35;
const KEEPS_RESERVES: u64 = 1 << 36;
const PERSISTENCE_AT: u32 = 37;
const TWO_BITS: u64 = 3;

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
        Self(self.0 & !BYTE | mobility as u64).with_highest(highest)
    }

    /// From this zone or a lower one. Two different ones contradict each other.
    #[inline]
    pub const fn zone(self, highest: ZoneKind) -> Self {
        let differs = self.0 & NAMED != 0 && self.highest() as u8 != highest as u8;
        let two = if differs { TWO_ZONES } else { 0 };
        Self(self.0 | NAMED | two).with_highest(highest)
    }

    const fn with_highest(self, highest: ZoneKind) -> Self {
        Self(self.0 & !(TWO_BITS << HIGHEST_AT) | (highest as u64) << HIGHEST_AT).relisted()
    }

    /// With the list of its mobility. What contradicts itself has none: the fast way leaves it to the way that checks.
    const fn relisted(self) -> Self {
        let list = match self.contradiction() {
            Some(_) => Mobility::Isolate,
            None => self.kind(),
        };
        Self(self.sort().with_mobility(list).bits() | self.0 & Sort::REST)
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

    /// Whose time it may take when little is free. Default: the caller's, in calls that reclaim;
    /// [`try_alloc`](super::PageAllocator::try_alloc) never does.
    ///
    /// A request that cannot wait may use the blocks that are kept for urgent requests, when nothing else is left.
    #[inline]
    pub const fn reclaim(self, reclaim: Reclaim) -> Self {
        Self(self.0 & !(TWO_BITS << RECLAIM_AT) | (reclaim as u64) << RECLAIM_AT).relisted()
    }

    /// Half of the minimum that ordinary requests leave is this one's to use.
    #[inline]
    pub const fn urgent(self) -> Self {
        Self(self.0 | URGENT)
    }

    /// It is urgent and cannot wait: five eighths of the minimum are its own, and blocks of orders above 0 are kept ready
    /// for its like. The background is woken.
    #[inline]
    pub const fn atomic(self) -> Self {
        self.urgent().reclaim(Reclaim::Background)
    }

    /// No watermark holds it back: the last free frame will do. For those who free more than they take, and soon; whoever
    /// takes all so leaves nothing for them.
    #[inline]
    pub const fn ignore_watermarks(self) -> Self {
        Self(self.0 | IGNORES_MARKS)
    }

    /// Watermarks hold, whoever asks. Overrides [`ignore_watermarks`](Self::ignore_watermarks), and what those who reclaim
    /// are granted.
    #[inline]
    pub const fn keep_reserves(self) -> Self {
        Self(self.0 | KEEPS_RESERVES)
    }

    /// One round of reclaim and compaction at most, and no out-of-memory hook. The last of this,
    /// [`retry_hard`](Self::retry_hard) and [`no_fail`](Self::no_fail) counts.
    #[inline]
    pub const fn no_retry(self) -> Self {
        self.with_persistence(Persistence::Once)
    }

    /// Goes on as long as something is reclaimed, orders above 3 too, but does not call the out-of-memory hook.
    #[inline]
    pub const fn retry_hard(self) -> Self {
        self.with_persistence(Persistence::Hard)
    }

    /// Fails only when the out-of-memory hook lets it, or promised memory sixteen times and none came. What to do then is
    /// the port's decision. Must be allowed to reclaim directly.
    #[inline]
    pub const fn no_fail(self) -> Self {
        self.with_persistence(Persistence::NoFail)
    }

    const fn with_persistence(self, persistence: Persistence) -> Self {
        let rest = self.0 & !(TWO_BITS << PERSISTENCE_AT);
        Self(rest | (persistence as u64) << PERSISTENCE_AT).relisted()
    }

    /// Whose time it may take.
    pub(super) const fn reclaims(self) -> Reclaim {
        match self.0 >> RECLAIM_AT & TWO_BITS {
            0 => Reclaim::Direct,
            1 => Reclaim::Background,
            _ => Reclaim::None,
        }
    }

    /// How long it goes on.
    pub(super) const fn persistence(self) -> Persistence {
        match self.0 >> PERSISTENCE_AT & TWO_BITS {
            0 => Persistence::Usual,
            1 => Persistence::Once,
            2 => Persistence::Hard,
            _ => Persistence::NoFail,
        }
    }

    /// Whether half of the minimum is its own.
    pub(super) const fn is_urgent(self) -> bool {
        self.0 & URGENT != 0
    }

    /// Whether watermarks do not hold it back.
    pub(super) const fn ignores_watermarks(self) -> bool {
        self.0 & (IGNORES_MARKS | KEEPS_RESERVES) == IGNORES_MARKS
    }

    /// Whether watermarks hold whoever asks.
    pub(super) const fn keeps_reserves(self) -> bool {
        self.0 & KEEPS_RESERVES != 0
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
        match self.contradiction() {
            Some(what) => Err(AllocError::Contradiction(what)),
            None => Ok(()),
        }
    }

    const fn contradiction(self) -> Option<Contradiction> {
        let pinned = !matches!(self.kind(), Mobility::Movable);
        if !self.kind().is_mergeable() {
            Some(Contradiction::Mobility(self.kind()))
        } else if self.0 & TWO_ZONES != 0 {
            Some(Contradiction::TwoZones)
        } else if matches!(self.highest(), ZoneKind::Movable) && pinned {
            Some(Contradiction::Pinned)
        } else if matches!(self.persistence(), Persistence::NoFail)
            && !matches!(self.reclaims(), Reclaim::Direct)
        {
            Some(Contradiction::NoFail)
        } else {
            None
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("order", &self.order())
            .field("mobility", &self.kind())
            .field("highest", &self.highest())
            .field("nodes", &self.nodes())
            .field("reclaim", &self.reclaims())
            .field("persistence", &self.persistence())
            .field("urgent", &self.is_urgent())
            .field("ignores_watermarks", &self.ignores_watermarks())
            .finish()
    }
}
