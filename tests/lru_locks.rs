//! How often each call site takes an lruvec's lock: counted, per operation, for every batch size.
//!
//! The rows are those of the change that gave each lruvec its own lock (reclaim.md 1.6), and the counts those of 8.1.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use framekeeper::{
    Backing, BatchSize, Folio, FrameRange, ListKind, MemcgId, Mm, MmConfig, NodeId, Order, Pfn,
    Rank,
};
use host::{Host, locks_taken};
use kernel::{build, folio, listed, machine, map};

/// Lruvec locks that `work` takes on this thread.
fn locks<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = locks_taken(Rank::LruVec);
    let result = work();
    (result, locks_taken(Rank::LruVec) - before)
}

fn with_batches_of(size: BatchSize, groups: u32) -> (Mm<Host>, Vec<MemcgId>) {
    let mut config = MmConfig::new(1, groups);
    config.lru_batch = size;
    let mm = build(6000, &config);
    let groups = (0..groups)
        .map(|_| mm.create_memcg(MemcgId::ROOT).unwrap())
        .collect();
    (mm, groups)
}

const SIZES: [(BatchSize, u64); 3] = [
    (BatchSize::One, 1),
    (BatchSize::Fifteen, 15),
    (BatchSize::ThirtyOne, 31),
];

#[test]
fn a_thousand_adds_of_one_owner_take_a_thousand_67_or_32_locks() {
    for (size, batch) in SIZES {
        let (mm, groups) = with_batches_of(size, 1);
        let folios: Vec<_> = (0..1000).map(|_| folio(&mm, groups[0], 0)).collect();
        let ((), taken) = locks(|| {
            for folio in &folios {
                folio.add_to_lru(Backing::Anon).unwrap();
            }
        });
        assert_eq!(taken, 1000 / batch, "1000, 66.7, 32.3 per 1000");
        mm.drain_lru();
        let stat = mm.lru_stat(groups[0], NodeId(0)).unwrap();
        assert_eq!(stat.lists, [1000, 0, 0, 0]);
        mm.check().unwrap();
    }
}

#[test]
fn a_thousand_activations_take_as_few_and_end_on_the_same_lists() {
    let each: [fn(&Folio<'_, Host>); 4] = [
        |folio| folio.activate(),
        |folio| folio.move_tail(),
        |folio| folio.deactivate_file(),
        |folio| folio.lazy_free(),
    ];
    for (row, act) in (0..).zip(each) {
        let mut ends = Vec::new();
        for (size, batch) in SIZES {
            let (mm, groups) = with_batches_of(size, 1);
            let folios = listed(&mm, groups[0], Backing::Anon, 1000);
            let ((), taken) = locks(|| folios.iter().for_each(act));
            assert_eq!(taken, 1000 / batch, "row {row}");
            mm.drain_lru();
            ends.push(mm.lru_stat(groups[0], NodeId(0)).unwrap());
            mm.check().unwrap();
        }
        assert!(ends.iter().all(|end| *end == ends[0]), "row {row}");
    }
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    let folios = listed(&mm, groups[0], Backing::Anon, 310);
    folios.iter().for_each(Folio::activate);
    mm.drain_lru();
    let ((), taken) = locks(|| folios.iter().for_each(Folio::deactivate));
    assert_eq!(taken, 10);
    let ((), taken) = locks(|| folios.iter().for_each(Folio::mlock));
    assert_eq!(taken, 10);
    let ((), taken) = locks(|| folios.iter().for_each(Folio::munlock));
    assert_eq!(taken, 10);
    mm.check().unwrap();
}

#[test]
fn folios_read_twice_and_folios_dropped_by_every_process_move_once_whatever_the_batch() {
    // 8.5: readtwice activates each page once; pread-seq marks each page once per process, and the first activation moves it.
    for (size, batch) in SIZES {
        let (mm, groups) = with_batches_of(size, 1);
        let folios = listed(&mm, groups[0], Backing::File, 310);
        let ((), taken) = locks(|| {
            for _process in 0..8 {
                for folio in &folios {
                    folio.mark_accessed();
                }
            }
        });
        mm.drain_lru();
        let moves = mm.lru_stat(groups[0], NodeId(0)).unwrap().moves;
        assert_eq!(moves.activated, 310);
        // A page may be queued once more by a process that sees it inactive still, for as long as a batch waits.
        let (least, most) = (310 / batch, 310 / batch + 2);
        assert!((least..=most).contains(&taken), "{taken} with {batch}");
        mm.check().unwrap();
    }
}

#[test]
fn a_batch_of_alternating_owners_takes_one_lock_an_owner_and_a_batch_of_one_takes_one_each() {
    for (size, expected) in [(BatchSize::One, 310), (BatchSize::ThirtyOne, 30)] {
        let (mm, groups) = with_batches_of(size, 3);
        let folios: Vec<_> = (0..310).map(|i| folio(&mm, groups[i % 3], 0)).collect();
        let ((), taken) = locks(|| {
            for folio in &folios {
                folio.add_to_lru(Backing::Anon).unwrap();
            }
        });
        assert_eq!(taken, expected, "ten batches of three owners");
        mm.drain_lru();
        mm.check().unwrap();
    }
}

#[test]
fn the_last_put_takes_a_lock_only_if_the_folio_is_on_a_list() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    let new = folio(&mm, groups[0], 0);
    assert_eq!(locks(|| drop(new)).1, 0);
    let folio = listed(&mm, groups[0], Backing::Anon, 1).pop().unwrap();
    let other = folio.reference();
    assert_eq!(locks(|| drop(other)).1, 0);
    assert_eq!(locks(|| drop(folio)).1, 1);
}

