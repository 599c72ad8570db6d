//! A list as kernels use it.
//!
//! Owns: [`ListLru`] and its errors. Invariants: a list's address stands for one type of objects from the time that a handle claims
//! it until the handle is dropped, which empties it first; a handle that is forgotten keeps its list for ever.
//! Lock ranks: takes `ListLru`, one; drops objects holding none. Used by: kernels.

use core::fmt;
use core::marker::PhantomData;

use super::item::{Claimed, ListItem};
use super::walk::{Walk, WalkEnd, Walked};
use super::{List, View};
use crate::addr::NodeId;
use crate::boot::Refused;
use crate::memcg::{MemcgId, ROOT};
use crate::platform::{IrqOff, Platform};
use crate::shrinker::ShrinkerId;
use crate::sync::atomic::Ordering;

pub use crate::shrinker::Scope;

/// A list of objects for each group and node, oldest first.
///
/// Dropping it drops the objects that are on it; [`close`](Self::close) gives it back instead if there are any.
pub struct ListLru<'m, T: ListItem, P: Platform> {
    view: View<'m, P>,
    list: &'m List<P>,
    scope: Scope,
    /// Objects are reached under locks, from any thread: `T` is `Sync`, its pointer `Send`.
    items: PhantomData<fn(T) -> T>,
}

/// Why there is no such list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ListLruError {
    /// All `MmConfig::list_lrus` lists are in use: drop one, or configure more.
    TooMany {
        /// The configured number.
        most: u32,
    },
    /// The id names no registered shrinker.
    NoSuchShrinker,
}

/// Why an object was not added. Its pointer comes with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AddError {
    /// It is on a list, or being added to one.
    Listed,
    /// The id names no group any more: its objects are its parent's.
    NoSuchGroup(MemcgId),
    /// The instance has no such node.
    NoSuchNode(NodeId),
    /// Called from a walk's callback, which runs under a list's lock.
    InsideWalk,
}

/// Why an object was not taken off the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeleteError {
    /// It is not on this list.
    NotListed,
    /// Called from a walk's callback, which runs under a list's lock.
    InsideWalk,
    /// Its neighbours do not point back at it: something wrote over a link. It stays.
    Damaged,
}

impl<'m, T: ListItem, P: Platform> ListLru<'m, T, P> {
    pub(crate) fn new(
        view: View<'m, P>,
        scope: Scope,
        shrinker: Option<ShrinkerId>,
    ) -> Result<Self, ListLruError> {
        let slot = shrinker.map(|id| view.shrinkers.slot_of(id));
        if slot == Some(None) {
            return Err(ListLruError::NoSuchShrinker);
        }
        let list = view.lists.claim().ok_or(ListLruError::TooMany {
            most: view.lists.count(),
        })?;
        if let Some(slot) = slot.flatten() {
            list.shrinker.store(slot, Ordering::Relaxed);
        }
        Ok(Self {
            view,
            list,
            scope,
            items: PhantomData,
        })
    }

    /// Names the shrinker whose bits are set from now on when objects come to a list that was empty; those of lists that are
    /// not empty are set now.
    ///
    /// # Errors
    /// [`ListLruError::NoSuchShrinker`].
    pub fn ask(&self, shrinker: ShrinkerId) -> Result<(), ListLruError> {
        let slot = self.view.shrinkers.slot_of(shrinker);
        let slot = slot.ok_or(ListLruError::NoSuchShrinker)?;
        self.list.shrinker.store(slot, Ordering::Relaxed);
        let lruvecs = self.view.memcgs.slots() * self.view.memcgs.nodes();
        for lruvec in 0..lruvecs {
            // Under the lock: whoever adds after this sees the shrinker, and what was added before is seen here.
            let off = IrqOff::new();
            if let Some(place) = self.view.lock_live(self.list, lruvec, &off)
                && place.slot.len() > 0
            {
                self.view.mark(self.list, lruvec);
            }
        }
        Ok(())
    }

