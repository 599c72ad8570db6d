//! A cache of objects and mapped files, of groups whose parent is limited: shrinker and page reclaim share the pressure. Then one
//! group ends, and what is left of its objects is its parent's.

use core::sync::atomic::{AtomicU32, Ordering};

use framekeeper::MemcgId;

use super::pattern::{self, Words};
use super::{Failure, group};
use crate::console::println;
use crate::objects::{self, Key, PER_FRAME};
use crate::options::Options;
use crate::page::{Area, Page};
use crate::{cpu, port, space};

const MOST: u32 = objects::GROUPS as u32;

static GROUPS: AtomicU32 = AtomicU32::new(0);
/// The first group that is there.
static FIRST: AtomicU32 = AtomicU32::new(0);
static TOUCH: AtomicU32 = AtomicU32::new(0);

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    let groups = options.groups.min(MOST);
    let touch = options.touch.min((objects::KEYS / PER_FRAME) as u32);
    super::needs_slots(u64::from(groups) * u64::from(touch))?;
    let limit = u64::from(groups) * u64::from(options.limit);
    let parent = group(MemcgId::ROOT, limit)?;
    for id in 0..groups {
        let memcg = mm.create_memcg(parent).map_err(Failure::Group)?;
        space::create(id, memcg).map_err(Failure::Alloc)?;
    }
    objects::open()?;
    GROUPS.store(groups, Ordering::Relaxed);
    TOUCH.store(touch, Ordering::Relaxed);

    super::all_cpus(|index| each_page(index, |page| pattern::write(page, 0, Words::All)));
    settle("after writing", parent, limit)?;
    super::all_cpus(|index| each_page(index, |page| pattern::verify(page, 0, Words::All)));
    settle("after reading", parent, limit)?;

    super::all_cpus(|_| space::leave());
    objects::retire(0);
    let all = |memcg: MemcgId| objects::count(memcg);
    let of_group = space::memcg(0).map_or(0, all);
    let before = all(parent);
    space::destroy(0, true).map_err(Failure::Remove)?;
    super::expect("objects of the parent", all(parent), before + of_group)?;
    FIRST.store(1, Ordering::Relaxed);
    super::all_cpus(|index| each_page(index, |page| pattern::verify(page, 0, Words::All)));
    settle("after one group ended", parent, limit)?;
    super::all_cpus(|_| space::leave());

    let (made, found, shrunk) = objects::counts();
    println!("{made} objects made, {found} found in the cache, {shrunk} freed by the shrinker");
    if found == 0 || shrunk == 0 {
        return Err(Failure::Missing(
            "no object was found again, or none was freed",
        ));
    }
    objects::close().map_err(Failure::Unregister)?;
    for id in 1..groups {
        space::destroy(id, id % 2 == 0).map_err(Failure::Remove)?;
    }
    mm.remove_memcg(parent).map_err(Failure::Remove)
}

fn settle(when: &'static str, parent: MemcgId, limit: u64) -> Result<(), Failure> {
    super::check(when)?;
    super::failed()?;
    let mm = port::mm().expect("started");
    let usage = mm.memcg_usage(parent).map_err(Failure::Limit)?;
    if usage > limit {
        return Err(Failure::OverLimit { usage, limit });
    }
    Ok(())
}

/// Calls `act` with the pages that are this CPU's, those of all files taking turns, and looks up the objects that go with each. Each
/// file is used by several CPUs at once.
fn each_page(index: usize, act: fn(Page)) {
    let groups = GROUPS.load(Ordering::Relaxed);
    let first = FIRST.load(Ordering::Relaxed);
    let numbers = (index as u32..TOUCH.load(Ordering::Relaxed)).step_by(cpu::count());
    for number in numbers {
        for space in first..groups {
            space::switch_to(space);
            act(Page {
                space,
                area: Area::File,
                number,
            });
            let memcg = space::memcg(space).expect("made before");
            // Twice: the second time most are in the cache.
            for i in (0..PER_FRAME).chain(0..PER_FRAME) {
                let key = Key {
                    group: space as usize,
                    number: number as usize * PER_FRAME + i,
                };
                super::note(objects::look_up(key, memcg));
            }
        }
    }
}
