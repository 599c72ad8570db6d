//! Any program of folios, groups, reclaim and compaction on three CPUs agrees with a naive model.
//!
//! Owns: the entry of the fuzzer. The model is tests/model_mm.rs. Invariants: all is compared after each step.
//! Lock ranks: none. Used by: `cargo +nightly fuzz run lru_ops -- -max_total_time=60 -max_len=1024`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/model_mm.rs"]
mod model_mm;

fuzz_target!(|bytes: &[u8]| {
    model_mm::run(framekeeper_fuzz::decode(&model_mm::op(), bytes));
    // SAFETY: the program's instance ended with it.
    unsafe { model_mm::host::recycle() };
});
