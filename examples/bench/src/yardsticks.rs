//! The limits: arrays of frame numbers that a thread has for itself.

use std::cell::{Cell, RefCell};
use std::thread::LocalKey;

use spin::mutex::SpinMutex;

use crate::subject::{FRAMES, Subject};

/// Frame numbers that come into being when none is left, so many at once: more than a bulk workload holds.
const FRESH: usize = 1 << 18;

/// Frame numbers, all of them free at first. A thread's stack is leaked: a thread-local value
/// that is dropped at the thread's end has a state to be looked at on every call.
struct Stack {
    /// Empty until the thread's first call.
    frames: &'static mut [u32],
    len: usize,
    fresh: usize,
}

impl Stack {
    const fn new() -> Self {
        Self {
            frames: &mut [],
            len: 0,
            fresh: 0,
        }
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<u32> {
        if self.len == 0 {
            self.fill()?;
        }
        self.len -= 1;
        self.frames.get(self.len).copied()
    }

    #[cold]
    #[inline(never)]
    fn fill(&mut self) -> Option<()> {
        if self.frames.is_empty() {
            self.frames = vec![0; FRAMES as usize].leak();
        }
        let fresh = self.fresh..(self.fresh + FRESH).min(FRAMES as usize);
        if fresh.is_empty() {
            return None;
        }
        self.len = fresh.len();
        self.fresh = fresh.end;
        for (slot, frame) in self.frames.iter_mut().zip(fresh) {
            *slot = frame as u32;
        }
        Some(())
    }

    #[inline(always)]
    fn push(&mut self, frame: u32) {
        if let Some(slot) = self.frames.get_mut(self.len) {
            *slot = frame;
            self.len += 1;
        }
    }
}

// References, not the arrays themselves: then what `LocalKey::with` does is so little that it is always inlined.
thread_local! {
    static ALONE: Cell<Option<&'static RefCell<Stack>>> = const { Cell::new(None) };
    static LOCKED: Cell<Option<&'static SpinMutex<Stack>>> = const { Cell::new(None) };
}

#[cold]
#[inline(never)]
fn first<T>(place: &'static LocalKey<Cell<Option<&'static T>>>, stack: T) -> &'static T {
    let stack = Box::leak(Box::new(stack));
    place.set(Some(stack));
    stack
}

#[inline(always)]
fn alone() -> &'static RefCell<Stack> {
    ALONE
        .get()
        .unwrap_or_else(|| first(&ALONE, RefCell::new(Stack::new())))
}

#[inline(always)]
fn locked() -> &'static SpinMutex<Stack> {
    LOCKED
        .get()
        .unwrap_or_else(|| first(&LOCKED, SpinMutex::new(Stack::new())))
}

/// A thread-local array.
pub struct PlainStack;

impl Subject for PlainStack {
    type Block<'a> = u32;
    const NAME: &'static str = "stack";

    fn new() -> Self {
        Self
    }

    fn hosts(workload: &str) -> bool {
        !workload.starts_with("turnover")
    }

    #[inline(always)]
    fn alloc(&self, _order: u8) -> Option<u32> {
        alone().borrow_mut().pop()
    }

    #[inline(always)]
    fn free(&self, block: u32, _order: u8) {
        alone().borrow_mut().push(block);
    }
}

/// A thread-local array under one uncontended lock.
pub struct LockedStack;

impl Subject for LockedStack {
    type Block<'a> = u32;
    const NAME: &'static str = "stack_lk";

    fn new() -> Self {
        Self
    }

    fn hosts(workload: &str) -> bool {
        !workload.starts_with("turnover")
    }

    #[inline(always)]
    fn alloc(&self, _order: u8) -> Option<u32> {
        locked().lock().pop()
    }

    #[inline(always)]
    fn free(&self, block: u32, _order: u8) {
        locked().lock().push(block);
    }
}
