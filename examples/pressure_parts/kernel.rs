//! The kernel around the library: groups with page tables, and the page fault.

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use framekeeper::alloc::Need;
use framekeeper::memcg::{CreateError, RemoveError};
use framekeeper::mm::NoSuchGroup;
use framekeeper::zone::{Level, Zone};
use framekeeper::{
    AllocError, Backing, ChargeError, Folio, MemcgId, Mm, MmConfig, MmInitError, Mobility, NodeId,
    Order, Refused, Request, ZoneKind,
};

use crate::background::Background;
use crate::evict;
use crate::load::CLUSTER;
use crate::options::Options;
use crate::page::Page;
use crate::port::{self, MemoryError, Port};
use crate::swap::{Swap, SwapFileError};
use crate::table::{Access, Entry, Lookup, Place};

/// All that the kernel keeps.
pub(crate) struct Kernel {
    pub(crate) mm: Mm<Port>,
    pub(crate) groups: Box<[Group]>,
    pub(crate) swap: Swap,
    /// Frames that a group may have.
    pub(crate) limit: Option<u32>,
    /// Frames for pages.
    room: u64,
    background: Background,
}

/// A group of processes that share one limit, with the pages of all of them.
pub(crate) struct Group {
    pub(crate) memcg: MemcgId,
    table: Box<[Entry]>,
    /// Pages written to swap.
    evicted: AtomicU64,
    /// Pages read from swap.
    swapped_in: AtomicU64,
}

/// A page of a group: what a folio's word says about where it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageId {
    pub(crate) group: u32,
    pub(crate) page: u32,
}

/// Why the kernel could not be started.
#[derive(Debug)]
pub(crate) enum BootError {
    Memory(MemoryError),
    Init(MmInitError),
    Group(CreateError),
    Limit(NoSuchGroup),
    Swap(SwapFileError),
    /// The groups' limits are more than there is: reclaim of the whole machine would add evictions of its own.
    TooSmall {
        needed: u64,
        free: u64,
    },
}

/// Why a page could not be had.
#[derive(Debug)]
pub(crate) struct FaultError {
    id: PageId,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Alloc(AllocError),
    Charge(ChargeError),
    Read(io::Error),
    Write(&'static io::Error),
}

/// Charges that are tried for one fault while other CPUs' faults hold all that a group may have.
const CHARGES: u32 = 1000;
/// Frames per CPU beyond the limits: parked, waiting in batches, or not charged yet.
const SPARE_PER_CPU: u64 = 128;

static KERNEL: OnceLock<Kernel> = OnceLock::new();

impl Kernel {
    /// The kernel, once it runs.
    pub(crate) fn running() -> Option<&'static Self> {
        KERNEL.get()
    }

