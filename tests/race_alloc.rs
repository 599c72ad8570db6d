//! Threads at the page allocator: exact counts when they are done.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;
#[path = "common/race.rs"]
mod race;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use framekeeper::sync::{Lock, Ranked};
use framekeeper::{
    Balloon, Cma, Config, ContigError, CpuId, FrameRange, IrqOff, Mobility, Moved, OnlineError,
    Order, PageAllocator, Pages, Pfn, Platform, Rank, Reported, Request,
};
use host::{Host, run_as};
use machine::{Random, allocator, one_region};
use race::{rounds, run, tests, together};

const FRAMES: u64 = 1 << 19;

/// Blocks on their way between CPUs.
struct Shelf<'a>(Vec<Pages<'a, Host>>);

impl Ranked for Shelf<'_> {
    const RANK: Rank = Rank::Hotplug;
}

fn four_cpus() -> PageAllocator<Host> {
    let config = Config {
        cpus: 4,
        ..Config::default()
    };
    allocator(one_region(1 << 20, FRAMES), &config).unwrap()
}

fn at_rest(allocator: &PageAllocator<Host>) {
    allocator.check().unwrap();
    assert_eq!(allocator.free_frames(), FRAMES);
    allocator.drain_all();
    assert_eq!(allocator.parked_frames(), 0);
    assert_eq!(allocator.free_frames(), FRAMES);
    allocator.check().unwrap();
}

fn threads_on_their_own_cpus_lose_no_frame_and_share_none() {
    let allocator = four_cpus();
    let owner: Vec<AtomicU32> = (0..FRAMES).map(|_| AtomicU32::new(0)).collect();
    together(4, |cpu| {
        run_as(cpu);
        let mut random = Random(u64::from(cpu) + 1);
        let mut out: Vec<Pages<'_, Host>> = Vec::new();
        for _ in 0..rounds(20_000) {
            if random.below(2) == 0 {
                let order = Order::new(random.below(11) as u8).unwrap();
                if let Ok(pages) = allocator.try_alloc(Request::new(order)) {
                    for pfn in pages.frames().iter() {
                        let before = owner[(pfn.0 - (1 << 20)) as usize].swap(cpu + 1, Relaxed);
                        assert_eq!(before, 0, "{pfn} is out twice");
                    }
                    out.push(pages);
                }
            } else if !out.is_empty() {
                let at = random.below(out.len() as u64) as usize;
                for pfn in out[at].frames().iter() {
                    owner[(pfn.0 - (1 << 20)) as usize].store(0, Relaxed);
                }
                drop(out.swap_remove(at));
            }
        }
        // Those that are left stay marked, so nobody else may get them before they are freed.
        for pages in out {
            for pfn in pages.frames().iter() {
                owner[(pfn.0 - (1 << 20)) as usize].store(0, Relaxed);
            }
        }
    });
    at_rest(&allocator);
}

/// misuse 55: two threads claim one CPU id. misuse 27: an id out of range, or one that changes.
fn threads_that_claim_one_cpu_are_served() {
    let allocator = four_cpus();
    together(3, |thread| {
        let mut random = Random(u64::from(thread));
        let mut out = Vec::new();
        for _ in 0..rounds(20_000) {
            run_as(random.below(2) as u32 * 1000);
            if random.below(2) == 0 {
                out.extend(allocator.try_alloc(Request::new(Order::ZERO)));
            } else {
                run_as(random.below(3) as u32);
                out.pop();
            }
        }
    });
    at_rest(&allocator);
}

/// misuse 54
fn of_threads_that_free_one_raw_frame_exactly_one_succeeds() {
    let allocator = four_cpus();
    let freed = AtomicU64::new(0);
    let raw: Vec<_> = (0..2000u32)
        .map(|n| {
            let order = Order::new((n % 8) as u8).unwrap();
            let pages = allocator.try_alloc(Request::new(order)).unwrap();
            (pages.into_raw(), order)
        })
        .collect();
    let frames: u64 = raw.iter().map(|(_, order)| order.frames()).sum();
    assert_eq!(allocator.free_frames(), FRAMES - frames);
    together(3, |cpu| {
        run_as(cpu);
        for &(pfn, order) in &raw {
            if let Ok(pages) = allocator.try_from_raw(pfn, order) {
                freed.fetch_add(pages.order().frames(), Relaxed);
            }
        }
    });
    assert_eq!(freed.into_inner(), frames);
    at_rest(&allocator);
}

