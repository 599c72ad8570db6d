//! Groups by the ten thousand: created, charged, ended, and nothing kept.

#![allow(unsafe_code)]

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use framekeeper::boot::{BootMap, Memory};
use framekeeper::memcg::CreateError;
use framekeeper::{
    Backing, MemcgId, Mm, MmConfig, NodeId, Order, PageState, Pfn, PhysAddr, Rank, Refused,
    Request, StateChange,
};
use host::{Host, locks_taken};
use kernel::build;

/// An instance with room for the metadata of many groups or frames.
fn large(frames: u64, config: &MmConfig, storage: usize) -> Mm<Host> {
    let mut map = BootMap::<8>::new();
    map.add(NodeId(0), PhysAddr(4096), frames << 12).unwrap();
    // SAFETY: the frames are numbers only; nothing reads or writes them.
    let memory = unsafe { Memory::<Host, 8>::claim(&mut map) };
    let memory = memory.with_storage(host::storage(storage));
    Mm::new(memory, config)
        .map_err(Refused::into_error)
        .unwrap()
}

/// A page that stays charged, by the reference that its mapping holds.
fn touch(mm: &Mm<Host>, memcg: MemcgId) -> Pfn {
    let pages = mm
        .try_alloc(Request::new(Order::ZERO).ignore_watermarks())
        .unwrap();
    let folio = pages.try_charge_to(mm, memcg).unwrap();
    folio.add_to_lru(Backing::File).unwrap();
    kernel::map(folio)
}

/// B16, misuse 50.
#[test]
fn seventy_thousand_groups_that_each_leave_a_page_behind_leave_no_group_behind() {
    const CYCLES: u32 = 70_000;
    let mut config = MmConfig::new(1, 2);
    config.memcgs.owners = 512;
    let mm = build(u64::from(CYCLES) + 2000, &config);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let mut pages = Vec::new();
    let mut last = None;
    for _ in 0..CYCLES {
        let brief = mm.create_memcg(parent).unwrap();
        assert_ne!(
            last.replace(brief),
            Some(brief),
            "an id is never given twice"
        );
        pages.push(touch(&mm, brief));
        mm.remove_memcg(brief).unwrap();
    }
    assert_eq!(mm.memcg_count(), 2);
    assert_eq!(mm.memcg_usage(parent), Ok(u64::from(CYCLES)));
    pages.into_iter().for_each(|pfn| kernel::unmap(&mm, pfn));
    mm.drain_lru();
    assert_eq!(mm.memcg_usage(parent), Ok(0));
    mm.remove_memcg(parent).unwrap();
    mm.check().unwrap();
    let allocator = mm.allocator();
    assert_eq!(allocator.free_frames(), allocator.managed_frames());
}

/// misuse 39, 50.
#[test]
fn sixty_five_thousand_groups_live_at_once_and_places_are_taken_again() {
    const GROUPS: usize = 65_534;
    let mut config = MmConfig::new(1, GROUPS as u32);
    config.memcgs.depth = 40;
    let mm = large(4000, &config, 160 << 20);
    let mut groups = vec![MemcgId::ROOT];
    // As deep as it goes, then wide.
    for i in 0..GROUPS {
        let parent = groups[if i < 40 { i } else { i % 40 }];
        groups.push(mm.create_memcg(parent).unwrap());
    }
    assert_eq!(mm.memcg_count() as usize, GROUPS + 1);
    let full = CreateError::TooMany { most: 65_535 };
    assert_eq!(mm.create_memcg(MemcgId::ROOT), Err(full));
    assert_eq!(
        mm.create_memcg(groups[40]),
        Err(CreateError::TooDeep { deepest: 40 })
    );
    let pages: Vec<_> = (0..1000).map(|i| touch(&mm, groups[40 + i * 60])).collect();
    assert_eq!(mm.memcg_usage(groups[1]), Ok(1000), "all are below it");
    for &group in groups[1..].iter().rev() {
        mm.remove_memcg(group).unwrap();
    }
    assert_eq!(mm.memcg_count(), 1);
    let again = mm.create_memcg(MemcgId::ROOT).unwrap();
    assert!(!groups.contains(&again), "another generation");
    pages.into_iter().for_each(|pfn| kernel::unmap(&mm, pfn));
    mm.drain_lru();
    let allocator = mm.allocator();
    assert_eq!(allocator.free_frames(), allocator.managed_frames());
    assert_eq!(mm.memcg_usage(again), Ok(0));
}

/// misuse 50.
#[test]
fn a_group_with_a_million_pages_ends_in_as_many_steps_as_one_with_a_thousand() {
    let steps = |frames: u64| {
        let mm = large(
            frames + 2000,
            &MmConfig::new(1, 4),
            (frames as usize * 64) + (8 << 20),
        );
        let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
        let child = mm.create_memcg(parent).unwrap();
        let mut last = None;
        for _ in 0..frames {
            last = Some(touch(&mm, child));
        }
        mm.drain_lru();
        let folio = mm.try_get(last.unwrap()).unwrap();
        folio.account(PageState::MAPPED, StateChange::Enter);
        let ranks = [
            Rank::MemcgTree,
            Rank::MemcgStock,
            Rank::LruBatch,
            Rank::LruVec,
            Rank::Pageset,
            Rank::Shard,
        ];
        let before = ranks.map(locks_taken);
        mm.remove_memcg(child).unwrap();
        let after = ranks.map(locks_taken);
        assert_eq!(mm.memcg_usage(parent), Ok(frames));
        assert_eq!((mm.memcg_count(), folio.memcg()), (2, Some(parent)));
        std::array::from_fn::<_, 6, _>(|i| after[i] - before[i])
    };
    let few = steps(1000);
    assert_eq!(
        few,
        [2, 1, 0, 2, 0, 0],
        "the tree twice, one stock, two lruvecs"
    );
    assert_eq!(steps(1_000_000), few);
}
