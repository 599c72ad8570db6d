//! A machine under pressure, looked at while it runs: groups write four times what their limits allow, then read it back in another order,
//! some pages more often. What `examples/pressure` does on threads and checks, here on one thread, for the picture. At the end every second
//! group ends: what they leave free lies in whole slices if there was no pressure, and everywhere if there was.

use framekeeper::{Backing, ListKind, MemcgId, Mm, MmConfig, NodeId, Pfn, Refused};

use super::hooks::{USED, evicted};
use super::port::{ONE, Sim, act_as, machine_of};
use crate::clock::Random;

/// 128 MiB.
const FRAMES: u64 = 1 << 15;
/// The machine's first frame.
const FIRST: u64 = (4 << 30) >> 12;
/// Frames of a cell of the map.
pub const CELL: u64 = 64;
const GROUPS: usize = 8;
/// Pages that a group writes before the next one's turn.
const SLICE: usize = 512;
const LIMIT: usize = 7 * SLICE;
const TOUCHED: usize = LIMIT * 4;
/// Pages of each group that every fourth read goes to.
const HOT: u64 = 400;
const SAMPLES: usize = 160;

/// What was seen.
pub struct Picture {
    /// Shares of each cell's frames in use when every second group has ended: once its limit was reached, and after pressure.
    pub before: Vec<f64>,
    pub after: Vec<f64>,
    /// In the course of the run, frames on the inactive and on the active lists.
    pub lists: Vec<[u64; 2]>,
    /// Samples that were taken while pages were written.
    pub written: usize,
}

struct Group {
    id: MemcgId,
    /// By page.
    frames: Vec<Option<Pfn>>,
}

struct Machine<'m> {
    mm: &'m Mm<Sim>,
    groups: Vec<Group>,
}

impl Machine<'_> {
    /// A group uses a page.
    fn access(&mut self, group: usize, page: usize) {
        if let Some(frame) = self.groups[group].frames[page] {
            let folio = self.mm.try_get(frame).expect("it is mapped");
            folio.set_word_bits(USED);
            return;
        }
        let id = self.groups[group].id;
        let frame = self.mm.alloc(ONE).expect("memory is free");
        let folio = frame.charge_to(self.mm, id).map_err(Refused::into_error);
        let folio = folio.expect("pages can go");
        for gone in evicted() {
            self.groups[(gone >> 32) as usize].frames[gone as u32 as usize] = None;
        }
        folio.set_word((group as u64) << 32 | page as u64);
        folio.add_to_lru(Backing::Anon).expect("it is new");
        self.groups[group].frames[page] = Some(folio.into_raw());
    }

    fn lists(&self) -> [u64; 2] {
        let kinds = [ListKind::InactiveAnon, ListKind::ActiveAnon];
        kinds.map(|kind| {
            let frames = self.groups.iter().map(|group| {
                let stat = self.mm.lru_stat(group.id, NodeId(0));
                stat.expect("it lives").lists[kind as usize]
            });
            frames.sum()
        })
    }

    /// Every second group ends, with its pages.
    fn end_half(&mut self) {
        for group in self.groups.iter_mut().step_by(2) {
            for frame in group.frames.iter_mut().filter_map(Option::take) {
                // SAFETY: `access` kept the number that `into_raw` gave, and it is taken out of the table here.
                drop(unsafe { self.mm.folio_from_raw(frame) });
            }
            self.mm.remove_memcg(group.id).expect("it has none below");
        }
        self.mm.drain_lru();
        self.mm.check().expect("the machine is sound");
    }

    /// The share of each cell's frames that is in use.
    fn map(&self) -> Vec<f64> {
        let used = |frame| u64::from(self.mm.try_get(Pfn(frame)).is_some());
        let cells = (FIRST..FIRST + FRAMES).step_by(CELL as usize);
        let used = cells.map(|cell| (cell..cell + CELL).map(used).sum::<u64>());
        used.map(|used| used as f64 / CELL as f64).collect()
    }
}

/// Runs it without pressure, then with it.
pub fn run() -> Picture {
    let (before, _) = run_to(LIMIT);
    let (after, lists) = run_to(TOUCHED);
    Picture {
        before,
        after,
        written: lists.len() / 2,
        lists,
    }
}

/// Groups write so many pages each, and read them if they are more than fit.
fn run_to(pages: usize) -> (Vec<f64>, Vec<[u64; 2]>) {
    let mm = machine_of::<Sim>(FRAMES, &MmConfig::new(1, GROUPS as u32));
    act_as(0);
    let group = |_| {
        let id = mm.create_memcg(MemcgId::ROOT).expect("there is room");
        mm.set_memcg_max(id, LIMIT as u64).expect("it lives");
        Group {
            id,
            frames: vec![None; pages],
        }
    };
    let mut machine = Machine {
        mm: &mm,
        groups: (0..GROUPS).map(group).collect(),
    };
    let slice = |from, group| (from..from + SLICE).map(move |page| (group, page));
    let writes = (0..pages)
        .step_by(SLICE)
        .flat_map(|from| (0..GROUPS).flat_map(move |group| slice(from, group)));
    let mut reads: Vec<_> = writes.clone().collect();
    let mut random = Random(21);
    random.shuffle(&mut reads);
    let (written, every) = (reads.len(), reads.len() * 2 / SAMPLES);
    let mut lists = Vec::new();
    for (n, (group, page)) in writes.chain(reads).enumerate() {
        if n % every == 0 {
            lists.push(machine.lists());
        }
        machine.access(group, page);
        if n >= written && n % 4 == 0 {
            machine.access(group, random.below(HOT) as usize);
        }
    }
    machine.end_half();
    (machine.map(), lists)
}