/// misuse 29: drain of an offline CPU, two drain-alls at once
fn drains_of_busy_and_idle_cpus_lose_nothing() {
    let allocator = four_cpus();
    let shelf: Lock<Shelf<'_>, Host> = Lock::new(Shelf(Vec::new()));
    together(4, |thread| {
        if thread >= 2 {
            for cpu in 0..rounds(500) as u32 {
                allocator.drain_all();
                allocator.drain_cpu(CpuId(cpu % 6));
            }
            return;
        }
        run_as(thread);
        for n in 0..rounds(10_000) {
            // Blocks are freed on another CPU than they came from.
            let pages = allocator.try_alloc(Request::new(Order::ZERO)).unwrap();
            let first = IrqOff::with(|off| {
                let mut shelf = shelf.lock(off);
                shelf.0.push(pages);
                (n % 2 == 0).then(|| shelf.0.swap_remove(0))
            });
            drop(first);
        }
    });
    drop(shelf);
    at_rest(&allocator);
}

/// Both threads of a pair leave it together.
fn meet(gate: &AtomicU32) {
    let round = gate.fetch_add(1, Relaxed) / 2;
    while gate.load(Relaxed) / 2 == round {
        Host::relax();
    }
}

fn frames(start: u64, end: u64) -> FrameRange {
    FrameRange::new(Pfn((1 << 20) + start), Pfn((1 << 20) + end))
}

/// misuse 24
fn of_two_users_of_overlapping_ranges_exactly_one_wins() {
    let allocator = four_cpus();
    let (gate, wins) = (AtomicU32::new(0), AtomicU32::new(0));
    together(2, |cpu| {
        run_as(cpu);
        let mut random = Random(u64::from(cpu) + 5);
        for _ in 0..rounds(3000) {
            // They overlap by 500 frames at least, in one shard.
            let start = 4096 + 1000 * u64::from(cpu) + random.below(500);
            meet(&gate);
            let got = allocator.alloc_contig(frames(start, start + 2000), |_| Moved::Unmovable);
            wins.fetch_add(u32::from(got.is_ok()), Relaxed);
            if let Err(error) = &got {
                assert!(matches!(
                    error,
                    ContigError::Busy(_) | ContigError::Unmovable(_)
                ));
            }
            meet(&gate);
            assert_eq!(wins.load(Relaxed), 1);
            meet(&gate);
            wins.store(0, Relaxed);
            drop(got);
        }
    });
    at_rest(&allocator);
}

fn of_two_users_of_ranges_over_two_shards_at_most_one_wins() {
    let allocator = four_cpus();
    let middle = 1 << 18;
    let (gate, wins) = (AtomicU32::new(0), AtomicU32::new(0));
    together(2, |cpu| {
        run_as(cpu);
        let area = match cpu {
            0 => frames(middle - 9000, middle + 500),
            _ => frames(middle - 700, middle + 6000),
        };
        for _ in 0..rounds(1000) {
            meet(&gate);
            let got = allocator.alloc_contig(area, |_| Moved::Unmovable);
            wins.fetch_add(u32::from(got.is_ok()), Relaxed);
            meet(&gate);
            assert!(wins.load(Relaxed) <= 1);
            meet(&gate);
            wins.store(0, Relaxed);
            drop(got);
        }
    });
    at_rest(&allocator);
}

/// Marks frames as owned by the caller, once each.
fn own(owner: &[AtomicU32], taken: FrameRange) {
    for pfn in taken.iter() {
        let before = owner[(pfn.0 - (1 << 20)) as usize].swap(1, Relaxed);
        assert_eq!(before, 0, "{pfn} is out twice");
    }
}

fn disown(owner: &[AtomicU32], given: FrameRange) {
    for pfn in given.iter() {
        owner[(pfn.0 - (1 << 20)) as usize].store(0, Relaxed);
    }
}

