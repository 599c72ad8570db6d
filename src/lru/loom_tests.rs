//! Models of the LRU's protocols, run by loom on the code itself.
//!
//! Owns: nothing. Invariants: checked, not held: a frame that is taken off and put back while its group ends lands on the parent's
//! list; a last put and a putback, an isolation, or a split, leave a frame freed once and linked nowhere; a drain of everyone and
//! batches turned off miss nothing. Lock ranks: as the code under test.
//! Used by: `RUSTFLAGS="--cfg loom" cargo test --release --lib`.
//!
//! Bounds: two threads (three for the drains), two groups, one frame; `LOOM_MAX_PREEMPTIONS` bounds the schedules. The zone
//! below is not in it. Each broken twin leaves out one step of the real code, named in [`Platform::LEFT_OUT`], and must be caught.

extern crate std;

use super::batch::{Move, Switch};
use super::drain::Share;
use super::{End, ListKind, Policy, View};
use crate::addr::{CpuId, Order};
use crate::frame::{Flags, FrameNo, Put};
use crate::loom_host::{LoomLock, model_platform, run_as};
use crate::loom_machine::Machine;
use crate::memcg::MemcgId;
use crate::platform::{IrqOff, Platform};
use loom::sync::Arc;

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
    /// Gives the parts of a split folio references before they are linked.
    TailsEarly,
    LoomLock,
    LEFT_OUT: &'static str = "split: parts are linked before they have references"
);
model_platform!(
    /// Looks whether it has the only reference, and splits whatever comes.
    LookAndSplit,
    LoomLock,
    LEFT_OUT: &'static str = "split: the only reference is frozen"
);
model_platform!(
    /// Looks whether batches are off, and queues later.
    StaleSwitch,
    LoomLock,
    LEFT_OUT: &'static str = "batches: whether they are off is read under their lock"
);

/// A machine and a frame of a child group on its list, with one reference.
fn with_listed_frame<P: Platform>() -> (Machine<P>, FrameNo, MemcgId) {
    with_frame_listed_by(Policy::TwoLists)
}

fn with_frame_listed_by<P: Platform>(policy: Policy) -> (Machine<P>, FrameNo, MemcgId) {
    let machine = Machine::with_policy(2, 1, policy);
    let child = machine.child();
    let frame = machine.listed(child, Order::ZERO);
    (machine, frame, child)
}

/// A machine and a new frame of the root, on no list, with one reference.
fn with_new_frame<P: Platform>() -> (Machine<P>, FrameNo) {
    let machine = Machine::new(2, 1);
    let frame = machine.charged(MemcgId::ROOT, Order::ZERO);
    (machine, frame)
}

/// Entries on all lists of an lruvec.
fn listed<P: Platform>(machine: &Machine<P>, index: u32) -> u64 {
    let off = IrqOff::new();
    let held = machine.view().lock_index(index, &off).unwrap();
    let lists = ListKind::ALL
        .into_iter()
        .flat_map(|kind| held.lruvec.lists_of(kind));
    lists
        .map(|list| u64::from(held.lruvec.list(list).len()))
        .sum()
}

/// One thread runs `take_and_return` while another ends the group.
fn race_with_reparent(take_and_return: fn(View<'_, LoomHost>, FrameNo, &IrqOff<LoomHost>)) {
    for policy in [Policy::TwoLists, Policy::Generations] {
        loom::model(move || {
            let (machine, frame, child) = with_frame_listed_by(policy);
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
            assert_eq!(
                [child, parent].map(|lruvec| listed(&machine, lruvec)),
                [0, 1],
                "the frame is on its living owner's list"
            );
            let held = view.lock_index(parent, &off).unwrap();
            let list = held.lruvec.list_of(machine.frames.record(frame));
            let recount = held.lruvec.recount(&machine.frames, list, |_| true);
            assert_eq!(recount, Ok((1, held.lruvec.frames_by_zone(list))));
            machine.memcgs.put_owners(removal.child);
            drop(held);
            machine.memcgs.finish_removal(removal, &off);
        });
    }
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
        view.link_new(&mut held, (frame, view.frames.record(frame)), End::Head);
    });
}

