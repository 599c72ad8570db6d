//! Rounds over the groups of a subtree.
//!
//! Owns: rising priority; who is passed over for its protection; which passes follow one that freed nothing.
//! Invariants: every pass ends after thirteen priorities, each of which visits a group once at most. Protection depends on where
//! the reclaim began, so it is computed on the way and never kept: a group's own limit finds none of its own.
//! Lock ranks: `MemcgTree` for each step. Used by: entry, background.

use super::balance::Protected;
use super::evict::Evict;
use super::scan::Progress;
use crate::addr::{NodeId, ZoneKind};
use crate::lru::ListKind;
use crate::memcg::{Event, MemcgId, ROOT, Walk};
use crate::mm::Mm;
use crate::platform::IrqOff;
use crate::zone::{Level, Zone};

/// The priority at which a round starts: a 4096th of each list (`DEF_PRIORITY`).
pub(super) const FIRST_PRIORITY: u32 = 12;

/// Folios that are looked at to find one that may go, where some are in use.
const LOOKS: u64 = 4;

/// What a pass does to those that earlier ones spared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) enum Pass {
    /// Active lists and protected groups are spared.
    Gentle,
    /// Active lists are not.
    Deactivate,
    /// Nor is what `low` protects.
    BelowLow,
}

impl<P: Evict> Mm<P> {
    /// Passes over the subtree until the target is free: those that follow one that freed nothing spare less each, protection by
    /// `low` last.
    pub(super) fn scan_subtree(&self, progress: &mut Progress) {
        self.scan_at_rising_priority(progress);
        if progress.freed == 0 {
            // Other CPUs' batches may hold all there is, and active lists what the balance spared.
            self.drain_lru();
            progress.pass = Pass::Deactivate;
            self.scan_at_rising_priority(progress);
        }
        if progress.freed == 0 && progress.low_spared {
            progress.pass = Pass::BelowLow;
            self.scan_at_rising_priority(progress);
        }
    }

    fn scan_at_rising_priority(&self, progress: &mut Progress) {
        progress.priority = self.first_priority(progress);
        loop {
            (progress.longest, progress.inactive) = (0, 0);
            for node in 0..self.memcgs().nodes() {
                if progress.node.is_none_or(|only| only == node) {
                    self.scan_node(node, progress);
                }
            }
            if progress.left() == 0 || progress.priority == 0 {
                return;
            }
            // Priorities at which not even the longest list gives a frame are passed over.
            let useful = progress.longest.checked_ilog2().unwrap_or(0);
            progress.priority = useful.min(progress.priority - 1);
        }
    }

    /// The priority at which a round over the subtree looks at [`LOOKS`] folios for each that is wanted: earlier ones would find
    /// too few. The machine's reclaim is from every group, so it starts with the smallest share of each.
    fn first_priority(&self, progress: &Progress) -> u32 {
        if progress.root == MemcgId::ROOT {
            return FIRST_PRIORITY;
        }
        let wanted = progress.target.saturating_mul(LOOKS).max(1);
        let rounds = self.memcgs().charged(progress.root.slot) / wanted;
        rounds.checked_ilog2().unwrap_or(0).min(FIRST_PRIORITY)
    }

    /// Scans a subtree's lruvecs on one node at one priority.
    pub(super) fn scan_node(&self, node: u32, progress: &mut Progress) {
        let root = progress.root;
        progress.file_is_tiny = root == MemcgId::ROOT && self.file_is_tiny(node);
        // Threads that reclaim from one group at once share a round of it, and the next begins where the last had enough. At
        // the last priority each looks at everything: what it says is exhausted must be.
        let mut shared = (progress.priority > 0 && !progress.alone).then(|| Walk::new(root, node));
        let mut last = None;
        while progress.left() > 0 {
            let off = IrqOff::new();
            let next = match (&mut shared, last) {
                (Some(walk), _) => self.memcgs().step(walk, &off),
                (None, None) => Some(root),
                (None, Some(last)) => self.memcgs().next_in_subtree(root, last, &off),
            };
            drop(off);
            let Some(group) = next else { break };
            last = Some(group);
            if let Some(protected) = self.protected(group, progress) {
                self.shrink_lruvec(group, node, protected, progress);
                self.shrink_objects_of(group, node, progress);
            }
        }
    }

    /// Whether a node's files and free frames together are no more than its high watermarks: then taking files does not help, and
    /// the programs' own file frames would go round and round (reclaim.md 3.2). Ends at the first group that says no.
    fn file_is_tiny(&self, node: u32) -> bool {
        let node_id = NodeId(node as u8);
        let zones = || self.allocator().zones_up_to(node_id, ZoneKind::Movable);
        let high: u64 = zones().map(|zone| zone.mark(Level::High)).sum();
        let mut sum: u64 = zones().map(Zone::free_frames).sum();
        let nodes = self.memcgs().nodes();
        for slot in 0..self.memcgs().slots() {
            if sum > high {
                return false;
            }
            let off = IrqOff::new();
            if let Some(held) = self.view().lock_index(slot * nodes + node, &off) {
                let sizes = held.lruvec.sizes();
                sum +=
                    sizes[ListKind::InactiveFile as usize] + sizes[ListKind::ActiveFile as usize];
            }
        }
        sum <= high
    }

    /// What of a group is protected in this pass; `None` if all of it is.
    fn protected(&self, group: MemcgId, progress: &mut Progress) -> Option<Protected> {
        if group.slot == progress.root.slot || group.slot == ROOT {
            return Some(Protected::default());
        }
        let shield = self.memcgs().shield(progress.root.slot, group.slot);
        if shield.min == 0 && shield.low == 0 {
            return Some(Protected::default());
        }
        let usage = self.memcgs().usage(group).unwrap_or(0);
        if shield.min > 0 && usage <= shield.min {
            return None;
        }
        let mut frames = shield.min;
        if shield.low > shield.min {
            if progress.pass < Pass::BelowLow {
                progress.low_spared = true;
                frames = shield.low;
                if usage <= shield.low {
                    return None;
                }
            } else if usage <= shield.low {
                self.count_memcg_event(group, Event::Low);
            }
        }
        Some(Protected { frames, usage })
    }
}
