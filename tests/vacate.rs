//! Ranges emptied by moving the folios in them: what was there is elsewhere, charged and listed as before.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use framekeeper::{
    Backing, Cma, ContigError, Folio, FrameRange, MemcgId, Mm, Mobility, Moved, NodeId, Order,
    Pages, Pfn, Request, WasBad,
};
use host::Host;
use kernel::{NO_COPY, STUCK, build, machine, map, unmap};

fn movable(order: u8) -> Request {
    Request::new(Order::new(order).unwrap())
        .mobility(Mobility::Movable)
        .ignore_watermarks()
}

/// Fills all memory with folios of an order, then frees all but every `keep`th.
fn scattered(mm: &Mm<Host>, group: MemcgId, order: u8, keep: usize) -> usize {
    let mut all: Vec<Pages<'_, Host>> = Vec::new();
    while let Ok(pages) = mm.try_alloc(movable(order)) {
        all.push(pages);
    }
    all.sort_by_key(Pages::pfn);
    let kept = all.into_iter().enumerate().filter(|(i, _)| i % keep == 0);
    let kept = kept.map(|(i, pages)| {
        let folio = pages.try_charge_to(mm, group).unwrap();
        folio.add_to_lru(Backing::Anon).unwrap();
        folio.set_word((i as u64) << 32); // which one it is
        map(folio)
    });
    kept.count()
}

/// Every folio, wherever it is now.
fn find(mm: &Mm<Host>) -> Vec<Folio<'_, Host>> {
    let span = mm.allocator().span();
    let mut found: Vec<_> = (span.start().0..span.end().0)
        .filter_map(|pfn| mm.try_get(Pfn(pfn)))
        .collect();
    found.sort_by_key(|folio| folio.word() >> 32);
    found
}

fn names(mm: &Mm<Host>) -> Vec<(u64, Option<MemcgId>)> {
    find(mm).iter().map(|f| (f.word(), f.memcg())).collect()
}

/// The frames of the `n`th pageblock and some around it.
fn middle(mm: &Mm<Host>) -> FrameRange {
    let start = mm.allocator().span().start().0.next_multiple_of(512) + 512;
    FrameRange::new(Pfn(start - 5), Pfn(start + 700))
}

fn empty(mm: &Mm<Host>) {
    for folio in find(mm) {
        let pfn = folio.pfn();
        drop(folio);
        unmap(mm, pfn);
    }
    mm.drain_lru();
    mm.allocator().drain_all();
    assert_eq!(
        mm.allocator().free_frames(),
        mm.allocator().managed_frames()
    );
    mm.check().unwrap();
}

#[test]
fn a_range_is_had_offline_or_as_cma_after_its_folios_moved_and_none_is_lost() {
    // Order 4: folios reach over the ends of the range.
    for (order, keep) in [(0, 3), (4, 3)] {
        let mm = machine(8 * 512, 1, 4);
        let group = mm.create_memcg(MemcgId::ROOT).unwrap();
        // Some wait in batches still.
        let kept = scattered(&mm, group, order, keep);
        let before = names(&mm);
        let usage = mm.memcg_usage(group);
        assert_eq!(before.len(), kept);
        let wanted = middle(&mm);
        let hook = |run| mm.vacate(run);
        let contig = mm.allocator().alloc_contig(wanted, hook).unwrap();
        assert_eq!(contig.frames(), wanted);
        drop(contig);
        mm.allocator().offline(wanted, hook).unwrap();
        assert!(find(&mm).iter().all(|folio| !wanted.contains(folio.pfn())));
        mm.check().unwrap();
        mm.allocator().online(wanted).unwrap();
        let start = wanted.start().0.next_multiple_of(512);
        let area = FrameRange::new(Pfn(start), Pfn(start + 1024));
        let cma: Cma<'_, Host> = Cma::new(mm.allocator(), area, hook).unwrap();
        // Lent again, and had back.
        let mut pages = Vec::new();
        while let Ok(next) = mm.try_alloc(movable(0)) {
            pages.push(next);
        }
        let inside = |pages: &Pages<'_, Host>| area.contains(pages.pfn());
        let (borrowed, spare): (Vec<_>, Vec<_>) = pages.into_iter().partition(inside);
        assert!(borrowed.len() >= 600 && spare.len() >= 700);
        drop(spare);
        for (i, pages) in (0..).zip(borrowed) {
            let folio = pages.try_charge_to(&mm, group).unwrap();
            folio.add_to_lru(Backing::File).unwrap();
            folio.set_word((1 << 60) + (i << 32));
            map(folio);
        }
        let lent = names(&mm);
        let piece = cma.alloc(700, Order::ZERO, hook).unwrap();
        assert_eq!(names(&mm), lent);
        assert!(
            find(&mm)
                .iter()
                .all(|folio| !piece.frames().contains(folio.pfn()))
        );
        drop(piece);
        for folio in find(&mm).into_iter().filter(|f| f.word() >= 1 << 60) {
            let pfn = folio.pfn();
            drop(folio);
            unmap(&mm, pfn);
        }
        drop(cma);
        mm.drain_lru();
        assert_eq!(names(&mm), before);
        assert_eq!(mm.memcg_usage(group), usage);
        mm.check().unwrap();
        empty(&mm);
    }
}

