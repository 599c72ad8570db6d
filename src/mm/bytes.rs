//! Charges for objects smaller than a frame.
//!
//! Owns: [`ByteCharge`]; charging bytes without reclaim.
//! Invariants: a `ByteCharge` stands for its bytes until it is dropped, whatever becomes of the group.
//! Lock ranks: none held across a call. Used by: kernels, reclaim.

use core::fmt;

use super::{ChargeError, Mm, Refusal};
use crate::addr::NodeId;
use crate::memcg::{Force, MemcgId, OwnerIndex};
use crate::platform::Platform;

/// Bytes of a kernel's object that are charged to a group. Kept in, or beside, the object; dropping it takes the charge back.
/// If the group ends, they are its parent's.
///
/// The frames that objects live in are the kernel's own ([`Pages`](crate::Pages), which are charged to nobody): what is charged here
/// is a number of bytes, in whole frames at a time. A CPU keeps up to a frame's bytes ready for the group that it charged last,
/// and up to a frame's are left with each group and node, so usage may be above what objects use by that;
/// [`Mm::drain_memcg_cpu`] takes it back.
#[must_use = "dropping it takes the charge back"]
pub struct ByteCharge<'m, P: Platform> {
    mm: &'m Mm<P>,
    owner: OwnerIndex,
    bytes: u32,
}

impl<P: Platform> Mm<P> {
    /// Charges an object's bytes to a group, for memory on `node`, if its limit, and those above, allow it now. Never reclaims.
    /// 0 bytes count as 1.
    ///
    /// # Errors
    /// [`ChargeError`]; a node that is none counts as no such group.
    pub fn try_charge_bytes(
        &self,
        memcg: MemcgId,
        node: NodeId,
        bytes: u32,
    ) -> Result<ByteCharge<'_, P>, ChargeError> {
        self.charge_bytes_or_full(memcg, node, bytes, Force::Within)
            .map_err(|refusal| {
                self.note_refusal(refusal);
                self.charge_error(memcg, refusal)
            })
    }

    /// Charges an object's bytes whatever the limit: for requests that must not fail. Counts as an
    /// [`Event::Max`](crate::memcg::Event::Max) if a limit is exceeded by it.
    ///
    /// # Errors
    /// [`ChargeError::NoSuchGroup`].
    pub fn force_charge_bytes(
        &self,
        memcg: MemcgId,
        node: NodeId,
        bytes: u32,
    ) -> Result<ByteCharge<'_, P>, ChargeError> {
        self.charge_bytes_or_full(memcg, node, bytes, Force::Within)
            .or_else(|refusal| {
                self.note_refusal(refusal);
                self.charge_bytes_or_full(memcg, node, bytes, Force::Over)
            })
            .map_err(|refusal| self.charge_error(memcg, refusal))
    }

    pub(crate) fn charge_bytes_or_full(
        &self,
        memcg: MemcgId,
        node: NodeId,
        bytes: u32,
        force: Force,
    ) -> Result<ByteCharge<'_, P>, Refusal> {
        let bytes = bytes.max(1);
        let owner = self.memcgs.try_charge_bytes(memcg, node, bytes, force);
        owner.map_err(Refusal::Memcg).map(|owner| ByteCharge {
            mm: self,
            owner,
            bytes,
        })
    }
}

impl<P: Platform> ByteCharge<'_, P> {
    /// How many.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The group that they are charged to now.
    #[must_use]
    pub fn memcg(&self) -> Option<MemcgId> {
        self.mm.memcgs.group_of(self.owner)
    }
}

impl<P: Platform> Drop for ByteCharge<'_, P> {
    fn drop(&mut self) {
        self.mm.memcgs.uncharge_bytes(self.owner, self.bytes);
    }
}

impl<P: Platform> fmt::Debug for ByteCharge<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteCharge({} bytes of {:?})", self.bytes, self.memcg())
    }
}
