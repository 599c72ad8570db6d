//! How much time is lost for want of memory: pressure stall information.
//!
//! Owns: [`Pressure`] and [`Lost`], what a reader gets; the stalls of every group.
//! Invariants: a task that is busy or stalls counts in its group and in all above it; if its group ends, in those that are left. Time is
//! lost (*some*) while a task stalls, and in full (*full*) while every busy one does. A clock that runs back stands still.
//! Lock ranks: `Pressure`, one at a time. Used by: mm (tasks), reclaim, report.
//!
//! An average over 10, 60 or 300 s decays every 2 s; constants and rounding are those of Linux's load averages (2048ths;
//! e^(-2/10), e^(-2/60), e^(-2/300)), so that the figures mean what people know them to mean.

use super::{MemcgId, Memcgs, OwnerIndex, ROOT, Slot};
use crate::addr::NodeId;
use crate::boot::{Bump, StorageFull};
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::twin::left_out;
use crate::sync::{Lock, Ranked};

/// Nanoseconds between two steps of the averages.
const PERIOD: u64 = 2_000_000_000;
/// 1 in an average's fixed point.
const ONE: u64 = 1 << 11;
/// What is left of an average over 10, 60 and 300 s after a period.
const DECAY: [u64; 3] = [1677, 1981, 2034];

/// Time lost, by one of the two measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Share of the last 10, 60 and 300 s, in hundredths of a percent.
    pub averages: [u32; 3],
    /// Microseconds in all.
    pub total: u64,
}

/// Time that a group's tasks lost for want of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pressure {
    /// At least one task stalled.
    pub some: Lost,
    /// Every busy task stalled.
    pub full: Lost,
}

/// What a task is counted as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activity {
    /// It has work to do, whether it gets on with it or stalls.
    Busy,
    /// It waits for memory.
    Stalled,
}

/// One of the two measures.
#[derive(Clone, Copy, Debug, Default)]
struct Measure {
    /// Nanoseconds lost.
    total: u64,
    /// As much of it as the averages know.
    averaged: u64,
    /// Percent, in fixed point.
    averages: [u64; 3],
}

/// One group's tasks, and what they lost. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stalls {
    busy: u32,
    stalled: u32,
    /// When the counts above last changed, or were looked at.
    last: u64,
    /// When the averages were last brought up to date, and when they are to be.
    updated: u64,
    due: u64,
    some: Measure,
    full: Measure,
}

impl Ranked for Stalls {
    const RANK: Rank = Rank::Pressure;
}

impl Stalls {
    fn new(now: u64) -> Self {
        Self {
            last: now,
            updated: now,
            due: now.saturating_add(PERIOD),
            ..Self::default()
        }
    }

    /// Counts the time since the last change.
    fn advance(&mut self, now: u64) {
        let gone = now.saturating_sub(self.last);
        self.last += gone;
        if self.stalled > 0 {
            self.some.total += gone;
            // Busy ones that nobody told of cannot have been at work.
            if self.stalled >= self.busy {
                self.full.total += gone;
            }
        }
    }

    fn change(&mut self, activity: Activity, by: i32, now: u64) {
        self.advance(now);
        let count = match activity {
            Activity::Busy => &mut self.busy,
            Activity::Stalled => &mut self.stalled,
        };
        *count = count.saturating_add_signed(by);
    }

    fn read(&mut self, now: u64) -> Pressure {
        self.advance(now);
        if self.last >= self.due {
            let missed = (self.last - self.due) / PERIOD;
            let period = self.last - self.updated - missed * PERIOD;
            self.updated = self.last;
            self.due = self.due.saturating_add((missed + 1) * PERIOD);
            self.some.average(missed, period);
            self.full.average(missed, period);
        }
        Pressure {
            some: self.some.lost(),
            full: self.full.lost(),
        }
    }
}

impl Measure {
    /// A step of the averages: `missed` periods in which nobody looked, and then one that took `period`.
    fn average(&mut self, missed: u64, period: u64) {
        // What was lost in the periods that were missed counts in this one, and in later ones as far as it does not fit.
        let lost = (self.total - self.averaged).min(period);
        self.averaged += lost;
        let percent = (u128::from(lost) * 100 * u128::from(ONE) / u128::from(period.max(1))) as u64;
        for (average, decay) in self.averages.iter_mut().zip(DECAY) {
            let decayed = *average * power(decay, missed) / ONE;
            let sum = decayed * decay + percent * (ONE - decay);
            // Rounded towards where it goes, so that it gets there.
            let up = if percent >= decayed { ONE - 1 } else { 0 };
            *average = (sum + up) / ONE;
        }
    }

    fn lost(&self) -> Lost {
        Lost {
            averages: self.averages.map(|average| (average * 100 / ONE) as u32),
            total: self.total / 1000,
        }
    }
}

/// A fraction's power, in fixed point.
fn power(fraction: u64, exponent: u64) -> u64 {
    let (mut base, mut left, mut result) = (fraction, exponent, ONE);
    while left > 0 && result > 0 {
        if left & 1 == 1 {
            result = (result * base + ONE / 2) / ONE;
        }
        base = (base * base + ONE / 2) / ONE;
        left >>= 1;
    }
    result
}