    /// Adds an object as the newest of a group on a node. The list owns it until it is deleted, isolated, or removed by a walk.
    /// Returns the group that has it: the parent if the named one is dying.
    ///
    /// # Errors
    /// [`AddError`], together with the pointer.
    pub fn add(
        &self,
        memcg: MemcgId,
        node: NodeId,
        item: T::Pointer,
    ) -> Result<MemcgId, Refused<AddError, T::Pointer>> {
        let claimed = Claimed::<T>::new(item).map_err(|item| Refused(AddError::Listed, item))?;
        let off = IrqOff::new();
        if self.view.lists.enter(&off).is_err() {
            return Err(Refused(AddError::InsideWalk, claimed.give_back()));
        }
        let at = u32::from(node.0);
        let Some(total) = self.list.total(at) else {
            return Err(Refused(AddError::NoSuchNode(node), claimed.give_back()));
        };
        let memcg = self.group(memcg);
        let place = self.view.lock_for(self.list, memcg, at, &off);
        // A living group's lruvecs all have an owner.
        let owner = place
            .as_ref()
            .and_then(|place| self.view.owner_of(place.lruvec));
        let (Some(mut place), Some(owner)) = (place, owner) else {
            return Err(Refused(AddError::NoSuchGroup(memcg), claimed.give_back()));
        };
        // In use while its sub-list is live: the group gives it up later.
        self.view.memcgs.owners().charge(owner, 1);
        let list = self.list.address();
        place.list.chain.push_back(claimed, list, owner);
        let len = place.slot.len();
        place.slot.set_len(len + 1);
        if len == 0 {
            // Of the group that has it, not of the one that was named: a dead group's bits are looked at by nobody.
            self.view.mark(self.list, place.lruvec);
        }
        let memcg = place.memcg(self.view);
        drop(place);
        total.fetch_add(1, Ordering::Relaxed);
        Ok(memcg)
    }

    /// Takes an object off the list, wherever on it it is.
    ///
    /// # Errors
    /// [`DeleteError`]; of two calls for one object, one gets the pointer.
    pub fn delete(&self, item: &T) -> Result<T::Pointer, DeleteError> {
        let off = IrqOff::new();
        self.view
            .lists
            .enter(&off)
            .map_err(|_| DeleteError::InsideWalk)?;
        let link = item.link();
        let mut place = self
            .view
            .lock_link(self.list, link, &off)
            .ok_or(DeleteError::NotListed)?;
        let node = place.lruvec % self.view.memcgs.nodes();
        let pointer = self
            .view
            .take::<T>(&mut place, link)
            .ok_or(DeleteError::Damaged)?;
        drop(place);
        self.taken(node, 1);
        Ok(pointer)
    }

    /// Takes the oldest object of a group on a node off the list. `None` if there is none, or in a walk's callback.
    #[must_use]
    pub fn isolate(&self, memcg: MemcgId, node: NodeId) -> Option<T::Pointer> {
        let off = IrqOff::new();
        self.view.lists.enter(&off).ok()?;
        let at = u32::from(node.0);
        let mut place = self.view.lock_own(self.list, self.group(memcg), at, &off)?;
        let mut oldest = place.list.chain.first()?;
        while !oldest.is_item() {
            oldest = place.list.chain.after(oldest)?;
        }
        let pointer = self.view.take::<T>(&mut place, oldest.get())?;
        drop(place);
        self.taken(at, 1);
        Some(pointer)
    }

    /// Objects of a group on a node; 0 for a group or node that is not there. Takes no lock, and may be a little stale.
    #[must_use]
    pub fn count(&self, memcg: MemcgId, node: NodeId) -> u64 {
        let memcg = self.group(memcg);
        let at = u32::from(node.0);
        if at >= self.view.memcgs.nodes() || !self.view.memcgs.is_live(memcg) {
            return 0;
        }
        let lruvec = self.view.memcgs.lruvec_of(memcg.slot, at);
        self.list.slot(lruvec).map_or(0, |slot| slot.len())
    }

    /// Objects of all groups on a node. Takes no lock; right when nobody adds or removes.
    #[must_use]
    pub fn count_node(&self, node: NodeId) -> u64 {
        let total = self.list.total(u32::from(node.0));
        total.map_or(0, |total| total.load(Ordering::Relaxed))
    }

    /// Visits up to `budget` objects of a group on a node, from the oldest on.
    pub fn walk(
        &self,
        memcg: MemcgId,
        node: NodeId,
        budget: u64,
        walk: &mut impl Walk<T>,
    ) -> Walked {
        let at = (self.group(memcg), node);
        self.view.walk(self.list, at, budget, walk)
    }

