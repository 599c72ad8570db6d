//! Models of the LRU's protocols, run by loom on the code itself.
//!
//! Owns: nothing. Invariants: checked, not held: a frame that is taken off and put back while its group ends lands on the parent's
//! list; a last put and a putback, or an isolation, leave a frame freed once and linked nowhere; a drain of everyone and
//! batches turned off miss nothing. Lock ranks: as the code under test.
//! Used by: `RUSTFLAGS="--cfg loom" cargo test --release --lib`.
//!
//! Bounds: two threads (three for the drains), two groups, one frame; `LOOM_MAX_PREEMPTIONS` bounds the schedules. The zone
//! below is not in it. Each broken twin leaves out one step of the real code, named in [`Platform::LEFT_OUT`], and must be caught.

extern crate std;

use loom::sync::Arc;
use std::vec::Vec;

use super::batch::{Move, Switch};
use super::drain::Share;
use super::{BatchSize, ListKind, Lru, Sizes, View};
use crate::addr::{CpuId, FrameRange, NodeId, Order, Pfn, ZoneKind};
use crate::boot::{Bump, Storage};
use crate::frame::{Flags, FrameNo, FrameTable, Put};
use crate::loom_host::{LoomLock, model_platform, run_as};
use crate::memcg::{Force, MemcgId, MemcgLimits, Memcgs};
use crate::platform::{IrqOff, Platform};

model_platform!(
    /// Two CPUs.
    LoomHost,
    LoomLock
);
model_platform!(
    /// Wins the flag before it has the reference.
    FlagFirst,
    LoomLock,
    LEFT_OUT: &'static str = "isolation: the reference before the flag"
);
model_platform!(
    /// Drops the isolation's reference before it sets the flag.
    DropFirst,
    LoomLock,
    LEFT_OUT: &'static str = "putback: LRU is set before the reference is dropped"
);
model_platform!(
    /// Moves the generation when the scan is over.
    BumpLate,
    LoomLock,
    LEFT_OUT: &'static str = "drain-all: the generation moves before the scan"
);
model_platform!(
    /// Looks whether batches are off, and queues later.
    StaleSwitch,
    LoomLock,
    LEFT_OUT: &'static str = "batches: whether they are off is read under their lock"
);

struct Machine<P: Platform> {
    frames: FrameTable,
    memcgs: Memcgs<P>,
    lru: Lru<P>,
}

impl<P: Platform> Machine<P> {
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
        let sizes = Sizes {
            groups: 2,
            nodes: 1,
            cpus: 2,
            frames: 1,
            batch: BatchSize::ThirtyOne,
        };
        Self {
            frames: FrameTable::build(
                &mut bump,
                12,
                || [FrameRange::new(Pfn(1), Pfn(2))].into_iter(),
                |_| false,
            )
            .unwrap(),
            memcgs: Memcgs::build(&mut bump, &limits, 1, 2)
                .unwrap_or_else(|_| unreachable!("fits")),
            lru: Lru::build(&mut bump, &sizes).unwrap(),
        }
    }

    fn view(&self) -> View<'_, P> {
        View {
            frames: &self.frames,
            memcgs: &self.memcgs,
            lru: &self.lru,
        }
    }

    /// A frame with one reference, on no list.
    fn with_new_frame(group: impl FnOnce(&Self) -> MemcgId) -> (Self, FrameNo, MemcgId) {
        let machine = Self::new();
        let group = group(&machine);
        let owner = machine
            .memcgs
            .try_charge(group, NodeId(0), 1, Force::Within)
            .unwrap_or_else(|_| unreachable!("no limit"));
        let frame = machine.frames.number(Pfn(1)).unwrap();
        let record = machine.frames.record(frame);
        record.set_owner(Some(owner));
        record.birth(Order::ZERO, ZoneKind::Normal);
        (machine, frame, group)
    }

    /// A frame of a child group, linked on its list, with one reference.
    fn with_listed_frame() -> (Self, FrameNo, MemcgId) {
        let (machine, frame, child) = Self::with_new_frame(|machine| {
            machine
                .memcgs
                .create(MemcgId::ROOT, &IrqOff::new(), |_| ())
                .unwrap()
        });
        // The reference that a putback drops.
        machine.frames.record(frame).get();
        machine.frames.record(frame).set(Flags::MEMBER);
        let mut held = machine
            .view()
            .lock(frame, &IrqOff::new())
            .map(|held| held.index);
        let index = held.take().unwrap();
        let off = IrqOff::new();
        let mut held = machine.view().lock_index(index, &off).unwrap();
        machine.view().link_new(&mut held, frame);
        drop(held);
        (machine, frame, child)
    }

    /// What freeing does to a dead frame's list.
    fn bury(&self, frame: FrameNo) {
        self.view().remove_dead(&[frame], &IrqOff::new());
    }

    fn listed(&self, index: u32) -> u64 {
        let off = IrqOff::new();
        let held = self.view().lock_index(index, &off).unwrap();
        ListKind::ALL
            .map(|kind| u64::from(held.lruvec.list(kind).len()))
            .iter()
            .sum()
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
        let kind = ListKind::InactiveAnon;
        let recount = held.lruvec.recount(&machine.frames, kind, |_| true);
        assert_eq!(recount, Ok((1, held.lruvec.frames_by_zone(kind))));
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
        view.link_new(&mut held, frame);
    });
}

