//! Records by section.
//!
//! Owns: [`FrameTable`]; [`FrameNo`], a frame's number within one table.
//! Invariants: a section holds records from its first usable frame to its last, or none. A number that names no record
//! reads and writes the spare record, never another frame's, so that a damaged link stays harmless.
//! Lock ranks: none; the section list does not change after construction.
//! Used by: lru, mm.

use core::fmt;

use super::record::Record;
use crate::addr::{FrameRange, Pfn};
use crate::boot::{Bump, StorageFull};

/// A frame's number, counted from the table's first section.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FrameNo(pub(crate) u32);

impl FrameNo {
    /// No frame: the end of a list.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// log2 of the bytes in a section: 128 MiB.
const SECTION_BYTES_SHIFT: u32 = 27;

/// One section's records.
#[derive(Clone, Copy, Debug, Default)]
struct Section {
    /// Number, within the section, of the first frame that has a record.
    first: u32,
    records: &'static [Record],
}

/// Records of frames that follow each other.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Number of the first one's frame.
    first: u32,
    records: &'static [Record],
}

/// All records of one instance.
#[derive(Debug)]
pub(crate) struct FrameTable {
    /// First frame of the first section.
    base: u64,
    /// log2 of the frames in a section.
    shift: u32,
    /// The bits of a number that count within a section.
    inside: u32,
    sections: &'static [Section],
    records: &'static [Record],
    /// The longest run of records without a gap, where nearly every look-up ends: a dozen of them are a good part of what a frame's
    /// way over the lists costs.
    run: Run,
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
    /// Carves records for the frames of `ranges`, which ascend.
    pub(crate) fn build<I>(
        bump: &mut Bump<'_>,
        page_shift: u32,
        ranges: impl Fn() -> I,
    ) -> Result<Self, FrameTableFault>
    where
        I: Iterator<Item = FrameRange>,
    {
        let shift = SECTION_BYTES_SHIFT - page_shift;
        let first = ranges().next().map_or(0, |range| range.start().0 >> shift);
        let last = ranges()
            .last()
            .map_or(0, |range| range.end().0.saturating_sub(1) >> shift);
        let count = last.saturating_sub(first) + 1;
        let spanned = count.saturating_mul(1 << shift);
        if spanned >= u64::from(u32::MAX) {
            return Err(FrameTableFault::TooWide { spanned });
        }
        let span_at = |i: u64| {
            let start = Pfn((first + i) << shift);
            let window = FrameRange::new(start, Pfn(start.0 + (1 << shift)));
            span_of(window, ranges())
        };
        let total: usize = (0..count).map(|i| span_at(i).1).sum();
        let records: &'static [Record] = bump.slots(total, |_| Record::new())?;
        let mut rest = records;
        let sections = bump.slots(count as usize, |i| {
            let (first, len) = span_at(i as u64);
            let (records, others) = rest.split_at(len.min(rest.len()));
            rest = others;
            Section { first, records }
        })?;
        Ok(Self {
            base: first << shift,
            shift,
            inside: (1 << shift) - 1,
            sections,
            records,
            run: longest_run(sections, records, shift),
            spare: Record::new(),
        })
    }

    /// The frame's number, `None` if it has no record.
    #[inline]
    pub(crate) fn number(&self, pfn: Pfn) -> Option<FrameNo> {
        let number = FrameNo(u32::try_from(pfn.0.checked_sub(self.base)?).ok()?);
        self.find(number).map(|_| number)
    }

    /// The numbers of a range, as far as the table goes, half open; those of frames without a record among them.
    pub(crate) fn numbers(&self, range: FrameRange) -> (FrameNo, FrameNo) {
        let most = (self.sections.len() as u64) << self.shift;
        let number = |pfn: Pfn| FrameNo(pfn.0.saturating_sub(self.base).min(most) as u32);
        (number(range.start()), number(range.end()))
    }

