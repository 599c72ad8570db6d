//! Taking frames off their lists, and putting them back.
//!
//! Owns: isolation by a holder of a reference, from a list's tail, and from a range of frames; putback; the removal of dead
//! frames.
//! Invariants: a frame is unlinked only by whoever cleared its `LRU` flag while holding a reference, or by whoever dropped the
//! last reference. A frame without references is never linked: putback sets `LRU` no later than it drops the isolation's
//! reference, so that another last put sees that it must unlink.
//! Lock ranks: takes `LruVec`, one at a time, at most [`SCAN`] frames a hold. Used by: mm (handles), reclaim.

use arrayvec::ArrayVec;

use super::End;
use super::in_hand::{Hands, Tally};
use super::lock::Locked;
use super::policy::ListNo;
use super::{ListKind, View};
use crate::addr::ZoneKind;
use crate::frame::{Flags, FrameList, FrameNo, Put, Record, Settled, State, Unlinked};
use crate::memcg::LruVecIndex;
use crate::platform::{IrqOff, Platform};
use crate::sync::twin::left_out;

/// Frames handled under one hold of an lruvec's lock (`SWAP_CLUSTER_MAX`).
pub(crate) const SCAN: usize = 32;

/// Entries of too high a zone that one hold passes over; more are isolated like any other (`SWAP_CLUSTER_MAX_SKIPPED`).
const MOST_SKIPPED: u32 = 32 << 10;

/// Frames in one hold's hands.
pub(crate) type Scanned = ArrayVec<FrameNo, SCAN>;

/// A scan of tails, under one hold.
struct Scan<'s> {
    /// Isolated, each with a reference.
    isolated: &'s mut Scanned,
    /// Entries to be looked at.
    want: u32,
    /// Entries looked at.
    scanned: u32,
    /// Entries passed over since their zone is too high.
    skipped: u32,
}

