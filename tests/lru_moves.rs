//! Where each use, write, lock and refault moves a folio, and what it leaves in the counts.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use framekeeper::{
    Backing, Folio, ListKind, LruError, LruStat, MemcgId, Mm, NodeId, Order, PageState, Policy,
    Refault, Refused, SplitError, StateChange,
};
use host::Host;
use kernel::{EVICTED, folio, listed, machine, map, policy};

const NODE: NodeId = NodeId(0);

fn stat(mm: &Mm<Host>, group: MemcgId) -> LruStat {
    mm.lru_stat(group, NODE).unwrap()
}

fn on(stat: &LruStat, list: ListKind) -> u64 {
    stat.lists[list as usize]
}

/// A machine of one group.
fn one_group() -> (Mm<Host>, MemcgId) {
    let mm = machine(3000, 2, 4);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    (mm, group)
}

/// Frees one folio after the other, and says which came first.
fn order_of_reclaim(mm: &Mm<Host>, group: MemcgId, folios: Vec<Folio<'_, Host>>) -> Vec<usize> {
    let pfns: Vec<_> = folios.into_iter().map(map).collect();
    let mut order = Vec::new();
    for _ in 0..pfns.len() {
        EVICTED.with_borrow_mut(Vec::clear);
        if mm.shrink_memcg(group, 1).unwrap().freed == 0 {
            break;
        }
        let gone = EVICTED.with_borrow(|evicted| evicted[0].pfn);
        order.push(pfns.iter().position(|&pfn| pfn == gone).unwrap());
    }
    order
}

#[test]
fn a_second_use_activates_and_a_third_only_marks() {
    // reclaim.md 2.5
    let (mm, group) = one_group();
    let folios = listed(&mm, group, Backing::File, 1);
    let age = stat(&mm, group).age;
    folios[0].mark_accessed();
    mm.drain_lru();
    assert!(!folios[0].is_active());
    folios[0].mark_accessed();
    mm.drain_lru();
    assert!(folios[0].is_active());
    folios[0].mark_accessed();
    folios[0].mark_accessed();
    mm.drain_lru();
    let after = stat(&mm, group);
    // To generations an activation is none that went.
    let aged = u64::from(policy() == Policy::TwoLists);
    assert_eq!((after.moves.activated, after.age), (1, age + aged));
    assert_eq!(on(&after, ListKind::ActiveFile), 1);
    // Not on a list yet: marked in this CPU's add batch, found active when it is drained.
    let new = folio(&mm, group, 0);
    new.add_to_lru(Backing::File).unwrap();
    new.mark_accessed();
    new.mark_accessed();
    assert!(new.is_active());
    // In another CPU's batch it is not looked for.
    let other = folio(&mm, group, 0);
    other.add_to_lru(Backing::File).unwrap();
    host::run_as(1);
    other.mark_accessed();
    other.mark_accessed();
    host::run_as(0);
    assert!(!other.is_active());
    mm.drain_lru();
    let after = stat(&mm, group);
    assert_eq!(on(&after, ListKind::ActiveFile), 2);
    assert_eq!(on(&after, ListKind::InactiveFile), 1);
    // Wanted once: no use counts.
    let once = folio(&mm, group, 0);
    once.add_to_lru(Backing::File).unwrap();
    once.drop_behind();
    mm.drain_lru();
    (0..3).for_each(|_| once.mark_accessed());
    mm.drain_lru();
    assert!(!once.is_active());
    assert_eq!(stat(&mm, group).age, after.age);
    // Unevictable: nothing but the mark.
    other.mlock();
    mm.drain_lru();
    other.mark_accessed();
    other.mark_accessed();
    mm.drain_lru();
    assert_eq!(stat(&mm, group).unevictable, 1);
    mm.check().unwrap();
}

