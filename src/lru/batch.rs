//! Per-CPU batches of pending moves.
//!
//! Owns: [`Batches`], one CPU's queues; queueing and draining. What each move does is in moves.rs and mlock.rs.
//! Invariants: each entry holds a reference, so a queued frame does not die. The list a frame goes to is decided when the
//! batch is drained. A batch stays locked until its frames are linked: whoever finds it empty knows that they are.
//! A drain may lose a non-add move to someone who won the frame meanwhile; it never loses the frame.
//! The lock of a CPU's batches is also the section that ends before "batches off" is true for that CPU: how many frames may
//! wait is read under it, so nobody who saw batches on can queue after the drain that turned them off.
//! Lock ranks: `LruBatch`, and under it `LruVec`, one at a time. Used by: mm, reclaim.

use arrayvec::ArrayVec;

use super::View;
use super::mlock::Mlock;
use crate::addr::{CpuId, Order};
use crate::frame::{Flags, FrameNo};
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::Ranked;
use crate::sync::twin::left_out;

/// Frames a batch has room for.
pub(crate) const BATCH: usize = 31;

/// How many frames wait in a batch before it is drained. The smaller sizes are there to measure what batching saves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum BatchSize {
    /// Every move takes the lruvec's lock.
    One = 1,
    /// As Linux had it until 6.9.
    Fifteen = 15,
    /// One lock for 31 moves.
    #[default]
    ThirtyOne = BATCH as u8,
}

/// What happens to the frames of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Move {
    /// Link a new frame.
    Add,
    /// To the inactive list's old end. Queued by whoever completes I/O, also in an interrupt.
    Rotate,
    /// Off the active list, and towards reclaim: to the old end if clean, else there when written.
    DeactivateFile,
    /// Active to inactive.
    Deactivate,
    /// Anonymous contents that may be thrown away.
    LazyFree,
    /// Inactive to active.
    Activate,
    /// Count a mapping that locks the frame, or one less.
    Mlock(Mlock),
}

impl Move {
    const QUEUES: usize = 6;

    /// One for each queue, in the order in which they are drained; an mlock move stands for all of them.
    pub(crate) const EACH: [Self; Self::QUEUES + 1] = [
        Self::Add,
        Self::Rotate,
        Self::DeactivateFile,
        Self::Deactivate,
        Self::LazyFree,
        Self::Activate,
        Self::Mlock(Mlock::Lock),
    ];

    /// Index of the queue of plain frames; `Mlock` has its own.
    fn queue(self) -> Option<usize> {
        Some(match self {
            Self::Add => 0,
            Self::Rotate => 1,
            Self::DeactivateFile => 2,
            Self::Deactivate => 3,
            Self::LazyFree => 4,
            Self::Activate => 5,
            Self::Mlock(_) => return None,
        })
    }
}

/// Frames waiting for one kind of move.
pub(super) type Waiting = ArrayVec<FrameNo, BATCH>;
/// Frames waiting to be locked in memory, or unlocked, in the order in which that was asked.
pub(super) type WaitingMlocks = ArrayVec<(FrameNo, Mlock), BATCH>;

/// One CPU's pending moves.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    /// Frames that fill a queue: the configured size, or 1 while batches are off.
    limit: u8,
    /// The configured size.
    size: BatchSize,
    /// How many want batches off.
    off: u32,
    queues: [Waiting; Move::QUEUES],
    mlocks: WaitingMlocks,
}

impl Ranked for Batches {
    const RANK: Rank = Rank::LruBatch;
}

/// Frames whose last reference a drain dropped: the caller must free them.
pub(crate) type Dead = ArrayVec<FrameNo, BATCH>;

impl Batches {
    pub(super) fn new(size: BatchSize) -> Self {
        Self {
            limit: size as u8,
            size,
            ..Self::default()
        }
    }

    /// Turns batches off (or on again, when nobody wants them off).
    fn switch(&mut self, off: Switch) {
        match off {
            Switch::Off => self.off += 1,
            Switch::On => self.off = self.off.saturating_sub(1),
        }
        self.limit = if self.off > 0 { 1 } else { self.size as u8 };
    }
}

/// Whether moves may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Switch {
    Off,
    On,
}

