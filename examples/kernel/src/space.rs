//! Address spaces: the pages of one group, in tables of their own, and who sees them.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use framekeeper::memcg::RemoveError;
use framekeeper::{AllocError, MemcgId, Pfn};
use spin::RwLock;

use crate::arch;
use crate::cpu::MAX_CPUS;
use crate::options::MAX_GROUPS;
use crate::page::{Page, level_of};
use crate::port;
use crate::table::{self, LEVELS, Place};

/// A space: the pages of one group.
#[derive(Debug)]
pub struct Space {
    pub memcg: MemcgId,
    pub root: Pfn,
}

static SPACES: [RwLock<Option<Space>>; MAX_GROUPS as usize] =
    [const { RwLock::new(None) }; MAX_GROUPS as usize];
/// The space that each CPU sees, plus one.
static CURRENT: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

/// Makes a space for a group. Nothing may have `id` now.
pub fn create(id: u32, memcg: MemcgId) -> Result<(), AllocError> {
    let root = table::new()?;
    #[cfg(target_arch = "x86_64")]
    for i in arch::KERNEL_ENTRIES {
        let entry = table::entries(arch::kernel_root())[i].load(Ordering::Relaxed);
        table::entries(root)[i].store(entry, Ordering::Relaxed);
    }
    let before = SPACES[id as usize].write().replace(Space { memcg, root });
    assert!(before.is_none(), "space {id} exists");
    Ok(())
}

/// Lets the calling CPU see a space.
pub fn switch_to(id: u32) {
    let space = SPACES[id as usize].read();
    let space = space.as_ref().expect("the scenario made it");
    // Before the switch; pairs with `viewers`: either it sees this CPU, or this CPU's walks see the entry that was changed.
    CURRENT[arch::cpu() as usize].store(id + 1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    arch::switch_space(space.root);
}

/// The space that the calling CPU sees.
pub fn current() -> Option<u32> {
    let current = CURRENT[arch::cpu() as usize].load(Ordering::Relaxed);
    current.checked_sub(1)
}

/// The CPUs that see a space, a bit each. Entries changed before are seen by all others.
pub fn viewers(id: u32) -> u64 {
    fence(Ordering::SeqCst);
    let sees = |cpu: &AtomicU32| cpu.load(Ordering::SeqCst) == id + 1;
    (0..)
        .zip(&CURRENT)
        .filter(|(_, cpu)| sees(cpu))
        .map(|(i, _)| 1 << i)
        .sum()
}

/// Lets the calling CPU see no space.
pub fn leave() {
    arch::switch_space(arch::kernel_root());
    CURRENT[arch::cpu() as usize].store(0, Ordering::SeqCst);
}

/// Calls `act` with a space, if it exists; it does as long as `act` runs.
pub fn with<T>(id: u32, act: impl FnOnce(&Space) -> T) -> Option<T> {
    SPACES.get(id as usize)?.read().as_ref().map(act)
}

/// Calls `act` with every space that exists.
pub fn each(mut act: impl FnMut(u32, &Space)) {
    for id in 0..MAX_GROUPS {
        with(id, |space| act(id, space));
    }
}

/// The memcg of a space.
pub fn memcg(id: u32) -> Option<MemcgId> {
    with(id, |space| space.memcg)
}

/// Ends a space that no CPU sees: its pages, slots, tables, and its group, before (`early`) or after its pages.
pub fn destroy(id: u32, early: bool) -> Result<(), RemoveError> {
    let mm = port::mm().expect("it runs");
    let memcg = memcg(id).expect("the scenario made it");
    if early {
        mm.remove_memcg(memcg)?;
    }
    with(id, |space| table::clear(space.root, LEVELS));
    let space = SPACES[id as usize].write().take().expect("seen above");
    table::free_all(space.root, LEVELS);
    if !early {
        mm.remove_memcg(memcg)?;
    }
    Ok(())
}

impl Space {
    /// The entry that maps a folio of an order at a page, if the tables are there and no other mapping is in the way.
    pub fn entry(&self, page: Page, order: framekeeper::Order) -> Option<Place> {
        let level = level_of(order);
        let place = table::find(self.root, page.address(), level);
        (place.level == level).then_some(place)
    }
}
