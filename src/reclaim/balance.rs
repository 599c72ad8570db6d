//! How much of each list a round looks at: anonymous or file, inactive or active, protected or not.
//!
//! Owns: [`Split`], the share of each backing; [`frames_to_scan`]; [`inactive_is_low`]. Pure functions (reclaim.md 3.2).
//! Invariants: no share of a list is more than the list; at the last priority nothing that may be taken is out of reach.
//! Lock ranks: none. Used by: scan.

use crate::lru::{Backing, Costs, ListKind, Swap};

/// Base frames on each list, by [`ListKind`].
pub(super) type ListSizes = [u64; ListKind::COUNT];

/// The most that swappiness can be: only anonymous folios.
pub(super) const MOST_SWAPPINESS: u64 = 200;

/// A protected group gives up so many frames a round at least.
const LEAST: u64 = 32;

/// What decides between the backings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Balance {
    pub(super) swap: Swap,
    pub(super) swappiness: u64,
    pub(super) priority: u32,
    /// A group's limit is in the way, not the machine's.
    pub(super) of_group: bool,
    /// Whether active file folios may become inactive in this round.
    pub(super) file_deactivates: bool,
    /// Whether active anonymous ones may.
    pub(super) anon_deactivates: bool,
    /// Whether the machine's files would not make good its shortage.
    pub(super) file_is_tiny: bool,
}

/// Which backings are looked at, and how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Split {
    /// Both in full.
    Equal,
    /// Anonymous only.
    Anon,
    /// File only.
    File,
    /// Each by its part of the sum.
    Parts { anon: u64, file: u64 },
}

impl Split {
    /// First match decides: no swap, a group that must not swap, the last priority, hardly any file folios in the machine but
    /// anonymous ones that nobody uses, file folios in plenty that nobody uses, else by what each cost lately.
    pub(super) fn new(sizes: &ListSizes, costs: Costs, balance: &Balance) -> Self {
        let [inactive_anon, inactive_file] =
            [ListKind::InactiveAnon, ListKind::InactiveFile].map(|kind| sizes[kind as usize]);
        let much_anon = inactive_anon >> balance.priority != 0 && !balance.anon_deactivates;
        let must_not_swap = balance.of_group && balance.swappiness == 0;
        if balance.swap == Swap::Full || must_not_swap {
            Self::File
        } else if balance.priority == 0 && balance.swappiness > 0 {
            Self::Equal
        } else if balance.file_is_tiny && much_anon {
            Self::Anon
        } else if inactive_file >> balance.priority != 0 && !balance.file_deactivates {
            Self::File
        } else {
            let (anon, file) = parts(balance.swappiness, costs);
            Self::Parts { anon, file }
        }
    }

