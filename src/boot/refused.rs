//! Refusals that give back what they were asked with.
//!
//! Owns: [`Refused`]. Invariants: whoever refuses has changed nothing of the owner that it gives back.
//! Lock ranks: none. Used by: every layer whose calls consume an owner.

use core::error::Error;
use core::fmt;

/// Why a call that consumes an owner refused, and the owner as it was.
///
/// It is an error like any other where the owner is not wanted back: `?` drops both, as does
/// [`into_error`](Self::into_error).
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use = "it holds the owner that was given back"]
pub struct Refused<E, T>(
    /// Why.
    pub E,
    /// What the call was given.
    pub T,
);

impl<E, T> Refused<E, T> {
    /// Why; the owner is dropped.
    #[must_use]
    pub fn into_error(self) -> E {
        self.0
    }

    /// Both.
    #[must_use]
    pub fn into_parts(self) -> (E, T) {
        (self.0, self.1)
    }
}

impl<E: fmt::Debug, T> fmt::Debug for Refused<E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refused")
            .field(&self.0)
            .finish_non_exhaustive()
    }
}

impl<E: fmt::Display, T> fmt::Display for Refused<E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: Error, T> Error for Refused<E, T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::boot::StorageFull;
    use std::boxed::Box;
    use std::format;

    const FULL: StorageFull = StorageFull {
        needed: 2,
        available: 1,
    };

    /// What a caller gives and does not want back; it prints nothing.
    struct Owner<'a>(&'a u32);

    fn call(owner: Owner<'_>) -> Result<(), Refused<StorageFull, Owner<'_>>> {
        Err(Refused(FULL, owner))
    }

    fn caller(number: &u32) -> Result<(), Box<dyn Error + '_>> {
        Ok(call(Owner(number))?)
    }

    #[test]
    fn a_refusal_is_an_error_that_a_question_mark_passes_on_and_a_match_takes_apart() {
        let number = 7;
        let error = caller(&number).expect_err("always");
        assert_eq!(format!("{error}"), format!("{}", FULL));
        assert_eq!(format!("{error:?}"), format!("Refused({FULL:?}, ..)"));
        let Err(refused) = call(Owner(&number)) else {
            unreachable!("always refused")
        };
        let (error, owner) = refused.into_parts();
        assert_eq!((error, *owner.0), (FULL, 7));
        assert_eq!(call(owner).map_err(Refused::into_error), Err(FULL));
    }
}
