//! Threads that charge, change states, move charges, set limits and end groups all at once; at rest every count is exact.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;
#[path = "common/race.rs"]
mod race;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use framekeeper::report::MemoryStat;
use framekeeper::{
    Backing, CpuId, Folio, MemcgId, Mm, MmConfig, NodeId, Order, PageState, Request, StateChange,
};
use host::{Host, run_as};
use kernel::{build, machine};
use race::{rounds, run, tests, together};

/// A small deterministic generator, one per thread.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn folio(mm: &Mm<Host>, memcg: MemcgId) -> Option<Folio<'_, Host>> {
    let pages = mm.try_alloc(Request::new(Order::ZERO)).ok()?;
    pages.try_charge_to(mm, memcg).ok()
}

fn change(rng: &mut Rng) -> StateChange {
    if rng.below(2) == 0 {
        StateChange::Enter
    } else {
        StateChange::Leave
    }
}

fn states_counted_while_their_folios_move_are_exact_at_rest() {
    const FOLIOS: usize = 24;
    let mm = machine(600, 3, 6);
    let groups: Vec<_> = (0..3)
        .map(|_| mm.create_memcg(MemcgId::ROOT).unwrap())
        .collect();
    let folios: Vec<_> = (0..FOLIOS)
        .map(|i| {
            let folio = folio(&mm, groups[i % 3]).unwrap();
            if i % 2 == 0 {
                folio.add_to_lru(Backing::File).unwrap();
            }
            folio
        })
        .collect();
    mm.drain_lru();
    let moved = AtomicU64::new(0);
    together(4, |thread| {
        run_as(thread % 3);
        let mut rng = Rng(u64::from(thread) + 1);
        for _ in 0..rounds(if thread < 2 { 20_000 } else { 400 }) {
            if thread < 2 {
                let folio = &folios[rng.below(FOLIOS as u64) as usize];
                let state = PageState::ALL[rng.below(3) as usize];
                folio.account(state, change(&mut rng));
                continue;
            }
            let [from, to] = [0, 1].map(|_| groups[rng.below(3) as usize]);
            let moving = mm.begin_move(from, to).unwrap();
            for folio in &folios {
                // Busy: the other mover, or a drain, has it.
                moved.fetch_add(u64::from(moving.folio(folio).is_ok()), Ordering::Relaxed);
            }
        }
    });
    mm.check().unwrap();
    assert!(moved.load(Ordering::Relaxed) > 0);
    for state in PageState::ALL {
        let counted = folios.iter().filter(|folio| folio.is_in(state)).count() as u64;
        let stat = MemoryStat::of(&mm, MemcgId::ROOT).unwrap();
        assert_eq!(stat.state(state), counted, "{state:?}");
        let each = |&group| MemoryStat::of(&mm, group).unwrap().state(state);
        assert_eq!(groups.iter().map(each).sum::<u64>(), counted);
    }
    drop(folios);
    mm.drain_lru();
    mm.check().unwrap();
    assert_eq!(
        mm.allocator().free_frames(),
        mm.allocator().managed_frames()
    );
}

/// misuse 61.
fn a_limit_holds_to_the_frame_while_cpus_keep_frames_in_stock() {
    const LIMIT: u64 = 300;
    let mm = machine(3000, 3, 6);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let children = [0, 1, 2].map(|_| mm.create_memcg(parent).unwrap());
    mm.set_memcg_max(parent, LIMIT).unwrap();
    let held = AtomicU64::new(0);
    together(4, |thread| {
        run_as(thread);
        let mut rng = Rng(u64::from(thread) + 9);
        let mut mine = Vec::new();
        for _ in 0..rounds(8000) {
            if rng.below(5) < 3 {
                if let Some(folio) = folio(&mm, children[rng.below(3) as usize]) {
                    let now = held.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= LIMIT, "{now} frames are held");
                    mine.push(folio);
                }
            } else if !mine.is_empty() {
                held.fetch_sub(1, Ordering::SeqCst);
                drop(mine.swap_remove(rng.below(mine.len() as u64) as usize));
            } else if rng.below(8) == 0 {
                mm.drain_memcg_cpu(CpuId(thread));
            }
        }
        held.fetch_sub(mine.len() as u64, Ordering::SeqCst);
    });
    mm.check().unwrap();
    assert_eq!(mm.memcg_usage(parent), Ok(0));
    assert!(
        mm.memcg_peak(parent).unwrap() <= LIMIT,
        "nor was it ever charged more"
    );
}

