//! Pageblocks kept for urgent requests: they grow with use, serve nobody else, and go back when memory is out.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use framekeeper::alloc::{Need, Progress, ZoneCounts};
use framekeeper::report::Zoneinfo;
use framekeeper::{Config, FrameRange, Moved, Order, PageAllocator, Pages, Pfn, Relief, Request};
use host::Host;
use machine::{FIRST, allocator, one_region};

/// 1 GiB: of its 512 pageblocks six may be kept.
const FRAMES: u64 = 1 << 18;
const MOST: u64 = 6 * 512;

fn machine() -> PageAllocator<Host> {
    allocator(one_region(FIRST, FRAMES), &Config::default()).unwrap()
}

fn counts(allocator: &PageAllocator<Host>) -> ZoneCounts {
    allocator.zone_counts().next().unwrap()
}

fn order(n: u8) -> Order {
    Order::new(n).unwrap()
}

/// Nothing can be reclaimed.
struct Nothing;

impl Relief for Nothing {
    fn reclaim(&self, _: &Need, _: u64) -> Progress {
        Progress::Exhausted
    }
}

/// Takes pageblocks, then frames, until ordinary requests get no more.
fn press(allocator: &PageAllocator<Host>) -> Vec<Pages<'_, Host>> {
    let take = |n| allocator.try_alloc(Request::new(order(n))).ok();
    let mut blocks: Vec<_> = std::iter::from_fn(|| take(9)).collect();
    let mut held: Vec<_> = std::iter::from_fn(|| take(0)).collect();
    allocator.drain_all();
    // The blocks are given back first.
    held.append(&mut blocks);
    held
}

const URGENT: Request = Request::new(Order::new(3).expect("an order")).atomic();

/// R16, and 1 % of the zone in whole pageblocks
#[test]
fn the_reserve_grows_with_urgent_blocks_up_to_its_cap_and_both_counters_follow() {
    let allocator = machine();
    let unpressed = allocator.try_alloc(URGENT).unwrap();
    assert_eq!(counts(&allocator).reserved_highatomic, 0, "there is enough");
    let mut ordinary = press(&allocator);
    let single = allocator.try_alloc(Request::new(Order::ZERO).atomic());
    assert_eq!(counts(&allocator).reserved_highatomic, 0, "order 0");
    let mut urgent = vec![allocator.try_alloc(URGENT).unwrap()];
    let now = counts(&allocator);
    assert_eq!(now.reserved_highatomic, 512);
    assert!((1..512).contains(&now.free_highatomic), "in part");
    let text = Zoneinfo(&allocator).to_string();
    assert!(text.contains("nr_reserved_highatomic 512\n"), "{text}");
    let free = format!("nr_free_highatomic {}\n", now.free_highatomic);
    assert!(text.contains(&free), "{text}");
    // More and more are urgent, and others give way.
    let mut most = 0;
    for _ in 0..20 {
        while let Ok(pages) = allocator.try_alloc(URGENT) {
            urgent.push(pages);
        }
        let now = counts(&allocator);
        assert!(now.free_highatomic <= now.reserved_highatomic);
        most = most.max(now.reserved_highatomic);
        drop(ordinary.pop());
        allocator.drain_all();
        allocator.check().unwrap();
    }
    assert_eq!(most, MOST, "the cap is reached and kept");
    drop((urgent, ordinary, single, unpressed));
    allocator.drain_all();
    let now = counts(&allocator);
    assert_eq!((now.reserved_highatomic, now.free_highatomic), (MOST, MOST));
    assert_eq!(now.free, FRAMES);
    allocator.check().unwrap();
}

/// R17
#[test]
fn ordinary_requests_leave_the_reserve_alone_until_reclaim_was_in_vain() {
    let allocator = machine();
    let held = press(&allocator);
    let urgent = allocator.try_alloc(URGENT).unwrap();
    let start = urgent.pfn().0 & !511;
    let kept = FrameRange::new(Pfn(start), Pfn(start + 512));
    drop(urgent);
    allocator.drain_all();
    let ordinary = Request::new(Order::ZERO);
    let mut all: Vec<_> = std::iter::from_fn(|| allocator.try_alloc(ordinary).ok()).collect();
    assert!(all.iter().all(|pages| !kept.contains(pages.pfn())));
    assert_eq!(counts(&allocator).reserved_highatomic, 512);
    // Urgent ones get theirs still.
    let urgent = allocator.try_alloc(URGENT).unwrap();
    assert!(kept.contains(urgent.pfn()));
    drop(urgent);
    while let Ok(pages) = allocator.alloc_with(ordinary, &Nothing) {
        all.push(pages);
    }
    assert_eq!(counts(&allocator).reserved_highatomic, 0, "given up");
    allocator.check().unwrap();
    drop((all, held));
    allocator.drain_all();
    assert_eq!(allocator.free_frames(), FRAMES);
    allocator.check().unwrap();
}

#[test]
fn a_pageblock_of_the_reserve_goes_offline_and_comes_back_as_an_ordinary_one() {
    let allocator = machine();
    let held = press(&allocator);
    let urgent = allocator.try_alloc(URGENT).unwrap();
    let start = urgent.pfn().0 & !511;
    let kept = FrameRange::new(Pfn(start), Pfn(start + 512));
    drop((urgent, held));
    assert_eq!(counts(&allocator).reserved_highatomic, 512);
    allocator.offline(kept, |_| Moved::Unmovable).unwrap();
    assert_eq!(counts(&allocator).reserved_highatomic, 0);
    allocator.check().unwrap();
    allocator.online(kept).unwrap();
    let now = counts(&allocator);
    assert_eq!((now.reserved_highatomic, now.free_highatomic), (0, 0));
    assert_eq!(now.managed, FRAMES);
    allocator.check().unwrap();
}
