//! Random calls against a naive model: one flag per frame, and a map of what was given.

extern crate std;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use super::{Random, absent, online, order, range};
use crate::addr::{Order, Pfn};
use crate::host::Host;
use crate::platform::IrqOff;
use crate::zone::{Block, Mobility, Zone};

struct Model {
    zone: &'static Zone<Host>,
    /// Per frame of the span: free.
    free: Vec<bool>,
    /// Blocks that the test holds, by first frame.
    held: BTreeMap<u64, u8>,
    start: u64,
}

impl Model {
    fn new(zone: &'static Zone<Host>) -> Self {
        let span = zone.span();
        Self {
            zone,
            free: span.iter().map(|pfn| zone.is_managed(pfn)).collect(),
            held: BTreeMap::new(),
            start: span.start().0,
        }
    }

    fn taken(&mut self, pfn: Pfn, order: Order) {
        assert!(pfn.is_aligned(order), "{pfn} order {order}");
        let at = (pfn.0 - self.start) as usize;
        for free in &mut self.free[at..at + order.frames() as usize] {
            assert!(*free, "{pfn} order {order}: given twice");
            *free = false;
        }
        self.held.insert(pfn.0, order.get());
    }

    fn given(&mut self, pfn: u64) -> Order {
        let order = order(self.held.remove(&pfn).unwrap());
        let at = (pfn - self.start) as usize;
        self.free[at..at + order.frames() as usize].fill(true);
        order
    }

    /// Largest free aligned blocks, counted the slow way.
    fn blocks(&self) -> [u64; Order::COUNT] {
        let mut counts = [0; Order::COUNT];
        let mut pfn = self.start;
        let end = self.zone.span().end().0;
        let free = |pfn: u64, k: u8| {
            pfn >= self.start
                && pfn + (1 << k) <= end
                && self.free[(pfn - self.start) as usize..][..1 << k]
                    .iter()
                    .all(|f| *f)
        };
        while pfn < end {
            if !free(pfn, 0) {
                pfn += 1;
                continue;
            }
            let mut k = 0;
            while k < 18 && pfn & ((2 << k) - 1) == 0 && free(pfn, k + 1) {
                k += 1;
            }
            counts[k as usize] += 1;
            pfn += 1 << k;
        }
        counts
    }

    fn compare(&self) {
        self.zone.check().unwrap();
        let free = self.free.iter().filter(|free| **free).count() as u64;
        assert_eq!(self.zone.free_frames_exact(), free);
        assert!(self.zone.free_frames().abs_diff(free) <= self.zone.drift());
        assert_eq!(self.zone.free_blocks_by_order(), self.blocks());
    }

    fn random_held(&self, random: &mut Random) -> Option<u64> {
        let from = self.start + random.below(self.free.len() as u64);
        let next = self.held.range(from..).next().or(self.held.iter().next());
        next.map(|(&pfn, _)| pfn)
    }

    fn step(&mut self, random: &mut Random, highest: u64) {
        let off = IrqOff::new();
        let kind = Mobility::ALL[random.below(3) as usize];
        let home = random.below(8) as u32;
        match random.below(6) {
            0 | 1 => {
                let order = order(random.below(highest + 1) as u8);
                match self.zone.take(order, kind, home, &off) {
                    Some(block) => self.taken(block.pfn(), block.order()),
                    None => {
                        let blocks = self.blocks();
                        let fitting = blocks[order.get() as usize..].iter().sum::<u64>();
                        assert_eq!(fitting, 0, "order {order} refused");
                    }
                }
            }
            2 => {
                let order = order(random.below(4) as u8);
                let mut out = vec![0; random.below(200) as usize];
                let n = self.zone.take_blocks(order, kind, home, &mut out, &off);
                for frame in &out[..n] {
                    self.taken(Pfn(self.zone.base().0 + u64::from(*frame)), order);
                }
                assert!(
                    n == out.len()
                        || self.blocks()[order.get() as usize..]
                            .iter()
                            .all(|n| *n == 0)
                );
            }
            3 | 4 => {
                if let Some(pfn) = self.random_held(random) {
                    let order = self.given(pfn);
                    self.zone.give(Block::new(Pfn(pfn), order), &off).unwrap();
                }
            }
            _ => {
                let Some(first) = self.random_held(random) else {
                    return;
                };
                let k = self.held[&first];
                let many = random.below(100) as usize;
                let same: Vec<u64> = (self.held.range(first..))
                    .filter(|(_, held)| **held == k)
                    .map(|(&pfn, _)| pfn)
                    .take(many)
                    .collect();
                let mut frames: Vec<u32> = same
                    .iter()
                    .map(|&pfn| (pfn - self.zone.base().0) as u32)
                    .collect();
                if random.below(2) == 0 {
                    frames.reverse();
                }
                for &pfn in &same {
                    self.given(pfn);
                }
                self.zone.give_blocks(order(k), &mut frames, &off);
            }
        }
    }
}

#[test]
fn random_calls_on_a_small_ragged_zone_agree_with_a_flag_per_frame() {
    for seed in 0..8 {
        let zone = absent(700, 700 + 5000, 1 + seed as u32);
        {
            let off = IrqOff::new();
            zone.online(range(700, 2000), &off).unwrap();
            zone.online(range(2100, 2101), &off).unwrap();
            zone.online(range(2560, 5700), &off).unwrap();
        }
        let mut random = Random(seed);
        let mut model = Model::new(zone);
        model.compare();
        for _ in 0..1000 {
            model.step(&mut random, 11);
            model.compare();
        }
        assert_eq!(zone.faults(), 0);
    }
}

#[test]
fn random_calls_on_four_gib_agree_with_a_flag_per_frame_up_to_order_18() {
    // Starts in the middle of a GiB, so that the first and the last shard are short.
    let (start, frames) = ((1 << 18) + 512 * 77, 1 << 20);
    let zone = online(start, start + frames, 4);
    assert_eq!(zone.shards(), 3);
    let mut random = Random(99);
    let mut model = Model::new(zone);
    for i in 0..3000 {
        model.step(&mut random, 18);
        if i % 200 == 0 {
            model.compare();
        }
    }
    let held: Vec<u64> = model.held.keys().copied().collect();
    let off = IrqOff::new();
    for pfn in held {
        let order = model.given(pfn);
        zone.give(Block::new(Pfn(pfn), order), &off).unwrap();
    }
    model.compare();
    assert_eq!(zone.free_blocks(Order::MAX), 3);
    assert_eq!(zone.faults(), 0);
}