/// One thread drops the last reference of a listed frame while a scan that has none tries to isolate it.
fn race_of_isolation_and_last_put<P: Platform>() {
    loom::model(|| {
        let (machine, frame, _) = Machine::<P>::with_listed_frame();
        let machine = Arc::new(machine);
        let other = Arc::clone(&machine);
        let index = machine.view().lruvec_of(frame).unwrap();
        let thread = loom::thread::spawn(move || {
            let dies = other.frames.record(frame).put() == Put::Last;
            if dies {
                other.bury(frame);
            }
            u32::from(dies)
        });
        let mut deaths = 0;
        if machine.view().isolate(frame, &IrqOff::new()) {
            let dead = machine.view().put_back(&[frame], &IrqOff::new());
            deaths += dead.len() as u32;
            dead.iter().for_each(|&frame| machine.bury(frame));
        }
        deaths += thread.join().unwrap();
        assert_eq!(
            (
                deaths,
                machine.frames.record(frame).count(),
                machine.listed(index)
            ),
            (1, 0, 0),
            "a dead frame is freed once and linked nowhere"
        );
    });
}

#[test]
fn an_isolation_beside_the_last_put_leaves_the_frame_freed_once_and_unlinked() {
    race_of_isolation_and_last_put::<LoomHost>();
}

#[test]
#[should_panic(expected = "a dead frame is freed once and linked nowhere")]
fn an_isolation_that_wins_the_flag_before_the_reference_is_caught() {
    race_of_isolation_and_last_put::<FlagFirst>();
}

/// One thread puts a frame back while another drops the last other reference to it.
fn race_of_putback_and_last_put<P: Platform>() {
    loom::model(|| {
        let (machine, frame, _) = Machine::<P>::with_listed_frame();
        assert!(machine.view().isolate(frame, &IrqOff::new()));
        let machine = Arc::new(machine);
        let other = Arc::clone(&machine);
        let index = machine.view().lruvec_of(frame).unwrap();
        let thread = loom::thread::spawn(move || {
            let dies = other.frames.record(frame).put() == Put::Last;
            if dies {
                other.bury(frame);
            }
            u32::from(dies)
        });
        let dead = machine.view().put_back(&[frame], &IrqOff::new());
        dead.iter().for_each(|&frame| machine.bury(frame));
        let deaths = dead.len() as u32 + thread.join().unwrap();
        assert_eq!(
            (
                deaths,
                machine.frames.record(frame).count(),
                machine.listed(index)
            ),
            (1, 0, 0),
            "a dead frame is freed once and linked nowhere"
        );
    });
}

#[test]
fn a_putback_beside_the_last_put_leaves_the_frame_freed_once_and_unlinked() {
    race_of_putback_and_last_put::<LoomHost>();
}

#[test]
#[should_panic(expected = "a dead frame is freed once and linked nowhere")]
fn a_putback_that_drops_the_reference_before_it_sets_the_flag_is_caught() {
    race_of_putback_and_last_put::<DropFirst>();
}

/// Two threads drain everyone, one of which queued a frame on CPU 0 before it called.
fn race_of_two_drains<P: Platform>() {
    loom::model(|| {
        let (machine, frame, _) = Machine::<P>::with_new_frame(|_| MemcgId::ROOT);
        let machine = Arc::new(machine);
        let other = Arc::clone(&machine);
        let thread = loom::thread::spawn(move || {
            run_as(1);
            other.view().drain_all(Share::Any, |_, _| ());
        });
        run_as(0);
        machine.frames.record(frame).get();
        let off = IrqOff::new();
        let dead = machine.view().queue(frame, Move::Add, Order::ZERO, &off);
        assert!(dead.is_empty());
        machine.view().drain_all(Share::Any, |_, _| ());
        let linked = machine.frames.record(frame).flags().contains(Flags::LRU);
        assert!(linked, "what was queued before the drain is linked");
        thread.join().unwrap();
    });
}

#[test]
fn callers_that_share_a_drain_find_done_what_they_queued_before() {
    race_of_two_drains::<LoomHost>();
}

#[test]
#[should_panic(expected = "what was queued before the drain is linked")]
fn a_generation_that_moves_after_the_scan_is_caught() {
    race_of_two_drains::<BumpLate>();
}

/// One thread turns batches off while another queues a frame.
fn race_of_switch_and_queue<P: Platform>() {
    loom::model(|| {
        let (machine, frame, _) = Machine::<P>::with_new_frame(|_| MemcgId::ROOT);
        let machine = Arc::new(machine);
        let other = Arc::clone(&machine);
        let thread = loom::thread::spawn(move || {
            run_as(0);
            other.frames.record(frame).get();
            let off = IrqOff::new();
            let dead = other.view().queue(frame, Move::Add, Order::ZERO, &off);
            assert!(dead.is_empty());
        });
        run_as(1);
        machine.view().switch_all(Switch::Off, |_, _| ());
        thread.join().unwrap();
        let references = machine.frames.record(frame).count();
        assert_eq!(references, 1, "no batch has one");
        // And what is queued from now on does not wait.
        let dead = machine.view().drain(
            CpuId(0),
            super::batch::Queue::Moves(Move::Add),
            &IrqOff::new(),
        );
        assert!(dead.is_empty());
    });
}

#[test]
fn after_batches_were_turned_off_no_batch_holds_a_reference() {
    race_of_switch_and_queue::<LoomHost>();
}

#[test]
#[should_panic(expected = "no batch has one")]
fn a_switch_that_is_read_outside_the_lock_is_caught() {
    race_of_switch_and_queue::<StaleSwitch>();
}
