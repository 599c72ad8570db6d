//! `memory.events` and `memory.events.local` of one group.
//!
//! Owns: [`MemoryEvents`]. Invariants: one line a kind, in the order of Linux's files. Lock ranks: none. Used by: report.

use core::fmt;

use crate::memcg::{Event, MemcgId};
use crate::mm::{Mm, NoSuchGroup};
use crate::platform::Platform;

/// How often a group met its limits and protections.
///
/// ```text
/// low 0
/// high 0
/// max 12
/// oom 1
/// oom_kill 1
/// oom_group_kill 0
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryEvents(pub [u64; Event::COUNT]);

impl MemoryEvents {
    /// Events of the group and of all that ever were below it: `memory.events`.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn of<P: Platform>(mm: &Mm<P>, memcg: MemcgId) -> Result<Self, NoSuchGroup> {
        mm.memcg_max(memcg)?;
        Ok(Self(mm.memcgs().events(memcg.slot).map(|(_, tree)| tree)))
    }

    /// Events of the group alone: `memory.events.local`.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn local<P: Platform>(mm: &Mm<P>, memcg: MemcgId) -> Result<Self, NoSuchGroup> {
        mm.memcg_max(memcg)?;
        Ok(Self(mm.memcgs().events(memcg.slot).map(|(local, _)| local)))
    }

    /// How often one kind happened.
    #[must_use]
    pub fn count(&self, event: Event) -> u64 {
        self.0[event as usize]
    }
}

impl fmt::Display for MemoryEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in Event::ALL {
            writeln!(f, "{} {}", event.name(), self.count(event))?;
        }
        Ok(())
    }
}