#[test]
fn deactivated_files_go_to_the_end_that_their_contents_ask_for() {
    // reclaim.md 2.3
    let (mm, group) = one_group();
    let folios = listed(&mm, group, Backing::File, 4);
    for folio in &folios {
        folio.activate();
    }
    mm.drain_lru();
    folios[1].mark_dirty();
    // Clean: to the old end. Dirty: to the new end, and to the old one once it is written.
    folios[1].deactivate_file();
    folios[2].deactivate_file();
    folios[0].deactivate();
    mm.drain_lru();
    let after = stat(&mm, group);
    assert_eq!((after.moves.deactivated, after.moves.rotated), (3, 1));
    assert_eq!(on(&after, ListKind::InactiveFile), 3);
    assert_eq!(on(&after, ListKind::ActiveFile), 1);
    mm.check().unwrap();
    folios[1].start_writeback();
    folios[1].end_writeback();
    mm.drain_lru();
    assert_eq!(
        stat(&mm, group).moves.rotated,
        1,
        "still dirty: not the next to go"
    );
    let order = order_of_reclaim(&mm, group, folios);
    assert_eq!(order[..2], [2, 1], "the clean one, then by age");
}

/// reclaim.md 2.3, first row: what is mapped is not moved, also if it was mapped after it was queued.
#[test]
fn a_mapped_file_is_not_deactivated() {
    let (mm, group) = one_group();
    let folios = listed(&mm, group, Backing::File, 3);
    folios.iter().for_each(Folio::activate);
    mm.drain_lru();
    folios[0].account(PageState::MAPPED, StateChange::Enter);
    folios[0].deactivate_file();
    assert_eq!(folios[0].references(), 1, "not even queued");
    folios[1].deactivate_file();
    folios[1].account(PageState::MAPPED, StateChange::Enter);
    folios[2].deactivate_file();
    mm.drain_lru();
    let after = stat(&mm, group);
    assert_eq!(after.moves.deactivated, 1);
    assert_eq!(on(&after, ListKind::ActiveFile), 2);
    folios[0].account(PageState::MAPPED, StateChange::Leave);
    folios[0].deactivate_file();
    mm.drain_lru();
    assert_eq!(stat(&mm, group).moves.deactivated, 2);
    mm.check().unwrap();
}

#[test]
fn a_folio_whose_writeback_ends_is_the_next_to_go() {
    let (mm, group) = one_group();
    let folios = listed(&mm, group, Backing::File, 3);
    folios[2].start_writeback();
    folios[2].deactivate_file();
    mm.drain_lru();
    folios[2].end_writeback();
    mm.drain_lru();
    assert_eq!(stat(&mm, group).moves.rotated, 1);
    assert_eq!(order_of_reclaim(&mm, group, folios), [2, 0, 1]);
}

#[test]
fn lazily_freed_contents_are_dropped_without_a_write_unless_written_again() {
    let (mm, group) = one_group();
    let folios = listed(&mm, group, Backing::Anon, 3);
    for folio in &folios {
        folio.mark_dirty();
        folio.set_word_bits(kernel::NO_SWAP); // a write-out would be refused
        folio.lazy_free();
    }
    mm.drain_lru();
    let after = stat(&mm, group);
    assert_eq!(after.moves.lazy_freed, 3);
    assert_eq!(
        on(&after, ListKind::InactiveFile),
        3,
        "listed with the files"
    );
    assert_eq!(folios[0].backing(), Backing::Anon);
    folios[1].mark_dirty();
    let pfns: Vec<_> = folios.into_iter().map(map).collect();
    assert_eq!(mm.shrink_memcg(group, 3).unwrap().freed, 2);
    let left = mm.try_get(pfns[1]).expect("written again, so it stays");
    assert!(!left.is_lazy_free());
    let after = stat(&mm, group);
    let anon = on(&after, ListKind::InactiveAnon) + on(&after, ListKind::ActiveAnon);
    assert_eq!(anon, 1, "anonymous like any other");
    mm.check().unwrap();
}

