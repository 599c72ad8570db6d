//! The swap area: slots of one page each, in memory or in a file.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::page::{PAGE_BYTES, PAGE_SHIFT, Page};

/// First bytes of a swap file. A file that has other bytes is somebody's: it is not overwritten.
const SIGNATURE: &[u8; 16] = b"FRAMEKEEPER-SWAP";
/// Slots that memory is taken for at a time.
const EXTENT: usize = 256;

/// Slots that pages are written to and read from.
pub(crate) struct Swap {
    store: Store,
    slots: Mutex<Slots>,
    /// The first write that failed: evictions cannot be relied on since.
    failure: OnceLock<io::Error>,
}

enum Store {
    /// By extent, made when its first slot is written.
    Memory(Box<[OnceLock<Box<[Page]>>]>),
    /// Behind a header of one page.
    File(File),
}

/// Which slots are free.
struct Slots {
    /// Given back.
    free: Vec<u32>,
    /// Slots from here on were never used.
    untouched: u32,
    total: u32,
}

/// Why a file cannot be the swap area.
#[derive(Debug)]
pub(crate) struct SwapFileError {
    path: PathBuf,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Io(io::Error),
    NotAFile,
    NotSwap,
    InUse,
}

impl Swap {
    /// A swap area in memory.
    pub(crate) fn in_memory(total: u32) -> Self {
        let extents = (total as usize).div_ceil(EXTENT);
        Self::new(
            Store::Memory((0..extents).map(|_| OnceLock::new()).collect()),
            total,
        )
    }

    /// A swap area in a file: a new one, an empty one, or one that was a swap area before.
    pub(crate) fn in_file(path: &Path, total: u32) -> Result<Self, SwapFileError> {
        let file = open(path).map_err(|why| SwapFileError {
            path: path.to_owned(),
            why,
        })?;
        Ok(Self::new(Store::File(file), total))
    }

    fn new(store: Store, total: u32) -> Self {
        let slots = Slots {
            free: Vec::new(),
            untouched: 0,
            total,
        };
        Self {
            store,
            slots: Mutex::new(slots),
            failure: OnceLock::new(),
        }
    }

    /// Writes a page to a free slot. `None` if that fails; [`failure`](Self::failure) tells why.
    pub(crate) fn write(&self, page: &Page) -> Option<u32> {
        let slot = self.slots().take();
        let written = match slot {
            Some(slot) => self.write_to(slot, page).map(|()| slot),
            None => Err(io::Error::other("every swap slot is taken")),
        };
        written
            .inspect_err(|_| self.slots().free.extend(slot))
            .map_err(|error| self.failure.get_or_init(|| error))
            .ok()
    }

    /// Reads a slot, which stays taken.
    pub(crate) fn read(&self, slot: u32, page: &Page) -> io::Result<()> {
        match &self.store {
            Store::Memory(extents) => {
                let written = extents.get(slot as usize / EXTENT).and_then(OnceLock::get);
                let extent = written.ok_or_else(|| io::Error::other("no such swap slot"))?;
                page.copy_from(&extent[slot as usize % EXTENT]);
            }
            Store::File(file) => {
                let mut bytes = [0; PAGE_BYTES];
                file.read_exact_at(&mut bytes, offset(slot))?;
                page.load_from(&bytes);
            }
        }
        Ok(())
    }

    /// Gives a slot back.
    pub(crate) fn free(&self, slot: u32) {
        self.slots().free.push(slot);
    }

    /// Slots that hold a page.
    pub(crate) fn used(&self) -> u64 {
        let slots = self.slots();
        u64::from(slots.untouched) - slots.free.len() as u64
    }

    /// Why evictions cannot be relied on any more, if a write has failed.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failure.get()
    }

    /// Forgets all pages: a file keeps its signature alone.
    pub(crate) fn close(&self) {
        if let Store::File(file) = &self.store {
            // The pages mean nothing to anybody else; a file that cannot be cut is only long.
            let _ = file.set_len(SIGNATURE.len() as u64);
        }
    }

    fn write_to(&self, slot: u32, page: &Page) -> io::Result<()> {
        match &self.store {
            Store::Memory(extents) => {
                let zeroed = || (0..EXTENT).map(|_| Page::zeroed()).collect();
                let extent = extents[slot as usize / EXTENT].get_or_init(zeroed);
                extent[slot as usize % EXTENT].copy_from(page);
                Ok(())
            }
            Store::File(file) => {
                let mut bytes = [0; PAGE_BYTES];
                page.store_to(&mut bytes);
                file.write_all_at(&bytes, offset(slot))
            }
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // A panic elsewhere leaves the lists whole: each change is one call.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = self.untouched;
            self.untouched += u32::from(slot < self.total);
            (slot < self.total).then_some(slot)
        })
    }
}

