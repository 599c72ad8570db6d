//! What the kernel holds, counted from its own tables and caches: each frame once, by zone and by group.
//!
//! Everything is at rest meanwhile: other CPUs idle, timers without frames.

use core::sync::atomic::{AtomicU64, Ordering};

use framekeeper::{FrameRange, MemcgId, NodeId, PageState, Pfn, ZoneKind};

use crate::arch::pte;
use crate::page::{Area, Page, State, order_at};
use crate::table::{self, LEVELS};
use crate::{disk, objects, port, space};

/// Frames that can be told apart: 8 GiB.
const FRAMES: usize = 1 << 21;
/// A bit for each frame: the kernel holds it.
static HELD: [AtomicU64; FRAMES / 64] = [const { AtomicU64::new(0) }; FRAMES / 64];

/// A frame that the kernel holds twice, or that is beyond those that can be told apart.
#[derive(Clone, Copy, Debug)]
pub struct HeldTwice(pub Pfn);

/// What a group's pages and objects are, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OfGroup {
    pub anon: u64,
    pub file: u64,
    /// Of objects.
    pub objects: u64,
    /// In a state that says that the copy does not stand, by the folio itself.
    pub dirty: u64,
}

/// Marks every frame that the kernel holds.
pub fn mark_all() -> Result<(), HeldTwice> {
    for word in &HELD {
        word.store(0, Ordering::Relaxed);
    }
    objects::each_frame(|pfn, _| {
        mark(range(pfn, 1));
    });
    let mut twice = None;
    let mut hold = |frames: FrameRange| {
        if !mark(frames) {
            twice = Some(HeldTwice(frames.start()));
        }
    };
    disk::each_dma(&mut hold);
    space::each(|_, space| {
        hold(range(space.root, 1));
        table::visit(space.root, LEVELS, 0, &mut |place, _| {
            let entry = place.entry.load(Ordering::Acquire);
            match place.state() {
                State::Table => hold(range(pte::pfn(entry), 1)),
                State::Present => {
                    let frames = order_at(place.level).frames();
                    hold(range(pte::pfn(entry), frames));
                }
                _ => {}
            }
        });
    });
    twice.map_or(Ok(()), Err)
}

/// Frames of a zone that are marked.
pub fn held_in(node: NodeId, kind: ZoneKind, span: FrameRange) -> u64 {
    let allocator = port::mm().expect("started").allocator();
    let marked = |pfn: u64| {
        let word = HELD.get((pfn / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (pfn % 64) != 0)
    };
    let frames = (span.start().0..span.end().0).filter(|&pfn| marked(pfn));
    frames
        .filter(|&pfn| {
            (allocator.node_of(Pfn(pfn)), allocator.zone_of(Pfn(pfn))) == (Some(node), Some(kind))
        })
        .count() as u64
}

/// The frames of a group: of its space, and of the objects that were made for it.
pub fn of_group(id: u32) -> (Option<MemcgId>, OfGroup) {
    let mm = port::mm().expect("started");
    let mut sum = OfGroup::default();
    let memcg = space::with(id, |space| {
        table::visit(space.root, LEVELS, 0, &mut |place, address| {
            if place.state() != State::Present {
                return;
            }
            let frames = order_at(place.level).frames();
            let page = Page::of(id, address);
            if page.is_some_and(|page| page.area == Area::File) {
                sum.file += frames;
            } else {
                sum.anon += frames;
            }
            let folio = mm.try_get(pte::pfn(place.entry.load(Ordering::Acquire)));
            if folio.is_some_and(|folio| folio.is_in(PageState::DIRTY)) {
                sum.dirty += frames;
            }
        });
        space.memcg
    });
    for word in &HELD {
        word.store(0, Ordering::Relaxed);
    }
    objects::each_frame(|pfn, group| {
        if group == id as usize && mark(range(pfn, 1)) {
            sum.objects += 1;
        }
    });
    (memcg, sum)
}

/// Marks frames: whether none of them was.
fn mark(frames: FrameRange) -> bool {
    (frames.start().0..frames.end().0).all(|pfn| {
        HELD.get((pfn / 64) as usize).is_some_and(|word| {
            word.fetch_or(1 << (pfn % 64), Ordering::Relaxed) & 1 << (pfn % 64) == 0
        })
    })
}

fn range(start: Pfn, frames: u64) -> FrameRange {
    FrameRange::new(start, Pfn(start.0 + frames))
}
