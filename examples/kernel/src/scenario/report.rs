//! Prints what a kernel would show of its memory, and compares every figure, as printed, with a recount of the kernel's own: what its
//! page tables, caches and driver hold, and how often its hooks saw locks taken.

use core::fmt::Write;

use framekeeper::report::{Buddyinfo, MemoryStat, Zoneinfo};
use framekeeper::{MemcgId, Order, Rank};
use heapless::String;
use spin::Mutex;

use super::pattern::{self, Words};
use super::{Failure, expect, group};
use crate::console::println;
use crate::objects::{self, Key};
use crate::options::Options;
use crate::page::{Area, Page, order_at};
use crate::recount::{self, OfGroup};
use crate::{arch, cpu, locks, port, space};

/// Groups at most.
const MOST: u32 = 8;
/// Bytes of a frame.
const FRAME: u64 = 4096;

/// What is printed.
static TEXT: Mutex<String<16384>> = Mutex::new(String::new());

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let groups = options.groups.min(MOST);
    super::needs_slots(u64::from(groups) * 2 * u64::from(options.touch))?;
    objects::open()?;
    for id in 0..groups {
        let memcg = group(
            MemcgId::ROOT,
            order_at(2).frames() + u64::from(options.limit),
        )?;
        space::create(id, memcg).map_err(Failure::Alloc)?;
        fill(id, memcg, options.touch)?;
    }
    pattern::result()?;
    super::at_rest(|| {
        port::mm().expect("started").drain_lru();
        lock_counts()?;
        zones()?;
        memory_stat(groups)?;
        lock_counts()
    })?;
    super::check("beside the reports")?;
    objects::close().map_err(Failure::Unregister)?;
    for id in 0..groups {
        space::destroy(id, id % 2 == 0).map_err(Failure::Remove)?;
    }
    Ok(())
}

/// Some pages of each kind, more than the limit allows, and objects.
fn fill(space: u32, memcg: MemcgId, touch: u32) -> Result<(), Failure> {
    space::switch_to(space);
    for (area, pages) in [
        (Area::Huge, 512),
        (Area::Anon, 2 * touch),
        (Area::File, touch),
    ] {
        for number in 0..pages {
            let page = Page {
                space,
                area,
                number,
            };
            pattern::write(page, 0, Words::Lines);
        }
    }
    for number in 0..touch as usize {
        let key = Key {
            group: space as usize,
            number: number % objects::KEYS,
        };
        objects::look_up(key, memcg).map_err(Failure::Object)?;
    }
    space::leave();
    Ok(())
}

/// The text of a report, which was printed.
fn with_text<T>(report: impl core::fmt::Display, read: impl FnOnce(&str) -> T) -> T {
    let mut text = TEXT.lock();
    text.clear();
    write!(text, "{report}").expect("reports of few zones fit");
    println!("{}", text.trim_end());
    read(&text)
}

/// zoneinfo and buddyinfo: free, parked and held frames make what is managed.
fn zones() -> Result<(), Failure> {
    let allocator = port::mm().expect("started").allocator();
    recount::mark_all().map_err(Failure::Twice)?;
    let free_by_order = |line: &str| -> u64 {
        let blocks = line.split_ascii_whitespace().skip(4);
        let frames = |(order, blocks): (u8, &str)| {
            let size = Order::new(order).map_or(0, Order::frames);
            blocks.parse().unwrap_or(0) * size
        };
        (0..).zip(blocks).map(frames).sum()
    };
    let mut buddy = [0; 64];
    with_text(Buddyinfo(allocator), |text| {
        for (free, line) in buddy.iter_mut().zip(text.lines()) {
            *free = free_by_order(line);
        }
    });
    with_text(Zoneinfo(allocator), |text| {
        // A zone's part begins with its name, in the first column.
        let mut rest = text;
        for (zone, free_in_blocks) in allocator.zone_counts().zip(buddy) {
            let end = rest.find("\nNode").map_or(rest.len(), |at| at + 1);
            let (part, after) = rest.split_at(end);
            rest = after;
            let free = figure(part, "pages free");
            expect("pages free", free, free_in_blocks)?;
            expect("nr_free_pages", figure(part, "nr_free_pages"), free)?;
            let held = recount::held_in(zone.node, zone.kind, zone.span);
            let parked = figure(part, "count:");
            expect("managed", figure(part, "managed"), free + parked + held)?;
            expect("spanned", figure(part, "spanned"), zone.span.frames())?;
        }
        Ok(())
    })
}

/// memory.stat of every group and of the root: what the groups' page tables map, and the frames of their objects.
fn memory_stat(groups: u32) -> Result<(), Failure> {
    let mm = port::mm().expect("started");
    let mut all = OfGroup::default();
    for id in 0..groups {
        let (memcg, counted) = recount::of_group(id);
        let memcg = memcg.expect("made before");
        compare(memcg, &counted)?;
        let charged = counted.anon + counted.file + counted.objects;
        let usage = mm.memcg_usage(memcg).map_err(Failure::Limit)?;
        println!("memory.current {}", usage * FRAME);
        expect("memory.current", usage, charged)?;
        all.anon += counted.anon;
        all.file += counted.file;
        all.objects += counted.objects;
        all.dirty += counted.dirty;
    }
    compare(MemcgId::ROOT, &all)
}

fn compare(memcg: MemcgId, counted: &OfGroup) -> Result<(), Failure> {
    let stat = MemoryStat::of(port::mm().expect("started"), memcg).map_err(Failure::Limit)?;
    with_text(stat, |text| {
        let frames = |name| figure(text, name) / FRAME;
        expect("anon", frames("anon"), counted.anon)?;
        expect("file", frames("file"), counted.file)?;
        expect("file_mapped", frames("file_mapped"), counted.file)?;
        expect("file_dirty", frames("file_dirty"), counted.dirty)?;
        expect("file_writeback", frames("file_writeback"), 0)?;
        let anon = frames("inactive_anon") + frames("active_anon");
        expect("inactive_anon and active_anon", anon, counted.anon)?;
        let file = frames("inactive_file") + frames("active_file");
        expect("inactive_file and active_file", file, counted.file)?;
        expect("unevictable", frames("unevictable"), 0)
    })
}

/// The lock counts of each rank, as the counted lock and as the hooks have them.
fn lock_counts() -> Result<(), Failure> {
    let state = arch::irq_save();
    let (stat, acquired, released) = locks::counts();
    arch::irq_restore(state);
    with_text(stat, |_| ());
    for rank in Rank::ALL {
        let counted = [acquired[rank as usize], released[rank as usize]];
        let said = stat.rank(rank).acquired;
        if counted != [said, said] {
            return Err(Failure::Locks {
                rank,
                said,
                counted,
            });
        }
    }
    println!("{} CPUs, all lock counts agree", cpu::count());
    Ok(())
}

/// The sum of all figures of a name in a text of `name figure` lines.
fn figure(text: &str, name: &str) -> u64 {
    let figures = text.lines().filter_map(|line| -> Option<u64> {
        let rest = line.trim_start().strip_prefix(name)?;
        rest.starts_with(' ').then(|| rest.trim().parse().ok())?
    });
    figures.sum()
}
