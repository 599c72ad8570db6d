//! The first virtio disk on PCI bus 0.

use virtio_drivers::device::blk::VirtIOBlk;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{Cam, Command, MmioCam, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};

use crate::arch::Machine;
use crate::disk::Dma;

pub type Disk = VirtIOBlk<Dma, PciTransport>;

/// Finds and starts it.
pub fn disk(machine: &Machine) -> Option<Disk> {
    let configuration = super::direct_map(machine.pci_config?.0);
    // SAFETY: ACPI says that PCI configuration space starts there.
    let mut root = PciRoot::new(unsafe { MmioCam::new(configuration, Cam::Ecam) });
    let (function, _) = root
        .enumerate_bus(0)
        .find(|(_, info)| virtio_device_type(info) == Some(DeviceType::Block))?;
    root.set_command(function, Command::MEMORY_SPACE | Command::BUS_MASTER);
    let transport = PciTransport::new::<Dma, _>(&mut root, function).ok()?;
    Disk::new(transport).ok()
}
