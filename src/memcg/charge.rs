//! Charging and uncharging.
//!
//! Owns: the way from a frame to its group's counters: this CPU's stock first, the counters of the group and all above it
//! only once in [`BATCH`] frames; limits, and how far over them groups are.
//! Invariants: frames charged, and in stock, never exceed a limit that was set before. A limit set below usage keeps uncharged
//! frames out of every stock until usage fits. While such a limit is met and set again by several CPUs at once, each may
//! keep one entry of [`BATCH`] frames too many.
//! Lock ranks: tries this CPU's `MemcgStock`; waits for each in turn when it drains. No lock is held across the two.
//! Used by: mm (charge and uncharge).

use super::counter::PageCounter;
use super::stock::{BATCH, Entry, Stock};
use super::tree::Group;
use super::{MemcgId, Memcgs, OwnerIndex, ROOT, Refusal, Slot, Standing};
use crate::addr::{CpuId, NodeId};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::twin::left_out;
use crate::sync::{Held, Pinned};

/// Where uncharged frames go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    /// This CPU's stock, if it may keep them.
    Stock,
    /// Out of the counters at once.
    Counters,
}

/// Whether a charge respects limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Force {
    /// A full group refuses.
    Within,
    /// Limits are exceeded if they must be.
    Over,
}

impl<P: Platform> Memcgs<P> {
    /// Charges `frames` to a group and all above it, and names the owner slot for them.
    #[inline]
    pub(crate) fn try_charge(
        &self,
        id: MemcgId,
        node: NodeId,
        frames: u64,
        force: Force,
    ) -> Result<OwnerIndex, Refusal> {
        let off = IrqOff::new();
        // Pinned: if the group is seen alive, its end waits until this charge is complete.
        let pin = self.epoch.pin();
        self.live(id).ok_or(Refusal::Gone)?;
        let owner = self.current_owner(id.slot, node).ok_or(Refusal::Gone)?;
        self.charge_living(id.slot, node, frames, force, (&pin, &off))?;
        Ok(owner)
    }