    /// Visits up to `budget` objects of a node, group by group, the root's first.
    pub fn walk_node(&self, node: NodeId, budget: u64, walk: &mut impl Walk<T>) -> Walked {
        let groups = match self.scope {
            Scope::Groups => self.view.memcgs.slots(),
            Scope::Machine => ROOT + 1,
        };
        let living = (ROOT..groups).filter_map(|slot| self.view.memcgs.id_of(slot));
        self.walk_all(living.map(|memcg| (memcg, node)), budget, walk)
    }

    /// Visits up to `budget` objects of a group, node by node.
    pub fn walk_group(&self, memcg: MemcgId, budget: u64, walk: &mut impl Walk<T>) -> Walked {
        let nodes = (0..self.view.memcgs.nodes()).map(|node| NodeId(node as u8));
        self.walk_all(nodes.map(|node| (memcg, node)), budget, walk)
    }

    /// Gives up an empty list; returns one that is not.
    ///
    /// # Errors
    /// The list, with the objects that are on it.
    pub fn close(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Whether no object of any group is on it. Right when nobody adds or removes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut totals = self.list.totals.iter();
        totals.all(|total| total.load(Ordering::Relaxed) == 0)
    }

    fn walk_all(
        &self,
        places: impl Iterator<Item = (MemcgId, NodeId)>,
        budget: u64,
        walk: &mut impl Walk<T>,
    ) -> Walked {
        let mut all = Walked {
            visited: 0,
            removed: 0,
            end: WalkEnd::GroupGone,
        };
        for (memcg, node) in places {
            let walked = self.walk(memcg, node, budget - all.visited, walk);
            all.visited += walked.visited;
            all.removed += walked.removed;
            match walked.end {
                WalkEnd::Complete => all.end = WalkEnd::Complete,
                // That group's end is not the end of the others.
                WalkEnd::GroupGone => {}
                end => {
                    all.end = end;
                    break;
                }
            }
        }
        all
    }

    /// Whose sub-lists objects of a group are on.
    fn group(&self, memcg: MemcgId) -> MemcgId {
        match self.scope {
            Scope::Groups => memcg,
            Scope::Machine => MemcgId::ROOT,
        }
    }

    fn taken(&self, node: u32, objects: u64) {
        if let Some(total) = self.list.total(node) {
            total.fetch_sub(objects, Ordering::Relaxed);
        }
    }

    /// Takes one object off any group's list of a node.
    fn pop(&self, node: u32) -> Option<T::Pointer> {
        let off = IrqOff::new();
        (0..self.view.memcgs.slots()).find_map(|group| {
            let lruvec = self.view.memcgs.lruvec_of(group, node);
            let mut place = self.view.lock_live(self.list, lruvec, &off)?;
            let oldest = place.list.chain.first()?;
            self.view.take::<T>(&mut place, oldest.get())
        })
    }
}

impl<T: ListItem, P: Platform> Drop for ListLru<'_, T, P> {
    fn drop(&mut self) {
        for node in 0..self.view.memcgs.nodes() {
            // Nobody else adds or removes: this handle was the only one. A group that ends at this moment may move its objects
            // behind the search, which then starts over.
            while self.count_node(NodeId(node as u8)) > 0 {
                if let Some(item) = self.pop(node) {
                    self.taken(node, 1);
                    drop(item);
                }
            }
        }
        self.list.release();
    }
}

impl<T: ListItem, P: Platform> fmt::Debug for ListLru<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = 0..self.view.memcgs.nodes();
        let objects: u64 = nodes.map(|node| self.count_node(NodeId(node as u8))).sum();
        f.debug_struct("ListLru")
            .field("scope", &self.scope)
            .field("objects", &objects)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ListLruError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { most } => {
                write!(
                    f,
                    "all {most} lists are in use: drop one, or configure more"
                )
            }
            Self::NoSuchShrinker => f.write_str("the shrinker is not registered"),
        }
    }
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed => f.write_str("the object is on a list"),
            Self::NoSuchGroup(id) => write!(f, "the group {id} does not exist"),
            Self::NoSuchNode(node) => write!(f, "the node {} does not exist", node.0),
            Self::InsideWalk => f.write_str("a walk's callback cannot add objects"),
        }
    }
}

impl fmt::Display for DeleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotListed => "the object is not on this list",
            Self::InsideWalk => {
                "a walk's callback cannot delete objects: it removes the one it visits"
            }
            Self::Damaged => {
                "the object's neighbours do not point back at it: a link was overwritten"
            }
        })
    }
}

impl core::error::Error for ListLruError {}
impl core::error::Error for AddError {}
impl core::error::Error for DeleteError {}
