//! Models of charges, limits and bytes, run by loom on the code itself.
//!
//! Owns: nothing. Invariants: checked, not held: at rest a group's counter is what is charged to it, a limit that is exceeded keeps
//! stocks empty, and no byte is lost between CPUs. Lock ranks: as the code under test.
//! Used by: `RUSTFLAGS="--cfg loom" cargo test --release --lib loom_tests`.
//!
//! Bounds: two threads, a group and one below it, one or two frames; `LOOM_MAX_PREEMPTIONS` bounds the schedules. A group ends as
//! in `Mm::remove_memcg`, less its lists. Each broken twin leaves out one step, and must be caught.

extern crate std;

use std::boxed::Box;

use super::{
    Activity, Force, GroupMemory, MemcgId, MemcgLimits, Memcgs, OwnerIndex, PageState, ROOT,
    Refusal,
};
use crate::addr::NodeId;
use crate::loom_host::{LoomHost, LoomLock, model_platform, run_as};
use crate::loom_machine::carved;
use crate::platform::{IrqOff, Platform};

model_platform!(
    /// Parks bytes by a load and a store.
    ParkedInTwoSteps,
    LoomLock,
    LEFT_OUT: &'static str = "bytes: parked in one step"
);
model_platform!(
    /// Takes what is parked by a load and a store.
    TakenInTwoSteps,
    LoomLock,
    LEFT_OUT: &'static str = "bytes: taken in one step"
);
model_platform!(
    /// Lowers a limit and lets CPUs keep what is uncharged.
    NoMark,
    LoomLock,
    LEFT_OUT: &'static str = "limit: the mark"
);
model_platform!(
    /// Lowers a limit and leaves in stock what came there before the mark.
    NoDrain,
    LoomLock,
    LEFT_OUT: &'static str = "limit: the drain"
);
model_platform!(
    /// Looks at the limit before it charges.
    LooksFirst,
    LoomLock,
    LEFT_OUT: &'static str = "limit: the look after the charge"
);
model_platform!(
    /// Fails a charge that was counted for a moment, and leaves it at that.
    NoEase,
    LoomLock,
    LEFT_OUT: &'static str = "limit: a failed charge eases"
);
model_platform!(
    /// Flushes a group that was alive before the pin, and may end meanwhile.
    LooksBeforeThePin,
    LoomLock,
    LEFT_OUT: &'static str = "states: the look under the pin"
);

model_platform!(
    /// Flushes a group that is ending.
    FlushOfTheDying,
    LoomLock,
    LEFT_OUT: &'static str = "states: a flush of the living only"
);

model_platform!(
    /// Has a clock, so that tasks are counted.
    Clocked,
    LoomLock;
    now 1
);
model_platform!(
    /// Counts a task in a group that was seen alive, and may be another by now.
    CountsUnpinned,
    LoomLock,
    LEFT_OUT: &'static str = "pressure: the pin";
    now 1
);

/// Which of the two grace periods of a group's end run.
#[derive(Clone, Copy, PartialEq)]
enum Waits {
    Both,
    /// Uncharges that saw the child alive run on while it is settled.
    First,
    /// So do charges.
    None,
}

/// A group below another, for one execution of a model. Leaked, so that threads share it.
struct Scene<P: Platform> {
    memcgs: Memcgs<P>,
    parent: MemcgId,
    child: MemcgId,
}

