//! Memory that is promised to an instance.
//!
//! Owns: [`Memory`], a boot map with the promise that its free memory is nobody else's; [`LateMemory`], a range that comes later with
//! the same promise. Invariants: metadata taken from a map is reserved in it, and given back if nothing could be built.
//! Lock ranks: none. Used by: every layer's constructor, alloc.

use core::marker::PhantomData;

use super::carve::{Bump, Storage, Taken};
use super::error::MemoryError;
use super::map::BootMap;
use super::refused::Refused;
use crate::addr::{FrameRange, Pfn, PhysAddr};
use crate::platform::Platform;

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
    #[expect(
        unsafe_code,
        reason = "declares the caller's duty; holds no unsafe operation"
    )]
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
    ) -> Result<(T, &'b mut BootMap<N>), Refused<E, Self>> {
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
            let storage = Storage::of_promised::<P>(Taken { start, bytes });
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
            Err(error) => Err(Refused(error, self)),
        }
    }
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
    #[expect(
        unsafe_code,
        reason = "declares the caller's duty; holds no unsafe operation"
    )]
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

impl Storage {
    /// That the storage is not among the frames that the map would give out.
    fn check_apart<P: Platform, const N: usize>(
        &self,
        map: &BootMap<N>,
    ) -> Result<(), MemoryError> {
        let Some(start) = self.physical() else {
            return Ok(());
        };
        // Cannot overflow: `from_direct_map` checked the end.
        let last = PhysAddr(start.0 + (self.bytes() as u64).saturating_sub(1));
        let first = start.pfn(P::PAGE_SHIFT);
        let range = FrameRange::new(first, Pfn(last.pfn(P::PAGE_SHIFT).0 + 1));
        let overlaps = |(_, free): (_, FrameRange)| !free.intersect(range).is_empty();
        if map.free_frames(P::PAGE_SHIFT).any(overlaps) {
            return Err(MemoryError::StorageInUse { start });
        }
        Ok(())
    }
}