fn offset(slot: u32) -> u64 {
    (u64::from(slot) + 1) << PAGE_SHIFT
}

/// Opens and marks a swap file, alone.
fn open(path: &Path) -> Result<File, Why> {
    // Asked first, since opening some devices has effects. A file that does not exist yet is made below.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(Why::NotAFile);
    }
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(Why::Io)?;
    let metadata = file.metadata().map_err(Why::Io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Why::InUse),
        Err(TryLockError::Error(error)) => return Err(Why::Io(error)),
    }
    if metadata.len() > 0 {
        let mut start = [0; SIGNATURE.len()];
        match file.read_exact_at(&mut start, 0) {
            Ok(()) if start == *SIGNATURE => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(Why::Io(error));
            }
            _ => return Err(Why::NotSwap),
        }
    }
    file.write_all_at(SIGNATURE, 0).map_err(Why::Io)?;
    Ok(file)
}

impl fmt::Display for SwapFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Why::Io(error) => write!(f, "cannot use {path} as a swap file: {error}"),
            Why::NotAFile => write!(
                f,
                "{path} is not a regular file: name one, or a new one, for swap"
            ),
            Why::NotSwap => write!(
                f,
                "{path} holds something else: name a new or an empty file for swap, or remove it"
            ),
            Why::InUse => write!(
                f,
                "{path} is another run's swap file now: name a different one"
            ),
        }
    }
}

impl std::error::Error for SwapFileError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Pattern;

    /// A path that no other test uses; removed when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("framekeeper-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn pages_come_back_from(swap: &Swap) {
        let pattern = Pattern::new(1);
        let page = Page::zeroed();
        let slots: Vec<u32> = (0..300)
            .map(|number| {
                pattern.write(&page, 1, number);
                swap.write(&page).expect("a slot is free")
            })
            .collect();
        assert_eq!(swap.used(), 300);
        for (number, &slot) in (0..300).zip(&slots).rev() {
            swap.read(slot, &page).expect("it was written");
            assert_eq!(pattern.verify(&page, 1, number), Ok(()));
            swap.free(slot);
        }
        assert_eq!(swap.used(), 0);
        for _ in 0..300 {
            swap.write(&page).expect("slots that were freed are free");
        }
        assert_eq!(swap.used(), 300);
        assert!(swap.failure().is_none());
        assert!(swap.write(&page).is_none(), "every slot is taken");
        assert!(swap.failure().is_some());
        assert_eq!(swap.used(), 300);
    }

    #[test]
    fn memory_gives_back_what_was_written_and_no_more_slots_than_it_has() {
        pages_come_back_from(&Swap::in_memory(300));
    }

    #[test]
    fn a_file_gives_back_what_was_written_and_is_short_afterwards() {
        let file = Scratch::new("reused.swap");
        for _ in 0..2 {
            let swap = Swap::in_file(&file.0, 300).expect("a swap file");
            pages_come_back_from(&swap);
            swap.close();
            let length = file.0.metadata().expect("it stays").len();
            assert_eq!(length, SIGNATURE.len() as u64);
        }
    }

    #[test]
    fn a_file_that_is_no_swap_file_stays_as_it_is() {
        let file = Scratch::new("letter.txt");
        for contents in ["dear reader", "a letter that is longer than the signature"] {
            std::fs::write(&file.0, contents).expect("a temporary file");
            let error = Swap::in_file(&file.0, 1).err().expect("refused");
            assert!(error.to_string().contains("holds something else"));
            assert_eq!(
                std::fs::read_to_string(&file.0).ok().as_deref(),
                Some(contents)
            );
        }
    }

    #[test]
    fn devices_directories_and_files_in_use_are_refused() {
        for (path, why) in [
            ("/dev/null", "not a regular file"),
            ("/", "not a regular file"),
            ("/no/such/folder/swap", "cannot use"),
        ] {
            let error = Swap::in_file(Path::new(path), 1).err().expect("refused");
            assert!(error.to_string().contains(why), "{error}");
        }
        let file = Scratch::new("shared.swap");
        let _first = Swap::in_file(&file.0, 1).expect("a swap file");
        let error = Swap::in_file(&file.0, 1).err().expect("refused");
        assert!(error.to_string().contains("another run"), "{error}");
    }
}
