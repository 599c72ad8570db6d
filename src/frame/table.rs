//! Records by section.
//!
//! Owns: [`FrameTable`]; [`FrameNo`], a frame's number within one table.
//! Invariants: a section holds records from its first usable frame to its last, or none. A number that names no record
//! reads and writes the spare record, never another frame's, so that a damaged link stays harmless. The records of a section that
//! comes online late are initialised before its frames are given; until then it has none.
//! Lock ranks: none; the section list does not change after construction.
//! Used by: lru, mm.

use core::fmt;

use super::record::Record;
use crate::addr::{FrameRange, Pfn};
use crate::boot::{Bump, LateRun, LateSlots, StorageFull};
use crate::node::{Prepare, section_frames};

/// A frame's number, counted from the table's first section.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FrameNo(pub(crate) u32);

impl FrameNo {
    /// No frame: the end of a list.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// One section's records.
#[derive(Debug)]
struct Section {
    /// Number, within the section, of the first frame that has a record.
    first: u32,
    records: LateSlots<Record>,
}

/// Sections by number.
#[derive(Clone, Copy, Debug)]
struct Directory {
    /// First frame of the first section.
    base: u64,
    /// log2 of the frames in a section.
    shift: u32,
    sections: &'static [Section],
}

/// All records of one instance.
#[derive(Debug)]
pub(crate) struct FrameTable {
    directory: Directory,
    /// The bits of a number that count within a section.
    inside: u32,
    /// The directory again, for those who bring sections online.
    prepare: Option<&'static dyn Prepare>,
    /// Number of records, initialised or not.
    len: usize,
    /// Number of the first frame of the longest run of records without a gap, where nearly every look-up ends: a dozen of
    /// them are a good part of what a frame's way over the lists costs.
    run_first: u32,
    /// The run, as far as it is initialised.
    run: LateRun<Record>,
    /// Its sections.
    run_sections: (u32, u32),
    /// Stands in for every frame without a record.
    spare: Record,
}

/// Why there can be no frame table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FrameTableFault {
    /// The frames are too far apart to be linked by 32-bit numbers: use one instance per part.
    TooWide {
        /// Frames from the first section to the last; fewer than `u32::MAX` are possible.
        spanned: u64,
    },
    /// The storage is used up.
    Storage(StorageFull),
}

impl FrameTable {
    /// Carves records for the frames of `ranges`, which ascend, and initialises them, but for sections that come late.
    pub(crate) fn build<I>(
        bump: &mut Bump<'_>,
        page_shift: u32,
        ranges: impl Fn() -> I,
        comes_late: impl Fn(FrameRange) -> bool,
    ) -> Result<Self, FrameTableFault>
    where
        I: Iterator<Item = FrameRange>,
    {
        let shift = section_frames(page_shift).trailing_zeros();
        let first = ranges().next().map_or(0, |range| range.start().0 >> shift);
        let last = ranges()
            .last()
            .map_or(0, |range| range.end().0.saturating_sub(1) >> shift);
        let count = last.saturating_sub(first) + 1;
        let spanned = count.saturating_mul(1 << shift);
        if spanned >= u64::from(u32::MAX) {
            return Err(FrameTableFault::TooWide { spanned });
        }
        let window = |i: u64| {
            let start = (first + i) << shift;
            FrameRange::new(Pfn(start), Pfn(start + (1 << shift)))
        };
        let spans = || (0..count).map(|i| span_of(window(i), ranges()));
        let len = spans().map(|(_, len)| len as usize).sum();
        let mut parts = bump.late_parts(|| spans().map(|(_, len)| len))?;
        let mut firsts = spans().map(|(first, _)| first);
        let sections = bump.slots(count as usize, |i| {
            let counted = "as many as there are sections";
            let section = Section {
                first: firsts.next().expect(counted),
                records: parts.next().expect(counted),
            };
            if !comes_late(window(i as u64)) {
                section.records.init(|_| Record::new());
            }
            section
        })?;
        let directory = Directory {
            base: first << shift,
            shift,
            sections,
        };
        let prepare = bump.slots(1, |_| directory)?.first();
        let run_sections = longest_run(sections, shift);
        let head = sections.get(run_sections.0 as usize);
        let this = Self {
            directory,
            inside: (1 << shift) - 1,
            prepare: prepare.map(|prepare| prepare as &dyn Prepare),
            len,
            run_first: head.map_or(0, |head| (run_sections.0 << shift) + head.first),
            run: LateRun::before(head.map(|head| &head.records)),
            run_sections,
            spare: Record::new(),
        };
        this.grow_run();
        Ok(this)
    }

