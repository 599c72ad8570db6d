//! `Stepped`: a platform on which something happens at a chosen point of the code, and a walk over all points.
//!
//! A point is a call into the platform: a lock taken or released, interrupts masked or unmasked, a CPU id asked
//! for, a turn of a waiting loop. [`at_every_point`] runs a body with an interrupt at point 0, then at point 1, and so on
//! until the body ends before the point comes: exhaustive and repeatable, on one thread. While interrupts are masked
//! there is no point, as a pending interrupt is served when they are unmasked. [`remotely_at_every_point`] counts
//! masked points too: what acts there is another CPU, which must not wait for a lock.
//!
//! What this cannot see: an interrupt between two loads or stores without a call into the platform between them.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses the part it needs"
)]

extern crate std;

use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread_local;

use framekeeper::{CpuId, CpuIds, PhysAddr, Platform, Rank, RawLock};

/// The platform of the stepped tests. All state is the thread's: an instance stays on the thread that made it.
#[derive(Debug)]
pub enum Stepped {}

/// A lock that panics where it would wait: on one thread nobody else could release it.
#[derive(Debug)]
pub struct NoWaitLock(AtomicBool);

/// Which points are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Points {
    Unmasked,
    All,
}

/// What is to happen, and when.
struct Armed {
    points: Points,
    /// Points that pass before it happens.
    left: u32,
    action: Box<dyn FnOnce()>,
}

/// More turns of one waiting loop than any test needs: the thread waits for itself.
const MOST_TURNS: u32 = 1_000_000;

thread_local! {
    static ARMED: RefCell<Option<Armed>> = const { RefCell::new(None) };
    static MASKED: Cell<bool> = const { Cell::new(false) };
    static PREEMPT_OFF: Cell<u32> = const { Cell::new(0) };
    static LOCKS: Cell<u32> = const { Cell::new(0) };
    static RANKS: [Cell<u32>; Rank::COUNT] = const { [const { Cell::new(0) }; Rank::COUNT] };
    static NMI: Cell<bool> = const { Cell::new(false) };
    static TURNS: Cell<u32> = const { Cell::new(0) };
    static CPU: Cell<u32> = const { Cell::new(0) };
}

/// Makes the calling thread act as `cpu` from now on.
pub fn run_as(cpu: u32) {
    CPU.set(cpu);
}

/// Whether this thread has interrupts masked.
pub fn masked() -> bool {
    MASKED.get()
}

/// Locks that this thread holds.
pub fn locks_held() -> u32 {
    LOCKS.get()
}

/// Whether this thread holds a lock of this rank.
pub fn holds(rank: Rank) -> bool {
    RANKS.with(|ranks| ranks[rank as usize].get() > 0)
}

/// Does `work` as a non-maskable interrupt would.
pub fn as_nmi<T>(work: impl FnOnce() -> T) -> T {
    NMI.set(true);
    let result = work();
    NMI.set(false);
    result
}

/// Lets `action` interrupt this thread at the unmasked point that `left` others precede.
pub fn interrupt_after(left: u32, action: impl FnOnce() + 'static) {
    arm(Points::Unmasked, left, Box::new(action));
}

/// Calls off what has not happened. Whether it had.
pub fn disarm() -> bool {
    ARMED.take().is_none()
}

/// Runs `body` once for each of its unmasked points, interrupted there, and once without an interrupt; after each run
/// `check` looks at the state. The number of points.
///
/// Each run starts with a state of its own from `setup`. An interrupt runs with interrupts masked, on the same CPU, and
/// ends before the body goes on.
pub fn at_every_point<S: 'static>(
    setup: impl FnMut() -> S,
    body: impl FnMut(&S),
    interrupt: impl Fn(&S) + 'static,
    check: impl FnMut(&S),
) -> u32 {
    walk(Points::Unmasked, setup, body, interrupt, check)
}

/// As [`at_every_point`], at masked points too: `remote` acts as CPU `cpu` and must not wait for a lock.
pub fn remotely_at_every_point<S: 'static>(
    cpu: u32,
    setup: impl FnMut() -> S,
    body: impl FnMut(&S),
    remote: impl Fn(&S) + 'static,
    check: impl FnMut(&S),
) -> u32 {
    let as_other = move |state: &S| {
        let own = CPU.replace(cpu);
        remote(state);
        CPU.set(own);
    };
    walk(Points::All, setup, body, as_other, check)
}