/// B30, misuse 35.
fn groups_that_end_while_their_frames_change_states_leave_exact_counts_to_their_parent() {
    let mut config = MmConfig::new(3, 16);
    // Few, so that frames are given their living group's slots all the time.
    config.memcgs.owners = 24;
    let mm = build(2000, &config);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    together(4, |thread| {
        run_as(thread % 3);
        let mut rng = Rng(u64::from(thread) + 5);
        let mut mine = Vec::new();
        for round in 0..rounds(1500) {
            let Ok(brief) = mm.create_memcg(parent) else {
                mine.clear();
                continue;
            };
            if round % 7 == 0 {
                mm.set_memcg_max(brief, rng.below(4)).unwrap();
            }
            for _ in 0..4 {
                if let Some(folio) = folio(&mm, brief) {
                    folio.account(PageState::MAPPED, StateChange::Enter);
                    if rng.below(2) == 0 {
                        folio.add_to_lru(Backing::Anon).unwrap();
                    }
                    mine.push(folio);
                }
            }
            mm.remove_memcg(brief).expect("nobody else knows it");
            for folio in &mine {
                folio.account(PageState::ALL[rng.below(7) as usize], change(&mut rng));
            }
            while mine.len() > 100 {
                drop(mine.swap_remove(rng.below(mine.len() as u64) as usize));
            }
            let stat = MemoryStat::of(&mm, parent).unwrap();
            assert!(stat.state(PageState::MAPPED) <= 2000, "never below zero");
        }
    });
    mm.drain_lru();
    mm.check().unwrap();
    assert_eq!(mm.memcg_count(), 2);
    assert_eq!(mm.memcg_usage(parent), Ok(0));
    for state in PageState::ALL {
        assert_eq!(MemoryStat::of(&mm, parent).unwrap().state(state), 0);
    }
    assert_eq!(
        mm.allocator().free_frames(),
        mm.allocator().managed_frames()
    );
}

/// misuse 40, 61, 62: objects come and go on all CPUs while their groups end and limits fall.
fn bytes_of_objects_are_exact_at_rest_whoever_frees_them_and_whatever_ends() {
    let mm = machine(600, 3, 8);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    together(4, |thread| {
        run_as(thread);
        let mut rng = Rng(u64::from(thread) + 3);
        let mut mine = Vec::new();
        let mut group = mm.create_memcg(parent).unwrap();
        for round in 0..rounds(4000) {
            match rng.below(12) {
                0..6 => {
                    let to = if rng.below(2) == 0 { group } else { parent };
                    let bytes = rng.below(6000) as u32;
                    mine.extend(mm.try_charge_bytes(to, NodeId(0), bytes));
                }
                6..11 if !mine.is_empty() => {
                    drop(mine.swap_remove(rng.below(mine.len() as u64) as usize));
                }
                _ if round % 32 == 0 => {
                    mm.remove_memcg(group).expect("nobody else knows it");
                    group = mm.create_memcg(parent).unwrap();
                }
                _ if round % 8 == 0 => mm.set_memcg_max(parent, rng.below(400)).unwrap(),
                _ => mm.drain_memcg_cpu(CpuId(rng.below(3) as u32)),
            }
        }
        drop(mine);
        mm.remove_memcg(group).expect("nobody else knows it");
    });
    run_as(0);
    (0..3).for_each(|cpu| mm.drain_memcg_cpu(CpuId(cpu)));
    mm.check().unwrap();
    assert_eq!(mm.memcg_usage(parent), Ok(0));
    mm.remove_memcg(parent).unwrap();
    mm.check().unwrap();
}

fn main() -> ExitCode {
    run(&tests![
        states_counted_while_their_folios_move_are_exact_at_rest,
        bytes_of_objects_are_exact_at_rest_whoever_frees_them_and_whatever_ends,
        a_limit_holds_to_the_frame_while_cpus_keep_frames_in_stock,
        groups_that_end_while_their_frames_change_states_leave_exact_counts_to_their_parent,
    ])
}