#[test]
fn a_folio_locked_twice_stays_until_it_is_unlocked_twice() {
    // reclaim.md 2.4
    let (mm, group) = one_group();
    let folios = listed(&mm, group, Backing::Anon, 2);
    folios[0].activate();
    folios[0].mlock();
    folios[0].mlock();
    mm.drain_lru();
    let after = stat(&mm, group);
    assert_eq!((after.unevictable, after.moves.locked), (1, 1));
    assert!(!folios[0].is_active());
    mm.check().unwrap();
    folios[0].munlock();
    mm.drain_lru();
    assert!(folios[0].is_mlocked() && folios[0].is_unevictable());
    folios[0].munlock();
    mm.drain_lru();
    assert!(!folios[0].is_mlocked() && !folios[0].is_unevictable());
    let after = stat(&mm, group);
    assert_eq!((after.unevictable, after.moves.rescued), (0, 1));
    // One too many: nothing.
    folios[0].munlock();
    mm.drain_lru();
    mm.check().unwrap();
    // The order of one batch counts.
    folios[1].mlock();
    folios[1].munlock();
    mm.drain_lru();
    assert!(!folios[1].is_mlocked());
    assert_eq!(stat(&mm, group).unevictable, 0);
    mm.check().unwrap();
}

#[test]
fn a_new_folio_in_a_locking_mapping_is_never_on_a_list() {
    let (mm, group) = one_group();
    let new = folio(&mm, group, 0);
    new.add_to_lru_locked(Backing::Anon).unwrap();
    assert_eq!(new.add_to_lru(Backing::Anon).unwrap_err(), LruError::Added);
    mm.drain_lru();
    let after = stat(&mm, group);
    assert_eq!((after.unevictable, after.lists), (1, [0; 4]));
    // Locked while it waits in the add batch: decided when that is drained.
    let waiting = folio(&mm, group, 0);
    waiting.add_to_lru(Backing::File).unwrap();
    waiting.mlock();
    mm.drain_lru();
    assert!(waiting.is_unevictable());
    new.munlock();
    waiting.munlock();
    mm.drain_lru();
    let after = stat(&mm, group);
    assert_eq!((after.unevictable, after.lists), (0, [1, 0, 1, 0]));
    mm.check().unwrap();
}

#[test]
fn unlocked_while_isolated_it_is_counted_stranded_and_rescued_by_the_putback() {
    let (mm, group) = one_group();
    let folios = listed(&mm, group, Backing::Anon, 1);
    folios[0].mlock();
    mm.drain_lru();
    let isolated = folios[0].isolate().unwrap();
    assert_eq!(stat(&mm, group).unevictable, 0);
    folios[0].munlock();
    mm.drain_lru();
    assert_eq!(stat(&mm, group).moves.stranded, 1);
    drop(isolated);
    let after = stat(&mm, group);
    assert_eq!(
        (after.unevictable, on(&after, ListKind::InactiveAnon)),
        (0, 1)
    );
    // Locked while isolated: unevictable when it comes back, with no lock that is known of.
    let isolated = folios[0].isolate().unwrap();
    folios[0].mlock();
    mm.drain_lru();
    drop(isolated);
    assert_eq!(stat(&mm, group).unevictable, 1);
    folios[0].munlock();
    mm.drain_lru();
    assert_eq!(stat(&mm, group).unevictable, 0);
    mm.check().unwrap();
}

#[test]
fn what_the_kernel_keeps_from_reclaim_leaves_its_list_and_comes_back() {
    let (mm, group) = one_group();
    let folios = listed(&mm, group, Backing::File, 2);
    folios[0].keep_from_reclaim();
    assert_eq!(stat(&mm, group).unevictable, 1);
    let kept = folios[0].pfn();
    for folio in folios {
        map(folio);
    }
    assert_eq!(mm.shrink_memcg(group, 2).unwrap().freed, 1);
    mm.try_get(kept).unwrap().let_reclaim();
    assert_eq!(stat(&mm, group).unevictable, 0);
    assert_eq!(mm.shrink_memcg(group, 2).unwrap().freed, 1);
    mm.check().unwrap();
}

