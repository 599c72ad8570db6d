//! The limits: arrays of frame numbers that a thread has for itself.

use std::cell::RefCell;

use spin::mutex::SpinMutex;

use crate::subject::{FRAMES, Subject};

/// Frame numbers, all of them free at first.
struct Stack {
    /// Empty until the thread's first call.
    frames: Vec<u32>,
    len: usize,
}

impl Stack {
    const fn new() -> Self {
        Self {
            frames: Vec::new(),
            len: 0,
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
        if !self.frames.is_empty() {
            return None;
        }
        self.frames = (0..FRAMES).collect();
        self.len = self.frames.len();
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

thread_local! {
    static ALONE: RefCell<Stack> = const { RefCell::new(Stack::new()) };
    static LOCKED: SpinMutex<Stack> = const { SpinMutex::new(Stack::new()) };
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
        ALONE.with(|stack| stack.borrow_mut().pop())
    }

    #[inline(always)]
    fn free(&self, block: u32, _order: u8) {
        ALONE.with(|stack| stack.borrow_mut().push(block));
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
        LOCKED.with(|stack| stack.lock().pop())
    }

    #[inline(always)]
    fn free(&self, block: u32, _order: u8) {
        LOCKED.with(|stack| stack.lock().push(block));
    }
}
