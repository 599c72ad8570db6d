//! The shape of the tree and the life of a group.
//!
//! Owns: [`Group`] and its states; creation, removal, what comes after a group in a walk.
//! Invariants: a group is `Live` from the moment its id is published, which happens last; its slot is reused, under a new
//! generation, only after a grace period in which nobody charges to it any more. A parent outlives its children.
//! Removal: `Dying` (no new charges) → grace period (running charges end) → lists and owners go to the parent →
//! grace period (uncharges that still saw the child end) → `Free`.
//! Lock ranks: `MemcgTree` guards links, creation and removal.
//! Used by: memcg's charges, mm (removal with lists), reclaim (walks).

use core::fmt;

use super::counter::{PageCounter, Protection};
use super::events::Events;
use super::iter::Cursor;
use super::room::NO_ROOM;
use super::{MemcgId, Memcgs};
use crate::addr::NodeId;
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::Ranked;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A group's index.
pub(crate) type Slot = u32;
/// No group.
pub(super) const NONE: Slot = u32::MAX;
/// The root's index.
pub(crate) const ROOT: Slot = 0;

/// Where a group is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Free,
    Live,
    Dying,
}

/// One group. Type-stable: the slot is never freed, only reused.
#[derive(Debug)]
pub(super) struct Group {
    /// Generation and [`Life`].
    life: AtomicU64,
    pub(super) counter: PageCounter,
    pub(super) events: Events,
    /// Number of its memory's first frame, plus one; see room.rs.
    pub(super) room: AtomicU64,
    pub(super) oom: super::oom::Word,
    /// Steps from the root. Written before the group is published.
    depth: AtomicU32,
    // Links; written under the tree lock, `parent` before the group is published.
    pub(super) parent: AtomicU32,
    first_child: AtomicU32,
    next_sibling: AtomicU32,
    previous_sibling: AtomicU32,
}

/// What the tree lock guards beside the links.
#[derive(Debug)]
pub(super) struct Tree {
    /// First of the free slots, chained by `next_sibling`.
    free: Slot,
    /// Groups alive or dying.
    used: u32,
    /// By lruvec; see iter.rs.
    pub(super) cursors: &'static mut [Cursor],
}

impl Ranked for Tree {
    const RANK: Rank = Rank::MemcgTree;
}

/// Why no group was created. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CreateError {
    /// The parent's id names no living group.
    NoSuchParent(MemcgId),
    /// All `Config::memcgs` groups exist: remove one, or configure more.
    TooMany {
        /// The configured number.
        most: u32,
    },
    /// The parent is as deep as `Config::depth` allows.
    TooDeep {
        /// The configured depth.
        deepest: u32,
    },
    /// No block of this order, in reach of the direct map, is free for the group's memory: reclaim, and try again.
    NoMemory {
        /// log2 of the frames.
        order: u8,
    },
    /// Every owner slot is one of a living group, or of a group that is ending: configure more.
    OwnersExhausted,
}

/// Why a group was not removed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RemoveError {
    /// The id names no living group.
    NoSuchGroup(MemcgId),
    /// The root stays.
    Root,
    /// It has children: remove them first.
    HasChildren,
}

/// Why a group's protection was not set. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProtectError {
    /// The id names no living group.
    NoSuchGroup(MemcgId),
    /// The root competes with nobody: nothing protects it.
    Root,
    /// More than the group may have.
    AboveMax {
        /// Its limit in frames.
        max: u64,
    },
    /// More than the group above asked for, so that it could never be in effect: protect that one first.
    AboveParent {
        /// The parent's setting in frames.
        parent: u64,
    },
}

/// A group on its way out: its lists and owners must be given to the parent before [`Memcgs::finish_removal`].
#[must_use]
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) child: Slot,
    pub(crate) parent: Slot,
}

