//! Threads at the page allocator: exact counts when they are done.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;

use framekeeper::{Config, CpuId, Order, PageAllocator, Pages, Request};
use host::{Host, run_as};
use machine::{Random, allocator, one_region};

const FRAMES: u64 = 1 << 19;

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

#[test]
fn threads_on_their_own_cpus_lose_no_frame_and_share_none() {
    let allocator = four_cpus();
    let owner: Vec<AtomicU32> = (0..FRAMES).map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        for cpu in 0..4u32 {
            let (allocator, owner) = (&allocator, &owner);
            scope.spawn(move || {
                run_as(cpu);
                let mut random = Random(u64::from(cpu) + 1);
                let mut out: Vec<Pages<'_, Host>> = Vec::new();
                for _ in 0..20_000 {
                    if random.below(2) == 0 {
                        let order = Order::new(random.below(11) as u8).unwrap();
                        if let Ok(pages) = allocator.try_alloc(Request::new(order)) {
                            for pfn in pages.frames().iter() {
                                let before =
                                    owner[(pfn.0 - (1 << 20)) as usize].swap(cpu + 1, Relaxed);
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
        }
    });
    at_rest(&allocator);
}

#[test]
fn threads_that_claim_one_cpu_are_served() {
    // misuse 55: two threads claim one CPU id. misuse 27: an id out of range, or one that changes.
    let allocator = four_cpus();
    thread::scope(|scope| {
        for thread in 0..3u64 {
            let allocator = &allocator;
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut out = Vec::new();
                for _ in 0..20_000 {
                    run_as(random.below(2) as u32 * 1000);
                    if random.below(2) == 0 {
                        out.extend(allocator.try_alloc(Request::new(Order::ZERO)));
                    } else {
                        run_as(random.below(3) as u32);
                        out.pop();
                    }
                }
            });
        }
    });
    at_rest(&allocator);
}

#[test]
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
    thread::scope(|scope| {
        for cpu in 0..3 {
            let (allocator, raw, freed) = (&allocator, &raw, &freed);
            scope.spawn(move || {
                run_as(cpu);
                for &(pfn, order) in raw {
                    if let Ok(pages) = allocator.try_from_raw(pfn, order) {
                        freed.fetch_add(pages.order().frames(), Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(freed.into_inner(), frames);
    at_rest(&allocator);
}

#[test]
fn drains_of_busy_and_idle_cpus_lose_nothing() {
    // misuse 29: drain of an offline CPU, two drain-alls at once
    let allocator = four_cpus();
    let shelf = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for cpu in 0..2 {
            let (allocator, shelf) = (&allocator, &shelf);
            scope.spawn(move || {
                run_as(cpu);
                for n in 0..10_000 {
                    // Blocks are freed on another CPU than they came from.
                    let pages = allocator.try_alloc(Request::new(Order::ZERO)).unwrap();
                    let mut shelf = shelf.lock().unwrap();
                    shelf.push(pages);
                    let first = if n % 2 == 0 {
                        Some(shelf.swap_remove(0))
                    } else {
                        None
                    };
                    drop(shelf);
                    drop(first);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for cpu in 0..500 {
                    allocator.drain_all();
                    allocator.drain_cpu(CpuId(cpu % 6));
                }
            });
        }
    });
    drop(shelf);
    at_rest(&allocator);
}
