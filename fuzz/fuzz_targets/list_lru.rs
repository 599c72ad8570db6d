//! Any program of groups, objects and walks agrees with plain vectors.
//!
//! Owns: the entry of the fuzzer. The model is tests/model_list_lru.rs. Invariants: all is compared after each step.
//! Lock ranks: none. Used by: `cargo +nightly fuzz run list_lru -- -max_total_time=60 -max_len=1024`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/model_list_lru.rs"]
mod model_list_lru;

fuzz_target!(|bytes: &[u8]| {
    model_list_lru::run(&framekeeper_fuzz::decode(&model_list_lru::op(), bytes));
    // SAFETY: the program's instance ended with it.
    unsafe { model_list_lru::host::recycle() };
});
