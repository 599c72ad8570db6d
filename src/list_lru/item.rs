//! Links inside the kernel's objects (UNSAFE 2).
//!
//! Owns: [`Link`], the part of an object that a list uses; [`ListItem`] and [`ItemPointer`], what a kernel says of its objects;
//! `Chain`, a doubly linked list of links.
//! Invariants: see below. Lock ranks: a chain is data of a `ListLru` lock. Used by: list_lru.
//!
//! # Why safe callers cannot break a list
//!
//! **An object that is on a list is owned by the list.** Adding takes an [`ItemPointer`] (an `Arc`, a `&'static`) by value and keeps
//! it; removing gives it back. So while it is listed the object is neither dropped, nor moved, nor borrowed mutably: nobody
//! can do that to what an `Arc` with another owner, or a `&'static`, points at. Forgetting the list handle leaks its objects, it
//! does not free them; items are `'static`, so what is leaked stays valid.
//!
//! **`ListItem::link` may answer anything.** It is called with a borrow that lives as long as the list owns the object, so the
//! link that it returns does too, whatever it belongs to. Only the answer at the time of adding is used for linking. `delete`
//! asks again; if it gets another listed link, then that one's object comes off its list, and its pointer, of the same type,
//! is returned: a list's address stands for one type, and is compared under the lock.
//!
//! **Twice is refused.** A link is free, claimed, or names its list; adding claims it by compare-exchange first, so of two
//! threads that add one object one gets its pointer back. Of two that delete it, the first under the lock gets the pointer.
//!
//! **The right lock.** A chain's links are changed under that chain's lock only. lookup.rs finds it, and looks again once it is held.
//! This file trusts lookup.rs, walk.rs and reparent.rs to call `remove` on the chain that holds the link; a link whose neighbours
//! do not point back at it is left alone and reported.
//!
//! All parts of a link are atomics and are reached by shared reference only: no `&mut` to anything that another thread may look
//! at is ever made, and an early look, before the lock, is a stale answer and not a race.
#![allow(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc as heap;

use core::marker::PhantomData;
use core::ptr::{NonNull, null_mut};

use crate::memcg::OwnerIndex;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// On no list.
const FREE: usize = 0;
/// About to be put on a list. No list's address: lists are aligned.
const CLAIMED: usize = 1;

/// The part of an object that a list needs: one per object, 40 bytes on 64-bit machines.
#[derive(Debug)]
pub struct Link {
    /// [`FREE`], [`CLAIMED`], or the address of the list. Changed to and from an address under the lock of the chain.
    list: AtomicUsize,
    /// Whose chain. Changed under the lock of the chain, before `list` names the list.
    owner: AtomicU32,
    // The rest is guarded by the lock of the chain.
    previous: AtomicPtr<Link>,
    next: AtomicPtr<Link>,
    /// What `into_raw` gave; null in the marker of a walk.
    object: AtomicPtr<()>,
}

/// An object that can stand on a [`ListLru`](super::ListLru). `Sync`, since a walk on any CPU looks at it.
///
/// ```
/// use framekeeper::list_lru::{Link, ListItem};
/// struct Dentry {
///     name: &'static str,
///     link: Link,
/// }
/// impl ListItem for Dentry {
///     type Pointer = &'static Dentry;
///     fn link(&self) -> &Link {
///         &self.link
///     }
/// }
/// ```
pub trait ListItem: Sized + Sync + 'static {
    /// What owns an object while it is listed.
    type Pointer: ItemPointer<Self>;

    /// The object's link: always the same one.
    fn link(&self) -> &Link;
}

