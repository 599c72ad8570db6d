//! Threads at memory that comes online meanwhile: workers, requests that want more, late frees, the end.
//!
//! allocator.md 4, case R24; misuse 18, 30.

#[path = "common/race.rs"]
mod race;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use framekeeper::alloc::{Need, OOM_CALLS, Progress, RETRIES, Relief};
use framekeeper::boot::{BootMap, LateMemory, Memory, SECTION_BYTES, Storage};
use framekeeper::{
    AllocError, Config, CpuId, FinishError, FrameRange, NodeId, Oom, Order, PageAllocator, Pages,
    Pfn, PhysAddr, Platform, ReleaseError, Released, Request,
};
use race::{rounds, run, tests, together};

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    /// Whether the thread stops at the gate when it next masks interrupts.
    static STOPS: Cell<bool> = const { Cell::new(false) };
}

/// A thread has come to the gate.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// It may go on.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Whoever waits opens the gate.
static WAITING_OPENS: AtomicBool = AtomicBool::new(false);
/// Turns of waiting loops.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// Pages of 64 KiB, whose frames are numbers only, and a gate at which a thread can be stopped without a lock.
#[derive(Debug)]
enum Gated {}

// SAFETY: no memory is ever given to an instance, so the direct map has nothing to cover. Ids are shared.
#[allow(unsafe_code)]
unsafe impl Platform for Gated {
    const PAGE_SHIFT: u32 = 16;
    type RawLock = framekeeper::sync::SpinLock;
    fn cpu() -> CpuId {
        CpuId(CPU.get())
    }
    fn irq_save() -> usize {
        if STOPS.replace(false) {
            STOPPED.store(true, SeqCst);
            while !OPEN.load(SeqCst) {
                std::thread::yield_now();
            }
        }
        0
    }
    fn irq_restore(_: usize) {}
    fn direct_map(_: PhysAddr) -> *mut u8 {
        core::ptr::null_mut()
    }
    fn relax() {
        // Mostly spinning, so that a wait that is in vain is short.
        if TURNS.fetch_add(1, Relaxed).is_multiple_of(16) {
            std::thread::yield_now();
        }
        if WAITING_OPENS.load(SeqCst) {
            OPEN.store(true, SeqCst);
        }
    }
}

/// Frames of a section.
const SECTION: u64 = SECTION_BYTES >> 16;
/// 4 GiB: where the highest zone begins.
const HIGH: u64 = (1 << 32) >> 16;
const ONE: Request = Request::new(Order::ZERO);

fn machine(sections: u64, reserved: impl Iterator<Item = FrameRange>) -> PageAllocator<Gated> {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(HIGH << 16), sections * SECTION_BYTES)
        .unwrap();
    for frames in reserved {
        map.reserve(PhysAddr(frames.start().0 << 16), frames.frames() << 16)
            .unwrap();
    }
    let mut bytes = Vec::<MaybeUninit<u8>>::new();
    bytes.resize_with(1 << 17, MaybeUninit::uninit);
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Gated, 128>::claim(&mut map) };
    let config = Config {
        cpus: 4,
        deferred: true,
        pageset_slots: 256,
        ..Config::default()
    };
    PageAllocator::new(
        memory.with_storage(Storage::from_static(bytes.leak())),
        &config,
    )
    .unwrap()
}

fn late(frames: FrameRange) -> LateMemory {
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    unsafe {
        LateMemory::claim(frames)
    }
}

/// Two sections, of which the early one is all taken. A worker on CPU 1 stops with the other in its hands, and `body` runs on CPU 0;
/// the gate opens when `body` waits, if that is to open it, or when it has returned.
fn while_a_section_comes(waiting_opens: bool, body: impl Fn(&PageAllocator<Gated>) + Sync) {
    let machine = machine(2, core::iter::empty());
    for _ in 0..SECTION {
        machine.try_alloc(ONE).unwrap().into_raw();
    }
    STOPPED.store(false, SeqCst);
    OPEN.store(false, SeqCst);
    WAITING_OPENS.store(waiting_opens, SeqCst);
    TURNS.store(0, SeqCst);
    together(2, |thread| {
        CPU.set(1 - thread);
        if thread == 0 {
            STOPS.set(true);
            assert_eq!(machine.deferred_init(CpuId(1)), SECTION);
        } else {
            while !STOPPED.load(SeqCst) {
                std::thread::yield_now();
            }
            // A panic must not leave the worker at the gate.
            struct Opener;
            impl Drop for Opener {
                fn drop(&mut self) {
                    OPEN.store(true, SeqCst);
                }
            }
            let _opener = Opener;
            body(&machine);
        }
    });
    WAITING_OPENS.store(false, SeqCst);
    machine.finish_deferred().unwrap();
    machine.check().unwrap();
    assert_eq!(machine.managed_frames(), 2 * SECTION);
}