    /// Starts the kernel: at most once.
    pub(crate) fn boot(options: &Options) -> Result<&'static Self, BootError> {
        // Checked first, since it costs nothing.
        let slots = options.pages() as u32; // `Options` limits it to 2^26
        let swap = match &options.swap {
            Some(path) => Swap::in_file(path, slots).map_err(BootError::Swap)?,
            None => Swap::in_memory(slots),
        };
        let mut map = port::take_memory(options.memory).map_err(BootError::Memory)?;
        // CPU 0 is the main thread, the last one the background's.
        let cpus = options.threads + 2;
        let config = MmConfig::new(cpus, options.groups);
        let mm = Mm::new(port::claim(&mut map), &config)
            .map_err(|refused| BootError::Init(refused.into_error()))?;
        let free = mm.allocator().free_frames();
        let needed = options.resident() + SPARE_PER_CPU * u64::from(cpus) + free / 64;
        if free < needed && !options.no_limits {
            return Err(BootError::TooSmall { needed, free });
        }
        let group = |_| {
            let memcg = mm.create_memcg(MemcgId::ROOT).map_err(BootError::Group)?;
            if !options.no_limits {
                mm.set_memcg_max(memcg, options.limit.into())
                    .map_err(BootError::Limit)?;
            }
            Ok(Group {
                memcg,
                table: (0..options.touch).map(|_| Entry::new()).collect(),
                evicted: AtomicU64::new(0),
                swapped_in: AtomicU64::new(0),
            })
        };
        let groups = (0..options.groups).map(group).collect::<Result<_, _>>()?;
        let kernel = Self {
            limit: (!options.no_limits).then_some(options.limit),
            room: mm.allocator().free_frames(),
            mm,
            groups,
            swap,
            background: Background::default(),
        };
        Ok(KERNEL.get_or_init(|| kernel))
    }

    /// Evictions that cannot be helped while all pages are written, and how many more there may be.
    pub(crate) fn expected(&self, options: &Options) -> (u64, u64) {
        if !options.no_limits {
            let expected = options.expected();
            let groups = u64::from(options.groups);
            return (
                expected,
                if expected == 0 {
                    0
                } else {
                    u64::from(CLUSTER) * groups
                },
            );
        }
        let expected = options.pages().saturating_sub(self.room);
        // The background leaves the high watermarks free, and CPUs have frames of their own.
        let high = |zone: &Zone<Port>| zone.mark(Level::High);
        let free: u64 = self.mm.allocator().zones().map(high).sum();
        let cpus = u64::from(options.threads) + 2;
        (expected, expected / 100 + free + SPARE_PER_CPU * cpus)
    }

    /// Does `work` with a thread beside it that reclaims when it is woken.
    pub(crate) fn with_background<T>(&self, options: &Options, work: impl FnOnce() -> T) -> T {
        self.background.start();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                port::run_as(options.threads + 1);
                while self.background.sleep() {
                    let need = Need {
                        node: NodeId(0),
                        highest: ZoneKind::Movable,
                        order: Order::ZERO,
                    };
                    while self.mm.wants_background(&need) {
                        let run = self.mm.balance_node(&need);
                        self.background
                            .freed
                            .fetch_add(run.freed, Ordering::Relaxed);
                        if run.freed == 0 {
                            break;
                        }
                    }
                }
            });
            let result = work();
            self.background.end();
            result
        })
    }

    /// Wakes that thread.
    pub(crate) fn wake_background(&self) {
        self.background.wake();
    }

    /// Frames that it freed.
    pub(crate) fn freed_by_background(&self) -> u64 {
        self.background.freed.load(Ordering::Relaxed)
    }

    /// Lets a CPU use a page, wherever it is: the page stays in its frame until the access is dropped.
    pub(crate) fn access(&'static self, id: PageId) -> Result<Access<'static>, FaultError> {
        let group = &self.groups[id.group as usize];
        let arrival = match group.table[id.page as usize].look_up() {
            Lookup::Here(access) => return Ok(access),
            Lookup::Fault(arrival) => arrival,
        };
        let folio = self
            .new_folio(group.memcg)
            .map_err(|why| FaultError { id, why })?;
        let page = port::frame(folio.pfn());
        if let Place::Slot(slot) = arrival.from() {
            self.swap.read(slot, page).map_err(|error| FaultError {
                id,
                why: Why::Read(error),
            })?;
            self.swap.free(slot);
            group.swapped_in.fetch_add(1, Ordering::Relaxed);
        } else {
            page.zero();
        }
        folio.set_word(id.to_word());
        // From here on reclaim may find it, and will wait for `access` to end.
        let access = arrival.map(folio.pfn());
        folio
            .add_to_lru(Backing::Anon)
            .expect("a new folio is on no list");
        let _in_the_entry = folio.into_raw();
        Ok(access)
    }

    /// A frame, charged to a group.
    fn new_folio(&'static self, memcg: MemcgId) -> Result<Folio<'static, Port>, Why> {
        let request = Request::new(Order::ZERO).mobility(Mobility::Movable);
        let mut tries = 0;
        loop {
            let pages = self.mm.alloc(request).map_err(Why::Alloc)?;
            match pages.charge_to(&self.mm, memcg) {
                Ok(folio) => return Ok(folio),
                Err(Refused(ChargeError::OverLimit { .. }, pages)) if tries < CHARGES => {
                    drop(pages);
                    if let Some(error) = self.swap.failure() {
                        return Err(Why::Write(error));
                    }
                    tries += 1;
                    std::thread::yield_now();
                }
                Err(Refused(error, _)) => return Err(Why::Charge(error)),
            }
        }
    }

    /// Ends every group: every second one while its pages are still mapped, so that the root inherits them.
    pub(crate) fn shut_down(&self) -> Result<(), RemoveError> {
        for (group, i) in self.groups.iter().zip(0..) {
            if i % 2 == 0 {
                self.mm.remove_memcg(group.memcg)?;
            }
            for entry in &group.table {
                match entry.clear() {
                    Place::Nowhere => {}
                    Place::Frame(pfn) => evict::drop_mapping(&self.mm, pfn),
                    Place::Slot(slot) => self.swap.free(slot),
                }
            }
            if i % 2 == 1 {
                self.mm.remove_memcg(group.memcg)?;
            }
        }
        self.mm.drain_lru();
        self.mm.allocator().drain_all();
        self.swap.close();
        Ok(())
    }

    /// What is wrong while nothing runs.
    pub(crate) fn check(&self, when: &str) -> Vec<String> {
        let mut faults = Vec::new();
        if let Err(fault) = self.mm.check() {
            faults.push(format!("{when}: {fault}"));
        }
        let refused = self.mm.refused_puts();
        if refused > 0 {
            faults.push(format!("{when}: {refused} references were dropped twice"));
        }
        for group in &self.groups {
            let usage = self.mm.memcg_usage(group.memcg).unwrap_or(0); // it may have ended
            if self.limit.is_some_and(|limit| usage > limit.into()) {
                let memcg = group.memcg;
                faults.push(format!(
                    "{when}: group {memcg} has {usage} frames, its limit is {:?}",
                    self.limit
                ));
            }
        }
        faults
    }

    /// The entry that maps a page, and its group.
    pub(crate) fn entry(&self, id: PageId) -> Option<(&Group, &Entry)> {
        let group = self.groups.get(id.group as usize)?;
        Some((group, group.table.get(id.page as usize)?))
    }
}

impl Group {
    /// Notes that a page was written to swap.
    pub(crate) fn note_eviction(&self) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Pages written to swap.
    pub(crate) fn evictions(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Pages read from swap.
    pub(crate) fn swap_ins(&self) -> u64 {
        self.swapped_in.load(Ordering::Relaxed)
    }
}

impl PageId {
    /// As a folio's word.
    pub(crate) fn to_word(self) -> u64 {
        (u64::from(self.group) << 32) | u64::from(self.page)
    }

    /// From a folio's word.
    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            group: (word >> 32) as u32,
            page: word as u32,
        }
    }
}

/// The bytes of a page in use.
pub(crate) fn bytes<'a>(access: &'a Access<'_>) -> &'a Page {
    port::frame(access.pfn())
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => error.fmt(f),
            Self::Init(error) => write!(f, "the memory cannot be managed: {error}"),
            Self::Group(error) => write!(f, "the groups cannot be made: {error}"),
            Self::Limit(error) => write!(f, "a group's limit cannot be set: {error}"),
            Self::Swap(error) => error.fmt(f),
            Self::TooSmall { needed, free } => write!(
                f,
                "the groups' limits need {needed} frames, {free} are free: use fewer or smaller groups, or more --memory"
            ),
        }
    }
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PageId { group, page } = self.id;
        write!(f, "group {group} cannot have its page {page}: ")?;
        match &self.why {
            Why::Alloc(error) => error.fmt(f),
            Why::Charge(error) => error.fmt(f),
            Why::Read(error) => write!(f, "swap cannot be read: {error}"),
            Why::Write(error) => write!(f, "swap cannot be written: {error}"),
        }
    }
}

impl std::error::Error for BootError {}
impl std::error::Error for FaultError {}
