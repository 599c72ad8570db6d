//! Models of state accounting against a move of charges, run by loom on the code itself.
//!
//! Owns: nothing. Invariants: checked, not held: when an update and a move are over, each group counts exactly the frames in
//! the state that are charged to it. Lock ranks: as the code under test.
//! Used by: `RUSTFLAGS="--cfg loom" cargo test --release --lib`.
//!
//! Bounds: an updater and a mover, two groups, one frame; `LOOM_MAX_PREEMPTIONS` bounds the schedules.
//! The broken twins, which must be caught: without the second look at the owner, as the protocol was first published; and
//! with the new owner named before the states were counted there.

extern crate std;

use loom::sync::Arc;
use std::vec::Vec;

use super::account::StateChange;
use crate::addr::{FrameRange, NodeId, Order, Pfn, ZoneKind};
use crate::boot::{Bump, Storage};
use crate::frame::{FrameNo, FrameTable};
use crate::loom_host::{LoomHost, LoomLock, model_platform, run_as};
use crate::lru::{BatchSize, Lru, Sizes, View};
use crate::memcg::{Force, MemcgId, MemcgLimits, Memcgs, PageState};
use crate::platform::{IrqOff, Platform};

model_platform!(
    /// Leaves out the step that closes the end of a move.
    WithoutSecondLook,
    LoomLock,
    LEFT_OUT: &'static str = "account: the second look at the owner"
);

model_platform!(
    /// Names the new owner before the states went there.
    OwnerFirst,
    LoomLock,
    LEFT_OUT: &'static str = "move: states are counted before the new owner is named"
);

struct Machine<P: Platform> {
    frames: FrameTable,
    memcgs: Memcgs<P>,
    lru: Lru<P>,
    from: MemcgId,
    to: MemcgId,
    frame: FrameNo,
}

impl<P: Platform> Machine<P> {
    /// A frame charged to one of two groups, on no list.
    fn new() -> Self {
        let mut memory = Vec::with_capacity(1 << 16);
        memory.resize_with(1 << 16, core::mem::MaybeUninit::uninit);
        let mut storage = Storage::from_static(memory.leak());
        let mut bump = Bump::new(&mut storage);
        let limits = MemcgLimits {
            groups: 3,
            depth: 1,
            owners: 3,
        };
        let frames = FrameTable::build(
            &mut bump,
            12,
            || [FrameRange::new(Pfn(1), Pfn(2))].into_iter(),
            |_| false,
        )
        .unwrap();
        let memcgs: Memcgs<P> =
            Memcgs::build(&mut bump, &limits, 1, 2).unwrap_or_else(|_| unreachable!("fits"));
        let sizes = Sizes {
            groups: 3,
            nodes: 1,
            cpus: 2,
            frames: 1,
            batch: BatchSize::ThirtyOne,
        };
        let lru = Lru::build(&mut bump, &sizes).unwrap();
        let off = IrqOff::new();
        let [from, to] = [0, 1].map(|_| memcgs.create(MemcgId::ROOT, &off, |_| ()).unwrap());
        let owner = memcgs
            .try_charge(from, NodeId(0), 1, Force::Within)
            .unwrap_or_else(|_| unreachable!("no limit"));
        let frame = frames.number(Pfn(1)).unwrap();
        let record = frames.record(frame);
        record.set_owner(Some(owner));
        record.birth(Order::ZERO, ZoneKind::Normal);
        Self {
            frames,
            memcgs,
            lru,
            from,
            to,
            frame,
        }
    }

    fn view(&self) -> View<'_, P> {
        View {
            frames: &self.frames,
            memcgs: &self.memcgs,
            lru: &self.lru,
        }
    }

    fn account(&self, change: StateChange) {
        let off = IrqOff::new();
        self.view()
            .account(self.frame, PageState::MAPPED, change, &off);
    }

    fn move_frame(&self) {
        self.memcgs.begin_move(self.from).unwrap();
        self.view()
            .move_charge(self.frame, self.from, self.to, &IrqOff::new())
            .unwrap();
        self.memcgs.end_move(self.from.slot);
    }

    fn counts(&self) -> [i64; 2] {
        [self.from, self.to].map(|id| {
            let lruvec = self.memcgs.lruvec_of(id.slot, 0);
            self.memcgs.raw_state(lruvec, PageState::MAPPED)
        })
    }
}

fn update_against_move<P: Platform>(change: StateChange) {
    loom::model(move || {
        let machine = Arc::new(Machine::<P>::new());
        let expected = match change {
            StateChange::Enter => 1,
            StateChange::Leave => {
                machine.account(StateChange::Enter);
                0
            }
        };
        let other = Arc::clone(&machine);
        let updater = loom::thread::spawn(move || {
            run_as(1);
            other.account(change);
        });
        machine.move_frame();
        updater.join().unwrap();
        assert_eq!(
            machine.counts(),
            [0, expected],
            "the new group alone counts the frame"
        );
        assert_eq!(machine.memcgs.usage(machine.from), Some(0));
        assert_eq!(machine.memcgs.usage(machine.to), Some(1));
    });
}

#[test]
fn a_frame_that_is_mapped_while_it_moves_counts_where_it_went() {
    update_against_move::<LoomHost>(StateChange::Enter);
}

#[test]
fn a_frame_that_is_unmapped_while_it_moves_counts_nowhere() {
    update_against_move::<LoomHost>(StateChange::Leave);
}

#[test]
#[should_panic(expected = "the new group alone counts the frame")]
fn without_the_second_look_an_update_counts_at_the_old_group() {
    update_against_move::<WithoutSecondLook>(StateChange::Enter);
}

#[test]
#[should_panic(expected = "the new group alone counts the frame")]
fn states_that_follow_the_owner_are_counted_twice() {
    update_against_move::<OwnerFirst>(StateChange::Enter);
}
