//! Compaction makes large blocks out of scattered free frames, and leaves what cannot move as it was.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use std::panic::{AssertUnwindSafe, catch_unwind};

use framekeeper::{
    Backing, CompactStop, Folio, MemcgId, Mm, Mobility, NodeId, Order, Pages, Pfn, Rank, Request,
    ZoneKind,
};
use host::{Host, locks_taken, most_held_of};
use kernel::{COPY_PANICS, LIAR, MOVED, NO_COPY, PRIVATE, STUCK, machine, map};

const NODE: NodeId = NodeId(0);

fn movable(order: u8) -> Request {
    Request::new(Order::new(order).unwrap()).mobility(Mobility::Movable)
}

/// All frames allocated, then all but every `keep`th freed; those that stay are mapped folios.
fn fragmented(mm: &Mm<Host>, group: MemcgId, keep: usize) -> Vec<Pfn> {
    let mut all: Vec<Pages<'_, Host>> = Vec::new();
    while let Ok(pages) = mm.try_alloc(movable(0)) {
        all.push(pages);
    }
    all.sort_by_key(Pages::pfn);
    let mut kept = Vec::new();
    for (i, pages) in all.into_iter().enumerate() {
        if i % keep == 0 {
            let folio = pages.try_charge_to(mm, group).unwrap();
            folio.add_to_lru(Backing::Anon).unwrap();
            folio.set_word((i as u64) << 32); // which one it is
            if i % 3 == 0 {
                folio.activate();
            }
            kept.push(map(folio));
        }
    }
    mm.drain_lru();
    mm.allocator().drain_all();
    kept
}

/// Calls until it no longer stops for its budget; what it moved and refused in all.
fn compact(mm: &Mm<Host>, order: u8) -> (u64, u64, CompactStop) {
    let (mut moved, mut refused) = (0, 0);
    loop {
        let done = mm.compact(NODE, Order::new(order).unwrap());
        assert!(done.lines <= 64, "bounded");
        moved += done.moved;
        refused += done.refused;
        if done.stop != CompactStop::Budget {
            return (moved, refused, done.stop);
        }
    }
}

/// Every folio that the test mapped, wherever it is now.
fn find(mm: &Mm<Host>) -> Vec<Folio<'_, Host>> {
    let span = mm.allocator().span();
    let mut found: Vec<_> = (span.start().0..span.end().0)
        .filter_map(|pfn| mm.try_get(Pfn(pfn)))
        .collect();
    found.sort_by_key(|folio| folio.word() >> 32);
    found
}

#[test]
fn a_block_of_512_frames_is_there_only_after_compaction() {
    let mm = machine(8 * 512, 1, 4);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let kept = fragmented(&mm, group, 4);
    let before: Vec<_> = find(&mm)
        .iter()
        .map(|folio| (folio.word(), folio.is_active(), folio.memcg()))
        .collect();
    let (usage, stat) = (mm.memcg_usage(group), mm.lru_stat(group, NODE).unwrap());
    let free = mm.allocator().free_frames();
    assert!(free > 2 * 512);
    assert!(mm.try_alloc(movable(9)).is_err(), "no two lines are free");

    MOVED.with_borrow_mut(Vec::clear);
    let (moved, refused, stop) = compact(&mm, 9);
    assert_eq!((refused, stop), (0, CompactStop::Enough));
    assert!(moved <= 2 * 128, "a line's folios, or two lines'");
    assert_eq!(MOVED.with_borrow(Vec::len) as u64, moved);
    mm.check().unwrap();

    let block = mm.try_alloc(movable(9)).expect("compaction made one");
    assert_eq!(mm.allocator().free_frames(), free - 512);
    // Nothing was lost: the same folios, charged and listed as before.
    let after: Vec<_> = find(&mm)
        .iter()
        .map(|folio| (folio.word(), folio.is_active(), folio.memcg()))
        .collect();
    assert_eq!(after, before);
    assert_eq!(after.len(), kept.len());
    assert_eq!(mm.memcg_usage(group), usage);
    assert_eq!(mm.lru_stat(group, NODE).unwrap().lists, stat.lists);
    assert!(
        find(&mm)
            .iter()
            .all(|folio| !block.frames().contains(folio.pfn()))
    );
    drop(block);
    for folio in find(&mm) {
        let pfn = folio.pfn();
        drop(folio);
        kernel::unmap(&mm, pfn);
    }
    mm.drain_lru();
    assert_eq!(
        mm.allocator().free_frames(),
        mm.allocator().managed_frames()
    );
    mm.check().unwrap();
}

#[test]
fn a_request_that_finds_no_block_has_one_made_before_anything_is_reclaimed() {
    let mm = machine(8 * 512, 1, 4);
    let kept = fragmented(&mm, MemcgId::ROOT, 4);
    let block = mm.alloc(movable(9)).expect("compaction makes one");
    assert_eq!(find(&mm).len(), kept.len(), "nothing was reclaimed");
    drop(block);
    mm.check().unwrap();
}

