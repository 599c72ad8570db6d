//! Address spaces: tables of four levels whose frames come from the library, and what an entry of the last level says.
//!
//! An entry is empty, present, swapped out (bit 1, a slot), or moving (bit 2): claimed by one CPU that brings the page in or takes
//! it away, for which others wait. A present entry owns a reference to its folio. The folio's word names space, page and slot:
//! the reverse map.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use framekeeper::memcg::RemoveError;
use framekeeper::{AllocError, Folio, MemcgId, Order, Pfn, Request};
use spin::RwLock;

use crate::arch::{self, pte};
use crate::cpu::MAX_CPUS;
use crate::disk::{self, Slot};
use crate::options::MAX_GROUPS;
use crate::port::{self, Port};

/// Where the pages of a space start: anonymous ones here, those of its file at the second address.
const ANON_AT: u64 = 0x40_0000_0000;
const FILE_AT: u64 = 0x50_0000_0000;
const SWAPPED: u64 = 1 << 1;
const MOVING: u64 = 1 << 2;
const NUMBER_SHIFT: u32 = 12;
const LEVELS: u32 = 4;

/// A page of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    pub space: u32,
    /// Number within its kind.
    pub number: u32,
    pub is_file: bool,
}

/// What a folio's word holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    pub page: Page,
    /// Where a copy of the contents is, or was before they were changed.
    pub slot: Option<Slot>,
}

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Empty,
    Present,
    Swapped(Slot),
    Moving,
}

/// A space: the pages of one group.
#[derive(Debug)]
pub struct Space {
    pub memcg: MemcgId,
    root: Pfn,
}

static SPACES: [RwLock<Option<Space>>; MAX_GROUPS as usize] =
    [const { RwLock::new(None) }; MAX_GROUPS as usize];
/// The space that each CPU sees, plus one.
static CURRENT: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

impl Page {
    /// The page at an address of the space that this CPU sees.
    pub fn at(address: u64) -> Option<Self> {
        let space = CURRENT[arch::cpu() as usize]
            .load(Ordering::Relaxed)
            .checked_sub(1)?;
        let (start, is_file) = if address >= FILE_AT {
            (FILE_AT, true)
        } else {
            (ANON_AT, false)
        };
        let number = address.checked_sub(start)? >> 12;
        (number < 1 << 23).then_some(Self {
            space,
            number: number as u32,
            is_file,
        })
    }

    pub fn address(self) -> u64 {
        let start = if self.is_file { FILE_AT } else { ANON_AT };
        start + (u64::from(self.number) << 12)
    }
}

impl Word {
    pub fn bits(self) -> u64 {
        let slot = self.slot.map_or(0, |slot| u64::from(slot.0) + 1);
        let page = u64::from(self.page.number) | u64::from(self.page.is_file) << 23;
        u64::from(self.page.space) << 48 | slot << 24 | page
    }

    pub fn of(bits: u64) -> Self {
        let page = Page {
            space: (bits >> 48) as u32,
            number: (bits & 0x7f_ffff) as u32,
            is_file: bits & 1 << 23 != 0,
        };
        let slot = (bits >> 24 & 0xff_ffff) as u32;
        Self {
            page,
            slot: slot.checked_sub(1).map(Slot),
        }
    }
}

impl State {
    pub fn of(entry: u64) -> Self {
        if pte::is_present(entry) {
            Self::Present
        } else if entry & MOVING != 0 {
            Self::Moving
        } else if entry & SWAPPED != 0 {
            Self::Swapped(Slot((entry >> NUMBER_SHIFT) as u32))
        } else {
            Self::Empty
        }
    }
}

/// The entry of a page that is in `slot`, or of one that has never been written.
pub fn absent(slot: Option<Slot>) -> u64 {
    slot.map_or(0, |slot| u64::from(slot.0) << NUMBER_SHIFT | SWAPPED)
}

/// The entry of a page that arrives, or that leaves the frame.
pub fn moving(from: Option<Pfn>) -> u64 {
    from.map_or(0, |pfn| pfn.0 << NUMBER_SHIFT) | MOVING
}