/// All memory is out but for the section that another CPU is bringing.
fn a_request_that_finds_nothing_waits_for_the_section_that_another_cpu_brings() {
    while_a_section_comes(true, |machine| {
        let order = Order::new(3).unwrap();
        let pages = machine.try_alloc(Request::new(order)).unwrap();
        assert!(pages.pfn().0 >= HIGH + SECTION);
        // Nobody waits when there is enough.
        let turns = TURNS.load(SeqCst);
        drop(machine.try_alloc(ONE).unwrap());
        assert_eq!(TURNS.load(SeqCst), turns);
    });
}

/// What a request asked of those who could help.
#[derive(Default)]
struct Asked {
    reclaims: Cell<u32>,
    lives: Cell<u32>,
    waits: Cell<u32>,
}

impl Relief for Asked {
    fn reclaim(&self, _: &Need, _: u64) -> Progress {
        self.reclaims.set(self.reclaims.get() + 1);
        Progress::Freed(0)
    }
    fn reclaimable(&self, _: &Need) -> u64 {
        0
    }
    fn oom(&self, _: &Need) -> Oom {
        self.lives.set(self.lives.get() + 1);
        Oom::Retry
    }
    fn wait(&self) {
        self.waits.set(self.waits.get() + 1);
    }
}

/// misuse 59: no false OOM, and nothing is reclaimed for memory that is about to come.
fn a_section_that_another_cpu_brings_spares_reclaim_and_lives() {
    while_a_section_comes(true, |machine| {
        let asked = Asked::default();
        drop(machine.alloc_with(ONE, &asked).unwrap());
        assert_eq!((asked.reclaims.get(), asked.lives.get()), (0, 0));
    });
}

/// misuse 30: a worker that never returns. A request for whom nothing else is left fails in bounded steps.
fn a_worker_that_never_returns_holds_nobody_up_for_ever() {
    while_a_section_comes(false, |machine| {
        let error = machine.try_alloc(ONE).err();
        assert!(
            matches!(error, Some(AllocError::OutOfMemory(_))),
            "{error:?}"
        );
        let once = TURNS.load(SeqCst);
        assert!((1..=1 << 19).contains(&once), "{once} turns");

        let asked = Asked::default();
        let error = machine.alloc_with(ONE, &asked).err();
        assert!(
            matches!(error, Some(AllocError::OutOfMemory(_))),
            "{error:?}"
        );
        assert_eq!(asked.waits.get(), RETRIES);
        assert_eq!(asked.lives.get(), OOM_CALLS);
        let turns = TURNS.load(SeqCst) - once;
        assert!(turns <= u64::from(RETRIES + 1) << 19, "{turns} turns");

        let error = machine.finish_deferred().unwrap_err();
        assert!(matches!(error, FinishError::Unfinished(_)), "{error}");
        machine.check().unwrap();
    });
}

/// misuse 28: an interrupt on the CPU that brings a section. The worker goes on when the interrupt is done, so it does not wait.
fn a_request_on_the_cpu_of_the_worker_does_not_wait_for_it() {
    while_a_section_comes(false, |machine| {
        CPU.set(1);
        let error = machine.try_alloc(ONE).err();
        assert!(
            matches!(error, Some(AllocError::OutOfMemory(_))),
            "{error:?}"
        );
        assert_eq!(TURNS.load(SeqCst), 0);
        // One that may sleep lets the worker go on.
        let asked = Asked::default();
        assert!(machine.alloc_with(ONE, &asked).is_err());
        assert_eq!((asked.waits.get(), TURNS.load(SeqCst)), (RETRIES, 0));
    });
}

/// Numbers from a 64-bit linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

const SECTIONS: u64 = 6;
const ALL: u64 = SECTIONS * SECTION;

/// Ranges that were reserved at boot: some within a section, some over two.
fn reserved() -> impl Iterator<Item = FrameRange> {
    (0..24).map(|i| {
        let start = HIGH + 300 + i * (ALL - 600) / 24;
        FrameRange::new(Pfn(start), Pfn(start + 1 + 37 * (i % 5)))
    })
}

