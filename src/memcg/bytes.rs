//! Bytes charged for the kernel's own objects, many of which share a frame.
//!
//! Owns: the way from an object's bytes to frames charged to its group: this CPU's stock first, then what CPUs left with the
//! owner slot, then whole frames; and back.
//! Invariants: for each owner slot, frames charged for bytes hold exactly the bytes of objects, those in CPUs' stocks, and those parked
//! at the slot, which are fewer than a frame. So the slot is in use as long as any byte of it is anywhere, and once the
//! last object is gone and stocks are drained, no frame is left. A stock keeps fewer bytes than two frames have; a limit set
//! below usage keeps freed bytes out of stocks, as it does frames.
//! Objects of a group that ended are its parent's with the owner slot: nothing is touched when it ends but the stocks.
//! Lock ranks: tries this CPU's `MemcgStock`, and holds nothing while frames are charged or uncharged. Used by: mm (bytes).

use super::charge::Destination;
use super::stock::LooseBytes;
use super::{Force, MemcgId, Memcgs, OwnerIndex, Refusal, Slot};
use crate::addr::NodeId;
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::SeqCst;

impl<P: Platform> Memcgs<P> {
    const FRAME: u64 = 1 << P::PAGE_SHIFT;

    /// Charges `bytes`, more than 0, to a group and all above it, and names the owner slot for them.
    pub(crate) fn try_charge_bytes(
        &self,
        id: MemcgId,
        node: NodeId,
        bytes: u32,
        force: Force,
    ) -> Result<OwnerIndex, Refusal> {
        let off = IrqOff::new();
        // Pinned: the group's end waits, and then drains what this leaves in the stock.
        let pin = self.epoch.pin();
        self.live(id).ok_or(Refusal::Gone)?;
        let owner = self.current_owner(id.slot, node).ok_or(Refusal::Gone)?;
        let bytes = u64::from(bytes);
        if self.take_bytes(owner, bytes, &off) {
            return Ok(owner);
        }
        let frames = bytes.div_ceil(Self::FRAME);
        if let Err(refusal) = self.charge_living(id.slot, node, frames, force, (&pin, &off)) {
            // The group that is full had every CPU leave its bytes with their owners.
            let found = self.take_bytes(owner, bytes, &off);
            return found.then_some(owner).ok_or(refusal);
        }
        self.owners.add_byte_frames(owner, frames);
        self.give_bytes(owner, frames * Self::FRAME - bytes, &off);
        Ok(owner)
    }

    /// Takes back `bytes` charged through `owner`, from whoever they belong to now.
    pub(crate) fn uncharge_bytes(&self, owner: OwnerIndex, bytes: u32) {
        // Not pinned: these bytes keep frames charged, and these keep the owner slot.
        self.give_bytes(owner, u64::from(bytes), &IrqOff::new());
    }

    /// Frames charged for bytes through `owner`, for `check()`.
    pub(crate) fn byte_frames(&self, owner: OwnerIndex) -> u64 {
        self.owners.byte_frames(owner)
    }

    /// Frames charged for bytes of objects of the group in `root` and those below it, on a node.
    pub(crate) fn tree_byte_frames(&self, root: Slot, node: u32) -> u64 {
        // Pinned: no other group gets the place that an owner slot resolves to.
        let _pin = self.epoch.pin();
        let owners = self.owners.in_use().map(|(owner, _)| owner);
        owners
            .map(|owner| (owner, self.owners.byte_frames(owner)))
            .filter(|&(owner, frames)| {
                let lruvec = (frames > 0).then(|| self.owners.resolve(owner)).flatten();
                lruvec.is_some_and(|lruvec| {
                    lruvec % self.nodes == node && self.is_at_or_below(self.slot_of(lruvec), root)
                })
            })
            .map(|(_, frames)| frames)
            .sum()
    }

    /// Takes `bytes` that are charged already, from this CPU's stock and what is parked at the slot.
    fn take_bytes(&self, owner: OwnerIndex, bytes: u64, off: &IrqOff<P>) -> bool {
        let unpark = || self.owners.unpark::<P>(owner);
        let Some(mut stock) = self.stock(off) else {
            let parked = unpark();
            let left = parked.checked_sub(bytes);
            let bytes = left.unwrap_or(parked);
            self.park(Destination::Stock, Some(LooseBytes { owner, bytes }), off);
            return left.is_some();
        };
        let out = stock.turn_bytes_to(owner);
        let taken = stock.consume_bytes(bytes) || stock.add_and_consume_bytes(unpark(), bytes);
        drop(stock);
        self.park(Destination::Stock, out, off);
        taken
    }

    /// Keeps bytes that are charged and not in use in this CPU's stock, as far as they fit there.
    fn give_bytes(&self, owner: OwnerIndex, bytes: u64, off: &IrqOff<P>) {
        let loose = LooseBytes { owner, bytes };
        let stock = self.stock(off);
        // Read under the stock's lock: whoever set it drained, or will drain, this stock afterwards.
        let Some(mut stock) = stock.filter(|_| self.squeezed.load(SeqCst) == 0) else {
            self.park(Destination::Stock, Some(loose), off);
            return;
        };
        let out = stock.turn_bytes_to(owner);
        let frames = stock.refill_bytes(bytes, Self::FRAME);
        drop(stock);
        self.park(Destination::Stock, out, off);
        self.uncharge_byte_frames(Destination::Stock, owner, frames, off);
    }

    /// Leaves bytes with their owner slot; uncharges the frames that are full of such bytes. Says how many.
    pub(super) fn park(
        &self,
        destination: Destination,
        out: Option<LooseBytes>,
        off: &IrqOff<P>,
    ) -> u64 {
        let Some(LooseBytes { owner, bytes }) = out else {
            return 0;
        };
        let frames = self.owners.park::<P>(owner, bytes);
        self.uncharge_byte_frames(destination, owner, frames, off);
        frames
    }

    fn uncharge_byte_frames(
        &self,
        destination: Destination,
        owner: OwnerIndex,
        frames: u64,
        off: &IrqOff<P>,
    ) {
        if frames > 0 {
            // Before the last of them goes, and the slot with it.
            self.owners.sub_byte_frames(owner, frames);
            self.uncharge_to(destination, owner, frames, off);
        }
    }
}
