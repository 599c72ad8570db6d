//! Hooks that panic half-way, end the group under reclaim, or reuse its place: nothing is lost, nobody else pays.

#[path = "common/host.rs"]
mod host;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use framekeeper::boot::{BootMap, Memory};
use framekeeper::{
    Backing, Evict, Folio, Isolated, MemcgId, Mm, MmConfig, NodeId, Order, Pfn, PhysAddr, Refused,
    Request, Unmap, WriteOut,
};
use host::{Host, locks_held, storage};

/// Which hook is running.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hook {
    Referenced,
    Unmap,
    WriteOut,
    Remap,
}

/// What a test does inside the hooks.
type Script = Box<dyn FnMut(Hook, &Isolated<'_, Host>)>;

thread_local! {
    static SCRIPT: RefCell<Option<Script>> = const { RefCell::new(None) };
    static TASK: Cell<u64> = const { Cell::new(0) };
}

fn run(hook: Hook, folio: &Isolated<'_, Host>) {
    if let Some(mut script) = SCRIPT.take() {
        script(hook, folio);
        SCRIPT.set(Some(script));
    }
}

/// A mapping is bit 0 of the folio's word, and holds a reference.
impl Evict for Host {
    fn referenced(folio: &Isolated<'_, Self>) -> u32 {
        run(Hook::Referenced, folio);
        0
    }
    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        run(Hook::Unmap, folio);
        if folio.clear_word_bits(1) & 1 != 0 {
            // SAFETY: `map` gave the number out, and its bit was set until now.
            #[allow(unsafe_code)]
            drop(unsafe { folio.mm().folio_from_raw(folio.pfn()) });
        }
        Unmap::Done
    }
    fn write_out(folio: &Isolated<'_, Self>) -> WriteOut {
        run(Hook::WriteOut, folio);
        WriteOut::Done
    }
    fn remap(folio: &Isolated<'_, Self>) {
        run(Hook::Remap, folio);
        let _mapped: Pfn = map(folio.reference());
    }
    fn task() -> u64 {
        TASK.get()
    }
}

fn map(folio: Folio<'_, Host>) -> Pfn {
    folio.set_word_bits(1);
    folio.into_raw()
}

fn machine(frames: u64, groups: u32) -> &'static Mm<Host> {
    let mut boot: BootMap = BootMap::new();
    boot.add(NodeId(0), PhysAddr(4096), frames << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Host>::claim(&mut boot) };
    let memory = memory.with_storage(storage(frames as usize * 64 + (4 << 20)));
    let mm = Mm::new(memory, &MmConfig::new(1, groups)).map_err(Refused::into_error);
    Box::leak(Box::new(mm.unwrap()))
}

/// Mapped folios on the LRU.
fn faults(mm: &'static Mm<Host>, memcg: MemcgId, backing: Backing, count: usize) -> Vec<Pfn> {
    let fault = |_| {
        let pages = mm.try_alloc(Request::new(Order::ZERO)).unwrap();
        let folio = pages.try_charge_to(mm, memcg).unwrap();
        folio.add_to_lru(backing).unwrap();
        map(folio)
    };
    let pages = (0..count).map(fault).collect();
    mm.drain_lru();
    pages
}

