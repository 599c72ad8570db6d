//! Contiguous areas: lent to movable requests, and had back piece by piece.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;

use std::collections::BTreeMap;

use framekeeper::{
    Cma, CmaBlock, CmaError, Config, ContigError, FrameRange, Mobility, Moved, Order,
    PageAllocator, Pages, Pfn, Request,
};
use host::{Host, locks_held};
use machine::{FIRST, Random, all, allocator, one_region, range, stay};

const FRAMES: u64 = 1 << 13;

fn machine() -> PageAllocator<Host> {
    allocator(one_region(FIRST, FRAMES), &Config::default()).unwrap()
}

fn one(kind: Mobility) -> Request {
    Request::new(Order::ZERO).mobility(kind).ignore_watermarks()
}

/// 16 frames a bit.
type Area<'a> = Cma<'a, Host, 2>;

#[test]
fn an_area_serves_movable_requests_only_until_a_piece_of_it_is_wanted() {
    let allocator = machine();
    let area = range(2048, 4096);
    let cma = Area::new(&allocator, area, stay).unwrap();
    assert_eq!((cma.area(), cma.used_frames()), (area, 0));
    let counts = allocator.zone_counts().next().unwrap();
    assert_eq!((counts.cma, counts.free_cma), (2048, 2048));
    let text = framekeeper::report::Zoneinfo(&allocator).to_string();
    assert!(text.contains("cma      2048") && text.contains("nr_free_cma  2048"));
    let unmovable = all(&allocator, one(Mobility::Unmovable));
    assert!(area.iter().all(|pfn| !unmovable.contains_key(&pfn.0)));
    let mut lent = all(&allocator, one(Mobility::Movable));
    assert!(lent.len() >= 2048 && lent.contains_key(&area.start().0));
    // Had back once its borrowers have moved.
    let mut moved = 0;
    drop(unmovable);
    let piece = cma
        .alloc(1000, Order::ZERO, |run| {
            assert_eq!(locks_held(), 0);
            moved += run.frames();
            for pfn in run.iter() {
                drop(lent.remove(&pfn.0));
            }
            Moved::Tried
        })
        .unwrap();
    assert_eq!((piece.frames(), moved), (range(2048, 3048), 1000));
    assert_eq!(cma.used_frames(), 1008);
    allocator.check().unwrap();
    drop(piece);
    assert_eq!(cma.used_frames(), 0);
    drop(lent);
    allocator.drain_all();
    assert_eq!(allocator.zone_counts().next().unwrap().free_cma, 2048);
    drop(cma);
    let counts = allocator.zone_counts().next().unwrap();
    assert_eq!((counts.cma, counts.free_cma), (0, 0));
    assert_eq!(allocator.free_frames(), FRAMES);
    allocator.check().unwrap();
    assert_eq!(
        all(&allocator, one(Mobility::Unmovable)).len() as u64,
        FRAMES
    );
}

#[test]
fn pieces_are_aligned_apart_and_each_comes_back() {
    let allocator = machine();
    let cma = Area::new(&allocator, range(512, 2560), stay).unwrap();
    let mut random = Random(3);
    let mut out: Vec<CmaBlock<'_, Host, 2>> = Vec::new();
    let (mut full, mut served) = (0, 0);
    for _ in 0..4000 {
        if random.below(2) == 0 {
            let align = Order::new(random.below(10) as u8).unwrap();
            match cma.alloc(1 + random.below(300), align, stay) {
                Ok(piece) => {
                    served += 1;
                    assert!(piece.frames().start().is_aligned(align));
                    assert!(cma.area().covers(piece.frames()));
                    let apart = |other: &CmaBlock<'_, Host, 2>| {
                        other.frames().intersect(piece.frames()).is_empty()
                    };
                    assert!(out.iter().all(apart));
                    out.push(piece);
                }
                Err(error) => {
                    full += 1;
                    assert_eq!(error, CmaError::Full);
                }
            }
        } else if !out.is_empty() {
            drop(out.swap_remove(random.below(out.len() as u64) as usize));
        }
        let frames: u64 = out.iter().map(|piece| piece.frames().frames()).sum();
        assert_eq!(allocator.free_frames(), FRAMES - frames);
    }
    assert!(full > 100 && served > 1000);
    out.clear();
    assert_eq!(cma.used_frames(), 0);
    allocator.check().unwrap();
}

