//! Models of the lruvec protocols, run by loom on the code itself.
//!
//! Owns: nothing. Invariants: checked, not held: a frame that is taken off and put back while its group ends lands on the parent's list, and
//! no list is touched under another list's lock. Lock ranks: as the code under test.
//! Used by: `RUSTFLAGS="--cfg loom" cargo test --release --lib`.
//!
//! Bounds: two threads, two groups, one frame; `LOOM_MAX_PREEMPTIONS` bounds the schedules. The zone below is not in it.
//! The broken twin leaves out the second look after the lock, and must be caught.

extern crate std;

use loom::sync::Arc;
use std::vec::Vec;

use super::{ListKind, Lru, View};
use crate::addr::{FrameRange, NodeId, Order, Pfn};
use crate::boot::Bump;
use crate::boot::Storage;
use crate::frame::{FrameNo, FrameTable};
use crate::loom_host::{LoomLock, model_platform};
use crate::memcg::{Force, MemcgId, MemcgLimits, Memcgs};
use crate::platform::IrqOff;

model_platform!(
    /// Two CPUs.
    LoomHost,
    LoomLock
);

struct Machine {
    frames: FrameTable,
    memcgs: Memcgs<LoomHost>,
    lru: Lru<LoomHost>,
}

impl Machine {
    fn new() -> Self {
        let mut memory = Vec::with_capacity(1 << 16);
        memory.resize_with(1 << 16, core::mem::MaybeUninit::uninit);
        let mut storage = Storage::from_static(memory.leak());
        let mut bump = Bump::new(&mut storage);
        let limits = MemcgLimits {
            groups: 2,
            depth: 1,
            owners: 2,
        };
        Self {
            frames: FrameTable::build(&mut bump, 12, || {
                [FrameRange::new(Pfn(1), Pfn(2))].into_iter()
            })
            .unwrap(),
            memcgs: Memcgs::build(&mut bump, &limits, 1, 2)
                .unwrap_or_else(|_| unreachable!("fits")),
            lru: Lru::build(&mut bump, 2, 2).unwrap(),
        }
    }

    fn view(&self) -> View<'_, LoomHost> {
        View {
            frames: &self.frames,
            memcgs: &self.memcgs,
            lru: &self.lru,
        }
    }

    /// A frame of a child group, linked on its list, with one reference.
    fn with_listed_frame() -> (Self, FrameNo, MemcgId) {
        let machine = Self::new();
        let off = IrqOff::new();
        let child = machine.memcgs.create(MemcgId::ROOT, &off, |_| ()).unwrap();
        let owner = machine
            .memcgs
            .try_charge(child, NodeId(0), 1, Force::Within)
            .unwrap_or_else(|_| unreachable!("no limit"));
        let frame = machine.frames.number(Pfn(1)).unwrap();
        let record = machine.frames.record(frame);
        record.set_owner(Some(owner));
        record.birth(Order::ZERO);
        record.get(); // the isolation's, which put_back drops
        assert!(machine.view().put_back(&[frame], &off).is_empty());
        (machine, frame, child)
    }
}

/// One thread runs `take_and_return` while another ends the group.
fn race_with_reparent(take_and_return: fn(View<'_, LoomHost>, FrameNo, &IrqOff<LoomHost>)) {
    loom::model(move || {
        let (machine, frame, child) = Machine::with_listed_frame();
        let machine = Arc::new(machine);
        let other = Arc::clone(&machine);
        let thread =
            loom::thread::spawn(move || take_and_return(other.view(), frame, &IrqOff::new()));
        let removal = machine.memcgs.begin_removal(child, &IrqOff::new()).unwrap();
        machine.view().reparent(&removal, &IrqOff::new());
        thread.join().unwrap();

        let off = IrqOff::new();
        let view = machine.view();
        let [child, parent] =
            [removal.child, removal.parent].map(|slot| machine.memcgs.lruvec_of(slot, 0));
        let on = |lruvec| {
            view.lock_index(lruvec, &off)
                .map(|held| held.lruvec.list(ListKind::InactiveAnon).len())
        };
        assert_eq!(
            (on(child), on(parent)),
            (Some(0), Some(1)),
            "the frame is on its living owner's list"
        );
        let held = view.lock_index(parent, &off).unwrap();
        assert_eq!(
            held.lruvec
                .recount(&machine.frames, ListKind::InactiveAnon, |_| true),
            Ok((1, 1))
        );
        machine.memcgs.put_owners(removal.child);
        drop(held);
        machine.memcgs.finish_removal(removal, &off);
    });
}

#[test]
fn a_frame_isolated_while_its_group_ends_returns_to_the_parent() {
    race_with_reparent(|view, frame, off| {
        assert!(view.isolate(frame, off));
        assert!(view.put_back(&[frame], off).is_empty());
    });
}

#[test]
#[should_panic(expected = "the frame is on its living owner's list")]
fn without_the_second_look_a_frame_returns_to_a_dead_list() {
    race_with_reparent(|view, frame, off| {
        assert!(view.isolate(frame, off));
        let stale = view.lruvec_of(frame).unwrap();
        let mut held = view.lock_index(stale, off).unwrap();
        held.lruvec.link(view.frames, frame);
        view.frames.record(frame).put();
    });
}