/// Runs `script` in every hook while `body` runs.
fn with_hooks<T>(
    script: impl FnMut(Hook, &Isolated<'_, Host>) + 'static,
    body: impl FnOnce() -> T,
) -> std::thread::Result<T> {
    SCRIPT.set(Some(Box::new(script)));
    let result = catch_unwind(AssertUnwindSafe(body));
    SCRIPT.set(None);
    result
}

/// misuse 43: what the hook was to write out is still unwritten.
#[test]
fn a_write_out_that_panics_leaves_the_folio_dirty_and_mapped() {
    for at in [Hook::WriteOut, Hook::Unmap, Hook::Referenced] {
        let mm = machine(300, 2);
        let group = mm.create_memcg(MemcgId::ROOT).unwrap();
        let page = faults(mm, group, Backing::File, 1)[0];
        mm.try_get(page).unwrap().mark_dirty();
        let result = with_hooks(
            move |hook, _| assert!(hook != at, "the hook was told to panic"),
            || mm.shrink_memcg(group, 1),
        );
        assert!(result.is_err());
        mm.check().unwrap();
        let folio = mm.try_get(page).expect("the folio was put back");
        assert!(folio.is_dirty(), "its contents were never written out");
        assert_eq!(
            (folio.word() & 1, folio.references()),
            (1, 2),
            "it is mapped, as before"
        );
        drop(folio);
        assert_eq!(mm.shrink_memcg(group, 1).unwrap().freed, 1);
        mm.check().unwrap();
    }
}

/// misuse 63
#[test]
fn a_group_that_takes_the_place_of_the_one_under_reclaim_keeps_its_frames() {
    let mm = machine(600, 4);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    faults(mm, group, Backing::Anon, 64);
    let mut next = None;
    let (sender, receiver) = std::sync::mpsc::channel();
    let result = with_hooks(
        move |_, _| {
            if next.is_none() {
                mm.remove_memcg(group).unwrap();
                let heir = mm.create_memcg(MemcgId::ROOT).unwrap();
                sender
                    .send((heir, faults(mm, heir, Backing::Anon, 64)))
                    .unwrap();
                next = Some(heir);
            }
        },
        || mm.shrink_memcg(group, 64).unwrap(),
    );
    let reclaimed = result.unwrap();
    let (heir, pages) = receiver.recv().unwrap();
    assert_eq!(mm.memcg_usage(heir), Ok(64), "{reclaimed:?}");
    assert!(pages.iter().all(|&pfn| mm.try_get(pfn).is_some()));
    mm.check().unwrap();
}

/// misuse 63
#[test]
fn a_walk_over_a_group_never_leaves_it_though_its_child_ends_and_lives_again_elsewhere() {
    let mm = machine(900, 6);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let child = mm.create_memcg(group).unwrap();
    let other = mm.create_memcg(MemcgId::ROOT).unwrap();
    let bystander = mm.create_memcg(other).unwrap();
    let pages = faults(mm, bystander, Backing::Anon, 64);
    faults(mm, child, Backing::Anon, 64);
    let mut ended = false;
    let result = with_hooks(
        move |_, _| {
            if !core::mem::replace(&mut ended, true) {
                mm.remove_memcg(child).unwrap();
                let _elsewhere = mm.create_memcg(other).unwrap();
            }
        },
        || mm.shrink_memcg(group, 1000).unwrap(),
    );
    assert!(result.is_ok());
    assert_eq!(mm.memcg_usage(bystander), Ok(64));
    assert!(pages.iter().all(|&pfn| mm.try_get(pfn).is_some()));
    mm.check().unwrap();
}

#[test]
fn every_number_names_a_thread_that_may_reclaim() {
    let mm = machine(300, 2);
    for task in [0, 1, u64::MAX - 1, u64::MAX] {
        TASK.set(task);
        faults(mm, MemcgId::ROOT, Backing::Anon, 4);
        assert_eq!(mm.reclaim(4).freed, 4, "task {task}");
    }
    TASK.set(0);
}

/// misuse 44: whatever a hook does, and however long it takes, nobody waits for a lock of ours. (What visits a list_lru holds
/// that list's lock, and its documentation says so.)
#[test]
fn no_hook_runs_under_a_lock() {
    let mm = machine(600, 2);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    let pages = faults(mm, group, Backing::Anon, 60);
    let stays = pages[3];
    let seen = Rc::new(RefCell::new(Vec::new()));
    let hooks = Rc::clone(&seen);
    let script = move |hook, folio: &Isolated<'_, Host>| {
        assert_eq!(locks_held(), 0);
        hooks.borrow_mut().push(hook);
        if hook == Hook::WriteOut && folio.pfn() == stays {
            let _used: Pfn = folio.reference().into_raw(); // somebody uses it after all
        }
    };
    let freed = with_hooks(script, || mm.shrink_memcg(group, 60).unwrap().freed);
    assert_eq!(freed.unwrap(), 59);
    for hook in [Hook::Referenced, Hook::Unmap, Hook::WriteOut, Hook::Remap] {
        assert!(seen.borrow().contains(&hook), "{}", hook as u8);
    }
    // SAFETY: the number came from `into_raw` in the script.
    #[allow(unsafe_code)]
    drop(unsafe { mm.folio_from_raw(stays) });
    mm.check().unwrap();
}