impl Group {
    pub(super) fn new(slot: Slot, count: u32) -> Self {
        let root = slot == ROOT;
        let free_next = if slot + 1 < count { slot + 1 } else { NONE };
        Self {
            life: AtomicU64::new(pack(0, if root { Life::Live } else { Life::Free })),
            counter: PageCounter::new(),
            events: Events::default(),
            room: AtomicU64::new(NO_ROOM),
            oom: super::oom::Word::default(),
            depth: AtomicU32::new(0),
            parent: AtomicU32::new(NONE),
            first_child: AtomicU32::new(NONE),
            next_sibling: AtomicU32::new(if root { NONE } else { free_next }),
            previous_sibling: AtomicU32::new(NONE),
        }
    }

    /// Whether the slot is the living group that `generation` names. Acquire pairs with the Release of `publish`.
    pub(super) fn is_live(&self, generation: u32) -> bool {
        self.life.load(Ordering::Acquire) == pack(generation, Life::Live)
    }

    /// The id under which the group in this slot lives, if one does.
    pub(super) fn live_id(&self, slot: Slot) -> Option<MemcgId> {
        let (generation, life) = unpack(self.life.load(Ordering::Acquire));
        (life == Life::Live).then_some(MemcgId { slot, generation })
    }

    /// Whether `generation` names the group in this slot, alive or dying.
    pub(super) fn is_used_as(&self, generation: u32) -> bool {
        let (current, life) = unpack(self.life.load(Ordering::Acquire));
        current == generation && life != Life::Free
    }

    /// The generation of the group in this slot.
    pub(super) fn generation(&self) -> u32 {
        unpack(self.life.load(Ordering::Acquire)).0
    }
}

impl Tree {
    pub(super) fn new(count: u32, cursors: &'static mut [Cursor]) -> Self {
        Self {
            free: if count > 1 { 1 } else { NONE },
            used: 1,
            cursors,
        }
    }
}

impl<P: Platform> Memcgs<P> {
    /// Creates an empty group without limit under `parent`. `prepare` makes ready what other layers keep for it, before its
    /// id is published; it runs under the tree lock.
    ///
    /// # Errors
    /// [`CreateError`], with nothing changed.
    pub(crate) fn create(
        &self,
        parent: MemcgId,
        off: &IrqOff<P>,
        prepare: impl FnOnce(MemcgId),
    ) -> Result<MemcgId, CreateError> {
        let mut tree = self.tree.lock(off);
        let above = self.live(parent).ok_or(CreateError::NoSuchParent(parent))?;
        let depth = above.depth.load(Ordering::Relaxed) + 1;
        if depth > self.deepest {
            return Err(CreateError::TooDeep {
                deepest: self.deepest,
            });
        }
        let slot = tree.free;
        let group = self.groups.get(slot as usize).ok_or(CreateError::TooMany {
            most: self.groups.len() as u32,
        })?;
        self.take_owners(slot)?;
        tree.free = group.next_sibling.load(Ordering::Relaxed);
        tree.used += 1;
        group.counter.reset();
        group.events.reset();
        self.reset_pressure(slot, off);
        group.oom.set(super::OomSetting::default());
        group.depth.store(depth, Ordering::Relaxed);
        group.parent.store(parent.slot, Ordering::Relaxed);
        group.first_child.store(NONE, Ordering::Relaxed);
        self.link_child(above, group, slot);
        let (generation, _) = unpack(group.life.load(Ordering::Relaxed));
        prepare(MemcgId { slot, generation });
        // Published last. Release pairs with the Acquire of `is_live`: a charge sees all of the above.
        group
            .life
            .store(pack(generation, Life::Live), Ordering::Release);
        Ok(MemcgId { slot, generation })
    }

