//! Bad input to limits, protections, moves of charges and states: a typed answer each, and counts as they were.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use std::sync::atomic::{AtomicU32, Ordering};

use framekeeper::memcg::{CreateError, Event, ProtectError, Protection, Shield};
use framekeeper::mm::{MoveError, NoSuchGroup};
use framekeeper::report::{MemoryEvents, MemoryStat, NumaStat};
use framekeeper::{
    Backing, ChargeError, CpuId, Folio, MemcgId, Mm, MmConfig, NodeId, Order, PageState, Rank,
    Refused, Request, StateChange,
};
use host::{Host, locks_taken, run_as};
use kernel::{build, fault, machine};

fn folio_of(mm: &Mm<Host>, memcg: MemcgId, order: u8) -> Folio<'_, Host> {
    let request = Request::new(Order::new(order).unwrap());
    let pages = mm.try_alloc(request).unwrap();
    pages.try_charge_to(mm, memcg).unwrap()
}

fn usages(mm: &Mm<Host>, groups: &[MemcgId]) -> Vec<u64> {
    let usage = |&id| mm.memcg_usage(id).unwrap();
    groups.iter().map(usage).collect()
}

/// misuse 38.
#[test]
fn a_move_into_a_full_group_out_of_another_or_of_a_foreign_folio_changes_nothing() {
    let (mm, other) = (machine(600, 1, 6), machine(300, 1, 2));
    let [one, two] = [0, 1].map(|_| mm.create_memcg(MemcgId::ROOT).unwrap());
    let below = mm.create_memcg(one).unwrap();
    let folios: Vec<_> = (0..4).map(|_| folio_of(&mm, one, 0)).collect();
    folios[0].account(PageState::MAPPED, StateChange::Enter);
    let foreign = folio_of(&other, MemcgId::ROOT, 0);

    mm.set_memcg_max(two, 0).unwrap();
    let moving = mm.begin_move(one, two).unwrap();
    let full = MoveError::Full { limited: Some(two) };
    assert_eq!(moving.folio(&folios[0]), Err(full));
    assert_eq!(moving.folio(&foreign), Err(MoveError::Foreign));
    assert_eq!(
        moving.folio(&folio_of(&mm, MemcgId::ROOT, 0)),
        Err(MoveError::NotInGroup)
    );
    assert_eq!(usages(&mm, &[one, two, below]), [4, 0, 0]);
    mm.check().unwrap();

    // One that waits in a batch is on no list, and about to be: it cannot be moved now.
    folios[1].add_to_lru(Backing::Anon).unwrap();
    mm.set_memcg_max(two, 10).unwrap();
    assert_eq!(moving.folio(&folios[1]), Err(MoveError::Busy));
    mm.drain_lru();
    let isolated = folios[1].isolate().unwrap();
    assert_eq!(moving.folio(&folios[1]), Err(MoveError::Busy));
    drop(isolated);
    assert_eq!(moving.folio(&folios[1]), Ok(()));
    assert_eq!(moving.folio(&folios[1]), Err(MoveError::NotInGroup));
    assert_eq!(folios[1].memcg(), Some(two));
    mm.check().unwrap();

    // A second move out of the same group may run at once.
    let second = mm.begin_move(one, below).unwrap();
    // Into a descendant: the full group above both is not asked again, a full one below it is.
    mm.set_memcg_max(one, 3).unwrap();
    assert_eq!(second.folio(&folios[0]), Ok(()));
    mm.set_memcg_max(below, 1).unwrap();
    let full = MoveError::Full {
        limited: Some(below),
    };
    assert_eq!(second.folio(&folios[2]), Err(full));
    assert_eq!(usages(&mm, &[one, two, below]), [3, 1, 1]);
    drop(moving);
    drop(second);
    let back = mm.begin_move(below, one).unwrap();
    assert_eq!(back.folio(&folios[0]), Ok(()));
    drop(back);

    // A group that ends during a move.
    let moving = mm.begin_move(one, below).unwrap();
    mm.remove_memcg(below).unwrap();
    let gone = MoveError::Gone(NoSuchGroup(below));
    assert_eq!(moving.folio(&folios[0]), Err(gone));
    mm.remove_memcg(one).unwrap();
    let gone = MoveError::Gone(NoSuchGroup(one));
    assert_eq!(moving.folio(&folios[0]), Err(gone));
    assert_eq!(mm.begin_move(one, two).unwrap_err(), NoSuchGroup(one));
    assert_eq!(mm.begin_move(two, one).unwrap_err(), NoSuchGroup(one));
    drop(moving);
    mm.check().unwrap();
    drop(folios);
    mm.drain_lru();
    mm.check().unwrap();
    assert_eq!(usages(&mm, &[two]), [0]);
}