/// A pointer that owns, or shares, an object.
///
/// # Safety
///
/// Between `into_raw` and the `from_raw` that undoes it, the object is valid for shared use from any thread, stays where it is, and is
/// not borrowed mutably. With the feature `alloc`, an `Arc` is one: its count keeps the object. A kernel's own counted pointer
/// gives up its count in `into_raw`, as `Arc::into_raw` does:
///
/// ```
/// # use core::ptr::NonNull;
/// # use framekeeper::list_lru::{ItemPointer, Link, ListItem};
/// # use std::sync::Arc;
/// # struct Inode { link: Link }
/// # impl ListItem for Inode { type Pointer = Counted; fn link(&self) -> &Link { &self.link } }
/// struct Counted(Arc<Inode>);
/// // SAFETY: the count that `into_raw` gives up keeps the object where it is, shared, until `from_raw` takes it back.
/// unsafe impl ItemPointer<Inode> for Counted {
///     fn into_raw(self) -> NonNull<Inode> {
///         NonNull::new(Arc::into_raw(self.0).cast_mut()).expect("an Arc is not null")
///     }
///     unsafe fn from_raw(raw: NonNull<Inode>) -> Self {
///         // SAFETY: the caller has it from `into_raw`, and uses it once.
///         Self(unsafe { Arc::from_raw(raw.as_ptr()) })
///     }
/// }
/// ```
pub unsafe trait ItemPointer<T>: Sized + Send + 'static {
    /// Gives up the pointer.
    fn into_raw(self) -> NonNull<T>;

    /// Takes it back.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Self::into_raw) of this type, and is taken back once.
    unsafe fn from_raw(raw: NonNull<T>) -> Self;
}

// SAFETY: what a `&'static` points at is never dropped, moved or borrowed mutably.
unsafe impl<T: Sync + 'static> ItemPointer<T> for &'static T {
    fn into_raw(self) -> NonNull<T> {
        NonNull::from(self)
    }
    unsafe fn from_raw(raw: NonNull<T>) -> Self {
        // SAFETY: it came from a `&'static T`.
        unsafe { raw.as_ref() }
    }
}

// SAFETY: the count that `into_raw` gives up keeps the object where it is, shared, until `from_raw` takes it back. It is `Send`
// and `Sync`, so any thread may be the last to drop it.
#[cfg(feature = "alloc")]
unsafe impl<T: Send + Sync + 'static> ItemPointer<T> for heap::sync::Arc<T> {
    fn into_raw(self) -> NonNull<T> {
        let raw = heap::sync::Arc::into_raw(self).cast_mut();
        NonNull::new(raw).expect("an Arc is not null")
    }
    unsafe fn from_raw(raw: NonNull<T>) -> Self {
        // SAFETY: the caller has it from `into_raw`, and uses it once.
        unsafe { heap::sync::Arc::from_raw(raw.as_ptr()) }
    }
}