impl<P: Platform> Scene<P> {
    fn new() -> &'static Self {
        let limits = MemcgLimits {
            groups: 3,
            depth: 2,
            owners: 4,
            memory: GroupMemory::Carved,
        };
        let memcgs: Memcgs<P> = carved(|bump| {
            Memcgs::build(bump, &limits, 1, 2).unwrap_or_else(|_| unreachable!("fits"))
        });
        let off = IrqOff::new();
        let parent = memcgs.create(MemcgId::ROOT, &off, |_| ()).unwrap();
        let child = memcgs.create(parent, &off, |_| ()).unwrap();
        drop(off);
        Box::leak(Box::new(Self {
            memcgs,
            parent,
            child,
        }))
    }

    fn charge(&self, frames: u64) -> Result<OwnerIndex, Refusal> {
        self.memcgs
            .try_charge(self.child, NodeId(0), frames, Force::Within)
    }

    fn charge_bytes(&self, bytes: u32) -> Result<OwnerIndex, Refusal> {
        self.memcgs
            .try_charge_bytes(self.child, NodeId(0), bytes, Force::Within)
    }

    fn uncharge(&self, owner: OwnerIndex, frames: u64) {
        self.memcgs.uncharge(owner, frames, &IrqOff::new());
    }

    fn usage_of(&self, id: MemcgId) -> u64 {
        self.memcgs.groups[id.slot as usize].counter.usage()
    }

    fn remove(&self, waits: Waits) {
        let removal = self
            .memcgs
            .begin_removal(self.child, &IrqOff::new())
            .unwrap();
        if waits != Waits::None {
            self.memcgs.wait_for_charges();
        }
        let [from, to] = [removal.child, removal.parent]
            .map(|slot| self.memcgs.current_owner(slot, NodeId(0)).unwrap());
        self.memcgs.owners().forward(from, to);
        if waits == Waits::Both {
            self.memcgs.wait_for_charges();
        }
        self.memcgs.put_owners(removal.child);
        self.memcgs.finish_removal(removal, &IrqOff::new());
    }

    /// At rest, the child gone and all uncharged: nothing is left with its parent.
    fn assert_nothing_left(&self) {
        self.memcgs.drain_stocks(ROOT, &IrqOff::new());
        assert_eq!(self.usage_of(self.parent), 0, "frames are left");
        assert_eq!(self.memcgs.owners().in_use().count(), 2, "slots are left");
        let owner = self.memcgs.current_owner(self.parent.slot, NodeId(0));
        assert_eq!(self.memcgs.references(owner.unwrap()), 1, "frames are left");
    }
}

/// One thread gives back what was charged, while another ends the group.
fn uncharge_races_with_the_end<P: Platform>(waits: Waits) {
    loom::model(move || {
        let scene = Scene::<P>::new();
        // By no CPU with a stock: the counter is what is in use.
        run_as(7);
        let owner = scene.charge(1).unwrap();
        run_as(0);
        let thread = loom::thread::spawn(move || {
            run_as(1);
            scene.uncharge(owner, 1);
        });
        scene.remove(waits);
        thread.join().unwrap();
        scene.assert_nothing_left();
    });
}

#[test]
fn a_frame_uncharged_while_its_group_ends_leaves_the_parents_counters_exact() {
    uncharge_races_with_the_end::<LoomHost>(Waits::Both);
}

#[test]
#[should_panic(expected = "")]
fn a_group_settled_while_an_uncharge_still_sees_it_alive_leaves_counts_behind() {
    uncharge_races_with_the_end::<LoomHost>(Waits::First);
}

/// One thread charges and gives back, while another ends the group.
fn charge_races_with_the_end<P: Platform>(waits: Waits) {
    loom::model(move || {
        let scene = Scene::<P>::new();
        let thread = loom::thread::spawn(move || {
            run_as(1);
            scene.charge(1).ok()
        });
        scene.remove(waits);
        match thread.join().unwrap() {
            Some(owner) => {
                scene.memcgs.drain_stocks(ROOT, &IrqOff::new());
                assert_eq!(scene.usage_of(scene.parent), 1, "the frame is the parent's");
                scene.uncharge(owner, 1);
            }
            None => assert!(!scene.memcgs.is_live(scene.child)),
        }
        scene.assert_nothing_left();
    });
}

#[test]
fn a_charge_while_its_group_ends_is_refused_or_the_parents() {
    charge_races_with_the_end::<LoomHost>(Waits::Both);
}

#[test]
#[should_panic(expected = "")]
fn a_group_that_ends_without_waiting_for_charges_loses_them() {
    charge_races_with_the_end::<LoomHost>(Waits::None);
}

/// One thread frees an object, while another ends its group: the rest of its frame is on the first one's CPU.
fn bytes_race_with_the_end<P: Platform>(waits: Waits) {
    loom::model(move || {
        let scene = Scene::<P>::new();
        run_as(1);
        let owner = scene.charge_bytes(100).unwrap();
        scene.memcgs.drain_stocks(ROOT, &IrqOff::new());
        run_as(0);
        let thread = loom::thread::spawn(move || {
            run_as(1);
            scene.memcgs.uncharge_bytes(owner, 100);
        });
        scene.remove(waits);
        thread.join().unwrap();
        scene.assert_nothing_left();
    });
}

#[test]
fn an_object_freed_while_its_group_ends_takes_its_frame_from_the_parent() {
    bytes_race_with_the_end::<LoomHost>(Waits::Both);
}

