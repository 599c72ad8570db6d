//! What other policies would have needed: the offline optimum, strict LRU, CLOCK, and 2Q with FIFO queues.
//!
//! LRU and 2Q see every touch, as no kernel does; CLOCK sees accessed bits, as kernels do.

use std::collections::{BinaryHeap, VecDeque};

use super::trace::Trace;

/// Faults by policy.
#[derive(Debug)]
pub struct Simulated {
    pub belady: u64,
    pub lru: u64,
    pub clock: u64,
    pub twoq: u64,
}

pub fn simulate(trace: &Trace, limit: usize) -> Simulated {
    Simulated {
        belady: belady(trace, limit),
        lru: lru(trace, limit),
        clock: clock(trace, limit),
        twoq: twoq(trace, limit),
    }
}

/// Evicts the page whose next use is the farthest.
fn belady(trace: &Trace, limit: usize) -> u64 {
    const NEVER: u32 = u32::MAX;
    let mut following = vec![NEVER; trace.touches.len()];
    let mut next_of = vec![NEVER; trace.end as usize];
    for (at, &page) in trace.touches.iter().enumerate().rev() {
        following[at] = std::mem::replace(&mut next_of[page as usize], at as u32);
    }
    let (mut next_of, mut resident) = (vec![None; trace.end as usize], 0);
    let (mut farthest, mut faults) = (BinaryHeap::new(), 0);
    for (&page, &next) in trace.touches.iter().zip(&following) {
        if next_of[page as usize].replace(next).is_none() {
            faults += 1;
            resident += 1;
            while resident > limit
                && let Some((use_at, victim)) = farthest.pop()
            {
                // Entries of pages that were used since are stale.
                if next_of[victim as usize] == Some(use_at) {
                    next_of[victim as usize] = None;
                    resident -= 1;
                }
            }
        }
        farthest.push((next, page));
    }
    faults
}

/// Evicts the page whose last use is the longest ago. Each use leaves a stamp in a queue; stale stamps are passed over.
fn lru(trace: &Trace, limit: usize) -> u64 {
    let mut last_use = vec![None; trace.end as usize];
    let (mut uses, mut resident, mut faults) = (VecDeque::new(), 0, 0);
    for (now, &page) in trace.touches.iter().enumerate() {
        if last_use[page as usize].replace(now).is_none() {
            faults += 1;
            resident += 1;
            while resident > limit
                && let Some((use_at, victim)) = uses.pop_front()
            {
                if last_use[victim as usize] == Some(use_at) {
                    last_use[victim as usize] = None;
                    resident -= 1;
                }
            }
        }
        uses.push_back((now, page));
    }
    faults
}

/// A queue whose old end gets another round while its accessed bit is set.
fn clock(trace: &Trace, limit: usize) -> u64 {
    let mut accessed = vec![None; trace.end as usize];
    let (mut queue, mut faults) = (VecDeque::new(), 0);
    for &page in &trace.touches {
        if accessed[page as usize].replace(true).is_some() {
            continue;
        }
        faults += 1;
        while queue.len() >= limit
            && let Some(oldest) = queue.pop_front()
        {
            let bit: &mut Option<bool> = &mut accessed[oldest as usize];
            if *bit == Some(true) {
                *bit = Some(false);
                queue.push_back(oldest);
            } else {
                *bit = None;
            }
        }
        queue.push_back(page);
    }
    faults
}

/// Where 2Q has a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    /// The FIFO of pages seen once.
    New,
    /// Evicted from there, and remembered.
    Remembered,
    /// The queue of pages that came back; its old end gets another round if used.
    Main {
        used: bool,
    },
}

/// 2Q: a quarter for new pages in FIFO order, and memory of half as many that left it; what comes back from there goes to the
/// main queue (Johnson and Shasha 1994), which is a FIFO with a second chance here.
fn twoq(trace: &Trace, limit: usize) -> u64 {
    let (share, memory) = ((limit / 4).max(1), (limit / 2).max(1));
    let mut places = vec![Place::Nowhere; trace.end as usize];
    let [mut new, mut main, mut remembered] = [const { VecDeque::new() }; 3];
    let mut faults = 0;
    for &page in &trace.touches {
        match &mut places[page as usize] {
            Place::New => continue,
            Place::Main { used } => {
                *used = true;
                continue;
            }
            Place::Nowhere | Place::Remembered => faults += 1,
        }
        while new.len() + main.len() >= limit {
            if new.len() > share || main.is_empty() {
                let Some(oldest) = new.pop_front() else { break };
                places[oldest as usize] = Place::Remembered;
                remembered.push_back(oldest);
                while remembered.len() > memory
                    && let Some(forgotten) = remembered.pop_front()
                {
                    if places[forgotten as usize] == Place::Remembered {
                        places[forgotten as usize] = Place::Nowhere;
                    }
                }
            } else if let Some(oldest) = main.pop_front() {
                match &mut places[oldest as usize] {
                    Place::Main { used: used @ true } => {
                        *used = false;
                        main.push_back(oldest);
                    }
                    place => *place = Place::Nowhere,
                }
            }
        }
        if places[page as usize] == Place::Remembered {
            places[page as usize] = Place::Main { used: false };
            main.push_back(page);
        } else {
            places[page as usize] = Place::New;
            new.push_back(page);
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(touches: &[u32]) -> Trace {
        let bytes: Vec<u8> = touches.iter().flat_map(|page| page.to_le_bytes()).collect();
        Trace::from_bytes(&bytes).expect("a trace")
    }

    #[test]
    fn the_textbook_string_takes_the_textbook_faults() {
        // Belady's string with three frames: 9 for the optimum of this string is 7, LRU 10.
        let trace = trace(&[1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]);
        assert_eq!((belady(&trace, 3), lru(&trace, 3)), (7, 10));
        assert_eq!((belady(&trace, 5), clock(&trace, 5)), (5, 5));
    }

    #[test]
    fn no_policy_beats_the_optimum_and_all_agree_where_nothing_is_evicted() {
        let touches: Vec<u32> = (0..9000u32)
            .map(|i| i.wrapping_mul(2_654_435_761) >> 8 & 255)
            .collect();
        let trace = trace(&touches);
        for limit in [1, 2, 7, 100, 300] {
            let all = simulate(&trace, limit);
            for faults in [all.lru, all.clock, all.twoq] {
                assert!(faults >= all.belady, "{limit}: {all:?}");
                assert!(limit < 256 || faults == all.belady, "{limit}: {all:?}");
            }
        }
    }
}
