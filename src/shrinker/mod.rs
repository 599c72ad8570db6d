//! Caches that the kernel keeps of its own objects, and how reclaim asks them for less.
//!
//! Owns: [`Shrinker`], what a cache answers; the registry of them; the bits that say which have something to give, and the work put
//! off, by group and node (map.rs); how much is asked for at once (work.rs).
//! Invariants: a group's bit of a shrinker is set whenever the shrinker has objects there, or someone is between adding and
//! setting. A call runs on a registered shrinker only, and is counted until it returns. What a call leaves undone is deferred, up
//! to twice the objects there are; a group's deferred work is its parent's when it ends.
//! Everything is carved when the instance is built, for `MmConfig::shrinkers` shrinkers: maps never grow.
//! Lock ranks: `Shrinkers`, one entry at a time, never held while a shrinker runs: shrinkers may sleep, allocate, and lock.
//! Used by: list_lru (sets bits), mm (registration, groups that end), reclaim (calls).

#[cfg(all(test, loom))]
mod loom_tests;
mod map;
mod work;

use core::fmt;

use crate::addr::NodeId;
use crate::boot::{Bump, StorageFull};
use crate::memcg::MemcgId;
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::{CachePadded, Lock, Ranked};

use map::Maps;

/// What a call of a shrinker is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Objects of this group. Always the root for a shrinker of [`Scope::Machine`]. It may end during the call.
    pub memcg: MemcgId,
    /// Objects on this node.
    pub node: NodeId,
}

/// How many objects could be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// None at all: no need to ask again before something is added.
    Empty,
    /// This many. With 0 nothing is scanned now, but asked again the next time.
    Objects(u64),
}

/// What a scan did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan {
    /// Nothing can be freed at this moment: the rest is deferred.
    Stop,
    /// It looked at objects.
    Done {
        /// Objects looked at.
        scanned: u64,
        /// Of these, freed.
        freed: u64,
    },
}

/// A cache of objects that can be freed. Called without any lock of the crate's held.
pub trait Shrinker: Sync {
    /// How many objects of the target could be freed. One that is out of sight for a moment, in somebody's hands, counts, or is
    /// [marked](crate::Mm::mark_shrinkable) again when it is back: after [`Count::Empty`] nobody asks until something is marked.
    fn count(&self, target: Target) -> Count;

    /// Looks at up to `objects` objects, more than 0, and frees what is not in use.
    fn scan(&self, target: Target, objects: u64) -> Scan;
}

/// Whether objects belong to groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Each object is some group's, and goes when that group is over its limit.
    Groups,
    /// They are the machine's: kept with the root.
    Machine,
}

/// How a shrinker is to be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShrinkerConfig {
    /// What an object costs to have again, in reads from disk: 2 is usual. With 0, half of all objects are scanned at every priority.
    pub seeks: u32,
    /// Objects asked for in one call of [`Shrinker::scan`]; 128 is usual. 0 counts as 1.
    pub batch: u64,
    /// Whose objects they are.
    pub scope: Scope,
}

impl Default for ShrinkerConfig {
    /// Two seeks, batches of 128 (`DEFAULT_SEEKS`, `SHRINK_BATCH`), objects of groups.
    fn default() -> Self {
        Self {
            seeks: 2,
            batch: 128,
            scope: Scope::Groups,
        }
    }
}

/// Names a registered shrinker. A stale id names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ShrinkerId {
    slot: u32,
    generation: u32,
}

/// All `MmConfig::shrinkers` shrinkers are registered: unregister one, or configure more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyShrinkers {
    /// The configured number.
    pub most: u32,
}

/// Why a shrinker is still registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UnregisterError {
    /// The id names no registered shrinker.
    NoSuchShrinker,
    /// Calls of it are running. No new one begins; unregister again when they have returned.
    Running {
        /// How many.
        calls: u32,
    },
}

/// One place in the registry.
struct Entry {
    shrinker: Option<&'static dyn Shrinker>,
    config: ShrinkerConfig,
    generation: u32,
    /// Calls that run now.
    calls: u32,
    /// Unregistering began: no new call.
    closing: bool,
}

