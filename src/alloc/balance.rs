//! Whether a node has enough free memory, and who is to be told if not.
//!
//! Owns: the tests of background reclaim; its wake-up. Invariants: a node is balanced or not by exact sums: a counter that
//! lags never hides a shortage. Lock ranks: none. Used by: the slow path; reclaim (background).

use super::relief::{Need, Relief};
use super::request::Reclaim;
use super::{PageAllocator, Request};
use crate::addr::{NodeId, Order, ZoneKind};
use crate::node::NodeZone;
use crate::platform::{IrqOff, Platform};
use crate::zone::{Access, Level, Zone};

/// By how much each zone of a node was boosted at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Boosts([u64; ZoneKind::ALL.len()]);

impl Boosts {
    /// Frames of all zones.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl<P: Platform> PageAllocator<P> {
    /// Nodes that have zones, in order of their ids.
    pub fn memory_nodes(&self) -> impl Iterator<Item = NodeId> + use<P> {
        let zones = self.nodes.zones();
        let first = |i: usize| i == 0 || zones[i - 1].node != zones[i].node;
        (0..zones.len())
            .filter(move |&i| first(i))
            .map(|i| zones[i].node)
    }

    /// Whether some zone of the node, up to `highest`, can give a block of `order` and stay above its high watermark, boost
    /// included, or no such zone has memory. Exact.
    #[must_use]
    pub fn is_balanced(&self, node: NodeId, order: Order, highest: ZoneKind) -> bool {
        let mut zones = self.managed_zones(node, highest).peekable();
        zones.peek().is_none() || zones.any(|zone| is_zone_balanced(zone, order, highest))
    }

    /// The boosts of a node's zones, up to `highest`.
    #[must_use]
    pub fn boosts(&self, node: NodeId, highest: ZoneKind) -> Boosts {
        let mut boosts = Boosts::default();
        for zone in self.managed_zones(node, highest) {
            boosts.0[zone.kind as usize] = zone.zone.boost();
        }
        boosts
    }

    /// Takes boosts back that reclaim made good. What was added since they were read stays.
    pub fn lower_boosts(&self, node: NodeId, seen: &Boosts) {
        for zone in self.managed_zones(node, ZoneKind::Movable) {
            zone.zone.lower_boost(seen.0[zone.kind as usize]);
        }
    }

    /// The zones of a node that have memory, up to `highest`.
    pub(crate) fn zones_up_to(
        &self,
        node: NodeId,
        highest: ZoneKind,
    ) -> impl Iterator<Item = &'static Zone<P>> + use<P> {
        self.managed_zones(node, highest).map(|entry| &entry.zone)
    }

    fn managed_zones(
        &self,
        node: NodeId,
        highest: ZoneKind,
    ) -> impl Iterator<Item = &'static NodeZone<P>> + use<P> {
        let of_node = move |zone: &&NodeZone<P>| zone.node == node && zone.kind <= highest;
        let zones = self.nodes.zones().iter().filter(of_node);
        zones.filter(|zone| zone.zone.managed() > 0)
    }

    /// Wakes the background of each node that may serve the request and is short, or boosted.
    pub(super) fn wake_for(&self, request: Request, relief: &dyn Relief) {
        if request.reclaims() == Reclaim::None {
            return;
        }
        let cpu = IrqOff::<P>::new().cpu();
        let Ok(zones) = self.zones_for(request, cpu) else {
            return;
        };
        let mut last = None;
        for zone in zones {
            let node = self.nodes.zones()[usize::from(zone)].node;
            // A list names the zones of a node together.
            if last.replace(node) != Some(node) {
                let (order, highest) = (request.order(), request.highest());
                let boosted = self.boosts(node, highest).total() > 0;
                if boosted || !self.is_balanced(node, order, highest) {
                    relief.wake_background(&Need {
                        node,
                        highest,
                        order,
                    });
                }
            }
        }
    }

    /// Wakes the background of a zone whose boost was raised since this was last asked: kinds began to mix there.
    pub(super) fn wake_for_boost(&self, zone: u8, request: Request, relief: &dyn Relief) {
        let entry = &self.nodes.zones()[usize::from(zone)];
        if request.reclaims() != Reclaim::None && entry.zone.take_boosted() {
            relief.wake_background(&Need {
                node: entry.node,
                highest: entry.kind,
                order: Order::ZERO,
            });
        }
    }
}

fn is_zone_balanced<P: Platform>(entry: &NodeZone<P>, order: Order, highest: ZoneKind) -> bool {
    let zone = &entry.zone;
    let (mark, reserve) = (zone.mark(Level::High), entry.reserve(highest));
    zone.suffices(
        order,
        mark,
        reserve,
        Access::empty(),
        zone.free_frames_exact(),
    )
}
