//! Tests of the zone as its users see it.

extern crate std;

mod blocks;
mod hardening;
mod kinds;
mod levels;
mod model;
mod ranges;

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::refill::Sink;
use super::{IsolateError, Mobility, Purpose, Zone, ZoneSpec};
use crate::addr::{FrameRange, NodeId, Order, Pfn, ZoneKind};
use crate::boot::Bump;
use crate::host::{Host, storage};
use crate::platform::{IrqOff, Platform};

/// A sink of one piece.
struct Piece<'o> {
    out: &'o mut [u32],
    done: usize,
}

impl Sink for Piece<'_> {
    fn room(&mut self) -> &mut [u32] {
        &mut self.out[self.done..]
    }

    fn wrote(&mut self, count: usize) {
        self.done += count;
    }
}

impl<P: Platform> Zone<P> {
    /// Takes up to `out.len()` blocks of `order` and returns how many; `out` then starts with their first frames,
    /// counted from [`base`](Self::base), ascending within a line.
    pub(super) fn take_blocks(
        &self,
        order: Order,
        mobility: Mobility,
        home: u32,
        out: &mut [u32],
        off: &IrqOff<P>,
    ) -> usize {
        let mut piece = Piece { out, done: 0 };
        self.take_into(order, mobility, home, &mut piece, off);
        piece.done
    }
}

/// A zone over `start..end` with all frames absent.
pub(super) fn absent(start: u64, end: u64, shards: u32) -> &'static Zone<Host> {
    absent_on(start, end, shards)
}

/// The same on any platform.
pub(super) fn absent_on<P: Platform>(start: u64, end: u64, shards: u32) -> &'static Zone<P> {
    let spec = ZoneSpec {
        node: NodeId(0),
        kind: ZoneKind::Normal,
        span: FrameRange::new(Pfn(start), Pfn(end)),
        shards,
        ragged: 0,
    };
    let mut measure = Bump::measuring();
    Zone::<P>::build(&mut measure, spec).unwrap();
    let mut bytes = storage(measure.used());
    let zone = Zone::build(&mut Bump::new(&mut bytes), spec).unwrap();
    Box::leak(Box::new(zone))
}

/// A zone over `start..end` with all frames free.
pub(super) fn online(start: u64, end: u64, shards: u32) -> &'static Zone<Host> {
    let zone = absent(start, end, shards);
    let off = IrqOff::new();
    zone.online(range(start, end), &off).unwrap();
    zone
}

/// Makes a range CMA; an error names the first pageblock that cannot be.
pub(super) fn set_cma(zone: &Zone<Host>, range: FrameRange) -> Result<(), IsolateError> {
    let off = IrqOff::new();
    let isolation = zone.isolate(range, Purpose::Contiguous, &off)?;
    let set = zone.set_cma(&isolation, &off);
    zone.release(&isolation, &off);
    set.map_err(IsolateError::Kept)
}

pub(super) fn range(start: u64, end: u64) -> FrameRange {
    FrameRange::new(Pfn(start), Pfn(end))
}

pub(super) fn order(n: u8) -> Order {
    Order::new(n).unwrap()
}

/// A small generator: the tests are the same on every run.
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// Takes until nothing is left; returns how many blocks there were.
pub(super) fn drain(zone: &Zone<Host>, order: Order, mobility: Mobility) -> u64 {
    let off = IrqOff::new();
    let mut blocks = 0;
    while let Some(block) = zone.take(order, mobility, 0, &off) {
        let _ = block.into_parts();
        blocks += 1;
    }
    blocks
}

/// Takes every frame, and returns them in ascending order.
pub(super) fn fill(zone: &Zone<Host>, mobility: Mobility) -> Vec<u32> {
    let off = IrqOff::new();
    let mut frames = vec![0; zone.free_frames_exact() as usize];
    let n = zone.take_blocks(Order::ZERO, mobility, 0, &mut frames, &off);
    frames.truncate(n);
    frames.sort_unstable();
    frames
}
