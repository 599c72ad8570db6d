//! Many blocks at once, and emptying the pagesets.
//!
//! Owns: bulk frees and drains. Invariants: at most one chunk moves per hold of a pageset's lock.
//! Lock ranks: Pageset, Shard. Used by: reclaim, the slow path, isolation.

use core::iter::Peekable;

use arrayvec::ArrayVec;

use super::attempt::Attempt;
use super::place::{Place, Sort};
use super::{Contents, PageAllocator, Pages, Request};
use crate::addr::{CpuId, Order};
use crate::pageset::{CHUNK_FRAMES, ListId};
use crate::platform::{IrqOff, Platform};
use crate::zone::{Block, Mobility};

/// Frames that a drain gives back per hold of a pageset's lock: 32 chunks.
const DRAIN_FRAMES: u32 = 32 * CHUNK_FRAMES as u32;

impl<P: Platform> PageAllocator<P> {
    /// Fills the empty slots of `out` with blocks, first to last, as far as what is free now goes. Returns how many slots
    /// from the start are full then, those that were full before included.
    pub fn try_alloc_bulk<'a>(
        &'a self,
        request: Request,
        out: &mut [Option<Pages<'a, P>>],
    ) -> usize {
        let mut empty = out.iter_mut().filter(|slot| slot.is_none()).peekable();
        while empty.peek().is_some() {
            // One hold of the pageset's lock fills many slots; what it cannot serve takes the way of single requests.
            let filled = self.alloc_parked_into(request, &mut empty);
            if filled == 0 {
                let (Some(slot), Ok(pages)) = (empty.next(), self.try_alloc(request)) else {
                    break;
                };
                *slot = Some(pages);
            }
        }
        out.iter().take_while(|slot| slot.is_some()).count()
    }

    fn alloc_parked_into<'s, 'a: 's>(
        &'a self,
        request: Request,
        slots: &mut Peekable<impl Iterator<Item = &'s mut Option<Pages<'a, P>>>>,
    ) -> usize {
        if !request.is_plain() || self.config.contents != Contents::Keep {
            return 0;
        }
        let off = IrqOff::<P>::new();
        let cpu = off.cpu();
        let parked = || {
            let zone = self.nodes.first(cpu, request.highest())?.zone;
            let entry = self.nodes.zones().get(usize::from(zone))?;
            let pageset = self.pagesets.of(cpu, u32::from(zone))?;
            Some((zone, entry, pageset.try_lock(&off)?))
        };
        let Some((zone, entry, mut cache)) = parked() else {
            return 0;
        };
        let (list, order) = (request.sort().list(), request.order());
        let home = entry.zone.home_shard(cpu);
        let mut filled = 0;
        while filled < CHUNK_FRAMES && slots.peek().is_some() {
            let frame = cache.pop(list).or_else(|| {
                let spare = self.spare(entry, request, Attempt::first(request))?;
                let (pressure, most) = (entry.pressure(), spare >> order.get());
                cache.refill(list, order, &entry.zone, home, pressure, most, &off)
            });
            // In this order: a slot that was taken from the iterator must be filled.
            let Some((frame, slot)) = frame.and_then(|frame| Some((frame, slots.next()?))) else {
                break;
            };
            *slot = Some(Pages {
                allocator: self,
                place: Place::cached(zone, frame, request.sort()),
            });
            filled += 1;
        }
        filled
    }

    /// Frees many blocks at the price of few: those of order 0 go to the pageset in batches.
    pub fn free_all<'a>(&'a self, pages: impl IntoIterator<Item = Pages<'a, P>>) {
        // Another instance's pages are freed there, by their drop.
        let own = pages
            .into_iter()
            .filter(|pages| core::ptr::eq(pages.allocator(), self));
        self.free_blocks(own.map(Pages::into_block));
    }

    /// Frees blocks that the caller owns; those of order 0 in batches. A block of no zone is leaked.
    pub(crate) fn free_blocks(&self, blocks: impl IntoIterator<Item = Block>) {
        let mut batch = Batch::new();
        for block in blocks {
            let Some((zone, frame, mobility)) = self.place(block.pfn()) else {
                debug_assert!(false, "a block of no zone: {block:?}");
                let _ = block.into_parts();
                continue;
            };
            let (_, order) = block.into_parts();
            if order != Order::ZERO || self.config.contents != Contents::Keep {
                let sort = Sort::new(order, ListId::new(order, mobility));
                self.free(self.place_of(zone, frame, sort));
                continue;
            }
            if batch.frames.is_full() || (batch.zone, batch.mobility) != (zone, mobility) {
                self.flush(&mut batch);
                (batch.zone, batch.mobility) = (zone, mobility);
            }
            batch.frames.push(frame);
        }
        self.flush(&mut batch);
    }

    fn flush(&self, batch: &mut Batch) {
        if batch.frames.is_empty() {
            return;
        }
        let off = IrqOff::new();
        let entry = &self.nodes.zones()[usize::from(batch.zone)];
        let zone = &entry.zone;
        let list = ListId::new(Order::ZERO, batch.mobility);
        if let Some(pageset) = self.pagesets.of(off.cpu(), u32::from(batch.zone))
            && let Some(mut cache) = pageset.try_lock(&off)
        {
            while let Some(&frame) = batch.frames.last() {
                if !cache.push(list, frame) {
                    let pressure = entry.pressure();
                    match cache.push_growing(list, frame, pressure, zone, &off) {
                        Some(trim) => cache.trim(list, trim.min(DRAIN_FRAMES), zone, &off),
                        None => break,
                    }
                }
                batch.frames.pop();
            }
        }
        if !batch.frames.is_empty() {
            zone.give_blocks(Order::ZERO, &mut batch.frames, &off);
            batch.frames.clear();
            self.reopen_pagesets(batch.zone);
        }
    }

    /// Gives everything that any CPU parks back to the zones.
    pub fn drain_all(&self) {
        let off = IrqOff::new();
        self.drain_zones(0..self.nodes.zones().len() as u8, &off);
    }

    /// Gives everything that `cpu` parks back to the zones; it may be offline, or running.
    pub fn drain_cpu(&self, cpu: CpuId) {
        let off = IrqOff::new();
        for zone in 0..self.nodes.zones().len() as u8 {
            self.drain(cpu, zone, &off);
        }
    }

    pub(super) fn drain_zones(&self, zones: impl Iterator<Item = u8>, off: &IrqOff<P>) {
        for zone in zones {
            for (cpu, _) in self.pagesets.of_zone(zone) {
                self.drain(cpu, zone, off);
            }
        }
    }

    fn drain(&self, cpu: CpuId, index: u8, off: &IrqOff<P>) {
        let Some(pageset) = self.pagesets.of(cpu, u32::from(index)) else {
            return;
        };
        let zone = self.nodes.zone(index);
        // What is parked meanwhile stays: a busy owner cannot keep this call for ever.
        let mut left = pageset.lock(off).load();
        while left > 0 {
            let mut cache = pageset.lock(off);
            let step = left.min(DRAIN_FRAMES);
            if cache.load() == 0 {
                return;
            }
            cache.trim(ListId::FIRST, step, zone, off);
            drop(cache);
            left -= step;
        }
    }
}

/// Frames of one zone and kind.
struct Batch {
    zone: u8,
    mobility: Mobility,
    frames: ArrayVec<u32, CHUNK_FRAMES>,
}

impl Batch {
    fn new() -> Self {
        Self {
            zone: 0,
            mobility: Mobility::Unmovable,
            frames: ArrayVec::new(),
        }
    }
}
