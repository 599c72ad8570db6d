//! `memory.stat` and `memory.numa_stat` of one group.
//!
//! Owns: [`MemoryStat`], [`NumaStat`]. Invariants: sums over the group and everything below it, of all that CPUs had counted when
//! the snapshot was taken. Lock ranks: `MemcgTree`, `LruVec`, one at a time.
//! Used by: report.

use core::fmt;

use crate::addr::NodeId;
use crate::lru::ListKind;
use crate::memcg::{MemcgId, PageState};
use crate::mm::{Mm, NoSuchGroup};
use crate::platform::{IrqOff, Platform};

/// What a group and those below it have on their lists and in each state, in bytes as Linux prints it. Frames that wait in a
/// CPU's batch, or were never given to the LRU, are charged but on no list yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryStat {
    /// Frames on each list, by [`ListKind`].
    pub lists: [u64; ListKind::COUNT],
    /// Frames that are not to be reclaimed.
    pub unevictable: u64,
    /// Frames charged for the bytes of the kernel's objects.
    pub objects: u64,
    /// Frames in each state, by [`PageState::index`].
    pub states: [u64; PageState::COUNT],
    /// Bytes in a frame.
    pub frame_bytes: u64,
}

/// A line of either file: its name, the lists whose frames it counts, and the state.
type Line = (&'static str, &'static [ListKind], Option<PageState>);

/// In Linux's order.
const LINES: [Line; 9] = [
    (
        "anon",
        &[ListKind::InactiveAnon, ListKind::ActiveAnon],
        None,
    ),
    (
        "file",
        &[ListKind::InactiveFile, ListKind::ActiveFile],
        None,
    ),
    ("file_mapped", &[], Some(PageState::MAPPED)),
    ("file_dirty", &[], Some(PageState::DIRTY)),
    ("file_writeback", &[], Some(PageState::WRITEBACK)),
    ("inactive_anon", &[ListKind::InactiveAnon], None),
    ("active_anon", &[ListKind::ActiveAnon], None),
    ("inactive_file", &[ListKind::InactiveFile], None),
    ("active_file", &[ListKind::ActiveFile], None),
];

/// Linux prints `kernel` before this line, in `memory.stat` only.
const KERNEL_AT: usize = 2;

impl MemoryStat {
    /// Sums over all nodes, and over `memcg` and below.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn of<P: Platform>(mm: &Mm<P>, memcg: MemcgId) -> Result<Self, NoSuchGroup> {
        let mut sum = Self {
            frame_bytes: 1 << P::PAGE_SHIFT,
            ..Self::default()
        };
        for node in 0..mm.memcgs().nodes() {
            let stat = Self::on_node(mm, memcg, NodeId(node as u8))?;
            let add = |sum: &mut u64, frames: &u64| *sum += frames;
            sum.lists
                .iter_mut()
                .zip(&stat.lists)
                .for_each(|(sum, frames)| add(sum, frames));
            sum.states
                .iter_mut()
                .zip(&stat.states)
                .for_each(|(sum, frames)| add(sum, frames));
            sum.unevictable += stat.unevictable;
            sum.objects += stat.objects;
        }
        Ok(sum)
    }

    /// Sums over `memcg` and below, on one node; all zero for a node that does not exist.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn on_node<P: Platform>(
        mm: &Mm<P>,
        memcg: MemcgId,
        node: NodeId,
    ) -> Result<Self, NoSuchGroup> {
        let memcgs = mm.memcgs();
        memcgs
            .flush_states(memcg, &IrqOff::new())
            .ok_or(NoSuchGroup(memcg))?;
        let mut stat = Self {
            frame_bytes: 1 << P::PAGE_SHIFT,
            ..Self::default()
        };
        let node = u32::from(node.0);
        if node >= memcgs.nodes() {
            return Ok(stat);
        }
        stat.states = PageState::ALL.map(|state| memcgs.tree_state(memcg.slot, node, state));
        stat.objects = memcgs.tree_byte_frames(memcg.slot, node);
        let mut at = Some(memcg);
        while let Some(group) = at {
            let off = IrqOff::new();
            let lruvec = memcgs.lruvec_of(group.slot, node);
            if let Some(held) = mm.view().lock_index(lruvec, &off) {
                for (sum, frames) in stat.lists.iter_mut().zip(held.lruvec.sizes()) {
                    *sum += frames;
                }
                stat.unevictable += held.lruvec.unevictable();
            }
            at = memcgs.next_in_subtree(memcg, group, &IrqOff::new());
        }
        Ok(stat)
    }

    /// Frames in a state.
    #[must_use]
    pub fn state(&self, state: PageState) -> u64 {
        self.states[state.index()]
    }

    fn bytes(&self, &(_, lists, state): &Line) -> u64 {
        let listed: u64 = lists.iter().map(|&kind| self.lists[kind as usize]).sum();
        (listed + state.map_or(0, |state| self.state(state))) * self.frame_bytes
    }
}

impl fmt::Display for MemoryStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, line) in LINES.iter().enumerate() {
            if i == KERNEL_AT {
                writeln!(f, "kernel {}", self.objects * self.frame_bytes)?;
            }
            writeln!(f, "{} {}", line.0, self.bytes(line))?;
        }
        writeln!(f, "unevictable {}", self.unevictable * self.frame_bytes)
    }
}

/// The same by node, in the layout of `memory.numa_stat`. Reads while it prints; a group that ended prints nothing.
///
/// ```text
/// anon N0=4096 N1=0
/// ```
#[derive(Debug)]
pub struct NumaStat<'a, P: Platform>(pub &'a Mm<P>, pub MemcgId);

impl<P: Platform> fmt::Display for NumaStat<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = || {
            let stats = (0..self.0.memcgs().nodes()).map(|node| {
                let stat = MemoryStat::on_node(self.0, self.1, NodeId(node as u8));
                stat.ok().map(|stat| (node, stat))
            });
            stats.flatten()
        };
        if nodes().next().is_none() {
            return Ok(());
        }
        for line in &LINES {
            f.write_str(line.0)?;
            for (node, stat) in nodes() {
                write!(f, " N{node}={}", stat.bytes(line))?;
            }
            writeln!(f)?;
        }
        f.write_str("unevictable")?;
        for (node, stat) in nodes() {
            write!(f, " N{node}={}", stat.unevictable * stat.frame_bytes)?;
        }
        writeln!(f)
    }
}
