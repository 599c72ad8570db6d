//! Frames that mappings lock in memory, and frames that the kernel keeps from reclaim.
//!
//! Owns: [`Mlock`], the moves of the mlock batch; the rescue of frames that may be reclaimed again.
//! Invariants: an unevictable frame counts the locking mappings that it knows of, which may be fewer than there are, never
//! more: while the frame is isolated nobody counts. Reclaim repairs that when it meets a mapping that locks.
//! The moves of one batch happen in the order in which they were queued: a lock and an unlock do not overtake each other.
//! Lock ranks: `LruVec`, one at a time. Used by: batch, mm.

use super::View;
use super::batch::{Dead, WaitingMlocks};
use super::lock::Locked;
use super::lruvec::End;
use super::moves::flags_on_list;
use crate::frame::{Flags, FrameNo, Put, Record, Settled};
use crate::platform::{IrqOff, Platform};

/// A change of what locks a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mlock {
    /// One more mapping locks it.
    Lock,
    /// A new frame, on no list yet, in a mapping that locks.
    New,
    /// One mapping fewer locks it.
    Unlock,
}

impl<P: Platform> View<'_, P> {
    /// Applies mlock moves in their order, and drops the batch's references.
    pub(super) fn apply_mlocks(self, batch: WaitingMlocks, off: &IrqOff<P>) -> Dead {
        let mut dead = Dead::new();
        let mut held = None;
        let mut late = super::batch::Waiting::new();
        for (frame, mlock) in batch {
            let record = self.frames.record(frame);
            if mlock == Mlock::New && record.count() == 1 && record.freeze(1) {
                dead.push(frame);
                continue;
            }
            let won = mlock == Mlock::New || record.win();
            if !won {
                if mlock == Mlock::Unlock {
                    // Now, or it would stay locked; whoever has it puts it where it belongs.
                    let before = record.clear(Flags::MLOCKED);
                    if before.contains(Flags::MLOCKED | Flags::UNEVICTABLE)
                        && let Some(held) = self.hold(&mut held, frame, record, off)
                    {
                        held.lruvec.moves.stranded += record.state().frames();
                    }
                }
                late.push(frame);
                continue;
            }
            let hold = match mlock {
                Mlock::New => self.hold(&mut held, frame, record, off),
                _ => self.hold_won(&mut held, frame, record, off),
            };
            let Some(held) = hold else {
                late.push(frame);
                continue;
            };
            let settled = match mlock {
                Mlock::New => {
                    let settled = self.link_new(held, (frame, record), End::Head);
                    let locked = Flags::UNEVICTABLE | Flags::MLOCKED;
                    if record.flags().contains(locked) {
                        record.set_note(1);
                    }
                    settled
                }
                Mlock::Lock => {
                    if record.flags().contains(Flags::UNEVICTABLE | Flags::MLOCKED) {
                        record.set_note(record.note() + 1);
                    }
                    self.place(held, (frame, record))
                }
                Mlock::Unlock => {
                    self.uncount(frame);
                    self.place(held, (frame, record))
                }
            };
            if settled == Settled::Last {
                dead.push(frame);
            }
        }
        drop(held);
        for frame in late {
            if self.frames.record(frame).put() == Put::Last {
                dead.push(frame);
            }
        }
        dead
    }

    /// One locking mapping fewer for a frame whose `LRU` the caller won.
    fn uncount(self, frame: FrameNo) {
        let record = self.frames.record(frame);
        if record.flags().contains(Flags::UNEVICTABLE) {
            let left = record.note().saturating_sub(1);
            record.set_note(left);
            if left > 0 {
                return;
            }
        }
        record.clear(Flags::MLOCKED);
    }

    /// Moves a frame whose `LRU` the caller won, but which is still linked, between its list and the unevictable frames if what
    /// keeps it changed; gives the flag back and drops the caller's reference.
    fn place(self, held: &mut Locked<'_, P>, (frame, record): (FrameNo, &Record)) -> Settled {
        loop {
            let state = record.state();
            let (old, new) = (state.flags(), flags_on_list(state.flags()));
            let named = Flags::UNEVICTABLE | Flags::ACTIVE;
            let moved = (old ^ new).intersects(Flags::UNEVICTABLE);
            if moved {
                self.take_out(held, (frame, record), state, old);
                // As unevictable it has a count there, else nothing yet.
                let locks = new.contains(Flags::UNEVICTABLE | Flags::MLOCKED);
                record.set_note(locks.into());
                held.lruvec
                    .insert(self.frames, (frame, record), state, new, End::Head);
            }
            let settled = record.settle(|now| {
                let now = flags_on_list(now);
                (!(now ^ new).intersects(named)).then_some(now)
            });
            match settled {
                Settled::Shared => {
                    if moved && new.contains(Flags::UNEVICTABLE) {
                        held.lruvec.moves.locked += state.frames();
                    } else if moved {
                        held.lruvec.moves.rescued += state.frames();
                    }
                    return settled;
                }
                Settled::Last => {
                    self.take_out(held, (frame, record), state, new);
                    return settled;
                }
                Settled::Lost if moved => {
                    // Locked or unlocked by someone in between: once more, from where the flags say it is.
                    self.take_out(held, (frame, record), state, new);
                    held.lruvec
                        .insert(self.frames, (frame, record), state, old, End::Head);
                }
                Settled::Lost => {}
            }
        }
    }

    /// Puts frames that may be reclaimed again on their lists, and those that may not any more among the unevictable ones.
    /// The caller has a reference to each; frames on no list are left to whoever has them. Returns how many were looked at.
    pub(crate) fn replace(self, frames: &[FrameNo], off: &IrqOff<P>) -> u32 {
        let mut held = None;
        let mut looked = 0;
        for &frame in frames {
            let record = self.frames.record(frame);
            let flags = record.flags();
            if !flags.contains(Flags::LRU) || flags_on_list(flags) == flags {
                continue;
            }
            // Its own reference, which `place` drops; the caller's keeps it from being the last.
            record.get();
            if !record.win() {
                record.put();
                continue;
            }
            match self.hold_won(&mut held, frame, record, off) {
                Some(held) => {
                    self.place(held, (frame, record));
                    looked += 1;
                }
                None => {
                    record.put();
                }
            }
        }
        looked
    }
}
