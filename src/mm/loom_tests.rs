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

use super::account::StateChange;
use crate::addr::Order;
use crate::frame::FrameNo;
use crate::loom_host::{LoomHost, LoomLock, model_platform, run_as};
use crate::loom_machine::Machine;
use crate::memcg::{MemcgId, PageState};
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

/// A frame charged to one of two groups, on no list.
struct Scene<P: Platform> {
    machine: Machine<P>,
    from: MemcgId,
    to: MemcgId,
    frame: FrameNo,
}

impl<P: Platform> Scene<P> {
    fn new() -> Self {
        let machine = Machine::new(3, 1);
        let [from, to] = [machine.child(), machine.child()];
        let frame = machine.charged(from, Order::ZERO);
        Self {
            machine,
            from,
            to,
            frame,
        }
    }

    fn account(&self, change: StateChange) {
        let off = IrqOff::new();
        self.machine
            .view()
            .account(self.frame, PageState::MAPPED, change, &off);
    }

    fn move_frame(&self) {
        self.machine.memcgs.begin_move(self.from).unwrap();
        self.machine
            .view()
            .move_charge(self.frame, self.from, self.to, &IrqOff::new())
            .unwrap();
        self.machine.memcgs.end_move(self.from.slot);
    }

    fn counts(&self) -> [i64; 2] {
        [self.from, self.to].map(|id| {
            let lruvec = self.machine.memcgs.lruvec_of(id.slot, 0);
            self.machine.memcgs.raw_state(lruvec, PageState::MAPPED)
        })
    }
}

fn update_against_move<P: Platform>(change: StateChange) {
    loom::model(move || {
        let scene = Arc::new(Scene::<P>::new());
        let expected = match change {
            StateChange::Enter => 1,
            StateChange::Leave => {
                scene.account(StateChange::Enter);
                0
            }
        };
        let other = Arc::clone(&scene);
        let updater = loom::thread::spawn(move || {
            run_as(1);
            other.account(change);
        });
        scene.move_frame();
        updater.join().unwrap();
        assert_eq!(
            scene.counts(),
            [0, expected],
            "the new group alone counts the frame"
        );
        assert_eq!(scene.machine.memcgs.usage(scene.from), Some(0));
        assert_eq!(scene.machine.memcgs.usage(scene.to), Some(1));
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