/// One thread drops the last reference of a listed frame while a scan that has none tries to isolate it.
fn race_of_isolation_and_last_put<P: Platform>() {
    loom::model(|| {
        let (machine, frame, _) = with_listed_frame::<P>();
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
                listed(&machine, index)
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
        let (machine, frame, _) = with_listed_frame::<P>();
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
                listed(&machine, index)
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
        let (machine, frame) = with_new_frame::<P>();
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
        let (machine, frame) = with_new_frame::<P>();
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
        let dead = machine.view().drain(CpuId(0), Move::Add, &IrqOff::new());
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

/// A folio of two frames on the root's list, with one reference.
fn with_large_folio<P: Platform>() -> (Machine<P>, FrameNo) {
    let machine = Machine::new(2, 2);
    let order = Order::new(1).unwrap();
    let frame = machine.listed(MemcgId::ROOT, order);
    (machine, frame)
}

/// Drops the one reference to each part and counts the frames that this frees.
fn drop_parts<P: Platform>(machine: &Machine<P>, head: FrameNo) -> u64 {
    let parts = 2 >> machine.frames.record(head).order().get();
    (0..parts)
        .map(|part| FrameNo(head.0 + part))
        .filter(|&part| machine.frames.record(part).put() == Put::Last)
        .map(|part| {
            machine.bury(part);
            machine.frames.record(part).order().frames()
        })
        .sum()
}

/// What is right when every reference is gone: both frames were freed, and nothing is listed.
fn assert_all_gone<P: Platform>(machine: &Machine<P>, freed: u64) {
    let off = IrqOff::new();
    let root = machine.memcgs.lruvec_of(MemcgId::ROOT.slot, 0);
    let held = machine.view().lock_index(root, &off).unwrap();
    let kind = ListKind::InactiveAnon;
    let recount = held
        .lruvec
        .recount(&machine.frames, kind as usize, |_| true);
    let sizes = held.lruvec.sizes()[kind as usize];
    assert_eq!(
        (freed, recount.map(|(entries, _)| entries), sizes),
        (2, Ok(0), 0),
        "each frame of a split folio is freed once and linked nowhere"
    );
}

/// One thread splits a folio while another takes what it finds in the same frames off its list, and puts it back.
fn race_of_split_and_isolation<P: Platform>() {
    loom::model(|| {
        let (machine, head) = with_large_folio::<P>();
        let machine = Arc::new(machine);
        let other = Arc::clone(&machine);
        let thread = loom::thread::spawn(move || {
            let off = IrqOff::new();
            let (mut next, end) = (head, FrameNo(head.0 + 2));
            while next < end {
                let isolated = other.view().isolate_range(&mut next, end, &off);
                assert!(other.view().put_back(&isolated, &off).is_empty());
            }
        });
        let _ = machine.view().split(head, Order::ZERO, &IrqOff::new());
        thread.join().unwrap();
        let freed = drop_parts(&machine, head);
        assert_all_gone(&machine, freed);
    });
}

#[test]
fn a_folio_split_beside_a_scan_of_its_frames_leaves_each_part_where_it_belongs() {
    race_of_split_and_isolation::<LoomHost>();
}

#[test]
#[should_panic(expected = "each frame of a split folio is freed once and linked nowhere")]
fn parts_with_references_before_they_are_linked_are_caught() {
    race_of_split_and_isolation::<TailsEarly>();
}

#[test]
#[should_panic(expected = "each frame of a split folio is freed once and linked nowhere")]
fn a_split_that_only_looks_at_the_references_is_caught() {
    race_of_split_and_isolation::<LookAndSplit>();
}

#[test]
fn a_folio_split_beside_the_drop_of_another_reference_is_freed_once() {
    loom::model(|| {
        let (machine, head) = with_large_folio::<LoomHost>();
        machine.frames.record(head).get();
        let machine = Arc::new(machine);
        let other = Arc::clone(&machine);
        let thread = loom::thread::spawn(move || {
            let dies = other.frames.record(head).put() == Put::Last;
            if dies {
                other.bury(head);
            }
            u64::from(dies) * other.frames.record(head).order().frames()
        });
        let split = machine.view().split(head, Order::ZERO, &IrqOff::new());
        assert_ne!(split, Err(0), "the splitter has one");
        let freed = drop_parts(&machine, head) + thread.join().unwrap();
        assert_all_gone(&machine, freed);
    });
}
