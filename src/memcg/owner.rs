//! Who a frame belongs to: a handle that outlives its group.
//!
//! Owns: [`Owners`], a type-stable array of slots, each for one (memcg, node).
//! Invariants: a slot is free, or names the lruvec of a living group, or forwards to another slot in use. A forwarding slot
//! never points back, so following it ends after as many steps as groups have died on the way up.
//! It is free again when nothing counts on it: no living group, no charged frame or listed object, no slot that forwards to
//! it. Frames are counted here only once their group is dead: while it lives it holds the slot itself, and CPUs count its frames
//! apart (stats.rs).
//! Lock ranks: none. `forward` runs under both groups' lruvec locks, which is what makes a verified lookup stable.
//! Used by: memcg (tree, charge), lru (lock), list_lru (lookup).

use crate::boot::{Bump, StorageFull};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::twin::left_out;

/// Index of an owner slot.
pub(crate) type OwnerIndex = u32;

/// Index of an lruvec: group slot times the number of nodes, plus the node.
pub(crate) type LruVecIndex = u32;

const FREE: u32 = u32::MAX;
/// Set in `target` when the rest is an [`OwnerIndex`], clear when it is an [`LruVecIndex`].
const FORWARD: u32 = 1 << 31;

/// More than there are frames: while this is counted, frames may leave that are not counted yet.
const UNSETTLED: u64 = 1 << 62;

/// What an owner slot stands for at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// A living group's lruvec.
    Living(LruVecIndex),
    /// A dead group's, whose frames are those of this lruvec now.
    Inherited(LruVecIndex),
}

/// More slots than this could not be told from `FREE` and `FORWARD`.
pub(super) const MOST_OWNERS: u32 = FORWARD - 1;

#[derive(Debug)]
struct Slot {
    /// What this slot stands for.
    target: AtomicU32,
    /// 1 for a living group, 1 for each frame of a dead one, 1 for each listed object, for each task that is counted, and for each
    /// slot that forwards here;
    /// `UNSETTLED` more from the end of a group until its frames are counted in.
    references: AtomicU64,
    /// Frames charged here that are given out in bytes; see bytes.rs.
    byte_frames: AtomicU64,
    /// Bytes of these that CPUs left: fewer than a frame, and none while the slot is free.
    parked: AtomicU32,
    /// Of `references`, tasks that are counted in the group.
    visits: AtomicU32,
}

/// All owner slots of one instance.
#[derive(Debug)]
pub(crate) struct Owners {
    slots: &'static [Slot],
    /// Where the search for a free slot starts; only a hint.
    next: AtomicU32,
    /// Slots that are not free.
    used: AtomicU32,
}

impl Owners {
    pub(super) fn build(bump: &mut Bump<'_>, count: u32) -> Result<Self, StorageFull> {
        let slot = |_| Slot {
            target: AtomicU32::new(FREE),
            references: AtomicU64::new(0),
            byte_frames: AtomicU64::new(0),
            parked: AtomicU32::new(0),
            visits: AtomicU32::new(0),
        };
        Ok(Self {
            slots: bump.slots(count as usize, slot)?,
            next: AtomicU32::new(0),
            used: AtomicU32::new(0),
        })
    }

