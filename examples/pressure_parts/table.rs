//! Page tables in software: one entry per page, and the races that a kernel's entries know.
//!
//! An entry is absent, present, swapped out, or in transit: claimed by one thread that brings the page in or takes it away, for
//! which all others wait. While a CPU uses a page its entry is marked, as a TLB would remember it; an unmapping thread waits for
//! that too, as a TLB shootdown does. Nobody allocates or reclaims with a mark set, so that wait is short.

use std::sync::atomic::{AtomicU64, Ordering};

use framekeeper::Pfn;

/// The entry of one page of one group.
#[derive(Debug)]
pub(crate) struct Entry(AtomicU64);

/// The page is in the frame whose number the entry holds, and the entry owns a reference to it.
const PRESENT: u64 = 1;
/// The page was used since someone last looked; the hardware would set this.
const ACCESSED: u64 = 1 << 1;
/// A CPU uses the page now.
const IN_USE: u64 = 1 << 2;
/// The page is in the swap slot whose number the entry holds.
const SWAPPED: u64 = 1 << 3;
/// A thread brings the page in.
const ARRIVING: u64 = 1 << 4;
/// A thread takes the page away from the frame whose number the entry holds.
const LEAVING: u64 = 1 << 5;
/// Frame and slot numbers start above the flags.
const NUMBER_SHIFT: u32 = 8;

/// Where a page is when nobody is moving it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nowhere: it was never written.
    Nowhere,
    /// In a frame.
    Frame(Pfn),
    /// In a swap slot.
    Slot(u32),
}

/// A CPU's use of a page: while it lives, the page stays where it is.
#[must_use]
#[derive(Debug)]
pub(crate) struct Access<'t> {
    entry: &'t Entry,
    pfn: Pfn,
}

/// The right to bring a page in; gives it up when dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct Arrival<'t> {
    entry: &'t Entry,
    was: u64,
}