    /// Charges `frames` to the group in `slot`, which was seen alive under the pin.
    #[inline]
    pub(super) fn charge_living(
        &self,
        slot: Slot,
        node: NodeId,
        frames: u64,
        force: Force,
        (pin, off): (&Pinned<'_, P>, &IrqOff<P>),
    ) -> Result<(), Refusal> {
        if slot != ROOT {
            self.charge_group(slot, frames, force, off)?;
        }
        let lruvec = self.lruvec_of(slot, u32::from(node.0));
        self.stats.charged(lruvec, frames as i64, pin, off);
        Ok(())
    }

    /// Takes back `frames` charged through `owner`, from whoever they belong to now.
    #[inline]
    pub(crate) fn uncharge(&self, owner: OwnerIndex, frames: u64, off: &IrqOff<P>) {
        self.uncharge_to(Destination::Stock, owner, frames, off);
    }

    #[inline]
    pub(super) fn uncharge_to(
        &self,
        destination: Destination,
        owner: OwnerIndex,
        frames: u64,
        off: &IrqOff<P>,
    ) {
        // Pinned: the group that the owner resolves to cannot end before its counters are right.
        let pin = self.epoch.pin();
        match self.owners.standing(owner) {
            Some(Standing::Living(lruvec)) => {
                // The group holds the slot; its frames are settled at its end, which waits for this pin.
                self.uncharge_group(destination, self.slot_of(lruvec), frames, off);
                self.stats.charged(lruvec, -(frames as i64), &pin, off);
            }
            Some(Standing::Inherited(lruvec)) => {
                self.uncharge_group(destination, self.slot_of(lruvec), frames, off);
                drop(pin);
                self.owners.put(owner, frames);
            }
            None => debug_assert!(false, "owner slot {owner} is free"),
        }
    }

    /// Returns the frames that CPUs keep in stock for `root` and the groups below it, and whatever bytes they keep. Says how
    /// many frames were uncharged.
    pub(crate) fn drain_stocks(&self, root: Slot, off: &IrqOff<P>) -> u64 {
        let cpus = self.stocks.iter().map(|(cpu, _)| cpu);
        cpus.map(|cpu| self.drain_stock(cpu, root, off)).sum()
    }

    /// As [`drain_stocks`](Self::drain_stocks), of one CPU, whether it runs or not.
    pub(crate) fn drain_stock(&self, cpu: CpuId, root: Slot, off: &IrqOff<P>) -> u64 {
        let Some(stock) = self.stocks.of(cpu) else {
            return 0;
        };
        let mut stock = stock.lock(off);
        let drained = stock.drain(|group| self.is_at_or_below(group, root));
        // Under the lock: a group's end drains it last, and must not pass frames that are on their way.
        let frames: u64 = drained.into_iter().map(|entry| self.give_back(entry)).sum();
        // Whoever's they are: they are few.
        let bytes = stock.take_bytes();
        drop(stock);
        frames + self.park(Destination::Counters, bytes, off)
    }

    /// Sets a group's limit; further charges obey it. `None` for a stale id or the root.
    pub(crate) fn set_max(&self, id: MemcgId, frames: u64) -> Option<()> {
        let off = IrqOff::new();
        let _pin = self.epoch.pin();
        let group = self.live(id).filter(|_| id.slot != ROOT)?;
        if group.counter.set_max(frames) && !left_out::<P>("limit: the mark") {
            self.squeeze(group);
        }
        // After the mark: an uncharge that did not see it put its frames into a stock that is drained only now.
        if !left_out::<P>("limit: the drain") {
            self.drain_stocks(id.slot, &off);
        }
        self.ease(&group.counter);
        Some(())
    }

    /// Frames in stock for a group and those below it.
    pub(super) fn stocked(&self, root: Slot) -> u64 {
        let off = IrqOff::new();
        let of = |stock: Held<'_, Stock, P>| {
            let entries = stock.entries().iter();
            entries
                .filter(|entry| entry.frames > 0 && self.is_at_or_below(entry.group, root))
                .map(|entry| entry.frames)
                .sum::<u64>()
        };
        let stocks = self.stocks.iter().map(|(_, stock)| of(stock.lock(&off)));
        stocks.sum()
    }

    /// Whether `slot` is `ancestor` or a group below it.
    pub(crate) fn is_at_or_below(&self, slot: Slot, ancestor: Slot) -> bool {
        ancestor == ROOT || self.path(slot).any(|at| at == ancestor)
    }

    /// Charges the counters of `from` and those above it, up to but not including `end`, or none of them.
    pub(super) fn try_charge_path(&self, from: Slot, end: Slot, frames: u64) -> Result<(), Slot> {
        for at in self.path(from).take_while(|&at| at != end) {
            let (counter, parent) = self.counters(at);
            if !counter.try_charge::<P>(frames, parent) {
                // Whoever set a limit below what this counted for a moment has marked the group.
                if !left_out::<P>("limit: a failed charge eases") {
                    self.ease(counter);
                }
                self.uncharge_path(from, at, frames);
                return Err(at);
            }
        }
        Ok(())
    }

    /// Uncharges from `from` up to, not including, `end`.
    #[inline]
    pub(super) fn uncharge_path(&self, from: Slot, end: Slot, frames: u64) {
        for at in self.path(from).take_while(|&at| at != end) {
            let (counter, parent) = self.counters(at);
            counter.uncharge(frames, parent);
            self.ease(counter);
        }
    }

    /// No longer over a limit that was set below usage, if that is so. Wherever a counter falls.
    pub(super) fn ease(&self, counter: &PageCounter) {
        let mark = counter.squeezed();
        if !mark.load(Relaxed) || counter.is_over() || !mark.swap(false, SeqCst) {
            return;
        }
        self.squeezed.fetch_sub(1, SeqCst);
        // A limit that was lowered between the look and the swap found the mark in place, and relies on it.
        if counter.is_over() && !mark.swap(true, SeqCst) {
            self.squeezed.fetch_add(1, SeqCst);
        }
    }