#[test]
fn compaction_goes_on_until_the_scanners_meet_and_then_starts_again() {
    let mm = machine(8 * 512, 1, 4);
    fragmented(&mm, MemcgId::ROOT, 4);
    let mut blocks = Vec::new();
    loop {
        let (_, _, stop) = compact(&mm, 9);
        if stop == CompactStop::Exhausted {
            break;
        }
        assert_eq!(stop, CompactStop::Enough);
        blocks.push(mm.try_alloc(movable(9)).unwrap());
    }
    assert!(blocks.len() >= 4, "{} of 6 possible", blocks.len());
    mm.check().unwrap();
    drop(blocks);
    assert_eq!(compact(&mm, 9).2, CompactStop::Enough, "freed again");
}

/// misuse 41, 65
#[test]
fn folios_that_cannot_move_stay_mapped_listed_and_charged() {
    for bits in [STUCK, PRIVATE, NO_COPY, LIAR] {
        let mm = machine(4 * 512, 1, 4);
        let group = mm.create_memcg(MemcgId::ROOT).unwrap();
        let kept = fragmented(&mm, group, 2);
        for &pfn in &kept {
            mm.try_get(pfn).unwrap().set_word_bits(bits);
        }
        let free = mm.allocator().free_frames();
        let (moved, refused, stop) = compact(&mm, 9);
        assert_eq!((moved, stop), (0, CompactStop::Exhausted), "{bits:#b}");
        assert!(refused > 0);
        for &pfn in &kept {
            assert_eq!(mm.try_get(pfn).expect("still there").references(), 2);
        }
        assert_eq!(mm.memcg_usage(group), Ok(kept.len() as u64));
        mm.allocator().drain_all();
        assert_eq!(mm.allocator().free_frames(), free);
        mm.check().unwrap();
    }
}

#[test]
fn folios_in_use_or_being_written_stay() {
    let mm = machine(4 * 512, 1, 4);
    let kept = fragmented(&mm, MemcgId::ROOT, 2);
    let used: Vec<_> = kept.iter().map(|&pfn| mm.try_get(pfn).unwrap()).collect();
    assert_eq!(compact(&mm, 9).0, 0);
    for folio in &used {
        folio.start_writeback();
    }
    drop(used);
    assert_eq!(compact(&mm, 9).0, 0);
    for &pfn in &kept {
        mm.try_get(pfn).unwrap().end_writeback();
    }
    assert!(compact(&mm, 9).0 > 0);
    mm.check().unwrap();
}

#[test]
fn a_line_that_holds_something_unmovable_is_not_emptied_in_vain() {
    let mm = machine(4 * 512, 1, 4);
    let kept = fragmented(&mm, MemcgId::ROOT, 2);
    // One frame of each line is off the lists.
    let held: Vec<_> = (0..4)
        .map(|line| {
            let inside = |pfn: &&Pfn| pfn.0 / 512 == line;
            let pfn = *kept.iter().find(inside).unwrap();
            mm.try_get(pfn).unwrap()
        })
        .map(|folio| folio.isolate().unwrap())
        .collect();
    MOVED.with_borrow_mut(Vec::clear);
    assert_eq!(compact(&mm, 9), (0, 0, CompactStop::Exhausted));
    drop(held);
    assert!(compact(&mm, 9).0 > 0);
    mm.check().unwrap();
}

#[test]
fn locked_folios_move_and_stay_locked() {
    let mm = machine(8 * 512, 1, 4);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let kept = fragmented(&mm, group, 4);
    for &pfn in &kept {
        let folio = mm.try_get(pfn).unwrap();
        folio.mlock();
        folio.mlock();
    }
    mm.drain_lru();
    assert_eq!(compact(&mm, 9).2, CompactStop::Enough);
    assert_eq!(
        mm.lru_stat(group, NODE).unwrap().unevictable,
        kept.len() as u64
    );
    for folio in find(&mm) {
        folio.munlock();
    }
    mm.drain_lru();
    assert_eq!(
        mm.lru_stat(group, NODE).unwrap().unevictable,
        kept.len() as u64
    );
    for folio in find(&mm) {
        folio.munlock();
    }
    mm.drain_lru();
    assert_eq!(mm.lru_stat(group, NODE).unwrap().unevictable, 0);
    mm.check().unwrap();
}

/// misuse 43
#[test]
fn a_copy_that_panics_leaves_the_folio_mapped_and_the_target_free() {
    let mm = machine(4 * 512, 1, 4);
    let kept = fragmented(&mm, MemcgId::ROOT, 2);
    for &pfn in &kept {
        mm.try_get(pfn).unwrap().set_word_bits(COPY_PANICS);
    }
    let free = mm.allocator().free_frames();
    assert!(catch_unwind(AssertUnwindSafe(|| compact(&mm, 9))).is_err());
    mm.check().unwrap();
    assert_eq!(mm.allocator().free_frames(), free);
    for &pfn in &kept {
        let folio = mm.try_get(pfn).expect("still there");
        assert_eq!(folio.references(), 2);
        folio.clear_word_bits(COPY_PANICS);
    }
    assert!(compact(&mm, 9).0 > 0, "the scanners were given back");
    mm.check().unwrap();
}

