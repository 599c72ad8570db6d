//! A cache of the kernel's own objects: found by key, in the order of their use on a `ListLru`, freed by a shrinker.
//!
//! An object's key is looked up under the lock of its place in the index; the shrinker, which holds its list's lock, only
//! tries that one.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use framekeeper::list_lru::{AddError, ListLru, Locked, Scope, Unlocked, Verdict, Walk};
use framekeeper::shrinker::{Count, Scan, Target, UnregisterError};
use framekeeper::{MemcgId, NodeId, Pfn, Refused, Shrinker, ShrinkerConfig, ShrinkerId};
use spin::{Mutex, RwLock};

use crate::fault::Fault;
use crate::port::{self, Port};
use crate::scenario::Failure;
use crate::slab::{self, Object, Owned};

pub use crate::slab::{GROUPS, Key, PER_FRAME, retire};

/// Keys of each group.
pub const KEYS: usize = 4096;

/// An object, as long as it is in the cache: the list owns it.
struct Cached(NonNull<Object>);

// SAFETY: as for `Owned`; it is looked at under the lock of its place.
unsafe impl Send for Cached {}

type List = ListLru<'static, Object, Port>;

static LIST: RwLock<Option<List>> = RwLock::new(None);

static ID: Mutex<Option<ShrinkerId>> = Mutex::new(None);
static INDEX: [[Mutex<Option<Cached>>; KEYS]; GROUPS] =
    [const { [const { Mutex::new(None) }; KEYS] }; GROUPS];

static MADE: AtomicU64 = AtomicU64::new(0);
static FOUND: AtomicU64 = AtomicU64::new(0);
static SHRUNK: AtomicU64 = AtomicU64::new(0);

/// Why an object cannot be had.
#[derive(Debug)]
pub enum ObjectError {
    Frame(Fault),
    Add(AddError),
    /// It does not hold what was written.
    Corrupt(Key),
    /// The cache is not open.
    Closed,
}

/// Opens the cache.
pub fn open() -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    let id = mm
        .register_shrinker(&Cache, ShrinkerConfig::default())
        .map_err(Failure::Shrinkers)?;
    let list = mm
        .list_lru(Scope::Groups, Some(id))
        .map_err(Failure::List)?;
    *LIST.write() = Some(list);
    *ID.lock() = Some(id);
    Ok(())
}

/// Drops every object, and the cache. Nobody uses it.
pub fn close() -> Result<(), UnregisterError> {
    let mm = port::mm().expect("started");
    if let Some(id) = ID.lock().take() {
        mm.unregister_shrinker(id)?;
    }
    for place in INDEX.iter().flatten() {
        *place.lock() = None;
    }
    let list = LIST.write().take();
    drop(list); // with the objects
    (0..GROUPS).for_each(slab::retire);
    Ok(())
}

/// Uses an object: looks at its contents. Makes it, charged to the group, if it is not in the cache.
pub fn look_up(key: Key, memcg: MemcgId) -> Result<(), ObjectError> {
    let place = &INDEX[key.group][key.number];
    if let Some(cached) = &*place.lock() {
        return cached.look(key);
    }
    let (new, node) = slab::make(key, memcg).map_err(ObjectError::Frame)?;
    let mut place = place.lock();
    if let Some(cached) = &*place {
        return cached.look(key); // another CPU was faster
    }
    let object = Cached(new.pointer());
    let list = LIST.read();
    let list = list.as_ref().ok_or(ObjectError::Closed)?;
    match list.add(memcg, node, new) {
        Ok(_) => {
            *place = Some(object);
            MADE.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        Err(Refused(why, _)) => Err(ObjectError::Add(why)),
    }
}

/// Objects of a memcg.
pub fn count(memcg: MemcgId) -> u64 {
    let mm = port::mm().expect("started");
    let list = LIST.read();
    let nodes = (0..mm.allocator().config().nodes).map(|node| NodeId(node as u8));
    list.as_ref()
        .map_or(0, |list| nodes.map(|node| list.count(memcg, node)).sum())
}

/// Objects made, found in the cache, and freed by the shrinker.
pub fn counts() -> (u64, u64, u64) {
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    (of(&MADE), of(&FOUND), of(&SHRUNK))
}

/// Calls `act` with the frame of every object, and of every slab, and the group that it was charged to.
pub fn each_frame(mut act: impl FnMut(Pfn, usize)) {
    for (group, places) in INDEX.iter().enumerate() {
        for cached in places
            .iter()
            .filter_map(|place| place.lock().as_ref().map(|c| c.0))
        {
            act(slab::frame_of(cached), group);
        }
        if let Some(frame) = slab::current_frame(group) {
            act(frame, group);
        }
    }
}

impl Cached {
    fn look(&self, key: Key) -> Result<(), ObjectError> {
        // SAFETY: its place names it, so the list owns it: the shrinker clears the place first, which the caller has locked.
        let object = unsafe { self.0.as_ref() };
        object.used.store(true, Ordering::Relaxed);
        FOUND.fetch_add(1, Ordering::Relaxed);
        if object.is_sound(key) {
            Ok(())
        } else {
            Err(ObjectError::Corrupt(key))
        }
    }
}

struct Cache;

impl Shrinker for Cache {
    fn count(&self, target: Target) -> Count {
        let list = LIST.read();
        match list
            .as_ref()
            .map(|list| list.count(target.memcg, target.node))
        {
            None | Some(0) => Count::Empty,
            Some(objects) => Count::Objects(objects),
        }
    }

    fn scan(&self, target: Target, objects: u64) -> Scan {
        let list = LIST.read();
        let Some(list) = list.as_ref() else {
            return Scan::Stop;
        };
        let walked = list.walk(target.memcg, target.node, objects, &mut Shrink);
        SHRUNK.fetch_add(walked.removed, Ordering::Relaxed);
        Scan::Done {
            scanned: walked.visited,
            freed: walked.removed,
        }
    }
}

/// Takes what was not used since the last visit.
struct Shrink;

impl Walk<Object> for Shrink {
    fn visit(&mut self, object: &Object, _: Locked<'_>) -> Verdict {
        let Some(mut place) = INDEX[object.key.group][object.key.number].try_lock() else {
            return Verdict::Skip; // in use
        };
        if object.used.swap(false, Ordering::Relaxed) {
            return Verdict::Rotate;
        }
        *place = None;
        Verdict::Removed
    }

    fn removed(&mut self, object: Owned, _: Unlocked<'_>) {
        drop(object);
    }
}

impl core::fmt::Display for ObjectError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Frame(why) => why.fmt(f),
            Self::Add(why) => write!(f, "the list refuses it: {why:?}"),
            Self::Corrupt(key) => write!(f, "{key:?} does not hold what was written"),
            Self::Closed => f.write_str("the cache is closed"),
        }
    }
}
