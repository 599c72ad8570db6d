//! Threads that fault, use, unmap, reclaim and end groups all at once; at rest every count is exact.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;
#[path = "common/race.rs"]
mod race;

use std::process::ExitCode;

use framekeeper::{Backing, FrameRange, MemcgId, Mm, NodeId, Order, Pfn, Request};
use host::{Host, run_as};
use kernel::{ACCESSED, fault, machine};
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

const THREADS: u32 = 4;
const ROUNDS: u64 = 4000;

/// One CPU's life: its own pages, everyone's groups.
fn live(mm: &Mm<Host>, cpu: u32, groups: &[MemcgId]) {
    run_as(cpu % 3); // two threads share a CPU id: slower, never wrong
    let mut rng = Rng(u64::from(cpu) + 1);
    let mut mine: Vec<Pfn> = Vec::new();
    for _ in 0..rounds(ROUNDS) {
        match rng.below(24) {
            0..8 => {
                let group = groups[rng.below(groups.len() as u64) as usize];
                mine.extend(fault(
                    mm,
                    group,
                    if rng.below(2) == 0 {
                        Backing::Anon
                    } else {
                        Backing::File
                    },
                ));
            }
            8..11 if !mine.is_empty() => {
                let pfn = mine[rng.below(mine.len() as u64) as usize];
                if let Some(folio) = mm.try_get(pfn) {
                    folio.mark_accessed();
                }
            }
            11 => {
                let _ = mm.shrink_memcg(groups[rng.below(groups.len() as u64) as usize], 16);
            }
            12 => mm.drain_lru(),
            13 => {
                // A group of a moment: charged to, then ended with its pages.
                if let Ok(brief) = mm.create_memcg(groups[0]) {
                    for _ in 0..3 {
                        fault(mm, brief, Backing::Anon);
                    }
                    mm.remove_memcg(brief).expect("nobody else knows it");
                }
            }
            14 => {
                let any = Pfn(1 + rng.below(2000));
                if let Some(folio) = mm.try_get(any) {
                    folio.set_word_bits(ACCESSED);
                    let isolated = folio.isolate();
                    drop(folio);
                    drop(isolated);
                }
            }
            15 | 16 if !mine.is_empty() => {
                let pfn = mine[rng.below(mine.len() as u64) as usize];
                if let Some(folio) = mm.try_get(pfn) {
                    match rng.below(8) {
                        0 => folio.activate(),
                        1 => folio.deactivate(),
                        2 => folio.deactivate_file(),
                        3 => folio.move_tail(),
                        4 => folio.mlock(),
                        5 => {
                            folio.start_writeback();
                            folio.end_writeback();
                        }
                        _ => folio.munlock(),
                    }
                }
            }
            17 => {
                let order = Order::new(1 + rng.below(3) as u8).expect("an order");
                if let Ok(pages) = mm.try_alloc(Request::new(order))
                    && let Ok(folio) = pages.try_charge_to(mm, groups[0])
                {
                    folio.keep_from_reclaim();
                    folio.add_to_lru(Backing::File).expect("new");
                    folio.let_reclaim();
                    if let Ok(parts) = folio.split(Order::ZERO) {
                        mm.release_all(parts);
                    }
                }
            }
            18 => {
                // A handful of unmapped folios, released together.
                let some = (0..40).filter_map(|i| {
                    let pages = mm.try_alloc(Request::new(Order::ZERO)).ok()?;
                    let folio = pages.try_charge_to(mm, groups[i % groups.len()]).ok()?;
                    folio.add_to_lru(Backing::Anon).expect("new");
                    Some(folio)
                });
                let some: Vec<_> = some.collect();
                mm.release_all(some);
            }
            19 if rng.below(8) == 0 => {
                let off = mm.batches_off();
                let first = Pfn(1 + rng.below(1900));
                mm.isolate_range(FrameRange::new(first, Pfn(first.0 + 64)), drop);
                drop(off);
            }
            20 if rng.below(16) == 0 => {
                // Pages that move may leave `mine`; reclaim finds them.
                let _done = mm.compact(NodeId(0), Order::new(5).expect("an order"));
            }
            21 => mm.drain_lru_cpu(framekeeper::CpuId(cpu % 3)),
            _ => mm.allocator().drain_cpu(framekeeper::CpuId(cpu % 3)),
        }
        mine.retain(|&pfn| mm.try_get(pfn).is_some());
    }
}

fn whatever_threads_do_at_once_every_frame_charge_and_owner_is_accounted_for() {
    let mm = machine(2000, 3, 40);
    let groups: Vec<_> = (0..6)
        .map(|_| mm.create_memcg(MemcgId::ROOT).unwrap())
        .collect();
    for &group in &groups[1..] {
        mm.set_memcg_max(group, 150).unwrap();
    }
    let free = mm.allocator().free_frames();
    together(THREADS, |cpu| live(&mm, cpu, &groups));
    mm.check().unwrap();
    assert_eq!(mm.refused_puts(), 0);
    for &group in &groups[1..] {
        assert!(mm.memcg_usage(group).unwrap() <= 150);
    }
    // Locks that are left go, as often as it takes.
    for pfn in 1..=2000 {
        if let Some(folio) = mm.try_get(Pfn(pfn)) {
            while folio.is_mlocked() || folio.is_unevictable() {
                folio.munlock();
                mm.drain_lru();
            }
        }
    }
    // Everything left is mapped, on lists, and can be taken back.
    while mm.reclaim(1000).freed > 0 {}
    mm.check().unwrap();
    for &group in &groups {
        assert_eq!(mm.memcg_usage(group), Ok(0));
        mm.remove_memcg(group).unwrap();
    }
    assert_eq!(mm.memcg_count(), 1);
    mm.allocator().drain_all();
    assert_eq!(mm.allocator().free_frames(), free);
    mm.check().unwrap();
}

fn main() -> ExitCode {
    run(&tests![
        whatever_threads_do_at_once_every_frame_charge_and_owner_is_accounted_for
    ])
}
