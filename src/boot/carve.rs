//! The crate's own memory, and every access through the direct map (UNSAFE 1).
//!
//! Owns: [`Storage`], bytes that belong to one instance for ever; [`Bump`], which carves typed slots from them;
//! [`LateSlots`], those of them that are initialised when their memory comes online, and runs of them; [`Lent`], values in
//! frames that an instance lends itself.
//! Invariants: a byte is carved at most once; every carved slot is initialised before it is reachable.
//! Lock ranks: none. Used by: every layer's constructor.
#![allow(unsafe_code)]

use core::mem::{MaybeUninit, align_of, size_of};
use core::ptr::NonNull;

use super::error::{StorageError, StorageFull};
use crate::addr::{FrameRange, Pfn, PhysAddr};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::{CachePadded, PerCpu, Pinned};

/// Bytes owned by one instance until the program ends.
#[derive(Debug)]
pub struct Storage {
    start: NonNull<u8>,
    bytes: usize,
    /// Where the bytes lie in physical memory, if that is known.
    physical: Option<PhysAddr>,
}

// SAFETY: the bytes are reached through this value alone, which is moved, never shared.
unsafe impl Send for Storage {}

impl Storage {
    /// Storage in memory that Rust already owns.
    #[must_use]
    pub fn from_static(bytes: &'static mut [MaybeUninit<u8>]) -> Self {
        let len = bytes.len();
        Self {
            start: NonNull::from(bytes).cast(),
            bytes: len,
            physical: None,
        }
    }

    /// Storage in physical memory.
    ///
    /// # Safety
    /// Nothing else uses these bytes, now or later, and the direct map covers them.
    ///
    /// # Errors
    /// [`StorageError`] if the range overflows or the direct map answers null.
    pub unsafe fn from_direct_map<P: Platform>(
        start: PhysAddr,
        bytes: u64,
    ) -> Result<Self, StorageError> {
        let overflow = StorageError::Overflow { start, bytes };
        let len = usize::try_from(bytes).map_err(|_| overflow)?;
        start.0.checked_add(bytes).ok_or(overflow)?;
        let pointer = NonNull::new(P::direct_map(start)).ok_or(StorageError::Unmapped { start })?;
        if pointer.addr().checked_add(len).is_none() {
            return Err(StorageError::Unmapped { start });
        }
        Ok(Self {
            start: pointer,
            bytes: len,
            physical: Some(start),
        })
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Carves arrays from storage, front to back; or, without storage, measures how much they need.
///
/// A constructor that only carves runs once to measure and once to build, so that the two cannot differ:
/// while measuring, every array is empty.
#[derive(Debug)]
pub(crate) struct Bump<'s> {
    /// `None` while measuring.
    storage: Option<&'s mut Storage>,
    used: usize,
}

impl<'s> Bump<'s> {
    /// Measures only.
    #[must_use]
    pub(crate) fn measuring() -> Self {
        Self {
            storage: None,
            used: 0,
        }
    }

    /// Carves from the start of `storage`, which is used up by it.
    #[must_use]
    pub(crate) fn new(storage: &'s mut Storage) -> Self {
        Self {
            storage: Some(storage),
            used: 0,
        }
    }

    /// Bytes taken so far. While measuring, enough for storage of any alignment.
    #[must_use]
    pub(crate) fn used(&self) -> usize {
        // The storage may start unaligned; no slot is aligned to more than a page.
        if self.storage.is_none() {
            self.used.saturating_add(MAX_ALIGN)
        } else {
            self.used
        }
    }

    /// Whether this bump only measures.
    #[must_use]
    pub(crate) fn is_measuring(&self) -> bool {
        self.storage.is_none()
    }

