//! A pageset whose limits change in the middle of everything.

extern crate std;

use core::mem::MaybeUninit;
use std::vec::Vec;

use super::tune::{Limits, Policy};
use super::{Cache, ListId, Pressure};
use crate::addr::{FrameRange, NodeId, Order, Pfn, ZoneKind};
use crate::boot::{Bump, Storage};
use crate::host::Host;
use crate::platform::IrqOff;
use crate::zone::{Block, Mobility, Zone, ZoneSpec};

const FRAMES: u64 = 1 << 15;

fn zone_and_cache() -> (Zone<Host>, Cache) {
    let mut bytes = Vec::<MaybeUninit<u8>>::new();
    bytes.resize_with(1 << 18, MaybeUninit::uninit);
    let mut storage = Storage::from_static(bytes.leak());
    let mut bump = Bump::new(&mut storage);
    let spec = ZoneSpec {
        node: NodeId(0),
        kind: ZoneKind::Normal,
        span: FrameRange::new(Pfn(0), Pfn(FRAMES)),
        shards: 1,
        ragged: 0,
    };
    let zone = Zone::build(&mut bump, spec).unwrap();
    zone.online(spec.span, &IrqOff::new()).unwrap();
    (zone, Cache::build(&mut bump, 4096).unwrap())
}

/// R5: every mix of an old and a new batch with an old and a new high, those that Linux's torn writes made and all others: no panic, no
/// frame lost, and no more parked than the high in force and a batch.
#[test]
fn limits_in_any_mix_bound_what_is_parked_and_lose_nothing() {
    let list = ListId::new(Order::ZERO, Mobility::Movable);
    for policy in [Policy::Fixed, Policy::Auto] {
        let (zone, mut cache) = zone_and_cache();
        let off = IrqOff::<Host>::new();
        let mut out = Vec::new();
        for batch in [1, 7, 63] {
            for (high_min, high_max) in [(0, 0), (42, 42), (378, 378), (28, 4096), (378, 7)] {
                cache.set_limits(Limits {
                    policy,
                    batch,
                    high_min,
                    high_max,
                    pageblocks: 0,
                });
                for turn in 0..1000 {
                    for _ in 0..1 + turn % 5 {
                        let frame = cache.pop(list).or_else(|| {
                            let pressure = Pressure::None;
                            cache.refill(list, Order::ZERO, &zone, 0, pressure, u64::MAX, &off)
                        });
                        out.push(frame.unwrap());
                    }
                    for _ in 0..1 + turn * 7 % 6 {
                        let Some(frame) = out.pop() else { break };
                        if cache.push(list, frame) {
                            continue;
                        }
                        match cache.push_growing(list, frame, Pressure::None, &zone, &off) {
                            Some(trim) => cache.trim(list, trim, &zone, &off),
                            None => zone
                                .give(Block::new(Pfn(frame.into()), Order::ZERO), &off)
                                .unwrap(),
                        }
                        let most = high_max.max(high_min).max(1) + batch;
                        assert!(cache.load() <= most, "{} of {most}", cache.load());
                    }
                    let parked = u64::from(cache.load());
                    assert_eq!(zone.free_frames_exact() + parked + out.len() as u64, FRAMES);
                }
            }
        }
        zone.check().unwrap();
    }
}