#[test]
fn released_together_folios_leave_their_lists_32_a_hold_grouped_by_lruvec() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 4);
    let folios = listed(&mm, groups[0], Backing::Anon, 320);
    let ((), taken) = locks(|| mm.release_all(folios));
    assert_eq!(taken, 10);
    let folios: Vec<_> = (0..320).map(|i| folio(&mm, groups[i % 4], 0)).collect();
    for folio in &folios {
        folio.add_to_lru(Backing::Anon).unwrap();
    }
    mm.drain_lru();
    let kept = folios[7].reference();
    let ((), taken) = locks(|| mm.release_all(folios));
    assert_eq!(taken, 40, "ten holds of four groups");
    assert_eq!(kept.references(), 1);
    // Another instance's folio goes back where it is from.
    let other = machine(600, 1, 1);
    let foreign = kernel::folio(&other, MemcgId::ROOT, 0);
    mm.release_all([kept, foreign]);
    assert_eq!(
        other.allocator().free_frames(),
        other.allocator().managed_frames()
    );
    mm.check().unwrap();
    other.check().unwrap();
}

/// Misuse 43: what was released before the caller's iterator panicked is freed.
#[test]
fn an_iterator_that_panics_leaves_no_folio_half_released() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    let folios = listed(&mm, groups[0], Backing::Anon, 40);
    let panicking = folios.into_iter().enumerate().map(|(i, folio)| {
        assert!(i != 37, "the iterator was told to panic");
        folio
    });
    let release = std::panic::AssertUnwindSafe(|| mm.release_all(panicking));
    assert!(std::panic::catch_unwind(release).is_err());
    assert_eq!(mm.memcg_usage(groups[0]), Ok(0));
    assert_eq!(
        mm.allocator().free_frames(),
        mm.allocator().managed_frames()
    );
    mm.check().unwrap();
}

#[test]
fn isolation_putback_and_the_rescue_of_a_folio_take_one_lock_each() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    let folio = listed(&mm, groups[0], Backing::Anon, 1).pop().unwrap();
    let (isolated, taken) = locks(|| folio.isolate().unwrap());
    assert_eq!(taken, 1);
    assert_eq!(locks(|| assert!(folio.isolate().is_err())).1, 0);
    assert_eq!(locks(|| drop(isolated)).1, 1);
    assert_eq!(locks(|| folio.keep_from_reclaim()).1, 1);
    assert_eq!(locks(|| folio.keep_from_reclaim()).1, 0);
    assert_eq!(locks(|| folio.let_reclaim()).1, 1);
    mm.check().unwrap();
}

