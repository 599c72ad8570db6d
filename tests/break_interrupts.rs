//! An interrupt at every point of every operation on folios and groups: served, nothing lost.

#[path = "common/stepper.rs"]
mod stepper;

use std::cell::RefCell;
use std::mem::MaybeUninit;

use framekeeper::boot::{BootMap, Memory, Storage};
use framekeeper::{
    Backing, Evict, Folio, Isolated, MemcgId, Mm, MmConfig, NodeId, Order, PhysAddr, Request,
    Unmap, WriteOut,
};
use stepper::{Stepped, at_every_point};

/// A mapping is bit 0 of the folio's word, and holds a reference.
impl Evict for Stepped {
    fn referenced(_: &Isolated<'_, Self>) -> u32 {
        0
    }
    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        if folio.clear_word_bits(1) & 1 != 0 {
            // SAFETY: `map` gave the number out, and its bit was set until now.
            #[allow(unsafe_code)]
            drop(unsafe { folio.mm().folio_from_raw(folio.pfn()) });
        }
        Unmap::Done
    }
    fn write_out(_: &Isolated<'_, Self>) -> WriteOut {
        WriteOut::Done
    }
    fn remap(folio: &Isolated<'_, Self>) {
        map(folio.reference());
    }
}

fn map(folio: Folio<'_, Stepped>) {
    folio.set_word_bits(1);
    let _mapped = folio.into_raw();
}

type Kept = RefCell<Vec<Folio<'static, Stepped>>>;

/// An instance with a parent, its child, and folios of the child in every state.
struct State {
    mm: &'static Mm<Stepped>,
    parent: MemcgId,
    child: MemcgId,
    /// Listed.
    listed: Folio<'static, Stepped>,
    /// Waits in the add batch.
    queued: Folio<'static, Stepped>,
    isolated: RefCell<Option<Isolated<'static, Stepped>>>,
    kept: Kept,
}

fn machine() -> &'static Mm<Stepped> {
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(4096), 100 << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Stepped>::claim(&mut map) };
    let mut bytes = Vec::<MaybeUninit<u8>>::with_capacity(64 << 10);
    bytes.resize_with(64 << 10, MaybeUninit::uninit);
    let memory = memory.with_storage(Storage::from_static(bytes.leak()));
    let mut config = MmConfig::new(1, 5);
    config.alloc.pageset_slots = 64;
    let mm = Mm::new(memory, &config).map_err(|e| e.0).unwrap();
    Box::leak(Box::new(mm))
}

