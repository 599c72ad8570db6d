//! Counts per CPU: frames charged, and frames in each state, by lruvec.
//!
//! Owns: [`Stats`], [`PageState`].
//! Invariants: a lruvec's frames in a state are its `local` count and what CPUs have not pushed yet; its `tree` count has in
//! addition those pushed by the groups below. No CPU keeps [`THRESHOLD`] frames or more unpushed, of one state of one
//! lruvec, once its update has returned. So a `tree` count is off by less than THRESHOLD × CPUs × groups of the subtree,
//! and by nothing after a flush at rest.
//! Lock ranks: none. Writers and flushes are pinned in memcg's epoch, so that a group's end folds what they leave.
//! Used by: memcg's charges, mm (account), report.
//!
//! A CPU's counts are running sums modulo 2^32 that only this CPU writes; beside each stands how far it was pushed, which
//! anyone may advance. So an update is one plain add where CPU ids are exclusive, and a flush never waits for a CPU.

use core::marker::PhantomData;

use super::LruVecIndex;
use crate::addr::FrameRange;
use crate::boot::{Bump, Lent, StorageFull};
use crate::platform::{CpuIds, IrqOff, Platform};
use crate::sync::Pinned;
use crate::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Frames that a CPU counts before it pushes them up the tree.
pub(super) const THRESHOLD: u32 = 64;

/// A state that folios are counted in, by group and node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PageState(u8);

impl PageState {
    /// Number of states.
    pub const COUNT: usize = 7;
    /// In some page table.
    pub const MAPPED: Self = Self(0);
    /// Newer than what backs it.
    pub const DIRTY: Self = Self(1);
    /// Being written out.
    pub const WRITEBACK: Self = Self(2);
    /// States whose meaning is the kernel's own.
    pub const KERNEL: [Self; 4] = [Self(3), Self(4), Self(5), Self(6)];
    /// Every state.
    pub const ALL: [Self; Self::COUNT] = [
        Self(0),
        Self(1),
        Self(2),
        Self(3),
        Self(4),
        Self(5),
        Self(6),
    ];

    /// Its place in a list of all states.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One CPU's counts for one lruvec: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts {
    /// Frames charged less frames uncharged here, through the owner slot of the living group. Modulo 2^64.
    charged: AtomicU64,
    /// Modulo 2^32.
    states: [AtomicU32; PageState::COUNT],
    /// How much of `states` has reached the shared counts.
    pushed: [AtomicU32; PageState::COUNT],
}

/// One lruvec's shared counts.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shared {
    local: [AtomicI64; PageState::COUNT],
    tree: [AtomicI64; PageState::COUNT],
}

/// Frames that a CPU has counted and not pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(super) struct Delta {
    pub(super) state: PageState,
    pub(super) frames: i64,
}

/// All counts.
#[derive(Debug)]
pub(super) struct Stats<P: Platform> {
    /// The index that stands for all ids out of range: the number of CPUs.
    others: usize,
    /// Lruvecs whose counts are carved: all, or those of the root.
    carved: usize,
    /// By CPU, then by carved lruvec. The last CPU stands for all ids out of range; its counts are updated atomically.
    counts: &'static [Counts],
    /// By lruvec that is not carved: the counts by CPU, while its group lives.
    lent: &'static [Lent<Counts>],
    shared: &'static [Shared],
    platform: PhantomData<fn() -> P>,
}

impl<P: Platform> Stats<P> {
    pub(super) fn build(
        bump: &mut Bump<'_>,
        carved: u32,
        lruvecs: u32,
        cpus: u32,
    ) -> Result<Self, StorageFull> {
        let [carved, lruvecs] = [carved.min(lruvecs), lruvecs].map(|count| count as usize);
        let counts = carved.saturating_mul(cpus as usize + 1);
        Ok(Self {
            others: cpus as usize,
            carved,
            counts: bump.slots(counts, |_| Counts::default())?,
            lent: bump.slots(lruvecs - carved, |_| Lent::none())?,
            shared: bump.slots(lruvecs, |_| Shared::default())?,
            platform: PhantomData,
        })
    }