    /// `count` slots, the i-th initialised to `value(i)`. Empty while measuring.
    ///
    /// # Errors
    /// [`StorageFull`], with nothing taken.
    pub(crate) fn slots<T: 'static>(
        &mut self,
        count: usize,
        value: impl FnMut(usize) -> T,
    ) -> Result<&'static [T], StorageFull> {
        Ok(self.slots_mut(count, value)?)
    }

    /// As [`slots`](Self::slots), for data that will stand under a lock.
    ///
    /// # Errors
    /// [`StorageFull`], with nothing taken.
    pub(crate) fn slots_mut<T: 'static>(
        &mut self,
        count: usize,
        mut value: impl FnMut(usize) -> T,
    ) -> Result<&'static mut [T], StorageFull> {
        let Some(first) = self.reserve::<T>(count)? else {
            return Ok(&mut []);
        };
        for i in 0..count {
            // SAFETY: `i < count`, so the slot lies in what was reserved.
            let slot = unsafe { first.add(i) };
            // SAFETY: the slot is inside the storage, aligned, and was never given out.
            unsafe { slot.write(value(i)) };
        }
        // SAFETY: all `count` slots were initialised above; they lie in storage that is valid for ever and are
        // carved once, so this is the only reference to them.
        Ok(unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), count) })
    }

    /// `count` slots whose values carve memory of their own, or fail. While measuring, every value is made, measured
    /// with the rest and dropped, and the result is empty.
    ///
    /// # Errors
    /// The first error of `value`, or [`StorageFull`]; the storage may be used again from its start then.
    pub(crate) fn slots_with<T: 'static, E: From<StorageFull>>(
        &mut self,
        count: usize,
        mut value: impl FnMut(&mut Self, usize) -> Result<T, E>,
    ) -> Result<&'static [T], E> {
        let first = self.reserve::<T>(count)?;
        for i in 0..count {
            let value = value(self, i)?;
            if let Some(first) = first {
                // SAFETY: `i < count`, so the slot lies in what was reserved.
                let slot = unsafe { first.add(i) };
                // SAFETY: the slot is inside the storage, aligned, and was never given out; what `value` carved
                // lies behind it.
                unsafe { slot.write(value) };
            }
        }
        let Some(first) = first else {
            return Ok(&[]);
        };
        // SAFETY: all `count` slots were initialised above; they lie in storage that is valid for ever, are carved
        // once, and are only read from now on.
        Ok(unsafe { core::slice::from_raw_parts(first.as_ptr(), count) })
    }

    /// Room for slots that are initialised later, in parts of the sizes given, which follow each other. While measuring, parts
    /// are empty.
    ///
    /// # Errors
    /// [`StorageFull`], with nothing taken.
    pub(crate) fn late_parts<T: 'static, I: Iterator<Item = u32>, S: Fn() -> I>(
        &mut self,
        sizes: S,
    ) -> Result<impl Iterator<Item = LateSlots<T>> + use<T, I, S>, StorageFull> {
        let total: usize = sizes().map(|size| size as usize).sum();
        let mut next = self.reserve::<T>(total)?;
        let mut left = total;
        Ok(sizes().map(move |size| {
            // Sizes that differ the second time are cut short.
            let size = size.min(u32::try_from(left).unwrap_or(u32::MAX));
            left -= size as usize;
            let first = next;
            if let Some(first) = first {
                // SAFETY: `size` was left, so the next part begins within what was reserved, or at its end.
                next = Some(unsafe { first.add(size as usize) });
            }
            LateSlots {
                count: first.map_or(0, |_| size),
                first: first.unwrap_or(NonNull::dangling()),
                claimed: AtomicBool::new(false),
                ready: AtomicU32::new(0),
            }
        }))
    }

    /// Takes room for `count` values of `T`; `None` while measuring.
    fn reserve<T>(&mut self, count: usize) -> Result<Option<NonNull<T>>, StorageFull> {
        const { assert!(align_of::<T>() <= MAX_ALIGN) };
        let (base, available) = self.storage.as_ref().map_or((0, usize::MAX), |storage| {
            (storage.start.addr().get(), storage.bytes)
        });
        let layout = || {
            let start = base
                .checked_add(self.used)?
                .checked_next_multiple_of(align_of::<T>())?
                - base;
            let end = start.checked_add(count.checked_mul(size_of::<T>())?)?;
            Some((start, end))
        };
        let (start, end) = layout().ok_or(StorageFull {
            needed: usize::MAX,
            available,
        })?;
        if end > available {
            return Err(StorageFull {
                needed: end,
                available,
            });
        }
        self.used = end;
        let Some(storage) = self.storage.as_ref() else {
            return Ok(None);
        };
        // SAFETY: `start <= end <= storage.bytes`, so the pointer stays within the storage.
        Ok(Some(unsafe { storage.start.add(start) }.cast::<T>()))
    }

    /// One slot per CPU, each in cache lines of its own.
    ///
    /// # Errors
    /// [`StorageFull`], with nothing taken.
    pub(crate) fn per_cpu<T: 'static>(
        &mut self,
        cpus: u32,
        mut value: impl FnMut() -> T,
    ) -> Result<PerCpu<T>, StorageFull> {
        Ok(PerCpu::new(
            self.slots(cpus as usize, |_| CachePadded(value()))?,
        ))
    }
}