    /// The frame that a number stands for.
    #[inline]
    pub(crate) fn pfn(&self, number: FrameNo) -> Pfn {
        Pfn(self.base + u64::from(number.0))
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
        let first = (from.0 >> self.shift) as usize;
        let sections = self.sections.iter().enumerate().skip(first);
        sections.flat_map(move |(i, section)| {
            let start = ((i as u32) << self.shift) + section.first;
            let skipped = from
                .0
                .saturating_sub(start)
                .min(section.records.len() as u32);
            let records = section.records.iter().skip(skipped as usize);
            (start + skipped..).map(FrameNo).zip(records)
        })
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    #[inline]
    fn find(&self, number: FrameNo) -> Option<&Record> {
        self.in_run(number).or_else(|| self.elsewhere(number))
    }

    #[inline]
    fn in_run(&self, number: FrameNo) -> Option<&Record> {
        let index = number.0.wrapping_sub(self.run.first);
        self.run.records.get(index as usize)
    }

    #[cold]
    fn elsewhere(&self, number: FrameNo) -> Option<&Record> {
        let section = self.sections.get((number.0 >> self.shift) as usize)?;
        let index = (number.0 & self.inside).wrapping_sub(section.first);
        section.records.get(index as usize)
    }
}

/// The longest run of `records` that sections of `1 << shift` frames hold without a gap between two of them.
fn longest_run(sections: &[Section], records: &'static [Record], shift: u32) -> Run {
    let (mut longest, mut from) = (Run::default(), Run::default());
    // Where the next record would follow, in numbers of frames; and the records before it.
    let (mut next, mut before) = (0, 0);
    for (i, section) in (0u32..).zip(sections) {
        let first = (i << shift) + section.first;
        if section.records.is_empty() {
            continue;
        }
        if first != next {
            from = Run {
                first,
                records: &[],
            };
        }
        let start = before - from.records.len();
        before += section.records.len();
        from.records = records.get(start..before).unwrap_or(&[]);
        next = first + section.records.len() as u32;
        if from.records.len() > longest.records.len() {
            longest = from;
        }
    }
    longest
}

/// The first frame, within the section of `window`, that needs a record, and how many do from there.
fn span_of(window: FrameRange, ranges: impl Iterator<Item = FrameRange>) -> (u32, usize) {
    let mut inside = ranges
        .map(|range| range.intersect(window))
        .filter(|range| !range.is_empty());
    let Some(head) = inside.next() else {
        return (0, 0);
    };
    let end = inside.last().map_or(head.end(), FrameRange::end);
    (
        (head.start().0 - window.start().0) as u32,
        (end.0 - head.start().0) as usize,
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
        FrameTable::build(&mut measure, 12, || ranges.iter().copied()).unwrap();
        let mut storage = storage(measure.used());
        FrameTable::build(&mut Bump::new(&mut storage), 12, || ranges.iter().copied()).unwrap()
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
        let shift = SECTION_BYTES_SHIFT - 12;
        let section = 1 << shift;
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
            let run = table.run;
            assert_eq!(
                (u64::from(run.first), run.records.len() as u64),
                (first, len)
            );
            assert!(core::ptr::eq(
                table.record(FrameNo(run.first)),
                &raw const run.records[0]
            ));
            for (number, record) in table.iter() {
                assert!(core::ptr::eq(table.record(number), record));
                assert!(table.number(table.pfn(number)) == Some(number));
            }
        }
    }

    #[test]
    fn a_damaged_number_reaches_the_spare_record_only() {
        let table = table(&[(1, 100)]);
        for number in [0, 100, 1 << 20, u32::MAX] {
            assert!(core::ptr::eq(table.record(FrameNo(number)), &table.spare));
        }
    }

    #[test]
    fn frames_further_apart_than_the_links_reach_are_refused() {
        // misuse 7
        let ranges = [
            FrameRange::new(Pfn(1), Pfn(2)),
            FrameRange::new(Pfn(1 << 33), Pfn((1 << 33) + 1)),
        ];
        let error =
            FrameTable::build(&mut Bump::measuring(), 12, || ranges.into_iter()).unwrap_err();
        assert!(matches!(error, FrameTableFault::TooWide { .. }));
    }
}
