//! Per-CPU batches of pending moves.
//!
//! Owns: [`Batches`], one CPU's queues; queueing and draining.
//! Invariants: each entry holds a reference, so a queued frame does not die. The list a frame goes to is decided when the
//! batch is drained. A batch stays locked until its frames are linked: whoever finds it empty knows that they are.
//! A drain may lose a non-add move to someone who won the frame meanwhile; it never loses the frame.
//! Lock ranks: `LruBatch`, and under it `LruVec`, one at a time. Used by: mm, reclaim.

use arrayvec::ArrayVec;

use super::View;
use crate::addr::CpuId;
use crate::frame::{Flags, FrameNo, Put};
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::{Held, Ranked};

/// Frames a batch holds.
pub(crate) const BATCH: usize = 31;

/// What happens to the frames of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Move {
    /// Link a new frame.
    Add,
    /// Inactive to active.
    Activate,
}

impl Move {
    /// In the order in which they are drained.
    const ALL: [Self; 2] = [Self::Add, Self::Activate];
}

/// One CPU's pending moves.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    queues: [ArrayVec<FrameNo, BATCH>; 2],
}

impl Ranked for Batches {
    const RANK: Rank = Rank::LruBatch;
}

/// Frames whose last reference a drain dropped: the caller must free them.
pub(crate) type Dead = ArrayVec<FrameNo, { 2 * BATCH }>;

impl<P: Platform> View<'_, P> {
    /// Queues a move of `frame`, to which the caller holds a reference; drains the batch if that fills it.
    ///
    /// On a CPU without batches the move happens at once.
    #[inline]
    #[must_use]
    pub(crate) fn queue(self, frame: FrameNo, kind: Move, off: &IrqOff<P>) -> Dead {
        self.frames.record(frame).get();
        let Some(batches) = self.lru.batches.of(off.cpu()) else {
            let mut single = ArrayVec::<_, BATCH>::new();
            single.push(frame);
            return self.apply(single, kind, off);
        };
        let mut batches = batches.lock(off);
        let queue = &mut batches.queues[kind as usize];
        queue.push(frame); // a full queue was drained by whoever filled it
        if !queue.is_full() {
            return Dead::new();
        }
        let full = core::mem::take(queue);
        self.apply(full, kind, off)
    }

    /// Drains all of one CPU's batches, whether it runs or not.
    #[must_use]
    pub(crate) fn drain(self, cpu: CpuId, off: &IrqOff<P>) -> Dead {
        let mut dead = Dead::new();
        if let Some(batches) = self.lru.batches.of(cpu) {
            let mut batches: Held<'_, Batches, P> = batches.lock(off);
            for kind in Move::ALL {
                let queue = core::mem::take(&mut batches.queues[kind as usize]);
                dead.extend(self.apply(queue, kind, off));
            }
        }
        dead
    }

    /// Marks a frame active that waits in this CPU's add batch. Never looks at another CPU's: it may be draining.
    pub(crate) fn activate_queued(self, frame: FrameNo, off: &IrqOff<P>) {
        let Some(batches) = self.lru.batches.of(off.cpu()) else {
            return;
        };
        if batches.lock(off).queues[Move::Add as usize].contains(&frame) {
            self.frames.record(frame).set(Flags::ACTIVE);
        }
    }

    /// Moves a batch, one lruvec at a time, and drops its references.
    fn apply(self, mut batch: ArrayVec<FrameNo, BATCH>, kind: Move, off: &IrqOff<P>) -> Dead {
        // Frames of alternating owners would cost a lock each; in order of their lruvecs, one lock each lruvec. Only a
        // hint: an owner that changes after this costs another lock, `relock` keeps the result right. Stable, so the
        // frames of one lruvec keep the order in which they were queued.
        let first = batch.first().map(|&frame| self.lruvec_of(frame));
        if batch
            .iter()
            .any(|&frame| Some(self.lruvec_of(frame)) != first)
        {
            let mut keyed: ArrayVec<_, BATCH> = (0u8..)
                .zip(&batch)
                .map(|(i, &frame)| (self.lruvec_of(frame), i, frame))
                .collect();
            keyed.sort_unstable();
            batch = keyed.into_iter().map(|(_, _, frame)| frame).collect();
        }
        let mut dead = Dead::new();
        let mut held = None;
        batch.retain(|frame| {
            let frame = *frame;
            let record = self.frames.record(frame);
            match kind {
                Move::Add if record.freeze(1) => {
                    // Only the batch still wanted it: never link what is about to be freed.
                    dead.push(frame);
                    return false;
                }
                Move::Add => {
                    held = self.relock(frame, held.take(), off);
                    if let Some(held) = &mut held {
                        held.lruvec.link(self.frames, frame);
                    }
                }
                Move::Activate if record.win() => {
                    held = self.relock(frame, held.take(), off);
                    if let Some(held) = &mut held {
                        self.activate_locked(held, frame);
                    }
                }
                Move::Activate => {} // someone isolated it meanwhile: the move is lost, which is allowed
            }
            true
        });
        drop(held);
        for frame in batch {
            if self.frames.record(frame).put() == Put::Last {
                dead.push(frame);
            }
        }
        dead
    }
}
