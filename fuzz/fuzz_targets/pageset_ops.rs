//! Any program of allocations and frees on four CPUs hands no frame out twice and leaves what it must.
//!
//! Owns: the entry of the fuzzer. The model is tests/model_alloc.rs. Invariants: counts are compared after each step.
//! Lock ranks: none. Used by: `cargo +nightly fuzz run pageset_ops -- -max_total_time=60 -max_len=1024`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/model_alloc.rs"]
mod model_alloc;

fuzz_target!(|bytes: &[u8]| {
    model_alloc::program(&mut model_alloc::machine::Bytes(bytes));
    // SAFETY: the program's instance ended with it.
    unsafe { model_alloc::host::recycle() };
});
