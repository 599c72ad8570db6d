//! Watermarks, boosts, drift.

extern crate std;
use std::vec;

use super::{absent, fill, online, order, range};
use crate::addr::Order;
use crate::platform::IrqOff;
use crate::zone::{Access, Level, Levels, Mobility};

#[test]
fn each_kind_of_urgency_lowers_the_mark_by_its_own_part() {
    let atomic = Access::MIN_RESERVE | Access::NON_BLOCK;
    for (access, mark) in [
        (Access::empty(), 1000),
        (Access::NON_BLOCK, 1000),
        (Access::MIN_RESERVE, 500),
        (atomic, 375),
        (Access::OOM, 500),
        (atomic | Access::OOM, 188),
    ] {
        assert_eq!(access.lowered(1000), mark);
    }
}

#[test]
fn a_request_needs_strictly_more_than_the_mark_and_a_block_of_its_order() {
    let zone = online(0, 8192, 1);
    assert!(zone.suffices(Order::ZERO, 100, 20, Access::empty(), 121));
    assert!(!zone.suffices(Order::ZERO, 100, 20, Access::empty(), 120));
    assert!(!zone.suffices(order(3), 100, 20, Access::empty(), 127));
    assert!(zone.suffices(order(3), 100, 20, Access::empty(), 128));
    assert!(
        !zone.suffices(order(14), 0, 0, Access::empty(), 1 << 20),
        "no such block"
    );
    let off = IrqOff::new();
    let mut odd = fill(zone, Mobility::Movable);
    odd.retain(|frame| frame % 2 == 0);
    zone.give_blocks(Order::ZERO, &mut odd, &off);
    assert!(zone.suffices(
        Order::ZERO,
        100,
        0,
        Access::empty(),
        zone.free_frames_exact()
    ));
    assert!(!zone.suffices(order(1), 100, 0, Access::empty(), zone.free_frames_exact()));
}

/// misuse 60.
#[test]
fn levels_out_of_order_or_above_the_zone_are_refused_and_change_nothing() {
    let zone = online(0, 8192, 1);
    let good = Levels {
        min: 1,
        low: 2,
        high: 3,
        promo: 4,
    };
    zone.set_levels(good).unwrap();
    for bad in [
        Levels { min: 3, ..good },
        Levels { high: 1, ..good },
        Levels { promo: 2, ..good },
        Levels {
            promo: 8193,
            ..good
        },
        Levels {
            min: 9000,
            low: 9000,
            high: 9000,
            promo: 9000,
        },
    ] {
        assert_eq!(zone.set_levels(bad).unwrap_err().levels, bad);
        assert_eq!(zone.levels(), good);
    }
    let all = Levels {
        min: 8192,
        low: 8192,
        high: 8192,
        promo: 8192,
    };
    zone.set_levels(all).unwrap();
    assert_eq!(zone.levels(), all);
}

/// R18: less than four pageblocks, or no watermarks yet.
#[test]
fn a_boost_stays_within_its_cap_and_leaves_small_zones_alone() {
    let small = online(0, 4 * 512 - 1, 1);
    small
        .set_levels(Levels {
            min: 1,
            low: 2,
            high: 3,
            promo: 4,
        })
        .unwrap();
    small.raise_boost();
    assert_eq!(small.boost(), 0);
    let zone = online(0, 1 << 18, 1);
    zone.raise_boost();
    assert_eq!(zone.boost(), 0);
    let levels = Levels {
        min: 512,
        low: 774,
        high: 1036,
        promo: 1298,
    };
    zone.set_levels(levels).unwrap();
    for expected in [512, 1024, 1536, 1554, 1554] {
        zone.raise_boost();
        assert_eq!(zone.boost(), expected);
        assert_eq!(zone.mark(Level::Low), levels.low + zone.boost());
    }
    zone.lower_boost(1000);
    assert_eq!(zone.boost(), 554);
    zone.lower_boost(1000);
    assert_eq!(zone.boost(), 0);
}

#[test]
fn mixing_kinds_boosts_the_levels() {
    let zone = online(0, 8192, 1);
    zone.set_levels(Levels {
        min: 1,
        low: 2,
        high: 3,
        promo: 4,
    })
    .unwrap();
    let off = IrqOff::new();
    let mut frames = fill(zone, Mobility::Movable);
    assert_eq!(zone.boost(), 0, "nothing was there to mix with");
    zone.give_blocks(Order::ZERO, &mut frames[..1], &off);
    let lent = zone
        .take(Order::ZERO, Mobility::Unmovable, 0, &off)
        .unwrap();
    assert_eq!(zone.boost(), 512);
    zone.give(lent, &off).unwrap();
}

#[test]
fn the_cheap_count_is_never_further_off_than_its_drift() {
    let zone = online(0, 8 << 18, 8);
    assert_eq!(zone.shards(), 8);
    let off = IrqOff::new();
    let mut out = vec![0; 200];
    let mut least = 0;
    // Also when the threshold falls and rises meanwhile.
    for threshold in [256, 1000, 125, 0, 700] {
        zone.set_drift_threshold(threshold, &off);
        assert_eq!(zone.drift(), 8 * threshold);
        for home in (0..8).cycle().take(500) {
            let lag = zone.free_frames().abs_diff(zone.free_frames_exact());
            assert!(lag <= zone.drift(), "{lag} at {threshold}");
            least = least.max(lag);
            zone.take_blocks(Order::ZERO, Mobility::Movable, home, &mut out, &off);
        }
    }
    assert!(least > 125, "it did lag");
    // Near the mark the exact count decides.
    assert_eq!(zone.free_near(zone.free_frames()), zone.free_frames_exact());
    zone.check().unwrap();
}

#[test]
fn a_large_zone_comes_online_with_work_for_each_line_not_each_frame() {
    // 64 GiB: the bound on lines per hold is checked at each hold.
    let zone = absent(0, 1 << 24, 16);
    let off = IrqOff::new();
    let holds = zone.holds();
    zone.online(range(0, 1 << 24), &off).unwrap();
    assert!(zone.holds() - holds <= (1 << 15) / 2016 + 1 + 16);
    assert_eq!(zone.free_blocks(Order::MAX), 64);
}