#[test]
fn large_folios_move_whole_with_their_order_owner_and_list() {
    for order in 1..=5u8 {
        let mm = machine(8 * 512, 1, 4);
        let group = mm.create_memcg(MemcgId::ROOT).unwrap();
        let mut all = Vec::new();
        while let Ok(pages) = mm.try_alloc(movable(order)) {
            all.push(pages);
        }
        all.sort_by_key(Pages::pfn);
        // What is too small for such a block stays taken.
        let mut rest = Vec::new();
        while let Ok(pages) = mm.try_alloc(movable(0)) {
            rest.push(pages);
        }
        for (i, pages) in all.into_iter().enumerate() {
            if i % 4 == 0 {
                let folio = pages.try_charge_to(&mm, group).unwrap();
                folio.add_to_lru(Backing::File).unwrap();
                folio.set_word((i as u64) << 32);
                if i % 3 == 0 {
                    folio.activate();
                }
                map(folio);
            }
        }
        mm.drain_lru();
        mm.allocator().drain_all();
        let seen = |folio: &Folio<'_, Host>| (folio.word(), folio.order(), folio.is_active());
        let before: Vec<_> = find(&mm).iter().map(seen).collect();
        let stat = mm.lru_stat(group, NODE).unwrap();
        assert!(mm.try_alloc(movable(9)).is_err());
        let (moved, _, stop) = compact(&mm, 9);
        assert_eq!(stop, CompactStop::Enough, "order {order}");
        assert!(moved > 0 && moved.is_multiple_of(1 << order));
        let block = mm.try_alloc(movable(9)).unwrap();
        let after: Vec<_> = find(&mm).iter().map(seen).collect();
        assert_eq!(after, before, "order {order}");
        assert!(find(&mm).iter().all(|folio| folio.order().get() == order));
        assert_eq!(mm.lru_stat(group, NODE).unwrap(), stat);
        assert_eq!(mm.isolated_frames(NODE), Some([0, 0]));
        mm.check().unwrap();
        drop((block, rest));
    }
}

/// B3: a scan over folios of alternating owners holds one lruvec's lock at a time, none while a hook runs, and takes a bounded
/// number of them.
#[test]
fn compaction_of_alternating_owners_holds_one_lock_at_a_time() {
    let mm = machine(8 * 512, 1, 4);
    let groups = [(); 2].map(|()| mm.create_memcg(MemcgId::ROOT).unwrap());
    let mut all: Vec<Pages<'_, Host>> = Vec::new();
    while let Ok(pages) = mm.try_alloc(movable(0).ignore_watermarks()) {
        all.push(pages);
    }
    all.sort_by_key(Pages::pfn);
    let mut listed = [0; 2];
    for (i, pages) in all.into_iter().enumerate() {
        if i % 4 == 0 {
            let which = i / 4 % 2;
            let folio = pages.try_charge_to(&mm, groups[which]).unwrap();
            folio.add_to_lru(Backing::Anon).unwrap();
            map(folio);
            listed[which] += 1;
        }
    }
    mm.drain_lru();
    mm.allocator().drain_all();
    let before = locks_taken(Rank::LruVec);
    MOVED.with_borrow_mut(Vec::clear);
    let (moved, refused, stop) = compact(&mm, 9);
    let taken = locks_taken(Rank::LruVec) - before;
    assert_eq!((refused, stop), (0, CompactStop::Enough));
    // Each folio is taken and put back; each owner is another than the one before.
    assert!(taken <= 2 * moved, "{taken} locks for {moved} folios");
    assert_eq!(most_held_of(Rank::LruVec), 1);
    assert_eq!(host::locks_held(), 0);
    for (group, frames) in groups.into_iter().zip(listed) {
        assert_eq!(mm.lru_stat(group, NODE).unwrap().lists[0], frames);
    }
    mm.check().unwrap();
}

#[test]
fn one_zone_is_compacted_and_the_others_are_left_alone() {
    // 7 lines of the lowest zone and 6 of the next.
    let mm = machine(4095 + 6 * 512, 1, 4);
    fragmented(&mm, MemcgId::ROOT, 4);
    let low = |order| movable(order).zone(ZoneKind::Dma);
    assert!(mm.try_alloc(movable(9)).is_err());
    MOVED.with_borrow_mut(Vec::clear);
    let order = Order::new(9).unwrap();
    let absent = mm.compact_zone(NODE, ZoneKind::Movable, order);
    assert_eq!((absent.stop, absent.lines), (CompactStop::Exhausted, 0));
    let done = mm.compact_zone(NODE, ZoneKind::Dma, order);
    assert_eq!(done.stop, CompactStop::Enough);
    let low_frames = |pfn: Pfn| pfn.0 < 4096;
    MOVED.with_borrow(|moved| {
        assert!(!moved.is_empty());
        let inside =
            |moving: &framekeeper::Moving| low_frames(moving.from) && low_frames(moving.to);
        assert!(moved.iter().all(inside), "folios stay in their zone");
    });
    let block = mm.try_alloc(low(9)).expect("made there");
    assert!(low_frames(block.pfn()));
    assert!(mm.try_alloc(movable(9)).is_err(), "none elsewhere");
    drop(block);
    mm.check().unwrap();
}
