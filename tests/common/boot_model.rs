//! A naive model of the boot map: one entry per byte of a small window.
//!
//! Owns: the expected answer to every operation, and the comparison of a map with it.
//! Invariants: the model knows no regions; it counts runs of equal bytes where the map keeps lists.
//! Lock ranks: none. Used by: tests/boot_map.rs and the fuzz target boot_map.
#![allow(
    unreachable_pub,
    reason = "test binaries and the fuzz target use it as a module"
)]

use framekeeper::boot::{BootMap, MapError, PHYS_LIMIT, RegionKind, TAKE_FLOOR};
use framekeeper::{FrameRange, NodeId, PhysAddr};

/// Length of the window in bytes.
pub const WINDOW: u64 = 512;

/// The window either starts at frame 0, or lies around [`TAKE_FLOOR`], where early allocation starts to succeed.
pub const BASES: [u64; 2] = [0, TAKE_FLOOR.0 - WINDOW / 4];

/// One call on the map. Bases are absolute; a range either lies in the window, or is refused for its end.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// `add(node, base, bytes)`.
    Add(u8, u64, u64),
    /// `reserve(base, bytes)`.
    Reserve(u64, u64),
    /// `free(base, bytes)`.
    Free(u64, u64),
    /// `take(bytes, align)`.
    Take(u64, u64),
    /// `take_below(limit, node, bytes, align)`.
    TakeBelow(u64, Option<u8>, u64, u64),
}

/// The map under test, and what each byte of the window should be.
#[derive(Debug)]
pub struct Pair<const N: usize> {
    map: BootMap<N>,
    base: u64,
    node: Vec<Option<u8>>,
    reserved: Vec<bool>,
}

impl<const N: usize> Pair<N> {
    /// An empty map, with a window that starts at `base`.
    pub fn new(base: u64) -> Self {
        Self {
            map: BootMap::new(),
            base,
            node: vec![None; WINDOW as usize],
            reserved: vec![false; WINDOW as usize],
        }
    }

    /// Makes the call on both sides, compares the answers, and compares all that the map shows.
    pub fn step(&mut self, op: Op) {
        let before = self.map.clone();
        let expected = self.expect(op);
        let got = match op {
            Op::Add(node, base, bytes) => self
                .map
                .add(NodeId(node), PhysAddr(base), bytes)
                .map(|()| None),
            Op::Reserve(base, bytes) => self.map.reserve(PhysAddr(base), bytes).map(|()| None),
            Op::Free(base, bytes) => self.map.free(PhysAddr(base), bytes).map(|()| None),
            Op::Take(bytes, align) => self.map.take(bytes, align).map(Some),
            Op::TakeBelow(limit, node, bytes, align) => self
                .map
                .take_below(PhysAddr(limit), node.map(NodeId), bytes, align)
                .map(Some),
        };
        assert_eq!(got, expected.map(|base| base.map(PhysAddr)), "{op:?}");
        if got.is_err() {
            assert_eq!(self.map, before, "{op:?} was refused");
        }
        self.compare();
    }

    /// The answer that the map must give, with the bytes changed if it is `Ok`.
    fn expect(&mut self, op: Op) -> Result<Option<u64>, MapError> {
        match op {
            Op::Add(node, base, bytes) => {
                let mut next = self.node.clone();
                for i in self.indices(base, bytes)? {
                    next[i] = next[i].or(Some(node));
                }
                fits::<N>(RegionKind::Usable, &next)?;
                self.node = next;
                Ok(None)
            }
            Op::Reserve(base, bytes) => {
                self.set_reserved(self.indices(base, bytes)?, true)?;
                Ok(None)
            }
            Op::Free(base, bytes) => {
                let range = self.indices(base, bytes)?;
                if !self.reserved[range.clone()].iter().all(|&taken| taken) {
                    let base = PhysAddr(base);
                    return Err(MapError::NotReserved { base, bytes });
                }
                self.set_reserved(range, false)?;
                Ok(None)
            }
            Op::Take(bytes, align) => self.take(u64::MAX, None, bytes, align),
            Op::TakeBelow(limit, node, bytes, align) => self.take(limit, node, bytes, align),
        }
    }

    fn take(
        &mut self,
        limit: u64,
        node: Option<u8>,
        bytes: u64,
        align: u64,
    ) -> Result<Option<u64>, MapError> {
        if bytes == 0 || !align.is_power_of_two() {
            return Err(MapError::BadRequest { bytes, align });
        }
        let fits = |&start: &u64| {
            let Ok(range) = self.indices(start, bytes) else {
                return false;
            };
            let owner = self.node[range.start];
            start >= TAKE_FLOOR.0
                && start % align == 0
                && start + bytes <= limit
                && owner.is_some()
                && (node.is_none() || owner == node)
                && range
                    .clone()
                    .all(|i| self.node[i] == owner && !self.reserved[i])
        };
        // Only starts from which the range ends in the window.
        let last = (self.base + WINDOW).saturating_sub(bytes);
        let start = (self.base..=last.max(self.base))
            .rev()
            .filter(|_| bytes <= WINDOW)
            .find(fits)
            .ok_or(MapError::NoSpace { bytes, align })?;
        self.set_reserved(self.indices(start, bytes)?, true)?;
        Ok(Some(start))
    }

    fn set_reserved(&mut self, range: std::ops::Range<usize>, taken: bool) -> Result<(), MapError> {
        let mut next = self.reserved.clone();
        next[range].fill(taken);
        let as_nodes: Vec<_> = next.iter().map(|&taken| taken.then_some(0)).collect();
        fits::<N>(RegionKind::Reserved, &as_nodes)?;
        self.reserved = next;
        Ok(())
    }

