//! The crate's own memory, and every access through the direct map (UNSAFE 1).
//!
//! Owns: [`Storage`], bytes that belong to one instance for ever; [`Bump`], which carves typed slots from them;
//! [`LateSlots`], those of them that are initialised when their memory comes online; [`Memory`] and [`LateMemory`], a boot map
//! or a range with the promise that its free memory is nobody else's.
//! Invariants: a byte is carved at most once; every carved slot is initialised before it is reachable.
//! Lock ranks: none. Used by: every layer's constructor.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::mem::{MaybeUninit, align_of, size_of};
use core::ptr::NonNull;

use super::error::{MemoryError, StorageError, StorageFull};
use super::map::BootMap;
use crate::addr::{FrameRange, Pfn, PhysAddr};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{CachePadded, PerCpu};

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

    /// Room for `count` slots that are initialised later, all at once.
    ///
    /// # Errors
    /// [`StorageFull`], with nothing taken.
    pub(crate) fn late_slots<T: 'static>(
        &mut self,
        count: u32,
    ) -> Result<LateSlots<T>, StorageFull> {
        let first = self.reserve::<T>(count as usize)?;
        Ok(LateSlots {
            count: first.map_or(0, |_| count),
            first: first.unwrap_or(NonNull::dangling()),
            claimed: AtomicBool::new(false),
            ready: AtomicU32::new(0),
        })
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
    /// The slot with this number; `None` if there is none, or it is not initialised.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&'static T> {
        self.slots().get(index as usize)
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

/// Frames that come to an instance after it was built: reserved ones that are not needed any more, or a new section.
/// It is the right to give them, so it exists once.
#[must_use = "the frames stay out of use until they are given to an instance"]
#[derive(PartialEq, Eq, Debug)]
pub struct LateMemory(FrameRange);

impl LateMemory {
    /// Promises frames to an instance.
    ///
    /// # Safety
    /// The frames are memory, and nothing else uses it, now or later, except through what the instance gives out.
    pub unsafe fn claim(frames: FrameRange) -> Self {
        Self(frames)
    }

    /// Frames that an instance had, and lets go.
    pub(crate) fn of_instance(frames: FrameRange) -> Self {
        Self(frames)
    }

    /// The frames.
    #[must_use]
    pub fn frames(&self) -> FrameRange {
        self.0
    }
}

/// The largest alignment of a slot.
const MAX_ALIGN: usize = 4096;

/// A boot map whose free memory is promised to one instance.
#[derive(Debug)]
pub struct Memory<'b, P: Platform, const N: usize = 128> {
    map: &'b mut BootMap<N>,
    storage: Option<Storage>,
    platform: PhantomData<P>,
}

impl<'b, P: Platform, const N: usize> Memory<'b, P, N> {
    /// Promises the map's usable, unreserved memory to an instance. Its metadata is carved from the top of it.
    ///
    /// # Safety
    /// Nothing else uses that memory, now or later, except through what the instance gives out.
    #[must_use]
    pub unsafe fn claim(map: &'b mut BootMap<N>) -> Self {
        const {
            assert!(
                matches!(P::PAGE_SHIFT, 12 | 14 | 16),
                "pages have 4, 16 or 64 KiB"
            )
        };
        Self {
            map,
            storage: None,
            platform: PhantomData,
        }
    }

    /// Puts the metadata in `storage` instead of the map's own memory.
    #[must_use]
    pub fn with_storage(self, storage: Storage) -> Self {
        Self {
            storage: Some(storage),
            ..self
        }
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &BootMap<N> {
        self.map
    }

    /// Runs `carve` once to measure and once to build, and gives the map back with what it then leaves free.
    ///
    /// # Errors
    /// The error of `carve`, or a [`MemoryError`]; the memory comes back as it was.
    pub(crate) fn build<T, E: From<MemoryError>>(
        mut self,
        mut carve: impl FnMut(&mut Bump<'_>, &BootMap<N>) -> Result<T, E>,
    ) -> Result<(T, &'b mut BootMap<N>), (E, Self)> {
        let mut build = || {
            self.map.validate(P::PAGE_SHIFT).map_err(MemoryError::Map)?;
            let mut measure = Bump::measuring();
            carve(&mut measure, self.map)?;
            if let Some(storage) = self.storage.as_mut() {
                storage.check_apart::<P, N>(self.map)?;
                return carve(&mut Bump::new(storage), self.map);
            }
            let page = 1 << P::PAGE_SHIFT;
            let bytes = (measure.used() as u64).next_multiple_of(page);
            let start = self.map.take(bytes, page).map_err(MemoryError::Map)?;
            // SAFETY: `claim` promised the map's free memory, and it is marked as taken now.
            let storage = unsafe { Storage::from_direct_map::<P>(start, bytes) };
            let built = storage
                .map_err(|error| MemoryError::Storage(error).into())
                .and_then(|mut storage| carve(&mut Bump::new(&mut storage), self.map));
            if built.is_err() {
                // What was taken an instant ago is one whole piece of the reserved list, or the end of one.
                self.map.free(start, bytes).map_err(MemoryError::Map)?;
            }
            built
        };
        match build() {
            Ok(value) => Ok((value, self.map)),
            Err(error) => Err((error, self)),
        }
    }
}

impl Storage {
    /// That the storage is not among the frames that the map would give out.
    fn check_apart<P: Platform, const N: usize>(
        &self,
        map: &BootMap<N>,
    ) -> Result<(), MemoryError> {
        let Some(start) = self.physical else {
            return Ok(());
        };
        // Cannot overflow: `from_direct_map` checked the end.
        let last = PhysAddr(start.0 + (self.bytes as u64).saturating_sub(1));
        let first = start.pfn(P::PAGE_SHIFT);
        let range = FrameRange::new(first, Pfn(last.pfn(P::PAGE_SHIFT).0 + 1));
        let overlaps = |(_, free): (_, FrameRange)| !free.intersect(range).is_empty();
        if map.free_frames(P::PAGE_SHIFT).any(overlaps) {
            return Err(MemoryError::StorageInUse { start });
        }
        Ok(())
    }
}
