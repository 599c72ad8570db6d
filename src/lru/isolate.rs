//! Taking frames off their lists, and putting them back.
//!
//! Owns: isolation by a holder of a reference and from a list's tail; putback; the removal of a dead frame.
//! Invariants: a frame is unlinked only by whoever cleared its `LRU` flag while holding a reference, or by whoever dropped the
//! last reference. A frame without references is never linked: putback sets `LRU` before it drops the isolation's
//! reference, so that another last put sees that it must unlink.
//! Lock ranks: takes `LruVec`, at most [`SCAN`] frames a hold. Used by: mm (handles), reclaim.

use arrayvec::ArrayVec;

use super::lock::Locked;
use super::{ListKind, View};
use crate::frame::{Flags, FrameNo, Put, Unlinked};
use crate::memcg::LruVecIndex;
use crate::platform::{IrqOff, Platform};

/// Frames handled under one hold of an lruvec's lock (`SWAP_CLUSTER_MAX`).
pub(crate) const SCAN: usize = 32;

/// Frames in one hold's hands.
pub(crate) type Scanned = ArrayVec<FrameNo, SCAN>;

/// What a scan of a tail brought.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Isolated, each with a reference.
    pub(crate) isolated: Scanned,
    /// Frames whose last reference the scan held: the caller must free them.
    pub(crate) dead: Scanned,
    /// Entries looked at.
    pub(crate) scanned: u32,
}

impl<P: Platform> View<'_, P> {
    /// Takes a frame off its list for a caller that holds a reference; takes one more for the isolation.
    pub(crate) fn isolate(self, frame: FrameNo, off: &IrqOff<P>) -> bool {
        let record = self.frames.record(frame);
        if !record.win() {
            return false;
        }
        record.get();
        if let Some(mut held) = self.lock(frame, off) {
            self.unlink(&mut held, frame);
        }
        true
    }

    /// Isolates up to `want` frames, at most [`SCAN`], from the old end of a list.
    pub(crate) fn isolate_tail(
        self,
        lruvec: LruVecIndex,
        kind: ListKind,
        want: u32,
        off: &IrqOff<P>,
    ) -> Tail {
        let mut tail = Tail::default();
        let Some(mut held) = self.lock_index(lruvec, off) else {
            return tail;
        };
        let budget = want.min(SCAN as u32).min(held.lruvec.list(kind).len());
        while tail.scanned < budget
            && let Some(frame) = held.lruvec.list(kind).back()
        {
            tail.scanned += 1;
            let record = self.frames.record(frame);
            // A reference first: clearing LRU on a dying frame would make its last put skip the unlinking.
            if record.try_get() {
                if record.win() {
                    self.unlink(&mut held, frame);
                    tail.isolated.push(frame);
                    continue;
                }
                if record.put() == Put::Last {
                    tail.dead.push(frame);
                }
            }
            if held.lruvec.rotate(self.frames, frame, kind) == Unlinked::Damaged {
                break;
            }
        }
        tail
    }

    /// Links isolated frames again and drops the isolation's reference of each. Returns those that this killed.
    pub(crate) fn put_back(self, isolated: &[FrameNo], off: &IrqOff<P>) -> Scanned {
        let mut dead = Scanned::new();
        let mut held = None;
        for &frame in isolated {
            held = self.relock(frame, held.take(), off);
            let Some(held) = &mut held else { continue };
            let record = self.frames.record(frame);
            // Set before the put: a last put elsewhere then sees LRU, waits for this lock, and unlinks.
            held.lruvec.link(self.frames, frame);
            if record.put() == Put::Last {
                self.unlink(held, frame);
                record.clear(Flags::LRU);
                dead.push(frame);
            }
        }
        dead
    }

    /// Takes dead frames off their lists; nobody has a reference to any of them.
    pub(crate) fn remove_dead(self, dead: &[FrameNo], off: &IrqOff<P>) {
        let mut held = None;
        for &frame in dead {
            let record = self.frames.record(frame);
            if record.flags().contains(Flags::LRU) {
                held = self.relock(frame, held.take(), off);
                if let Some(held) = &mut held {
                    self.unlink(held, frame);
                }
                record.clear(Flags::LRU);
            }
        }
    }

    /// Moves a frame whose `LRU` flag the caller won to the active list, and gives the flag back.
    pub(super) fn activate_locked(self, held: &mut Locked<'_, P>, frame: FrameNo) {
        let record = self.frames.record(frame);
        if !record
            .flags()
            .intersects(Flags::ACTIVE | Flags::UNEVICTABLE)
            && self.unlink(held, frame) == Unlinked::Done
        {
            record.set(Flags::ACTIVE);
            held.lruvec.link(self.frames, frame);
        } else {
            record.set(Flags::LRU);
        }
    }

    /// Unlinks; damaged links stay as they are, for `check()` to find.
    fn unlink(self, held: &mut Locked<'_, P>, frame: FrameNo) -> Unlinked {
        let unlinked = held.lruvec.unlink(self.frames, frame);
        debug_assert_eq!(
            unlinked,
            Unlinked::Done,
            "frame {} has damaged links",
            self.frames.pfn(frame)
        );
        unlinked
    }
}