/// What an access finds.
#[must_use]
#[derive(Debug)]
pub(crate) enum Lookup<'t> {
    /// The page, in use by the caller now.
    Here(Access<'t>),
    /// A fault: the caller shall bring the page in.
    Fault(Arrival<'t>),
}

impl Entry {
    /// The entry of a page that was never written.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Starts a use of the page, or the fault that must come first. Waits while others use it or move it.
    pub(crate) fn look_up(&self) -> Lookup<'_> {
        loop {
            let was = self.0.load(Ordering::Relaxed);
            if was & (IN_USE | ARRIVING | LEAVING) != 0 {
                std::thread::yield_now();
            } else if was & PRESENT != 0 {
                if self.replace(was, was | IN_USE | ACCESSED) {
                    let pfn = Pfn(was >> NUMBER_SHIFT);
                    return Lookup::Here(Access { entry: self, pfn });
                }
            } else if self.replace(was, ARRIVING) {
                return Lookup::Fault(Arrival { entry: self, was });
            }
        }
    }

    /// Whether the page was used through this entry since the last call, if it is in `pfn`. Clears the mark.
    pub(crate) fn test_and_clear_accessed(&self, pfn: Pfn) -> bool {
        let maps = |was: u64| was & PRESENT != 0 && was >> NUMBER_SHIFT == pfn.0;
        let clear = |was| maps(was).then_some(was & !ACCESSED);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, clear)
            .is_ok_and(|was| was & ACCESSED != 0)
    }

    /// Starts to take the page away from `pfn`: the caller inherits the entry's reference. `false` if it is not there.
    #[must_use]
    pub(crate) fn unmap(&self, pfn: Pfn) -> bool {
        loop {
            let was = self.0.load(Ordering::Relaxed);
            if was & PRESENT == 0 || was >> NUMBER_SHIFT != pfn.0 {
                return false;
            }
            if was & IN_USE != 0 {
                std::thread::yield_now();
            } else if self.replace(was, LEAVING | (pfn.0 << NUMBER_SHIFT)) {
                return true;
            }
        }
    }

    /// Whether the page was unmapped from `pfn` and has not arrived anywhere yet.
    pub(crate) fn is_leaving(&self, pfn: Pfn) -> bool {
        self.0.load(Ordering::Relaxed) == LEAVING | (pfn.0 << NUMBER_SHIFT)
    }

    /// Ends what [`unmap`](Self::unmap) started: the page is in a swap slot.
    pub(crate) fn set_swapped(&self, slot: u32) {
        self.set(SWAPPED | (u64::from(slot) << NUMBER_SHIFT));
    }

    /// Ends what [`unmap`](Self::unmap) started: the page stays. The entry takes over a reference to `pfn`.
    pub(crate) fn set_present(&self, pfn: Pfn) {
        self.set(PRESENT | ACCESSED | (pfn.0 << NUMBER_SHIFT));
    }

    /// Forgets the page, whose frame reference or slot the caller inherits. Nothing else may use the entry meanwhile.
    pub(crate) fn clear(&self) -> Place {
        Place::of(self.0.swap(0, Ordering::Acquire))
    }

    /// Acquire pairs with the Release of `set`: who finds a page sees the bytes that were put there.
    fn replace(&self, was: u64, by: u64) -> bool {
        self.0
            .compare_exchange(was, by, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

impl Place {
    fn of(value: u64) -> Self {
        let number = value >> NUMBER_SHIFT;
        match value & (PRESENT | SWAPPED) {
            PRESENT => Self::Frame(Pfn(number)),
            SWAPPED => Self::Slot(number as u32), // slots are numbered in 32 bits
            _ => Self::Nowhere,
        }
    }
}

impl<'t> Arrival<'t> {
    /// Where the page is now.
    pub(crate) fn from(&self) -> Place {
        Place::of(self.was)
    }

    /// The page is in `pfn` from now on, and in use by the caller. The entry takes over a reference to the frame.
    pub(crate) fn map(self, pfn: Pfn) -> Access<'t> {
        let entry = self.entry;
        entry.set(PRESENT | ACCESSED | IN_USE | (pfn.0 << NUMBER_SHIFT));
        std::mem::forget(self);
        Access { entry, pfn }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.entry.set(self.was);
    }
}

impl Access<'_> {
    /// The frame that the page is in.
    pub(crate) fn pfn(&self) -> Pfn {
        self.pfn
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire of `unmap`'s replace: it copies what this CPU wrote.
        self.entry.0.fetch_and(!IN_USE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(entry: &Entry) -> Arrival<'_> {
        match entry.look_up() {
            Lookup::Fault(arrival) => arrival,
            Lookup::Here(access) => panic!("{access:?} is there already"),
        }
    }

    #[test]
    fn a_page_goes_through_all_its_places() {
        let entry = Entry::new();
        let arrival = arrive(&entry);
        assert_eq!(arrival.from(), Place::Nowhere);
        drop(arrival.map(Pfn(300)));
        assert!(matches!(entry.look_up(), Lookup::Here(access) if access.pfn() == Pfn(300)));
        assert!(!entry.unmap(Pfn(301)), "another frame's eviction");
        assert!(entry.unmap(Pfn(300)));
        assert!(!entry.unmap(Pfn(300)), "it leaves once");
        assert!(entry.is_leaving(Pfn(300)) && !entry.is_leaving(Pfn(301)));
        entry.set_swapped(9);
        assert!(!entry.is_leaving(Pfn(300)));
        let arrival = arrive(&entry);
        assert_eq!(arrival.from(), Place::Slot(9));
        drop(arrival.map(Pfn(301)));
        assert_eq!(entry.clear(), Place::Frame(Pfn(301)));
        assert_eq!(entry.clear(), Place::Nowhere);
    }

    #[test]
    fn an_arrival_that_fails_leaves_the_page_where_it_was() {
        let entry = Entry::new();
        drop(arrive(&entry).map(Pfn(2)));
        assert!(entry.unmap(Pfn(2)));
        entry.set_swapped(0);
        drop(arrive(&entry));
        assert_eq!(entry.clear(), Place::Slot(0));
    }

    #[test]
    fn an_eviction_that_fails_leaves_the_page_where_it_was() {
        let entry = Entry::new();
        drop(arrive(&entry).map(Pfn(2)));
        assert!(entry.unmap(Pfn(2)));
        entry.set_present(Pfn(2));
        assert_eq!(entry.clear(), Place::Frame(Pfn(2)));
    }

    #[test]
    fn each_use_sets_the_accessed_mark_and_each_look_clears_it() {
        let entry = Entry::new();
        assert!(!entry.test_and_clear_accessed(Pfn(0)), "nothing is mapped");
        drop(arrive(&entry).map(Pfn(5)));
        assert!(!entry.test_and_clear_accessed(Pfn(6)), "another frame");
        assert!(entry.test_and_clear_accessed(Pfn(5)));
        assert!(!entry.test_and_clear_accessed(Pfn(5)));
        drop(entry.look_up());
        assert!(entry.test_and_clear_accessed(Pfn(5)));
    }

    #[test]
    fn a_page_in_use_is_not_taken_away() {
        let entry = Entry::new();
        let access = arrive(&entry).map(Pfn(5));
        std::thread::scope(|scope| {
            let eviction = scope.spawn(|| entry.unmap(Pfn(5)));
            for _ in 0..1000 {
                assert!(!entry.is_leaving(Pfn(5)));
                std::thread::yield_now();
            }
            drop(access);
            assert!(eviction.join().expect("unmap returns"));
        });
        assert!(entry.is_leaving(Pfn(5)));
    }
}