/// Two CPUs without stocks free the two objects of a frame.
fn two_cpus_park<P: Platform>() {
    loom::model(|| {
        let scene = Scene::<P>::new();
        run_as(7);
        let owner = scene.charge_bytes(1000).unwrap();
        scene.charge_bytes(3000).unwrap();
        let thread = loom::thread::spawn(move || {
            run_as(8);
            scene.memcgs.uncharge_bytes(owner, 1000);
        });
        scene.memcgs.uncharge_bytes(owner, 3000);
        thread.join().unwrap();
        assert_eq!(scene.usage_of(scene.parent), 0, "bytes are lost");
        assert_eq!(scene.memcgs.byte_frames(owner), 0);
    });
}

#[test]
fn bytes_that_two_cpus_leave_at_once_complete_their_frame() {
    two_cpus_park::<LoomHost>();
}

#[test]
#[should_panic(expected = "bytes are lost")]
fn bytes_parked_in_two_steps_are_lost() {
    two_cpus_park::<ParkedInTwoSteps>();
}

/// One CPU takes what is parked for a new object, while another parks.
fn one_cpu_takes_and_one_parks<P: Platform>() {
    loom::model(|| {
        let scene = Scene::<P>::new();
        run_as(7);
        let owner = scene.charge_bytes(1000).unwrap();
        let thread = loom::thread::spawn(move || {
            run_as(8);
            scene.memcgs.uncharge_bytes(owner, 1000);
        });
        run_as(0);
        let more = scene.charge_bytes(500).unwrap();
        thread.join().unwrap();
        scene.memcgs.drain_stocks(ROOT, &IrqOff::new());
        assert_eq!(scene.usage_of(scene.parent), 1, "bytes are lost");
        scene.memcgs.uncharge_bytes(more, 500);
        scene.memcgs.drain_stocks(ROOT, &IrqOff::new());
        assert_eq!(scene.usage_of(scene.parent), 0, "bytes are lost");
        assert_eq!(scene.memcgs.byte_frames(owner), 0);
    });
}

#[test]
fn bytes_left_while_another_cpu_takes_what_is_there_are_not_lost() {
    one_cpu_takes_and_one_parks::<LoomHost>();
}

#[test]
#[should_panic(expected = "bytes are lost")]
fn bytes_taken_in_two_steps_are_lost() {
    one_cpu_takes_and_one_parks::<TakenInTwoSteps>();
}

/// One thread uncharges, while another sets the limit below what is left.
fn limit_races_with_an_uncharge<P: Platform>() {
    loom::model(|| {
        let scene = Scene::<P>::new();
        run_as(7);
        let owner = scene.charge(2).unwrap();
        let thread = loom::thread::spawn(move || {
            run_as(1);
            scene.uncharge(owner, 1);
        });
        run_as(0);
        scene.memcgs.set_max(scene.parent, 0).unwrap();
        thread.join().unwrap();
        assert_eq!(scene.memcgs.stocked(ROOT), 0, "kept above the limit");
        assert_eq!(scene.usage_of(scene.parent), 1, "kept above the limit");
        scene.uncharge(owner, 1);
        assert_eq!(scene.usage_of(scene.parent), 0);
        let squeezed = scene.memcgs.squeezed.load(super::Ordering::Relaxed);
        assert_eq!(squeezed, 0, "met, and no longer marked");
    });
}

/// B27.
#[test]
fn what_is_uncharged_while_a_limit_falls_below_usage_is_kept_by_no_cpu() {
    limit_races_with_an_uncharge::<LoomHost>();
}

#[test]
#[should_panic(expected = "kept above the limit")]
fn without_the_mark_a_cpu_keeps_frames_above_the_limit() {
    limit_races_with_an_uncharge::<NoMark>();
}

#[test]
#[should_panic(expected = "kept above the limit")]
fn without_the_drain_after_the_mark_a_cpu_keeps_what_came_before_it() {
    limit_races_with_an_uncharge::<NoDrain>();
}

