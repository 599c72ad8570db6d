//! Zones that come and go under a request in its rounds.

extern crate std;

use core::cell::Cell;
use core::mem::MaybeUninit;
use std::vec::Vec;

use super::relief::{Need, Oom, Progress, Relief};
use super::{AllocError, Config, PageAllocator, Pages, Request};
use crate::addr::{NodeId, Order, PhysAddr, ZoneKind};
use crate::boot::{BootMap, Bump, Storage};
use crate::host::Host;
use crate::platform::IrqOff;
use crate::zone::{Purpose, Zone};

const ONE: Request = Request::new(Order::ZERO);

/// Two nodes of 64 MiB.
fn machine() -> PageAllocator<Host> {
    let mut map: BootMap = BootMap::new();
    for node in 0..2 {
        let start = PhysAddr((4 + 4 * u64::from(node)) << 30);
        map.add(NodeId(node), start, 64 << 20).expect("fits");
    }
    let mut memory = Vec::<MaybeUninit<u8>>::new();
    memory.resize_with(1 << 20, MaybeUninit::uninit);
    let mut storage = Storage::from_static(memory.leak());
    let mut bump = Bump::new(&mut storage);
    let allocator = PageAllocator::build(&mut bump, &map, &Config::default()).expect("fits");
    allocator.populate(&map);
    allocator
}

fn take_offline(zone: &Zone<Host>) {
    let off = IrqOff::new();
    let isolation = zone.isolate(zone.span(), Purpose::Offline, &off);
    let isolation = isolation.expect("nothing else isolates");
    zone.offline(isolation, &off).expect("nothing is in use");
}

/// Frees what is held of the first node and takes the node offline, then frees a little of the second.
struct Removal<'a> {
    allocator: &'a PageAllocator<Host>,
    held: Cell<Vec<Pages<'a, Host>>>,
    kept: usize,
    reclaims: Cell<u32>,
}

impl Relief for Removal<'_> {
    fn reclaim(&self, _need: &Need, _frames: u64) -> Progress {
        self.reclaims.set(self.reclaims.get() + 1);
        let held = self.held.take();
        if held.is_empty() {
            return Progress::Freed(0);
        }
        let (mut near, mut far): (Vec<_>, Vec<_>) = held
            .into_iter()
            .partition(|pages| self.allocator.node_of(pages.pfn()) == Some(NodeId(0)));
        near.clear();
        far.truncate(self.kept);
        core::mem::forget(far);
        self.allocator.drain_all();
        take_offline(self.allocator.nodes.zone(0));
        self.allocator.recompute();
        Progress::Freed(1)
    }

    fn oom(&self, _need: &Need) -> Oom {
        unreachable!("there is memory")
    }
}

fn removal(allocator: &PageAllocator<Host>, freed: usize) -> Removal<'_> {
    let held: Vec<_> = core::iter::from_fn(|| allocator.try_alloc(ONE).ok()).collect();
    let on_node_1 = |pages: &&Pages<'_, Host>| allocator.node_of(pages.pfn()) == Some(NodeId(1));
    let far = held.iter().filter(on_node_1).count();
    Removal {
        allocator,
        held: Cell::new(held),
        kept: far - freed,
        reclaims: Cell::new(0),
    }
}

/// R29: the preferred zone is removed while a request is in its rounds: no endless loop, no OOM call.
#[test]
fn a_request_whose_first_zone_goes_in_mid_retry_is_served_by_the_next() {
    let allocator = machine();
    let relief = removal(&allocator, 1000);
    let pages = allocator.alloc_with(ONE, &relief).expect("node 1 has some");
    assert_eq!(allocator.node_of(pages.pfn()), Some(NodeId(1)));
    assert_eq!(relief.reclaims.get(), 1);
    assert_eq!(allocator.nodes.zone(0).managed(), 0);
    drop(pages);
    // A zone without memory is not asked, and says so to who insists on it; nor does its background wake.
    let error = allocator.try_alloc(ONE.only_node(NodeId(0)));
    assert_eq!(error.err(), Some(AllocError::NoSuchZone(ZoneKind::Normal)));
    assert!(allocator.is_balanced(NodeId(0), Order::ZERO, ZoneKind::Normal));
    allocator.check().expect("sound");
}

/// R29 for a request that may have no other zone: it fails, saying that the zone is gone, after one round.
#[test]
fn a_request_whose_only_zone_goes_in_mid_retry_fails_without_a_life() {
    let allocator = machine();
    let relief = removal(&allocator, 0);
    let error = allocator.alloc_with(ONE.only_node(NodeId(0)), &relief);
    assert_eq!(error.err(), Some(AllocError::NoSuchZone(ZoneKind::Normal)));
    assert!(relief.reclaims.get() <= super::RETRIES + 2);
    allocator.check().expect("sound");
}
