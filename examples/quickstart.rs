//! From a memory map to a page in a page table, and back.
#![allow(unsafe_code)]
use framekeeper::boot::{BootMap, Memory};
use framekeeper::{CpuId, MemcgId, Mm, MmConfig, NodeId, Order, PhysAddr, Platform, Request};

enum Port {}

// SAFETY: this machine's memory is mapped at its own addresses, and stays. It has one CPU.
unsafe impl Platform for Port {
    type RawLock = framekeeper::sync::SpinLock;
    fn cpu() -> CpuId {
        CpuId(0)
    }
    fn irq_save() -> usize {
        0
    }
    fn irq_restore(_: usize) {}
    fn direct_map(addr: PhysAddr) -> *mut u8 {
        addr.0 as *mut u8
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ram = vec![0u8; 8 << 20].leak().as_mut_ptr(); // a kernel asks its firmware instead
    let mut map: BootMap = BootMap::new();
    map.add(NodeId(0), PhysAddr(ram as u64), 8 << 20)?;
    // SAFETY: nothing else uses this memory.
    let memory = unsafe { Memory::<Port>::claim(&mut map) };
    let mm = Mm::new(memory, &MmConfig::new(1, 8)).map_err(|error| error.0)?;
    let group = mm.create_memcg(MemcgId::ROOT)?;
    mm.set_memcg_max(group, 256)?; // frames
    let pages = mm.try_alloc(Request::new(Order::ZERO))?;
    let folio = pages.try_charge_to(&mm, group).map_err(|error| error.0)?;
    let entry = folio.into_raw(); // what a page table entry holds
    println!("mapped {entry}, charged {}", mm.memcg_usage(group)?);
    // SAFETY: the number came from `into_raw`, and the entry is gone.
    drop(unsafe { mm.folio_from_raw(entry) });
    println!("unmapped, charged {}", mm.memcg_usage(group)?);
    Ok(())
}