/// B24: orders 1 to 9.
#[test]
fn large_folios_are_listed_at_once_and_counted_in_frames() {
    let (mm, group) = one_group();
    for order in 1..=9 {
        let frames = 1 << order;
        let activated = stat(&mm, group).moves.activated;
        let large = folio(&mm, group, order);
        large.add_to_lru(Backing::Anon).unwrap();
        assert_eq!(on(&stat(&mm, group), ListKind::InactiveAnon), frames);
        large.activate();
        assert_eq!(on(&stat(&mm, group), ListKind::ActiveAnon), frames);
        let isolated = large.isolate().unwrap();
        assert_eq!(mm.isolated_frames(NODE), Some([frames, 0]));
        drop(isolated);
        large.mlock();
        assert_eq!(stat(&mm, group).unevictable, frames);
        assert_eq!(stat(&mm, group).moves.activated, activated + frames);
        drop(large);
        assert_eq!(stat(&mm, group).unevictable, 0);
        assert_eq!(stat(&mm, group).lists, [0; 4]);
        mm.check().unwrap();
    }
}

/// The counts of isolated frames hold until each is linked again or freed, whatever becomes of it, its kind or its group meanwhile.
#[test]
fn isolated_frames_are_counted_until_they_are_back_or_gone() {
    let (mm, group) = one_group();
    let counts = || mm.isolated_frames(NODE).unwrap();
    assert_eq!(mm.isolated_frames(NodeId(7)), None);
    let mut anon = listed(&mm, group, Backing::Anon, 3);
    let files = listed(&mm, group, Backing::File, 2);
    let lazy = anon.pop().unwrap();
    lazy.lazy_free();
    mm.drain_lru();
    let in_hand: Vec<_> = anon
        .iter()
        .chain(&files)
        .chain([&lazy])
        .map(|folio| folio.isolate().unwrap())
        .collect();
    assert_eq!(counts(), [2, 3]);
    mm.check().unwrap();
    // Written while in hand: anonymous again, but counted as what it was.
    lazy.mark_dirty();
    mm.remove_memcg(group).unwrap();
    assert_eq!(counts(), [2, 3]);
    mm.check().unwrap();
    // Their last other references go: those are freed as they are put back.
    drop((anon, lazy));
    drop(in_hand);
    assert_eq!(counts(), [0, 0]);
    drop(files);
    mm.check().unwrap();
    // A split in hand changes nothing; reclaim leaves nothing behind.
    let large = folio(&mm, MemcgId::ROOT, 4);
    large.add_to_lru(Backing::File).unwrap();
    let isolated = large.isolate().unwrap();
    drop(large);
    let parts = isolated.split(Order::ZERO).unwrap();
    assert_eq!(counts(), [0, 16]);
    mm.check().unwrap();
    drop(parts);
    assert_eq!(counts(), [0, 0]);
    let child = mm.create_memcg(MemcgId::ROOT).unwrap();
    for folio in listed(&mm, child, Backing::Anon, 40) {
        map(folio);
    }
    assert_eq!(mm.shrink_memcg(child, 40).unwrap().freed, 40);
    assert_eq!(counts(), [0, 0]);
    mm.check().unwrap();
}

/// reclaim.md 3.4: who may write and call file systems waits when an eighth of the inactive frames is isolated, others when as
/// many are as are left.
#[test]
fn the_cap_of_isolated_frames_follows_the_inactive_ones() {
    use framekeeper::lru::{Reach, most_isolated};
    for (inactive, some, all) in [(0, 0, 0), (7, 0, 7), (8, 1, 8), (4096, 512, 4096)] {
        assert_eq!(most_isolated(inactive, Reach::IoAndFiles), some);
        assert_eq!(most_isolated(inactive, Reach::Less), all);
    }
}

