//! Large folios into smaller ones, as kernels hold them.
//!
//! Owns: [`Split`] and [`SplitIsolated`], the parts of a folio that was split; [`SplitError`].
//! Invariants: a folio is split by whoever has its only reference, so nothing maps it, and no batch and no scan has it. Each part
//! gets one reference, which these hand out, or drop.
//! Lock ranks: takes `LruVec`. Used by: kernels, reclaim.

use core::fmt;

use super::{Folio, FolioView, Isolated, Mm};
use crate::addr::Order;
use crate::boot::Refused;
use crate::frame::FrameNo;
use crate::platform::{IrqOff, Platform};

/// Why a folio was not split. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SplitError {
    /// The parts would be as large as the whole, or larger.
    NotSmaller,
    /// Others have references: mappings, batches, or whoever isolated it.
    InUse {
        /// References, the caller's own included.
        references: u32,
    },
}

/// The parts of a folio, in order of their frames. Those that are not taken are dropped.
#[must_use = "dropping it drops the references to all parts"]
#[derive(Debug)]
pub struct Split<'m, P: Platform>(Parts<'m, P>);

/// The parts of an isolated folio, in order of their frames. Those that are not taken are put back.
#[must_use = "dropping it puts all parts back"]
#[derive(Debug)]
pub struct SplitIsolated<'m, P: Platform>(pub(super) Parts<'m, P>);

/// References to parts that nobody took yet.
#[derive(Debug)]
pub(super) struct Parts<'m, P: Platform> {
    mm: &'m Mm<P>,
    next: FrameNo,
    left: u32,
    order: Order,
}

impl<P: Platform> Mm<P> {
    /// Splits a folio to which the caller has the only reference, which the parts take over.
    pub(super) fn split(&self, frame: FrameNo, to: Order) -> Result<Parts<'_, P>, SplitError> {
        let record = self.frames.record(frame);
        let order = record.order();
        if to >= order {
            return Err(SplitError::NotSmaller);
        }
        self.view()
            .split(frame, to, &IrqOff::new())
            .map_err(|references| SplitError::InUse { references })?;
        Ok(Parts {
            mm: self,
            next: frame,
            left: 1 << (order.get() - to.get()),
            order: to,
        })
    }
}

impl<'m, P: Platform> Folio<'m, P> {
    /// Splits a large folio to which nobody else has a reference into folios of order `to`. They are where it was: next to
    /// each other on its list, or on none. Each starts with the whole's [word](FolioView::word).
    ///
    /// # Errors
    /// [`SplitError`], together with the folio, of which nothing was changed.
    pub fn split(self, to: Order) -> Result<Split<'m, P>, Refused<SplitError, Self>> {
        match self.0.mm.split(self.0.frame, to) {
            Ok(parts) => {
                core::mem::forget(self);
                Ok(Split(parts))
            }
            Err(error) => Err(Refused(error, self)),
        }
    }
}

impl<P: Platform> Parts<'_, P> {
    fn next(&mut self) -> Option<FrameNo> {
        self.left = self.left.checked_sub(1)?;
        let frame = self.next;
        self.next.0 += self.order.frames() as u32;
        Some(frame)
    }
}

impl<'m, P: Platform> Iterator for Split<'m, P> {
    type Item = Folio<'m, P>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mm, frame) = (self.0.mm, self.0.next()?);
        Some(Folio(FolioView { mm, frame }))
    }
}

impl<'m, P: Platform> Iterator for SplitIsolated<'m, P> {
    type Item = Isolated<'m, P>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mm, frame) = (self.0.mm, self.0.next()?);
        Some(Isolated::new(mm, frame))
    }
}

impl<P: Platform> Drop for Split<'_, P> {
    fn drop(&mut self) {
        self.0.mm.release_all(self.by_ref());
    }
}

impl<P: Platform> Drop for SplitIsolated<'_, P> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSmaller => f.write_str("the parts would not be smaller than the whole"),
            Self::InUse { references } => {
                write!(
                    f,
                    "the folio has {references} references: only its one owner splits it"
                )
            }
        }
    }
}

impl core::error::Error for SplitError {}