    /// Counts `frames` charged to a lruvec, or with a negative number, uncharged.
    #[inline]
    pub(super) fn charged(
        &self,
        lruvec: LruVecIndex,
        frames: i64,
        pin: &Pinned<'_, P>,
        off: &IrqOff<P>,
    ) {
        let Some((counts, mine)) = self.mine(lruvec, pin, off) else {
            return;
        };
        let frames = frames as u64;
        if mine {
            let sum = counts.charged.load(Ordering::Relaxed);
            counts
                .charged
                .store(sum.wrapping_add(frames), Ordering::Relaxed);
        } else {
            counts.charged.fetch_add(frames, Ordering::Relaxed);
        }
    }

    /// Counts `frames` into a state, or with a negative number, out of it. Says whether the CPU must push now.
    #[inline]
    pub(super) fn add(
        &self,
        lruvec: LruVecIndex,
        state: PageState,
        frames: i32,
        pin: &Pinned<'_, P>,
        off: &IrqOff<P>,
    ) -> bool {
        let Some((counts, mine)) = self.mine(lruvec, pin, off) else {
            return false;
        };
        let (count, frames) = (&counts.states[state.index()], frames as u32);
        let sum = if mine {
            // Masked: no interrupt adds in between.
            let sum = count.load(Ordering::Relaxed).wrapping_add(frames);
            count.store(sum, Ordering::Relaxed);
            sum
        } else {
            count
                .fetch_add(frames, Ordering::Relaxed)
                .wrapping_add(frames)
        };
        let pushed = counts.pushed[state.index()].load(Ordering::Relaxed);
        (sum.wrapping_sub(pushed) as i32).unsigned_abs() >= THRESHOLD
    }

    /// Takes what every CPU has not pushed of a lruvec, one state at a time; the caller adds it to the shared counts.
    pub(super) fn unpushed(
        &self,
        lruvec: LruVecIndex,
        pin: &Pinned<'_, P>,
    ) -> impl Iterator<Item = Delta> {
        self.of_cpus(lruvec, pin).flat_map(take_all)
    }

    /// As [`unpushed`](Self::unpushed), of this CPU only.
    pub(super) fn unpushed_here(
        &self,
        lruvec: LruVecIndex,
        pin: &Pinned<'_, P>,
        off: &IrqOff<P>,
    ) -> impl Iterator<Item = Delta> {
        let mine = self.mine(lruvec, pin, off).map(|(counts, _)| counts);
        mine.into_iter().flat_map(take_all)
    }

    /// Adds to a lruvec's own shared count.
    pub(super) fn add_local(&self, lruvec: LruVecIndex, delta: Delta) {
        if let Some(shared) = self.shared.get(lruvec as usize) {
            shared.local[delta.state.index()].fetch_add(delta.frames, Ordering::Relaxed);
        }
    }

    /// Adds to the count of a lruvec and those below it.
    pub(super) fn add_tree(&self, lruvec: LruVecIndex, delta: Delta) {
        if let Some(shared) = self.shared.get(lruvec as usize) {
            shared.tree[delta.state.index()].fetch_add(delta.frames, Ordering::Relaxed);
        }
    }

    /// Frames of one lruvec in a state; exact at rest.
    pub(super) fn local(&self, lruvec: LruVecIndex, state: PageState, pin: &Pinned<'_, P>) -> i64 {
        let i = state.index();
        let shared = self.shared.get(lruvec as usize);
        let pending = self.of_cpus(lruvec, pin).map(|counts| {
            let sum = counts.states[i].load(Ordering::Relaxed);
            i64::from(sum.wrapping_sub(counts.pushed[i].load(Ordering::Relaxed)) as i32)
        });
        shared.map_or(0, |shared| shared.local[i].load(Ordering::Relaxed)) + pending.sum::<i64>()
    }

    /// Frames in a state of one lruvec and those below, as far as they were pushed.
    pub(super) fn tree(&self, lruvec: LruVecIndex, state: PageState) -> i64 {
        let shared = self.shared.get(lruvec as usize);
        shared.map_or(0, |shared| {
            shared.tree[state.index()].load(Ordering::Relaxed)
        })
    }

