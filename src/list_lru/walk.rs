//! Walks over sub-lists, from the oldest object on.
//!
//! Owns: [`Walk`], what a kernel does with the objects; the walk over one sub-list.
//! Invariants: the lock is held exactly while a [`Locked`] token exists: a callback can neither drop it nor keep it, it says what is to be
//! done and the walk does it. At most 32 callbacks run under one hold; then, and after a retry, the lock is dropped, removed
//! objects are handed over, and the lock is taken anew. The budget falls before each callback, so a walk ends whatever its callbacks answer.
//! Between two holds a marker of the walk's own stands in the list, so that it goes on where it stopped, whoever removed
//! the neighbours (a walk that kept a pointer to the next object across the drop would follow it to where it went). If the group
//! ended meanwhile, its objects are its parent's, and the walk ends.
//! Lock ranks: `ListLru`, one. Used by: handle.

use arrayvec::ArrayVec;

use super::item::{Link, ListItem, Node};
use super::lookup::Place;
use super::{List, ListLrus, View};
use crate::addr::NodeId;
use crate::memcg::{LruVecIndex, MemcgId, OwnerIndex};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Callbacks under one hold of a lock.
const HOLD: usize = 32;

/// What becomes of an object that a walk visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It leaves the list; the walk goes on.
    Removed,
    /// It leaves the list; the lock is dropped, and the walk starts over from the oldest.
    RemovedRetry,
    /// It becomes the newest: it was used.
    Rotate,
    /// It stays where it is.
    Skip,
    /// It stays; the lock is dropped, and the walk starts over from the oldest: for work that is done in [`Walk::unlocked`].
    Retry,
    /// It stays, and the walk ends.
    Stop,
}

/// Why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WalkEnd {
    /// Every object was visited.
    Complete,
    /// As many objects were visited as the budget allows.
    Budget,
    /// A callback said so.
    Stopped,
    /// The group is not there, or ended during the walk: its objects are its parent's.
    GroupGone,
    /// Called from a callback that runs under a list's lock: nothing was visited.
    InsideWalk,
}

/// What a walk did.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walked {
    /// Callbacks.
    pub visited: u64,
    /// Objects that left the list.
    pub removed: u64,
    /// Why it ended.
    pub end: WalkEnd,
}

/// Proof that the list's lock is held, with interrupts masked. Lives as long as the callback that gets it.
#[derive(Debug)]
pub struct Locked<'w> {
    memcg: MemcgId,
    node: NodeId,
    budget: &'w u64,
}

impl Locked<'_> {
    /// The group whose list this is.
    #[must_use]
    pub fn memcg(&self) -> MemcgId {
        self.memcg
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Visits that are left after this one.
    #[must_use]
    pub fn budget(&self) -> u64 {
        *self.budget
    }
}

/// Proof that the walk holds no lock: lists may be used, memory allocated, threads may sleep.
#[derive(Debug)]
pub struct Unlocked<'w>(core::marker::PhantomData<&'w ()>);

