//! The limits: arrays of frame numbers that a thread has for itself.

use std::cell::RefCell;

use spin::mutex::SpinMutex;

use crate::subject::{FRAMES, Subject};

/// Frame numbers, all of them free at first.
struct Stack {
    frames: Box<[u32]>,
    len: usize,
}

impl Stack {
    fn new() -> Self {
        Self {
            frames: (0..FRAMES).collect(),
            len: FRAMES as usize,
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        self.frames.get(self.len).copied()
    }

    #[inline]
    fn push(&mut self, frame: u32) {
        if let Some(slot) = self.frames.get_mut(self.len) {
            *slot = frame;
            self.len += 1;
        }
    }
}

thread_local! {
    static ALONE: RefCell<Option<Stack>> = const { RefCell::new(None) };
    static LOCKED: SpinMutex<Option<Stack>> = const { SpinMutex::new(None) };
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

    #[inline]
    fn alloc(&self, _order: u8) -> Option<u32> {
        ALONE.with(|stack| stack.borrow_mut().get_or_insert_with(Stack::new).pop())
    }

    #[inline]
    fn free(&self, block: u32, _order: u8) {
        ALONE.with(|stack| {
            if let Some(stack) = stack.borrow_mut().as_mut() {
                stack.push(block);
            }
        });
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

    #[inline]
    fn alloc(&self, _order: u8) -> Option<u32> {
        LOCKED.with(|stack| stack.lock().get_or_insert_with(Stack::new).pop())
    }

    #[inline]
    fn free(&self, block: u32, _order: u8) {
        LOCKED.with(|stack| {
            if let Some(stack) = stack.lock().as_mut() {
                stack.push(block);
            }
        });
    }
}