/// The stalls of all groups: none if the platform has no clock.
pub(super) fn build<P: Platform>(
    bump: &mut Bump<'_>,
    groups: u32,
) -> Result<&'static [Lock<Stalls, P>], StorageFull> {
    let now = P::now();
    let groups = if now.is_some() { groups as usize } else { 0 };
    bump.slots(groups, |_| Lock::new(Stalls::new(now.unwrap_or(0))))
}

impl<P: Platform> Memcgs<P> {
    /// A new group has lost nothing.
    pub(super) fn reset_pressure(&self, slot: Slot, off: &IrqOff<P>) {
        if let Some(stalls) = self.stalls.get(slot as usize) {
            *stalls.lock(off) = Stalls::new(P::now().unwrap_or(0));
        }
    }

    /// Counts a task in a group and all above it until [`end_activity`](Self::end_activity), which is given what this returns. `None`
    /// if the group is gone, or if there is no clock.
    pub(crate) fn begin_activity(&self, id: MemcgId, activity: Activity) -> Option<OwnerIndex> {
        if self.stalls.is_empty() {
            return None;
        }
        let off = IrqOff::new();
        // Pinned: if the group is seen alive, its end waits, and the owner with it.
        let pin = (!left_out::<P>("pressure: the pin")).then(|| self.epoch.pin());
        self.live(id)?;
        let owner = self.current_owner(id.slot, NodeId(0))?;
        self.owners.visit(owner);
        self.count_activity(id.slot, activity, 1, &off);
        drop(pin);
        Some(owner)
    }

    /// Takes a task out of its group, or of the one that inherited from it, and of all above.
    pub(crate) fn end_activity(&self, owner: OwnerIndex, activity: Activity) {
        let off = IrqOff::new();
        let pin = self.epoch.pin();
        if let Some(lruvec) = self.owners.resolve(owner) {
            self.count_activity(self.slot_of(lruvec), activity, -1, &off);
        }
        drop(pin);
        self.owners.leave(owner);
    }

    fn count_activity(&self, slot: Slot, activity: Activity, by: i32, off: &IrqOff<P>) {
        let now = P::now().unwrap_or(0);
        for at in self.path(slot).chain([ROOT]) {
            if let Some(stalls) = self.stalls.get(at as usize) {
                stalls.lock(off).change(activity, by, now);
            }
        }
    }

    /// Tasks of a group that stall.
    #[cfg(all(test, loom))]
    pub(super) fn stalled(&self, slot: Slot) -> u32 {
        self.stalls[slot as usize].lock(&IrqOff::new()).stalled
    }

    /// What the tasks of a living group and those below it lost. `None` if there is no clock.
    pub(crate) fn pressure(&self, slot: Slot) -> Option<Pressure> {
        let off = IrqOff::new();
        let stalls = self.stalls.get(slot as usize)?;
        Some(stalls.lock(&off).read(P::now().unwrap_or(0)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_average_approaches_its_share_as_linuxs_does() {
        let mut stalls = Stalls::new(0);
        stalls.change(Activity::Stalled, 1, 0);
        let mut seen = [0; 3];
        for second in 1..=60 {
            seen = stalls.read(second * SECOND).some.averages;
            if second == 2 {
                // 2048ths: (100 * 2048 * (2048 - 1677) + 2047) / 2048 = 37100; and so on.
                assert_eq!(seen, [1811, 327, 68]);
            }
        }
        let exact = |over: f64| 100.0 * (1.0 - (-60.0 / over).exp());
        for (seen, over) in seen.into_iter().zip([10.0, 60.0, 300.0]) {
            assert!(
                (f64::from(seen) / 100.0 - exact(over)).abs() < 0.5,
                "{seen}"
            );
        }
    }

    #[test]
    fn periods_in_which_nobody_looked_decay_the_averages() {
        let mut stalls = Stalls::new(0);
        stalls.change(Activity::Stalled, 1, 0);
        stalls.change(Activity::Stalled, -1, 2 * SECOND);
        let before = stalls.read(2 * SECOND).some;
        assert_eq!(before.total, 2_000_000);
        let after = stalls.read(22 * SECOND + 1).some;
        assert_eq!(after.total, before.total);
        let left = f64::from(after.averages[0]) / f64::from(before.averages[0]);
        assert!((left - (-2.0f64).exp()).abs() < 0.01, "{left}");
        assert_eq!(stalls.read(u64::MAX).some.averages, [0; 3]);
    }

    #[test]
    fn full_is_while_every_busy_task_stalls() {
        let mut stalls = Stalls::new(0);
        for activity in [Activity::Busy, Activity::Busy, Activity::Stalled] {
            stalls.change(activity, 1, 0);
        }
        stalls.change(Activity::Stalled, 1, 3000);
        stalls.change(Activity::Stalled, -1, 8000);
        stalls.change(Activity::Busy, -1, 9000);
        let lost = stalls.read(16_000);
        assert_eq!((lost.some.total, lost.full.total), (16, 5 + 7));
    }

    /// misuse 64: a clock that stands still, or runs back.
    #[test]
    fn a_clock_that_runs_back_stands_still() {
        let mut stalls = Stalls::new(5000);
        stalls.change(Activity::Stalled, 1, 1000);
        assert_eq!(stalls.read(0).some.total, 0);
        assert_eq!(stalls.read(6000).some.total, 1);
        assert_eq!(stalls.read(5999).some.total, 1);
        stalls.change(Activity::Stalled, -1, 7000);
        stalls.change(Activity::Stalled, -1, 7000);
        assert_eq!(stalls.read(9000).some.total, 2, "none is below zero");
    }
}
