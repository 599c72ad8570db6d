//! The interrupt controller, a GICv3.

use core::ptr::NonNull;

use arm_gic::gicv3::registers::{Gicd, GicrSgi};
use arm_gic::gicv3::{GicCpuInterface, GicV3, Group, SgiTarget, SgiTargetGroup};
use arm_gic::{IntId, InterruptGroup};
use safe_mmio::UniqueMmioPointer;
use spin::Mutex;

/// The virtual timer of the CPU.
pub(super) const TIMER: IntId = IntId::ppi(11);
pub(super) const IPI: IntId = IntId::sgi(1);

struct Bases(Option<NonNull<u8>>, Option<NonNull<u8>>);

// SAFETY: addresses of registers, the same on every CPU.
unsafe impl Send for Bases {}

static BASES: Mutex<Bases> = Mutex::new(Bases(None, None));
static GIC: Mutex<Option<GicV3<'static>>> = Mutex::new(None);

/// Notes where the device tree has it.
pub(super) fn found(distributor: Option<NonNull<u8>>, redistributors: Option<NonNull<u8>>) {
    *BASES.lock() = Bases(distributor, redistributors);
}

/// Sets up what CPUs share.
pub(super) fn start(cpus: usize) {
    let Bases(Some(distributor), Some(redistributors)) = &*BASES.lock() else {
        panic!("the device tree has no GICv3");
    };
    // SAFETY: the device tree says that the registers are there; only this driver uses them.
    let gic = unsafe {
        let distributor = UniqueMmioPointer::new(distributor.cast::<Gicd>());
        GicV3::new(distributor, redistributors.cast::<GicrSgi>(), cpus)
    };
    let mut gic = gic.expect("QEMU's GIC has a redistributor for each CPU");
    gic.setup(0);
    *GIC.lock() = Some(gic);
}

/// Lets the calling CPU take interrupts from its timer and from other CPUs.
pub(super) fn init_cpu(index: usize) {
    let mut gic = GIC.lock();
    let gic = gic.as_mut().expect("started");
    gic.init_cpu(index);
    for interrupt in [TIMER, IPI] {
        let set = gic
            .set_group(interrupt, Some(index), Group::Group1NS)
            .and_then(|()| gic.set_interrupt_priority(interrupt, Some(index), 0x80))
            .and_then(|()| gic.enable_interrupt(interrupt, Some(index), true));
        set.expect("the CPU has a redistributor");
    }
    GicCpuInterface::set_priority_mask(0xff);
    GicCpuInterface::enable_group1(true);
}

/// The interrupt that is to be handled.
pub(super) fn acknowledge() -> Option<IntId> {
    GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1)
}

pub(super) fn end(interrupt: IntId) {
    GicCpuInterface::end_interrupt(interrupt, InterruptGroup::Group1);
}

pub(super) fn interrupt_others() {
    GicCpuInterface::send_sgi(IPI, SgiTarget::All, SgiTargetGroup::CurrentGroup1)
        .expect("a software-generated interrupt");
}
