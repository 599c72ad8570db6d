//! The memory that was not handed over at boot: the other CPUs bring it online while the first allocates already.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use framekeeper::{CpuId, Order, Pages, Request};

use crate::console::println;
use crate::scenario::Failure;
use crate::{arch, cpu, port};

/// Set once all CPUs run, so that they begin together.
static BEGUN: AtomicBool = AtomicBool::new(false);
static DONE: AtomicU32 = AtomicU32::new(0);
static FRAMES: AtomicU64 = AtomicU64::new(0);
/// CPUs that brought something.
static HELPERS: AtomicU32 = AtomicU32::new(0);

/// A CPU's part, before it does anything else.
pub fn help() {
    while !BEGUN.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    let mm = port::mm().expect("started before the other CPUs");
    let frames = mm.allocator().deferred_init(CpuId(arch::cpu()));
    FRAMES.fetch_add(frames, Ordering::Relaxed);
    HELPERS.fetch_add(u32::from(frames > 0), Ordering::Relaxed);
    DONE.fetch_add(1, Ordering::Release);
}

/// The first CPU's part: allocates and frees until the others are done, ends it, and prints the limits before and after.
pub fn finish() -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    print_limits("early");
    let before = mm.allocator().managed_frames();
    BEGUN.store(true, Ordering::Release);
    let others = cpu::count() as u32 - 1;
    if others == 0 {
        help();
    }
    let mut held: [Option<Pages<'_, _>>; 64] = [const { None }; 64];
    let mut allocations = 0;
    while DONE.load(Ordering::Acquire) < others {
        let place = &mut held[allocations as usize % 64];
        *place = mm.try_alloc(Request::new(Order::ZERO).zeroed()).ok();
        allocations += u64::from(place.is_some());
    }
    drop(held);
    if mm.allocator().is_deferring() {
        mm.allocator().finish_deferred().map_err(Failure::Finish)?;
    }
    let (after, brought) = (
        mm.allocator().managed_frames(),
        FRAMES.load(Ordering::Relaxed),
    );
    println!(
        "deferred: {} CPUs brought {brought} frames online while CPU 0 allocated {allocations}",
        HELPERS.load(Ordering::Relaxed),
    );
    print_limits("all");
    if before + brought != after {
        return Err(Failure::Late {
            before,
            brought,
            after,
        });
    }
    Ok(())
}

/// The watermarks of each zone, and the limits of the first CPU's pageset.
fn print_limits(when: &str) {
    let mm = port::mm().expect("started");
    for zone in mm.allocator().zone_counts() {
        let mut pagesets = mm.allocator().pageset_counts();
        let first =
            pagesets.find(|of| of.cpu == CpuId(0) && (of.node, of.kind) == (zone.node, zone.kind));
        let (levels, limits) = (zone.levels, first.map(|pageset| pageset.limits));
        println!(
            "{when}: node {} {}: {} managed, min {} low {} high {}, pageset batch {} high {}",
            zone.node.0,
            zone.kind,
            zone.managed,
            levels.min,
            levels.low,
            levels.high,
            limits.map_or(0, |limits| limits.batch),
            limits.map_or(0, |limits| limits.high_max),
        );
    }
}
