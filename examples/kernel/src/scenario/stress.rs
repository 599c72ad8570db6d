//! Everything at once, for some seconds: groups are made, write pages of all kinds, are looked at, and are killed, with what they
//! have in memory and on disk; objects are looked up for them; between rounds the last CPU goes and comes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use framekeeper::MemcgId;
use spin::Mutex;

use super::pattern::{self, Words};
use super::{Failure, group};
use crate::console::println;
use crate::objects::{self, Key};
use crate::options::Options;
use crate::page::{Area, Page, order_at};
use crate::{arch, port, space};

/// Groups at most, each with a space.
const MOST: u32 = 16;
/// What a CPU does in a round.
const STEPS: u32 = 24;
/// Pages that a step writes.
const CHUNK: u32 = 32;
/// Objects that a step looks up.
const OBJECTS: u32 = 64;

/// What is known of a space. Whoever has it locked may use the space.
struct Life {
    /// Of its pages, those of each area that were written, from the first on.
    written: Option<[u32; Area::ALL.len()]>,
    /// How often it was made.
    edition: u32,
}

static LIVES: [Mutex<Life>; MOST as usize] = [const {
    Mutex::new(Life {
        written: None,
        edition: 0,
    })
}; MOST as usize];
static GROUPS: AtomicU32 = AtomicU32::new(0);
static TOUCH: AtomicU32 = AtomicU32::new(0);
static LIMIT: AtomicU32 = AtomicU32::new(0);
static PARENT: Mutex<Option<MemcgId>> = Mutex::new(None);
static ROUND: AtomicU32 = AtomicU32::new(0);
static MADE: AtomicU64 = AtomicU64::new(0);
static VERIFIED: AtomicU64 = AtomicU64::new(0);

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    let groups = options.groups.min(MOST);
    let each = 2 * u64::from(options.touch) + order_at(2).frames();
    super::needs_slots(u64::from(groups) * each)?;
    let limit = u64::from(groups) * u64::from(options.limit) * 2;
    let parent = group(MemcgId::ROOT, limit)?;
    objects::open()?;
    *PARENT.lock() = Some(parent);
    GROUPS.store(groups, Ordering::Relaxed);
    TOUCH.store(options.touch, Ordering::Relaxed);
    LIMIT.store(options.limit * 8, Ordering::Relaxed);
    let until = arch::now() + options.seconds * 1_000_000_000;
    let mut rounds = 0;
    while rounds < 2 || arch::now() < until {
        ROUND.store(rounds, Ordering::Relaxed);
        super::all_cpus(round);
        super::check("after a round")?;
        super::failed()?;
        pattern::result()?;
        super::restart_last_cpu()?;
        rounds += 1;
    }
    println!(
        "{rounds} rounds, {} groups made, {} pages verified",
        MADE.load(Ordering::Relaxed),
        VERIFIED.load(Ordering::Relaxed)
    );
    objects::close().map_err(Failure::Unregister)?;
    for id in 0..groups {
        if LIVES[id as usize].lock().written.take().is_some() {
            space::destroy(id, id % 2 == 0).map_err(Failure::Remove)?;
        }
    }
    mm.remove_memcg(parent).map_err(Failure::Remove)
}

fn round(index: usize) {
    let mut random = Random((u64::from(ROUND.load(Ordering::Relaxed)) << 8) + index as u64 + 1);
    for _ in 0..STEPS {
        let id = random.below(GROUPS.load(Ordering::Relaxed));
        let Some(mut life) = LIVES[id as usize].try_lock() else {
            continue; // another CPU has it
        };
        super::note(step(id, &mut life, &mut random));
        space::leave();
    }
}

/// One thing that happens to a space.
fn step(id: u32, life: &mut Life, random: &mut Random) -> Result<(), Failure> {
    let Some(written) = &mut life.written else {
        let parent = PARENT.lock().expect("set before the first round");
        let memcg = group(parent, u64::from(LIMIT.load(Ordering::Relaxed)))?;
        space::create(id, memcg).map_err(Failure::Alloc)?;
        life.written = Some([0; Area::ALL.len()]);
        life.edition += 1;
        MADE.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    };
    let edition = life.edition;
    space::switch_to(id);
    match random.below(16) {
        0..8 => {
            let (area, most) = match random.below(3) {
                0 => (Area::Anon, TOUCH.load(Ordering::Relaxed)),
                1 => (Area::File, TOUCH.load(Ordering::Relaxed)),
                _ => (Area::Huge, order_at(2).frames() as u32),
            };
            let first = &mut written[area as usize];
            let end = most.min(*first + CHUNK);
            pages(id, area, *first..end).for_each(|page| pattern::write(page, edition, Words::All));
            *first = end;
        }
        8..11 => {
            for (area, &written) in Area::ALL.into_iter().zip(&*written) {
                let verify = |page| pattern::verify(page, edition, Words::All);
                pages(id, area, 0..written).for_each(verify);
                VERIFIED.fetch_add(written.into(), Ordering::Relaxed);
            }
        }
        11..15 => {
            let memcg = space::memcg(id).expect("made before");
            for _ in 0..OBJECTS {
                let key = Key {
                    group: id as usize,
                    number: random.below(objects::KEYS as u32 / 4) as usize,
                };
                objects::look_up(key, memcg).map_err(Failure::Object)?;
            }
        }
        _ => {
            space::leave();
            objects::retire(id as usize);
            life.written = None;
            space::destroy(id, random.below(2) == 0).map_err(Failure::Remove)?;
        }
    }
    Ok(())
}

fn pages(space: u32, area: Area, numbers: core::ops::Range<u32>) -> impl Iterator<Item = Page> {
    numbers.map(move |number| Page {
        space,
        area,
        number,
    })
}

/// Numbers that are the same on every run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        for shift in [13, -7, 17] {
            let by = self.0;
            self.0 ^= if shift > 0 { by << shift } else { by >> -shift };
        }
        ((self.0 >> 16) % u64::from(bound.max(1))) as u32
    }
}
