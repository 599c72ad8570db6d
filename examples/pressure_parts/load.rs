//! What the groups do: write every page, then read every page in another order.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;

use crate::kernel::{FaultError, Kernel, PageId, bytes};
use crate::options::Options;
use crate::page::{Pattern, mix};
use crate::port;

/// Pages that a thread takes at a time.
const CHUNK: u32 = 64;
/// Chunks of one group that follow each other, so that two threads write, and reclaim, in one group at once.
const SIDE_BY_SIDE: u32 = 2;
/// Frames that reclaim frees at a time.
pub(crate) const CLUSTER: u32 = 32;
/// Pages of each group that are used again and again: they should become active, and stay.
const HOT: u32 = 16;
/// Reads after which a hot page is read.
const READS_PER_HOT: usize = 4;
/// Mismatches that are told in full.
const TOLD: u64 = 5;

/// Pages of one group, written by one thread.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Chunk {
    group: u32,
    pages: Range<u32>,
}

/// Which pages are written when.
#[derive(Debug)]
struct Plan {
    /// Written first, by any number of threads in each group.
    shared: Vec<Chunk>,
    /// Each group's last pages, written by one thread. Threads that reclaim in one group at the same time free up to
    /// 32 frames each; these pages use up what they freed, and end with the excess of one.
    tails: Vec<Chunk>,
}

/// Runs the groups on several threads.
pub(crate) struct Load<'o> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) options: &'o Options,
    pub(crate) bar: ProgressBar,
    pattern: Pattern,
    /// By group: pages that did not hold what was written.
    pub(crate) corrupt: Box<[AtomicU64]>,
}