/// B24: sizes count frames, not entries, for every order.
#[test]
fn a_split_changes_no_size_on_a_list_among_the_locked_isolated_or_new() {
    let (mm, group) = one_group();
    let orders = (1..=9).flat_map(|order| (0..order).map(move |to| (order, to)));
    for (order, to) in orders {
        let small = Order::new(to).unwrap();
        let count = 1 << (order - to);
        for state in ["listed", "active", "locked", "isolated", "new"] {
            let whole = folio(&mm, group, order);
            let first = whole.pfn();
            if state != "new" {
                whole.add_to_lru(Backing::File).unwrap();
            }
            match state {
                "active" => whole.activate(),
                "locked" => whole.mlock(),
                _ => {}
            }
            let before = stat(&mm, group);
            let usage = mm.memcg_usage(group);
            if state == "isolated" {
                let isolated = whole.isolate().unwrap();
                drop(whole);
                let parts: Vec<_> = isolated.split(small).unwrap().collect();
                assert_eq!(stat(&mm, group).lists, [0; 4]);
                let kept: Vec<_> = parts.iter().map(|part| part.reference()).collect();
                assert_eq!(parts.len(), count);
                drop(parts);
                assert_eq!(stat(&mm, group), before, "{order} to {to}, {state}");
                drop(kept);
            } else {
                let parts: Vec<_> = whole.split(small).unwrap().collect();
                assert_eq!(parts.len(), count);
                assert_eq!(stat(&mm, group), before, "{order} to {to}, {state}");
                for (i, part) in (0..).zip(&parts) {
                    assert_eq!(part.pfn().0, first.0 + (i << to));
                    assert_eq!((part.order(), part.references()), (small, 1));
                    assert_eq!(part.memcg(), Some(group));
                    assert_eq!(part.isolate().is_ok(), state != "new");
                }
                mm.check().unwrap();
            }
            assert_eq!((usage, mm.memcg_usage(group)), (Ok(1 << order), Ok(0)));
            assert_eq!(stat(&mm, group).lists, [0; 4]);
            mm.check().unwrap();
        }
    }
}

#[test]
fn the_parts_of_a_split_folio_stay_beside_each_other_in_the_order_of_use() {
    let (mm, group) = one_group();
    let old = listed(&mm, group, Backing::Anon, 1).pop().unwrap();
    let whole = folio(&mm, group, 2);
    whole.add_to_lru(Backing::Anon).unwrap();
    let new = listed(&mm, group, Backing::Anon, 1).pop().unwrap();
    let mut folios: Vec<_> = whole.split(Order::ZERO).unwrap().collect();
    folios.push(old);
    folios.push(new);
    assert_eq!(order_of_reclaim(&mm, group, folios), [4, 3, 2, 1, 0, 5]);
    mm.check().unwrap();
}

/// Misuse 33.
#[test]
fn a_folio_in_use_or_of_order_zero_is_not_split() {
    let (mm, group) = one_group();
    let whole = folio(&mm, group, 2);
    let mapping = whole.reference();
    let Refused(error, whole) = whole.split(Order::ZERO).unwrap_err();
    assert_eq!(error, SplitError::InUse { references: 2 });
    drop(mapping);
    whole.add_to_lru(Backing::Anon).unwrap();
    let isolated = whole.isolate().unwrap();
    let Refused(error, whole) = whole.split(Order::ZERO).unwrap_err();
    assert_eq!(error, SplitError::InUse { references: 2 });
    let Refused(error, isolated) = isolated.split(Order::ZERO).unwrap_err();
    assert_eq!(error, SplitError::InUse { references: 2 });
    drop(isolated);
    let Refused(error, whole) = whole.split(Order::new(2).unwrap()).unwrap_err();
    assert_eq!(error, SplitError::NotSmaller);
    let mut parts = whole.split(Order::ZERO).unwrap();
    let single = parts.next().unwrap();
    assert_eq!(
        single.split(Order::ZERO).unwrap_err().0,
        SplitError::NotSmaller
    );
    drop(parts);
    assert_eq!(mm.memcg_usage(group), Ok(0));
    mm.check().unwrap();
}

