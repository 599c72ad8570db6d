//! Tasks that stall for want of memory.
//!
//! Owns: [`Task`], a task that counts as busy or as stalled. Invariants: it counts until it is dropped, whatever becomes of its group.
//! Lock ranks: `Pressure` inside. Used by: kernels' schedulers and fault handlers, reclaim.

use super::{Mm, NoSuchGroup};
use crate::memcg::{Activity, MemcgId, OwnerIndex, Pressure};
use crate::platform::Platform;

/// A task that counts in its group's [`Pressure`] until this is dropped. Nothing without a clock ([`Platform::now`]).
#[must_use = "the task counts until it is dropped"]
#[derive(Debug)]
pub struct Task<'m, P: Platform> {
    mm: &'m Mm<P>,
    counted: Option<(OwnerIndex, Activity)>,
}

impl<P: Platform> Mm<P> {
    /// A task of the group has work to do: from when it wakes until it sleeps for anything but memory. A kernel whose scheduler does not
    /// say so sees each stall as a full one.
    pub fn task_busy(&self, memcg: MemcgId) -> Task<'_, P> {
        self.task(memcg, Activity::Busy)
    }

    /// A task of the group waits for memory: for a page that was evicted not long ago to be read again, or in a throttle. Reclaim for a
    /// request or a limit says so itself. Nest none in another of the same task.
    pub fn task_stalls(&self, memcg: MemcgId) -> Task<'_, P> {
        self.task(memcg, Activity::Stalled)
    }

    fn task(&self, memcg: MemcgId, activity: Activity) -> Task<'_, P> {
        let owner = self.memcgs.begin_activity(memcg, activity);
        Task {
            mm: self,
            counted: owner.map(|owner| (owner, activity)),
        }
    }

    /// Time that tasks of the group and below it lost for want of memory: `memory.pressure`. The root's is the machine's. `None`
    /// without a clock.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn memcg_pressure(&self, memcg: MemcgId) -> Result<Option<Pressure>, NoSuchGroup> {
        let _pin = self.memcgs.pin();
        match self.memcgs.is_live(memcg) {
            true => Ok(self.memcgs.pressure(memcg.slot)),
            false => Err(NoSuchGroup(memcg)),
        }
    }
}

impl<P: Platform> Drop for Task<'_, P> {
    fn drop(&mut self) {
        if let Some((owner, activity)) = self.counted {
            self.mm.memcgs.end_activity(owner, activity);
        }
    }
}