/// What a kernel does with the objects of a walk. Closures of the form `FnMut(&T, Locked<'_>) -> Verdict` are walks that drop
/// what they remove.
pub trait Walk<T: ListItem> {
    /// Judges an object. Runs under the list's lock, with interrupts masked: it may only try other locks, and must neither sleep nor
    /// free frames. Lists refuse what it asks of them.
    fn visit(&mut self, item: &T, token: Locked<'_>) -> Verdict;

    /// Takes an object that left the list.
    fn removed(&mut self, _item: T::Pointer, _token: Unlocked<'_>) {}

    /// Called before the list is locked again after [`Verdict::Retry`] or [`Verdict::RemovedRetry`].
    fn unlocked(&mut self, _token: Unlocked<'_>) {}
}

impl<T: ListItem, F: FnMut(&T, Locked<'_>) -> Verdict> Walk<T> for F {
    fn visit(&mut self, item: &T, token: Locked<'_>) -> Verdict {
        self(item, token)
    }
}

/// What ended a hold.
enum Hold {
    /// The walk goes on at its marker.
    Pause,
    /// It starts over.
    Restart,
    Ended(WalkEnd),
}

/// The state of a walk between holds.
struct Course<'v, P: Platform> {
    view: View<'v, P>,
    list: &'v List<P>,
    memcg: MemcgId,
    node: NodeId,
    budget: u64,
    visited: u64,
    removed: u64,
}

type InHand<T> = ArrayVec<<T as ListItem>::Pointer, HOLD>;

impl<'v, P: Platform> View<'v, P> {
    /// Walks the sub-list of a group on a node.
    pub(super) fn walk<T: ListItem>(
        self,
        list: &'v List<P>,
        (memcg, node): (MemcgId, NodeId),
        budget: u64,
        walk: &mut impl Walk<T>,
    ) -> Walked {
        let link = Link::new();
        let marker = Marker {
            view: self,
            list,
            link: &link,
        };
        let mut course = Course {
            view: self,
            list,
            memcg,
            node,
            budget,
            visited: 0,
            removed: 0,
        };
        loop {
            let mut in_hand = InHand::<T>::new();
            let hold = course.hold(&marker, walk, &mut in_hand);
            for pointer in in_hand {
                walk.removed(pointer, Unlocked(core::marker::PhantomData));
            }
            match hold {
                Hold::Pause => {}
                Hold::Restart => walk.unlocked(Unlocked(core::marker::PhantomData)),
                Hold::Ended(end) => {
                    return Walked {
                        visited: course.visited,
                        removed: course.removed,
                        end,
                    };
                }
            }
        }
    }
}

impl<P: Platform> Course<'_, P> {
    /// Visits up to [`HOLD`] objects under one hold of the lock.
    fn hold<T: ListItem>(
        &mut self,
        marker: &Marker<'_, P>,
        walk: &mut impl Walk<T>,
        in_hand: &mut InHand<T>,
    ) -> Hold {
        let off = IrqOff::new();
        if self.view.lists.enter(&off).is_err() {
            return Hold::Ended(WalkEnd::InsideWalk);
        }
        // Declared before the lock, so that the total follows after the unlock, even if a callback panics.
        let mut tally = Tally {
            total: self.list.total(u32::from(self.node.0)),
            removed: 0,
        };
        let node = u32::from(self.node.0);
        let (mut place, mut next) = match marker.take(&off) {
            Some((place, next)) => {
                // The marker went along to the parent if the group ended.
                if place.lruvec != self.view.memcgs.lruvec_of(self.memcg.slot, node) {
                    return Hold::Ended(WalkEnd::GroupGone);
                }
                (place, next)
            }
            None => match self.view.lock_own(self.list, self.memcg, node, &off) {
                Some(place) => {
                    let first = place.list.chain.first();
                    (place, first)
                }
                None => return Hold::Ended(WalkEnd::GroupGone),
            },
        };
        let mut visits = 0;
        while let Some(at) = next {
            next = place.list.chain.after(at);
            // Other walks' markers are passed by.
            let Some(item) = place.list.chain.item::<T>(at) else {
                continue;
            };
            if self.budget == 0 {
                return Hold::Ended(WalkEnd::Budget);
            }
            if visits == HOLD {
                marker.leave_before(at, &mut place);
                return Hold::Pause;
            }
            self.budget -= 1;
            self.visited += 1;
            visits += 1;
            let verdict = {
                let _inside = Inside::new(self.view.lists, &off);
                let token = Locked {
                    memcg: self.memcg,
                    node: self.node,
                    budget: &self.budget,
                };
                walk.visit(item, token)
            };
            match verdict {
                Verdict::Removed | Verdict::RemovedRetry => {
                    if let Some(pointer) = self.view.take::<T>(&mut place, at.get()) {
                        in_hand.push(pointer);
                        tally.removed += 1;
                        self.removed += 1;
                    }
                    if verdict == Verdict::RemovedRetry {
                        return Hold::Restart;
                    }
                }
                Verdict::Rotate => {
                    self.view.own(&place, at);
                    place.list.chain.rotate(at);
                }
                Verdict::Skip => self.view.own(&place, at),
                Verdict::Retry => return Hold::Restart,
                Verdict::Stop => return Hold::Ended(WalkEnd::Stopped),
            }
        }
        Hold::Ended(WalkEnd::Complete)
    }
}

impl<P: Platform> View<'_, P> {
    /// Takes an object off a locked sub-list. The total is the caller's to correct.
    pub(super) fn take<T: ListItem>(
        self,
        place: &mut Place<'_, P>,
        link: &Link,
    ) -> Option<T::Pointer> {
        let taken = place.list.chain.remove::<T>(link)?;
        place.slot.set_len(place.slot.len().saturating_sub(1));
        self.memcgs.owners().put(taken.owner, 1);
        Some(taken.into_pointer())
    }

    /// The owner slot that objects of a locked sub-list name when they are new.
    pub(super) fn owner_of(self, lruvec: LruVecIndex) -> Option<OwnerIndex> {
        self.memcgs.current_at(lruvec)
    }

    /// Makes an object that was inherited from a dead group name its new owner, so that the old one's slot can be free.
    fn own(self, place: &Place<'_, P>, node: Node) {
        let Some(((_, named), owner)) = node.get().place().zip(self.owner_of(place.lruvec)) else {
            return;
        };
        if named != owner {
            self.memcgs.owners().charge(owner, 1);
            let old = node.get().rename(owner);
            self.memcgs.owners().put(old, 1);
        }
    }
}

/// Objects that left a list, taken from the node's total when dropped.
struct Tally<'a> {
    total: Option<&'a AtomicU64>,
    removed: u64,
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        if let Some(total) = self.total.filter(|_| self.removed > 0) {
            total.fetch_sub(self.removed, Ordering::Relaxed);
        }
    }
}

/// A callback that runs on this CPU.
struct Inside<'a>(&'a AtomicU32);

impl<'a> Inside<'a> {
    fn new<P: Platform>(lists: &'a ListLrus<P>, off: &IrqOff<P>) -> Self {
        let (count, _) = lists.callbacks_of(off);
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A walk's place in a list between two holds. Its link is older than itself, so it is off the list before the link goes.
struct Marker<'a, P: Platform> {
    view: View<'a, P>,
    list: &'a List<P>,
    link: &'a Link,
}

impl<P: Platform> Marker<'_, P> {
    /// Stands in front of `next` when the lock is dropped.
    fn leave_before(&self, next: Node, place: &mut Place<'_, P>) {
        // A living group's lruvec always has an owner.
        if let Some(owner) = self.view.owner_of(place.lruvec) {
            self.view.memcgs.owners().charge(owner, 1);
            let list = self.list.address();
            place.list.chain.push_marker(self.link, next, list, owner);
        }
    }

    /// Locks the list that it stands in, and leaves it; answers what it stood in front of.
    fn take<'o>(&'o self, off: &'o IrqOff<P>) -> Option<(Place<'o, P>, Option<Node>)> {
        let mut place = self.view.lock_link(self.list, self.link, off)?;
        let (owner, next) = place.list.chain.remove_marker(self.link)?;
        self.view.memcgs.owners().put(owner, 1);
        Some((place, next))
    }
}

impl<P: Platform> Drop for Marker<'_, P> {
    fn drop(&mut self) {
        // On a list only if the kernel's code panicked between two holds.
        drop(self.take(&IrqOff::new()));
    }
}
