//! What an out-of-memory kill asks of groups.
//!
//! Owns: [`OomSetting`]; what a group has of its own, and which group above it goes with it.
//! Invariants: hints of the moment: a group may end, or free what it has, while it is chosen.
//! Lock ranks: none. Used by: mm (limits), reclaim (oom).

use super::{MemcgId, Memcgs, Slot};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How a group fares when memory runs out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OomSetting {
    /// Thousandths of the memory in question that count as the group's beside what it has; from -1000, which spares it, to 1000.
    /// More counts as that.
    pub adjust: i16,
    /// What goes with it.
    pub scope: OomScope,
}

/// What is killed when a group is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OomScope {
    /// One of its programs.
    #[default]
    One,
    /// Everything in it and below, as if it were one program (`memory.oom.group`).
    All,
}

/// The adjust value that spares a group.
pub(crate) const SPARED: i16 = -1000;
const MOST: i16 = 1000;
const ALL: u32 = 1 << 16;

/// A group's setting as one word: the adjust value's bits, and [`ALL`].
#[derive(Debug, Default)]
pub(super) struct Word(AtomicU32);

impl Word {
    pub(super) fn set(&self, setting: OomSetting) {
        let adjust = setting.adjust.clamp(SPARED, MOST).cast_unsigned();
        let scope = match setting.scope {
            OomScope::One => 0,
            OomScope::All => ALL,
        };
        self.0.store(u32::from(adjust) | scope, Relaxed);
    }

    fn get(&self) -> OomSetting {
        let word = self.0.load(Relaxed);
        let scope = match word & ALL {
            0 => OomScope::One,
            _ => OomScope::All,
        };
        OomSetting {
            adjust: (word as u16).cast_signed(),
            scope,
        }
    }
}

impl<P: Platform> Memcgs<P> {
    /// Sets what a kill asks of a group; `None` for a stale id.
    pub(crate) fn set_oom(&self, id: MemcgId, setting: OomSetting) -> Option<()> {
        let _pin = self.epoch.pin();
        self.live(id)?.oom.set(setting);
        Some(())
    }

    /// That setting; `None` for a stale id.
    pub(crate) fn oom(&self, id: MemcgId) -> Option<OomSetting> {
        Some(self.live(id)?.oom.get())
    }

    /// Frames charged to a living group itself, not to those below it.
    pub(crate) fn own_frames(&self, id: MemcgId) -> u64 {
        let pin = self.epoch.pin();
        if !self.is_live(id) {
            return 0;
        }
        let nodes = (0..self.nodes()).map(|node| self.lruvec_of(id.slot, node));
        nodes
            .map(|lruvec| self.stats.frames_charged(lruvec, &pin))
            .sum()
    }

    /// The topmost group from `victim` up to `domain` that goes as one.
    pub(crate) fn goes_with(&self, victim: MemcgId, domain: Slot) -> Option<MemcgId> {
        let mut whole = None;
        for at in self.path(victim.slot) {
            let id = self.id_of(at)?;
            if self.oom(id)?.scope == OomScope::All {
                whole = Some(id);
            }
            if at == domain {
                break;
            }
        }
        whole
    }
}
