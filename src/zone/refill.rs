//! Many blocks in one hold of a shard's lock, wherever they are to be written.
//!
//! Owns: [`Sink`], and [`Zone::take_into`]. Invariants: a sink gets at most what it has room for.
//! Lock ranks: `Shard`, one at a time, at most `MAX_LINES_PER_HOLD` lines a hold. Used by: pageset.

use super::{Mobility, Zone, hold};
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
    /// [`take_blocks`](Self::take_blocks) into room that comes in pieces: all of it in one hold, if one shard has it.
    pub(crate) fn take_into(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        sink: &mut impl Sink,
        off: &IrqOff<P>,
    ) {
        for cell in self.shards_from(home) {
            while !sink.room().is_empty() && cell.may_serve(mobility, order) {
                let taken = self.with(cell, off, |shard| {
                    let mut left = hold(order);
                    while left > 0 {
                        let room = sink.room();
                        let len = room.len().min(left);
                        let n =
                            shard.take_many(order.get(), mobility, cell.first, &mut room[..len]);
                        sink.wrote(n);
                        left -= n;
                        if n < len || len == 0 {
                            break;
                        }
                    }
                    hold(order) - left
                });
                if taken == 0 {
                    break;
                }
            }
        }
        loop {
            let room = sink.room();
            if room.is_empty() {
                break;
            }
            let taken = self.take_lent(order, mobility, home, room, off);
            sink.wrote(taken);
            if taken == 0 {
                break;
            }
        }
    }
}