/// misuse 23
#[test]
fn folios_that_must_stay_keep_the_range_and_everything_is_as_it_was() {
    for word in [STUCK, NO_COPY] {
        let mm = machine(8 * 512, 1, 4);
        scattered(&mm, MemcgId::ROOT, 0, 4);
        let wanted = middle(&mm);
        let stays = find(&mm)
            .into_iter()
            .find(|folio| folio.pfn() >= Pfn(wanted.start().0 + 300))
            .unwrap();
        stays.set_word_bits(word);
        let pfn = stays.pfn();
        drop(stays);
        let before = names(&mm);
        let got = mm.allocator().offline(wanted, |run| mm.vacate(run));
        assert_eq!(got, Err(ContigError::InUse(pfn)));
        assert_eq!(names(&mm), before);
        mm.check().unwrap();
        let stays = mm.try_get(pfn).unwrap();
        stays.clear_word_bits(word);
        drop(stays);
        empty(&mm);
    }
}

#[test]
fn a_whole_movable_zone_is_emptied_into_the_other_zone_of_its_node() {
    let mut config = framekeeper::MmConfig::new(1, 4);
    let frames = 8 * 512;
    let plain = machine(frames, 1, 4).allocator().span();
    let movable_part = FrameRange::new(Pfn(plain.end().0 - 1024), plain.end());
    config.alloc.zones.movable.push(movable_part);
    let mm = build(frames, &config);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    scattered(&mm, group, 0, 5);
    mm.drain_lru();
    let before = names(&mm);
    let stat = mm.lru_stat(group, NodeId(0)).unwrap();
    assert!(find(&mm).iter().any(|f| movable_part.contains(f.pfn())));
    mm.allocator()
        .offline(movable_part, |run| mm.vacate(run))
        .unwrap();
    assert_eq!(names(&mm), before);
    assert!(find(&mm).iter().all(|f| !movable_part.contains(f.pfn())));
    assert_eq!(mm.lru_stat(group, NodeId(0)).unwrap().lists, stat.lists);
    mm.check().unwrap();
    empty(&mm);
    mm.allocator().online(movable_part).unwrap();
    mm.check().unwrap();
}

/// misuse 25
#[test]
fn a_folio_on_a_bad_frame_moves_away_and_the_frame_is_never_given_again() {
    let mm = machine(32 * 512, 1, 4);
    scattered(&mm, MemcgId::ROOT, 0, 4);
    mm.drain_lru();
    mm.allocator().drain_all();
    let before = names(&mm);
    // In the zone whose pageset parks.
    let folios = find(&mm);
    let bad = folios.iter().map(|folio| folio.pfn());
    let bad = bad.rev().find(|pfn| pfn.0 > 8192).unwrap();
    drop(folios);
    assert_eq!(mm.allocator().mark_bad(bad), Ok(WasBad::InUse));
    let run = FrameRange::new(bad, Pfn(bad.0 + 1));
    assert_eq!(mm.vacate(run), Moved::Tried);
    assert_eq!(names(&mm), before);
    assert!(find(&mm).iter().all(|folio| folio.pfn() != bad));
    drop(mm.try_alloc(movable(0)).unwrap());
    assert!(mm.allocator().parked_frames() > 0, "pagesets park again");
    for folio in find(&mm) {
        let pfn = folio.pfn();
        drop(folio);
        unmap(&mm, pfn);
    }
    mm.drain_lru();
    let allocator = mm.allocator();
    assert_eq!(allocator.free_frames(), allocator.managed_frames() - 1);
    mm.check().unwrap();
}

#[test]
fn what_is_no_folio_stays_and_is_named() {
    let mm = machine(4 * 512, 1, 4);
    let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
    let around = FrameRange::new(pages.pfn(), Pfn(pages.pfn().0 + 1));
    assert_eq!(mm.vacate(around), Moved::Tried);
    let got = mm.allocator().alloc_contig(around, |run| mm.vacate(run));
    assert_eq!(got.map(drop), Err(ContigError::InUse(pages.pfn())));
    drop(pages);
    mm.check().unwrap();
}
