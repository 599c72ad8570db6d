//! Objects of the kernel, eight to a frame that is charged to a group. Each holds a reference to the frame's folio, so the frame
//! goes with the last of them.

use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;

use framekeeper::list_lru::{ItemPointer, Link, ListItem};
use framekeeper::{Folio, MemcgId, NodeId, Pfn};
use spin::Mutex;

use crate::fault::{self, Fault};
use crate::port::{self, Port};
use crate::{arch, disk};

/// Owners of objects.
pub const GROUPS: usize = 16;
const BYTES: usize = 512;
/// Objects in a frame.
pub const PER_FRAME: usize = 4096 / BYTES;
const WORDS: usize = 56;

/// An object. Its contents follow from its key.
#[repr(C, align(512))]
pub struct Object {
    link: Link,
    pub key: Key,
    /// Since the shrinker looked last.
    pub used: AtomicBool,
    contents: [u64; WORDS],
}

const _: () = assert!(size_of::<Object>() == BYTES);

/// Whose object, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    pub group: usize,
    pub number: usize,
}

/// A pointer that owns an object, and with it a reference to the folio that it is in.
pub struct Owned(NonNull<Object>);

impl Owned {
    pub fn pointer(&self) -> NonNull<Object> {
        self.0
    }
}

impl Object {
    /// Whether it is the one of a key, and holds what was written.
    pub fn is_sound(&self, key: Key) -> bool {
        let same = |(word, &value): (usize, &u64)| value == key.word(word);
        self.key == key && self.contents.iter().enumerate().all(same)
    }
}

// SAFETY: an object is reached by shared reference only.
unsafe impl Send for Owned {}

// SAFETY: the object stays where it is, in a folio that has a reference for it, until `Owned` is dropped.
unsafe impl ItemPointer<Object> for Owned {
    fn into_raw(self) -> NonNull<Object> {
        let object = self.0;
        core::mem::forget(self);
        object
    }

    unsafe fn from_raw(raw: NonNull<Object>) -> Self {
        Self(raw)
    }
}

impl ListItem for Object {
    type Pointer = Owned;

    fn link(&self) -> &Link {
        &self.link
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mm = port::mm().expect("it runs");
        // SAFETY: `Slab::take` gave each object a reference of its own.
        drop(unsafe { mm.folio_from_raw(frame_of(self.0)) });
    }
}

/// The frame that new objects of a group are taken from.
struct Slab {
    folio: Folio<'static, Port>,
    taken: usize,
}

static SLABS: [Mutex<Option<Slab>>; GROUPS] = [const { Mutex::new(None) }; GROUPS];

/// Gives up the frame from which a group's next objects would come.
pub fn retire(group: usize) {
    let slab = SLABS[group].lock().take();
    drop(slab);
}

/// The frame from which a group's next objects come.
pub fn current_frame(group: usize) -> Option<Pfn> {
    SLABS[group].lock().as_ref().map(|slab| slab.folio.pfn())
}

/// The frame that an object is in.
pub fn frame_of(object: NonNull<Object>) -> Pfn {
    Pfn(arch::physical(object.as_ptr().cast_const().cast()).0 >> 12)
}

/// An object, and the node that it is on. May reclaim.
pub fn make(key: Key, memcg: MemcgId) -> Result<(Owned, NodeId), Fault> {
    let mm = port::mm().expect("started");
    loop {
        let slab = &SLABS[key.group];
        if let Some(object) = slab.lock().as_mut().and_then(|slab| slab.take(key)) {
            let node = mm.allocator().node_of(frame_of(object.0));
            return Ok((object, node.unwrap_or_default()));
        }
        let folio = fault::new_folio(memcg)?; // may reclaim, and call the shrinker
        let old = slab.lock().replace(Slab { folio, taken: 0 });
        drop(old);
    }
}

impl Slab {
    /// The next object, with a reference of its own; none if all are taken.
    fn take(&mut self, key: Key) -> Option<Owned> {
        let at = (self.taken < PER_FRAME).then_some(self.taken)?;
        self.taken += 1;
        let frame = disk::frame(self.folio.reference().into_raw());
        // SAFETY: the frame is the slab's, this part of it was not given out before, and nobody else knows it.
        let object = unsafe {
            let object = frame.cast::<Object>().add(at);
            object.write(Object {
                link: Link::new(),
                key,
                used: AtomicBool::new(false),
                contents: core::array::from_fn(|word| key.word(word)),
            });
            NonNull::new_unchecked(object)
        };
        Some(Owned(object))
    }
}

impl Key {
    fn word(self, word: usize) -> u64 {
        let seed = (self.group << 32 | self.number << 8 | word) as u64;
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