    /// Sets how many frames of a group are protected.
    ///
    /// # Errors
    /// [`ProtectError`], with nothing changed.
    pub(crate) fn protect(
        &self,
        id: MemcgId,
        kind: Protection,
        frames: u64,
        off: &IrqOff<P>,
    ) -> Result<(), ProtectError> {
        // Locked: the group cannot begin to end, and its parent's setting cannot change, meanwhile.
        let _tree = self.tree.lock(off);
        let group = self.live(id).ok_or(ProtectError::NoSuchGroup(id))?;
        let parent = group.parent.load(Ordering::Relaxed);
        let above = self.groups.get(parent as usize).ok_or(ProtectError::Root)?;
        let max = group.counter.max();
        if frames > max {
            return Err(ProtectError::AboveMax { max });
        }
        let setting = above.counter.share(kind).setting();
        if parent != ROOT && frames > setting {
            return Err(ProtectError::AboveParent { parent: setting });
        }
        group.counter.protect(kind, frames, &above.counter);
        Ok(())
    }

    /// Ends new charges to a group, and waits until running ones are done.
    ///
    /// # Errors
    /// [`RemoveError`], with nothing changed.
    pub(crate) fn begin_removal(
        &self,
        id: MemcgId,
        off: &IrqOff<P>,
    ) -> Result<Removal, RemoveError> {
        let tree = self.tree.lock(off);
        let group = self.live(id).ok_or(RemoveError::NoSuchGroup(id))?;
        if id.slot == ROOT {
            return Err(RemoveError::Root);
        }
        if group.first_child.load(Ordering::Relaxed) != NONE {
            return Err(RemoveError::HasChildren);
        }
        group
            .life
            .store(pack(id.generation, Life::Dying), Ordering::Release);
        // Its parent's children no longer include it. Usage may change until the end, its setting does not.
        let parent = &self.groups[group.parent.load(Ordering::Relaxed) as usize].counter;
        for kind in [Protection::Min, Protection::Low] {
            group.counter.protect(kind, 0, parent);
        }
        drop(tree);
        Ok(Removal {
            child: id.slot,
            parent: group.parent.load(Ordering::Relaxed),
        })
    }

    /// Returns the slot for reuse. The caller gave lists and owners to the parent, and then waited a grace period.
    pub(crate) fn finish_removal(&self, removal: Removal, off: &IrqOff<P>) {
        let mut tree = self.tree.lock(off);
        let group = &self.groups[removal.child as usize];
        self.leave_cursors(tree.cursors, removal.child);
        self.unlink_child(&self.groups[removal.parent as usize], group);
        if group.counter.squeezed().swap(false, Ordering::Relaxed) {
            self.squeezed.fetch_sub(1, Ordering::SeqCst);
        }
        let (generation, _) = unpack(group.life.load(Ordering::Relaxed));
        group.life.store(
            pack(generation.wrapping_add(1), Life::Free),
            Ordering::Release,
        );
        group.next_sibling.store(tree.free, Ordering::Relaxed);
        tree.free = removal.child;
        tree.used -= 1;
    }

    /// The group after `slot` in a walk over `root` and everything below it, parents first. The tree is locked, and `slot` in it.
    pub(super) fn successor(&self, root: Slot, slot: Slot) -> Option<Slot> {
        let group = self.groups.get(slot as usize)?;
        let child = group.first_child.load(Ordering::Relaxed);
        if child != NONE {
            return Some(child);
        }
        let mut at = slot;
        // Climbs at most the depth of the tree.
        for _ in 0..=self.deepest {
            if at == root {
                return None;
            }
            let group = self.groups.get(at as usize)?;
            let sibling = group.next_sibling.load(Ordering::Relaxed);
            if sibling != NONE {
                return Some(sibling);
            }
            at = group.parent.load(Ordering::Relaxed);
        }
        None
    }

    /// The group, unless it has left the tree.
    pub(super) fn still(&self, id: MemcgId) -> Option<&Group> {
        let group = self.groups.get(id.slot as usize)?;
        group.is_used_as(id.generation).then_some(group)
    }

    /// Runs `action` unless the group has left the tree. Nobody else gets its slot, and so its lruvecs, meanwhile.
    pub(crate) fn while_still<T>(&self, id: MemcgId, action: impl FnOnce() -> T) -> Option<T> {
        let _pin = self.epoch.pin();
        self.still(id).map(|_| action())
    }

