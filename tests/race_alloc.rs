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
use framekeeper::{Config, CpuId, IrqOff, Order, PageAllocator, Pages, Rank, Request};
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

fn threads_that_claim_one_cpu_are_served() {
    // misuse 55: two threads claim one CPU id. misuse 27: an id out of range, or one that changes.
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

fn of_threads_that_free_one_raw_frame_exactly_one_succeeds() {
    // misuse 54
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

fn drains_of_busy_and_idle_cpus_lose_nothing() {
    // misuse 29: drain of an offline CPU, two drain-alls at once
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

fn main() -> ExitCode {
    run(&tests![
        threads_on_their_own_cpus_lose_no_frame_and_share_none,
        threads_that_claim_one_cpu_are_served,
        of_threads_that_free_one_raw_frame_exactly_one_succeeds,
        drains_of_busy_and_idle_cpus_lose_nothing,
    ])
}
