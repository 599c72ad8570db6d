//! A counted pointer to a thing, for race tests: ThreadSanitizer does not know the fence in which `Arc`'s last owner waits for the
//! others, and reports it as a race. Here the order is on the operation.
#![allow(
    dead_code,
    unreachable_pub,
    unsafe_code,
    reason = "each test binary uses the part it needs; a pointer that counts needs unsafe code"
)]

use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use framekeeper::list_lru::ItemPointer;

use super::objects::Thing;

struct Counted {
    thing: Thing,
    owners: AtomicUsize,
}

/// One of the owners of a thing.
pub struct Shared(NonNull<Counted>);

// SAFETY: `Thing` is `Sync` and `Send`; owners count atomically.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// How many owners there were at this moment.
    pub fn owners(&self) -> usize {
        self.counted().owners.load(Ordering::Relaxed)
    }

    fn counted(&self) -> &Counted {
        // SAFETY: it lives until its last owner is dropped, and this is one.
        unsafe { self.0.as_ref() }
    }
}

impl From<Thing> for Shared {
    fn from(thing: Thing) -> Self {
        let owners = AtomicUsize::new(1);
        Self(NonNull::from(Box::leak(Box::new(Counted {
            thing,
            owners,
        }))))
    }
}

impl Clone for Shared {
    fn clone(&self) -> Self {
        self.counted().owners.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Deref for Shared {
    type Target = Thing;
    fn deref(&self) -> &Thing {
        &self.counted().thing
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.counted().owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: this was the last owner, and `From` leaked a box.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

// SAFETY: the count that `into_raw` gives up keeps the thing where it is, shared, until `from_raw` takes it back. The pointer
// stays one to all of `Counted`, of which the thing is a part.
unsafe impl ItemPointer<Thing> for Shared {
    fn into_raw(self) -> NonNull<Thing> {
        let counted = self.0;
        core::mem::forget(self);
        // SAFETY: the field lies within what `counted` points at.
        let thing = unsafe { &raw mut (*counted.as_ptr()).thing };
        NonNull::new(thing).expect("a part of what is there")
    }
    unsafe fn from_raw(raw: NonNull<Thing>) -> Self {
        // SAFETY: `raw` points at the field of a `Counted`, that far into it.
        let counted = unsafe { raw.byte_sub(core::mem::offset_of!(Counted, thing)) };
        Self(counted.cast())
    }
}
