//! Many blocks, wherever they are to be written.
//!
//! Owns: [`Sink`], and [`Zone::take_into`]. Invariants: a sink gets at most what it has room for.
//! Lock ranks: `Shard`, one at a time, at most `MAX_LINES_PER_HOLD` lines a hold. Used by: pageset.

use super::{MAX_LINES_PER_HOLD, Mobility, Zone};
use crate::addr::Order;
use crate::platform::{IrqOff, Platform};

/// Takes the numbers of blocks, as counted from the zone's base.
pub(crate) trait Sink {
    /// Where the next numbers go; empty when there are enough.
    fn room(&mut self) -> &mut [u32];

    /// The first `count` places of the last room were written.
    fn wrote(&mut self, count: usize);
}

impl<P: Platform> Zone<P> {
    /// [`take_blocks`](Self::take_blocks) into room that comes in pieces. A zone of one shard fills all of it in one hold,
    /// as the classical zone does; one of several chooses the fullest lines for each piece.
    pub(crate) fn take_into(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        sink: &mut impl Sink,
        off: &IrqOff<P>,
    ) {
        if let [only] = self.shards {
            let kind = self.grouped(mobility);
            self.with(only, off, |shard| {
                let mut left = MAX_LINES_PER_HOLD;
                while left > 0 {
                    let room = sink.room();
                    let len = room.len().min(left);
                    let taken = shard.take_many(order.get(), kind, only.first, &mut room[..len]);
                    sink.wrote(taken);
                    left -= taken;
                    if taken < len || len == 0 {
                        break;
                    }
                }
            });
        }
        loop {
            let room = sink.room();
            let len = room.len();
            if len == 0 {
                break;
            }
            let taken = self.take_blocks(order, mobility, home, room, off);
            sink.wrote(taken);
            if taken < len {
                break;
            }
        }
    }
}