#[test]
fn moves_take_states_orders_and_the_heirs_of_dead_groups_along() {
    let mm = machine(600, 1, 6);
    let [one, two] = [0, 1].map(|_| mm.create_memcg(MemcgId::ROOT).unwrap());
    let brief = mm.create_memcg(one).unwrap();
    let (large, inherited) = (folio_of(&mm, one, 3), folio_of(&mm, brief, 1));
    for folio in [&large, &inherited] {
        folio.add_to_lru(Backing::File).unwrap();
        assert!(folio.account(PageState::MAPPED, StateChange::Enter));
        assert!(!folio.account(PageState::MAPPED, StateChange::Enter));
        folio.mark_dirty();
    }
    mm.remove_memcg(brief).unwrap();
    let mapped = |id| {
        let stat = MemoryStat::of(&mm, id).unwrap();
        (stat.state(PageState::MAPPED), stat.state(PageState::DIRTY))
    };
    assert_eq!((mapped(one), mapped(two)), ((10, 10), (0, 0)));
    let moving = mm.begin_move(one, two).unwrap();
    moving.folio(&large).unwrap();
    // While the move runs, updates take the lock, and count where the folio is.
    assert!(large.account(PageState::DIRTY, StateChange::Leave));
    assert!(inherited.account(PageState::WRITEBACK, StateChange::Enter));
    moving.folio(&inherited).unwrap();
    drop(moving);
    assert_eq!((mapped(one), mapped(two)), ((0, 0), (10, 2)));
    assert_eq!(usages(&mm, &[one, two]), [0, 10]);
    mm.check().unwrap();
    mm.remove_memcg(one).unwrap();
    // Freed in whatever states it was left.
    drop(large);
    drop(inherited);
    assert_eq!(mapped(MemcgId::ROOT), (0, 0));
    mm.check().unwrap();
}

/// B30, B19.
#[test]
fn a_count_charged_in_a_child_and_uncharged_after_its_death_leaves_the_parent_at_zero() {
    let mm = machine(600, 2, 4);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    let folio = folio_of(&mm, child, 2);
    folio.account(PageState::WRITEBACK, StateChange::Enter);
    mm.remove_memcg(child).unwrap();
    let local = || {
        let stat = MemoryStat::of(&mm, parent).unwrap();
        stat.state(PageState::WRITEBACK)
    };
    assert_eq!(local(), 4);
    mm.check().unwrap();
    run_as(1);
    folio.account(PageState::WRITEBACK, StateChange::Leave);
    run_as(0);
    assert_eq!(local(), 0);
    mm.check().unwrap();
    drop(folio);
    mm.check().unwrap();
}

/// B20: one user unmaps as another maps; the first writes its bit last.
#[test]
fn a_state_that_follows_a_count_ends_where_the_last_count_says() {
    let mm = machine(300, 1, 2);
    let folio = folio_of(&mm, MemcgId::ROOT, 0);
    let mappings = AtomicU32::new(1);
    folio.account_by(PageState::MAPPED, || mappings.load(Ordering::Relaxed) > 0);
    assert!(folio.is_in(PageState::MAPPED));
    // The last user is gone; before its bit is cleared another one comes, and finds the bit as it wants it.
    mappings.store(0, Ordering::Relaxed);
    let mut looks = 0;
    folio.account_by(PageState::MAPPED, || {
        looks += 1;
        let mapped = mappings.load(Ordering::Relaxed) > 0;
        if looks == 1 {
            mappings.store(1, Ordering::Relaxed);
            folio.account_by(PageState::MAPPED, || true);
        }
        mapped
    });
    assert!(folio.is_in(PageState::MAPPED), "one mapping is left");
    assert_eq!(looks, 3);
    mm.check().unwrap();
}

