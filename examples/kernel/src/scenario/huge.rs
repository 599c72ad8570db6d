//! Mappings of 2 MiB and of 1 GiB, and then more pages than their groups may have beside them: the mappings are split, part of
//! what they mapped goes to disk, and all of it comes back as it was.

use core::sync::atomic::{AtomicU32, Ordering};

use framekeeper::MemcgId;

use super::pattern::{self, Words};
use super::{Failure, group};
use crate::console::println;
use crate::options::Options;
use crate::page::{Area, Page, order_at};
use crate::{cpu, large, space};

/// Groups with 2 MiB mappings, and how many each has.
const GROUPS: u32 = 4;
const HUGE: u32 = 2;
/// The space with the 1 GiB mapping.
const GIANT: u32 = GROUPS;
/// Frames that a group may have beside its large mappings.
const MARGIN: u32 = 64;

static TOUCH: AtomicU32 = AtomicU32::new(0);

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    // A huge folio's worth more may leave with the pages: what was split is reclaimed by its use.
    let spaces = u64::from(GROUPS + 1);
    super::needs_slots(spaces * (u64::from(options.touch) + order_at(2).frames()))?;
    TOUCH.store(options.touch.max(2 * MARGIN), Ordering::Relaxed);
    for id in 0..=GIANT {
        let memcg = group(MemcgId::ROOT, u64::from(pages(id) + MARGIN))?;
        space::create(id, memcg).map_err(Failure::Alloc)?;
    }
    super::all_cpus(|index| each_large_page(index, write));
    super::check("with large mappings")?;
    if large::counts(2).0 < u64::from(GROUPS * HUGE) {
        return Err(Failure::Missing("not every 2 MiB mapping was made"));
    }
    if large::counts(3).0 == 0 {
        return Err(Failure::Missing("memory has no free GiB in one piece"));
    }
    super::all_cpus(|index| each_small_page(index, write));
    super::check("after they were split")?;
    super::restart_last_cpu()?;
    super::all_cpus(|index| each_small_page(index, verify));
    super::all_cpus(|index| each_large_page(index, verify));
    super::all_cpus(|_| space::leave());
    super::check("after reading")?;
    let ((huge, huge_split), (giant, giant_split)) = (large::counts(2), large::counts(3));
    println!(
        "{huge} mappings of 2 MiB made, {huge_split} split; {giant} of 1 GiB, {giant_split} split"
    );
    if giant_split == 0 || huge_split <= giant_split {
        return Err(Failure::Missing("pressure split no mapping"));
    }
    for id in 0..=GIANT {
        space::destroy(id, id % 2 == 0).map_err(Failure::Remove)?;
    }
    Ok(())
}

/// Pages of a space's large mappings.
fn pages(space: u32) -> u32 {
    let frames = |level| order_at(level).frames() as u32;
    match space {
        GIANT => frames(3),
        _ => HUGE * frames(2),
    }
}

fn write(page: Page) {
    pattern::write(page, 0, Words::Lines);
}

fn verify(page: Page) {
    pattern::verify(page, 0, Words::Lines);
}

/// Calls `act` with this CPU's pages of every large mapping. All CPUs begin with the first: one maps it, the others wait.
fn each_large_page(index: usize, act: fn(Page)) {
    for space in 0..=GIANT {
        let area = if space == GIANT {
            Area::Giant
        } else {
            Area::Huge
        };
        space::switch_to(space);
        for number in (index as u32..pages(space)).step_by(cpu::count()) {
            act(Page {
                space,
                area,
                number,
            });
        }
    }
}

fn each_small_page(index: usize, act: fn(Page)) {
    let touch = TOUCH.load(Ordering::Relaxed);
    for space in 0..=GIANT {
        space::switch_to(space);
        for number in (index as u32..touch).step_by(cpu::count()) {
            let area = Area::Anon;
            act(Page {
                space,
                area,
                number,
            });
        }
    }
}
