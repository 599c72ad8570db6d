//! Recounting the lists from scratch.
//!
//! Owns: [`View::recount`]. Invariants: checked, not held: lengths equal walks, links name their list and resolve to their sub-list, dead
//! sub-lists are empty, totals equal sums.
//! Lock ranks: `ListLru`, one at a time. Used by: mm (`check`), at rest.

use super::{State, View};
use crate::memcg::OwnerIndex;
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering;

/// A list whose numbers and links disagree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// Index of the list.
    pub(crate) list: u32,
    /// Slot of the group; `None` if a node's total is wrong.
    pub(crate) memcg: Option<u32>,
    pub(crate) node: u32,
    /// Objects that belong there, by a walk.
    pub(crate) counted: u64,
    pub(crate) stated: u64,
}

impl<P: Platform> View<'_, P> {
    /// Recounts every sub-list and total.
    pub(crate) fn recount(self) -> Result<(), Fault> {
        let nodes = self.memcgs.nodes();
        for (index, list) in (0..).zip(self.lists.lists) {
            for node in 0..nodes {
                let mut sum = 0;
                for memcg in 0..self.memcgs.slots() {
                    let lruvec = self.memcgs.lruvec_of(memcg, node);
                    let Some(slot) = list.slot(lruvec) else {
                        continue;
                    };
                    let belongs = |owner| self.memcgs.owners().resolve(owner) == Some(lruvec);
                    let counted = self.objects(index, lruvec, belongs);
                    let all = self.objects(index, lruvec, |_| true);
                    let off = IrqOff::new();
                    let dead = slot.list.lock(&off).state == State::Dead;
                    let (stated, sum_here) = (slot.len(), counted);
                    if counted != stated || all != stated || (dead && all > 0) {
                        return Err(Fault {
                            list: index,
                            memcg: Some(memcg),
                            node,
                            counted,
                            stated,
                        });
                    }
                    sum += sum_here;
                }
                let total = list
                    .total(node)
                    .map_or(0, |total| total.load(Ordering::Relaxed));
                if total != sum {
                    return Err(Fault {
                        list: index,
                        memcg: None,
                        node,
                        counted: sum,
                        stated: total,
                    });
                }
            }
        }
        Ok(())
    }

    /// Objects on any list that name `owner`.
    pub(crate) fn owned_by(self, owner: OwnerIndex) -> u64 {
        let lruvecs = self.memcgs.slots() * self.memcgs.nodes();
        (0..self.lists.count())
            .flat_map(|list| (0..lruvecs).map(move |lruvec| (list, lruvec)))
            .map(|(list, lruvec)| self.objects(list, lruvec, |named| named == owner))
            .sum()
    }

    /// Objects on a sub-list whose owner `picks` accepts.
    fn objects(self, list: u32, lruvec: u32, picks: impl Fn(OwnerIndex) -> bool) -> u64 {
        let Some(list) = self.lists.lists.get(list as usize) else {
            return 0;
        };
        let Some(slot) = list.slot(lruvec) else {
            return 0;
        };
        let off = IrqOff::new();
        let held = slot.list.lock(&off);
        let (mut next, mut counted) = (held.chain.first(), 0);
        while let Some(node) = next {
            next = held.chain.after(node);
            let named = node.get().place();
            let here = named.is_some_and(|(named, owner)| named == list.address() && picks(owner));
            counted += u64::from(node.is_item() && here);
        }
        counted
    }
}
