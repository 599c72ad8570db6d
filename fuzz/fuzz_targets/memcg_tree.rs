//! Any program of groups, charges, page states and moves agrees with a naive model.
//!
//! Owns: the entry of the fuzzer. The model is tests/model_memcg.rs. Invariants: all is compared after each step.
//! Lock ranks: none. Used by: `cargo +nightly fuzz run memcg_tree -- -max_total_time=60 -max_len=1024`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/model_memcg.rs"]
mod model_memcg;

fuzz_target!(|bytes: &[u8]| {
    model_memcg::run(framekeeper_fuzz::decode(&model_memcg::op(), bytes));
    // SAFETY: the program's instance ended with it.
    unsafe { model_memcg::host::recycle() };
});