    /// What initialises the records of sections that come late.
    pub(crate) fn prepare(&self) -> Option<&'static dyn Prepare> {
        self.prepare
    }

    /// The frame's number, `None` if it has no record.
    #[inline]
    pub(crate) fn number(&self, pfn: Pfn) -> Option<FrameNo> {
        let number = FrameNo(u32::try_from(pfn.0.checked_sub(self.directory.base)?).ok()?);
        self.find(number).map(|_| number)
    }

    /// The numbers of a range, as far as the table goes, half open; those of frames without a record among them.
    pub(crate) fn numbers(&self, range: FrameRange) -> (FrameNo, FrameNo) {
        let Directory {
            base,
            shift,
            sections,
        } = self.directory;
        let most = (sections.len() as u64) << shift;
        let number = |pfn: Pfn| FrameNo(pfn.0.saturating_sub(base).min(most) as u32);
        (number(range.start()), number(range.end()))
    }

    /// The frame that a number stands for.
    #[inline]
    pub(crate) fn pfn(&self, number: FrameNo) -> Pfn {
        Pfn(self.directory.base + u64::from(number.0))
    }

    /// The frame's record; the spare one for a number that has none.
    #[inline]
    pub(crate) fn record(&self, number: FrameNo) -> &Record {
        match self.in_run(number) {
            Some(record) => record,
            None => self.elsewhere(number).unwrap_or(&self.spare),
        }
    }

    /// Every frame that has a record.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FrameNo, &Record)> {
        self.iter_from(FrameNo(0))
    }

    /// Every frame that has a record, from a number on.
    pub(crate) fn iter_from(&self, from: FrameNo) -> impl Iterator<Item = (FrameNo, &Record)> {
        let Directory {
            shift, sections, ..
        } = self.directory;
        let first = (from.0 >> shift) as usize;
        let sections = sections.iter().enumerate().skip(first);
        sections.flat_map(move |(i, section)| {
            let start = ((i as u32) << shift) + section.first;
            let records = section.records.slots();
            let skipped = from.0.saturating_sub(start).min(records.len() as u32);
            let records = records.iter().skip(skipped as usize);
            (start + skipped..).map(FrameNo).zip(records)
        })
    }

    /// Number of records, those of sections that are still to come included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn find(&self, number: FrameNo) -> Option<&Record> {
        self.in_run(number).or_else(|| self.elsewhere(number))
    }

    #[inline]
    fn in_run(&self, number: FrameNo) -> Option<&Record> {
        let index = number.0.wrapping_sub(self.run_first);
        self.run.slots().get(index as usize)
    }

    #[cold]
    fn elsewhere(&self, number: FrameNo) -> Option<&Record> {
        let at = number.0 >> self.directory.shift;
        let section = self.directory.sections.get(at as usize)?;
        let index = (number.0 & self.inside).wrapping_sub(section.first);
        let record = section.records.slots().get(index as usize)?;
        if (self.run_sections.0..self.run_sections.1).contains(&at) {
            // It came online since: the next look-up is to be fast.
            self.grow_run();
        }
        Some(record)
    }

    fn grow_run(&self) {
        let (from, end) = self.run_sections;
        let sections = self.directory.sections;
        self.run.grow(|i| {
            let at = from + i;
            let section = (at < end).then(|| sections.get(at as usize))??;
            Some(&section.records)
        });
    }
}

impl Prepare for Directory {
    fn prepare(&self, section: FrameRange) {
        let number = section.start().0.saturating_sub(self.base) >> self.shift;
        if let Some(section) = self.sections.get(number as usize) {
            // One section is brought online by one CPU at a time: the one that claimed it. If it was online before, the records
            // are as they were left, those of free frames.
            let ready = section.records.init(|_| Record::new());
            debug_assert!(ready, "a section that two bring online");
        }
    }
}

/// The sections, half open, that hold the longest run of records without a gap between two of them.
fn longest_run(sections: &[Section], shift: u32) -> (u32, u32) {
    let (mut longest, mut most) = ((0, 0), 0);
    // Where the run began, where its next record would follow, in numbers of frames, and how many it has.
    let (mut from, mut next, mut len) = (0, 0, 0);
    for (i, section) in (0u32..).zip(sections) {
        let first = (i << shift) + section.first;
        let count = section.records.count();
        if count == 0 {
            continue;
        }
        if first != next {
            (from, len) = (i, 0);
        }
        len += count;
        next = first + count;
        if len > most {
            (longest, most) = ((from, i + 1), len);
        }
    }
    longest
}

/// The first frame, within the section of `window`, that needs a record, and how many do from there.
fn span_of(window: FrameRange, ranges: impl Iterator<Item = FrameRange>) -> (u32, u32) {
    let mut inside = ranges
        .map(|range| range.intersect(window))
        .filter(|range| !range.is_empty());
    let Some(head) = inside.next() else {
        return (0, 0);
    };
    let end = inside.last().map_or(head.end(), FrameRange::end);
    (
        (head.start().0 - window.start().0) as u32,
        (end.0 - head.start().0) as u32,
    )
}

impl From<StorageFull> for FrameTableFault {
    fn from(full: StorageFull) -> Self {
        Self::Storage(full)
    }
}

impl fmt::Display for FrameTableFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooWide { spanned } => write!(
                f,
                "{spanned} frames span more than 32-bit numbers: use one instance per part"
            ),
            Self::Storage(full) => full.fmt(f),
        }
    }
}