/// Makes a space for a group. Nothing may have `id` now.
pub fn create(id: u32, memcg: MemcgId) -> Result<(), AllocError> {
    let root = new_table()?;
    #[cfg(target_arch = "x86_64")]
    for i in arch::KERNEL_ENTRIES {
        let entry = table(arch::kernel_root())[i].load(Ordering::Relaxed);
        table(root)[i].store(entry, Ordering::Relaxed);
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
    with(id, |space| clear(space.root, LEVELS));
    let space = SPACES[id as usize].write().take().expect("seen above");
    free_tables(space.root, LEVELS);
    if !early {
        mm.remove_memcg(memcg)?;
    }
    Ok(())
}

/// Drops the reference that an entry held.
pub fn drop_mapping(pfn: Pfn) {
    drop(take_mapping(pfn));
}

/// The reference that an entry held, which the caller took out of it.
fn take_mapping(pfn: Pfn) -> Folio<'static, Port> {
    let mm = port::mm().expect("it runs");
    // SAFETY: the entry got the number from `into_raw`, and owned its reference until the caller took it out.
    unsafe { mm.folio_from_raw(pfn) }.expect("a mapped frame has a record")
}

impl Space {
    /// The entry of a page, in tables that are there.
    pub fn entry(&self, page: Page) -> Option<&'static AtomicU64> {
        self.walk(page.address(), |_| None)
    }

    /// The entry of a page; makes the tables above it. May reclaim.
    pub fn make_entry(&self, page: Page) -> Result<&'static AtomicU64, AllocError> {
        let mut error = None;
        let entry = self.walk(page.address(), |slot| match new_table() {
            Err(why) => {
                error = Some(why);
                None
            }
            // Release: who finds the table sees its zeros. The hardware of another CPU orders by dependency.
            Ok(pfn) => {
                match slot.compare_exchange(0, pte::table(pfn), Ordering::AcqRel, Ordering::Acquire)
                {
                    Ok(_) => Some(pfn),
                    Err(theirs) => {
                        free_table(pfn);
                        Some(pte::pfn(theirs))
                    }
                }
            }
        });
        entry.ok_or_else(|| error.expect("a walk ends at a table that could not be made"))
    }

    fn walk(
        &self,
        address: u64,
        mut make: impl FnMut(&'static AtomicU64) -> Option<Pfn>,
    ) -> Option<&'static AtomicU64> {
        let mut level = table(self.root);
        for shift in [39, 30, 21] {
            let slot = &level[(address >> shift) as usize % 512];
            let entry = slot.load(Ordering::Acquire);
            level = table(match pte::is_present(entry) {
                true => pte::pfn(entry),
                false => make(slot)?,
            });
        }
        Some(&level[(address >> 12) as usize % 512])
    }
}

fn table(pfn: Pfn) -> &'static [AtomicU64; 512] {
    // SAFETY: frames of tables are used as such alone while a space has them, and only through atomics.
    unsafe { &*disk::frame(pfn).cast() }
}

fn new_table() -> Result<Pfn, AllocError> {
    let mm = port::mm().expect("it runs");
    let pages = mm.alloc(Request::new(Order::ZERO).zeroed())?;
    Ok(pages.into_raw())
}

fn free_table(pfn: Pfn) {
    let mm = port::mm().expect("it runs");
    drop(
        mm.allocator()
            .try_from_raw(pfn, Order::ZERO)
            .expect("made by new_table"),
    );
}

/// The entries of a table that are the space's own.
fn own_entries(root: Pfn, level: u32) -> &'static [AtomicU64] {
    let entries = table(root);
    if level == LEVELS {
        &entries[..256]
    } else {
        entries
    }
}

/// Drops all pages below a table.
fn clear(root: Pfn, level: u32) {
    for slot in own_entries(root, level) {
        if level > 1 {
            let entry = slot.load(Ordering::Acquire);
            if pte::is_present(entry) {
                clear(pte::pfn(entry), level - 1);
            }
            continue;
        }
        loop {
            let entry = slot.load(Ordering::Acquire);
            if State::of(entry) == State::Moving {
                core::hint::spin_loop(); // reclaim takes it away
            } else if slot
                .compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                match State::of(entry) {
                    State::Present => forget(pte::pfn(entry)),
                    State::Swapped(slot) => disk::free(slot),
                    State::Empty | State::Moving => {}
                }
                break;
            }
        }
    }
}

/// Drops the mapping of a page and the copy of it.
fn forget(pfn: Pfn) {
    let folio = take_mapping(pfn);
    if let Some(slot) = Word::of(folio.word()).slot {
        folio.set_word(
            Word {
                page: Word::of(folio.word()).page,
                slot: None,
            }
            .bits(),
        );
        disk::free(slot);
    }
}

fn free_tables(root: Pfn, level: u32) {
    if level > 1 {
        for slot in own_entries(root, level) {
            let entry = slot.load(Ordering::Acquire);
            if pte::is_present(entry) {
                free_tables(pte::pfn(entry), level - 1);
            }
        }
    }
    free_table(root);
}
