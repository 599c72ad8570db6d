//! Areas that are lent to movable requests until someone needs a contiguous piece of them.
//!
//! Owns: [`Cma`], [`CmaBlock`]. Invariants: a piece that is out, or being collected, has its bits set, and no other piece has one
//! of them. All of an area's pageblocks are CMA lines while it lives, and only its own pieces are collected from them.
//! Lock ranks: `Hotplug` for the bitmap, alone; Pageset, then Shard, one at a time, none while a hook runs. Used by: kernels.

use core::fmt;
use core::ops::Range;

use super::contig::{Collecting, Contig};
use super::{ContigError, Moved, PageAllocator};
use crate::addr::{FrameRange, Order, Pfn};
use crate::platform::{IrqOff, Platform};
use crate::rank::Rank;
use crate::sync::{Lock, Ranked};
use crate::zone::Purpose;

/// A range of pageblocks of which contiguous pieces can be had later, whatever was in them: until then only movable requests
/// use them. Dropping it makes them ordinary movable memory.
///
/// Its bitmap of `WORDS` × 64 bits is part of it: a bit stands for the fewest frames, a power of two, with which the area fits. By
/// default that is 4 MiB at one frame a bit, or 1 GiB at 256.
///
/// ```
/// # use framekeeper::{FrameRange, Order, PageAllocator, Platform, Pfn, alloc::{Cma, Moved}};
/// # fn camera<P: Platform>(memory: &PageAllocator<P>) -> Result<(), Box<dyn core::error::Error>> {
/// // At boot, before others use the range: nothing must be moved.
/// let area = FrameRange::new(Pfn(0x8_0000), Pfn(0x8_4000));
/// let cma = Cma::<P>::new(memory, area, |_in_use| Moved::Unmovable)?;
/// // Later, with a hook that moves what is in the way.
/// let frame_buffer = cma.alloc(2048, Order::PAGEBLOCK, |_in_use| Moved::Tried)?;
/// assert!(frame_buffer.frames().start().is_aligned(Order::PAGEBLOCK));
/// # Ok(())
/// # }
/// ```
pub struct Cma<'a, P: Platform, const WORDS: usize = 16> {
    allocator: &'a PageAllocator<P>,
    area: FrameRange,
    /// log2 of the frames that a bit stands for.
    granule: u32,
    used: Lock<Used<WORDS>, P>,
}

/// Bits of the pieces that are out.
#[derive(Debug)]
struct Used<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Ranked for Used<WORDS> {
    const RANK: Rank = Rank::Hotplug;
}

/// A contiguous piece of an area and the right to use it. Dropping it lends the frames to movable requests again.
#[must_use = "dropping it frees the frames"]
pub struct CmaBlock<'c, P: Platform, const WORDS: usize = 16> {
    // Freed first, then unclaimed.
    contig: Contig<'c, P>,
    _claim: Claim<'c, P, WORDS>,
}

/// Bits that were set for one piece; clear again when dropped.
struct Claim<'c, P: Platform, const WORDS: usize> {
    cma: &'c Cma<'c, P, WORDS>,
    bits: Range<usize>,
}

/// Why there is no piece, or no area. Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CmaError {
    /// The area does not start and end on pageblocks of 512 frames, or is empty.
    Unaligned(FrameRange),
    /// No frame, or more than the area has, were asked for.
    Size(u64),
    /// Every place of the size and alignment is taken: free a piece, or make the area larger.
    Full,
    /// No free place could be emptied; this is why the last of them was not.
    Kept(ContigError),
}

impl<'a, P: Platform, const WORDS: usize> Cma<'a, P, WORDS> {
    /// Makes an area of whole pageblocks of one zone, every frame of which is online and good. What is in use there has to move
    /// first, as for [`alloc_contig`](PageAllocator::alloc_contig).
    ///
    /// # Errors
    /// [`CmaError`], with nothing changed but for what the hook has moved.
    pub fn new(
        allocator: &'a PageAllocator<P>,
        area: FrameRange,
        migrate: impl FnMut(FrameRange) -> Moved,
    ) -> Result<Self, CmaError> {
        let is_aligned = |pfn: Pfn| pfn.is_aligned(Order::PAGEBLOCK);
        if area.is_empty() || WORDS == 0 || !is_aligned(area.start()) || !is_aligned(area.end()) {
            return Err(CmaError::Unaligned(area));
        }
        let index = allocator.zone_of_range(area).map_err(CmaError::Kept)?;
        if let Some(pfn) = allocator.nodes.zone(index).next_unusable(area) {
            return Err(CmaError::Kept(ContigError::Unusable(pfn)));
        }
        Collecting::start(allocator, index, area, Purpose::Contiguous)
            .and_then(|collecting| {
                collecting.empty(area, migrate)?;
                collecting.into_cma()
            })
            .map_err(CmaError::Kept)?;
        let bits = WORDS as u64 * 64;
        Ok(Self {
            allocator,
            area,
            granule: area.frames().div_ceil(bits).next_power_of_two().ilog2(),
            used: Lock::new(Used([0; WORDS])),
        })
    }

    /// Its frames.
    #[must_use]
    pub fn area(&self) -> FrameRange {
        self.area
    }