/// Slots that nobody can read before [`init`](Self::init), which takes the time that carving them did not.
#[derive(Debug)]
pub(crate) struct LateSlots<T: 'static> {
    first: NonNull<T>,
    count: u32,
    /// Set by whoever initialises them.
    claimed: AtomicBool,
    /// How many can be read: none, then all.
    ready: AtomicU32,
}

// SAFETY: the slots are reached by shared references only, and written once, by the one who claimed them, before that.
unsafe impl<T: Send + Sync> Sync for LateSlots<T> {}
// SAFETY: as above; they lie in storage that is valid for ever.
unsafe impl<T: Send + Sync> Send for LateSlots<T> {}

impl<T> LateSlots<T> {
    /// Number of slots, initialised or not.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// All slots, or none.
    #[inline]
    pub(crate) fn slots(&self) -> &'static [T] {
        // Acquire pairs with the Release of `init`: what is read was written before.
        let ready = self.ready.load(Ordering::Acquire) as usize;
        // SAFETY: `ready` slots lie in what was reserved, for ever; they were initialised before `ready` was stored, and
        // are only shared since.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), ready) }
    }

    /// Initialises all slots, the i-th to `value(i)`. Whether they can be read now: not while another call is at it.
    pub(crate) fn init(&self, mut value: impl FnMut(u32) -> T) -> bool {
        // Relaxed: the claim keeps writers apart; readers wait for `ready`.
        if self.claimed.swap(true, Ordering::Relaxed) {
            return self.ready.load(Ordering::Acquire) == self.count;
        }
        for i in 0..self.count {
            // SAFETY: `i < count`, so the slot lies in what was reserved.
            let slot = unsafe { self.first.add(i as usize) };
            // SAFETY: the slot is aligned and this call's alone: it holds the claim, and nobody reads before `ready`.
            unsafe { slot.write(value(i)) };
        }
        self.ready.store(self.count, Ordering::Release);
        true
    }
}

impl<T> LateSlots<T> {
    fn is_ready(&self) -> bool {
        self.slots().len() == self.count as usize
    }
}

/// The parts of one run of [`LateSlots`] that are initialised from its start on, as one slice: for look-ups that must be fast.
#[derive(Debug)]
pub(crate) struct LateRun<T: 'static> {
    first: NonNull<T>,
    /// How many slots there are; above those 32 bits, how many parts they are.
    state: AtomicU64,
}

// SAFETY: as for `LateSlots`.
unsafe impl<T: Send + Sync> Sync for LateRun<T> {}
// SAFETY: as for `LateSlots`.
unsafe impl<T: Send + Sync> Send for LateRun<T> {}

impl<T> LateRun<T> {
    /// A run without parts, which is to begin with this one.
    pub(crate) fn before(part: Option<&LateSlots<T>>) -> Self {
        Self {
            first: part.map_or(NonNull::dangling(), |part| part.first),
            state: AtomicU64::new(0),
        }
    }