fn ranges_come_and_go_under_threads_that_allocate() {
    let allocator = four_cpus();
    let owner: Vec<AtomicU32> = (0..FRAMES).map(|_| AtomicU32::new(0)).collect();
    let cma: Cma<'_, Host> = Cma::new(&allocator, frames(8192, 16384), |_| Moved::Tried).unwrap();
    let served = AtomicU64::new(0);
    together(4, |thread| {
        run_as(thread);
        let mut random = Random(u64::from(thread) + 11);
        let mut out: Vec<Pages<'_, Host>> = Vec::new();
        for _ in 0..rounds(4000) {
            let start = random.below(FRAMES - 2000);
            let area = frames(start, start + 1 + random.below(2000));
            match (thread, random.below(6)) {
                (0 | 1, 0..=2) => {
                    let order = Order::new(random.below(10) as u8).unwrap();
                    let request = Request::new(order).mobility(Mobility::Movable);
                    if let Ok(pages) = allocator.try_alloc(request) {
                        own(&owner, pages.frames());
                        out.push(pages);
                    }
                }
                (0 | 1, _) if !out.is_empty() => {
                    let at = random.below(out.len() as u64) as usize;
                    disown(&owner, out[at].frames());
                    drop(out.swap_remove(at));
                }
                (2, 0 | 1) if allocator.offline(area, |_| Moved::Unmovable).is_ok() => {
                    own(&owner, area);
                    served.fetch_add(1, Relaxed);
                    disown(&owner, area);
                    while let Err(error) = allocator.online(area) {
                        assert_eq!(error, OnlineError::Busy);
                    }
                }
                (_, 2) => {
                    if let Ok(contig) = allocator.alloc_contig(area, |_| Moved::Unmovable) {
                        own(&owner, contig.frames());
                        served.fetch_add(1, Relaxed);
                        disown(&owner, contig.frames());
                    }
                }
                (_, 3) => {
                    let size = 1 + random.below(600);
                    if let Ok(piece) = cma.alloc(size, Order::ZERO, |_| Moved::Unmovable) {
                        own(&owner, piece.frames());
                        served.fetch_add(1, Relaxed);
                        disown(&owner, piece.frames());
                    }
                }
                (_, 4) => {
                    allocator.report_free(Order::PAGEBLOCK, |told| {
                        told.iter().for_each(|&told| own(&owner, told));
                        told.iter().for_each(|&told| disown(&owner, told));
                        Reported::Done
                    });
                }
                (_, 5) => {
                    let mut balloon = Balloon::<Host, 8>::new(&allocator);
                    let request = Request::new(Order::new(4).unwrap());
                    let _ = balloon.inflate(request, 8, |lent| own(&owner, lent));
                    balloon.deflate(8, |back| disown(&owner, back));
                }
                _ => {}
            }
        }
        out.iter().for_each(|pages| disown(&owner, pages.frames()));
    });
    assert!(served.into_inner() > 0);
    drop(cma);
    at_rest(&allocator);
}

/// misuse 25
fn bad_frames_are_found_under_threads_that_allocate_and_pagesets_open_again() {
    let allocator = four_cpus();
    let bad: Vec<Pfn> = (0..40)
        .map(|n| frames(n * 37, n * 37 + 1).start())
        .collect();
    together(3, |thread| {
        run_as(thread);
        if thread == 2 {
            for &pfn in &bad {
                for _ in 0..rounds(200) {
                    drop(allocator.try_alloc(Request::new(Order::ZERO)));
                }
                allocator.mark_bad(pfn).unwrap();
            }
            return;
        }
        let mut random = Random(u64::from(thread));
        let mut out = Vec::new();
        for _ in 0..rounds(20_000) {
            match random.below(3) {
                0 => out.clear(),
                _ => {
                    let order = Order::new(random.below(3) as u8).unwrap();
                    out.extend(allocator.try_alloc(Request::new(order)));
                }
            }
        }
    });
    allocator.check().unwrap();
    assert_eq!(allocator.free_frames(), FRAMES - bad.len() as u64);
    // They park again.
    drop(allocator.try_alloc(Request::new(Order::ZERO)).unwrap());
    assert!(allocator.parked_frames() > 0);
    let held: Vec<_> =
        std::iter::from_fn(|| allocator.try_alloc(Request::new(Order::ZERO)).ok()).collect();
    assert!(held.iter().all(|pages| !bad.contains(&pages.pfn())));
    drop(held);
    allocator.check().unwrap();
}

fn main() -> ExitCode {
    run(&tests![
        threads_on_their_own_cpus_lose_no_frame_and_share_none,
        threads_that_claim_one_cpu_are_served,
        of_threads_that_free_one_raw_frame_exactly_one_succeeds,
        drains_of_busy_and_idle_cpus_lose_nothing,
        of_two_users_of_overlapping_ranges_exactly_one_wins,
        of_two_users_of_ranges_over_two_shards_at_most_one_wins,
        ranges_come_and_go_under_threads_that_allocate,
        bad_frames_are_found_under_threads_that_allocate_and_pagesets_open_again,
    ])
}
