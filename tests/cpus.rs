//! CPUs that come and go: what they park, and what follows for the others.
//!
//! allocator.md 3.8, 3.10 and case R32; misuse 9, 27, 29.

#[path = "common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;
#[path = "common/stepper.rs"]
mod stepper;

use framekeeper::boot::{BootMap, Memory};
use framekeeper::node::Tuning;
use framekeeper::pageset::tune::Policy;
use framekeeper::{
    Backing, Config, CpuError, CpuId, MemcgId, Mm, MmConfig, NodeId, Order, PageAllocator, Pages,
    PhysAddr, Platform, Request, StartCpus,
};
use host::{Host, run_as};
use machine::{allocator, memory, one_region};
use stepper::{Stepped, at_every_point};

const HIGH: u64 = 1 << 20;
const FRAMES: u64 = 1 << 18;
const ONE: Request = Request::new(Order::ZERO);

fn config(policy: Policy, cpus: u32, start_cpus: StartCpus) -> Config {
    Config {
        cpus,
        start_cpus,
        tuning: Tuning {
            policy,
            ..Tuning::default()
        },
        ..Config::default()
    }
}

fn machine_of(policy: Policy, cpus: u32, start: StartCpus) -> PageAllocator<Host> {
    allocator(one_region(HIGH, FRAMES), &config(policy, cpus, start)).unwrap()
}

fn high_max<P: Platform>(machine: &PageAllocator<P>, cpu: u32) -> u32 {
    let mut pagesets = machine.pageset_counts();
    let pageset = pagesets.find(|pageset| pageset.cpu == CpuId(cpu));
    pageset.unwrap().limits.high_max
}

/// 3.10: before its memory exists a CPU has the boot pageset: high 0, batch 1, all goes straight to the shard.
#[test]
fn a_cpu_that_is_not_online_is_served_and_parks_nothing() {
    let machine = machine_of(Policy::Auto, 4, StartCpus::First);
    // misuse 27: ids out of range are served likewise.
    for cpu in [1, 3, 4, 1000, u32::MAX] {
        run_as(cpu);
        for order in [0, 1, 3, 9] {
            let request = Request::new(Order::new(order).unwrap());
            let held: Vec<_> = (0..50)
                .map(|_| machine.try_alloc(request).unwrap())
                .collect();
            assert_eq!(machine.parked_frames(), 0, "CPU {cpu}");
            drop(held);
            assert_eq!(machine.parked_frames(), 0, "CPU {cpu}");
        }
        let held: Vec<_> = (0..50).map(|_| machine.try_alloc(ONE).unwrap()).collect();
        machine.free_all(held);
        assert_eq!(machine.parked_frames(), 0, "CPU {cpu}");
    }
    machine.check().unwrap();
    run_as(1);
    machine.cpu_online(CpuId(1)).unwrap();
    drop(machine.try_alloc(ONE).unwrap());
    assert!(machine.parked_frames() > 0);
    machine.check().unwrap();
}

