//! What safe code can try: handles across threads, hooks of the platform that panic, answers that change.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::sync::{Epoch, Lock, PerCpu, Pinned, Ranked};
use framekeeper::{
    CpuId, Folio, IrqOff, Isolated, Mm, MmConfig, NodeId, Order, PageAllocator, Pages, Pfn,
    PhysAddr, Platform, Rank, Request,
};

/// A platform whose answers a test changes while the crate asks.
#[derive(Debug)]
enum Moody {}

thread_local! {
    /// Calls of `lock_acquired` and `lock_released` until one panics.
    static CALLS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    /// Calls of `cpu` so far.
    static CPU_CALLS: Cell<u32> = const { Cell::new(0) };
    static CPUS: Cell<&'static [u32]> = const { Cell::new(&[0]) };
}

fn count_down() {
    match CALLS_LEFT.get() {
        Some(0) => {
            CALLS_LEFT.set(None);
            panic!("the platform was told to panic");
        }
        left => CALLS_LEFT.set(left.map(|left| left - 1)),
    }
}

// SAFETY: no memory is ever given to an instance, so the direct map has nothing to cover; ids are shared.
#[allow(unsafe_code)]
unsafe impl Platform for Moody {
    type RawLock = framekeeper::sync::SpinLock;
    fn cpu() -> CpuId {
        CPU_CALLS.set(CPU_CALLS.get() + 1);
        CpuId(CPUS.get()[CPU_CALLS.get() as usize % CPUS.get().len()])
    }
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_: usize) {}
    fn direct_map(_: PhysAddr) -> *mut u8 {
        core::ptr::null_mut()
    }
    fn lock_acquired(_: Rank) {
        count_down();
    }
    fn lock_released(_: Rank) {
        count_down();
    }
}

fn machine(config: &MmConfig) -> Mm<Moody> {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4096), 600 << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Moody>::claim(&mut map) };
    let mut bytes = Vec::<MaybeUninit<u8>>::with_capacity(4 << 20);
    bytes.resize_with(4 << 20, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(bytes.leak()));
    Mm::new(memory, config).map_err(|e| e.0).unwrap()
}

// `<IsSend<T>>::YES`: where its bound holds, the inherent constant hides the trait's.
struct IsSend<T>(T);
struct IsSync<T>(T);
impl<T: Send> IsSend<T> {
    const YES: bool = true;
}
impl<T: Sync> IsSync<T> {
    const YES: bool = true;
}
trait No {
    const YES: bool = false;
}
impl<T> No for IsSend<T> {}
impl<T> No for IsSync<T> {}
struct IsClone<T>(T);
impl<T: Clone> IsClone<T> {
    const YES: bool = true;
}
impl<T> No for IsClone<T> {}