    /// The window's bytes in the range.
    fn indices(&self, base: u64, bytes: u64) -> Result<std::ops::Range<usize>, MapError> {
        if bytes == 0 {
            return Ok(0..0);
        }
        let at = PhysAddr(base);
        let end = base
            .checked_add(bytes)
            .ok_or(MapError::Overflow { base: at, bytes })?;
        if end > PHYS_LIMIT.0 {
            return Err(MapError::BeyondLimit { base: at, bytes });
        }
        assert!(
            self.base <= base && end <= self.base + WINDOW,
            "the operation is meant for another window"
        );
        Ok((base - self.base) as usize..(end - self.base) as usize)
    }

    /// Compares lists, totals, frames and texts.
    fn compare(&self) {
        let usable: Vec<_> = self
            .map
            .usable()
            .map(|r| (r.node().map(|node| node.0), r.start().0, r.end().0))
            .collect();
        assert_eq!(usable, self.runs(&self.node));
        let reserved: Vec<_> = self
            .map
            .reserved()
            .map(|r| (r.node().map(|node| node.0), r.start().0, r.end().0))
            .collect();
        let taken: Vec<_> = self
            .reserved
            .iter()
            .map(|&taken| taken.then_some(0))
            .collect();
        let taken: Vec<_> = self
            .runs(&taken)
            .into_iter()
            .map(|(_, start, end)| (None, start, end))
            .collect();
        assert_eq!(reserved, taken);

        let usable_bytes = self.node.iter().flatten().count() as u64;
        assert_eq!(self.map.usable_bytes(), usable_bytes);
        let free = |(node, taken): &(&Option<u8>, &bool)| node.is_some() && !**taken;
        let free_bytes = self.node.iter().zip(&self.reserved).filter(free).count();
        assert_eq!(self.map.free_bytes(), free_bytes as u64);
        for shift in [0, 3, 5, 12] {
            self.compare_frames(shift);
        }
        let lines = self.map.to_string().lines().count();
        assert_eq!(lines, usable.len() + reserved.len() + 1);
    }

    /// Compares the frames of `1 << shift` bytes that lie in the window.
    fn compare_frames(&self, shift: u32) {
        let size = 1 << shift;
        let mut exist = Vec::new();
        let mut free = Vec::new();
        for start in (0..WINDOW).step_by(size) {
            let bytes = start as usize..(start as usize + size).min(WINDOW as usize);
            let owner = self.node[bytes.start];
            let whole = bytes.len() == size && self.base + start != 0;
            let exists = whole && self.node[bytes.clone()].iter().all(|&node| node == owner);
            let is_free = exists && !self.reserved[bytes].iter().any(|&taken| taken);
            let frame = (self.base + start) >> shift;
            push(&mut exist, owner.filter(|_| exists), frame);
            push(&mut free, owner.filter(|_| is_free), frame);
        }
        let usable: Vec<_> = self
            .map
            .usable_frames(shift)
            .map(|(node, frames)| (node.0, frames.start().0, frames.end().0))
            .collect();
        assert_eq!(usable, exist, "usable frames of 2^{shift} bytes");
        let got: Vec<_> = self
            .map
            .free_frames(shift)
            .map(|(node, frames)| (node.0, frames.start().0, frames.end().0))
            .collect();
        assert_eq!(got, free, "free frames of 2^{shift} bytes");
        let count = free.iter().map(|(_, start, end)| end - start).sum();
        assert_eq!(self.map.free_frame_count(shift), count);
        assert_eq!(self.map.validate(shift).is_ok(), !free.is_empty());
        assert_eq!(ends(self.map.frame_span(shift)), outer(exist.iter()));
        for node in 0..3 {
            let span = self.map.node_span(NodeId(node), shift);
            let of_node = exist.iter().filter(|run| run.0 == node);
            assert_eq!(ends(span), outer(of_node), "span of node {node}");
        }
    }

    /// Runs of equal owned bytes, as absolute ranges.
    fn runs(&self, bytes: &[Option<u8>]) -> Vec<(Option<u8>, u64, u64)> {
        let mut runs = Vec::new();
        for (i, &owner) in bytes.iter().enumerate() {
            push(&mut runs, owner, self.base + i as u64);
        }
        runs.into_iter()
            .map(|(node, start, end)| (Some(node), start, end))
            .collect()
    }
}

fn ends(frames: FrameRange) -> (u64, u64) {
    (frames.start().0, frames.end().0)
}

/// From the first run's start to the last run's end.
fn outer<'r>(mut runs: impl Iterator<Item = &'r (u8, u64, u64)>) -> (u64, u64) {
    let Some(&(_, start, end)) = runs.next() else {
        return (0, 0);
    };
    (start, runs.last().map_or(end, |run| run.2))
}

/// Extends the last run by `at`, or starts one.
fn push(runs: &mut Vec<(u8, u64, u64)>, owner: Option<u8>, at: u64) {
    let Some(owner) = owner else { return };
    match runs.last_mut() {
        Some((node, _, end)) if *node == owner && *end == at => *end += 1,
        _ => runs.push((owner, at, at + 1)),
    }
}

fn fits<const N: usize>(kind: RegionKind, bytes: &[Option<u8>]) -> Result<(), MapError> {
    let mut runs = Vec::new();
    for (i, &owner) in bytes.iter().enumerate() {
        push(&mut runs, owner, i as u64);
    }
    if runs.len() > N {
        return Err(MapError::TooManyRegions { kind, capacity: N });
    }
    Ok(())
}
