//! Many blocks in one hold of a shard's lock, wherever they are to be written.
//!
//! Owns: [`Sink`], [`Zone::take_into`], the choice between shards.
//! Invariants: a sink gets at most what it has room for. A hold changes at most `MAX_LINES_PER_HOLD` lines.
//! Lock ranks: `Shard`, one at a time. Used by: pageset, alloc.

use super::exchange::hold;
use super::fullness::{Fullness, NONE};
use super::shard::Shard;
use super::{Mobility, Zone};
use crate::addr::Order;
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering::Relaxed;

/// Shards that a request for single frames compares: more would bring many CPUs to the same one.
const NEAR: usize = 4;

/// Free frames up to which a line counts as nearly full.
const NEARLY_FULL: u16 = 128;

/// Takes the numbers of blocks, as counted from the zone's base.
pub(crate) trait Sink {
    /// Where the next numbers go; empty when there are enough.
    fn room(&mut self) -> &mut [u32];

    /// The first `count` places of the last room were written.
    fn wrote(&mut self, count: usize);
}

impl<P: Platform> Zone<P> {
    /// Takes blocks of `order` into room that comes in pieces, by their first frames, counted from [`base`](Self::base), ascending
    /// within a line: all in one hold, if one shard has them.
    pub(crate) fn take_into(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        sink: &mut impl Sink,
        off: &IrqOff<P>,
    ) {
        let kind = self.grouped(mobility);
        if order == Order::ZERO && self.shards.len() > 1 && kind.is_mergeable() {
            self.take_fullest(kind, home, sink, off);
        }
        for cell in self.shards_from(home) {
            while !sink.room().is_empty() && cell.may_serve(kind, order) {
                let taken = self.with(cell, off, |shard| {
                    fill(sink, order, |room| {
                        shard.take_many(order.get(), kind, cell.first, room)
                    })
                });
                if taken == 0 {
                    break;
                }
            }
        }
        while !sink.room().is_empty() {
            let taken = self.take_lent(order, kind, home, sink.room(), off);
            sink.wrote(taken);
            if taken == 0 {
                break;
            }
        }
    }

    /// Takes single frames from the fullest lines of a few shards: from nearly full ones at home if there are any, so
    /// that CPUs keep apart, else from wherever the fullest one is. Whole lines stay whole for longer.
    fn take_fullest(&self, kind: Mobility, home: u32, sink: &mut impl Sink, off: &IrqOff<P>) {
        // Each round takes something, or makes one shard's hint exact.
        for _ in 0..2 * NEAR {
            if sink.room().is_empty() {
                break;
            }
            let (mut lowest, mut second, mut best) = (NONE, NONE, None);
            for cell in self.shards_from(home).take(NEAR) {
                let free = Fullness::lowest_of(cell.lowest.load(Relaxed), kind);
                if free < lowest && lowest > NEARLY_FULL {
                    (second, lowest, best) = (lowest, free, Some(cell));
                } else {
                    second = second.min(free);
                }
            }
            let Some(cell) = best else {
                break;
            };
            let limit = NEARLY_FULL.max(second);
            self.with(cell, off, |shard: &mut Shard| {
                fill(sink, Order::ZERO, |room| {
                    shard.take_full(kind, limit, cell.first, room)
                })
            });
        }
    }
}

/// Takes into a sink's room, piece after piece, what one hold may take. Returns how many blocks that were.
#[inline]
fn fill(sink: &mut impl Sink, order: Order, mut take: impl FnMut(&mut [u32]) -> usize) -> usize {
    let mut left = hold(order);
    while left > 0 {
        let room = sink.room();
        let len = room.len().min(left);
        if len == 0 {
            break;
        }
        let taken = take(&mut room[..len]);
        sink.wrote(taken);
        left -= taken;
        if taken < len {
            break;
        }
    }
    hold(order) - left
}