impl<P: Platform> View<'_, P> {
    /// Takes a frame off its list for a caller that holds a reference; takes one more for the isolation.
    pub(crate) fn isolate(self, frame: FrameNo, off: &IrqOff<P>) -> bool {
        let record = self.frames.record(frame);
        if left_out::<P>("isolation: the reference before the flag") {
            if !record.clear(Flags::LRU).contains(Flags::LRU) {
                return false;
            }
            record.get();
        } else if record.win_with_reference().is_none() {
            return false;
        }
        let mut held = None;
        if let Some(held) = self.hold_won(&mut held, frame, record, off) {
            self.unlink_won(held, (frame, record), &mut self.tally(Hands::Taken));
        }
        true
    }

    /// Unlinks a frame whose `LRU` the caller won, and counts it as isolated. Returns its state, which stands still under the lock.
    fn unlink_won(
        self,
        held: &mut Locked<'_, P>,
        (frame, record): (FrameNo, &Record),
        tally: &mut Tally<'_, P>,
    ) -> State {
        let state = record.state();
        self.take_out(held, (frame, record), state, state.flags());
        tally.add(held.index, state.flags(), state.frames());
        state
    }

    /// Isolates up to `want` frames, at most [`SCAN`], from the old end of a kind's lists, the oldest list first, whose zones are
    /// `highest` or below it. The policy may take active frames for inactive ones, if those are next. Returns how many were looked
    /// at.
    pub(crate) fn isolate_tail(
        self,
        lruvec: LruVecIndex,
        kind: ListKind,
        want: u32,
        highest: ZoneKind,
        isolated: &mut Scanned,
        off: &IrqOff<P>,
    ) -> u32 {
        let mut taken = self.tally(Hands::Taken);
        let Some(mut held) = self.lock_index(lruvec, off) else {
            return 0;
        };
        let want = want.min(isolated.remaining_capacity() as u32);
        let mut scan = Scan {
            isolated,
            want,
            scanned: 0,
            skipped: 0,
        };
        for list in held.lruvec.candidates(kind) {
            self.isolate_from(list, highest, &mut held, &mut scan, &mut taken);
            if scan.scanned == want {
                break;
            }
        }
        scan.scanned
    }

    /// The same from one list.
    fn isolate_from(
        self,
        list: ListNo,
        highest: ZoneKind,
        held: &mut Locked<'_, P>,
        scan: &mut Scan<'_>,
        taken: &mut Tally<'_, P>,
    ) {
        let mut aside = FrameList::default();
        let mut budget = (scan.want - scan.scanned).min(held.lruvec.list(list).len());
        while budget > 0
            && let Some(frame) = held.lruvec.list(list).back()
        {
            let record = self.frames.record(frame);
            let state = record.state();
            if state.zone() > highest as usize && scan.skipped < MOST_SKIPPED {
                // Still counted on the list, to which it returns under this hold.
                let list = held.lruvec.list_mut(list);
                if list.remove(self.frames, frame, record) == Unlinked::Damaged {
                    break;
                }
                aside.push_back(self.frames, frame, record);
                scan.skipped += 1;
                continue;
            }
            budget -= 1;
            scan.scanned += 1;
            if record.win_with_reference().is_some() {
                self.unlink_won(held, (frame, record), taken);
                scan.isolated.push(frame);
            } else if held.lruvec.rotate(self.frames, (frame, record), list) == Unlinked::Damaged {
                break;
            }
        }
        held.lruvec
            .list_mut(list)
            .splice_front(self.frames, &mut aside);
    }

    /// Isolates frames that are next to each other, from `next` to before `end`, until [`SCAN`] were looked at. Moves `next`
    /// on. Frames of alternating owners cost one lock each, and none is held when it returns.
    pub(crate) fn isolate_range(
        self,
        next: &mut FrameNo,
        end: FrameNo,
        off: &IrqOff<P>,
    ) -> Scanned {
        let mut isolated = Scanned::new();
        let mut taken = self.tally(Hands::Taken);
        let mut held = None;
        let stop = FrameNo(end.0.min(next.0.saturating_add(SCAN as u32)));
        while *next < stop {
            let frame = *next;
            let record = self.frames.record(frame);
            let Some(mut state) = record.win_with_reference() else {
                // The rest of a larger folio has no references: it is passed over one by one.
                next.0 += 1;
                continue;
            };
            if let Some(held) = self.hold_won(&mut held, frame, record, off) {
                state = self.unlink_won(held, (frame, record), &mut taken);
            }
            isolated.push(frame);
            next.0 = next.0.saturating_add(state.frames() as u32);
        }
        isolated
    }

    /// Links isolated frames again at the new end of their lists, and drops the isolation's reference of each. Returns those that
    /// this killed.
    pub(crate) fn put_back(self, isolated: &[FrameNo], off: &IrqOff<P>) -> Scanned {
        self.put_back_at(End::Head, isolated.iter(), off)
    }

    /// The same at an end. Those that were isolated from the old end and go back there unseen come in the reverse order.
    pub(crate) fn put_back_at<'f>(
        self,
        at: End,
        isolated: impl Iterator<Item = &'f FrameNo>,
        off: &IrqOff<P>,
    ) -> Scanned {
        let mut dead = Scanned::new();
        let mut given = self.tally(Hands::Given);
        let mut held = None;
        for &frame in isolated {
            let record = self.frames.record(frame);
            let Some(held) = self.hold(&mut held, frame, record, off) else {
                continue;
            };
            // Nobody else changes the marks of an isolation.
            let state = record.state();
            given.add(held.index, state.flags(), state.frames());
            if left_out::<P>("putback: LRU is set before the reference is dropped") {
                if record.put() == Put::Last {
                    dead.push(frame);
                } else {
                    let state = record.state();
                    held.lruvec
                        .insert(self.frames, (frame, record), state, state.flags(), at);
                    record.set(Flags::LRU);
                }
            } else if self.link_new(held, (frame, record), at) == Settled::Last {
                dead.push(frame);
            }
        }
        dead
    }

    /// Takes at most [`SCAN`] dead frames off their lists, or out of isolators' hands; nobody has a reference to any of them.
    #[inline]
    pub(crate) fn remove_dead(self, dead: &[(FrameNo, &Record)], off: &IrqOff<P>) {
        let mut held = None;
        let mut given = self.tally(Hands::Given);
        let mut rest = Dead(dead.iter());
        while let Some(&(frame, record)) = rest.0.as_slice().first() {
            let state = record.state();
            let flags = state.flags();
            if flags.intersects(Flags::LRU | Flags::ISOLATED) {
                if flags.contains(Flags::LRU) {
                    if let Some(held) = self.hold(&mut held, frame, record, off) {
                        self.take_out(held, (frame, record), state, flags);
                    }
                } else if let Some(lruvec) = self.lruvec_of(frame) {
                    given.add(lruvec, flags, state.frames());
                }
                record.clear_dead(Flags::LRU | Flags::ISOLATED);
            }
            rest.0.next();
        }
    }
}

/// Dead frames that may still be linked. If a port's lock hook panics, each is leaked with a reference that nobody has, rather than
/// left on its list without one.
struct Dead<'d>(core::slice::Iter<'d, (FrameNo, &'d Record)>);

impl Drop for Dead<'_> {
    #[inline]
    fn drop(&mut self) {
        for (_, record) in self.0.by_ref() {
            record.thaw(1);
        }
    }
}
