//! What happened to a group at its limits: `memory.events`.
//!
//! Owns: [`Event`], [`Events`].
//! Invariants: an event counts at the group where it happened, and in the tree count of that group and all above it.
//! Lock ranks: none. Used by: memcg's charges, reclaim, report.

use super::tree::{Group, Slot};
use super::{MemcgId, Memcgs, ROOT};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Something that a group's limits or protections caused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Event {
    /// It was reclaimed from although below its effective `low`.
    Low,
    /// It was reclaimed from, or a thread was to wait, because it was above its `high`.
    High,
    /// A charge met its `max`: once for each charge, also if that was then forced.
    Max,
    /// A charge found nothing to reclaim.
    Oom,
    /// A task was killed.
    OomKill,
    /// The whole group was killed.
    OomGroupKill,
}

impl Event {
    /// Number of kinds.
    pub const COUNT: usize = 6;
    /// All kinds, in the order of Linux's file.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Low,
        Self::High,
        Self::Max,
        Self::Oom,
        Self::OomKill,
        Self::OomGroupKill,
    ];

    /// Its name in `memory.events`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::High => "high",
            Self::Max => "max",
            Self::Oom => "oom",
            Self::OomKill => "oom_kill",
            Self::OomGroupKill => "oom_group_kill",
        }
    }
}

/// One group's events.
#[derive(Debug, Default)]
pub(super) struct Events {
    local: [AtomicU64; Event::COUNT],
    tree: [AtomicU64; Event::COUNT],
}

impl Events {
    /// As new.
    pub(super) fn reset(&self) {
        for count in self.local.iter().chain(&self.tree) {
            count.store(0, Ordering::Relaxed);
        }
    }
}

impl<P: Platform> Memcgs<P> {
    /// Counts an event at a group. No effect if it is gone.
    pub(crate) fn raise(&self, id: MemcgId, event: Event) {
        // Pinned: the groups above cannot end, and their places be taken, meanwhile.
        let _pin = self.epoch.pin();
        let count = |group: &Group| {
            group.events.tree[event as usize].fetch_add(1, Ordering::Relaxed);
        };
        if let Some(group) = self.live(id) {
            group.events.local[event as usize].fetch_add(1, Ordering::Relaxed);
            for at in self.path(id.slot).chain([ROOT]) {
                count(&self.groups[at as usize]);
            }
        }
    }

    /// Events of the group alone, and of it and all that ever were below it.
    pub(crate) fn events(&self, slot: Slot) -> [(u64, u64); Event::COUNT] {
        let events = self.groups.get(slot as usize).map(|group| &group.events);
        Event::ALL.map(|event| {
            events.map_or((0, 0), |events| {
                let of = |counts: &[AtomicU64]| counts[event as usize].load(Ordering::Relaxed);
                (of(&events.local), of(&events.tree))
            })
        })
    }
}