/// B3: owners that alternate along the frames cost a lock each, one at a time, and none is kept.
#[test]
fn a_physical_scan_of_alternating_owners_holds_one_lock_at_a_time_for_at_most_32_frames() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 2);
    let mut folios: Vec<_> = (0..320).map(|i| folio(&mm, groups[i % 2], 0)).collect();
    folios.sort_by_key(|folio| folio.pfn());
    for folio in &folios {
        folio.add_to_lru(Backing::Anon).unwrap();
    }
    mm.drain_lru();
    let switches = folios
        .windows(2)
        .filter(|two| two[0].memcg() != two[1].memcg())
        .count() as u64;
    let (first, last) = (folios[0].pfn().0, folios[319].pfn().0);
    assert_eq!(last - first, 319, "next to each other");
    let range = FrameRange::new(Pfn(first), Pfn(last + 1));
    let mut isolated = Vec::new();
    // Debug builds check that no second lruvec lock is taken under the first.
    let ((), taken) = locks(|| {
        mm.isolate_range(range, |folio| {
            assert_eq!(host::locks_held(), 0, "none while the caller works");
            isolated.push(folio);
        });
    });
    assert_eq!(isolated.len(), 320);
    assert!(
        (switches..=switches + 10).contains(&taken),
        "{taken}: one a switch, one a drop"
    );
    drop(isolated);
    assert_eq!(host::most_held_of(Rank::LruVec), 1);
    mm.check().unwrap();
    // Of one owner: a lock for every 32 frames.
    drop(folios);
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    let folios = listed(&mm, groups[0], Backing::Anon, 320);
    let first = folios.iter().map(|folio| folio.pfn().0).min().unwrap();
    let range = FrameRange::new(Pfn(first), Pfn(first + 320));
    let ((), taken) = locks(|| mm.isolate_range(range, |folio| isolated_again(&folio)));
    assert_eq!(taken, 10 + 320, "and one for each that goes back");
    mm.check().unwrap();
}

fn isolated_again(folio: &framekeeper::Isolated<'_, Host>) {
    assert_eq!(folio.references(), 2);
}

#[test]
fn a_split_takes_one_lock_on_a_list_and_none_off_it() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    let whole = folio(&mm, groups[0], 9);
    whole.add_to_lru(Backing::Anon).unwrap();
    let (parts, taken) = locks(|| whole.split(Order::ZERO).unwrap());
    assert_eq!(taken, 1);
    assert_eq!(locks(|| drop(parts)).1, 512 / 32);
    let whole = folio(&mm, groups[0], 9);
    let (parts, taken) = locks(|| whole.split(Order::ZERO).unwrap());
    assert_eq!(taken, 0);
    assert_eq!(locks(|| drop(parts)).1, 0);
    mm.check().unwrap();
}

#[test]
fn a_charge_happens_before_a_folio_is_visible_and_takes_no_lruvec_lock() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    assert_eq!(locks(|| folio(&mm, groups[0], 0)).1, 0);
}

/// B4: a listed folio that is charged to another group leaves one lruvec and joins the other: a hold to take it, one to rename it,
/// one to link it, one at a time.
#[test]
fn a_charge_of_a_folio_on_its_list_to_another_group_takes_three_locks() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 2);
    let folios = listed(&mm, groups[0], Backing::Anon, 10);
    let moving = mm.begin_move(groups[0], groups[1]).unwrap();
    for folio in &folios {
        let (moved, taken) = locks(|| moving.folio(folio));
        moved.unwrap();
        assert_eq!(taken, 3);
    }
    drop(moving);
    assert_eq!(host::most_held_of(Rank::LruVec), 1);
    for (group, frames) in groups.iter().zip([0, 10]) {
        let stat = mm.lru_stat(*group, NodeId(0)).unwrap();
        assert_eq!(stat.lists[ListKind::InactiveAnon as usize], frames);
    }
    assert_eq!(mm.isolated_frames(NodeId(0)), Some([0, 0]));
    mm.check().unwrap();
}

#[test]
fn new_folios_in_locking_mappings_take_as_few_locks_as_others() {
    for (size, batch) in SIZES {
        let (mm, groups) = with_batches_of(size, 1);
        let folios: Vec<_> = (0..310).map(|_| folio(&mm, groups[0], 0)).collect();
        let ((), taken) = locks(|| {
            for folio in &folios {
                folio.add_to_lru_locked(Backing::Anon).unwrap();
            }
        });
        assert_eq!(taken, 310 / batch);
        mm.drain_lru();
        assert_eq!(mm.lru_stat(groups[0], NodeId(0)).unwrap().unevictable, 310);
        mm.check().unwrap();
    }
}

