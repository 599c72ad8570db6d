//! Groups that write more than their limit allows, then read all of it back: each page as it was written. Between the two
//! the last CPU goes offline and comes back.

use core::sync::atomic::{AtomicU32, Ordering};

use framekeeper::MemcgId;

use super::pattern::{self, Words};
use super::{Failure, group};
use crate::cpu;
use crate::options::Options;
use crate::page::{Area, Page};
use crate::space;

static GROUPS: AtomicU32 = AtomicU32::new(0);
static TOUCH: AtomicU32 = AtomicU32::new(0);
/// Pages that a CPU writes before it goes to its next group.
const CHUNK: u32 = 32;

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    super::needs_slots(u64::from(options.groups) * u64::from(options.touch))?;
    for id in 0..options.groups {
        let memcg = group(MemcgId::ROOT, options.limit.into())?;
        space::create(id, memcg).map_err(Failure::Alloc)?;
    }
    GROUPS.store(options.groups, Ordering::Relaxed);
    TOUCH.store(options.touch, Ordering::Relaxed);
    super::all_cpus(|index| each_page(index, |page| pattern::write(page, 0, Words::All)));
    super::check("after writing")?;
    super::restart_last_cpu()?;
    super::all_cpus(|index| each_page(index, |page| pattern::verify(page, 0, Words::All)));
    super::all_cpus(|_| space::leave());
    super::check("after reading")?;
    for id in 0..options.groups {
        space::destroy(id, id % 2 == 0).map_err(Failure::Remove)?;
    }
    Ok(())
}

/// Calls `act` with every page of every group that is this CPU's, the groups taking turns. The last quarter is of a file.
fn each_page(index: usize, act: fn(Page)) {
    let touch = TOUCH.load(Ordering::Relaxed);
    for start in (0..touch).step_by(CHUNK as usize) {
        for space in (index as u32..GROUPS.load(Ordering::Relaxed)).step_by(cpu::count()) {
            space::switch_to(space);
            for number in start..(start + CHUNK).min(touch) {
                let is_file = number >= touch - touch / 4;
                let area = if is_file { Area::File } else { Area::Anon };
                act(Page {
                    space,
                    area,
                    number,
                });
            }
        }
    }
}
