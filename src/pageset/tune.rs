//! How many frames a pageset moves at once and how many it may hold: pure functions, equal to Linux's.
//!
//! Owns: [`Policy`], [`Limits`] and their formulas. Invariants: `batch` is at least 1, `high_min <= high_max`.
//! Lock ranks: none. Used by: node, whenever managed memory, a watermark or the set of CPUs changes.

use crate::addr::Order;

/// Which rule sizes and trims the pagesets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Linux 5.4's: a batch and a limit of six batches, both fixed by the zone's size. The default: few frames are parked,
    /// so that others still fill the fullest pageblocks, and shards keep CPUs apart already.
    #[default]
    Fixed,
    /// Today's: the batch grows while a CPU only allocates, the limit moves between two bounds with use. It asks the zone
    /// less often and parks ten times as much.
    Auto,
}

/// What one CPU's pageset of a zone may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The rule.
    pub policy: Policy,
    /// Frames per exchange with the zone, at least 1.
    pub batch: u32,
    /// The lowest value that the limit takes, in frames. 0: nothing is parked.
    pub high_min: u32,
    /// The highest.
    pub high_max: u32,
    /// Pageblocks that may be parked under the fixed rule.
    pub pageblocks: u32,
}

/// What the limits are computed from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inputs {
    /// Frames that the zone manages.
    pub managed: u64,
    /// Its low watermark in frames, boost included; 0 before watermarks are known.
    pub low: u64,
    /// CPUs of the zone's node, or of the machine if the node has none.
    pub cpus: u32,
    /// The share of the zone that all pagesets together may hold, as its reciprocal, if set by hand: at least 8.
    pub fraction: Option<u32>,
    /// log2 of the page size.
    pub page_shift: u32,
}

/// The share of a zone that all its pagesets may hold at most under [`Policy::Auto`], as its reciprocal.
const MAX_FRACTION: u64 = 8;

/// The batch of a zone that is large, 688 MiB or more.
const LARGE_BATCH: u32 = 63;

impl Limits {
    /// Before anything is known: one frame at a time, nothing parked.
    pub const BOOT: Self = Self {
        policy: Policy::Fixed,
        batch: 1,
        high_min: 0,
        high_max: 0,
        pageblocks: 0,
    };

    /// What a block of `order` counts against the limit. Linux 5.4 cached single frames only, so the fixed rule is free to
    /// keep some pageblocks in a large zone: `pageblocks` of them fill the limit.
    pub(crate) fn weight(&self, order: Order) -> u16 {
        match (self.policy, order) {
            (Policy::Fixed, Order::PAGEBLOCK) if self.is_large() => {
                (self.high_max / self.pageblocks.max(1)).clamp(1, 512) as u16
            }
            _ => order.frames() as u16,
        }
    }

    /// Whether the zone is large enough that pagesets may keep pageblocks under the fixed rule.
    pub(crate) const fn is_large(&self) -> bool {
        self.batch >= LARGE_BATCH
    }

    /// The limits of one pageset.
    #[must_use]
    pub fn new(policy: Policy, inputs: &Inputs) -> Self {
        match policy {
            Policy::Fixed => fixed(inputs),
            Policy::Auto => auto(inputs),
        }
    }
}

/// Linux 5.4: a quarter of a thousandth of the zone, at most 256 KiB, to just below a power of two; six times that.
fn fixed(inputs: &Inputs) -> Limits {
    if let Some(fraction) = inputs.fraction {
        let high = inputs.managed / u64::from(fraction.max(1));
        let batch = (high / 4).clamp(1, u64::from(inputs.page_shift.max(1)) * 8);
        let high = clip(high);
        return Limits {
            policy: Policy::Fixed,
            batch: batch as u32,
            high_min: high,
            high_max: high,
            pageblocks: pageblocks(inputs),
        };
    }
    let most = (1u64 << 20).checked_shr(inputs.page_shift).unwrap_or(0);
    let quarter = ((inputs.managed / 1024).min(most) / 4).max(1);
    let batch = below_power(quarter);
    Limits {
        policy: Policy::Fixed,
        batch: batch.max(1),
        high_min: 6 * batch,
        high_max: 6 * batch,
        pageblocks: pageblocks(inputs),
    }
}

/// Linux today (6.7 and later).
fn auto(inputs: &Inputs) -> Limits {
    let most = (256u64 << 10).checked_shr(inputs.page_shift).unwrap_or(0);
    let quarter = (inputs.managed / 4096).min(most);
    let batch = if quarter <= 1 {
        1
    } else {
        below_power(quarter)
    };
    let share =
        |frames: u64| clip((frames / u64::from(inputs.cpus.max(1))).max(4 * u64::from(batch)));
    let (high_min, high_max) = match inputs.fraction {
        Some(fraction) => {
            let high = share(inputs.managed / u64::from(fraction.max(1)));
            (high, high)
        }
        None => (share(inputs.low), share(inputs.managed / MAX_FRACTION)),
    };
    Limits {
        policy: Policy::Auto,
        batch,
        high_min,
        // Linux lets the lower bound win where a small zone has a large watermark.
        high_max: high_max.max(high_min),
        pageblocks: 0,
    }
}

