//! `memory.stat` of one group.
//!
//! Owns: [`MemoryStat`]. Invariants: sums over the group and everything below it. Lock ranks: `MemcgTree`, `LruVec`, one at a time.
//! Used by: report.

use core::fmt;

use crate::lru::ListKind;
use crate::memcg::MemcgId;
use crate::mm::{Mm, NoSuchGroup};
use crate::platform::{IrqOff, Platform};

/// What a group and those below it have on their lists, in bytes as Linux prints it. Frames that wait in a CPU's batch, or were
/// never given to the LRU, are charged but on no list yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryStat {
    /// Frames on each list, by [`ListKind`].
    pub lists: [u64; ListKind::COUNT],
    /// Frames that are not to be reclaimed.
    pub unevictable: u64,
    /// Bytes in a frame.
    pub frame_bytes: u64,
}

impl MemoryStat {
    /// Sums the lists of `memcg` and below.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn of<P: Platform>(mm: &Mm<P>, memcg: MemcgId) -> Result<Self, NoSuchGroup> {
        mm.memcg_usage(memcg)?;
        let mut stat = Self {
            frame_bytes: 1 << P::PAGE_SHIFT,
            ..Self::default()
        };
        let mut at = Some(memcg);
        while let Some(group) = at {
            for node in 0..mm.memcgs().nodes() {
                let off = IrqOff::new();
                let Some(held) = mm
                    .view()
                    .lock_index(mm.memcgs().lruvec_of(group.slot, node), &off)
                else {
                    continue;
                };
                for kind in ListKind::ALL {
                    stat.lists[kind as usize] += held.lruvec.frames(kind);
                }
                stat.unevictable += held.lruvec.unevictable();
            }
            at = mm.memcgs().next_in_subtree(memcg, group, &IrqOff::new());
        }
        Ok(stat)
    }
}

impl fmt::Display for MemoryStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |kinds: &[ListKind]| {
            kinds
                .iter()
                .map(|&kind| self.lists[kind as usize])
                .sum::<u64>()
                * self.frame_bytes
        };
        writeln!(
            f,
            "anon {}",
            bytes(&[ListKind::InactiveAnon, ListKind::ActiveAnon])
        )?;
        writeln!(
            f,
            "file {}",
            bytes(&[ListKind::InactiveFile, ListKind::ActiveFile])
        )?;
        writeln!(f, "inactive_anon {}", bytes(&[ListKind::InactiveAnon]))?;
        writeln!(f, "active_anon {}", bytes(&[ListKind::ActiveAnon]))?;
        writeln!(f, "inactive_file {}", bytes(&[ListKind::InactiveFile]))?;
        writeln!(f, "active_file {}", bytes(&[ListKind::ActiveFile]))?;
        writeln!(f, "unevictable {}", self.unevictable * self.frame_bytes)
    }
}
