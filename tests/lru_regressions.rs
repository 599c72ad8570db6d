//! Faults that list-based reclaim had elsewhere, by their number in the reference: each stays away.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use framekeeper::{Backing, LruError, MemcgId, Mm, NodeId, Order, Request, ZoneKind};
use host::{Host, run_as};
use kernel::{EVICTED, FAST, SLOW, folio, listed, machine, map};

fn groups(mm: &Mm<Host>, count: usize) -> Vec<MemcgId> {
    (0..count)
        .map(|_| mm.create_memcg(MemcgId::ROOT).unwrap())
        .collect()
}

/// B4: the lock that is dropped is the one that was taken, although the owner changes while the folio is in hand.
#[test]
fn a_folio_whose_owner_changes_in_hand_is_put_on_the_new_owners_list() {
    let mm = machine(600, 1, 4);
    let group = groups(&mm, 1)[0];
    let folio = listed(&mm, group, Backing::Anon, 1).pop().unwrap();
    let isolated = folio.isolate().unwrap();
    mm.remove_memcg(group).unwrap();
    drop(isolated);
    let root = mm.lru_stat(MemcgId::ROOT, NodeId(0)).unwrap();
    assert_eq!(root.lists, [1, 0, 0, 0]);
    mm.check().unwrap();
}

/// B5: a batch whose owners end between queueing and draining lands on the parent's list (the interleavings are in
/// src/lru/loom_tests.rs).
#[test]
fn moves_queued_before_their_group_ended_happen_in_the_parent() {
    let mm = machine(600, 1, 4);
    let group = groups(&mm, 1)[0];
    let folios = listed(&mm, group, Backing::Anon, 20);
    folios.iter().for_each(|folio| folio.activate());
    mm.remove_memcg(group).unwrap();
    mm.drain_lru();
    let root = mm.lru_stat(MemcgId::ROOT, NodeId(0)).unwrap();
    assert_eq!((root.lists, root.moves.activated), ([0, 20, 0, 0], 20));
    mm.check().unwrap();
}

/// B6: a folio whose last other reference goes while it is put back is freed, and never stays linked without references.
#[test]
fn a_folio_that_dies_in_hand_is_freed_and_not_linked() {
    let mm = machine(600, 1, 4);
    let group = groups(&mm, 1)[0];
    let folio = listed(&mm, group, Backing::Anon, 1).pop().unwrap();
    let isolated = folio.isolate().unwrap();
    drop(folio);
    assert_eq!(mm.memcg_usage(group), Ok(1));
    drop(isolated);
    assert_eq!(mm.memcg_usage(group), Ok(0));
    assert_eq!(mm.lru_stat(group, NodeId(0)).unwrap().lists, [0; 4]);
    mm.check().unwrap();
}

/// B7: a putback does not wait in a batch: the folio can be isolated again at once, with no drain.
#[test]
fn a_folio_put_back_can_be_isolated_again_at_once() {
    let mm = machine(600, 1, 4);
    let folio = listed(&mm, MemcgId::ROOT, Backing::Anon, 1).pop().unwrap();
    for _ in 0..100 {
        drop(folio.isolate().unwrap());
    }
    mm.check().unwrap();
}

/// B8: a drain of everyone completes what any CPU queued before it (the interleavings are in src/lru/loom_tests.rs).
#[test]
fn a_drain_of_everyone_reaches_every_cpu_also_those_that_are_gone() {
    let mm = machine(600, 3, 4);
    let mut kept = Vec::new();
    for cpu in [2, 0, 1, 7] {
        run_as(cpu);
        let folio = folio(&mm, MemcgId::ROOT, 0);
        folio.add_to_lru(Backing::Anon).unwrap();
        kept.push(folio);
    }
    run_as(0);
    mm.drain_lru();
    assert!(kept.iter().all(|folio| folio.isolate().is_ok()));
    mm.check().unwrap();
}

/// B9: while batches are off nothing waits in one, whoever queues it.
#[test]
fn while_batches_are_off_every_move_happens_at_once() {
    let mm = machine(600, 2, 4);
    let waiting = folio(&mm, MemcgId::ROOT, 0);
    waiting.add_to_lru(Backing::Anon).unwrap();
    let off = mm.batches_off();
    assert_eq!(waiting.references(), 1, "what waited was drained");
    let twice = mm.batches_off();
    for cpu in [0, 1] {
        run_as(cpu);
        let folio = folio(&mm, MemcgId::ROOT, 0);
        folio.add_to_lru(Backing::Anon).unwrap();
        folio.activate();
        folio.mlock();
        assert_eq!(folio.references(), 1);
        assert!(folio.is_unevictable());
    }
    run_as(0);
    drop(off);
    let folio = folio(&mm, MemcgId::ROOT, 0);
    folio.add_to_lru(Backing::Anon).unwrap();
    assert_eq!(folio.references(), 1, "someone still wants them off");
    drop(twice);
    folio.activate();
    assert_eq!(folio.references(), 2, "they wait again");
    mm.drain_lru();
    mm.check().unwrap();
}