impl Ranked for Entry {
    const RANK: Rank = Rank::Shrinkers;
}

/// The shrinkers of one instance.
#[derive(Debug)]
pub(crate) struct Shrinkers<P: Platform> {
    entries: &'static [CachePadded<Lock<Entry, P>>],
    maps: Maps,
}

/// A shrinker that stays registered meanwhile.
struct Call<'a, P: Platform> {
    entry: &'a Lock<Entry, P>,
    shrinker: &'static dyn Shrinker,
    config: ShrinkerConfig,
}

impl<P: Platform> Shrinkers<P> {
    pub(crate) fn build(
        bump: &mut Bump<'_>,
        shrinkers: u32,
        lruvecs: u32,
    ) -> Result<Self, StorageFull> {
        let entry = |_| {
            CachePadded(Lock::new(Entry {
                shrinker: None,
                config: ShrinkerConfig::default(),
                generation: 0,
                calls: 0,
                closing: false,
            }))
        };
        Ok(Self {
            entries: bump.slots(shrinkers as usize, entry)?,
            maps: Maps::build(bump, shrinkers, lruvecs)?,
        })
    }

    /// Registers a shrinker. Reclaim may call it before this returns.
    pub(crate) fn register(
        &self,
        shrinker: &'static dyn Shrinker,
        config: ShrinkerConfig,
    ) -> Result<ShrinkerId, TooManyShrinkers> {
        let off = IrqOff::new();
        for (slot, entry) in (0..).zip(self.entries) {
            let mut entry = entry.lock(&off);
            if entry.shrinker.is_none() {
                self.maps.forget(slot);
                entry.shrinker = Some(shrinker);
                entry.config = config;
                entry.closing = false;
                let generation = entry.generation;
                return Ok(ShrinkerId { slot, generation });
            }
        }
        Err(TooManyShrinkers {
            most: self.entries.len() as u32,
        })
    }

    /// Ends new calls of a shrinker, and removes it if none runs.
    pub(crate) fn unregister(&self, id: ShrinkerId) -> Result<(), UnregisterError> {
        let off = IrqOff::new();
        let mut entry = self
            .entries
            .get(id.slot as usize)
            .ok_or(UnregisterError::NoSuchShrinker)?
            .lock(&off);
        if entry.shrinker.is_none() || entry.generation != id.generation {
            return Err(UnregisterError::NoSuchShrinker);
        }
        entry.closing = true;
        if entry.calls > 0 {
            return Err(UnregisterError::Running { calls: entry.calls });
        }
        entry.shrinker = None;
        entry.generation = entry.generation.wrapping_add(1);
        Ok(())
    }

    /// The place in the maps of a registered shrinker.
    pub(crate) fn slot_of(&self, id: ShrinkerId) -> Option<u32> {
        let off = IrqOff::new();
        let entry = self.entries.get(id.slot as usize)?.lock(&off);
        (entry.shrinker.is_some() && entry.generation == id.generation).then_some(id.slot)
    }

    /// Begins a call of the shrinker in `slot`.
    fn begin(&self, slot: u32) -> Option<Call<'_, P>> {
        let off = IrqOff::new();
        let lock = &self.entries.get(slot as usize)?.0;
        let mut entry = lock.lock(&off);
        let shrinker = entry.shrinker.filter(|_| !entry.closing)?;
        entry.calls += 1;
        Some(Call {
            entry: lock,
            shrinker,
            config: entry.config,
        })
    }
}

impl<P: Platform> Drop for Call<'_, P> {
    fn drop(&mut self) {
        self.entry.lock(&IrqOff::new()).calls -= 1;
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("registered", &self.shrinker.is_some())
            .field("config", &self.config)
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for TooManyShrinkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.most;
        write!(
            f,
            "all {most} shrinkers are registered: unregister one, or configure more"
        )
    }
}

impl fmt::Display for UnregisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchShrinker => f.write_str("the shrinker is not registered"),
            Self::Running { calls } => write!(
                f,
                "{calls} calls of the shrinker are running: unregister again when they have returned"
            ),
        }
    }
}

impl core::error::Error for TooManyShrinkers {}
impl core::error::Error for UnregisterError {}
