//! A kernel's objects: counted, so that a test knows what is left of them. The test says what owns them, in its `Pointer`.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses the part it needs"
)]

extern crate std;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::vec::Vec;

use framekeeper::list_lru::{Link, ListItem, Locked, Unlocked, Verdict, Walk};

use super::Pointer;

/// An inode, say.
#[derive(Debug)]
pub struct Thing {
    pub name: u64,
    /// Used since the last look.
    pub used: AtomicBool,
    /// Things that were dropped, if somebody counts.
    pub dropped: Option<Arc<AtomicU64>>,
    link: Link,
}

impl Thing {
    pub fn named(name: u64) -> Pointer {
        Pointer::from(Self {
            name,
            used: AtomicBool::new(false),
            dropped: None,
            link: Link::new(),
        })
    }

    /// One whose end is counted.
    pub fn counted(name: u64, dropped: &Arc<AtomicU64>) -> Pointer {
        Pointer::from(Self {
            name,
            used: AtomicBool::new(false),
            dropped: Some(Arc::clone(dropped)),
            link: Link::new(),
        })
    }
}

impl PartialEq for Thing {
    /// The same object, not one of the same name.
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        assert!(!self.link.is_listed(), "dropped while listed");
        if let Some(dropped) = &self.dropped {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl ListItem for Thing {
    type Pointer = Pointer;
    fn link(&self) -> &Link {
        &self.link
    }
}

// With the feature, the library has it.
// SAFETY: the count that `into_raw` gives up keeps the thing where it is, shared, until `from_raw` takes it back.
#[cfg(not(feature = "alloc"))]
#[allow(unsafe_code)]
unsafe impl framekeeper::list_lru::ItemPointer<Thing> for Arc<Thing> {
    fn into_raw(self) -> core::ptr::NonNull<Thing> {
        let raw = Arc::into_raw(self).cast_mut();
        core::ptr::NonNull::new(raw).expect("an Arc is not null")
    }
    unsafe fn from_raw(raw: core::ptr::NonNull<Thing>) -> Self {
        // SAFETY: the caller has it from `into_raw`, and uses it once.
        unsafe { Arc::from_raw(raw.as_ptr()) }
    }
}

/// A walk that answers by a function, and keeps what it removed.
pub struct Collect<F> {
    pub judge: F,
    pub visited: Vec<u64>,
    pub removed: Vec<Pointer>,
    pub unlocked: u64,
}

impl<F: FnMut(&Thing) -> Verdict> Collect<F> {
    pub fn new(judge: F) -> Self {
        Self {
            judge,
            visited: Vec::new(),
            removed: Vec::new(),
            unlocked: 0,
        }
    }

    pub fn removed_names(&self) -> Vec<u64> {
        self.removed.iter().map(|thing| thing.name).collect()
    }
}

impl<F: FnMut(&Thing) -> Verdict> Walk<Thing> for Collect<F> {
    fn visit(&mut self, item: &Thing, _token: Locked<'_>) -> Verdict {
        self.visited.push(item.name);
        (self.judge)(item)
    }
    fn removed(&mut self, item: Pointer, _token: Unlocked<'_>) {
        self.removed.push(item);
    }
    fn unlocked(&mut self, _token: Unlocked<'_>) {
        self.unlocked += 1;
    }
}