impl<P: Platform> View<'_, P> {
    /// Queues a move of `frame`, for which the caller took a reference; drains the batch if that fills it, and at once for
    /// large folios and while batches are off.
    ///
    /// On a CPU without batches the move happens at once.
    #[inline]
    #[must_use]
    pub(crate) fn queue(self, frame: FrameNo, kind: Move, order: Order, off: &IrqOff<P>) -> Dead {
        let Some(batches) = self.lru.batches.of(off.cpu()) else {
            return self.apply_one(frame, kind, off);
        };
        if left_out::<P>("batches: whether they are off is read under their lock") {
            // The broken twin: looks, lets go, and queues whatever it saw.
            let limit = batches.lock(off).limit;
            return self.push(&mut batches.lock(off), limit, frame, kind, order, off);
        }
        let mut batches = batches.lock(off);
        let limit = batches.limit;
        self.push(&mut batches, limit, frame, kind, order, off)
    }

    #[inline]
    fn push(
        self,
        batches: &mut Batches,
        limit: u8,
        frame: FrameNo,
        kind: Move,
        order: Order,
        off: &IrqOff<P>,
    ) -> Dead {
        let limit = usize::from(limit);
        // A full queue was drained by whoever filled it, so there is room for one.
        let waiting = match (kind.queue(), kind) {
            (Some(queue), _) => {
                let queue = &mut batches.queues[queue];
                queue.push(frame);
                queue.len()
            }
            (None, Move::Mlock(mlock)) => {
                batches.mlocks.push((frame, mlock));
                batches.mlocks.len()
            }
            (None, _) => 0,
        };
        if waiting < limit && order == Order::ZERO {
            return Dead::new();
        }
        self.drain_queue(batches, kind, off)
    }

    /// Drains the queue of one kind of move.
    #[cold]
    #[inline(never)]
    fn drain_queue(self, batches: &mut Batches, kind: Move, off: &IrqOff<P>) -> Dead {
        match kind.queue() {
            Some(queue) => self.apply(&core::mem::take(&mut batches.queues[queue]), kind, off),
            None => self.apply_mlocks(core::mem::take(&mut batches.mlocks), off),
        }
    }

    #[cold]
    fn apply_one(self, frame: FrameNo, kind: Move, off: &IrqOff<P>) -> Dead {
        match kind {
            Move::Mlock(mlock) => {
                let mut single = WaitingMlocks::new();
                single.push((frame, mlock));
                self.apply_mlocks(single, off)
            }
            kind => {
                let mut single = Waiting::new();
                single.push(frame);
                self.apply(&single, kind, off)
            }
        }
    }

    /// Whether nothing waits in a CPU's batches, and what waited before is linked.
    pub(super) fn is_drained(self, cpu: CpuId, off: &IrqOff<P>) -> bool {
        let Some(batches) = self.lru.batches.of(cpu) else {
            return true;
        };
        // The lock is what says that nobody is in the middle of a drain.
        let held = batches.lock(off);
        held.mlocks.is_empty() && held.queues.iter().all(ArrayVec::is_empty)
    }

    /// Drains the queue of one kind of move of one CPU, whether it runs or not.
    #[must_use]
    pub(crate) fn drain(self, cpu: CpuId, kind: Move, off: &IrqOff<P>) -> Dead {
        let Some(batches) = self.lru.batches.of(cpu) else {
            return Dead::new();
        };
        self.drain_queue(&mut batches.lock(off), kind, off)
    }

    /// Turns one CPU's batches off, or on again. Off, they keep what waits already: drain them.
    pub(crate) fn switch(self, cpu: CpuId, to: Switch, off: &IrqOff<P>) {
        if let Some(batches) = self.lru.batches.of(cpu) {
            batches.lock(off).switch(to);
        }
    }

    /// Marks a frame active that waits in this CPU's add batch; says whether it does. Never looks at another CPU's: it may
    /// be draining.
    pub(crate) fn activate_queued(self, frame: FrameNo, off: &IrqOff<P>) -> bool {
        let Some(batches) = self.lru.batches.of(off.cpu()) else {
            return false;
        };
        let held = batches.lock(off);
        let add = Move::Add.queue().map(|add| &held.queues[add]);
        // The newest first: it is what was faulted in a moment ago.
        let waits = add.is_some_and(|add| add.iter().rev().any(|&waiting| waiting == frame));
        if waits {
            self.frames.record(frame).set(Flags::ACTIVE);
        }
        waits
    }
}
