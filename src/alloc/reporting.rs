//! Telling a hypervisor which memory is free, so that it need not keep it.
//!
//! Owns: [`PageAllocator::report_free`]. Invariants: a block that was reported is not reported again until one of its frames
//! was taken. While a report is made its blocks are nobody else's; they come back whatever the hook does.
//! Lock ranks: `Shard`, one at a time; none while the hook runs. Used by: guests, about every two seconds.

use arrayvec::ArrayVec;

use super::{Contents, PageAllocator};
use crate::addr::{FrameRange, Order};
use crate::platform::{IrqOff, Platform};
use crate::zone::{Block, Level, REPORT, Zone};

/// Largest piece of a report: 32 of them, 1 GiB of 4 KiB frames, leave a zone at once.
const MOST: Order = Order::new(13).expect("below Order::MAX");

/// What came of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reported {
    /// The hypervisor knows.
    Done,
    /// It does not: the blocks are reported again another time.
    Failed,
}

impl<P: Platform> PageAllocator<P> {
    /// Makes one report for each zone that has something to tell: up to 32 free blocks of at least `least` (and at least order 9,
    /// which saves the hypervisor most for its work). Returns how many frames were reported; with 0 there is nothing left to tell.
    ///
    /// The hook is called without a lock, and may sleep. The blocks of a report are out of their zone meanwhile, so none is made
    /// that would take the zone near its low watermark. The hypervisor may give the frames back with other contents, or zero: under
    /// [`Contents::Poison`] nothing is reported, and under [`Contents::ZeroOnFree`] it must give them back zero.
    ///
    /// ```
    /// # use framekeeper::{FrameRange, Order, PageAllocator, Platform, alloc::Reported};
    /// # fn every_two_seconds<P: Platform>(memory: &PageAllocator<P>, send: fn(&[FrameRange]) -> Reported) {
    /// while memory.report_free(Order::PAGEBLOCK, send) > 0 {}
    /// # }
    /// ```
    pub fn report_free(
        &self,
        least: Order,
        mut hook: impl FnMut(&[FrameRange]) -> Reported,
    ) -> u64 {
        if self.config.contents == Contents::Poison {
            return 0;
        }
        self.zones()
            .map(|zone| report(zone, least.max(Order::PAGEBLOCK), &mut hook))
            .sum()
    }
}

/// One report of one zone.
fn report<P: Platform>(
    zone: &Zone<P>,
    least: Order,
    hook: &mut impl FnMut(&[FrameRange]) -> Reported,
) -> u64 {
    let kept = zone.mark(Level::Low);
    let spare = zone.free_frames_exact().saturating_sub(kept) / REPORT as u64;
    let sizes = (least.get()..=MOST.max(least).get()).rev();
    let Some(most) = sizes
        .filter_map(Order::new)
        .find(|order| order.frames() <= spare)
    else {
        return 0;
    };
    let mut out = Out {
        zone,
        blocks: zone.take_unreported(least, most),
        reported: Reported::Failed,
    };
    if out.blocks.is_empty() {
        return 0;
    }
    let ranges: ArrayVec<FrameRange, REPORT> = out.blocks.iter().map(Block::frames).collect();
    out.reported = hook(&ranges);
    match out.reported {
        Reported::Done => out.blocks.iter().map(|block| block.order().frames()).sum(),
        Reported::Failed => 0,
    }
}

/// The blocks of a report, given back when dropped, also by a hook that panics.
struct Out<'z, P: Platform> {
    zone: &'z Zone<P>,
    blocks: ArrayVec<Block, REPORT>,
    reported: Reported,
}

impl<P: Platform> Drop for Out<'_, P> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            let off = IrqOff::new();
            let given = match self.reported {
                Reported::Done => self.zone.give_reported(block, &off),
                Reported::Failed => self.zone.give(block, &off),
            };
            // No hook can have made this fail: to every safe call the frames are in use by another. Only a corrupted zone
            // refuses; it counts the fault, and the frames stay out.
            debug_assert_eq!(given, Ok(()), "it was taken from the zone");
        }
    }
}