#[test]
fn limits_are_shared_by_the_cpus_of_a_node_that_run() {
    let mut map = BootMap::new();
    for node in 0..2 {
        let base = (HIGH + node * FRAMES) << 12;
        map.add(NodeId(node as u8), PhysAddr(base), FRAMES << 12)
            .unwrap();
    }
    let config = Config {
        node_of: |cpu| NodeId((cpu.0 / 4) as u8),
        ..config(Policy::Auto, 8, StartCpus::First)
    };
    let machine = allocator(map, &config).unwrap();
    let of = |cpu: u32, node: u8| {
        let mut pagesets = machine.pageset_counts();
        let mine = |set: &framekeeper::alloc::PagesetCounts| {
            (set.cpu, set.node) == (CpuId(cpu), NodeId(node))
        };
        pagesets.find(mine).unwrap().limits.high_max
    };
    let share = FRAMES as u32 / 8;
    // Node 1 has no CPU yet: all that run share it.
    assert_eq!((of(0, 0), of(0, 1), of(1, 0)), (share, share, 0));
    machine.cpu_online(CpuId(1)).unwrap();
    assert_eq!(
        (of(0, 0), of(1, 0), of(0, 1)),
        (share / 2, share / 2, share / 2)
    );
    machine.cpu_online(CpuId(4)).unwrap();
    assert_eq!((of(0, 0), of(0, 1), of(4, 1)), (share / 2, share, share));
    machine.check().unwrap();
    machine.cpu_offline(CpuId(0)).unwrap();
    assert_eq!(
        (of(0, 0), of(1, 0), of(1, 1), of(4, 1)),
        (0, share, share, share)
    );
    machine.cpu_offline(CpuId(4)).unwrap();
    assert_eq!((of(1, 0), of(1, 1)), (share, share));
    // With none at all nobody parks, and requests are served.
    machine.cpu_offline(CpuId(1)).unwrap();
    drop(machine.try_alloc(ONE).unwrap());
    machine.check().unwrap();
}

/// misuse 9: ids that the machine has not, or that are where they are to go, change nothing.
#[test]
fn a_cpu_that_is_unknown_or_there_already_is_an_error() {
    let machine = machine_of(Policy::Auto, 2, StartCpus::All);
    assert_eq!(
        machine.cpu_online(CpuId(1)),
        Err(CpuError::Online(CpuId(1)))
    );
    for id in [2, 8192, u32::MAX] {
        let cpu = CpuId(id);
        assert_eq!(machine.cpu_online(cpu), Err(CpuError::Unknown(cpu)));
        assert_eq!(machine.cpu_offline(cpu), Err(CpuError::Unknown(cpu)));
        assert!(!machine.is_cpu_online(cpu));
    }
    machine.cpu_offline(CpuId(1)).unwrap();
    assert_eq!(
        machine.cpu_offline(CpuId(1)),
        Err(CpuError::Offline(CpuId(1)))
    );
    assert_eq!(high_max(&machine, 0), FRAMES as u32 / 8);
    machine.check().unwrap();
    assert!(CpuError::Unknown(CpuId(7)).to_string().contains("Config"));
}

/// R32: bringing up n CPUs changes no pageset whose limits stay as they are.
#[test]
fn bringing_up_many_cpus_writes_only_what_changes() {
    const CPUS: u32 = 64;
    let fixed = machine_of(Policy::Fixed, CPUS, StartCpus::First);
    let written: u32 = (1..CPUS)
        .map(|cpu| fixed.cpu_online(CpuId(cpu)).unwrap())
        .sum();
    // The others' share of pageblocks falls from 16 to 8 to its least, 6, with the first two.
    assert_eq!(written, CPUS - 1 + 1 + 2, "else each its own");
    fixed.check().unwrap();
    // Where limits are shares, every share changes.
    let auto = machine_of(Policy::Auto, CPUS, StartCpus::First);
    let written: u32 = (1..CPUS)
        .map(|cpu| auto.cpu_online(CpuId(cpu)).unwrap())
        .sum();
    assert_eq!(written, (1..CPUS).map(|cpu| cpu + 1).sum::<u32>());
    auto.check().unwrap();
}

/// misuse 51: what a CPU holds when it goes: parked frames, moves of the LRU, charges in stock.
#[test]
fn a_cpu_that_goes_keeps_nothing_back() {
    let mut map = one_region(HIGH, FRAMES / 4);
    let mut config = MmConfig::new(2, 2);
    config.alloc.tuning.policy = Policy::Auto;
    let mm = Mm::new(memory(&mut map), &config).unwrap();
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    run_as(1);
    let mut folios: Vec<_> = (0..20)
        .map(|_| {
            let pages = mm.try_alloc(ONE).unwrap();
            let folio = pages.try_charge_to(&mm, group).map_err(|e| e.0).unwrap();
            folio.add_to_lru(Backing::Anon).unwrap();
            folio
        })
        .collect();
    // One whose last reference its batch holds.
    folios.truncate(19);
    run_as(0);
    assert!(mm.allocator().parked_frames() > 0);
    assert!(mm.memcg_usage(group).unwrap() > 19, "in stock");
    mm.cpu_offline(CpuId(1)).unwrap();
    assert_eq!(mm.memcg_usage(group), Ok(19));
    let mut of_1 = mm.allocator().pageset_counts();
    assert!(of_1.all(|set| set.cpu != CpuId(1) || set.parked == 0));
    mm.check().unwrap();
    mm.cpu_online(CpuId(1)).unwrap();
    drop(folios);
    mm.check().unwrap();
}

