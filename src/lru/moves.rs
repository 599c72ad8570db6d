//! What each batched move does to a frame when its batch is drained.
//!
//! Owns: the rule of every [`Move`]; applying a batch, one lruvec at a time.
//! Invariants: a rule is decided under the lruvec's lock and takes effect in the same step that drops the batch's reference,
//! if `LRU` is still set then. So whoever won the frame meanwhile keeps it, on the list that its flags name, and a frame whose
//! last reference was the batch's is not linked. At most one batch's frames are moved under one hold.
//! Lock ranks: `LruVec`, one at a time. Used by: batch.

use super::View;
use super::batch::{Dead, Move, Waiting};
use super::lock::{Hold, Locked};
use super::lruvec::End;
use crate::frame::{Flags, FrameNo, Put, Record, Settled, State, Unlinked};
use crate::platform::{IrqOff, Platform};

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    set: Flags,
    clear: Flags,
    end: End,
}

/// What a move makes of a frame with these flags; `None` if it does not apply to it (any more).
#[inline]
fn plan(kind: Move, flags: Flags) -> Option<Plan> {
    if flags & (Flags::LRU | Flags::UNEVICTABLE) != Flags::LRU {
        return None;
    }
    let plan = |set, clear, end| Some(Plan { set, clear, end });
    let used = Flags::ACTIVE | Flags::REFERENCED;
    let (head, tail, none) = (End::Head, End::Tail, Flags::empty());
    match kind {
        Move::Activate if !flags.contains(Flags::ACTIVE) => plan(Flags::ACTIVE, none, head),
        Move::Deactivate if flags.contains(Flags::ACTIVE) => plan(none, used, head),
        // Whoever maps it uses it.
        Move::DeactivateFile if flags.contains(Flags::MAPPED) => None,
        // Not worth a look before it is written; then it is rotated to the old end.
        Move::DeactivateFile if flags.intersects(Flags::DIRTY | Flags::WRITEBACK) => {
            plan(Flags::RECLAIM, used, head)
        }
        Move::DeactivateFile => plan(none, used, tail),
        Move::LazyFree if !flags.intersects(Flags::FILE | Flags::LAZYFREE) => {
            plan(Flags::LAZYFREE, used, head)
        }
        Move::Rotate => plan(none, Flags::ACTIVE, tail),
        _ => None,
    }
}

/// Where a frame that comes (back) to the LRU goes: the flags it gets.
#[inline]
pub(super) fn flags_on_list(flags: Flags) -> Flags {
    let flags = flags - (Flags::ROTATE | Flags::ISOLATED);
    if flags.intersects(Flags::LOCKED) {
        (flags | Flags::LRU | Flags::UNEVICTABLE) - Flags::ACTIVE
    } else {
        (flags | Flags::LRU) - Flags::UNEVICTABLE
    }
}

impl Move {
    /// Whether the move is worth queueing for a frame with these flags.
    #[inline]
    pub(crate) fn applies(self, flags: Flags) -> bool {
        // What was rotated while dirty would be looked at before it can go.
        let unclean = self == Self::Rotate && flags.intersects(Flags::DIRTY | Flags::WRITEBACK);
        !unclean && plan(self, flags).is_some()
    }
}

