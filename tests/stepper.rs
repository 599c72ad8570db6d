//! The stepper itself: it visits every point, and what it should catch it catches.

#[path = "common/stepper.rs"]
mod stepper;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use framekeeper::sync::{Lock, Ranked};
use framekeeper::{IrqOff, Platform, Rank};
use stepper::{Stepped, at_every_point, remotely_at_every_point};

/// A list that is only changed under its lock.
#[derive(Default)]
struct List(Vec<u32>);

impl Ranked for List {
    const RANK: Rank = Rank::LruVec;
}

type ListLock = Lock<List, Stepped>;

fn list() -> ListLock {
    Lock::new(List::default())
}

fn push(list: &ListLock, value: u32) {
    IrqOff::with(|off| list.lock(off).0.push(value));
}

fn values(list: &ListLock) -> Vec<u32> {
    IrqOff::with(|off| list.lock(off).0.clone())
}

#[test]
fn an_interrupt_comes_before_between_and_after_two_holds_but_never_inside_one() {
    let seen = Rc::new(RefCell::new(BTreeSet::new()));
    let record = Rc::clone(&seen);
    let points = at_every_point(
        list,
        |list| {
            push(list, 1);
            push(list, 2);
        },
        |list| push(list, 9),
        move |list| {
            record.borrow_mut().insert(values(list));
        },
    );
    // preempt_off, irq_save, irq_restore and preempt_on of each token; none while the lock is held.
    assert_eq!(points, 8);
    let expected = [vec![1, 2], vec![1, 2, 9], vec![1, 9, 2], vec![9, 1, 2]];
    assert_eq!(*seen.borrow(), BTreeSet::from(expected));
}

#[test]
fn another_cpu_acts_inside_a_hold_too_and_finds_the_lock_taken() {
    let refused = Rc::new(Cell::new(0));
    let count = Rc::clone(&refused);
    let points = remotely_at_every_point(
        1,
        list,
        |list| push(list, 1),
        move |list| {
            assert_eq!(Stepped::cpu().0, 1);
            IrqOff::with(|off| match list.try_lock(off) {
                Some(mut held) => held.0.push(9),
                None => count.set(count.get() + 1),
            });
        },
        |_| assert_eq!(Stepped::cpu().0, 0),
    );
    assert_eq!(
        points, 6,
        "the four of the token, and both ends of the hold"
    );
    assert_eq!(refused.get(), 2);
}

#[test]
fn interrupts_stay_masked_until_the_outermost_token_is_gone() {
    IrqOff::<Stepped>::with(|_outer| {
        IrqOff::<Stepped>::with(|_inner| assert!(stepper::masked()));
        assert!(stepper::masked());
    });
    assert!(!stepper::masked());
    let unwound = catch_unwind(|| IrqOff::<Stepped>::with(|_| panic!("in the middle")));
    assert!(unwound.is_err() && !stepper::masked());
}

#[test]
fn a_body_without_points_runs_once_and_undisturbed() {
    let points = at_every_point(
        || Cell::new(0),
        |runs: &Cell<u32>| runs.set(runs.get() + 1),
        |_| unreachable!("there is no point"),
        |runs| assert_eq!(runs.get(), 1),
    );
    assert_eq!(points, 0);
}

/// The message of the panic that `action` must raise. On a thread of its own, whose state it may spoil.
fn panic_of(action: impl FnOnce() + Send + 'static) -> String {
    std::thread::spawn(|| {
        let payload = catch_unwind(AssertUnwindSafe(action)).expect_err("it panics");
        let text = payload.downcast_ref::<String>().cloned();
        text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()))
            .unwrap_or_default()
    })
    .join()
    .expect("the panic was caught")
}

#[test]
fn waiting_for_a_lock_that_an_interrupted_hold_has_is_a_deadlock() {
    let message = panic_of(|| {
        remotely_at_every_point(1, list, |list| push(list, 1), |list| push(list, 9), |_| {});
    });
    assert!(message.starts_with("deadlock"), "{message}");
}

#[test]
fn an_update_lost_between_two_holds_is_found() {
    // The broken twin of a counter: it reads under one hold and writes under the next.
    let results = Rc::new(RefCell::new(BTreeSet::new()));
    let record = Rc::clone(&results);
    at_every_point(
        || {
            let list = list();
            push(&list, 0);
            list
        },
        |list| {
            let next = values(list)[0] + 1;
            IrqOff::with(|off| list.lock(off).0[0] = next);
        },
        |list| IrqOff::with(|off| list.lock(off).0[0] += 10),
        move |list| {
            record.borrow_mut().insert(values(list)[0]);
        },
    );
    // 1 also stands for the last run, which no interrupt disturbs.
    assert_eq!(*results.borrow(), BTreeSet::from([1, 11]));
}

#[test]
fn an_interrupt_that_keeps_a_lock_or_the_mask_is_found() {
    let message = panic_of(|| {
        at_every_point(
            list,
            |list| push(list, 1),
            |list| IrqOff::with(|off| core::mem::forget(list.lock(off))),
            |_| {},
        );
    });
    assert!(message.contains("gave back"), "{message}");
    let message = panic_of(|| {
        at_every_point(list, |_| _ = Stepped::irq_save(), |_| {}, |_| {});
    });
    assert!(message.contains("left interrupts masked"), "{message}");
}

#[test]
fn a_thread_that_waits_for_itself_is_found() {
    let message = panic_of(|| {
        loop {
            Stepped::relax();
        }
    });
    assert!(message.contains("waits for itself"), "{message}");
}