fn stepped(start_cpus: StartCpus) -> &'static PageAllocator<Stepped> {
    let mut map: BootMap = one_region(HIGH, 1 << 15);
    // SAFETY: the frames are numbers; nobody uses the memory behind them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Stepped>::claim(&mut map) };
    let memory = memory.with_storage(host::storage(1 << 18));
    let config = Config {
        pageset_slots: 256,
        raw_codes: false,
        ..config(Policy::Fixed, 2, start_cpus)
    };
    Box::leak(Box::new(PageAllocator::new(memory, &config).unwrap()))
}

type State = (
    &'static PageAllocator<Stepped>,
    std::cell::RefCell<Vec<Pages<'static, Stepped>>>,
);

fn with_parked(start: StartCpus) -> impl FnMut() -> State {
    move || {
        let machine = stepped(start);
        let held: Vec<_> = (0..30).map(|_| machine.try_alloc(ONE).unwrap()).collect();
        let mut held = held;
        held.truncate(12);
        (machine, held.into())
    }
}

fn at_rest((machine, held): &State) {
    held.borrow_mut().clear();
    machine.check().unwrap();
    assert_eq!(machine.free_frames(), 1 << 15);
    machine.drain_all();
    assert_eq!(machine.parked_frames(), 0);
    machine.check().unwrap();
}

fn allocate_and_free((machine, held): &State) {
    let mut held = held.borrow_mut();
    held.pop();
    for order in [0, 0, 1, 3] {
        let request = Request::new(Order::new(order).unwrap()).ignore_watermarks();
        held.push(machine.try_alloc(request).unwrap());
    }
    drop(held.remove(0));
}

/// misuse 28, 29: an interrupt that allocates and frees at any point of a CPU's going.
#[test]
fn interrupts_on_top_of_a_cpu_that_goes_are_served_and_leave_it_empty() {
    let points = at_every_point(
        with_parked(StartCpus::All),
        |(machine, _)| {
            machine.cpu_offline(CpuId(0)).unwrap();
        },
        allocate_and_free,
        |state: &State| {
            assert_eq!(
                state.0.parked_frames(),
                0,
                "nothing is parked behind the drain"
            );
            at_rest(state);
        },
    );
    assert!(points > 10, "{points}");
}

/// misuse 29: two drains of all at once, at any point; and one on top of a CPU that comes.
#[test]
fn drains_and_cpus_that_come_meet_at_every_point_and_lose_nothing() {
    for start in [StartCpus::All, StartCpus::First] {
        at_every_point(
            with_parked(start),
            |(machine, _)| machine.drain_all(),
            |state: &State| {
                state.0.drain_all();
                allocate_and_free(state);
            },
            at_rest,
        );
    }
    at_every_point(
        with_parked(StartCpus::First),
        |(machine, _)| {
            machine.cpu_online(CpuId(1)).unwrap();
        },
        |state: &State| {
            state.0.drain_all();
            state.0.drain_cpu(CpuId(1));
            allocate_and_free(state);
        },
        at_rest,
    );
    at_every_point(
        with_parked(StartCpus::First),
        |(machine, _)| machine.drain_all(),
        |state: &State| {
            state.0.cpu_online(CpuId(1)).unwrap();
            allocate_and_free(state);
        },
        at_rest,
    );
}