impl<P: Platform> View<'_, P> {
    /// Moves a batch, one lruvec at a time, and drops its references.
    pub(super) fn apply(self, batch: &Waiting, kind: Move, off: &IrqOff<P>) -> Dead {
        let mut dead = Dead::new();
        // References still to be dropped, after the locks.
        let mut late = Waiting::new();
        let mut others = self.apply_to_one(batch, kind, &mut dead, &mut late, off);
        // Frames of alternating owners would cost a lock each; so they cost one for each lruvec. Each round takes out at least its
        // first frame. The frames of one lruvec keep the order in which they were queued.
        while !others.is_empty() {
            others = self.apply_to_one(&others, kind, &mut dead, &mut late, off);
        }
        for frame in late {
            if self.frames.record(frame).put() == Put::Last {
                dead.push(frame);
            }
        }
        dead
    }

    /// Moves the frames of the first one's lruvec under one hold; returns the others.
    fn apply_to_one(
        self,
        batch: &Waiting,
        kind: Move,
        dead: &mut Dead,
        late: &mut Waiting,
        off: &IrqOff<P>,
    ) -> Waiting {
        let mut others = Waiting::new();
        let mut held = None;
        for &frame in batch {
            let record = self.frames.record(frame);
            if kind == Move::Add {
                // Only the batch still wants it: never link what is about to be freed.
                if record.count() == 1 && record.freeze(1) {
                    dead.push(frame);
                    continue;
                }
                // What a policy noted of an earlier folio in this frame.
                record.set_note(0);
            } else if held.is_none() && plan(kind, record.flags()).is_none() {
                late.push(frame); // not worth a lock
                continue;
            }
            let held = match self.hold_one(&mut held, frame, record, off) {
                Hold::Its(held) => held,
                Hold::Other => {
                    others.push(frame);
                    continue;
                }
                Hold::Nobodys => {
                    late.push(frame);
                    continue;
                }
            };
            let settled = match kind {
                Move::Add => self.link_new(held, (frame, record), End::Head),
                kind => self.relink(held, (frame, record), kind),
            };
            match settled {
                Settled::Shared => {}
                Settled::Last => dead.push(frame),
                Settled::Lost => late.push(frame),
            }
        }
        others
    }

    /// Links a frame that is on no list, where its flags say, at the given end unless it was written meanwhile, and drops the
    /// caller's reference. `Last` if nobody else had one: the frame is on no list.
    #[inline]
    pub(crate) fn link_new(
        self,
        held: &mut Locked<'_, P>,
        (frame, record): (FrameNo, &Record),
        at: End,
    ) -> Settled {
        loop {
            let state = record.state();
            let flags = flags_on_list(state.flags());
            if (flags ^ state.flags()).contains(Flags::UNEVICTABLE) {
                record.set_note(0);
            }
            let written = state.flags().contains(Flags::ROTATE);
            let end = if written && !flags.intersects(Flags::DIRTY | Flags::ACTIVE) {
                End::Tail
            } else {
                at
            };
            held.lruvec
                .insert(self.frames, (frame, record), state, flags, end);
            // LRU is set in the step that drops the reference: a last put elsewhere comes before it, and then this one was
            // not the last; or after it, and then it sees LRU, waits for this lock, and unlinks.
            let settled = record.settle(|now| {
                if now == state.flags() {
                    return Some(flags);
                }
                let (rotates, now) = (now.contains(Flags::ROTATE), flags_on_list(now));
                let moved = (now ^ flags).intersects(Flags::UNEVICTABLE | Flags::ACTIVE);
                (!moved && rotates == written).then_some(now)
            });
            if settled == Settled::Shared {
                return settled;
            }
            // Locked, unlocked, written or last meanwhile.
            self.take_back(held, (frame, record), state, flags);
            if settled == Settled::Last {
                return settled;
            }
        }
    }

    /// Applies a move to a frame on a list of `held`, and drops the batch's reference unless `Lost`.
    #[inline]
    fn relink(
        self,
        held: &mut Locked<'_, P>,
        (frame, record): (FrameNo, &Record),
        kind: Move,
    ) -> Settled {
        let state = record.state();
        let old = state.flags();
        let Some(Plan { set, clear, end }) = plan(kind, old) else {
            return Settled::Lost;
        };
        let new = (old | set) - clear;
        if self.take_out(held, (frame, record), state, old) == Unlinked::Damaged {
            return Settled::Lost;
        }
        held.lruvec
            .insert(self.frames, (frame, record), state, new, end);
        // Only the winner of LRU changes what names the list, and LRU is set again only under this lock: if it is set, the
        // frame still is where `old` said.
        let settled = record.settle(|now| now.contains(Flags::LRU).then_some((now | set) - clear));
        match settled {
            Settled::Shared => count(held, kind, old, state),
            Settled::Last => self.take_back(held, (frame, record), state, new),
            Settled::Lost => {
                // Someone won it and waits for this lock: it must be on the list that its flags name.
                self.take_back(held, (frame, record), state, new);
                held.lruvec
                    .insert(self.frames, (frame, record), state, old, End::Head);
            }
        }
        settled
    }

    /// Unlinks what was just linked: rare, and kept out of the way of the moves that hold.
    #[cold]
    fn take_back(
        self,
        held: &mut Locked<'_, P>,
        entry: (FrameNo, &Record),
        state: State,
        flags: Flags,
    ) {
        self.take_out(held, entry, state, flags);
    }

    /// Unlinks; damaged links stay as they are, for `check()` to find.
    #[inline]
    pub(super) fn take_out(
        self,
        held: &mut Locked<'_, P>,
        (frame, record): (FrameNo, &Record),
        state: State,
        flags: Flags,
    ) -> Unlinked {
        let unlinked = held
            .lruvec
            .take_out(self.frames, (frame, record), state, flags);
        debug_assert_eq!(
            unlinked,
            Unlinked::Done,
            "frame {} has damaged links",
            self.frames.pfn(frame)
        );
        unlinked
    }
}