    /// The part of `frames` of a backing that is looked at: rounded down, but up in a group that is about to end, or its last
    /// frame would never go.
    pub(super) fn part(self, frames: u64, backing: Backing, ending: bool) -> u64 {
        match self {
            Self::Equal => frames,
            Self::File if backing == Backing::File => frames,
            Self::Anon if backing == Backing::Anon => frames,
            Self::File | Self::Anon => 0,
            Self::Parts { anon, file } => {
                let part = match backing {
                    Backing::Anon => anon,
                    Backing::File => file,
                };
                let (frames, sum) = (u128::from(frames) * u128::from(part), (anon + file).max(1));
                let part = match ending {
                    true => frames.div_ceil(u128::from(sum)),
                    false => frames / u128::from(sum),
                };
                u64::try_from(part).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The parts of anonymous and file folios: by swappiness, and by what each cost lately. No part falls below a third of what
/// swappiness alone gives.
fn parts(swappiness: u64, costs: Costs) -> (u64, u64) {
    // Costs are halved while they exceed a quarter of the frames: far below any overflow.
    let total = costs.anon.saturating_add(costs.file);
    let (anon, file) = (
        total.saturating_add(costs.anon),
        total.saturating_add(costs.file),
    );
    let sum = anon.saturating_add(file);
    let part = |weight: u64, cost: u64| {
        let part = u128::from(weight) * (u128::from(sum) + 1) / (u128::from(cost) + 1);
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let swappiness = swappiness.min(MOST_SWAPPINESS);
    (
        part(swappiness, anon),
        part(MOST_SWAPPINESS - swappiness, file),
    )
}

/// What of a group must stay, if it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Protected {
    /// Base frames that are.
    pub(super) frames: u64,
    /// Usage of the group.
    pub(super) usage: u64,
}

/// How much of a list of `size` base frames a round looks at, before it is split between the backings.
pub(super) fn frames_to_scan(size: u64, protected: Protected, priority: u32, ending: bool) -> u64 {
    let open = if protected.frames == 0 {
        size
    } else {
        let usage = protected.usage.max(protected.frames);
        let kept = u128::from(size) * u128::from(protected.frames) / (u128::from(usage) + 1);
        (size - kept as u64).max(LEAST).min(size)
    };
    match open >> priority.min(u64::BITS - 1) {
        0 if ending => size.min(LEAST),
        scan => scan,
    }
}

/// Whether the inactive list is too short for folios to prove themselves on: inactive × ratio < active, with
/// ratio = ⌊√(10 × size in GiB)⌋, at least 1 (reclaim.md 3.2).
pub(super) fn inactive_is_low(inactive: u64, active: u64, page_shift: u32) -> bool {
    let gib = (inactive + active) >> (30 - page_shift);
    let ratio = (10 * gib).isqrt().max(1);
    inactive * ratio < active
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(anon: u64, file: u64) -> Costs {
        Costs { anon, file }
    }

    #[test]
    fn the_inactive_share_shrinks_with_the_square_root_of_the_size() {
        // reclaim.md 3.2: at 1 GiB a third may be inactive, at 10 GiB a tenth, at 1 TiB a hundred-and-first.
        for (gib, ratio) in [(0, 1), (1, 3), (4, 6), (10, 10), (100, 31), (1024, 101)] {
            let frames = (gib << 18).max(2560);
            let edge = frames / (ratio + 1);
            assert!(
                inactive_is_low(edge - 1, frames - edge + 1, 12),
                "{gib} GiB"
            );
            assert!(
                !inactive_is_low(edge + 1, frames - edge - 1, 12),
                "{gib} GiB"
            );
        }
    }

    #[test]
    fn what_cost_more_lately_is_looked_at_less() {
        // reclaim.md 3.2
        for (swappiness, anon, file, expected) in [
            (60, 0, 0, (60, 140)),
            (60, 100, 300, (143, 239)),
            (100, 1000, 0, (149, 299)),
            (100, 0, 1000, (299, 149)),
            (200, 5, 5, (387, 0)),
        ] {
            assert_eq!(parts(swappiness, costs(anon, file)), expected);
        }
        let (anon, file) = parts(200, costs(u64::MAX, u64::MAX));
        assert!(anon > 0 && file == 0, "no overflow");
    }

    #[test]
    fn the_first_reason_that_applies_decides() {
        let sizes = |inactive_file| [500, 500, inactive_file, 500];
        let most = Balance {
            swap: Swap::Left,
            swappiness: 60,
            priority: 6,
            of_group: true,
            file_deactivates: true,
            anon_deactivates: false,
            file_is_tiny: false,
        };
        let split = |balance| Split::new(&sizes(1000), Costs::default(), &balance);
        let parts = Split::Parts {
            anon: 60,
            file: 140,
        };
        assert_eq!(split(most), parts);
        let swap = Swap::Full;
        assert_eq!(split(Balance { swap, ..most }), Split::File, "no swap");
        let unwilling = Balance {
            swappiness: 0,
            ..most
        };
        assert_eq!(split(unwilling), Split::File, "a group's own reclaim");
        let last = Balance {
            priority: 0,
            ..most
        };
        assert_eq!(split(last), Split::Equal);
        let trim = Balance {
            file_deactivates: false,
            ..most
        };
        assert_eq!(split(trim), Split::File, "much file that nobody uses");
        // In a machine that has hardly any files, anonymous folios, if there are some that nobody uses.
        let tiny = Balance {
            file_is_tiny: true,
            ..trim
        };
        assert_eq!(split(tiny), Split::Anon);
        let used = Balance {
            anon_deactivates: true,
            ..tiny
        };
        assert_eq!(split(used), Split::File);
        assert_eq!(
            split(Balance {
                priority: 9,
                ..tiny
            }),
            Split::File
        );
        assert_eq!(Split::new(&sizes(63), Costs::default(), &trim), parts);
    }

    /// B11: the last page of a group that ends is looked at, at every priority and for any share that is not zero.
    #[test]
    fn a_share_of_one_frame_is_none_but_in_a_group_that_ends() {
        let split = Split::Parts {
            anon: 60,
            file: 140,
        };
        for priority in 0..=12 {
            let scan = |ending| {
                let frames = frames_to_scan(1, Protected::default(), priority, ending);
                [Backing::Anon, Backing::File].map(|of| split.part(frames, of, ending))
            };
            assert_eq!(scan(true), [1, 1], "priority {priority}");
            assert_eq!(scan(false), [0, 0], "priority {priority}");
        }
    }

    #[test]
    fn a_protected_group_is_looked_at_in_proportion_to_what_it_has_beyond_its_protection() {
        // reclaim.md 3.2
        let protected = |frames, usage| Protected { frames, usage };
        assert_eq!(frames_to_scan(1000, protected(500, 1000), 0, false), 501);
        assert_eq!(frames_to_scan(1000, protected(2000, 1000), 0, false), 32);
        assert_eq!(frames_to_scan(20, protected(2000, 1000), 0, false), 20);
        assert_eq!(frames_to_scan(1000, Protected::default(), 3, false), 125);
        let most = protected(u64::MAX, u64::MAX);
        assert_eq!(frames_to_scan(u64::MAX, most, 0, false), 32);
    }
}
