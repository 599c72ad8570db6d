//! Any program of blocks, ranges, CMA areas, balloons, bad and offline frames agrees with what the model says each frame is.
//!
//! Owns: the entry of the fuzzer. The model is tests/model_ranges.rs. Invariants: counts are compared after each step, structure after each sixteenth.
//! Lock ranks: none. Used by: `cargo +nightly fuzz run zone_ops -- -max_total_time=60 -max_len=1024`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/model_ranges.rs"]
mod model_ranges;

fuzz_target!(|bytes: &[u8]| {
    let (first, rest) = bytes.split_first().unwrap_or((&0, bytes));
    let shards = (first % 2 == 0).then_some(1);
    model_ranges::run(shards, 2000, &mut model_ranges::machine::Bytes(rest));
    // SAFETY: the program's instance ended with it.
    unsafe { model_ranges::host::recycle() };
});
