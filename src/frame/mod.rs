//! A record for each frame that a memcg may own.
//!
//! Owns: [`FrameTable`], the records by section; [`Record`], one frame's state; [`FrameList`], lists of frames.
//! Invariants: a record's links belong to whoever holds the lock of the list it is on; its flags and count are changed
//! atomically by anyone. No pointer lives in a record: a wild write cannot send a walk outside the table.
//! Lock ranks: none of its own; lists are guarded by their owner's lock.
//! Used by: memcg (owners), lru (lists), mm (references), reclaim.

mod list;
mod record;
mod table;

pub(crate) use list::{FrameList, Unlinked};
pub(crate) use record::{Flags, Put, Record, Settled, State};
pub use table::FrameTableFault;
pub(crate) use table::{FrameNo, FrameTable};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::record::{FLAGS_SHIFT, Flags, ZONE_SHIFT};

    #[test]
    fn no_two_flags_share_a_bit_but_the_states_and_those_of_them_with_names() {
        let mut taken = Flags::empty();
        for (name, flag) in Flags::all().iter_names() {
            let named_state = flag != Flags::STATES && Flags::STATES.contains(flag);
            assert!(named_state || !taken.intersects(flag), "{name}");
            taken |= flag;
        }
        assert!(taken.bits() < 1 << (ZONE_SHIFT - FLAGS_SHIFT));
    }
}