#[test]
fn a_place_that_cannot_be_emptied_is_passed_over() {
    let allocator = machine();
    let cma = Area::new(&allocator, range(1024, 2048), stay).unwrap();
    let mut lent = all(&allocator, one(Mobility::Movable));
    // The first pageblock's frames stay; of the second all but one go.
    let free = |held: &mut BTreeMap<u64, Pages<'_, Host>>, run: FrameRange| {
        for pfn in run.iter() {
            drop(held.remove(&pfn.0));
        }
    };
    let piece = cma.alloc(512, Order::PAGEBLOCK, |run| {
        if run.start() < Pfn(FIRST + 1536) {
            return Moved::Unmovable;
        }
        free(&mut lent, run);
        Moved::Tried
    });
    assert_eq!(piece.unwrap().frames(), range(1536, 2048));
    let movable = Request::new(Order::ZERO).mobility(Mobility::Movable);
    let busy = allocator.try_alloc(movable.ignore_watermarks());
    let busy = busy.unwrap();
    assert!(range(1536, 2048).contains(busy.pfn()));
    let mut asked = 0;
    let error = cma.alloc(512, Order::PAGEBLOCK, |_| {
        asked += 1;
        Moved::Tried
    });
    assert_eq!(
        error.unwrap_err(),
        CmaError::Kept(ContigError::InUse(busy.pfn()))
    );
    assert_eq!(asked, 10, "five rounds at each place");
    assert_eq!(cma.used_frames(), 0);
    drop((busy, lent));
    assert_eq!(allocator.free_frames(), FRAMES);
    allocator.check().unwrap();
}

/// misuse 24
#[test]
fn a_piece_that_another_collects_is_busy_and_its_pageblock_passed_over() {
    let allocator = machine();
    let cma = Area::new(&allocator, range(512, 1024), stay).unwrap();
    let lent = all(&allocator, one(Mobility::Movable));
    let mut inner = None;
    let outer = cma.alloc(16, Order::ZERO, |_| {
        inner = Some(cma.alloc(16, Order::ZERO, stay).map(drop));
        Moved::Unmovable
    });
    assert!(matches!(
        inner,
        Some(Err(CmaError::Kept(ContigError::Busy(_))))
    ));
    assert!(outer.is_err());
    assert_eq!(cma.used_frames(), 0);
    drop(lent);
    allocator.check().unwrap();
}

#[test]
fn an_area_is_made_of_whole_pageblocks_that_are_empty_and_nobody_elses() {
    let mut map = one_region(FIRST, FRAMES);
    map.reserve(Pfn(FIRST + 5000).addr(12), 4096).unwrap();
    let allocator = allocator(map, &Config::default()).unwrap();
    let made = |range| Area::new(&allocator, range, stay).map(|cma| cma.area());
    for bad in [range(512, 512), range(0, 1000), range(1, 512)] {
        assert_eq!(made(bad), Err(CmaError::Unaligned(bad)));
    }
    let end = Pfn(FIRST + FRAMES + 511);
    let error = made(range(512, FRAMES + 512));
    assert_eq!(error, Err(CmaError::Kept(ContigError::Outside(end))));
    let hole = Pfn(FIRST + 5000);
    let error = made(range(4608, 5120));
    assert_eq!(error, Err(CmaError::Kept(ContigError::Unusable(hole))));
    let used = allocator.try_alloc(Request::new(Order::ZERO)).unwrap();
    let line = used.pfn().0 & !511;
    let error = made(FrameRange::new(Pfn(line), Pfn(line + 512)));
    let kept = ContigError::Unmovable(used.pfn());
    assert_eq!(error, Err(CmaError::Kept(kept)));
    drop(used);
    let first = Area::new(&allocator, range(0, 1024), stay).unwrap();
    let error = made(range(512, 2048));
    let kept = ContigError::Kept(Pfn(FIRST + 512));
    assert_eq!(error, Err(CmaError::Kept(kept)));
    // Nor is it for others to take or to remove.
    let error = allocator.alloc_contig(range(100, 200), stay).map(drop);
    assert_eq!(error, Err(ContigError::Kept(Pfn(FIRST))));
    let error = allocator.offline(range(100, 200), stay);
    assert_eq!(error, Err(ContigError::Kept(Pfn(FIRST))));
    for frames in [0, 1025] {
        let error = first.alloc(frames, Order::ZERO, stay).map(drop);
        assert_eq!(error, Err(CmaError::Size(frames)));
    }
    let error = first.alloc(1, Order::MAX, stay).map(|piece| piece.frames());
    // 4 GiB is a multiple of 1 GiB, so there is one such place.
    assert_eq!(error, Ok(range(0, 1)));
    allocator.check().unwrap();
}