/// One thread charges, while another sets the limit to nothing.
fn limit_races_with_a_charge<P: Platform>() {
    loom::model(|| {
        let scene = Scene::<P>::new();
        let thread = loom::thread::spawn(move || {
            run_as(7);
            scene.charge(1).is_ok()
        });
        scene.memcgs.set_max(scene.parent, 0).unwrap();
        let charged = thread.join().unwrap();
        let counter = &scene.memcgs.groups[scene.parent.slot as usize].counter;
        assert_eq!(counter.usage(), u64::from(charged));
        // Whoever set the limit saw the frame, and marked the group: or the charge saw the limit.
        let marked = counter.squeezed().load(super::Ordering::Relaxed);
        assert_eq!(marked, charged, "neither saw the other");
    });
}

/// B27.
#[test]
fn a_charge_while_the_limit_falls_sees_it_or_is_seen() {
    limit_races_with_a_charge::<LoomHost>();
}

#[test]
#[should_panic(expected = "neither saw the other")]
fn a_charge_that_looked_at_the_limit_before_it_counted_passes_it_unseen() {
    limit_races_with_a_charge::<LooksFirst>();
}

#[test]
#[should_panic(expected = "neither saw the other")]
fn a_failed_charge_that_eases_nothing_leaves_a_mark_on_a_group_below_its_limit() {
    limit_races_with_a_charge::<NoEase>();
}

/// One thread flushes what a CPU counted of a group, while another ends the group.
fn flush_races_with_the_end<P: Platform>() {
    let mut model = loom::model::Builder::new();
    // Counts of 3 CPUs in 7 states are looked at on both sides: with three preemptions it would run for an hour.
    model.preemption_bound = Some(2);
    model.check(|| {
        let scene = Scene::<P>::new();
        let of = |id: MemcgId| scene.memcgs.lruvec_of(id.slot, 0);
        {
            let off = IrqOff::new();
            let pin = scene.memcgs.pin();
            scene
                .memcgs
                .add_state(of(scene.child), PageState::MAPPED, 3, &pin, &off);
        }
        let thread = loom::thread::spawn(move || {
            run_as(1);
            let _: Option<()> = scene.memcgs.flush_states(scene.child, &IrqOff::new());
        });
        scene.remove(Waits::Both);
        thread.join().unwrap();
        let state = PageState::MAPPED;
        let [child, parent] =
            [scene.child, scene.parent].map(|id| scene.memcgs.raw_state(of(id), state));
        assert_eq!((child, parent), (0, 3), "counts are left behind");
        assert_eq!(scene.memcgs.tree_state(ROOT, 0, state), 3);
        assert_eq!(scene.memcgs.tree_state(scene.parent.slot, 0, state), 3);
    });
}

/// B30.
#[test]
fn what_is_flushed_while_its_group_ends_is_counted_once_and_for_the_parent() {
    flush_races_with_the_end::<LoomHost>();
}

#[test]
#[should_panic(expected = "counts are left behind")]
fn a_flush_that_is_pinned_after_the_look_adds_to_a_group_that_is_gone() {
    flush_races_with_the_end::<LooksBeforeThePin>();
}

#[test]
#[should_panic(expected = "counts are left behind")]
fn a_flush_of_a_group_that_is_ending_adds_to_it_after_its_counts_were_given_away() {
    flush_races_with_the_end::<FlushOfTheDying>();
}

/// One thread has a task counted for a moment, while another ends the group and makes a new one in its place.
fn task_races_with_the_end<P: Platform>() {
    loom::model(|| {
        let scene = Scene::<P>::new();
        let thread = loom::thread::spawn(move || {
            run_as(1);
            let counted = scene.memcgs.begin_activity(scene.child, Activity::Stalled);
            if let Some(owner) = counted {
                scene.memcgs.end_activity(owner, Activity::Stalled);
            }
        });
        scene.remove(Waits::Both);
        let new = scene.memcgs.create(scene.parent, &IrqOff::new(), |_| ());
        thread.join().unwrap();
        assert_eq!(new.unwrap().slot, scene.child.slot);
        for slot in [ROOT, scene.parent.slot, scene.child.slot] {
            let stalled = scene.memcgs.stalled(slot);
            assert_eq!(stalled, 0, "a task is left in group {slot}");
        }
        assert_eq!(scene.memcgs.owners().in_use().count(), 3, "slots are left");
    });
}

#[test]
fn a_task_counted_while_its_group_ends_is_counted_out_again_wherever_it_was() {
    task_races_with_the_end::<Clocked>();
}

#[test]
#[should_panic(expected = "left in group")]
fn a_task_counted_without_a_pin_stays_in_the_group_that_took_the_place() {
    task_races_with_the_end::<CountsUnpinned>();
}
