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
use crate::boot::{Bump, LateSlots, StorageFull};
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

/// Where records are.
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
    /// The same, for those who ready sections.
    prepare: Option<&'static dyn Prepare>,
    /// Number of records, initialised or not.
    len: usize,
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
        let mut len = 0;
        let sections = bump.slots_with(count as usize, |bump, i| {
            let start = Pfn((first + i as u64) << shift);
            let window = FrameRange::new(start, Pfn(start.0 + (1 << shift)));
            let (first, records) = extent(window, ranges());
            len += records as usize;
            let section = Section {
                first,
                records: bump.late_slots(records)?,
            };
            if !comes_late(window) {
                section.records.init(|_| Record::new());
            }
            Ok::<_, StorageFull>(section)
        })?;
        let directory = Directory {
            base: first << shift,
            shift,
            sections,
        };
        let prepare = bump.slots(1, |_| directory)?.first();
        Ok(Self {
            directory,
            prepare: prepare.map(|prepare| prepare as &dyn Prepare),
            len,
            spare: Record::new(),
        })
    }

    /// What readies sections that come late.
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
        self.find(number).unwrap_or(&self.spare)
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
            (start + skipped..)
                .map(FrameNo)
                .zip(records.iter().skip(skipped as usize))
        })
    }

    /// Number of records, those of sections that are still to come included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn find(&self, number: FrameNo) -> Option<&Record> {
        let Directory {
            shift, sections, ..
        } = self.directory;
        let section = sections.get((number.0 >> shift) as usize)?;
        let index = (number.0 & ((1 << shift) - 1)).wrapping_sub(section.first);
        section.records.get(index)
    }
}

impl Prepare for Directory {
    fn prepare(&self, section: FrameRange) {
        let number = section.start().0.saturating_sub(self.base) >> self.shift;
        if let Some(section) = self.sections.get(number as usize) {
            // One section is readied by one CPU at a time: the one that claimed it. Again if it was taken offline: then it
            // finds its records as they were.
            let ready = section.records.init(|_| Record::new());
            debug_assert!(ready, "a section that two bring online");
        }
    }
}

/// The records that the section of `window` needs: the first one's number in it, and how many.
fn extent(window: FrameRange, ranges: impl Iterator<Item = FrameRange>) -> (u32, u32) {
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
        let error = FrameTable::build(&mut Bump::measuring(), 12, || ranges.into_iter(), |_| false)
            .unwrap_err();
        assert!(matches!(error, FrameTableFault::TooWide { .. }));
    }
}
