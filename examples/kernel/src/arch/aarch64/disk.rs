//! The first virtio disk among the memory-mapped devices.

use core::ptr::NonNull;

use virtio_drivers::device::blk::VirtIOBlk;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

use crate::arch::Machine;
use crate::disk::Dma;

pub type Disk = VirtIOBlk<Dma, MmioTransport<'static>>;

/// Finds and starts it.
pub fn disk(_machine: &Machine) -> Option<Disk> {
    let places = *super::tree::VIRTIO.lock();
    let transport = places.into_iter().flatten().find_map(|(base, bytes)| {
        let header = NonNull::new(super::direct_map(base))?.cast();
        // SAFETY: the device tree has a virtio device there; each is tried once.
        let transport = unsafe { MmioTransport::new(header, bytes) }.ok()?;
        (transport.device_type() == DeviceType::Block).then_some(transport)
    })?;
    Disk::new(transport).ok()
}
