//! Groups that write more than their limit allows, then read all of it back: each page as it was written. Between the two
//! the last CPU goes offline and comes back.

use core::sync::atomic::{AtomicU32, Ordering};

use framekeeper::MemcgId;

use super::{CORRUPT, Failure};
use crate::options::Options;
use crate::space::{self, Page};
use crate::{arch, cpu, disk, port};

static GROUPS: AtomicU32 = AtomicU32::new(0);
static TOUCH: AtomicU32 = AtomicU32::new(0);
/// Pages that a CPU writes before it goes to its next group.
const CHUNK: u32 = 32;

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let needed = u64::from(options.groups) * u64::from(options.touch);
    if disk::capacity() < needed {
        return Err(Failure::Disk {
            needed,
            slots: disk::capacity(),
        });
    }
    let before = super::free();
    let mm = port::mm().expect("started");
    for id in 0..options.groups {
        let memcg = mm.create_memcg(MemcgId::ROOT).map_err(Failure::Group)?;
        mm.set_memcg_max(memcg, options.limit.into())
            .map_err(Failure::Limit)?;
        space::create(id, memcg).map_err(Failure::Alloc)?;
    }
    GROUPS.store(options.groups, Ordering::Relaxed);
    TOUCH.store(options.touch, Ordering::Relaxed);
    super::all_cpus(|index| each_page(index, write_page));
    super::check("after writing")?;
    super::restart_last_cpu();
    super::all_cpus(|index| each_page(index, verify_page));
    super::all_cpus(|_| space::leave());
    super::check("after reading")?;
    for id in 0..options.groups {
        space::destroy(id, id % 2 == 0).map_err(Failure::Remove)?;
    }
    let corrupt = CORRUPT.load(Ordering::Relaxed);
    if corrupt > 0 {
        return Err(Failure::Corrupt(corrupt));
    }
    super::account_for(before)?;
    super::check("at the end")
}

/// Calls `act` with every page of every group that is this CPU's, the groups taking turns. The last quarter is of a file.
fn each_page(index: usize, act: fn(Page)) {
    let touch = TOUCH.load(Ordering::Relaxed);
    for start in (0..touch).step_by(CHUNK as usize) {
        for space in (index as u32..GROUPS.load(Ordering::Relaxed)).step_by(cpu::count()) {
            space::switch_to(space);
            for number in start..(start + CHUNK).min(touch) {
                act(Page {
                    space,
                    number,
                    is_file: number >= touch - touch / 4,
                });
            }
        }
    }
}

/// The words of a page.
fn words(page: Page) -> *mut u64 {
    page.address() as *mut u64
}

/// What a word of a page holds.
fn pattern(page: Page, word: u64) -> u64 {
    let seed = u64::from(page.space) << 40 | u64::from(page.number) << 12 | word;
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed
}

pub(super) fn write_page(page: Page) {
    for word in 0..512 {
        // SAFETY: an address of the space that this CPU sees; the fault brings the page.
        unsafe {
            words(page)
                .add(word as usize)
                .write_volatile(pattern(page, word))
        };
    }
}

pub(super) fn verify_page(page: Page) {
    // SAFETY: as above.
    let wrong = (0..512)
        .filter(|&word| unsafe { words(page).add(word as usize).read_volatile() } != pattern(page, word))
        .count();
    if wrong > 0 {
        CORRUPT.fetch_add(1, Ordering::Relaxed);
        crate::console::println!("CPU {}: {page:?}: {wrong} words are wrong", arch::cpu());
    }
}
