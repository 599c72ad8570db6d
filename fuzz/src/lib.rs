//! From a fuzzer's bytes to programs, by the generators of the property tests.
//!
//! Owns: [`decode`]. Invariants: every input is some program, and the same bytes mean the same operation wherever they stand.
//! Lock ranks: none. Used by: the targets.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Bytes of an operation.
const BYTES: usize = 4;

/// A program of one operation for each [`BYTES`]: the one that a property test's generator draws with them as its seed. (Its
/// choices are not read from the bytes themselves, since a choice between operations spends bytes on those not taken.)
pub fn decode<S: Strategy>(operation: &S, bytes: &[u8]) -> Vec<S::Value> {
    let draw = |bytes: &[u8]| {
        let mut seed = [0; 32];
        seed[..bytes.len()].copy_from_slice(bytes);
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        Some(operation.new_tree(&mut runner).ok()?.current())
    };
    bytes.chunks(BYTES).filter_map(draw).collect()
}