/// Of a thirty-second of the zone, a CPU's share: at least six pageblocks, as few as one exchange pays for, and at most 24,
/// with which an exchange costs each block less than the pageset's own lock.
fn pageblocks(inputs: &Inputs) -> u32 {
    let share = inputs.managed / 32 / u64::from(inputs.cpus.max(1));
    (share / Order::PAGEBLOCK.frames()).clamp(6, 24) as u32
}

/// One less than the largest power of two that is at most 1.5 times `n`: such batches meet their allocations out of step.
fn below_power(n: u64) -> u32 {
    let power = 1u64 << (n + n / 2).ilog2();
    (power - 1) as u32
}

fn clip(frames: u64) -> u32 {
    u32::try_from(frames)
        .unwrap_or(u32::MAX / 2)
        .min(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(managed: u64, low: u64, cpus: u32) -> Inputs {
        Inputs {
            managed,
            low,
            cpus,
            fraction: None,
            page_shift: 12,
        }
    }

    fn fixed_of(managed: u64) -> (u32, u32) {
        let limits = Limits::new(Policy::Fixed, &inputs(managed, 0, 1));
        assert_eq!(limits.high_min, limits.high_max);
        (limits.batch, limits.high_max)
    }

    fn auto_of(managed: u64, low: u64, cpus: u32) -> (u32, u32, u32) {
        let limits = Limits::new(Policy::Auto, &inputs(managed, low, cpus));
        (limits.batch, limits.high_min, limits.high_max)
    }

    #[test]
    fn the_fixed_rule_has_the_steps_of_linux_5_4() {
        // allocator.md 3.2: each range's first and last size.
        for (first, last, batch, high) in [
            (0, 8191, 1, 0),
            (8192, 12287, 1, 6),
            (12288, 24575, 3, 18),
            (24576, 45055, 7, 42),
            (45056, 90111, 15, 90),
            (90112, 176127, 31, 186),
            (176_128, 1 << 30, 63, 378),
        ] {
            assert_eq!(fixed_of(first), (batch, high), "{first}");
            assert_eq!(fixed_of(last), (batch, high), "{last}");
        }
    }

    #[test]
    fn the_automatic_rule_has_the_same_batches() {
        for managed in (0..1 << 20).step_by(509) {
            assert_eq!(auto_of(managed, 0, 1).0, fixed_of(managed).0, "{managed}");
        }
    }

    #[test]
    fn known_machines_get_their_limits_before_and_after_all_memory_is_known() {
        // allocator.md 7.1: managed, low watermark, CPUs of the node; 5.4's pair, today's triple.
        for (managed, low, cpus, fixed, auto) in [
            (32_768, 0, 128, (7, 42), (7, 28, 32)),
            (67_108_864, 78_693, 128, (63, 378), (63, 614, 65_536)),
            (66_060_288, 77_463, 128, (63, 378), (63, 605, 64_512)),
            (782_336, 0, 128, (63, 378), (63, 252, 764)),
            (3_972, 0, 128, (1, 0), (1, 4, 4)),
            (32_768, 0, 2, (7, 42), (7, 28, 2_048)),
            (262_144, 774, 2, (63, 378), (63, 387, 16_384)),
            (782_336, 0, 2, (63, 378), (63, 252, 48_896)),
            (782_336, 2_310, 2, (63, 378), (63, 1_155, 48_896)),
            (32_768, 0, 1, (7, 42), (7, 28, 4_096)),
            (32_768, 452, 1, (7, 42), (7, 452, 4_096)),
            (32_768, 452, 4, (7, 42), (7, 113, 1_024)),
            (131_072, 904, 2, (31, 186), (31, 452, 8_192)),
        ] {
            assert_eq!(fixed_of(managed), fixed, "{managed}");
            assert_eq!(auto_of(managed, low, cpus), auto, "{managed}/{low}/{cpus}");
        }
    }

    #[test]
    fn pageblocks_that_stay_under_the_fixed_rule_are_a_small_share_of_the_zone() {
        for (managed, cpus, most) in [(176_128, 2, 6), (1 << 20, 2, 24), (1 << 20, 8, 8)] {
            let limits = Limits::new(Policy::Fixed, &inputs(managed, 0, cpus));
            assert_eq!(limits.pageblocks, most);
            let weight = u32::from(limits.weight(Order::PAGEBLOCK));
            assert!(limits.high_max / weight <= most + 1, "{managed}");
        }
        let small = Limits::new(Policy::Fixed, &inputs(100_000, 0, 2));
        assert_eq!(small.weight(Order::PAGEBLOCK), 512);
    }

    #[test]
    fn a_fraction_set_by_hand_switches_the_tuning_off() {
        let by_hand = Inputs {
            fraction: Some(8),
            ..inputs(262_144, 774, 2)
        };
        let limits = Limits::new(Policy::Auto, &by_hand);
        assert_eq!((limits.high_min, limits.high_max), (16_384, 16_384));
        let limits = Limits::new(Policy::Fixed, &by_hand);
        assert_eq!((limits.batch, limits.high_max), (96, 32_768));
    }

    #[test]
    fn larger_pages_keep_the_bytes_of_a_batch() {
        for (page_shift, batch) in [(12, 63), (14, 15), (16, 3)] {
            let large = Inputs {
                page_shift,
                ..inputs(1 << 24, 0, 1)
            };
            assert_eq!(Limits::new(Policy::Auto, &large).batch, batch);
            assert_eq!(Limits::new(Policy::Fixed, &large).batch, batch);
        }
    }
}
