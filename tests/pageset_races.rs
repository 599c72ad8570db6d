//! Pagesets at every point at which another CPU may drain, close or bypass them. allocator.md 3.8 and 6.

#[path = "common/stepper.rs"]
mod stepper;

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::{
    Config, Contig, CpuId, FrameRange, Mobility, Moved, NodeId, Order, PageAllocator, Pages, Pfn,
    PhysAddr, Request,
};
use stepper::{Stepped, locks_held, remotely_at_every_point};

const FIRST: u64 = 1 << 20;
const FRAMES: u64 = 1 << 15;
const ONE: Request = Request::new(Order::ZERO).mobility(Mobility::Movable);

fn machine() -> &'static PageAllocator<Stepped> {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(FIRST << 12), FRAMES << 12)
        .unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Stepped>::claim(&mut map) };
    let mut bytes = Vec::<MaybeUninit<u8>>::new();
    bytes.resize_with(64 << 10, MaybeUninit::uninit);
    let config = Config {
        cpus: 2,
        pageset_slots: 64,
        raw_codes: false,
        ..Config::default()
    };
    let memory = memory.with_storage(Storage::from_static(bytes.leak()));
    Box::leak(Box::new(PageAllocator::new(memory, &config).unwrap()))
}

/// R6: a refill's frames are on the list and in the count together, or its pageset is locked: a drain finds all of them, or waits.
#[test]
fn a_drain_at_any_point_of_a_refill_waits_for_it_or_leaves_nothing() {
    type State = (
        &'static PageAllocator<Stepped>,
        RefCell<Vec<Pages<'static, Stepped>>>,
    );
    let (waited, drained) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (waits, drains) = (Rc::clone(&waited), Rc::clone(&drained));
    remotely_at_every_point(
        1,
        || (machine(), RefCell::default()),
        |(machine, held): &State| held.borrow_mut().push(machine.try_alloc(ONE).unwrap()),
        move |(machine, _): &State| {
            if locks_held() == 0 {
                machine.drain_cpu(CpuId(0));
                assert_eq!(machine.parked_frames(), 0);
                drains.set(drains.get() + 1);
            } else {
                // Here the lock says so, where another CPU would wait.
                let drain = catch_unwind(AssertUnwindSafe(|| machine.drain_cpu(CpuId(0))));
                assert!(
                    drain.is_err(),
                    "the refill is done under its pageset's lock"
                );
                waits.set(waits.get() + 1);
            }
        },
        |(machine, held)| {
            // Those parked are free, too.
            assert_eq!(machine.free_frames(), FRAMES - 1);
            machine.drain_all();
            assert_eq!(
                (machine.parked_frames(), machine.free_frames()),
                (0, FRAMES - 1)
            );
            held.borrow_mut().clear();
            machine.check().unwrap();
        },
    );
    assert!(waited.get() >= 4 && drained.get() >= 4);
}

/// R7: a frame that is freed at any point while its range is collected is never parked behind the drain: it is in the range.
#[test]
fn a_frame_freed_at_any_point_of_a_collection_is_not_parked_but_collected() {
    struct State {
        machine: &'static PageAllocator<Stepped>,
        used: RefCell<Option<Pages<'static, Stepped>>>,
        got: RefCell<Option<Contig<'static, Stepped>>>,
    }
    let range = FrameRange::new(Pfn(FIRST), Pfn(FIRST + 1024));
    let freed = Rc::new(Cell::new(0));
    let frees = Rc::clone(&freed);
    let points = remotely_at_every_point(
        1,
        move || {
            let machine = machine();
            let all: Vec<_> = (0..1024).map(|_| machine.try_alloc(ONE).unwrap()).collect();
            let used = all.into_iter().find(|pages| pages.pfn() == Pfn(FIRST + 5));
            State {
                machine,
                used: RefCell::new(Some(used.unwrap())),
                got: RefCell::default(),
            }
        },
        move |state| {
            let got = state.machine.alloc_contig(range, |_| {
                drop(state.used.take());
                Moved::Tried
            });
            *state.got.borrow_mut() = Some(got.unwrap());
        },
        move |state| {
            // Nobody else would wait long for a lock that is held here.
            if locks_held() == 0 {
                frees.set(frees.get() + u32::from(state.used.take().is_some()));
            }
        },
        |state| {
            let machine = state.machine;
            assert_eq!(machine.parked_frames(), 0);
            assert_eq!(machine.free_frames(), FRAMES - 1024);
            machine.check().unwrap();
            drop(state.got.take());
            assert_eq!(machine.free_frames(), FRAMES);
            // Pagesets are open again.
            drop(machine.try_alloc(ONE).unwrap());
            assert!(machine.parked_frames() > 0);
            machine.check().unwrap();
        },
    );
    assert!(
        freed.get() > 10 && points > 40,
        "{} of {points}",
        freed.get()
    );
}
