//! What the kernel does with its memory. The first CPU leads; all of them work.

mod failure;
mod files;
mod huge;
mod memhog;
mod pattern;
mod report;
mod stress;

use core::sync::atomic::{AtomicU32, Ordering};

use framekeeper::MemcgId;
use spin::Mutex;

use crate::console::println;
use crate::objects::ObjectError;
use crate::options::Options;
use crate::{arch, cpu, disk, evict, port, space};

pub use failure::Failure;

/// The scenarios.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Groups over their limits, contents verified.
    Memhog,
    /// An object cache and mapped files under a parent's limit.
    Files,
    /// Large mappings, split under pressure.
    Huge,
    /// All together, for a time.
    Stress,
    /// Reports, compared with a recount.
    Report,
}

/// The work of a phase: called by every CPU with its number.
type Work = fn(usize);

static PHASE: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);
static WORK: Mutex<Work> = Mutex::new(|_| ());
/// The first failure of the work that CPUs share.
static FAILED: Mutex<Option<Failure>> = Mutex::new(None);

/// Runs the scenario that was asked for, and looks for what it left behind.
pub fn run(options: &Options) -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    println!(
        "{} CPUs, {} frames managed, {} swap slots",
        cpu::count(),
        mm.allocator().managed_frames(),
        disk::capacity()
    );
    let started = arch::now();
    let before = free();
    match options.scenario {
        Kind::Memhog => memhog::run(options)?,
        Kind::Files => files::run(options)?,
        Kind::Huge => huge::run(options)?,
        Kind::Stress => stress::run(options)?,
        Kind::Report => report::run(options)?,
    }
    pattern::result()?;
    account_for(before)?;
    check("at the end")?;
    let (reads, writes) = disk::counts();
    let (allocations, ticks) = cpu::tick_counts();
    println!(
        "{} pages written out, {} read back, {} shoot-downs, {} ticks with {} frames, {} ms",
        writes,
        reads,
        evict::shoot_downs(),
        ticks,
        allocations,
        (arch::now() - started) / 1_000_000
    );
    Ok(())
}

/// The phase that is under way, or was the last.
pub fn phase() -> u32 {
    PHASE.load(Ordering::Acquire)
}

/// Where every further CPU ends up: does the work of each phase after `seen`.
pub fn work(index: usize, mut seen: u32) -> ! {
    loop {
        let phase = PHASE.load(Ordering::Acquire);
        if phase == seen {
            arch::idle(); // a tick wakes it
            continue;
        }
        seen = phase;
        let work = *WORK.lock();
        work(index);
        DONE.fetch_add(1, Ordering::Release);
    }
}

/// Lets every CPU do some work, and returns when all have.
fn all_cpus(work: Work) {
    *WORK.lock() = work;
    DONE.store(0, Ordering::Relaxed);
    PHASE.fetch_add(1, Ordering::Release);
    work(0);
    while DONE.load(Ordering::Acquire) + 1 < cpu::count() as u32 {
        arch::idle();
    }
}

/// Takes the last CPU offline, takes back what is kept for it, and starts it again.
fn restart_last_cpu() -> Result<(), Failure> {
    let last = cpu::count() - 1;
    if last == 0 {
        return Ok(());
    }
    all_cpus(|index| {
        if index == cpu::count() - 1 {
            DONE.fetch_add(1, Ordering::Release);
            cpu::go_offline();
        }
    });
    while cpu::online() & 1 << last != 0 {
        arch::irq_save();
        arch::idle();
    }
    cpu::stopped(last)?;
    cpu::start(last)
}

/// A group whose limit is so many frames.
fn group(parent: MemcgId, limit: u64) -> Result<MemcgId, Failure> {
    let mm = port::mm().expect("started");
    let memcg = mm.create_memcg(parent).map_err(Failure::Group)?;
    mm.set_memcg_max(memcg, limit).map_err(Failure::Limit)?;
    Ok(memcg)
}

/// Whether the disk has the slots that a scenario may use.
fn needs_slots(needed: u64) -> Result<(), Failure> {
    let slots = disk::capacity();
    if slots < needed {
        return Err(Failure::Disk { needed, slots });
    }
    Ok(())
}

/// Keeps the first failure of what several CPUs do.
fn note<E: Into<Failure>>(result: Result<(), E>) {
    if let Err(why) = result {
        FAILED.lock().get_or_insert(why.into());
    }
}

impl From<ObjectError> for Failure {
    fn from(why: ObjectError) -> Self {
        Self::Object(why)
    }
}

/// The first failure that was kept.
fn failed() -> Result<(), Failure> {
    FAILED.lock().take().map_or(Ok(()), Err)
}

/// Whether a figure is what a recount gives.
fn expect(name: &'static str, said: u64, counted: u64) -> Result<(), Failure> {
    if said == counted {
        return Ok(());
    }
    Err(Failure::Figure {
        name,
        said,
        counted,
    })
}

/// Calls `look` while nothing else runs: no work, no timer that holds frames.
fn at_rest<T>(look: impl FnOnce() -> T) -> T {
    cpu::tick_without_frames(true);
    // A tick that was under way has ended.
    all_cpus(|index| {
        let state = arch::irq_save();
        space::leave();
        cpu::release_tick_frames(index);
        arch::irq_restore(state);
    });
    let seen = look();
    cpu::tick_without_frames(false);
    seen
}

/// Lets the library's own check look at everything.
fn check(when: &'static str) -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    at_rest(|| mm.check()).map_err(|fault| Failure::Check(when, fault))
}

/// Gives back what CPUs keep, and compares with what was free before.
fn account_for(before: u64) -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    mm.drain_lru();
    mm.allocator().drain_all();
    let after = free();
    if disk::used() > 0 {
        return Err(Failure::Slots(disk::used()));
    }
    if mm.refused_puts() > 0 {
        return Err(Failure::Refused(mm.refused_puts()));
    }
    if after != before {
        return Err(Failure::Leak { before, after });
    }
    Ok(())
}

/// Free frames at rest.
fn free() -> u64 {
    let mm = port::mm().expect("started");
    at_rest(|| mm.allocator().free_frames())
}

impl Kind {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "memhog" => Some(Self::Memhog),
            "files" => Some(Self::Files),
            "huge" => Some(Self::Huge),
            "stress" => Some(Self::Stress),
            "report" => Some(Self::Report),
            _ => None,
        }
    }
}