fn walk<S: 'static>(
    points: Points,
    mut setup: impl FnMut() -> S,
    mut body: impl FnMut(&S),
    action: impl Fn(&S) + 'static,
    mut check: impl FnMut(&S),
) -> u32 {
    let action = Rc::new(action);
    for point in 0.. {
        let state = Rc::new(setup());
        let (acting, seen) = (Rc::clone(&action), Rc::clone(&state));
        arm(points, point, Box::new(move || acting(&seen)));
        body(&state);
        let happened = disarm();
        assert!(!masked(), "the body left interrupts masked");
        assert_eq!(PREEMPT_OFF.get(), 0, "the body left preemption off");
        assert_eq!(locks_held(), 0, "the body left a lock held");
        check(&state);
        if !happened {
            return point;
        }
    }
    unreachable!("the walk ends at the first point that the body does not reach")
}

fn arm(points: Points, left: u32, action: Box<dyn FnOnce()>) {
    let armed = Armed {
        points,
        left,
        action,
    };
    assert!(
        ARMED.replace(Some(armed)).is_none(),
        "one interrupt at a time"
    );
}

/// Something may happen here.
fn point() {
    let due = ARMED.with_borrow_mut(|armed| {
        let next = armed.as_mut()?;
        if next.points == Points::Unmasked && masked() {
            return None;
        }
        match next.left.checked_sub(1) {
            Some(left) => {
                next.left = left;
                None
            }
            None => armed.take(),
        }
    });
    if let Some(armed) = due {
        let (mask, pins, locks) = (MASKED.replace(true), PREEMPT_OFF.get(), LOCKS.get());
        (armed.action)();
        assert!(
            MASKED.get() && LOCKS.get() == locks,
            "the interrupt gave back what it took"
        );
        // Fewer is right where it dropped a pin of the thread's.
        assert!(
            PREEMPT_OFF.get() <= pins,
            "the interrupt left preemption off"
        );
        MASKED.set(mask);
    }
}

// SAFETY: no memory is ever given to an instance of this platform, so the direct map has nothing to cover. An instance stays
// on one thread, so two threads never hold one id of it; interrupts return before the thread goes on.
#[allow(unsafe_code)]
unsafe impl Platform for Stepped {
    const CPU_IDS: CpuIds = CpuIds::Exclusive;
    type RawLock = NoWaitLock;

    fn cpu() -> CpuId {
        let cpu = CpuId(CPU.get());
        point();
        cpu
    }
    fn irq_save() -> usize {
        point();
        usize::from(MASKED.replace(true))
    }
    fn irq_restore(state: usize) {
        assert!(masked(), "restored without a save");
        MASKED.set(state != 0);
        point();
    }
    fn preempt_off() {
        point();
        PREEMPT_OFF.set(PREEMPT_OFF.get() + 1);
    }
    fn preempt_on() {
        PREEMPT_OFF.set(PREEMPT_OFF.get() - 1);
        point();
    }
    fn direct_map(_addr: PhysAddr) -> *mut u8 {
        core::ptr::null_mut()
    }
    fn relax() {
        TURNS.set(TURNS.get() + 1);
        assert!(TURNS.get() < MOST_TURNS, "the thread waits for itself");
        point();
    }
    fn lock_acquired(rank: Rank) {
        assert!(masked(), "a lock is taken with interrupts masked");
        LOCKS.set(LOCKS.get() + 1);
        RANKS.with(|ranks| ranks[rank as usize].set(ranks[rank as usize].get() + 1));
        point();
    }
    fn lock_released(rank: Rank) {
        point();
        LOCKS.set(LOCKS.get() - 1);
        RANKS.with(|ranks| ranks[rank as usize].set(ranks[rank as usize].get() - 1));
    }
    fn in_nmi() -> bool {
        NMI.get()
    }
}

// SAFETY: the swap from false to true succeeds for one holder at a time; Acquire and Release order the holders.
#[allow(unsafe_code)]
unsafe impl RawLock for NoWaitLock {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }
    fn lock(&self) {
        assert!(
            self.try_lock(),
            "deadlock: waits for a lock that its own CPU holds"
        );
    }
    fn try_lock(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}