#[test]
fn unevictable_folios_are_rescued_32_a_hold() {
    let other = machine(600, 1, 1);
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 2);
    let mut folios = listed(&mm, groups[0], Backing::File, 320);
    folios.iter().for_each(Folio::keep_from_reclaim);
    assert_eq!(mm.lru_stat(groups[0], NodeId(0)).unwrap().unevictable, 320);
    assert_eq!(locks(|| mm.let_reclaim_all(&folios)).1, 10);
    let stat = mm.lru_stat(groups[0], NodeId(0)).unwrap();
    assert_eq!((stat.unevictable, stat.moves.rescued), (0, 320));
    assert_eq!(stat.lists[ListKind::InactiveFile as usize], 320);
    assert_eq!(locks(|| mm.let_reclaim_all(&folios)).1, 0, "nothing to do");
    // Of another group at the end, and of another instance: each on its own list.
    folios.truncate(3);
    folios.extend(listed(&mm, groups[1], Backing::File, 3));
    folios.extend(listed(&other, MemcgId::ROOT, Backing::File, 3));
    folios.iter().for_each(Folio::keep_from_reclaim);
    let ((), taken) = locks(|| mm.let_reclaim_all(&folios));
    assert_eq!(taken, 2 + 3, "one a group, and one for each of the other's");
    assert!(folios.iter().all(|folio| !folio.is_unevictable()));
    mm.check().unwrap();
    other.check().unwrap();
}

#[test]
fn a_drain_of_everyone_looks_once_at_a_cpu_where_nothing_waits() {
    let mm = machine(600, 3, 2);
    let batch_locks = |work: &dyn Fn()| {
        let before = locks_taken(Rank::LruBatch);
        work();
        locks_taken(Rank::LruBatch) - before
    };
    assert_eq!(batch_locks(&|| mm.drain_lru()), 3);
    host::run_as(1);
    let folio = folio(&mm, MemcgId::ROOT, 0);
    folio.add_to_lru(Backing::Anon).unwrap();
    host::run_as(0);
    assert_eq!(
        batch_locks(&|| mm.drain_lru()),
        3 + 7,
        "and its seven queues"
    );
    assert!(folio.isolate().is_ok());
}

#[test]
fn a_look_at_the_scan_balance_takes_one_lock() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    let (_, taken) = locks(|| mm.lru_stat(groups[0], NodeId(0)).unwrap());
    assert_eq!(taken, 1);
}

#[test]
fn an_active_list_is_shrunk_with_two_holds_for_every_32_folios() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    let folios = listed(&mm, groups[0], Backing::Anon, 640);
    folios.iter().for_each(Folio::activate);
    mm.drain_lru();
    for folio in folios {
        map(folio);
    }
    let (reclaimed, taken) = locks(|| mm.shrink_memcg(groups[0], 32).unwrap());
    assert!(reclaimed.freed >= 32);
    let stat = mm.lru_stat(groups[0], NodeId(0)).unwrap();
    let left_active = 640 - stat.lists[ListKind::ActiveAnon as usize];
    assert!(left_active > 0);
    // One hold to take 32, one to put them back; and as for the inactive list.
    let most = 2 * left_active.div_ceil(32) + 13 * 6 + 2 * reclaimed.freed.div_ceil(32);
    assert!(taken <= most, "{taken} locks, {left_active} deactivated");
    mm.check().unwrap();
}

#[test]
fn reclaim_takes_a_fixed_number_of_locks_for_every_32_folios() {
    let (mm, groups) = with_batches_of(BatchSize::ThirtyOne, 1);
    for folio in listed(&mm, groups[0], Backing::Anon, 640) {
        map(folio);
    }
    let (reclaimed, taken) = locks(|| mm.shrink_memcg(groups[0], 640).unwrap());
    assert_eq!(reclaimed.freed, 640);
    // A hold to isolate each 32, none to free them. At each of 13 priorities one for the sizes of either backing, one for the
    // cost in the group and one in the root, and one that begins less than 32.
    assert!(taken <= 640 / 32 + 13 * 5, "{taken} locks for 640 folios");
    let stat = mm.lru_stat(groups[0], NodeId(0)).unwrap();
    assert_eq!(stat.lists[ListKind::InactiveAnon as usize], 0);
    mm.check().unwrap();
}