impl Link {
    /// A link that is on no list.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            list: AtomicUsize::new(FREE),
            owner: AtomicU32::new(0),
            previous: AtomicPtr::new(null_mut()),
            next: AtomicPtr::new(null_mut()),
            object: AtomicPtr::new(null_mut()),
        }
    }

    /// A link that is on no list. Not `const`: loom's atomics are not.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            list: AtomicUsize::new(FREE),
            owner: AtomicU32::new(0),
            previous: AtomicPtr::new(null_mut()),
            next: AtomicPtr::new(null_mut()),
            object: AtomicPtr::new(null_mut()),
        }
    }

    /// Whether the link was on a list at this moment. Stale as soon as it is known.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.list.load(Ordering::Relaxed) > CLAIMED
    }

    /// The list and owner that the link names, if it is listed. Stable only under the lock of that chain.
    pub(super) fn place(&self) -> Option<(usize, OwnerIndex)> {
        // Acquire pairs with the Release of `enter`: the owner is that of this stay on the list, or of a later one.
        let list = self.list.load(Ordering::Acquire);
        (list > CLAIMED).then(|| (list, self.owner.load(Ordering::Relaxed)))
    }

    /// Changes the owner to another name of the same chain, whose lock the caller holds. Returns the old one.
    pub(super) fn rename(&self, owner: OwnerIndex) -> OwnerIndex {
        let old = self.owner.load(Ordering::Relaxed);
        self.owner.store(owner, Ordering::Relaxed);
        old
    }

    /// Under the lock of a chain: the link is on it from now on.
    fn enter(&self, list: usize, owner: OwnerIndex) {
        self.owner.store(owner, Ordering::Relaxed);
        // Release pairs with the Acquire of `place`.
        self.list.store(list, Ordering::Release);
    }

    fn claim(&self) -> bool {
        // Acquire pairs with the Release of `leave`: the last stay on a list is over.
        self.list
            .compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    fn leave(&self) {
        self.list.store(FREE, Ordering::Release);
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

/// An object whose link is claimed, and that is on no list yet.
#[must_use]
pub(super) struct Claimed<T: ListItem> {
    link: Node,
    object: NonNull<T>,
}

impl<T: ListItem> Claimed<T> {
    /// Claims the link of an object; gives the pointer back if it is listed, or being listed.
    pub(super) fn new(pointer: T::Pointer) -> Result<Self, T::Pointer> {
        let object = pointer.into_raw();
        // SAFETY: `into_raw` promises shared use until `from_raw`, which is not before the link is free again.
        let item = unsafe { object.as_ref() };
        let link = item.link();
        if link.claim() {
            let link = Node(NonNull::from(link));
            return Ok(Self { link, object });
        }
        // SAFETY: `object` came from `into_raw` above, and is taken back here alone.
        Err(unsafe { T::Pointer::from_raw(object) })
    }

    /// Frees the link and gives the pointer back.
    pub(super) fn give_back(self) -> T::Pointer {
        self.link.get().leave();
        // SAFETY: `object` came from `into_raw` in `new`, and `self` is gone.
        unsafe { T::Pointer::from_raw(self.object) }
    }
}

/// An object that was taken off a list, its link free.
#[must_use]
pub(super) struct Taken<T: ListItem> {
    object: NonNull<()>,
    /// Whose chain it was on: a reference that the caller must put.
    pub(super) owner: OwnerIndex,
    list: PhantomData<T>,
}

impl<T: ListItem> Taken<T> {
    pub(super) fn into_pointer(self) -> T::Pointer {
        // SAFETY: the chain kept what `into_raw` gave when it was added, and `remove` took it out once. The list's
        // address, compared under the lock, stands for items of type `T`.
        unsafe { T::Pointer::from_raw(self.object.cast()) }
    }
}

/// A link on a chain whose lock is held, or a claimed one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Node(NonNull<Link>);

impl Node {
    pub(super) fn get(&self) -> &Link {
        // SAFETY: a node is made from a link that is claimed or on a chain, whose object the list owns, or from the marker
        // of a walk, which leaves the chain before it goes.
        unsafe { self.0.as_ref() }
    }

    fn of(pointer: *mut Link) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    fn pointer(node: Option<Self>) -> *mut Link {
        node.map_or(null_mut(), |node| node.0.as_ptr())
    }

    /// Whether it belongs to an object, and not to a walk.
    pub(super) fn is_item(self) -> bool {
        !self.get().object.load(Ordering::Relaxed).is_null()
    }
}

/// Links from the oldest to the newest, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Chain {
    first: Option<Node>,
    last: Option<Node>,
}

// SAFETY: links are atomics, and pointers to objects are `Send` (`ItemPointer` demands it).
unsafe impl Send for Chain {}

impl Chain {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The oldest node.
    pub(super) fn first(&self) -> Option<Node> {
        self.first
    }

    /// The node after one of this chain's.
    pub(super) fn after(&self, node: Node) -> Option<Node> {
        Node::of(node.get().next.load(Ordering::Relaxed))
    }

    fn before(&self, node: Node) -> Option<Node> {
        Node::of(node.get().previous.load(Ordering::Relaxed))
    }

    /// The object of a node of this chain, for as long as the chain stays locked and unchanged. `None` for a marker.
    pub(super) fn item<T: ListItem>(&self, node: Node) -> Option<&T> {
        let object = NonNull::new(node.get().object.load(Ordering::Relaxed))?;
        // SAFETY: the list owns the object while its link is on the chain, which `&self` keeps as it is; chains of this
        // list hold objects of type `T`.
        Some(unsafe { object.cast::<T>().as_ref() })
    }

    /// Appends an object as the newest.
    pub(super) fn push_back<T: ListItem>(
        &mut self,
        claimed: Claimed<T>,
        list: usize,
        owner: OwnerIndex,
    ) {
        let node = claimed.link;
        let object = claimed.object.as_ptr().cast();
        node.get().object.store(object, Ordering::Relaxed);
        self.insert(node, self.last, None);
        node.get().enter(list, owner);
    }

    /// Puts the marker of a walk in front of `next`. The marker must be removed before it goes.
    pub(super) fn push_marker(
        &mut self,
        marker: &Link,
        next: Node,
        list: usize,
        owner: OwnerIndex,
    ) {
        let node = Node(NonNull::from(marker));
        self.insert(node, self.before(next), Some(next));
        marker.enter(list, owner);
    }

    /// Takes a link off this chain, which the caller knows to hold it. `None`, with nothing changed, if its neighbours do not
    /// point back at it: something wrote over a link.
    pub(super) fn remove<T: ListItem>(&mut self, link: &Link) -> Option<Taken<T>> {
        let node = self.unlink(link)?;
        let object = NonNull::new(node.get().object.load(Ordering::Relaxed))?;
        let owner = node.get().owner.load(Ordering::Relaxed);
        node.get().leave();
        Some(Taken {
            object,
            owner,
            list: PhantomData,
        })
    }

    /// Takes the marker of a walk off this chain; answers its owner and the node after it.
    pub(super) fn remove_marker(&mut self, marker: &Link) -> Option<(OwnerIndex, Option<Node>)> {
        let next = Node::of(marker.next.load(Ordering::Relaxed));
        let node = self.unlink(marker)?;
        let owner = node.get().owner.load(Ordering::Relaxed);
        node.get().leave();
        Some((owner, next))
    }

    /// Makes a node of this chain its newest.
    pub(super) fn rotate(&mut self, node: Node) {
        if self.unlink(node.get()).is_some() {
            self.insert(node, self.last, None);
        }
    }

    /// Takes over all of `older`, in front of its own: constant time.
    pub(super) fn splice_front(&mut self, older: &mut Self) {
        let Self { first, last } = core::mem::take(older);
        join(last, self.first);
        self.first = first.or(self.first);
        self.last = self.last.or(last);
    }

    fn insert(&mut self, node: Node, previous: Option<Node>, next: Option<Node>) {
        join(previous, Some(node));
        join(Some(node), next);
        if previous.is_none() {
            self.first = Some(node);
        }
        if next.is_none() {
            self.last = Some(node);
        }
    }

    fn unlink(&mut self, link: &Link) -> Option<Node> {
        let node = Node(NonNull::from(link));
        let (previous, next) = (self.before(node), self.after(node));
        let from_before = previous.map_or(self.first, |previous| self.after(previous));
        let from_after = next.map_or(self.last, |next| self.before(next));
        if from_before != Some(node) || from_after != Some(node) {
            debug_assert!(false, "a link's neighbours do not point back at it");
            return None;
        }
        match (previous, next) {
            (None, None) => (self.first, self.last) = (None, None),
            (None, _) => self.first = next,
            (_, None) => self.last = previous,
            _ => {}
        }
        join(previous, next);
        for end in [&link.previous, &link.next] {
            end.store(null_mut(), Ordering::Relaxed);
        }
        Some(node)
    }
}

/// Makes two nodes neighbours; where one is missing, the other becomes an end.
fn join(previous: Option<Node>, next: Option<Node>) {
    if let Some(node) = previous {
        node.get()
            .next
            .store(Node::pointer(next), Ordering::Relaxed);
    }
    if let Some(node) = next {
        node.get()
            .previous
            .store(Node::pointer(previous), Ordering::Relaxed);
    }
}
