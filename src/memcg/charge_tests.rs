//! Charges and stocks, counted: how often shared counters are touched, and that nothing is lost on the way.
//!
//! Owns: nothing. Invariants: checked, not held. Lock ranks: as the code under test. Used by: `cargo test`.

extern crate std;

use super::counter::testing::TOUCHED;
use super::*;
use crate::addr::{CpuId, NodeId};
use crate::host::{Host, run_as, storage};
use std::vec::Vec;

fn memcgs(groups: u32, cpus: u32) -> Memcgs<Host> {
    let limits = MemcgLimits {
        groups,
        depth: 4,
        owners: groups * 2,
        memory: GroupMemory::Carved,
    };
    Memcgs::build(&mut Bump::new(&mut storage(1 << 20)), &limits, 1, cpus).unwrap()
}

/// A group `depth` levels below the root, and those above it.
fn chain(memcgs: &Memcgs<Host>, depth: usize) -> Vec<MemcgId> {
    let mut path = std::vec![MemcgId::ROOT];
    for _ in 0..depth {
        let below = *path.last().unwrap();
        path.push(memcgs.create(below, &IrqOff::new(), |_| ()).unwrap());
    }
    path
}

fn charge(memcgs: &Memcgs<Host>, id: MemcgId) -> Result<OwnerIndex, Refusal> {
    memcgs.try_charge(id, NodeId(0), 1, Force::Within)
}

fn usages(memcgs: &Memcgs<Host>, ids: &[MemcgId]) -> Vec<u64> {
    ids.iter().map(|&id| memcgs.usage(id).unwrap()).collect()
}

#[test]
fn a_thousand_charges_at_depth_three_touch_shared_counters_at_most_47_times() {
    let memcgs = memcgs(8, 1);
    let path = chain(&memcgs, 3);
    let touched = |work: &mut dyn FnMut()| {
        let before = TOUCHED.get();
        work();
        TOUCHED.get() - before
    };
    // As many as the batch divides, so that the share is exact: 3 counters for each 64 frames.
    let mut owners = Vec::new();
    let charges =
        touched(&mut || owners.extend((0..64_000).map(|_| charge(&memcgs, path[3]).unwrap())));
    assert_eq!(charges, 3000, "46.9 in 1000");
    assert_eq!(usages(&memcgs, &path[1..]), [64_000; 3]);
    let uncharges = touched(&mut || {
        owners
            .drain(..)
            .for_each(|owner| memcgs.uncharge(owner, 1, &IrqOff::new()))
    });
    assert_eq!(uncharges, 2952, "46.1 in 1000");
    assert_eq!(usages(&memcgs, &path[1..]), [0; 3]);
    let pairs = touched(&mut || {
        for _ in 0..1000 {
            let owner = charge(&memcgs, path[3]).unwrap();
            memcgs.uncharge(owner, 1, &IrqOff::new());
        }
    });
    assert!(pairs <= 47, "{pairs}");
    // On a CPU without a stock every charge goes to the counters, and counts the same.
    run_as(9);
    let direct = touched(&mut || {
        let owner = charge(&memcgs, path[3]).unwrap();
        memcgs.uncharge(owner, 1, &IrqOff::new());
    });
    run_as(0);
    assert_eq!(direct, 6);
    assert_eq!(usages(&memcgs, &path[1..]), [0; 3]);
}

/// misuse 61.
#[test]
fn a_full_group_takes_what_other_cpus_keep_before_it_refuses() {
    let memcgs = memcgs(8, 3);
    let path = chain(&memcgs, 2);
    let sibling = memcgs.create(path[1], &IrqOff::new(), |_| ()).unwrap();
    memcgs.set_max(path[1], 100).unwrap();
    run_as(1);
    charge(&memcgs, path[2]).unwrap();
    run_as(2);
    charge(&memcgs, sibling).unwrap();
    run_as(0);
    for charged in 2..100 {
        assert!(charge(&memcgs, path[2]).is_ok(), "{charged} of 100 in use");
    }
    assert_eq!(charge(&memcgs, path[2]), Err(Refusal::Full(path[1].slot)));
    assert_eq!(charge(&memcgs, sibling), Err(Refusal::Full(path[1].slot)));
    assert_eq!(usages(&memcgs, &[path[1], path[2], sibling]), [100, 99, 1]);
    // A forced charge goes over; then nothing is kept in stock until usage fits.
    let forced = memcgs
        .try_charge(sibling, NodeId(0), 7, Force::Over)
        .unwrap();
    assert_eq!(memcgs.usage(path[1]), Some(107));
    memcgs.uncharge(forced, 7, &IrqOff::new());
    assert_eq!(memcgs.usage(path[1]), Some(100));
}

