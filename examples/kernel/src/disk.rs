//! Swap on a virtio disk: slots of a page each, and the memory that the device reads and writes.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use framekeeper::{FrameRange, Order, Pfn, PhysAddr, Request, Shadow};
use spin::Mutex;
use virtio_drivers::{BufferDirection, Hal};

use crate::arch::{self, Disk, Machine};
use crate::{cpu, port};

/// Slots that the kernel keeps track of: 1 GiB.
const SLOTS: usize = 1 << 18;
const SECTORS: usize = 8;
const PAGE: usize = 4096;

static DISK: Mutex<Option<Disk>> = Mutex::new(None);
static USED: [AtomicU64; SLOTS / 64] = [const { AtomicU64::new(0) }; SLOTS / 64];
static CAPACITY: AtomicU64 = AtomicU64::new(0);
static HINT: AtomicU64 = AtomicU64::new(0);
/// CPUs that want the disk.
static WAITING: AtomicU64 = AtomicU64::new(0);
static READS: AtomicU64 = AtomicU64::new(0);
static WRITES: AtomicU64 = AtomicU64::new(0);
/// What is remembered of the folio that was evicted to each slot; 0 for nothing.
static SHADOWS: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
/// What the driver holds.
static DMA: Mutex<[Option<FrameRange>; 16]> = Mutex::new([None; 16]);

/// A place of one page on the disk. Dropping it does nothing: `free` gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(pub u32);

/// Finds the disk.
pub fn start(machine: &Machine) {
    if let Some(disk) = arch::disk(machine) {
        let slots = (disk.capacity() as usize / SECTORS).min(SLOTS);
        CAPACITY.store(slots as u64, Ordering::Relaxed);
        *DISK.lock() = Some(disk);
    }
}

/// Slots there are.
pub fn capacity() -> u64 {
    CAPACITY.load(Ordering::Relaxed)
}

/// Slots in use.
pub fn used() -> u64 {
    USED.iter()
        .map(|word| u64::from(word.load(Ordering::Relaxed).count_ones()))
        .sum()
}

/// Pages read and written.
pub fn counts() -> (u64, u64) {
    (
        READS.load(Ordering::Relaxed),
        WRITES.load(Ordering::Relaxed),
    )
}

/// Takes a slot that is free.
pub fn take() -> Option<Slot> {
    let words = capacity().div_ceil(64);
    let start = HINT.load(Ordering::Relaxed);
    for i in 0..words {
        let at = (start + i) % words;
        let word = &USED[at as usize];
        let mut was = word.load(Ordering::Relaxed);
        while was != u64::MAX {
            let bit = was.trailing_ones();
            if at * 64 + u64::from(bit) >= capacity() {
                break;
            }
            match word.compare_exchange_weak(
                was,
                was | 1 << bit,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    HINT.store(at, Ordering::Relaxed);
                    return Some(Slot(at as u32 * 64 + bit));
                }
                Err(now) => was = now,
            }
        }
    }
    None
}

/// Keeps what is to be known when the contents of a slot come back.
pub fn keep_shadow(slot: Slot, shadow: Shadow) {
    SHADOWS[slot.0 as usize].store(shadow.into_raw(), Ordering::Relaxed);
}

/// What was kept. Of a slot that was freed and taken meanwhile it may be another page's: then a guess is wrong.
pub fn take_shadow(slot: Slot) -> Option<Shadow> {
    Shadow::from_raw(SHADOWS[slot.0 as usize].swap(0, Ordering::Relaxed))
}

/// Calls `act` with the frames that the disk's driver holds.
pub fn each_dma(act: impl FnMut(FrameRange)) {
    DMA.lock().iter().flatten().copied().for_each(act);
}

/// Gives a slot back.
pub fn free(slot: Slot) {
    SHADOWS[slot.0 as usize].store(0, Ordering::Relaxed);
    let was = USED[slot.0 as usize / 64].fetch_and(!(1 << (slot.0 % 64)), Ordering::Release);
    assert!(
        was & 1 << (slot.0 % 64) != 0,
        "swap slot {} was free",
        slot.0
    );
}

