//! Which line of a kind is the fullest.
//!
//! Owns: [`Fullness`]: for each lending kind and each group of 64 lines, a bound below which no line of that kind with
//! free frames has its free count, with the line that had it.
//! Invariants: a bound is never above the fewest free frames of a line that is in a set of that kind. It may be below:
//! frees raise counts without a word here, and the next search raises the bound.
//! Lock ranks: none of its own; written only under the lock of the shard that owns it.
//! Used by: shard.
//!
//! Filling the fullest line first is what keeps other lines free as a whole. The class of a line says little about how
//! full it is: by class alone, turnover of half of a zone leaves one in a hundred pageblocks fewer whole.

use super::info::Info;
use super::mobility::Mobility;
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// No line of the kind is in the group.
pub(super) const NONE: u16 = u16::MAX;
/// The same as a bound.
const EMPTY: u32 = u32::MAX;
/// Groups that one search compares: 32 GiB of 4 KiB frames, from the lowest that has a line of the kind.
const GROUPS: usize = 64;

/// Bounds of a shard.
#[derive(Debug)]
pub(super) struct Fullness {
    /// Kind after kind: a free count, shifted left by six, and the place in the group of a line that had it.
    bounds: &'static [AtomicU32],
    /// Groups of 64 lines in the shard.
    groups: usize,
    /// For each kind the lowest bound of the last search, and of lines noted since: what other shards compare.
    lowest: [u16; Mobility::PCP],
}

impl Fullness {
    /// Bounds that a shard of so many lines takes.
    pub(super) fn bounds(lines: u32) -> usize {
        lines.div_ceil(64) as usize * Mobility::PCP
    }

    /// Over bounds that are all [`Self::fresh`].
    pub(super) fn over(bounds: &'static [AtomicU32], lines: u32) -> Self {
        Self {
            bounds,
            groups: lines.div_ceil(64) as usize,
            lowest: [NONE; Mobility::PCP],
        }
    }

    /// Fewest free frames of a line of each kind, 16 bits each; the actual number may be higher.
    #[inline]
    pub(super) fn lowest(&self) -> u64 {
        let [a, b, c] = self.lowest.map(u64::from);
        a | b << 16 | c << 32
    }

    /// One kind's part of [`lowest`](Self::lowest).
    #[inline]
    pub(super) const fn lowest_of(lowest: u64, kind: Mobility) -> u16 {
        (lowest >> (16 * kind as u32)) as u16
    }

    /// A bound before there is a line.
    pub(super) fn fresh() -> AtomicU32 {
        AtomicU32::new(EMPTY)
    }

    /// Notes that a line has so few free frames.
    #[inline]
    pub(super) fn lower(&mut self, line: u32, info: Info) {
        let kind = info.kind_number() as usize;
        let new = info.free() << 6 | line & 63;
        if let Some(bound) = self.bounds.get(kind * self.groups + line as usize / 64)
            && bound.load(Relaxed) > new
        {
            bound.store(new, Relaxed);
            if let Some(lowest) = self.lowest.get_mut(kind) {
                *lowest = (*lowest).min(info.free() as u16);
            }
        }
    }

    /// The fullest line of a lending kind that has free frames but not only those, if it has at most `limit`; the
    /// lowest group among equals. Each round makes one bound exact, so there are no more rounds than groups.
    pub(super) fn fullest(
        &mut self,
        infos: &[AtomicU32],
        kind: Mobility,
        limit: u16,
    ) -> Option<u32> {
        let found = self.search(infos, kind);
        if let Some(lowest) = self.lowest.get_mut(kind as usize) {
            *lowest = found.map_or(NONE, |(free, _)| free);
        }
        found
            .filter(|&(free, _)| free <= limit)
            .map(|(_, line)| line)
    }

    fn search(&self, infos: &[AtomicU32], kind: Mobility) -> Option<(u16, u32)> {
        let from = kind as usize * self.groups;
        let bounds = self.bounds.get(from..from + self.groups)?;
        let start = bounds
            .iter()
            .position(|bound| bound.load(Relaxed) != EMPTY)?;
        let bounds = &bounds[start..self.groups.min(start + GROUPS)];
        for _ in 0..=bounds.len() {
            let (mut lowest, mut second, mut group) = (EMPTY, EMPTY, 0);
            for (i, bound) in bounds.iter().enumerate() {
                // Counts only: of equals the lowest group wins, whatever place its line has.
                let bound = bound.load(Relaxed);
                if bound >> 6 < lowest >> 6 {
                    (lowest, second, group) = (bound, lowest, i);
                } else if bound < second {
                    second = bound;
                }
            }
            if lowest == EMPTY {
                return None;
            }
            let first = (start + group) * 64;
            let lines = &infos[first..infos.len().min(first + 64)];
            let exact = fullest_of(lines, kind, lowest);
            if exact != lowest {
                bounds[group].store(exact, Relaxed);
            }
            if exact >> 6 <= second >> 6 && exact != EMPTY {
                let line = first as u32 + (exact & 63);
                return Some(((exact >> 6) as u16, line));
            }
        }
        None
    }

    /// Whether a line's free count respects the bound that holds for it.
    pub(super) fn holds_for(&self, line: u32, info: Info) -> bool {
        let group = info.kind_number() as usize * self.groups + line as usize / 64;
        !info.is_partly_free_of(info.kind())
            || self
                .bounds
                .get(group)
                .is_none_or(|bound| bound.load(Relaxed) >> 6 <= info.free())
    }
}

/// The bound that is exact for a group: its line with the fewest free frames, the lowest of equals. Mostly that is still
/// the line that `bound` names.
fn fullest_of(infos: &[AtomicU32], kind: Mobility, bound: u32) -> u32 {
    let is = |info: &AtomicU32| {
        let info = Info(info.load(Relaxed));
        info.is_partly_free_of(kind).then_some(info.free() << 6)
    };
    let named = infos.get(bound as usize & 63).and_then(is);
    if named == Some(bound & !63) {
        return bound;
    }
    let mut best = EMPTY;
    for (place, info) in infos.iter().enumerate() {
        if let Some(free) = is(info)
            && free < best & !63
        {
            best = free | place as u32;
        }
    }
    best
}