    fn squeeze(&self, group: &Group) {
        if !group.counter.squeezed().swap(true, SeqCst) {
            self.squeezed.fetch_add(1, SeqCst);
        }
    }

    #[inline]
    fn charge_group(
        &self,
        group: Slot,
        frames: u64,
        force: Force,
        off: &IrqOff<P>,
    ) -> Result<(), Refusal> {
        if frames <= BATCH
            && let Some(mut stock) = self.stock(off)
        {
            if stock.consume(group, frames) {
                return Ok(());
            }
            // Near a limit a whole batch may not fit where the frames alone do.
            if frames < BATCH && self.try_charge_path(group, ROOT, BATCH).is_ok() {
                self.keep(&mut stock, group, BATCH - frames);
                return Ok(());
            }
        }
        let Err(full) = self.try_charge_path(group, ROOT, frames) else {
            return Ok(());
        };
        // What CPUs keep for others below the full group is not in use.
        if self.drain_stocks(full, off) > 0 && self.try_charge_path(group, ROOT, frames).is_ok() {
            return Ok(());
        }
        match force {
            Force::Within => Err(Refusal::Full(full)),
            Force::Over => {
                for at in self.path(group) {
                    let (counter, parent) = self.counters(at);
                    counter.charge(frames, parent);
                }
                Ok(())
            }
        }
    }

    #[inline]
    fn uncharge_group(&self, destination: Destination, group: Slot, frames: u64, off: &IrqOff<P>) {
        if group == ROOT {
            return;
        }
        let stocked = destination == Destination::Stock && frames <= BATCH;
        match stocked.then(|| self.stock(off)).flatten() {
            Some(mut stock) => self.keep(&mut stock, group, frames),
            None => self.uncharge_path(group, ROOT, frames),
        }
    }

    /// Puts frames that are charged to `group`, and not in use, into a stock, or gives them back.
    #[inline]
    fn keep(&self, stock: &mut Held<'_, Stock, P>, group: Slot, frames: u64) {
        // Read under the stock's lock: whoever set it drained, or will drain, this stock afterwards.
        if self.squeezed.load(SeqCst) > 0 {
            self.uncharge_path(group, ROOT, frames);
        } else if let Some(out) = stock.refill(group, frames) {
            self.give_back(out);
        }
    }

    fn give_back(&self, entry: Entry) -> u64 {
        if entry.frames > 0 {
            self.uncharge_path(entry.group, ROOT, entry.frames);
        }
        entry.frames
    }

    /// This CPU's stock, if there is one and nobody drains it.
    #[inline]
    pub(super) fn stock<'a>(&'a self, off: &'a IrqOff<P>) -> Option<Held<'a, Stock, P>> {
        self.stocks.of(off.cpu())?.try_lock(off)
    }

    /// A group and those above it, without the root.
    #[inline]
    pub(super) fn path(&self, from: Slot) -> impl Iterator<Item = Slot> + '_ {
        let valid = |&slot: &Slot| slot != ROOT && (slot as usize) < self.groups.len();
        // Each step goes to the parent; the bound only stops a damaged link.
        core::iter::successors(Some(from), |&at| {
            Some(self.groups.get(at as usize)?.parent.load(Relaxed))
        })
        .take_while(valid)
        .take(self.deepest as usize)
    }

    /// The counters of a group on a path, and of the group above it.
    #[inline]
    fn counters(&self, at: Slot) -> (&PageCounter, &PageCounter) {
        let group = &self.groups[at as usize];
        let parent = self.groups.get(group.parent.load(Relaxed) as usize);
        (&group.counter, &parent.unwrap_or(&self.groups[0]).counter)
    }
}
