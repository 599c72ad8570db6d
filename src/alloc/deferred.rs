//! Boot memory that comes online after boot.
//!
//! Owns: [`Deferral`]: how far deferred initialisation has come, and the ranges that wait for its end.
//! Invariants: until [`finish_deferred`](PageAllocator::finish_deferred) watermarks and reserves are zero and pagesets have the limits of
//! the early part; after it all follow from what is managed. The phase becomes `Done` under the queue's lock, with nothing queued.
//! Lock ranks: `Deferred`, for the queue; then `Hotplug`, Pageset and Shard, one at a time, none with another.
//! Used by: kernels at boot; the ways of a request that finds a zone empty.

use core::fmt;

use arrayvec::ArrayVec;

use super::hotplug::ReleaseError;
use super::{PageAllocator, Request};
use crate::addr::{CpuId, FrameRange, Order};
use crate::boot::LateMemory;
use crate::node::{Claimant, Section, Stage};
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::twin::left_out;
use crate::sync::{Lock, Ranked};

/// Ranges that may wait for the end of deferred initialisation.
const MOST_QUEUED: usize = 64;

/// Turns of [`Platform::relax`] for which a request waits for a section that another CPU is bringing: some milliseconds, many times what
/// one takes, unless all its memory is filled as well.
const MOST_TURNS: u32 = 1 << 19;

/// How far deferred initialisation has come.
#[derive(Debug)]
pub(super) struct Deferral<P: Platform> {
    phase: AtomicU8,
    queue: Lock<Queue, P>,
}

const RUNNING: u8 = 0;
const FINISHING: u8 = 1;
const DONE: u8 = 2;

/// Reserved ranges that were given back before their section came online.
#[derive(Debug, Default)]
struct Queue(ArrayVec<LateMemory, MOST_QUEUED>);

impl Ranked for Queue {
    const RANK: Rank = Rank::Deferred;
}

/// Why deferred initialisation cannot be finished. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FinishError {
    /// `Config::deferred` is off: nothing was deferred.
    NotDeferred,
    /// It is finished, or another CPU is finishing it.
    Finished,
    /// No CPU has begun this section: call [`deferred_init`](PageAllocator::deferred_init).
    Waiting(FrameRange),
    /// A CPU has begun this section and is not done with it.
    Unfinished(FrameRange),
}

/// What came of waiting for a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// Some are online that were not: look again.
    Came,
    /// One is on its way still: the calling CPU brings it, or another takes very long.
    Late,
    /// None is on its way.
    None,
}

impl<P: Platform> Deferral<P> {
    pub(super) fn new(deferred: bool) -> Self {
        Self {
            phase: AtomicU8::new(if deferred { RUNNING } else { DONE }),
            queue: Lock::new(Queue::default()),
        }
    }

    /// Whether all memory is online, and limits follow from it.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        // Acquire pairs with the Release of `close`: whoever sees the end sees every section.
        self.phase.load(Ordering::Acquire) == DONE
    }

    /// Queues a range unless its part of memory is online, or all is. Gives it back if it was not queued.
    pub(super) fn queue(
        &self,
        memory: LateMemory,
        is_online: impl Fn() -> bool,
        off: &IrqOff<P>,
    ) -> Result<(), (Option<ReleaseError>, LateMemory)> {
        let early = left_out::<P>("deferred: the end is looked for under the queue's lock")
            .then(|| self.is_done() || is_online());
        let mut queue = self.queue.lock(off);
        let frames = memory.frames();
        let meets = |other: &LateMemory| !other.frames().intersect(frames).is_empty();
        if queue.0.iter().any(meets) {
            return Err((Some(ReleaseError::Released(frames.start())), memory));
        }
        // Looked at under the lock: what is queued after the last look of `finish_deferred` would wait for ever.
        if early.unwrap_or_else(|| self.is_done() || is_online()) {
            return Err((None, memory));
        }
        queue
            .0
            .try_push(memory)
            .map_err(|full| (Some(ReleaseError::QueueFull), full.element()))
    }

    /// The next range that waits; with none, the end.
    pub(super) fn close(&self, off: &IrqOff<P>) -> Option<LateMemory> {
        let mut queue = self.queue.lock(off);
        let next = queue.0.pop();
        if next.is_none() {
            self.phase.store(DONE, Ordering::Release);
        }
        next
    }
}

impl<P: Platform> PageAllocator<P> {
    /// Brings deferred sections online until none is left that no CPU has begun, those of `worker`'s node first. Returns the
    /// frames that this call brought. As many CPUs as there are may call it at once, and again; one with nothing to do returns 0.
    ///
    /// A section is claimed by one CPU in one step, without waiting. A CPU that stops half-way keeps its claim for ever, since
    /// nobody can tell it from a slow one: then [`finish_deferred`](Self::finish_deferred) names the section. A request that finds
    /// nothing else waits some milliseconds for sections that other CPUs have begun; a worker should not be moved to another CPU.
    pub fn deferred_init(&self, worker: CpuId) -> u64 {
        if self.deferral.is_done() {
            return 0;
        }
        let node = self.nodes.node_of_cpu(worker);
        let zones = || (0..).zip(self.nodes.zones());
        let own = zones().filter(|(_, zone)| zone.node == node);
        let others = zones().filter(|(_, zone)| zone.node != node);
        let mut frames = 0;
        for (zone, _) in own.chain(others) {
            while let Some(section) = self.nodes.claim_section(zone) {
                frames += self.bring_online(section);
            }
        }
        frames
    }