/// Allocates up to its share of memory, frees most of it, and so on until `end`. Each request for a frame must be served, if need be
/// from a section that comes online for it.
fn churn(machine: &PageAllocator<Gated>, owner: &[AtomicU32], end: &AtomicU32) {
    let cpu = CPU.get();
    let mut random = Random(u64::from(cpu));
    let mark = |pages: &Pages<'_, Gated>, from: u32, to: u32| {
        for pfn in pages.frames().iter() {
            let before = owner[(pfn.0 - HIGH) as usize].swap(to, Relaxed);
            assert_eq!(before, from, "{pfn} is out twice, or was never given");
        }
    };
    // Reserved frames may not come before the end; pagesets keep some.
    let share = (ALL - reserved().map(FrameRange::frames).sum::<u64>() - 1024) / 2;
    let mut held: Vec<Pages<'_, Gated>> = Vec::new();
    let (mut frames, mut fills, mut turns) = (0, true, 3000);
    while turns > 0 {
        turns -= end.load(SeqCst);
        let order = Order::new(random.below(5) as u8).unwrap();
        if fills {
            match machine.try_alloc(Request::new(order).ignore_watermarks()) {
                Ok(pages) => {
                    mark(&pages, 0, cpu + 1);
                    frames += order.frames();
                    held.push(pages);
                }
                // There is enough, but perhaps no block of that size.
                Err(error) => assert!(order > Order::ZERO, "{error}"),
            }
            fills = frames + Order::new(4).unwrap().frames() <= share;
        } else {
            let pages = held.swap_remove(random.below(held.len() as u64) as usize);
            mark(&pages, cpu + 1, 0);
            frames -= pages.frames().frames();
            fills = frames < share / 4;
        }
    }
    held.iter().for_each(|pages| mark(pages, cpu + 1, 0));
}

/// R24, misuse 18, 30: two threads allocate, free and so bring sections; one works and ends; one gives reserved ranges back.
fn workers_requests_and_late_frees_lose_no_frame_and_give_none_twice() {
    let (mut grown, mut queued, mut at_once) = (0, 0, 0);
    for round in 0..rounds(40) {
        let machine = machine(SECTIONS, reserved());
        let kept: u64 = reserved().map(FrameRange::frames).sum();
        let early = machine.managed_frames();
        let owner: Vec<AtomicU32> = (0..ALL).map(|_| AtomicU32::new(0)).collect();
        let (ended, brought) = (AtomicU32::new(0), AtomicU64::new(0));
        let (now, later) = (AtomicU64::new(0), AtomicU64::new(0));
        together(4, |cpu| {
            CPU.set(cpu);
            let mut random = Random(round);
            match cpu {
                0 | 1 => churn(&machine, &owner, &ended),
                2 => {
                    // Not at once: requests shall want some first.
                    while machine.managed_frames() < early + SECTION * (round % 4) {
                        Gated::relax();
                    }
                    brought.store(machine.deferred_init(CpuId(2)), Relaxed);
                    loop {
                        match machine.finish_deferred() {
                            Ok(()) => break,
                            Err(FinishError::Unfinished(_)) => Gated::relax(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                    ended.store(1, SeqCst);
                }
                _ => {
                    for range in reserved() {
                        for _ in 0..random.below(2000) {
                            core::hint::spin_loop();
                        }
                        let mut memory = late(range);
                        loop {
                            match machine.release_reserved(memory) {
                                Ok(Released::Now) => now.fetch_add(1, Relaxed),
                                Ok(Released::AtFinish) => later.fetch_add(1, Relaxed),
                                Err(refused) => {
                                    assert_eq!(refused.0, ReleaseError::Busy);
                                    memory = refused.1;
                                    Gated::relax();
                                    continue;
                                }
                            };
                            break;
                        }
                    }
                }
            }
        });
        grown += ALL - kept - early - brought.into_inner();
        queued += later.into_inner();
        at_once += now.into_inner();
        assert_eq!(machine.managed_frames(), ALL);
        assert_eq!(machine.refused_frames(), 0);
        machine.check().unwrap();
        machine.drain_all();
        assert_eq!(machine.free_frames(), ALL);
        machine.check().unwrap();
    }
    assert!(
        grown > 0 && queued > 0 && at_once > 0,
        "{grown} {queued} {at_once}"
    );
}

fn main() -> ExitCode {
    run(&tests![
        a_request_that_finds_nothing_waits_for_the_section_that_another_cpu_brings,
        a_section_that_another_cpu_brings_spares_reclaim_and_lives,
        a_worker_that_never_returns_holds_nobody_up_for_ever,
        a_request_on_the_cpu_of_the_worker_does_not_wait_for_it,
        workers_requests_and_late_frees_lose_no_frame_and_give_none_twice,
    ])
}