    /// Takes a free slot for a living group's `lruvec`.
    pub(super) fn take(&self, lruvec: LruVecIndex) -> Option<OwnerIndex> {
        let count = self.count();
        let from = self.next.load(Ordering::Relaxed);
        let found = (0..count).map(|i| (from + i) % count).find(|&i| {
            let slot = &self.slots[i as usize];
            // Acquire pairs with the Release in `put`: the slot's last user is done with it.
            slot.target.load(Ordering::Relaxed) == FREE
                && slot
                    .target
                    .compare_exchange(FREE, lruvec, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        })?;
        self.slots[found as usize]
            .references
            .store(1, Ordering::Relaxed);
        self.next.store((found + 1) % count, Ordering::Relaxed);
        self.used.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// The lruvec that frames of `owner` belong to now. Stable only under that lruvec's lock.
    #[inline]
    pub(crate) fn resolve(&self, owner: OwnerIndex) -> Option<LruVecIndex> {
        match self.standing(owner)? {
            Standing::Living(lruvec) | Standing::Inherited(lruvec) => Some(lruvec),
        }
    }

    /// As [`resolve`](Self::resolve), and whether the group that was charged still lives.
    #[inline]
    pub(crate) fn standing(&self, owner: OwnerIndex) -> Option<Standing> {
        match self.target_of(owner)? {
            target if target & FORWARD == 0 => Some(Standing::Living(target)),
            target => self.heir(target).map(Standing::Inherited),
        }
    }

    /// What a slot stands for. Acquire pairs with the Release of `forward`: the lists were spliced before.
    #[inline]
    fn target_of(&self, owner: OwnerIndex) -> Option<u32> {
        Some(
            self.slots
                .get(owner as usize)?
                .target
                .load(Ordering::Acquire),
        )
    }

    /// Where a forwarding `target` leads in the end.
    fn heir(&self, target: u32) -> Option<LruVecIndex> {
        let mut target = target;
        // Each step goes to a slot of an ancestor; the bound only stops a damaged slot.
        for _ in 0..self.slots.len() {
            match target {
                FREE => return None,
                forward if forward & FORWARD != 0 => target = self.target_of(forward & !FORWARD)?,
                lruvec => return Some(lruvec),
            }
        }
        None
    }

    /// Counts `frames` (or listed objects) more that name `owner`, which the caller knows to be in use.
    #[inline]
    pub(crate) fn charge(&self, owner: OwnerIndex, frames: u64) {
        if let Some(slot) = self.slots.get(owner as usize) {
            slot.references.fetch_add(frames, Ordering::Relaxed);
        }
    }

    /// Drops `references`; frees the slot, and what it alone kept, with the last.
    #[inline]
    pub(crate) fn put(&self, owner: OwnerIndex, references: u64) {
        let (mut owner, mut references) = (owner, references);
        for _ in 0..self.slots.len() {
            let Some(slot) = self.slots.get(owner as usize) else {
                return;
            };
            // AcqRel: every user's work happens before the slot is free, whoever frees it.
            if slot.references.fetch_sub(references, Ordering::AcqRel) != references {
                return;
            }
            debug_assert_eq!(
                slot.parked.load(Ordering::Relaxed),
                0,
                "bytes of owner slot {owner} are left without a frame"
            );
            self.used.fetch_sub(1, Ordering::Relaxed);
            let target = slot.target.swap(FREE, Ordering::AcqRel);
            if target == FREE || target & FORWARD == 0 {
                return;
            }
            (owner, references) = (target & !FORWARD, 1);
        }
    }

    /// From now on `child`'s frames are `parent`'s. The caller holds both lruvec locks, and settles `child` after
    /// a grace period.
    pub(crate) fn forward(&self, child: OwnerIndex, parent: OwnerIndex) {
        let (Some(slot), Some(_)) = (
            self.slots.get(child as usize),
            self.slots.get(parent as usize),
        ) else {
            return;
        };
        self.charge(parent, 1);
        // From now on frames leave through `put`, before `settle` can count them in.
        self.charge(child, UNSETTLED);
        // Release pairs with the Acquire of `resolve`.
        slot.target.store(FORWARD | parent, Ordering::Release);
    }

    /// Counts in the `frames` of a dead group that are left, and drops the group's own reference. Nobody counts frames
    /// of this owner apart any more: the caller waited for them.
    pub(super) fn settle(&self, owner: OwnerIndex, frames: u64) {
        if let Some(slot) = self.slots.get(owner as usize) {
            slot.references.fetch_add(frames, Ordering::Relaxed);
        }
        self.put(owner, UNSETTLED + 1);
    }

    /// Leaves bytes with a slot in use. Returns how many frames of the instance that completes, which leave with it.
    #[must_use]
    pub(super) fn park<P: Platform>(&self, owner: OwnerIndex, bytes: u64) -> u64 {
        let Some(slot) = self.slots.get(owner as usize) else {
            return 0;
        };
        let sum = |parked: u32| u64::from(parked) + bytes;
        let rest = |parked| (sum(parked) & ((1 << P::PAGE_SHIFT) - 1)) as u32;
        // Relaxed: bytes are a number. What they were charged with is counted by RMWs of their own.
        let before = if left_out::<P>("bytes: parked in one step") {
            let before = slot.parked.load(Ordering::Relaxed);
            slot.parked.store(rest(before), Ordering::Relaxed);
            before
        } else {
            let update = slot
                .parked
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(rest(old)));
            update.unwrap_or_else(|old| old) // never: `rest` always gives a value
        };
        sum(before) >> P::PAGE_SHIFT
    }

    /// Takes all that is parked at a slot in use.
    pub(super) fn unpark<P: Platform>(&self, owner: OwnerIndex) -> u64 {
        let Some(slot) = self.slots.get(owner as usize) else {
            return 0;
        };
        // Looked at first: a CPU that turns from owner to owner finds nothing most of the time.
        let parked = slot.parked.load(Ordering::Relaxed);
        if parked == 0 {
            return 0;
        }
        if left_out::<P>("bytes: taken in one step") {
            slot.parked.store(0, Ordering::Relaxed);
            return parked.into();
        }
        slot.parked.swap(0, Ordering::Relaxed).into()
    }

    /// Counts frames charged for bytes.
    pub(super) fn add_byte_frames(&self, owner: OwnerIndex, frames: u64) {
        if let Some(slot) = self.slots.get(owner as usize) {
            slot.byte_frames.fetch_add(frames, Ordering::Relaxed);
        }
    }

    /// Counts them out, before they are uncharged.
    pub(super) fn sub_byte_frames(&self, owner: OwnerIndex, frames: u64) {
        if let Some(slot) = self.slots.get(owner as usize) {
            slot.byte_frames.fetch_sub(frames, Ordering::Relaxed);
        }
    }

    /// Frames charged for bytes.
    pub(super) fn byte_frames(&self, owner: OwnerIndex) -> u64 {
        let slot = self.slots.get(owner as usize);
        slot.map_or(0, |slot| slot.byte_frames.load(Ordering::Relaxed))
    }

    /// Slots that nobody has.
    pub(super) fn free(&self) -> u32 {
        self.count()
            .saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// A task that is counted in the owner's group names it from now on.
    pub(super) fn visit(&self, owner: OwnerIndex) {
        if let Some(slot) = self.slots.get(owner as usize) {
            slot.visits.fetch_add(1, Ordering::Relaxed);
        }
        self.charge(owner, 1);
    }

    /// It does so no more.
    pub(super) fn leave(&self, owner: OwnerIndex) {
        if let Some(slot) = self.slots.get(owner as usize) {
            slot.visits.fetch_sub(1, Ordering::Relaxed);
        }
        self.put(owner, 1);
    }

    /// Tasks that name `owner`, for `check()`.
    pub(crate) fn visits(&self, owner: OwnerIndex) -> u64 {
        let slot = self.slots.get(owner as usize);
        slot.map_or(0, |slot| slot.visits.load(Ordering::Relaxed).into())
    }

    /// All slots.
    pub(super) fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// References to `owner`, for `check()`.
    pub(crate) fn references(&self, owner: OwnerIndex) -> u64 {
        self.slots
            .get(owner as usize)
            .map_or(0, |slot| slot.references.load(Ordering::Relaxed))
    }

    /// Slots in use: (owner, what it forwards to).
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (OwnerIndex, Option<OwnerIndex>)> + Clone {
        self.slots.iter().enumerate().filter_map(|(i, slot)| {
            match slot.target.load(Ordering::Acquire) {
                FREE => None,
                target if target & FORWARD != 0 => Some((i as u32, Some(target & !FORWARD))),
                _ => Some((i as u32, None)),
            }
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::host::storage;

    fn owners(count: u32) -> Owners {
        Owners::build(&mut Bump::new(&mut storage(4096)), count).unwrap()
    }

    #[test]
    fn a_dead_owner_forwards_until_its_last_frame_is_gone() {
        let owners = owners(3);
        let (parent, child) = (owners.take(0).unwrap(), owners.take(1).unwrap());
        assert_eq!(owners.standing(child), Some(Standing::Living(1)));
        owners.forward(child, parent);
        assert_eq!(owners.standing(child), Some(Standing::Inherited(0)));
        // Three frames leave before the five that were charged are counted in.
        owners.put(child, 3);
        owners.settle(child, 5);
        assert_eq!(owners.resolve(child), Some(0));
        owners.put(child, 1);
        assert_eq!(owners.resolve(child), Some(0));
        assert_eq!(owners.references(parent), 2);
        owners.put(child, 1);
        assert_eq!(owners.resolve(child), None);
        assert_eq!(owners.references(parent), 1);
    }

    #[test]
    fn a_chain_of_dead_owners_is_freed_from_its_far_end() {
        let owners = owners(3);
        let [root, middle, leaf] = [0, 1, 2].map(|vec| owners.take(vec).unwrap());
        owners.forward(leaf, middle);
        owners.settle(leaf, 1);
        owners.forward(middle, root);
        owners.settle(middle, 0);
        assert_eq!(owners.resolve(leaf), Some(0));
        assert_eq!(owners.in_use().count(), 3);
        owners.put(leaf, 1);
        assert_eq!(owners.in_use().count(), 1);
        assert_eq!(owners.references(root), 1);
    }

    #[test]
    fn no_slot_is_given_twice() {
        let owners = owners(2);
        assert!(owners.take(0).is_some() && owners.take(1).is_some());
        assert_eq!((owners.take(2), owners.free()), (None, 0));
        owners.put(0, 1);
        assert_eq!(owners.free(), 1);
        assert_eq!(owners.take(2), Some(0));
    }
}