    /// Ends deferred initialisation, once all sections are online: recomputes watermarks, reserves and the limits of all pagesets,
    /// outside every lock, and brings online what [`release_reserved`](Self::release_reserved) queued.
    ///
    /// # Errors
    /// [`FinishError`], with nothing changed.
    pub fn finish_deferred(&self) -> Result<(), FinishError> {
        if !self.config.deferred {
            return Err(FinishError::NotDeferred);
        }
        let phase = &self.deferral.phase;
        // Relaxed: the claim keeps others out; what the workers did is seen by the Acquire of each section's stage.
        phase
            .compare_exchange(RUNNING, FINISHING, Ordering::Relaxed, Ordering::Relaxed)
            .map_err(|_| FinishError::Finished)?;
        let unfinished =
            self.nodes
                .deferred_sections()
                .iter()
                .find_map(|section| match section.stage() {
                    Stage::Online => None,
                    Stage::Waiting => Some(FinishError::Waiting(section.frames())),
                    _ => Some(FinishError::Unfinished(section.frames())),
                });
        if let Some(error) = unfinished {
            phase.store(RUNNING, Ordering::Relaxed);
            return Err(error);
        }
        while let Some(memory) = self.deferral.close(&IrqOff::new()) {
            self.give_queued(memory);
        }
        self.recompute();
        Ok(())
    }

    /// Whether memory is still to come online by [`deferred_init`](Self::deferred_init), or limits by
    /// [`finish_deferred`](Self::finish_deferred).
    #[must_use]
    pub fn is_deferring(&self) -> bool {
        !self.deferral.is_done()
    }

    /// For a request that finds `zone` too empty: brings whole sections of it online, on the caller's time, until they have at
    /// least the frames of a block of `order`. Whether it found any; then the request is worth another try, and as many
    /// more as this says so: each takes a section at least. What others have begun it does not wait for.
    #[cold]
    pub(crate) fn grow_on_demand(&self, zone: u8, order: Order) -> bool {
        if self.deferral.is_done() {
            return false;
        }
        let mut frames = 0;
        while frames < order.frames()
            && let Some(section) = self.nodes.claim_section(zone)
        {
            frames += self.bring_online(section);
        }
        frames > 0
    }

    /// How many deferred sections have come online. Noted before an attempt, for [`await_arrival`](Self::await_arrival) after it.
    pub(super) fn arrived(&self) -> u32 {
        self.nodes.arrived()
    }

    /// For a request that found too little: whether a section that another CPU was bringing has come online since `before` were;
    /// waits for one that is on its way. Nobody may hold a lock, nor mask interrupts for longer than a section takes. Each answer of
    /// [`Came`](Arrival::Came) is for another section, so as many tries come to an end.
    #[cold]
    pub(super) fn await_arrival(&self, request: Request, before: u32) -> Arrival {
        self.arrival(request, before, MOST_TURNS)
    }

    /// [`await_arrival`](Self::await_arrival) for so many turns.
    pub(super) fn arrival(&self, request: Request, before: u32, turns: u32) -> Arrival {
        if left_out::<P>("deferred: a request waits for what is on its way") {
            return Arrival::None;
        }
        let claimant = self.claimant(request);
        // The CPU that asks goes on with a section of its own when it has an answer.
        if claimant == Some(Claimant::Other) {
            for _ in 0..turns {
                if self.arrived() != before {
                    break;
                }
                P::relax();
            }
        }
        // Looked at last: what is claimed no more has arrived.
        match claimant {
            _ if self.arrived() != before => Arrival::Came,
            Some(_) => Arrival::Late,
            None => Arrival::None,
        }
    }

    /// Who is bringing a section of a zone that may serve the request.
    fn claimant(&self, request: Request) -> Option<Claimant> {
        if self.deferral.is_done() {
            return None;
        }
        let own = P::cpu();
        let zones = self.zones_for(request, own).ok()?;
        let claimants = zones.filter_map(|zone| self.nodes.arriving(zone, own));
        claimants.reduce(Claimant::or)
    }

    /// Whether the zone has memory, or will.
    pub(super) fn has_memory(&self, zone: u8) -> bool {
        let is_to_come = || !self.deferral.is_done() && self.nodes.is_deferred(zone);
        self.nodes.zone(zone).managed() > 0 || is_to_come()
    }

    /// Whether [`grow_on_demand`](Self::grow_on_demand) may find something. A hint.
    pub(super) fn can_grow(&self, zone: u8) -> bool {
        !self.deferral.is_done() && self.nodes.has_waiting(zone)
    }

    fn bring_online(&self, section: &Section) -> u64 {
        self.prepare(section.frames());
        self.nodes
            .bring_online(section, |frames| self.clear(|| frames))
    }

    /// Readies what the layers above keep for the frames of a section.
    pub(super) fn prepare(&self, section: FrameRange) {
        if let Some(prepare) = self.prepare {
            prepare.prepare(section);
        }
    }
}

impl fmt::Display for FinishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotDeferred => f.write_str("nothing was deferred: Config::deferred is off"),
            Self::Finished => f.write_str("deferred initialisation is finished already"),
            Self::Waiting(section) => {
                write!(f, "section {section} is not begun: call deferred_init")
            }
            Self::Unfinished(section) => write!(
                f,
                "section {section} is begun and not done: wait for the CPU that called deferred_init"
            ),
        }
    }
}

impl core::error::Error for FinishError {}
