//! The end of a group: its frames become its parent's.
//!
//! Owns: [`View::reparent`]. Invariants: lists and owner change hands under both lruvec locks, so that whoever holds
//! either and looked again sees both or neither. No frame is touched: the work is one splice per list and node.
//! Lock ranks: `LruVec` twice, child before parent. Used by: mm.

use super::View;
use crate::addr::NodeId;
use crate::memcg::Removal;
use crate::platform::{IrqOff, Platform};
use crate::sync::Lock;

impl<P: Platform> View<'_, P> {
    /// Gives every list and owner of a dying group to its parent.
    pub(crate) fn reparent(self, removal: &Removal, off: &IrqOff<P>) {
        for node in 0..self.memcgs.nodes() {
            let [child, parent] = [removal.child, removal.parent]
                .map(|slot| self.memcgs.lruvec_of(slot, node) as usize);
            let [Some(child), Some(parent)] = [child, parent].map(|index| self.lru.vecs.get(index))
            else {
                continue;
            };
            let (mut child, mut parent) = Lock::lock_pair(&child.0, &parent.0, off);
            parent.splice(self.frames, &mut child);
            let owner = |slot| self.memcgs.current_owner(slot, NodeId(node as u8));
            if let (Some(from), Some(to)) = (owner(removal.child), owner(removal.parent)) {
                self.memcgs.owners().forward(from, to);
            }
        }
    }
}