    /// What is initialised.
    #[inline]
    pub(crate) fn slots(&self) -> &'static [T] {
        // Acquire pairs with the Release of `grow`.
        let slots = self.state.load(Ordering::Acquire) as u32 as usize;
        // SAFETY: `grow` found so many initialised slots from `first` on, in storage that is valid for ever.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), slots) }
    }

    /// Adds the parts that follow and are initialised; `part` gives them by number, all of them carved by one call.
    pub(crate) fn grow(&self, part: impl Fn(u32) -> Option<&'static LateSlots<T>>) {
        loop {
            let state = self.state.load(Ordering::Acquire);
            let (parts, slots) = ((state >> 32) as u32, state as u32);
            let Some(next) = part(parts).filter(|next| next.is_ready()) else {
                return;
            };
            let end = self.first.as_ptr().wrapping_add(slots as usize);
            let grown = slots
                .checked_add(next.count)
                .filter(|_| next.first.as_ptr() == end);
            let Some(grown) = grown else {
                return;
            };
            // Another's growth is as good. Acquire of `is_ready` and Release here: who sees the slots sees what they hold.
            let grown = u64::from(parts + 1) << 32 | u64::from(grown);
            let _ = self
                .state
                .compare_exchange(state, grown, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Writes `byte` over every byte of the frames. Frames that the direct map does not reach are left alone.
///
/// The frames must be of an instance of `P` and owned by the caller, so that nobody else uses their contents.
pub(crate) fn fill_frames<P: Platform>(frames: FrameRange, byte: u8) {
    for pfn in frames.iter() {
        let Some(start) = NonNull::new(P::direct_map(pfn.addr(P::PAGE_SHIFT))) else {
            continue;
        };
        // SAFETY: the platform promised a pointer that is valid for every byte of an instance's memory; pages are mapped
        // whole, and the caller owns this one.
        unsafe { start.write_bytes(byte, 1 << P::PAGE_SHIFT) };
    }
}

/// The first byte of the frames that is not `byte`, as an offset, and what it is. Frames that the direct map does not
/// reach are passed over. The caller owns the frames, as for [`fill_frames`].
pub(crate) fn find_other<P: Platform>(frames: FrameRange, byte: u8) -> Option<(Pfn, u32, u8)> {
    let expected = u64::from_ne_bytes([byte; 8]);
    for pfn in frames.iter() {
        let Some(start) = NonNull::new(P::direct_map(pfn.addr(P::PAGE_SHIFT))) else {
            continue;
        };
        for at in (0..1usize << P::PAGE_SHIFT).step_by(8) {
            // SAFETY: `at` is below the page size, and pages are mapped whole.
            let word = unsafe { start.add(at) }.cast::<u64>();
            // SAFETY: as in `fill_frames`; a page's words are aligned. Volatile: a stray writer may be at work now.
            let found = unsafe { word.read_volatile() };
            if found != expected {
                let bytes = found.to_ne_bytes();
                let i = bytes.iter().position(|&found| found != byte)?;
                return Some((pfn, (at + i) as u32, bytes[i]));
            }
        }
    }
    None
}

/// Values in frames that the instance lends itself for a while. Reached under a pin only, and given back after a grace period.
#[derive(Debug)]
pub(crate) struct Lent<T: 'static> {
    first: AtomicPtr<T>,
    count: AtomicU32,
}

impl<T: Default + Sync> Lent<T> {
    /// No values.
    pub(crate) fn none() -> Self {
        Self {
            first: AtomicPtr::new(core::ptr::null_mut()),
            count: AtomicU32::new(0),
        }
    }

    /// Makes `count` values, behind the places of `skip` others. The caller owns the frames, and gives them back only after
    /// [`end`](Self::end) and a grace period. Says whether the frames are large enough, and the direct map reaches them.
    pub(crate) fn begin<P: Platform>(&self, frames: FrameRange, skip: u32, count: u32) -> bool {
        let end = (u64::from(skip) + u64::from(count)) * size_of::<T>() as u64;
        let start = NonNull::new(P::direct_map(frames.start().addr(P::PAGE_SHIFT)));
        let Some(start) = start.filter(|_| end <= frames.frames() << P::PAGE_SHIFT) else {
            return false;
        };
        // SAFETY: in the frames, as just checked, which the direct map reaches as one range.
        let first = unsafe { start.cast::<T>().add(skip as usize) };
        for i in 0..count as usize {
            // SAFETY: as above.
            let place = unsafe { first.add(i) };
            // SAFETY: as above. Frames are aligned to pages, and nobody else uses them.
            unsafe { place.write(T::default()) };
        }
        self.count.store(count, Ordering::Relaxed);
        // Release pairs with the Acquire of `get`.
        self.first.store(first.as_ptr(), Ordering::Release);
        true
    }

    /// One of the values.
    #[inline]
    pub(crate) fn get<'p, P: Platform>(&self, _: &'p Pinned<'_, P>, index: u32) -> Option<&'p T> {
        let first = NonNull::new(self.first.load(Ordering::Acquire))?;
        if index >= self.count.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: below the count, so one of the places of `begin`.
        let place = unsafe { first.add(index as usize) };
        // SAFETY: `begin` wrote it; it is not given back while the pin lives.
        Some(unsafe { place.as_ref() })
    }

    /// Nobody finds the values from now on.
    pub(crate) fn end(&self) {
        self.first.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The largest alignment of a slot.
const MAX_ALIGN: usize = 4096;

/// Bytes that a [`Memory`](super::Memory) has just taken from the memory that was promised to it.
pub(super) struct Taken {
    pub(super) start: PhysAddr,
    pub(super) bytes: u64,
}

impl Storage {
    /// Storage in promised memory.
    pub(super) fn of_promised<P: Platform>(taken: Taken) -> Result<Self, StorageError> {
        // SAFETY: `Memory::claim` promised the map's free memory, and these bytes of it are marked as taken: only
        // `Memory::build` makes a `Taken`, and uses it once.
        unsafe { Self::from_direct_map::<P>(taken.start, taken.bytes) }
    }

    /// Where the bytes lie in physical memory, if that is known.
    pub(super) fn physical(&self) -> Option<PhysAddr> {
        self.physical
    }
}