#[test]
fn a_folio_that_went_too_early_comes_back_active_and_one_that_was_away_long_does_not() {
    // reclaim.md 3.8
    let (mm, group) = one_group();
    let kept = listed(&mm, group, Backing::File, 40);
    for folio in &kept {
        folio.activate();
    }
    mm.drain_lru();
    let victim = listed(&mm, group, Backing::File, 1).pop().unwrap();
    map(victim);
    EVICTED.with_borrow_mut(Vec::clear);
    let age = stat(&mm, group).age;
    assert_eq!(mm.shrink_memcg(group, 1).unwrap().freed, 1);
    assert_eq!(stat(&mm, group).age, age + 1, "evictions age");
    let gone = EVICTED.with_borrow(|evicted| evicted[0]);
    assert_eq!(gone.backing, Backing::File);

    let refault = |expected| {
        let back = folio(&mm, group, 0);
        let found = back.add_refaulted(Backing::File, gone.shadow).unwrap();
        assert_eq!(found, expected);
        mm.drain_lru();
        assert_eq!(back.is_active(), expected != Refault::Old);
    };
    match policy() {
        // As many evictions and activations ago as there are active files is recent, one more is not. Each recent refault is
        // itself an activation, so asking again and again walks the distance.
        Policy::TwoLists => {
            let active = on(&stat(&mm, group), ListKind::ActiveFile);
            assert!(active > 1);
            (0..active).for_each(|_| refault(Refault::Recent));
        }
        // As many evictions ago as half the files.
        Policy::Generations => {
            for _distance in 1..=kept.len() / 2 {
                refault(Refault::Recent);
                map(listed(&mm, group, Backing::File, 1).pop().unwrap());
                assert_eq!(mm.shrink_memcg(group, 1).unwrap().freed, 1);
            }
        }
    }
    refault(Refault::Old);
    // In a group that ended its shadow says nothing.
    let brief = mm.create_memcg(MemcgId::ROOT).unwrap();
    map(listed(&mm, brief, Backing::Anon, 1).pop().unwrap());
    EVICTED.with_borrow_mut(Vec::clear);
    assert_eq!(mm.shrink_memcg(brief, 1).unwrap().freed, 1);
    let shadow = EVICTED.with_borrow(|evicted| evicted[0].shadow);
    mm.remove_memcg(brief).unwrap();
    let next = mm.create_memcg(MemcgId::ROOT).unwrap();
    let back = folio(&mm, next, 0);
    assert_eq!(back.add_refaulted(Backing::Anon, shadow), Ok(Refault::Old));
    assert_eq!(
        back.add_refaulted(Backing::Anon, shadow),
        Err(LruError::Added)
    );
    mm.drain_lru();
    mm.check().unwrap();
}

#[test]
fn a_working_set_that_returns_is_told_so_and_makes_its_backing_costly() {
    let (mm, group) = one_group();
    let _kept = listed(&mm, group, Backing::Anon, 200);
    let victim = listed(&mm, group, Backing::File, 1).pop().unwrap();
    victim.activate();
    mm.drain_lru();
    let pfn = map(victim);
    EVICTED.with_borrow_mut(Vec::clear);
    // Deactivated, which makes it part of the working set, then evicted.
    while mm.try_get(pfn).is_some() {
        assert!(mm.shrink_memcg(group, 1).unwrap().scanned > 0);
    }
    let gone = EVICTED.with_borrow(|evicted| *evicted.last().unwrap());
    assert_eq!(gone.pfn, pfn);
    let cost = stat(&mm, group).file_cost;
    let back = folio(&mm, group, 0);
    assert_eq!(
        back.add_refaulted(Backing::File, gone.shadow),
        Ok(Refault::Workingset)
    );
    assert!(stat(&mm, group).file_cost > cost);
    mm.drain_lru();
    mm.check().unwrap();
}

/// B28: a file that is read again and again through descriptors is not with those that go first.
#[test]
fn what_is_read_five_times_outlives_what_is_read_once_and_once_more_after_it_aged() {
    let (mm, group) = one_group();
    let folios = listed(&mm, group, Backing::File, 8);
    for read in 0..5 {
        folios[0].mark_accessed();
        mm.drain_lru();
        assert_eq!(folios[0].is_active(), read > 0, "read {read}");
    }
    for folio in &folios[1..] {
        folio.mark_accessed();
    }
    assert_eq!(on(&stat(&mm, group), ListKind::ActiveFile), 1);
    let order = order_of_reclaim(&mm, group, folios);
    assert_eq!(order.last(), Some(&0), "{order:?}");
    mm.check().unwrap();
}