impl<'o> Load<'o> {
    pub(crate) fn new(kernel: &'static Kernel, options: &'o Options, bar: ProgressBar) -> Self {
        Self {
            kernel,
            options,
            bar,
            pattern: Pattern::new(options.seed),
            corrupt: (0..options.groups).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Writes every page of every group once.
    pub(crate) fn write(&self) -> Result<(), FaultError> {
        self.bar.set_message("write");
        let plan = Plan::new(self.options);
        let write = |chunk: &Chunk| {
            for page in chunk.pages.clone() {
                let group = chunk.group;
                let access = self.kernel.access(PageId { group, page })?;
                self.pattern.write(bytes(&access), group, page);
            }
            self.bar.inc(chunk.pages.len() as u64);
            Ok(())
        };
        self.on_all_cpus(&plan.shared, write)?;
        self.on_all_cpus(&plan.tails, write)
    }

    /// Reads every page of every group, in an order that has nothing to do with that of writing; hot pages more often.
    pub(crate) fn read(&self) -> Result<(), FaultError> {
        self.bar.set_message("read");
        let ids = (0..self.options.groups).flat_map(|group| {
            let pages = 0..self.options.touch;
            pages.map(move |page| PageId { group, page })
        });
        let mut ids: Vec<PageId> = ids.collect();
        Rng::new(self.options.seed).shuffle(&mut ids);
        let chunks: Vec<&[PageId]> = ids.chunks(CHUNK as usize).collect();
        self.on_all_cpus(&chunks, |chunk| {
            for (&id, read) in chunk.iter().zip(0..) {
                self.verify(id)?;
                if read % READS_PER_HOT == 0 {
                    let page = id.page % HOT.min(self.options.touch);
                    self.verify(PageId { page, ..id })?;
                }
            }
            self.bar.inc(chunk.len() as u64);
            Ok(())
        })
    }

    /// Reads a page and counts it if it is not what was written.
    fn verify(&self, id: PageId) -> Result<(), FaultError> {
        let access = self.kernel.access(id)?;
        let verdict = self.pattern.verify(bytes(&access), id.group, id.page);
        drop(access);
        if let Err(mismatch) = verdict {
            let before = self.corrupt[id.group as usize].fetch_add(1, Ordering::Relaxed);
            if before < TOLD {
                eprintln!("{id:?} is corrupt: {mismatch:x?}");
            }
        }
        Ok(())
    }

    /// Lets all threads take items in turn. Ends early with the first error.
    fn on_all_cpus<T: Sync>(
        &self,
        items: &[T],
        work: impl Fn(&T) -> Result<(), FaultError> + Sync,
    ) -> Result<(), FaultError> {
        let (next, stop, first) = (
            AtomicUsize::new(0),
            AtomicBool::new(false),
            Mutex::new(None),
        );
        std::thread::scope(|scope| {
            for thread in 0..self.options.threads {
                let (next, stop, first, work) = (&next, &stop, &first, &work);
                scope.spawn(move || {
                    port::run_as(thread + 1); // CPU 0 is the main thread, which waits
                    while !stop.load(Ordering::Relaxed)
                        && let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        if let Err(error) = work(item) {
                            stop.store(true, Ordering::Relaxed);
                            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                            first.get_or_insert(error);
                        }
                    }
                });
            }
        });
        let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
        first.map_or(Ok(()), Err)
    }
}

impl Plan {
    fn new(options: &Options) -> Self {
        let tail = options.touch.min(CLUSTER * options.threads);
        let shared_pages = options.touch - tail;
        let mut groups: Vec<u32> = (0..options.groups).collect();
        let mut rng = Rng::new(!options.seed);
        let mut shared = Vec::new();
        for start in (0..shared_pages).step_by((CHUNK * SIDE_BY_SIDE) as usize) {
            rng.shuffle(&mut groups);
            for &group in &groups {
                for chunk in 0..SIDE_BY_SIDE {
                    let from = (start + chunk * CHUNK).min(shared_pages);
                    let pages = from..(from + CHUNK).min(shared_pages);
                    if !pages.is_empty() {
                        shared.push(Chunk { group, pages });
                    }
                }
            }
        }
        let tail = |group| Chunk {
            group,
            pages: shared_pages..options.touch,
        };
        Self {
            shared,
            tails: groups.into_iter().map(tail).collect(),
        }
    }
}

/// A linear congruential generator, made better by a last step.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // The high half of the product scales a 64-bit fraction to the range.
        ((u128::from(mix(self.0)) * end as u128) >> 64) as usize
    }

    /// Puts items in random order (Fisher and Yates).
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (2..=items.len()).rev() {
            items.swap(end - 1, self.below(end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::options;

    #[test]
    fn the_plan_writes_every_page_once_and_ends_each_group_alone() {
        for arguments in [
            "",
            "--threads 8",
            "--touch 1",
            "--touch 65 --threads 1",
            "--threads 256",
            "--groups 1 --touch 1000 --threads 3",
        ] {
            let options = options(arguments);
            let plan = Plan::new(&options);
            let mut written = vec![0u32; options.pages() as usize];
            for chunk in plan.shared.iter().chain(&plan.tails) {
                for page in chunk.pages.clone() {
                    written[(chunk.group * options.touch + page) as usize] += 1;
                }
            }
            assert!(written.iter().all(|&times| times == 1), "{arguments}");
            assert_eq!(plan.tails.len(), options.groups as usize);
            let excess = CLUSTER * options.threads;
            assert!(
                plan.tails
                    .iter()
                    .all(|tail| tail.pages.len() as u32 == excess.min(options.touch))
            );
        }
    }

    #[test]
    fn neighbours_in_the_plan_are_of_one_group() {
        let plan = Plan::new(&options("--threads 2 --touch 4160"));
        let (pairs, rest) = plan.shared.as_chunks::<2>();
        assert!(rest.is_empty());
        assert!(pairs.iter().all(|[a, b]| a.group == b.group && a != b));
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_depends_on_the_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..1000).collect();
            Rng::new(seed).shuffle(&mut items);
            items
        };
        assert_ne!(shuffled(1), shuffled(2));
        assert_eq!(shuffled(1), shuffled(1));
        let mut sorted = shuffled(1);
        assert!(!sorted.is_sorted());
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
    }
}