/// misuse 37.
#[test]
fn protection_above_a_limit_or_the_parents_and_of_nobody_is_refused() {
    let mm = machine(600, 1, 6);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let [a, b] = [0, 1].map(|_| mm.create_memcg(parent).unwrap());
    for kind in [Protection::Min, Protection::Low] {
        assert_eq!(
            mm.protect_memcg(MemcgId::ROOT, kind, 1),
            Err(ProtectError::Root)
        );
        let above = ProtectError::AboveParent { parent: 0 };
        assert_eq!(mm.protect_memcg(a, kind, 1), Err(above));
        mm.set_memcg_max(parent, 200).unwrap();
        let above = ProtectError::AboveMax { max: 200 };
        assert_eq!(mm.protect_memcg(parent, kind, 201), Err(above));
        mm.protect_memcg(parent, kind, 100).unwrap();
        mm.protect_memcg(a, kind, 80).unwrap();
        mm.protect_memcg(b, kind, 40).unwrap();
        assert_eq!(mm.memcg_protection(b, kind), Ok(40));
    }
    let _folios: Vec<_> = (0..160)
        .map(|i| folio_of(&mm, if i % 2 == 0 { a } else { b }, 0))
        .collect();
    let shields = |root| [parent, a, b].map(|id| mm.memcg_shield(root, id).unwrap());
    let same = |frames| Shield {
        min: frames,
        low: frames,
    };
    // Frames that CPUs keep in stock count as used, so what is in use is protected a little more than it claims.
    mm.drain_memcg_cpu(CpuId(0));
    assert_eq!(shields(MemcgId::ROOT), [100, 66, 33].map(same));
    // B12: a reclaim from a group ignores what protects it from reclaim above it, whoever computed that before.
    assert_eq!(shields(parent), [0, 80, 40].map(same));
    assert_eq!(shields(a), [0, 0, 0].map(same));
    assert_eq!(shields(MemcgId::ROOT), [100, 66, 33].map(same));
    // A dead child claims nothing.
    mm.remove_memcg(a).unwrap();
    assert_eq!(
        mm.memcg_shield(MemcgId::ROOT, a),
        Err(NoSuchGroup(a)),
        "a stale id"
    );
    assert_eq!(mm.memcg_shield(parent, b).unwrap(), same(40));
    let b_of_all = mm.memcg_shield(MemcgId::ROOT, b).unwrap();
    assert_eq!(
        b_of_all,
        same(40 + 60 * 40 / 120),
        "and leaves the rest to others"
    );
    let stale = ProtectError::NoSuchGroup(a);
    assert_eq!(mm.protect_memcg(a, Protection::Min, 0), Err(stale));
    mm.check().unwrap();
}

#[test]
fn charges_above_high_succeed_and_ask_for_a_delay() {
    let mm = machine(600, 1, 4);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    mm.set_memcg_high(parent, 100).unwrap();
    assert_eq!(mm.memcg_high(parent), Ok(100));
    let folios: Vec<_> = (0..110).map(|_| folio_of(&mm, child, 0)).collect();
    mm.drain_memcg_cpu(CpuId(0));
    assert_eq!(mm.memcg_high_delay(child, 64), Ok(639));
    assert_eq!(mm.memcg_high_delay(MemcgId::ROOT, 64), Ok(0));
    assert_eq!(
        mm.memcg_high_delay(child, 1),
        Ok(0),
        "10 ms are not worth a sleep"
    );
    drop(folios);
    mm.drain_memcg_cpu(CpuId(0));
    assert_eq!(mm.memcg_high_delay(child, 64), Ok(0));
    assert_eq!(mm.memcg_peak(child), Ok(128), "two batches of 64");
    let no_root = mm.set_memcg_high(MemcgId::ROOT, 1);
    assert_eq!(no_root, Err(NoSuchGroup(MemcgId::ROOT)));
    mm.remove_memcg(child).unwrap();
    assert!(mm.memcg_high(child).is_err() && mm.memcg_peak(child).is_err());
    assert!(mm.memcg_high_delay(child, 1).is_err());
    mm.check().unwrap();
}

