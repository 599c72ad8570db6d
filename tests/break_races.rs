//! Threads that create, end, limit, charge and reclaim the same groups at once, with folios of many orders.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use std::sync::Mutex;
use std::thread;

use framekeeper::{Backing, Folio, MemcgId, Mm, Order, Request};
use host::{Host, run_as};
use kernel::{fault, machine};

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

fn live<'m>(mm: &'m Mm<Host>, cpu: u32, known: &Mutex<Vec<MemcgId>>) {
    run_as(cpu);
    let mut state = u64::from(cpu) + 77;
    let mut held: Vec<Folio<'m, Host>> = Vec::new();
    for _ in 0..6000 {
        let group = {
            let known = known.lock().unwrap();
            known[random(&mut state, known.len() as u64) as usize]
        };
        match random(&mut state, 20) {
            0 => {
                if let Ok(new) = mm.create_memcg(group) {
                    known.lock().unwrap().push(new);
                }
            }
            1 => {
                // Stale ids stay known for a while, and are then forgotten.
                let mut all = known.lock().unwrap();
                if all.len() > 20 {
                    let i = 1 + random(&mut state, all.len() as u64 - 1) as usize;
                    all.swap_remove(i);
                }
            }
            2 | 3 => _ = mm.remove_memcg(group),
            4 => _ = mm.set_memcg_max(group, random(&mut state, 200)),
            5 => _ = mm.shrink_memcg_to(group, random(&mut state, 200)),
            6 => _ = mm.shrink_memcg(group, 40),
            7 => mm.drain_lru(),
            8 => _ = framekeeper::report::MemoryStat::of(mm, group),
            9 => {
                held.pop();
            }
            10 if !held.is_empty() => {
                let i = random(&mut state, held.len() as u64) as usize;
                let folio = &held[i];
                assert!(folio.memcg().is_some());
                folio.mark_accessed();
                if let Ok(isolated) = folio.isolate() {
                    drop(held.swap_remove(i));
                    drop(isolated);
                }
            }
            11..14 => {
                let order = [0, 1, 3, 4, 5][random(&mut state, 5) as usize];
                let request = Request::new(Order::new(order).unwrap());
                let Ok(pages) = mm.alloc(request) else {
                    continue;
                };
                if let Ok(folio) = pages.charge_to(mm, group) {
                    if random(&mut state, 4) > 0 {
                        folio.add_to_lru(Backing::File).unwrap();
                    }
                    held.push(folio);
                }
                if held.len() > 30 {
                    held.clear();
                }
            }
            _ => _ = fault(mm, group, Backing::Anon),
        }
    }
}

/// misuse 35, 36, 40, 61
#[test]
fn groups_that_come_and_go_while_all_use_them_leave_exact_counts() {
    let mm = machine(3000, 3, 30);
    let free = mm.allocator().free_frames();
    let known = Mutex::new(vec![MemcgId::ROOT]);
    thread::scope(|scope| {
        for cpu in 0..3 {
            let (mm, known) = (&mm, &known);
            scope.spawn(move || live(mm, cpu, known));
        }
    });
    mm.drain_lru();
    mm.check().unwrap();
    assert_eq!(mm.refused_puts(), 0);
    while mm.reclaim(1000).freed > 0 {}
    mm.check().unwrap();
    // Children first, however deep.
    for _ in 0..20 {
        known
            .lock()
            .unwrap()
            .iter()
            .for_each(|&group| _ = mm.remove_memcg(group));
    }
    mm.check().unwrap();
    mm.allocator().drain_all();
    assert_eq!(mm.allocator().free_frames(), free);
}