/// misuse 53: metadata's storage, the memory that is promised, and an instance are moved into whoever gets them. There is nothing to
/// initialise twice, and nothing that can be used before it is complete.
#[test]
fn what_belongs_to_one_instance_cannot_be_had_twice() {
    const {
        assert!(IsClone::<u32>::YES);
        assert!(!IsClone::<Storage>::YES);
        assert!(!IsClone::<Memory<'static, Moody>>::YES);
        assert!(!IsClone::<framekeeper::boot::LateMemory>::YES);
        assert!(!IsClone::<PageAllocator<Moody>>::YES);
        assert!(!IsClone::<Mm<Moody>>::YES);
    }
}

struct Data;
impl Ranked for Data {
    const RANK: Rank = Rank::LruVec;
}

/// Data of one thread.
struct Local(core::marker::PhantomData<*mut ()>);
impl Ranked for Local {
    const RANK: Rank = Rank::LruVec;
}

/// What crosses threads, and what belongs to one CPU.
#[test]
fn handles_may_change_threads_and_tokens_may_not() {
    macro_rules! assert_threads {
        ($($send:literal $sync:literal $type:ty),* $(,)?) => {$(
            assert_eq!(
                (<IsSend<$type>>::YES, <IsSync<$type>>::YES),
                ($send, $sync),
                stringify!($type)
            );
        )*};
    }
    assert_threads!(
        true true Mm<Moody>,
        true true PageAllocator<Moody>,
        true true Pages<'static, Moody>,
        true true Folio<'static, Moody>,
        true true Isolated<'static, Moody>,
        true true Epoch<Moody>,
        true true Lock<Data, Moody>,
        false false Lock<Local, Moody>,
        true false Storage,
        false false IrqOff<Moody>,
        false false Pinned<'static, Moody>,
        false false framekeeper::sync::Held<'static, Data, Moody>,
        false false PerCpu<Cell<u32>>,
    );
}

/// misuse 58
#[test]
fn a_platform_that_panics_around_a_hold_leaves_the_lock_free() {
    let lock = Lock::<Data, Moody>::new(Data);
    let other = Lock::<Data, Moody>::new(Data);
    IrqOff::with(|off| {
        for calls in 0..4 {
            CALLS_LEFT.set(Some(calls));
            let result = catch_unwind(AssertUnwindSafe(|| {
                drop(Lock::lock_pair(&lock, &other, off));
            }));
            assert!(result.is_err());
            assert!(lock.try_lock(off).is_some() && other.try_lock(off).is_some());
            CALLS_LEFT.set(Some(calls % 2));
            let result = catch_unwind(AssertUnwindSafe(|| drop(lock.try_lock(off))));
            assert!(result.is_err());
            assert!(lock.try_lock(off).is_some());
        }
    });
}

/// misuse 58: the lock hook panics after `LRU` was won, before the frame is unlinked: the frame is still listed, and nobody has one
/// reference too many.
#[test]
fn a_platform_that_panics_before_a_won_frame_is_unlinked_leaves_it_listed() {
    type Act = fn(&Mm<Moody>, &Folio<'_, Moody>);
    let acts: [Act; 3] = [
        |_, folio| drop(folio.isolate()),
        |mm, folio| {
            let first = folio.pfn();
            let range = framekeeper::FrameRange::new(first, Pfn(first.0 + 1));
            mm.isolate_range(range, drop);
        },
        |_, folio| folio.keep_from_reclaim(),
    ];
    for act in acts {
        let mm = machine(&MmConfig::new(1, 4));
        let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
        let Ok(folio) = pages.try_charge_to(&mm, framekeeper::MemcgId::ROOT) else {
            panic!("there is room")
        };
        folio.add_to_lru(framekeeper::Backing::Anon).unwrap();
        mm.drain_lru();
        CALLS_LEFT.set(Some(0));
        assert!(catch_unwind(AssertUnwindSafe(|| act(&mm, &folio))).is_err());
        assert_eq!(folio.references(), 1);
        mm.check().unwrap();
        assert_eq!(mm.isolated_frames(NodeId(0)), Some([0, 0]));
        folio.let_reclaim();
        drop(folio.isolate().expect("it is on its list"));
        drop(folio);
        mm.check().unwrap();
        assert_eq!(
            mm.allocator().free_frames(),
            mm.allocator().managed_frames()
        );
    }
}

/// misuse 58: at whatever lock point of an LRU operation the platform panics, locks are free, lists and counts agree, and work goes on.
/// What was in hand may be leaked, as references that nobody gives back.
#[test]
fn a_platform_that_panics_at_any_lock_point_leaves_lists_and_counts_right() {
    type Act = fn(&Mm<Moody>, &[Folio<'_, Moody>]);
    let acts: [(&str, Act); 9] = [
        ("activate", |mm, folios| {
            folios.iter().for_each(Folio::activate);
            mm.drain_lru();
        }),
        ("deactivate", |mm, folios| {
            folios.iter().for_each(Folio::deactivate_file);
            mm.drain_lru();
        }),
        ("mlock", |mm, folios| {
            folios.iter().for_each(Folio::mlock);
            mm.drain_lru();
            folios.iter().for_each(Folio::munlock);
            mm.drain_lru();
        }),
        ("keep", |mm, folios| {
            folios.iter().for_each(Folio::keep_from_reclaim);
            mm.let_reclaim_all(folios);
        }),
        ("isolate", |_, folios| drop(folios[0].isolate())),
        ("scan", |mm, folios| {
            let first = folios.iter().map(|folio| folio.pfn().0).min().unwrap();
            let range = framekeeper::FrameRange::new(Pfn(first), Pfn(first + 64));
            mm.isolate_range(range, drop);
        }),
        ("batches off", |mm, folios| {
            let off = mm.batches_off();
            folios[0].activate();
            drop(off);
        }),
        ("split", |mm, _| {
            let pages = mm.try_alloc(Request::new(Order::new(2).unwrap())).unwrap();
            let folio = pages.try_charge_to(mm, framekeeper::MemcgId::ROOT).unwrap();
            folio.add_to_lru(framekeeper::Backing::File).unwrap();
            mm.release_all(folio.split(Order::ZERO).unwrap());
        }),
        ("last put", |mm, _| {
            let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
            let folio = pages.try_charge_to(mm, framekeeper::MemcgId::ROOT).unwrap();
            folio.add_to_lru(framekeeper::Backing::Anon).unwrap();
            drop(folio);
            mm.drain_lru();
        }),
    ];
    for (name, act) in acts {
        for calls in 0.. {
            assert!(calls < 500, "{name} does not end");
            let mm = machine(&MmConfig::new(1, 4));
            let folios: Vec<_> = (0..3)
                .map(|_| {
                    let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
                    let folio = pages
                        .try_charge_to(&mm, framekeeper::MemcgId::ROOT)
                        .unwrap();
                    folio.add_to_lru(framekeeper::Backing::File).unwrap();
                    folio
                })
                .collect();
            mm.drain_lru();
            CALLS_LEFT.set(Some(calls));
            let result = catch_unwind(AssertUnwindSafe(|| act(&mm, &folios)));
            let reached = CALLS_LEFT.take().is_none();
            assert_eq!(result.is_err(), reached);
            assert_eq!(mm.check(), Ok(()), "{name}, point {calls}");
            mm.drain_lru();
            drop(folios);
            assert_eq!(mm.check(), Ok(()), "{name}, point {calls}, afterwards");
            if !reached {
                break;
            }
        }
    }
}

fn life(mm: &Mm<Moody>, group: framekeeper::MemcgId) {
    let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
    let Ok(folio) = pages.try_charge_to(mm, group) else {
        panic!("there is room")
    };
    folio.add_to_lru(framekeeper::Backing::Anon).unwrap();
    folio.activate();
    mm.drain_lru();
    folio.mark_accessed();
    folio.mark_accessed();
    drop(folio.isolate());
    let second = folio.clone();
    drop(folio);
    mm.drain_lru();
    drop(second);
}

/// misuse 27
#[test]
fn a_cpu_number_that_changes_with_every_call_is_slower_and_never_wrong() {
    CPUS.set(&[0, 1, 2, 77, u32::MAX, 1, 0]);
    let mm = machine(&MmConfig::new(3, 4));
    let group = mm.create_memcg(framekeeper::MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(group).unwrap();
    let mut kept = Vec::new();
    for round in 0..400u32 {
        life(&mm, group);
        let request = Request::new(Order::new((round % 3) as u8).unwrap());
        if let Ok(pages) = mm.try_alloc(request) {
            kept.extend(pages.try_charge_to(&mm, child).ok());
        }
        if let Some(folio) = kept.last() {
            let _maybe_again = folio.add_to_lru(framekeeper::Backing::File);
        }
        if round % 3 == 0 {
            drop(kept.drain(..kept.len() / 2));
        }
        if round % 50 == 0 {
            mm.check().unwrap();
            mm.allocator().drain_all();
            mm.allocator().tick();
        }
    }
    mm.remove_memcg(child).unwrap();
    drop(kept);
    mm.drain_lru();
    mm.check().unwrap();
    assert_eq!(
        mm.allocator().free_frames(),
        mm.allocator().managed_frames()
    );
}

thread_local! {
    static ASKED: Cell<u32> = const { Cell::new(0) };
    static LIES_FROM: Cell<u32> = const { Cell::new(0) };
}

fn turns() -> bool {
    ASKED.set(ASKED.get() + 1);
    ASKED.get() > LIES_FROM.get()
}

/// misuse 9, 10: a configuration's functions that answer differently each time.
#[test]
fn a_shape_that_changes_while_it_is_read_is_no_panic() {
    for lies_from in (0..60).step_by(4) {
        for node_lies in [false, true] {
            for lie in [1, 5, 200u8] {
                thread_local!(static LIE: Cell<u8> = const { Cell::new(0) });
                LIE.set(lie);
                ASKED.set(0);
                LIES_FROM.set(lies_from);
                let mut config = MmConfig::new(3, 2).nodes(6);
                if node_lies {
                    config.alloc.node_of = |_| NodeId(if turns() { LIE.get() } else { 0 });
                } else {
                    config.alloc.distance = |_, _| {
                        if turns() {
                            ASKED.get() as u8
                        } else {
                            LIE.get()
                        }
                    };
                }
                let mut map: BootMap = BootMap::new();
                map.add(NodeId(0), PhysAddr(4096), 600 << 12).unwrap();
                // SAFETY: the frames are numbers only; nothing reads or writes them.
                #[allow(unsafe_code)]
                let memory = unsafe { Memory::<Moody>::claim(&mut map) };
                let mut bytes = Vec::<MaybeUninit<u8>>::with_capacity(1 << 20);
                bytes.resize_with(1 << 20, MaybeUninit::uninit);
                let memory = memory.with_storage(Storage::from_static(bytes.leak()));
                if let Ok(mm) = Mm::new(memory, &config) {
                    mm.check().unwrap();
                    drop(mm.try_alloc(Request::new(Order::ZERO)));
                }
            }
        }
    }
}

#[test]
fn an_address_and_a_number_take_any_page_shift() {
    for shift in [0, 63, 64, u32::MAX] {
        let _ = (Pfn(u64::MAX).addr(shift), PhysAddr(u64::MAX).pfn(shift));
    }
    assert_eq!(PhysAddr(u64::MAX).pfn(64), Pfn(0));
}
