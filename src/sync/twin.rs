//! Broken twins: a model that catches nothing proves nothing.
//!
//! Owns: the one switch by which a model leaves a step of a protocol out, on the real code, and must then fail.
//! Invariants: outside the models (`cfg(loom)`) no step is ever left out, and asking costs nothing.
//! Lock ranks: none.
//! Used by: every protocol with a model; tests/loom_*.rs names the steps in `Platform::LEFT_OUT`.

use crate::platform::Platform;

/// Whether a model on this platform leaves `step` out.
#[inline(always)]
#[cfg_attr(
    not(loom),
    expect(clippy::extra_unused_type_parameters, reason = "read in the models")
)]
pub(crate) fn left_out<P: Platform>(step: &str) -> bool {
    #[cfg(loom)]
    return step == P::LEFT_OUT;
    #[cfg(not(loom))]
    {
        let _ = step;
        false
    }
}
