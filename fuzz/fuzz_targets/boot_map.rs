//! Any program of calls leaves the boot map equal to one entry per byte.
//!
//! Owns: the translation of fuzz input into calls. The model is tests/common/boot_model.rs.
//! Invariants: all that the map shows is compared after each call.
//! Lock ranks: none. Used by: `cargo +nightly fuzz run boot_map -- -max_total_time=60 -max_len=1024`.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/common/boot_model.rs"]
mod boot_model;

use boot_model::{BASES, Op, Pair, WINDOW};

/// A program: which window, how many regions the map holds, and the calls.
#[derive(Arbitrary, Debug)]
struct Program {
    at_frame_0: bool,
    capacity: Capacity,
    calls: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
enum Capacity {
    Two,
    Five,
    Many,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Add(u8, Range),
    Reserve(Range),
    Free(Range),
    Take(u8, Align),
    TakeBelow(u16, Option<u8>, u8, Align),
}

/// Either within the window, or one whose end is refused.
#[derive(Arbitrary, Debug)]
enum Range {
    Inside(u16, u16),
    /// In eighths of the window, so that ranges touch, nest and end together.
    Coarse(u8, u8),
    Refused(u64, u64),
}

#[derive(Arbitrary, Debug)]
enum Align {
    Power(u8),
    Any(u64),
}

impl Range {
    fn absolute(&self, base: u64) -> (u64, u64) {
        match *self {
            Self::Inside(start, bytes) => {
                let start = u64::from(start) % (WINDOW + 1);
                (base + start, u64::from(bytes) % (WINDOW - start + 1))
            }
            Self::Coarse(a, b) => {
                let (a, b) = (u64::from(a) % 9, u64::from(b) % 9);
                (base + a.min(b) * WINDOW / 8, a.abs_diff(b) * WINDOW / 8)
            }
            Self::Refused(start, bytes) => (start, bytes.max(u64::MAX >> 11)),
        }
    }
}

impl Align {
    fn bytes(&self) -> u64 {
        match *self {
            Self::Power(log) => 1 << (log % 64),
            Self::Any(align) => align,
        }
    }
}

impl Call {
    fn op(&self, base: u64) -> Op {
        match self {
            Self::Add(node, range) => {
                let (start, bytes) = range.absolute(base);
                Op::Add(node % 3, start, bytes)
            }
            Self::Reserve(range) => {
                let (start, bytes) = range.absolute(base);
                Op::Reserve(start, bytes)
            }
            Self::Free(range) => {
                let (start, bytes) = range.absolute(base);
                Op::Free(start, bytes)
            }
            Self::Take(bytes, align) => Op::Take(u64::from(*bytes), align.bytes()),
            Self::TakeBelow(limit, node, bytes, align) => Op::TakeBelow(
                base + u64::from(*limit) % (WINDOW + 1),
                node.map(|node| node % 3),
                u64::from(*bytes),
                align.bytes(),
            ),
        }
    }
}

fn run<const N: usize>(base: u64, calls: &[Call]) {
    let mut pair = Pair::<N>::new(base);
    for call in calls.iter().take(64) {
        pair.step(call.op(base));
    }
}

fuzz_target!(|program: Program| {
    let base = BASES[usize::from(!program.at_frame_0)];
    match program.capacity {
        Capacity::Two => run::<2>(base, &program.calls),
        Capacity::Five => run::<5>(base, &program.calls),
        Capacity::Many => run::<64>(base, &program.calls),
    }
});
