//! An interrupt at every point of every operation on ranges: it allocates and frees, and nothing is lost.

#[path = "common/stepper.rs"]
mod stepper;

use std::cell::RefCell;
use std::mem::MaybeUninit;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::{
    Balloon, Cma, Config, FrameRange, Mobility, Moved, NodeId, Order, PageAllocator, Pages, Pfn,
    PhysAddr, Refused, Reported, Request,
};
use stepper::{Stepped, at_every_point};

const FIRST: u64 = 1 << 20;
const FRAMES: u64 = 1 << 15;

/// An instance, and frames that are out.
struct State {
    allocator: &'static PageAllocator<Stepped>,
    /// The frames 0 to 3 of the third pageblock.
    used: RefCell<Vec<Pages<'static, Stepped>>>,
    /// What the interrupt keeps.
    kept: RefCell<Vec<Pages<'static, Stepped>>>,
}

fn machine() -> &'static PageAllocator<Stepped> {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(FIRST << 12), FRAMES << 12)
        .unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Stepped>::claim(&mut map) };
    let mut bytes = Vec::<MaybeUninit<u8>>::with_capacity(64 << 10);
    bytes.resize_with(64 << 10, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(bytes.leak()));
    let config = Config {
        cpus: 2,
        pageset_slots: 64,
        raw_codes: false,
        ..Config::default()
    };
    let allocator = PageAllocator::new(memory, &config).map_err(Refused::into_error);
    Box::leak(Box::new(allocator.unwrap()))
}

fn range(start: u64, end: u64) -> FrameRange {
    FrameRange::new(Pfn(FIRST + start), Pfn(FIRST + end))
}

fn movable(order: u8) -> Request {
    Request::new(Order::new(order).unwrap())
        .mobility(Mobility::Movable)
        .ignore_watermarks()
}

fn setup() -> State {
    let allocator = machine();
    let all: Vec<_> = (0..2000)
        .map(|_| allocator.try_alloc(movable(0)).unwrap())
        .collect();
    let used = all
        .into_iter()
        .filter(|pages| range(1024, 1028).contains(pages.pfn()))
        .collect();
    State {
        allocator,
        used: RefCell::new(used),
        kept: RefCell::default(),
    }
}

/// What a driver does in an interrupt.
fn interrupt(state: &State) {
    let allocator = state.allocator;
    drop(allocator.try_alloc(movable(0)));
    drop(allocator.try_alloc(Request::new(Order::new(2).unwrap())));
    drop(allocator.try_alloc(movable(9)));
    if let Ok(mut kept) = state.kept.try_borrow_mut() {
        kept.extend(allocator.try_alloc(movable(1)));
    }
    // It frees what the thread works on.
    if let Ok(mut used) = state.used.try_borrow_mut() {
        drop(used.pop());
    }
}

fn give_up(state: &State, run: FrameRange) -> Moved {
    let mut used = state.used.borrow_mut();
    used.retain(|pages| !run.contains(pages.pfn()));
    Moved::Tried
}

type Operation = (&'static str, fn(&State));

const OPERATIONS: [Operation; 8] = [
    ("mark bad in use", |s| {
        for n in [1024, 1026, 1027] {
            s.allocator.mark_bad(range(n, n + 1).start()).unwrap();
        }
    }),
    ("mark bad free", |s| {
        s.allocator.mark_bad(Pfn(FIRST + 7000)).unwrap();
    }),
    ("free bad", |s| {
        s.allocator.mark_bad(Pfn(FIRST + 1025)).unwrap();
        let used = s.used.take();
        s.allocator.free_all(used);
    }),
    ("contig", |s| {
        drop(
            s.allocator
                .alloc_contig(range(900, 1600), |run| give_up(s, run)),
        );
    }),
    ("offline", |s| {
        let gone = range(1000, 1600);
        if s.allocator.offline(gone, |run| give_up(s, run)).is_ok() {
            s.allocator.check().unwrap();
            s.allocator.online(gone).unwrap();
        }
    }),
    ("cma", |s| {
        let made = Cma::<Stepped>::new(s.allocator, range(1024, 2048), |run| give_up(s, run));
        if let Ok(cma) = made {
            let first = cma.alloc(100, Order::ZERO, |run| give_up(s, run));
            let second = cma.alloc(300, Order::PAGEBLOCK, |run| give_up(s, run));
            drop((first, second));
            assert_eq!(cma.used_frames(), 0);
        }
    }),
    ("balloon", |s| {
        let mut balloon = Balloon::<Stepped, 4>::new(s.allocator);
        balloon.inflate(movable(3), 4, |_| ()).unwrap();
        balloon.deflate(2, |_| ());
    }),
    ("report", |s| {
        s.allocator
            .report_free(Order::PAGEBLOCK, |_| Reported::Done);
    }),
];

/// misuse 25, 28
#[test]
fn an_interrupt_at_every_point_of_every_operation_on_ranges_is_served_and_loses_nothing() {
    let mut points = 0;
    for (name, operation) in OPERATIONS {
        let here = at_every_point(setup, operation, interrupt, |state| {
            state
                .allocator
                .check()
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            state.used.take();
            state.kept.take();
            state
                .allocator
                .check()
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            state.allocator.drain_all();
            let counts = state.allocator.zone_counts().next().unwrap();
            assert_eq!((counts.isolated, counts.cma, counts.ballooned), (0, 0, 0));
            assert_eq!(counts.managed, FRAMES, "{name}");
            assert_eq!(counts.free + counts.bad, FRAMES, "{name}");
            // No bad frame is in use any more: pagesets park again.
            drop(state.allocator.try_alloc(movable(0)).unwrap());
            assert!(state.allocator.parked_frames() > 0, "{name}");
        });
        assert!(here > 4, "{name} has {here} points");
        points += here;
    }
    assert!(points > 200, "{points} points");
}
