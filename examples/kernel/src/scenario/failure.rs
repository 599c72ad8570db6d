//! Why a run is not good.

use core::fmt;

use framekeeper::boot::MapError;
use framekeeper::list_lru::ListLruError;
use framekeeper::memcg::{CreateError, RemoveError};
use framekeeper::mm::{MmFault, NoSuchGroup};
use framekeeper::node::CpuError;
use framekeeper::shrinker::{TooManyShrinkers, UnregisterError};
use framekeeper::{AllocError, FinishError, MmInitError, Rank};

use crate::objects::ObjectError;
use crate::recount::HeldTwice;

/// Why the run is not good.
#[derive(Debug)]
pub enum Failure {
    /// A word of the command line that is no option, or out of range.
    Option(&'static str),
    /// The machine has more CPUs or memory regions than this kernel has room for.
    Machine {
        lost: usize,
        cpus: usize,
    },
    Map(MapError),
    Init(MmInitError),
    Cpu(CpuError),
    Finish(FinishError),
    /// Deferred initialisation brought other frames than are managed now.
    Late {
        before: u64,
        brought: u64,
        after: u64,
    },
    Group(CreateError),
    Limit(NoSuchGroup),
    Remove(RemoveError),
    Alloc(AllocError),
    Shrinkers(TooManyShrinkers),
    Unregister(UnregisterError),
    List(ListLruError),
    Object(ObjectError),
    /// The scenario needs so many slots of swap.
    Disk {
        needed: u64,
        slots: u64,
    },
    /// Pages that did not hold what was written.
    Corrupt(u64),
    /// Frames that are gone after all was given back.
    Leak {
        before: u64,
        after: u64,
    },
    /// References that were dropped twice; each leaked its frame.
    Refused(u64),
    /// Swap slots still in use at the end.
    Slots(u64),
    /// More is charged to a group than its limit.
    OverLimit {
        usage: u64,
        limit: u64,
    },
    /// Something that the scenario is there to show did not happen.
    Missing(&'static str),
    /// The library's own check found this.
    Check(&'static str, MmFault),
    Twice(HeldTwice),
    /// A figure of a report is not what a recount gives.
    Figure {
        name: &'static str,
        said: u64,
        counted: u64,
    },
    /// The counts of locks of a rank differ: by the lock, by the hooks before and after a hold.
    Locks {
        rank: Rank,
        said: u64,
        counted: [u64; 2],
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(word) => write!(f, "{word} is no option, or out of range"),
            Self::Machine { lost, cpus } => write!(
                f,
                "the machine has {lost} CPUs or regions more than fit: at most {cpus} CPUs"
            ),
            Self::Map(why) => write!(f, "the memory map: {why}"),
            Self::Init(why) => write!(f, "the memory cannot be managed: {why}"),
            Self::Cpu(why) => write!(f, "a CPU cannot come or go: {why}"),
            Self::Finish(why) => write!(f, "memory is still to come: {why}"),
            Self::Late {
                before,
                brought,
                after,
            } => write!(
                f,
                "{before} frames were managed and {brought} came online, but {after} are managed"
            ),
            Self::Group(why) => write!(f, "a group cannot be made: {why}"),
            Self::Limit(why) => write!(f, "a group cannot be asked: {why}"),
            Self::Remove(why) => write!(f, "a group cannot be removed: {why}"),
            Self::Alloc(why) => write!(f, "no frame for a table: {why}"),
            Self::Shrinkers(why) => write!(f, "no room for a shrinker beside {}", why.most),
            Self::Unregister(why) => write!(f, "a shrinker cannot go: {why:?}"),
            Self::List(why) => write!(f, "no list of objects: {why:?}"),
            Self::Object(why) => write!(f, "an object: {why}"),
            Self::Disk { needed, slots } => write!(
                f,
                "the scenario needs {needed} pages of swap, the disk has {slots}: attach a larger one"
            ),
            Self::Corrupt(pages) => write!(f, "{pages} pages do not hold what was written"),
            Self::Leak { before, after } => {
                write!(f, "{before} frames were free before, {after} are now")
            }
            Self::Refused(puts) => write!(f, "{puts} references were dropped twice"),
            Self::Slots(slots) => write!(f, "{slots} slots of swap were not given back"),
            Self::OverLimit { usage, limit } => {
                write!(
                    f,
                    "{usage} frames are charged to a group limited to {limit}"
                )
            }
            Self::Missing(what) => write!(f, "{what}: make memory or limits fit the scenario"),
            Self::Check(when, fault) => write!(f, "the library's check {when}: {fault}"),
            Self::Twice(HeldTwice(pfn)) => write!(f, "frame {pfn} is held twice"),
            Self::Figure {
                name,
                said,
                counted,
            } => write!(f, "{name} is reported as {said}, a recount gives {counted}"),
            Self::Locks {
                rank,
                said,
                counted: [before, after],
            } => write!(
                f,
                "{} locks were taken {said} times by their own count, {before} and left {after} times by the hooks",
                rank.name()
            ),
        }
    }
}
