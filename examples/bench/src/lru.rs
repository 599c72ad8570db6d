//! What a folio's way over the lists costs one CPU that nobody disturbs: added, activated, released, batches included.
//!
//! Beside it, in the same windows, `stack_lk`'s ping-pong: the price of one uncontended lock on this machine. On a machine where
//! that is 2.2 ns, the 25 ns that the three together may cost are 11.4 times as much.

use std::fmt::Write;
use std::hint::black_box;
use std::mem::MaybeUninit;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::{
    Backing, Folio, MemcgId, Mm, MmConfig, NodeId, Order, PhysAddr, Policy, Refused, Request,
};

use crate::clock::{Windows, median};
use crate::machine::{Bench, run_as};
use crate::subject::{FRAMES, Subject};
use crate::yardsticks::LockedStack;

/// Folios of one window: 32 full batches.
const FOLIOS: usize = 31 * 32;
/// 25 ns where `stack_lk` is 2.2 ns.
const LIMIT: f64 = 25.0 / 2.2;

/// What is timed, in this order.
const PHASES: [&str; 3] = ["add", "activate", "release"];

/// Nanoseconds a folio of each phase, of all, and of `stack_lk`'s call.
struct Launch {
    phases: [f64; 3],
    stack: f64,
}

/// A machine of one node with one group.
fn machine(policy: Policy) -> (Mm<Bench>, MemcgId) {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4 << 30), u64::from(FRAMES) << 12)
        .expect("one region fits");
    let mut storage = Vec::<MaybeUninit<u8>>::with_capacity(64 << 20);
    storage.resize_with(64 << 20, MaybeUninit::uninit);
    // SAFETY: the frames are numbers; nobody uses the memory behind them.
    let memory = unsafe { Memory::claim(&mut map) };
    let memory = memory.with_storage(Storage::from_static(storage.leak()));
    let mut config = MmConfig::new(2, 4);
    config.policy = policy;
    let mm = Mm::new(memory, &config)
        .map_err(Refused::into_error)
        .expect("fits");
    let group = mm.create_memcg(MemcgId::ROOT).expect("there is room");
    (mm, group)
}

/// A new folio, on no list.
fn charged(mm: &Mm<Bench>, group: MemcgId) -> Folio<'_, Bench> {
    mm.try_alloc(Request::new(Order::ZERO))
        .expect("memory is free")
        .try_charge_to(mm, group)
        .map_err(Refused::into_error)
        .expect("no limit")
}

/// Measures, prints, and writes the JSON if asked to.
pub fn run(quick: bool, json: Option<&str>) -> std::io::Result<()> {
    run_as(0);
    let launches = if quick { 3 } else { 15 };
    let launches: Vec<_> = (0..launches).map(|_| launch()).collect();
    let of = |value: fn(&Launch) -> f64| median(launches.iter().map(value).collect());
    let phases = [
        of(|launch| launch.phases[0]),
        of(|launch| launch.phases[1]),
        of(|launch| launch.phases[2]),
    ];
    let together = of(|launch| launch.phases.iter().sum());
    let ratio = of(|launch| launch.phases.iter().sum::<f64>() / launch.stack);
    let stack = of(|launch| launch.stack);
    for (phase, ns) in PHASES.iter().zip(phases) {
        println!("{phase:<10}{ns:8.2} ns a folio");
    }
    println!("{:<10}{together:8.2} ns a folio", "together");
    println!("{:<10}{stack:8.2} ns a call", "stack_lk");
    println!("{:<10}{ratio:8.2} at most {LIMIT:.1}", "ratio");
    let Some(file) = json else { return Ok(()) };
    let mut out = String::from("[\n");
    for (phase, ns) in PHASES.iter().zip(phases) {
        let ratio = ns / stack;
        writeln!(
            out,
            "  {{\"workload\": \"lru_{phase}\", \"threads\": 1, \"subject\": \"framekeeper\", \"ns\": {ns:.3}, \"ratio\": {ratio:.4}}},"
        )
        .expect("writing to a string cannot fail");
    }
    writeln!(
        out,
        "  {{\"workload\": \"lru_together\", \"threads\": 1, \"subject\": \"framekeeper\", \"ns\": {together:.3}, \"ratio\": {ratio:.4}}}\n]"
    )
    .expect("writing to a string cannot fail");
    std::fs::write(file, out)
}

/// Charges, adds, activates and releases folios, a window of them at a time.
pub fn rounds(folios: u32, policy: Policy) {
    let (mm, group) = machine(policy);
    for _ in 0..folios as usize / FOLIOS {
        let folios: Vec<_> = (0..FOLIOS).map(|_| charged(&mm, group)).collect();
        for folio in &folios {
            folio.add_to_lru(Backing::Anon).expect("it is new");
        }
        folios.iter().for_each(Folio::activate);
        mm.release_all(folios);
    }
}

/// One machine's medians.
fn launch() -> Launch {
    let (mm, group) = machine(Policy::default());
    let stack = LockedStack::new();
    let mut times: [Windows; 4] = Default::default();
    let mut folios = Vec::with_capacity(FOLIOS);
    for _ in 0..61 {
        folios.extend((0..FOLIOS).map(|_| charged(&mm, group)));
        times[0].time(FOLIOS, || {
            for folio in &folios {
                folio.add_to_lru(Backing::Anon).expect("it is new");
            }
        });
        times[1].time(FOLIOS, || folios.iter().for_each(Folio::activate));
        times[2].time(FOLIOS, || mm.release_all(folios.drain(..)));
        times[3].time(2 * FOLIOS, || {
            for _ in 0..FOLIOS {
                let block = stack.alloc(0).expect("memory is free");
                stack.free(black_box(block), 0);
            }
        });
    }
    let [add, activate, release, stack] = times.map(Windows::median);
    Launch {
        phases: [add, activate, release],
        stack,
    }
}