fn count<P: Platform>(held: &mut Locked<'_, P>, kind: Move, old: Flags, state: State) {
    let moves = &mut held.lruvec.moves;
    let frames = state.frames();
    match kind {
        Move::Activate => moves.activated += frames,
        Move::LazyFree => moves.lazy_freed += frames,
        Move::Rotate => moves.rotated += frames,
        Move::DeactivateFile if !old.intersects(Flags::DIRTY | Flags::WRITEBACK) => {
            moves.rotated += frames;
        }
        _ => {}
    }
    if matches!(kind, Move::Deactivate | Move::DeactivateFile) && old.contains(Flags::ACTIVE) {
        moves.deactivated += frames;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_deactivated_to_the_end_that_its_state_asks_for() {
        // reclaim.md 2.3
        let active = Flags::LRU | Flags::FILE | Flags::ACTIVE | Flags::REFERENCED;
        for (flags, set, end) in [
            (active, Flags::empty(), End::Tail),
            (active | Flags::DIRTY, Flags::RECLAIM, End::Head),
            (active | Flags::WRITEBACK, Flags::RECLAIM, End::Head),
            (Flags::LRU | Flags::FILE, Flags::empty(), End::Tail),
        ] {
            let clear = Flags::ACTIVE | Flags::REFERENCED;
            let expected = Some(Plan { set, clear, end });
            assert_eq!(plan(Move::DeactivateFile, flags), expected, "{flags:?}");
            // Mapped: no change.
            assert_eq!(plan(Move::DeactivateFile, flags | Flags::MAPPED), None);
        }
    }

    #[test]
    fn no_move_applies_to_a_frame_that_is_isolated_or_unevictable() {
        for kind in [
            Move::Rotate,
            Move::DeactivateFile,
            Move::Deactivate,
            Move::LazyFree,
            Move::Activate,
        ] {
            for active in [Flags::empty(), Flags::ACTIVE] {
                assert_eq!(plan(kind, active), None, "{kind:?}");
                assert_eq!(plan(kind, active | Flags::LRU | Flags::UNEVICTABLE), None);
            }
        }
        assert!(!Move::Activate.applies(Flags::LRU | Flags::ACTIVE));
        assert!(!Move::Deactivate.applies(Flags::LRU));
        assert!(!Move::LazyFree.applies(Flags::LRU | Flags::FILE));
        assert!(!Move::Rotate.applies(Flags::LRU | Flags::DIRTY));
    }
}