fn folio(mm: &'static Mm<Stepped>, memcg: MemcgId) -> Option<Folio<'static, Stepped>> {
    let pages = mm.try_alloc(Request::new(Order::ZERO)).ok()?;
    pages.try_charge_to(mm, memcg).ok()
}

fn setup() -> State {
    let mm = machine();
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(parent).unwrap();
    let add = || {
        let folio = folio(mm, child).unwrap();
        folio.add_to_lru(Backing::Anon).unwrap();
        folio
    };
    let (listed, taken) = (add(), add());
    (0..4).for_each(|_| map(add()));
    mm.drain_lru();
    let isolated = taken.isolate().unwrap();
    // 29 wait: the batch is full after two more. Four are mapped and nothing else.
    let queued = add();
    let kept = (0..28).map(|_| add()).collect();
    State {
        mm,
        parent,
        child,
        listed,
        queued,
        isolated: RefCell::new(Some(isolated)),
        kept: RefCell::new(kept),
    }
}

type Operation = (&'static str, fn(&State));

/// What a kernel may do, in a thread.
const OPERATIONS: [Operation; 20] = [
    ("create", |s| _ = s.mm.create_memcg(s.parent)),
    ("remove", |s| _ = s.mm.remove_memcg(s.child)),
    ("limit", |s| _ = s.mm.set_memcg_max(s.child, 31)),
    ("charge", |s| {
        let folio = folio(s.mm, s.child);
        s.kept.borrow_mut().extend(folio);
    }),
    ("die queued", |s| {
        let folio = folio(s.mm, s.parent).unwrap();
        folio.add_to_lru(Backing::File).unwrap();
    }),
    ("fill the batch", |s| {
        for _ in 0..3 {
            let folio = folio(s.mm, s.parent).unwrap();
            folio.add_to_lru(Backing::File).unwrap();
        }
    }),
    ("drain", |s| s.mm.drain_lru()),
    ("activate", |s| {
        s.listed.activate();
        s.queued.activate();
    }),
    ("use", |s| {
        for _ in 0..2 {
            s.listed.mark_accessed();
            s.queued.mark_accessed();
        }
    }),
    ("write", |s| {
        s.listed.start_writeback();
        s.listed.deactivate_file();
        s.listed.end_writeback();
        s.listed.move_tail();
        s.queued.move_tail();
    }),
    ("lock", |s| {
        s.listed.mlock();
        s.queued.mlock();
        s.listed.munlock();
    }),
    ("keep", |s| {
        s.listed.keep_from_reclaim();
        s.listed.let_reclaim();
    }),
    ("batches off", |s| drop(s.mm.batches_off())),
    ("split", |s| {
        let order = Order::new(1).unwrap();
        if let Ok(pages) = s.mm.try_alloc(Request::new(order)) {
            let folio = pages.try_charge_to(s.mm, s.parent).unwrap();
            folio.add_to_lru(Backing::File).unwrap();
            if let Ok(parts) = folio.split(Order::ZERO) {
                s.mm.release_all(parts);
            }
        }
    }),
    ("isolate", |s| drop(s.listed.isolate())),
    ("put back", |s| {
        let isolated = s.isolated.borrow_mut().take();
        drop(isolated);
    }),
    ("free", |s| {
        let kept = s.kept.take();
        drop(kept);
    }),
    ("reclaim", |s| _ = s.mm.shrink_memcg(s.child, 3)),
    ("shrink", |s| _ = s.mm.shrink_memcg_to(s.child, 30)),
    ("give back", |s| {
        s.mm.allocator().drain_all();
        s.mm.allocator().tick();
    }),
];

/// misuse 28: every operation but the removal of a group, on top of every operation.
#[test]
fn every_operation_may_interrupt_every_operation() {
    for (body_name, body) in OPERATIONS {
        for (name, interrupt) in OPERATIONS {
            // It waits for what it interrupts, as its documentation says.
            if name == "remove" {
                continue;
            }
            // A reclaim has thousands of points: the operations that change the most under it.
            if body_name == "shrink"
                || body_name == "reclaim" && !matches!(name, "free" | "drain" | "shrink")
            {
                continue;
            }
            at_every_point(setup, body, interrupt, |state| {
                state.mm.drain_lru();
                assert_eq!(state.mm.check(), Ok(()), "{name} on top of {body_name}");
                let kept = state.kept.take();
                drop(kept);
                drop(state.isolated.take());
                assert_eq!(state.mm.check(), Ok(()), "{name} on top of {body_name}");
                assert_eq!(state.mm.refused_puts(), 0);
                let charged = state.mm.memcg_usage(state.parent).unwrap();
                let alloc = state.mm.allocator();
                assert_eq!(alloc.free_frames() + charged, alloc.managed_frames());
            });
        }
    }
}

/// A charged folio has a group at every moment: its own, or one above it.
#[test]
fn a_folio_has_a_group_at_every_point_of_its_groups_end() {
    at_every_point(
        setup,
        |s| s.mm.remove_memcg(s.child).unwrap(),
        |s| {
            let group = s.listed.memcg();
            assert!(
                group == Some(s.child) || group == Some(s.parent),
                "{group:?}"
            );
        },
        |s| assert_eq!(s.listed.memcg(), Some(s.parent)),
    );
}