impl core::error::Error for FrameTableFault {}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::host::storage;
    use std::vec::Vec;

    fn table(ranges: &[(u64, u64)]) -> FrameTable {
        let ranges: Vec<_> = ranges
            .iter()
            .map(|&(a, b)| FrameRange::new(Pfn(a), Pfn(b)))
            .collect();
        let mut measure = Bump::measuring();
        let all = || ranges.iter().copied();
        FrameTable::build(&mut measure, 12, all, |_| false).unwrap();
        let mut storage = storage(measure.used());
        FrameTable::build(&mut Bump::new(&mut storage), 12, all, |_| false).unwrap()
    }

    #[test]
    fn records_stand_for_usable_frames_and_small_holes_and_for_nothing_else() {
        let table = table(&[(33_000, 33_010), (33_020, 33_030), (200_000, 262_144)]);
        assert!(table.number(Pfn(32_999)).is_none());
        assert!(table.number(Pfn(33_015)).is_some()); // a hole within a section
        assert!(table.number(Pfn(33_030)).is_none());
        assert!(table.number(Pfn(100_000)).is_none()); // a section without memory
        assert!(table.number(Pfn(262_143)).is_some());
        assert!(table.number(Pfn(262_144)).is_none());
        assert!(table.number(Pfn(0)).is_none());
        assert_eq!(table.iter().count(), 30 + 62_144);
        for (number, record) in table.iter() {
            assert!(core::ptr::eq(table.record(number), record));
            assert_eq!(table.number(table.pfn(number)), Some(number));
        }
    }

    #[test]
    fn the_longest_run_is_found_and_frames_beside_it_keep_their_own_records() {
        // Half a section; a section and a half that follow each other; a whole one.
        let section = section_frames(12);
        for (ranges, first, len) in [
            (
                &[(1, section / 2), (section, 5 * section / 2)][..],
                section,
                3 * section / 2,
            ),
            (
                &[(1, section), (section, 3 * section - 7)],
                1,
                3 * section - 8,
            ),
            (
                &[(5, 9), (section, section + 2), (7 * section, 8 * section)],
                7 * section,
                section,
            ),
            (&[(5, 9)], 5, 4),
        ] {
            let table = table(ranges);
            let (run, start) = (table.run.slots(), table.run_first);
            assert_eq!((u64::from(start), run.len() as u64), (first, len));
            let record = table.record(FrameNo(start));
            assert!(core::ptr::eq(record, &raw const run[0]));
            for (number, record) in table.iter() {
                assert!(core::ptr::eq(table.record(number), record));
                assert!(table.number(table.pfn(number)) == Some(number));
            }
        }
    }

    #[test]
    fn a_section_that_comes_late_has_no_records_before_it_is_prepared() {
        let section = section_frames(12);
        let all = || [FrameRange::new(Pfn(0), Pfn(4 * section))].into_iter();
        let late = |window: FrameRange| window.start() >= Pfn(section);
        let mut measure = Bump::measuring();
        FrameTable::build(&mut measure, 12, all, late).unwrap();
        let mut storage = storage(measure.used());
        let table = FrameTable::build(&mut Bump::new(&mut storage), 12, all, late).unwrap();
        let prepare = table.prepare().unwrap();
        let window = |i: u64| FrameRange::new(Pfn(i * section), Pfn((i + 1) * section));
        assert_eq!(table.len() as u64, 4 * section);
        let mut there = 1;
        // The last but one first: what lies behind a gap is found, and joins the run with the section before it.
        for (i, run) in [(2, 1), (1, 3), (3, 4)] {
            assert_eq!(table.number(window(i).start()), None);
            let number = FrameNo(window(i).start().0 as u32);
            assert!(core::ptr::eq(table.record(number), &table.spare));
            assert_eq!(table.iter().count() as u64, there * section);
            prepare.prepare(window(i));
            prepare.prepare(window(i));
            there += 1;
            assert!(!core::ptr::eq(table.record(number), &table.spare));
            assert_eq!(table.number(window(i).start()), Some(number));
            assert_eq!(table.iter().count() as u64, there * section);
            assert_eq!(table.run.slots().len() as u64, run * section);
        }
        for (number, record) in table.iter() {
            assert!(core::ptr::eq(table.record(number), record));
        }
    }

    #[test]
    fn a_damaged_number_reaches_the_spare_record_only() {
        let table = table(&[(1, 100)]);
        for number in [0, 100, 1 << 20, u32::MAX] {
            assert!(core::ptr::eq(table.record(FrameNo(number)), &table.spare));
        }
    }

    /// misuse 7
    #[test]
    fn frames_further_apart_than_the_links_reach_are_refused() {
        let ranges = [
            FrameRange::new(Pfn(1), Pfn(2)),
            FrameRange::new(Pfn(1 << 33), Pfn((1 << 33) + 1)),
        ];
        let error = FrameTable::build(&mut Bump::measuring(), 12, || ranges.into_iter(), |_| false)
            .unwrap_err();
        assert!(matches!(error, FrameTableFault::TooWide { .. }));
    }
}
