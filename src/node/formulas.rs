//! How much of a zone is kept free, and for whom: pure functions, equal to Linux's.
//!
//! Owns: the formulas of min_free, of a zone's [`Levels`], and of the reserves that protect low zones from requests that
//! could be served from higher ones, and of how far counters may lag. Invariants: a zone reserves nothing from its own requests.
//! Lock ranks: none. Used by: [`Nodes::recompute`](super::Nodes::recompute).

use crate::addr::ZoneKind;
use crate::zone::Levels;

/// How the marks follow from min_free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edition {
    /// Linux 5.4: min_free at most 64 MiB; movable memory takes part in sharing it.
    V5_4,
    /// Today: at most 256 MiB; movable memory does not.
    Now,
}

/// Distance of the marks by default, in ten-thousandths of a zone.
pub const SCALE_FACTOR: u32 = 10;

/// The largest distance that an edition has.
#[must_use]
pub const fn most_scale_factor(edition: Edition) -> u32 {
    match edition {
        Edition::V5_4 => 1000,
        Edition::Now => 3000,
    }
}

/// KiB to keep free, from the KiB of all memory that is not Movable.
#[must_use]
pub fn min_free_kib(edition: Edition, low_memory_kib: u64) -> u64 {
    let most = match edition {
        Edition::V5_4 => 64 << 10,
        Edition::Now => 256 << 10,
    };
    low_memory_kib.saturating_mul(16).isqrt().clamp(128, most)
}

/// One zone's part of what the marks are computed from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Its kind.
    pub kind: ZoneKind,
    /// Frames that it manages.
    pub managed: u64,
    /// Frames of all zones that share min_free.
    pub total: u64,
    /// Frames to keep free in all of them.
    pub min_free: u64,
    /// Distance of the marks, in ten-thousandths: 1 to 3000.
    pub scale_factor: u32,
}

impl Share {
    /// The zone's marks.
    #[must_use]
    pub fn levels(&self, edition: Edition) -> Levels {
        // 128 bits: frames times frames.
        let part = |a: u64, b: u64, of: u64| {
            (u128::from(a) * u128::from(b) / u128::from(of.max(1))) as u64
        };
        let share = part(self.min_free, self.managed, self.total);
        // A token of a zone that is smaller than the token is all of it.
        let min = match self.kind {
            ZoneKind::Movable => (self.managed / 1024).clamp(32, 128).min(self.managed),
            _ => share.min(self.managed),
        };
        let scaled = part(self.managed, u64::from(self.scale_factor), 10_000);
        let gap = scaled.max(share / 4);
        // Linux 5.4 has no fourth level.
        let promo = match edition {
            Edition::V5_4 => min + 2 * gap,
            Edition::Now => min + 3 * gap,
        };
        Levels {
            min,
            low: min + gap,
            high: min + 2 * gap,
            promo,
        }
    }
}

/// Whether a kind shares min_free.
#[must_use]
pub const fn shares_min_free(edition: Edition, kind: ZoneKind) -> bool {
    matches!(edition, Edition::V5_4) || !matches!(kind, ZoneKind::Movable)
}

/// Frames of a zone that requests for higher ones leave alone: how many of their frames it takes to earn one of its.
const RESERVE_RATIO: [u64; ZoneKind::ALL.len()] = [256, 256, 32, 0];

/// What each kind of zone of one node reserves from requests whose highest zone is another: `[zone][highest]`, from the
/// frames that each manages.
#[must_use]
pub fn reserves(
    managed: [u64; ZoneKind::ALL.len()],
) -> [[u64; ZoneKind::ALL.len()]; ZoneKind::ALL.len()] {
    let mut reserves = [[0; ZoneKind::ALL.len()]; ZoneKind::ALL.len()];
    for (zone, row) in reserves.iter_mut().enumerate() {
        let mut above = 0;
        for highest in zone + 1..managed.len() {
            above = managed[highest].saturating_add(above);
            if managed[zone] > 0 && RESERVE_RATIO[zone] > 0 {
                row[highest] = above / RESERVE_RATIO[zone];
            }
        }
    }
    reserves
}

/// What a zone cannot be used for at most: its largest reserve and its high mark, at most all of it.
#[must_use]
pub fn total_reserve(managed: u64, reserves: &[u64], high: u64) -> u64 {
    let largest = reserves.iter().copied().max().unwrap_or(0);
    managed.min(largest.saturating_add(high))
}

/// Most that [`stat_threshold`] says: Linux keeps what is not told yet in a byte.
const MOST_KEPT: u32 = 125;