#[test]
fn a_forced_charge_exceeds_the_limit_and_is_an_event_like_one_that_fails() {
    let mm = machine(600, 1, 4);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    mm.set_memcg_max(parent, 0).unwrap();
    let pages = || mm.try_alloc(Request::new(Order::ZERO)).unwrap();
    let forced = pages().force_charge_to(&mm, child).unwrap();
    assert_eq!(usages(&mm, &[parent, child]), [1, 1]);
    let Refused(error, back) = pages().try_charge_to(&mm, child).unwrap_err();
    let limited = Some(parent);
    assert_eq!(error, ChargeError::OverLimit { limited });
    drop(back);
    assert!(fault(&mm, child, Backing::Anon).is_none());
    mm.count_memcg_event(child, Event::OomKill);
    let events = |id| MemoryEvents::of(&mm, id).unwrap();
    // Each call counts once, however often it tried.
    assert_eq!(
        events(parent).to_string(),
        "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n"
    );
    assert_eq!(
        MemoryEvents::local(&mm, parent).unwrap().0,
        [0, 0, 3, 1, 0, 0]
    );
    assert_eq!(events(child).0, [0, 0, 0, 0, 1, 0]);
    assert_eq!(events(MemcgId::ROOT), events(parent));
    mm.remove_memcg(child).unwrap();
    mm.count_memcg_event(child, Event::OomKill);
    assert!(MemoryEvents::of(&mm, child).is_err());
    let Refused(error, back) = pages().force_charge_to(&mm, child).unwrap_err();
    assert_eq!(error, ChargeError::NoSuchGroup(child));
    drop(back);
    assert_eq!(
        events(parent).count(Event::OomKill),
        1,
        "events outlive the child"
    );
    // Its place starts from zero under another name.
    let next = mm.create_memcg(parent).unwrap();
    assert_eq!(events(next).0, [0; 6]);
    drop(forced);
    assert_eq!(usages(&mm, &[parent]), [0]);
    mm.check().unwrap();
}

#[test]
fn the_stat_files_print_what_linux_prints() {
    let mut config = MmConfig::new(1, 3);
    config = config.nodes(2);
    let mm = build(600, &config);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let folio = folio_of(&mm, group, 0);
    folio.add_to_lru(Backing::File).unwrap();
    mm.drain_lru();
    folio.account(PageState::MAPPED, StateChange::Enter);
    folio.account(PageState::KERNEL[0], StateChange::Enter);
    folio.mark_dirty();
    // An object of a group that ended is its parent's.
    let brief = mm.create_memcg(group).unwrap();
    let object = mm.try_charge_bytes(brief, NodeId(0), 5000).unwrap();
    mm.remove_memcg(brief).unwrap();
    let stat = MemoryStat::of(&mm, group).unwrap();
    assert_eq!(stat.state(PageState::KERNEL[0]), 1);
    assert_eq!(
        stat.to_string(),
        "anon 0\nfile 4096\nkernel 8192\nfile_mapped 4096\nfile_dirty 4096\nfile_writeback 0\ninactive_anon 0\nactive_anon 0\n\
         inactive_file 4096\nactive_file 0\nunevictable 0\n"
    );
    assert_eq!(MemoryStat::of(&mm, MemcgId::ROOT).unwrap(), stat);
    assert_eq!(
        NumaStat(&mm, group).to_string().lines().nth(2),
        Some("file_mapped N0=4096 N1=0")
    );
    assert_eq!(
        MemoryStat::on_node(&mm, group, NodeId(1)).unwrap().objects,
        0
    );
    drop(object);
    mm.drain_memcg_cpu(CpuId(0));
    assert_eq!(MemoryStat::of(&mm, MemcgId::ROOT).unwrap().objects, 0);
    drop(folio);
    mm.remove_memcg(group).unwrap();
    assert_eq!(NumaStat(&mm, group).to_string(), "");
    assert_eq!(
        mm.create_memcg(group),
        Err(CreateError::NoSuchParent(group))
    );
}

#[test]
fn a_change_of_state_takes_no_lock_unless_charges_move_out_of_its_group() {
    // reclaim.md 8.6: stat locked / lock-free, no mover; with one that is always on, every update takes one lock.
    const FRAMES: u64 = 8192;
    let mm = machine(FRAMES + 2000, 1, 4);
    let [one, two] = [0, 1].map(|_| mm.create_memcg(MemcgId::ROOT).unwrap());
    let folios: Vec<_> = (0..FRAMES).map(|_| folio_of(&mm, one, 0)).collect();
    const RANKS: [Rank; 4] = [Rank::MemcgTree, Rank::MemcgStock, Rank::LruVec, Rank::Shard];
    let locks = || {
        let before = RANKS.map(locks_taken);
        for change in [StateChange::Enter, StateChange::Leave] {
            for folio in &folios {
                assert!(folio.account(PageState::MAPPED, change));
            }
        }
        let after = RANKS.map(locks_taken);
        after.iter().sum::<u64>() - before.iter().sum::<u64>()
    };
    assert_eq!(locks(), 0);
    let moving = mm.begin_move(one, two).unwrap();
    assert_eq!(locks(), 2 * FRAMES);
    drop(moving);
    // One out of another group does not matter.
    let moving = mm.begin_move(two, one).unwrap();
    assert_eq!(locks(), 0);
    drop(moving);
    mm.check().unwrap();
}
