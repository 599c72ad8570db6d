//! Why a request was not served.
//!
//! Owns: [`AllocError`] and what it says. Invariants: counts are as they were before the request.
//! Lock ranks: none. Used by: alloc, and those who allocate.

use core::fmt;

use crate::addr::{NodeId, Order, ZoneKind};
use crate::zone::{Level, Mobility};

/// Why there is no block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocError {
    /// The request contradicts itself, whatever is free.
    Contradiction(Contradiction),
    /// There is no such node.
    NoSuchNode(NodeId),
    /// No zone of the kinds and nodes asked for has memory.
    NoSuchZone(ZoneKind),
    /// No zone that may serve is long enough for the order.
    TooLarge(Order),
    /// Every block that was tried had been written to while it was free.
    Damaged,
    /// Too little is free.
    OutOfMemory(Shortage),
}

/// What does not go together in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Contradiction {
    /// Contents that cannot move, from the Movable zone.
    Pinned,
    /// A mobility that is no request's: only the first three are.
    Mobility(Mobility),
    /// Two different zones were named as the highest.
    TwoZones,
    /// It must not fail, and may not reclaim.
    NoFail,
}

/// What was short, as the last attempt saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Node of the zone that was asked first.
    pub node: NodeId,
    /// Kind of that zone.
    pub zone: ZoneKind,
    /// What was asked for.
    pub order: Order,
    /// Frames free in the zone.
    pub free: u64,
    /// Its minimum.
    pub min: u64,
    /// What held the request back.
    pub cause: Cause,
}

/// What held a request back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// A watermark.
    Watermark {
        /// Which.
        level: Level,
        /// As many frames as the block must leave free beyond what only others may use: the level, less what the request's
        /// urgency makes its own, and what the zone keeps for requests that no higher zone can serve.
        kept: u64,
    },
    /// There are frames enough, but none together that make up the order.
    Fragmented,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contradiction(what) => what.fmt(f),
            Self::NoSuchNode(node) => write!(f, "there is no node {}", node.0),
            Self::NoSuchZone(kind) => {
                write!(
                    f,
                    "no zone up to {kind} has memory on the nodes asked for: name others"
                )
            }
            Self::TooLarge(order) => {
                write!(
                    f,
                    "no zone is long enough for a block of order {order}: ask for less"
                )
            }
            Self::Damaged => f.write_str("every block that was tried was written to while free"),
            Self::OutOfMemory(shortage) => shortage.fmt(f),
        }
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned => f.write_str("only movable contents may go to the Movable zone"),
            Self::Mobility(kind) => {
                write!(
                    f,
                    "{kind} is no request's mobility: ask for unmovable, movable or reclaimable"
                )
            }
            Self::TwoZones => f.write_str("two highest zones are named: name the lower one only"),
            Self::NoFail => {
                f.write_str("a request that must not fail must be allowed to reclaim directly")
            }
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node,
            zone,
            order,
            free,
            min,
            ..
        } = self;
        write!(
            f,
            "node {} zone {zone}, and those after it: {free} frames free, minimum {min}; ",
            node.0
        )?;
        match self.cause {
            Cause::Watermark { level, kept } => write!(
                f,
                "a block of order {order} must leave more than {kept} ({level:?}): free memory, reclaim, or ask more urgently"
            ),
            Cause::Fragmented => write!(f, "no block of order {order}: compact or ask for less"),
        }
    }
}

impl core::error::Error for AllocError {}
