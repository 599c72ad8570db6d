//! What the device tree says of the machine.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use dtoolkit::error::{FdtParseError, StandardError};
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};
use framekeeper::NodeId;
use spin::Mutex;

use super::super::{Cpu, Machine, NodeMemory};

/// Where the registers of virtio devices are; QEMU has 32 places.
pub(super) static VIRTIO: Mutex<[Option<(u64, usize)>; 32]> = Mutex::new([None; 32]);

/// Why the tree cannot be read.
#[derive(Debug)]
pub(super) enum TreeError {
    Format(FdtParseError),
    Content(StandardError),
}

/// Reads the tree at `at` into the machine.
pub(super) fn read(at: u64, machine: &mut Machine) -> Result<(), TreeError> {
    // SAFETY: the caller saw its magic number; nothing writes there, since it is reserved below.
    let tree = unsafe { Fdt::from_raw(super::direct_map(at)) }.map_err(TreeError::Format)?;
    machine.reserve(at, tree.data().len() as u64);
    for reservation in tree.memory_reservations() {
        machine.reserve(reservation.address(), reservation.size());
    }
    nodes(tree, machine).map_err(TreeError::Content)
}

fn nodes(tree: Fdt<'static>, machine: &mut Machine) -> Result<(), StandardError> {
    for node in tree.root().children() {
        match node.name_without_address() {
            "memory" => memory(node, machine)?,
            "reserved-memory" => {
                for child in node.children() {
                    each_range(child, |base, bytes| machine.reserve(base, bytes))?;
                }
            }
            "cpus" => {
                for cpu in node
                    .children()
                    .filter(|node| node.name_without_address() == "cpu")
                {
                    each_range(cpu, |hardware, _| {
                        machine.add_cpu(Cpu {
                            hardware,
                            node: node_of(cpu),
                        });
                    })?;
                }
            }
            "chosen" => {
                if let Some(line) = node.property("bootargs") {
                    machine.command_line = line.value_as::<&'static str>().unwrap_or("");
                }
            }
            "pl011" => each_range(node, |base, _| {
                super::UART_AT.store(base, Ordering::Relaxed)
            })?,
            "virtio_mmio" => each_range(node, |base, bytes| {
                let mut places = VIRTIO.lock();
                if let Some(place) = places.iter_mut().find(|place| place.is_none()) {
                    *place = Some((base, bytes as usize));
                }
            })?,
            "intc" => {
                let mut bases = [0; 2];
                let mut places = bases.iter_mut();
                each_range(node, |base, _| {
                    if let Some(place) = places.next() {
                        *place = base;
                    }
                })?;
                let pointer = |base| NonNull::new(super::direct_map(base));
                super::gic::found(pointer(bases[0]), pointer(bases[1]));
            }
            _ => {}
        }
    }
    Ok(())
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(why) => why.fmt(f),
            Self::Content(why) => why.fmt(f),
        }
    }
}

fn memory(node: FdtNode<'_>, machine: &mut Machine) -> Result<(), StandardError> {
    let on = node_of(node);
    each_range(node, |base, bytes| {
        machine.add_usable(base, bytes);
        machine.add_node_memory(NodeMemory {
            node: on,
            base,
            bytes,
        });
    })
}

fn node_of(node: FdtNode<'_>) -> NodeId {
    let id = node
        .property("numa-node-id")
        .and_then(|id| id.value_as::<u32>().ok());
    NodeId(id.unwrap_or(0) as u8)
}

/// Calls `each` with address and size of every `reg`.
fn each_range(node: FdtNode<'_>, mut each: impl FnMut(u64, u64)) -> Result<(), StandardError> {
    for reg in node.reg()?.into_iter().flatten() {
        each(reg.address()?, reg.size().unwrap_or(0));
    }
    Ok(())
}