    /// Groups that exist, dying ones included.
    pub(crate) fn count(&self, off: &IrqOff<P>) -> u32 {
        self.tree.lock(off).used
    }

    /// One owner slot for each node, or none at all.
    fn take_owners(&self, slot: Slot) -> Result<(), CreateError> {
        let first = slot * self.nodes;
        for lruvec in first..first + self.nodes {
            let Some(owner) = self.owners.take(lruvec) else {
                (first..lruvec).for_each(|taken| {
                    self.owners
                        .put(self.current[taken as usize].load(Ordering::Relaxed), 1)
                });
                return Err(CreateError::OwnersExhausted);
            };
            self.current[lruvec as usize].store(owner, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The owner slot that frames charged to a living group on `node` name.
    pub(crate) fn current_owner(&self, slot: Slot, node: NodeId) -> Option<super::OwnerIndex> {
        let node = u32::from(node.0);
        if node >= self.nodes {
            return None;
        }
        self.current_at(slot * self.nodes + node)
    }

    /// The owner slot that stands for a lruvec while its group lives.
    pub(crate) fn current_at(&self, lruvec: super::LruVecIndex) -> Option<super::OwnerIndex> {
        Some(self.current.get(lruvec as usize)?.load(Ordering::Relaxed))
    }

    fn link_child(&self, parent: &Group, group: &Group, slot: Slot) {
        let first = parent.first_child.load(Ordering::Relaxed);
        group.next_sibling.store(first, Ordering::Relaxed);
        group.previous_sibling.store(NONE, Ordering::Relaxed);
        if let Some(next) = self.groups.get(first as usize) {
            next.previous_sibling.store(slot, Ordering::Relaxed);
        }
        parent.first_child.store(slot, Ordering::Relaxed);
    }

    fn unlink_child(&self, parent: &Group, group: &Group) {
        let (previous, next) = (
            group.previous_sibling.load(Ordering::Relaxed),
            group.next_sibling.load(Ordering::Relaxed),
        );
        match self.groups.get(previous as usize) {
            Some(before) => before.next_sibling.store(next, Ordering::Relaxed),
            None => parent.first_child.store(next, Ordering::Relaxed),
        }
        if let Some(after) = self.groups.get(next as usize) {
            after.previous_sibling.store(previous, Ordering::Relaxed);
        }
    }
}

fn pack(generation: u32, life: Life) -> u64 {
    u64::from(generation) << 2 | life as u64
}

fn unpack(word: u64) -> (u32, Life) {
    let life = match word & 3 {
        0 => Life::Free,
        1 => Life::Live,
        _ => Life::Dying,
    };
    ((word >> 2) as u32, life)
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchParent(id) => write!(f, "the parent {id} does not exist"),
            Self::TooMany { most } => {
                write!(f, "all {most} groups exist: remove one, or configure more")
            }
            Self::TooDeep { deepest } => write!(
                f,
                "groups nest at most {deepest} deep: configure a greater depth"
            ),
            Self::NoMemory { order } => write!(
                f,
                "no block of order {order} is free for the group's memory: reclaim, and try again"
            ),
            Self::OwnersExhausted => {
                f.write_str("living groups hold every owner slot: remove some, or configure more")
            }
        }
    }
}

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchGroup(id) => write!(f, "the group {id} does not exist"),
            Self::Root => f.write_str("the root group stays"),
            Self::HasChildren => f.write_str("the group has children: remove them first"),
        }
    }
}

impl fmt::Display for ProtectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchGroup(id) => write!(f, "the group {id} does not exist"),
            Self::Root => f.write_str("the root group cannot be protected"),
            Self::AboveMax { max } => write!(f, "the group may have {max} frames: protect no more"),
            Self::AboveParent { parent } => write!(
                f,
                "the group above protects {parent} frames: protect no more, or that one first"
            ),
        }
    }
}

impl core::error::Error for CreateError {}
impl core::error::Error for ProtectError {}
impl core::error::Error for RemoveError {}