/// Writes a frame to a slot.
pub fn write(slot: Slot, pfn: Pfn) -> bool {
    // SAFETY: the frame is isolated and unmapped: nobody writes to it meanwhile.
    let page = unsafe { core::slice::from_raw_parts(frame(pfn), PAGE) };
    WRITES.fetch_add(1, Ordering::Relaxed);
    with_disk(|disk| disk.write_blocks(slot.0 as usize * SECTORS, page).is_ok())
}

/// Reads a slot into a frame.
pub fn read(slot: Slot, pfn: Pfn) -> bool {
    // SAFETY: the frame was allocated by the caller, who has not shown it to anyone.
    let page = unsafe { core::slice::from_raw_parts_mut(frame(pfn), PAGE) };
    READS.fetch_add(1, Ordering::Relaxed);
    with_disk(|disk| disk.read_blocks(slot.0 as usize * SECTORS, page).is_ok())
}

/// The first byte of a frame.
pub fn frame(pfn: Pfn) -> *mut u8 {
    arch::direct_map(pfn.0 << 12)
}

/// Sleeps while another CPU uses the disk: on an emulated machine a CPU that spins takes time from the device.
fn with_disk(act: impl FnOnce(&mut Disk) -> bool) -> bool {
    WAITING.fetch_add(1, Ordering::SeqCst);
    let mut disk = loop {
        let state = arch::irq_save();
        let free = DISK.try_lock();
        if free.is_none() {
            arch::idle(); // the release wakes it, also if it came a moment ago
        }
        arch::irq_restore(state);
        if let Some(disk) = free {
            break disk;
        }
    };
    WAITING.fetch_sub(1, Ordering::SeqCst);
    let done = disk.as_mut().is_some_and(act);
    drop(disk);
    // Pairs with the count above: who failed to get the disk is seen here, or finds it free.
    fence(Ordering::SeqCst);
    if WAITING.load(Ordering::SeqCst) > 0 {
        arch::send_ipi(cpu::online());
    }
    done
}

/// The device's memory.
#[derive(Debug)]
pub struct Dma;

// SAFETY: memory from the allocator is the device's until it is given back; the direct map is at a fixed distance.
unsafe impl Hal for Dma {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (u64, NonNull<u8>) {
        let order = Order::new(pages.next_power_of_two().trailing_zeros() as u8);
        let request = order.map(|order| Request::new(order).zeroed());
        let pages = port::mm()
            .zip(request)
            .and_then(|(mm, request)| mm.try_alloc(request).ok());
        let mut held = DMA.lock();
        let place = held.iter_mut().find(|place| place.is_none());
        let address = pages.zip(place).map_or(0, |(pages, place)| {
            *place = Some(pages.frames());
            pages.into_raw().0 << 12
        });
        (
            address,
            NonNull::new(arch::direct_map(address)).expect("the direct map has no null"),
        )
    }

    unsafe fn dma_dealloc(address: u64, _: NonNull<u8>, pages: usize) -> i32 {
        let order = Order::new(pages.next_power_of_two().trailing_zeros() as u8);
        let at = Pfn(address >> 12);
        for place in DMA.lock().iter_mut() {
            *place = place.filter(|frames| frames.start() != at);
        }
        let back = port::mm()
            .zip(order)
            .and_then(|(mm, order)| mm.allocator().try_from_raw(at, order).ok());
        if back.is_some() { 0 } else { -1 }
    }

    unsafe fn mmio_phys_to_virt(address: u64, _: usize) -> NonNull<u8> {
        NonNull::new(arch::direct_map(address)).expect("registers are below the direct map's end")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> u64 {
        let PhysAddr(address) = arch::physical(buffer.as_ptr().cast_const().cast());
        address
    }

    unsafe fn unshare(_: u64, _: NonNull<[u8]>, _: BufferDirection) {}
}