    /// Frames of the pieces that are out or being collected, rounded up to what a bit stands for.
    #[must_use]
    pub fn used_frames(&self) -> u64 {
        let off = IrqOff::new();
        let used = self.used.lock(&off);
        let bits: u32 = used.0.iter().map(|word| word.count_ones()).sum();
        u64::from(bits) << self.granule
    }

    /// Takes `frames` contiguous frames that start on a multiple of `align`, from the first place that is not taken and can be
    /// emptied by the hook, which is asked as for [`alloc_contig`](PageAllocator::alloc_contig). A place whose pageblock another call
    /// collects, or whose frames stay, is passed over.
    ///
    /// # Errors
    /// [`CmaError`].
    pub fn alloc(
        &self,
        frames: u64,
        align: Order,
        mut migrate: impl FnMut(FrameRange) -> Moved,
    ) -> Result<CmaBlock<'_, P, WORDS>, CmaError> {
        if frames == 0 || frames > self.area.frames() {
            return Err(CmaError::Size(frames));
        }
        let (mut from, mut error) = (self.area.start(), CmaError::Full);
        // Each round looks at places behind the last one's only.
        while let Some((claim, piece)) = self.claim(from, frames, align) {
            match self.allocator.collect(piece, Purpose::Cma, &mut migrate) {
                Ok(contig) => {
                    return Ok(CmaBlock {
                        contig,
                        _claim: claim,
                    });
                }
                Err(kept) => {
                    // No place that holds the same obstacle will do.
                    let passed = match kept {
                        ContigError::Busy(pfn) => pfn.0 + Order::PAGEBLOCK.frames(),
                        ContigError::Unmovable(pfn)
                        | ContigError::InUse(pfn)
                        | ContigError::Unusable(pfn)
                        | ContigError::Damaged(pfn) => pfn.0 + 1,
                        _ => 0,
                    };
                    from = Pfn(self.frame_of(claim.bits.start + 1).0.max(passed));
                    error = CmaError::Kept(kept);
                }
            }
        }
        Err(error)
    }

    /// Claims the first place from a frame on that is not taken.
    fn claim(
        &self,
        from: Pfn,
        frames: u64,
        align: Order,
    ) -> Option<(Claim<'_, P, WORDS>, FrameRange)> {
        let off = IrqOff::new();
        let mut used = self.used.lock(&off);
        let mut start = from.0.next_multiple_of(align.frames());
        while start + frames <= self.area.end().0 {
            let piece = FrameRange::new(Pfn(start), Pfn(start + frames));
            let bits = self.bits_of(piece);
            // Behind the last taken bit of this place is the next that can be free.
            match bits.clone().rev().find(|&bit| used.has(bit)) {
                Some(taken) => {
                    start = self.frame_of(taken + 1).0.next_multiple_of(align.frames());
                }
                None => {
                    bits.clone().for_each(|bit| used.flip(bit));
                    return Some((Claim { cma: self, bits }, piece));
                }
            }
        }
        None
    }

    /// The bits that stand for frames of a piece.
    fn bits_of(&self, piece: FrameRange) -> Range<usize> {
        let bit = |pfn: u64| ((pfn - self.area.start().0) >> self.granule) as usize;
        bit(piece.start().0)..bit(piece.end().0 - 1) + 1
    }

    /// The first frame that a bit stands for.
    fn frame_of(&self, bit: usize) -> Pfn {
        Pfn(self.area.start().0 + ((bit as u64) << self.granule))
    }
}

impl<const WORDS: usize> Used<WORDS> {
    fn has(&self, bit: usize) -> bool {
        self.0[bit / 64] >> (bit % 64) & 1 != 0
    }

    fn flip(&mut self, bit: usize) {
        self.0[bit / 64] ^= 1 << (bit % 64);
    }
}

impl<P: Platform, const WORDS: usize> CmaBlock<'_, P, WORDS> {
    /// Its frames.
    #[must_use]
    pub fn frames(&self) -> FrameRange {
        self.contig.frames()
    }
}

impl<P: Platform, const WORDS: usize> Drop for Claim<'_, P, WORDS> {
    fn drop(&mut self) {
        let off = IrqOff::new();
        let mut used = self.cma.used.lock(&off);
        self.bits.clone().for_each(|bit| used.flip(bit));
    }
}

impl<P: Platform, const WORDS: usize> Drop for Cma<'_, P, WORDS> {
    fn drop(&mut self) {
        // Made of one zone, which it is in still.
        if let Some(index) = self.allocator.nodes.zone_of(self.area.start()) {
            let zone = self.allocator.nodes.zone(index);
            zone.clear_cma(self.area, &IrqOff::new());
        }
    }
}

impl<P: Platform, const WORDS: usize> fmt::Debug for Cma<'_, P, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cma({}, {} frames used)", self.area, self.used_frames())
    }
}

impl<P: Platform, const WORDS: usize> fmt::Debug for CmaBlock<'_, P, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmaBlock({})", self.frames())
    }
}

impl fmt::Display for CmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unaligned(area) => {
                write!(
                    f,
                    "{area} is empty, or not made of whole pageblocks of 512 frames"
                )
            }
            Self::Size(frames) => write!(f, "the area has no piece of {frames} frames"),
            Self::Full => f.write_str("every place of that size and alignment is taken"),
            Self::Kept(error) => write!(f, "no place could be emptied: {error}"),
        }
    }
}

impl core::error::Error for CmaError {}