/// How many frames a count of free ones may change before the zone is told, from the CPUs that run and the bytes that the zone manages:
/// more where there are more to tell it, and more for it to go by (Linux: `calculate_normal_threshold`).
#[must_use]
pub fn stat_threshold(cpus: u32, managed_bytes: u64) -> u32 {
    let digits = |n: u64| u64::BITS - n.leading_zeros();
    let sections = managed_bytes >> 27;
    (2 * digits(cpus.into()) * (1 + digits(sections))).min(MOST_KEPT)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counters_lag_by_what_linux_allows_and_by_a_byte_at_most() {
        // allocator.md 2.7; tests/golden_zoneinfo.rs has seven real machines.
        let frames = |cpus, managed: u64| stat_threshold(cpus, managed << 12);
        assert_eq!(frames(256, 67_108_864), 125);
        assert_eq!(frames(256, 782_336), 108);
        assert_eq!(frames(256, 3_972), 18);
        assert_eq!([262_144, 782_336].map(|n| frames(2, n)), [20, 24]);
        assert_eq!([0, 28_000].map(|n| frames(1, n)), [2, 2]);
        assert_eq!(frames(1, 32_768), 4);
        assert_eq!(stat_threshold(0, u64::MAX), 0);
        assert_eq!(stat_threshold(u32::MAX, u64::MAX), 125);
    }

    fn marks(edition: Edition, min_free_kib: u64, managed: u64, total: u64) -> Levels {
        Share {
            kind: ZoneKind::Normal,
            managed,
            total,
            min_free: min_free_kib / 4,
            scale_factor: SCALE_FACTOR,
        }
        .levels(edition)
    }

    #[test]
    fn min_free_is_the_root_of_low_memory_within_bounds() {
        // allocator.md 2.4, and the table in Linux's sources.
        let now = |mib: u64| min_free_kib(Edition::Now, mib << 10);
        assert_eq!([16, 128, 1024, 16 << 10].map(now), [512, 1448, 4096, 16384]);
        assert_eq!([0, 1].map(now), [128, 128]);
        assert_eq!(now(4 << 10), 8192);
        assert_eq!(now(1 << 30), 262_144);
        assert_eq!(min_free_kib(Edition::V5_4, 512 << 20), 65_536);
        assert_eq!(min_free_kib(Edition::Now, 28_000 * 4), 1338);
    }

    #[test]
    fn known_machines_get_their_marks() {
        // allocator.md 2.4. 512 GiB on two nodes, rounded.
        let (dma32, normal1) = (782_336, 67_108_864);
        let all = 512 << 18;
        assert_eq!(min_free_kib(Edition::Now, all * 4), 92_681);
        let four = |m: Levels| [m.min, m.low, m.high, m.promo];
        let now = |kib, managed, total| four(marks(Edition::Now, kib, managed, total));
        assert_eq!(
            now(92_681, normal1, all),
            [11_585, 78_693, 145_801, 212_909]
        );
        assert_eq!(now(92_681, dma32, all), [135, 917, 1_699, 2_481]);
        assert_eq!(
            four(marks(Edition::V5_4, 65_536, normal1, all))[..3],
            [8_192, 75_300, 142_408]
        );
        assert_eq!(
            four(marks(Edition::V5_4, 65_536, dma32, all))[..3],
            [95, 877, 1_659]
        );
        // A virtual machine of 4 GiB.
        let all = 4 << 18;
        assert_eq!(min_free_kib(Edition::Now, all * 4), 8_192);
        assert_eq!(now(8_192, 262_144, all), [512, 774, 1_036, 1_298]);
        assert_eq!(now(8_192, dma32, all), [1_528, 2_310, 3_092, 3_874]);
        // A board of 128 MiB.
        assert_eq!(now(1_448, 32_768, 32_768), [362, 452, 542, 632]);
        assert_eq!(now(1_338, 28_000, 28_000), [334, 417, 500, 583]);
    }

    #[test]
    fn movable_memory_keeps_a_token_and_does_not_share_min_free_today() {
        let movable = Share {
            kind: ZoneKind::Movable,
            managed: 1 << 20,
            total: 1 << 20,
            min_free: 4096,
            scale_factor: SCALE_FACTOR,
        };
        assert_eq!(movable.levels(Edition::Now).min, 128);
        assert!(!shares_min_free(Edition::Now, ZoneKind::Movable));
        assert!(shares_min_free(Edition::V5_4, ZoneKind::Movable));
    }

    #[test]
    fn low_zones_are_kept_from_requests_that_could_go_higher() {
        // allocator.md 2.3: node 0 of 512 GiB; a virtual machine of 4 GiB.
        let node0 = reserves([3_972, 782_336, 66_060_288, 0]);
        assert_eq!(node0[0], [0, 3_056, 261_104, 261_104]);
        assert_eq!(node0[1], [0, 0, 258_048, 258_048]);
        assert_eq!(node0[2], [0, 0, 0, 0]);
        assert_eq!(total_reserve(3_972, &node0[0], 20), 3_972);
        let vm = reserves([3_972, 782_336, 262_144, 0]);
        assert_eq!((vm[0][1], vm[0][2], vm[1][2]), (3_056, 4_080, 1_024));
        assert_eq!(total_reserve(782_336, &vm[1], 3_092), 4_116);
    }

    /// R20
    #[test]
    fn reserves_grow_with_the_highest_zone_and_follow_a_change_at_once() {
        let mut state = 1u64;
        for _ in 0..1000 {
            let managed = core::array::from_fn(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                state >> 40
            });
            let table = reserves(managed);
            for (zone, row) in table.iter().enumerate() {
                assert_eq!(row[zone], 0);
                assert!(row.is_sorted());
                assert!(total_reserve(managed[zone], row, 1000) <= managed[zone]);
            }
        }
    }
}