/// B10: a folio on its list may wait in a batch all the same: the references tell, and a drain settles them. Folios that wait in
/// a full batch can be isolated after it.
#[test]
fn references_that_only_batches_hold_are_given_up_when_asked_for() {
    let mm = machine(600, 2, 4);
    let folios = listed(&mm, MemcgId::ROOT, Backing::Anon, 31);
    for cpu in [0, 1] {
        run_as(cpu);
        for folio in &folios[..30] {
            folio.mlock();
            assert_eq!(folio.references(), 2, "one is the batch's");
            assert!(folio.isolate().is_ok(), "and yet it is on its list");
        }
        run_as(0);
        for folio in &folios[..30] {
            assert!(folio.settles_at(1));
        }
        folios[..30].iter().for_each(|folio| folio.munlock());
        mm.drain_lru();
        for folio in &folios {
            assert!(folio.isolate().is_ok());
        }
    }
    let other = folios[0].reference();
    assert!(!folios[0].settles_at(1), "somebody uses it");
    assert!(!folios[0].settles_at(3));
    drop(other);
    mm.check().unwrap();
}

/// B14: folios of too high a zone are passed over, at most 32768 in one hold; then they are taken like any other.
#[test]
fn folios_above_the_zone_are_passed_over_32768_at_a_time() {
    for (above, only_low) in [(1000, true), (32_768 + 32, false)] {
        let mm = machine(4095 + above + 2000, 1, 2);
        let request = |zone| Request::new(Order::ZERO).zone(zone);
        let list = |zone, count| {
            for _ in 0..count {
                let pages = mm.try_alloc(request(zone)).unwrap();
                let folio = pages.try_charge_to(&mm, MemcgId::ROOT).unwrap();
                folio.add_to_lru(Backing::Anon).unwrap();
                map(folio);
            }
        };
        list(ZoneKind::Normal, above);
        list(ZoneKind::Dma, 40);
        mm.drain_lru();
        // The rest of the low zone is nobody's to reclaim.
        let mut taken = Vec::new();
        while let Ok(pages) = mm.try_alloc(request(ZoneKind::Dma)) {
            taken.push(pages);
        }
        EVICTED.with_borrow_mut(Vec::clear);
        let found = mm.alloc(request(ZoneKind::Dma)).unwrap();
        assert!(found.pfn().0 < 4096);
        let low = EVICTED.with_borrow(|gone| gone.iter().filter(|gone| gone.pfn.0 < 4096).count());
        let all = EVICTED.with_borrow(Vec::len);
        assert!(low > 0);
        assert_eq!(low == all, only_low, "{low} of {all} with {above} above");
        mm.check().unwrap();
    }
}

/// B26: a folio whose writing ended while it was in hand goes in the same pass.
#[test]
fn a_folio_written_while_in_hand_is_freed_in_the_same_pass() {
    let mm = machine(600, 1, 4);
    let group = groups(&mm, 1)[0];
    let folios = listed(&mm, group, Backing::Anon, 2);
    folios[0].set_word_bits(SLOW | FAST);
    folios[1].set_word_bits(SLOW);
    let pfns: Vec<_> = folios.into_iter().map(map).collect();
    EVICTED.with_borrow_mut(Vec::clear);
    let reclaimed = mm.shrink_memcg(group, 1).unwrap();
    assert_eq!(reclaimed.freed, 1);
    assert_eq!(EVICTED.with_borrow(|gone| gone[0].pfn), pfns[0]);
    // The other one's writing goes on: it stays until it ends, then it is the next to go.
    let _started = mm.shrink_memcg(group, 1).unwrap();
    let slow = mm.try_get(pfns[1]).expect("being written");
    assert!(slow.is_writeback());
    slow.end_writeback();
    drop(slow);
    mm.drain_lru();
    assert_eq!(mm.shrink_memcg(group, 1).unwrap().freed, 1);
    assert_eq!(mm.memcg_usage(group), Ok(0));
    mm.check().unwrap();
}

/// B26: whoever puts a folio back whose writing ended while it was in hand puts it where reclaim looks next.
#[test]
fn a_folio_written_while_isolated_comes_back_at_the_old_end() {
    let mm = machine(600, 1, 4);
    let group = groups(&mm, 1)[0];
    let folios = listed(&mm, group, Backing::File, 3);
    folios[2].start_writeback();
    folios[2].deactivate_file(); // rotated when written
    mm.drain_lru();
    let isolated = folios[2].isolate().unwrap();
    isolated.end_writeback();
    drop(isolated);
    let pfns: Vec<_> = folios.into_iter().map(map).collect();
    EVICTED.with_borrow_mut(Vec::clear);
    assert_eq!(mm.shrink_memcg(group, 1).unwrap().freed, 1);
    assert_eq!(EVICTED.with_borrow(|gone| gone[0].pfn), pfns[2]);
    mm.check().unwrap();
}

/// Misuse 33. B3 and the physical scan: see tests/lru_locks.rs and tests/compaction.rs. B24: see tests/lru_moves.rs.
#[test]
fn a_folio_added_twice_is_refused_the_second_time() {
    let mm = machine(600, 1, 4);
    let folio = folio(&mm, MemcgId::ROOT, 0);
    folio.add_to_lru(Backing::Anon).unwrap();
    assert_eq!(folio.add_to_lru(Backing::Anon), Err(LruError::Added));
}
