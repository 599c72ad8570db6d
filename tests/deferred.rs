//! Memory that comes online after boot: deferred sections, on-demand growth, late frees, hot-plug.
//!
//! allocator.md 4 and cases R20 to R27; misuse 18, 27, 29, 30.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use framekeeper::alloc::Moved;
use framekeeper::boot::{BootMap, LateMemory};
use framekeeper::node::{Tuning, ZoneLimits};
use framekeeper::pageset::tune::Policy;
use framekeeper::{
    Config, CpuError, CpuId, FinishError, FrameRange, HotplugError, MapError, NodeId, Order,
    PageAllocator, Pfn, PhysAddr, RawError, ReleaseError, Released, Request, StartCpus,
};
use host::{Host, run_as};
use machine::{allocator, one_region};

/// Frames of a section.
const SECTION: u64 = 1 << 15;
/// 4 GiB: where the highest zone begins.
const HIGH: u64 = 1 << 20;

fn range(start: u64, end: u64) -> FrameRange {
    FrameRange::new(Pfn(start), Pfn(end))
}

fn late(start: u64, end: u64) -> LateMemory {
    // SAFETY: the host's frames are numbers; nobody uses the memory behind them.
    #[allow(unsafe_code)]
    unsafe {
        LateMemory::claim(range(start, end))
    }
}

fn deferred(policy: Policy) -> Config {
    Config {
        deferred: true,
        tuning: Tuning {
            policy,
            ..Tuning::default()
        },
        ..Config::default()
    }
}

/// A zone of `sections` sections above 4 GiB, deferred.
fn high_zone(sections: u64, config: &Config) -> PageAllocator<Host> {
    allocator(one_region(HIGH, sections * SECTION), config).unwrap()
}

/// Batch and both limits of CPU 0's pageset of the highest zone.
fn limits(allocator: &PageAllocator<Host>) -> (u32, u32, u32) {
    let pageset = allocator.pageset_counts().last().unwrap();
    let limits = pageset.limits;
    (limits.batch, limits.high_min, limits.high_max)
}

/// Everything that can be had, one by one.
fn take_all(allocator: &PageAllocator<Host>) -> u64 {
    let mut taken = 0;
    while let Ok(pages) = allocator.try_alloc(Request::new(Order::ZERO)) {
        taken += 1;
        pages.into_raw();
    }
    taken
}

/// R1: 7/42 before, 63/378 after; 7, 28 and 63, 252 at least where limits tune themselves.
#[test]
fn limits_follow_the_early_part_until_the_end_and_all_memory_after() {
    let fixed = high_zone(8, &deferred(Policy::Fixed));
    assert_eq!(fixed.managed_frames(), SECTION);
    assert_eq!(limits(&fixed), (7, 42, 42));
    fixed.check().unwrap();
    assert_eq!(fixed.deferred_init(CpuId(0)), 7 * SECTION);
    assert_eq!(limits(&fixed), (7, 42, 42), "S2's stale limits");
    fixed.finish_deferred().unwrap();
    assert_eq!(limits(&fixed), (63, 378, 378));
    fixed.check().unwrap();

    let auto = high_zone(8, &deferred(Policy::Auto));
    assert_eq!(limits(&auto), (7, 28, 4096));
    assert_eq!(auto.deferred_init(CpuId(0)), 7 * SECTION);
    auto.finish_deferred().unwrap();
    let low = auto.zones().last().unwrap().levels().low as u32;
    assert_eq!(limits(&auto), (63, low.max(252), 8 * SECTION as u32 / 8));
    assert_eq!(auto.managed_frames(), 8 * SECTION);
    assert_eq!(auto.free_frames(), 8 * SECTION);
    auto.check().unwrap();
}
