//! The background thread's bed.

use std::sync::atomic::AtomicU64;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A thread that sleeps until it is woken, or until it is to end.
#[derive(Debug, Default)]
pub(crate) struct Background {
    state: Mutex<State>,
    changed: Condvar,
    /// Frames that it freed.
    pub(crate) freed: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Asleep,
    Awake,
    Ending,
}

impl Background {
    /// Before the thread starts.
    pub(crate) fn start(&self) {
        *self.state() = State::Asleep;
    }

    /// Sleeps until woken. Says whether there is work; if not, the thread is to end.
    pub(crate) fn sleep(&self) -> bool {
        let asleep = |state: &mut State| *state == State::Asleep;
        let waited = self.changed.wait_while(self.state(), asleep);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if *state == State::Ending {
            return false;
        }
        *state = State::Asleep;
        true
    }

    pub(crate) fn wake(&self) {
        let mut state = self.state();
        if *state == State::Asleep {
            *state = State::Awake;
            self.changed.notify_one();
        }
    }

    pub(crate) fn end(&self) {
        *self.state() = State::Ending;
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