/// B27, misuse 61.
#[test]
fn a_limit_lowered_below_usage_is_never_exceeded_by_frames_from_a_stock() {
    let memcgs = memcgs(8, 2);
    let path = chain(&memcgs, 2);
    let mut owners: Vec<_> = (0..130)
        .map(|_| charge(&memcgs, path[2]).unwrap())
        .collect();
    memcgs.set_max(path[1], 50).unwrap();
    assert_eq!(usages(&memcgs, &path[1..]), [130, 130]);
    for left in (50..130).rev() {
        assert!(charge(&memcgs, path[2]).is_err(), "{left} above 50");
        memcgs.uncharge(owners.pop().unwrap(), 1, &IrqOff::new());
        run_as(left % 2);
    }
    assert_eq!(
        memcgs.stocked(ROOT),
        0,
        "all that was uncharged left the counters"
    );
    assert_eq!(memcgs.squeezed.load(Ordering::Relaxed), 0);
    assert!(charge(&memcgs, path[2]).is_err());
    memcgs.uncharge(owners.pop().unwrap(), 1, &IrqOff::new());
    assert_eq!(memcgs.stocked(ROOT), 1);
    owners.push(charge(&memcgs, path[2]).unwrap());
    run_as(0);
    // A group that ends over its limit leaves no mark behind.
    memcgs.set_max(path[2], 1).unwrap();
    assert_eq!(memcgs.squeezed.load(Ordering::Relaxed), 1);
    let removal = memcgs.begin_removal(path[2], &IrqOff::new()).unwrap();
    let parent = memcgs
        .current_at(memcgs.lruvec_of(path[1].slot, 0))
        .unwrap();
    memcgs.owners().forward(owners[0], parent);
    memcgs.put_owners(removal.child);
    memcgs.finish_removal(removal, &IrqOff::new());
    assert_eq!(memcgs.squeezed.load(Ordering::Relaxed), 0);
    owners
        .into_iter()
        .for_each(|owner| memcgs.uncharge(owner, 1, &IrqOff::new()));
    assert_eq!(memcgs.usage(path[1]), Some(0));
}

/// misuse 62.
#[test]
fn the_stock_of_a_cpu_that_is_gone_goes_back_and_counts_stay_exact() {
    let memcgs = memcgs(8, 3);
    let path = chain(&memcgs, 3);
    let others = [0, 1].map(|_| {
        memcgs
            .create(MemcgId::ROOT, &IrqOff::new(), |_| ())
            .unwrap()
    });
    run_as(2);
    let owners = [path[3], others[0], others[1]].map(|id| charge(&memcgs, id).unwrap());
    run_as(0);
    let counter = |id: MemcgId| memcgs.groups[id.slot as usize].counter.usage();
    assert_eq!((counter(path[1]), memcgs.usage(path[1])), (64, Some(1)));
    assert_eq!(
        memcgs.drain_stock(CpuId(2), path[1].slot, &IrqOff::new()),
        63
    );
    assert_eq!((counter(path[1]), counter(others[0])), (1, 64));
    assert_eq!(memcgs.drain_stocks(ROOT, &IrqOff::new()), 126);
    assert_eq!(memcgs.drain_stock(CpuId(7), ROOT, &IrqOff::new()), 0);
    for owner in owners {
        memcgs.uncharge(owner, 1, &IrqOff::new());
    }
    assert_eq!(
        usages(&memcgs, &[path[1], path[3], others[0], others[1]]),
        [0; 4]
    );
    assert_eq!(
        memcgs
            .stats
            .frames_charged(memcgs.lruvec_of(path[3].slot, 0), &memcgs.pin()),
        0
    );
}

/// misuse 62: also of CPUs that never run again.
#[test]
fn a_count_of_a_subtree_is_off_by_less_than_64_frames_a_cpu_and_group_until_it_is_flushed() {
    let memcgs = memcgs(8, 3);
    let path = chain(&memcgs, 3);
    let state = PageState::DIRTY;
    let mut truth = 0_i64;
    let mut random = 7_u64;
    let mut worst = 0;
    for _ in 0..20_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(9);
        run_as((random >> 33) as u32 % 4); // one id out of range
        let group = path[(random >> 40) as usize % 4];
        // Mostly one way, so that most CPUs are just below the threshold; now and then a large folio.
        let frames = match (random >> 50) % 256 {
            0 => -512,
            1..200 => 1,
            _ => -1,
        };
        truth += i64::from(frames);
        let lruvec = memcgs.lruvec_of(group.slot, 0);
        memcgs.add_state(lruvec, state, frames, &memcgs.pin(), &IrqOff::new());
        let off_by = (memcgs.stats.tree(ROOT, state) - truth).abs();
        worst = worst.max(off_by);
    }
    let bound = i64::from(stats::THRESHOLD - 1) * 4 * 4;
    assert!((64..=bound).contains(&worst), "{worst} of {bound}");
    run_as(0);
    memcgs.flush_states(MemcgId::ROOT, &IrqOff::new()).unwrap();
    assert_eq!(memcgs.stats.tree(ROOT, state), truth);
    let local = |id: &MemcgId| memcgs.raw_state(memcgs.lruvec_of(id.slot, 0), state);
    assert_eq!(path.iter().map(local).sum::<i64>(), truth);
    assert!(memcgs.tree_state(ROOT, 0, state) as i64 >= 0);
}

/// B25.
#[test]
fn a_group_of_more_than_2_31_frames_leaves_them_all_to_its_parent() {
    const MANY: i64 = (1 << 31) + 1;
    let memcgs = memcgs(4, 1);
    let path = chain(&memcgs, 2);
    let [parent, child] = [1, 2].map(|i| memcgs.lruvec_of(path[i].slot, 0));
    for state in PageState::ALL {
        let delta = stats::Delta {
            state,
            frames: MANY,
        };
        memcgs.stats.add_local(child, delta);
        // A change that is smaller than a batch, of either sign, waits in its CPU all the same.
        memcgs.add_state(child, state, -63, &memcgs.pin(), &IrqOff::new());
        assert_eq!(memcgs.stats.tree(ROOT, state), 0);
        memcgs.add_state(child, state, -1, &memcgs.pin(), &IrqOff::new());
        assert_eq!(memcgs.stats.tree(ROOT, state), -64);
    }
    assert_eq!(memcgs.fold_states(path[2].slot, 0), 0);
    for state in PageState::ALL {
        let counts = [child, parent].map(|lruvec| memcgs.raw_state(lruvec, state));
        assert_eq!(counts, [0, MANY - 64]);
    }
}
