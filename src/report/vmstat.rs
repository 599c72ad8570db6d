//! `/proc/vmstat`.
//!
//! Owns: [`Vmstat`]. Invariants: Linux's names, in frames or as counts since the start, and only those that are really kept. Lists are
//! read one at a time. Lock ranks: `MemcgTree`, `LruVec`, `Pageset`, one at a time. Used by: report.

use core::fmt;

use crate::addr::NodeId;
use crate::lru::{ListKind, Moves};
use crate::memcg::{MemcgId, PageState};
use crate::mm::Mm;
use crate::platform::{IrqOff, Platform};

use super::MemoryStat;

/// Sums over all nodes and groups. What moved in a group that ended is its parent's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vmstat {
    /// Frames free in zones; what CPUs park in pagesets is not among them.
    pub free: u64,
    /// Frames in isolators' hands: anonymous, and files'.
    pub isolated: [u64; 2],
    /// Frames on lists and in states.
    pub stat: MemoryStat,
    /// Frames that were moved between lists.
    pub moves: Moves,
}

impl Vmstat {
    /// Of an instance.
    pub fn of<P: Platform>(mm: &Mm<P>) -> Self {
        let memcgs = mm.memcgs();
        let mut vmstat = Self {
            free: mm.allocator().zone_counts().map(|zone| zone.free).sum(),
            // The root always exists.
            stat: MemoryStat::of(mm, MemcgId::ROOT).unwrap_or_default(),
            ..Self::default()
        };
        for node in 0..memcgs.nodes() {
            let isolated = mm.isolated_frames(NodeId(node as u8)).unwrap_or_default();
            for (sum, frames) in vmstat.isolated.iter_mut().zip(isolated) {
                *sum += frames;
            }
            let mut at = Some(MemcgId::ROOT);
            while let Some(group) = at {
                let off = IrqOff::new();
                let lruvec = memcgs.lruvec_of(group.slot, node);
                if let Some(held) = mm.view().lock_index(lruvec, &off) {
                    vmstat.moves.inherit(held.lruvec.moves);
                }
                at = memcgs.next_in_subtree(MemcgId::ROOT, group, &IrqOff::new());
            }
        }
        vmstat
    }
}

impl fmt::Display for Vmstat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |kind: ListKind| self.stat.lists[kind as usize];
        let moves = &self.moves;
        for (name, value) in [
            ("nr_free_pages", self.free),
            ("nr_inactive_anon", list(ListKind::InactiveAnon)),
            ("nr_active_anon", list(ListKind::ActiveAnon)),
            ("nr_inactive_file", list(ListKind::InactiveFile)),
            ("nr_active_file", list(ListKind::ActiveFile)),
            ("nr_unevictable", self.stat.unevictable),
            ("nr_isolated_anon", self.isolated[0]),
            ("nr_isolated_file", self.isolated[1]),
            ("nr_mapped", self.stat.state(PageState::MAPPED)),
            ("nr_dirty", self.stat.state(PageState::DIRTY)),
            ("nr_writeback", self.stat.state(PageState::WRITEBACK)),
            ("pgactivate", moves.activated),
            ("pgdeactivate", moves.deactivated),
            ("pglazyfree", moves.lazy_freed),
            ("pgrefill", moves.refilled),
            ("pgrotated", moves.rotated),
            ("unevictable_pgs_culled", moves.locked),
            ("unevictable_pgs_rescued", moves.rescued),
            ("unevictable_pgs_stranded", moves.stranded),
        ] {
            writeln!(f, "{name} {value}")?;
        }
        Ok(())
    }
}