    /// Frames charged through the owner slot of a living group.
    pub(super) fn frames_charged(&self, lruvec: LruVecIndex, pin: &Pinned<'_, P>) -> u64 {
        self.of_cpus(lruvec, pin)
            .map(|counts| counts.charged.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// Takes all that is counted for a lruvec, and leaves zeros: its frames charged, and its frames by state.
    /// Nobody counts here any more: the caller waited for them, and has pushed what they left.
    pub(super) fn take(
        &self,
        lruvec: LruVecIndex,
        pin: &Pinned<'_, P>,
    ) -> (u64, [i64; PageState::COUNT]) {
        let charged = self
            .of_cpus(lruvec, pin)
            .map(|counts| counts.charged.swap(0, Ordering::Relaxed))
            .fold(0, u64::wrapping_add);
        let mut states = [0; PageState::COUNT];
        if let Some(shared) = self.shared.get(lruvec as usize) {
            for (state, frames) in states.iter_mut().enumerate() {
                *frames = shared.local[state].swap(0, Ordering::Relaxed);
                shared.tree[state].store(0, Ordering::Relaxed);
            }
        }
        (charged, states)
    }

    /// This CPU's counts for a lruvec, and whether nobody else writes them.
    #[inline]
    fn mine<'p>(
        &self,
        lruvec: LruVecIndex,
        pin: &'p Pinned<'_, P>,
        off: &IrqOff<P>,
    ) -> Option<(&'p Counts, bool)> {
        let (lruvec, others) = (lruvec as usize, self.others);
        let cpu = (off.cpu().0 as usize).min(others);
        let counts = if lruvec < self.carved {
            self.counts.get(cpu * self.carved + lruvec)?
        } else {
            self.lent.get(lruvec - self.carved)?.get(pin, cpu as u32)?
        };
        Some((counts, P::CPU_IDS == CpuIds::Exclusive && cpu != others))
    }

    /// Every CPU's counts for a lruvec.
    fn of_cpus<'p>(
        &self,
        lruvec: LruVecIndex,
        pin: &'p Pinned<'_, P>,
    ) -> impl Iterator<Item = &'p Counts> {
        let lruvec = lruvec as usize;
        let (carved, lent) = match lruvec.checked_sub(self.carved) {
            None => (self.counts.get(lruvec..).unwrap_or(&[]), None),
            Some(index) => (&[][..], self.lent.get(index)),
        };
        let lent = lent.into_iter().flat_map(move |lent| {
            (0..=self.others).map_while(move |cpu| lent.get(pin, cpu as u32))
        });
        carved.iter().step_by(self.carved.max(1)).chain(lent)
    }

    /// Counts of one group that are not carved: how many, by node and CPU.
    pub(super) fn lent_counts(&self, nodes: u32) -> u32 {
        if self.lent.is_empty() {
            return 0;
        }
        nodes * self.counts_of_lruvec()
    }

    fn counts_of_lruvec(&self) -> u32 {
        self.others as u32 + 1
    }

    /// Bytes of so many counts.
    pub(super) fn bytes_of(counts: u32) -> u64 {
        u64::from(counts) * size_of::<Counts>() as u64
    }

    /// Makes the counts of a new group's lruvec in frames that its memory is in, as those of its node.
    pub(super) fn begin(&self, lruvec: LruVecIndex, node: u32, frames: FrameRange) -> bool {
        let count = self.counts_of_lruvec();
        let lent = (lruvec as usize).checked_sub(self.carved);
        let lent = lent.and_then(|index| self.lent.get(index));
        lent.is_some_and(|lent| lent.begin::<P>(frames, node * count, count))
    }

    /// Nobody finds the counts of a dead group's lruvec from now on.
    pub(super) fn end(&self, lruvec: LruVecIndex) {
        let lent = (lruvec as usize).checked_sub(self.carved);
        if let Some(lent) = lent.and_then(|index| self.lent.get(index)) {
            lent.end();
        }
    }
}

/// Takes what one CPU has not pushed.
fn take_all(counts: &Counts) -> impl Iterator<Item = Delta> {
    PageState::ALL.into_iter().filter_map(move |state| {
        let frames = advance(&counts.states[state.index()], &counts.pushed[state.index()]);
        (frames != 0).then_some(Delta { state, frames })
    })
}

/// Moves `pushed` up to `sum`; returns by how much. Each frame is taken by exactly one of those who do this at once.
fn advance(sum: &AtomicU32, pushed: &AtomicU32) -> i64 {
    let mut before = pushed.load(Ordering::Relaxed);
    loop {
        let now = sum.load(Ordering::Relaxed);
        if now == before {
            return 0;
        }
        match pushed.compare_exchange_weak(before, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return i64::from(now.wrapping_sub(before) as i32),
            Err(other) => before = other,
        }
    }
}
