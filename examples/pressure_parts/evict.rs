//! How this kernel takes part in reclaim: the hooks that look at a folio's mapping, remove it, and save its bytes.

use framekeeper::{Evict, Isolated, MemcgId, Mm, NodeId, Oom, Pfn, Unmap, WriteOut};

use crate::kernel::{Group, Kernel, PageId};
use crate::port::{self, Port};
use crate::table::Entry;

impl Evict for Port {
    fn referenced(folio: &Isolated<'_, Self>) -> u32 {
        mapping(folio).map_or(0, |(_, _, entry)| {
            entry.test_and_clear_accessed(folio.pfn()).into()
        })
    }

    fn unmap(folio: &Isolated<'_, Self>) -> Unmap {
        if let Some((_, _, entry)) = mapping(folio)
            && entry.unmap(folio.pfn())
        {
            drop_mapping(folio.mm(), folio.pfn());
        }
        Unmap::Done
    }

    fn write_out(folio: &Isolated<'_, Self>) -> WriteOut {
        let Some((kernel, group, entry)) = mapping(folio) else {
            return WriteOut::Done;
        };
        if !entry.is_leaving(folio.pfn()) {
            // Written before, and kept because somebody else held a reference.
            return WriteOut::Done;
        }
        match kernel.swap.write(port::frame(folio.pfn())) {
            Some(slot) => {
                group.note_eviction();
                entry.set_swapped(slot);
                WriteOut::Done
            }
            // The fault that asked for this learns it from the swap area.
            None => WriteOut::Busy,
        }
    }

    fn remap(folio: &Isolated<'_, Self>) {
        // If it was written, its entry names the slot, and nobody in this kernel writes to a page without its entry.
        if let Some((_, _, entry)) = mapping(folio)
            && entry.is_leaving(folio.pfn())
        {
            entry.set_present(folio.reference().into_raw());
        }
    }

    fn wake_background(_node: NodeId) {
        if let Some(kernel) = Kernel::running() {
            kernel.wake_background();
        }
    }

    fn oom(_memcg: Option<MemcgId>) -> Oom {
        // Faults of other CPUs hold what the group may have. They end without help: let them run.
        std::thread::yield_now();
        Oom::Retry
    }
}

/// The one entry that may map the folio.
fn mapping(
    folio: &Isolated<'_, Port>,
) -> Option<(&'static Kernel, &'static Group, &'static Entry)> {
    let kernel = Kernel::running()?;
    let (group, entry) = kernel.entry(PageId::from_word(folio.word()))?;
    Some((kernel, group, entry))
}

/// Drops the reference that an entry held.
#[expect(unsafe_code, reason = "the entry's promise about its number")]
pub(crate) fn drop_mapping(mm: &Mm<Port>, pfn: Pfn) {
    // SAFETY: the entry got the number from `into_raw` and owned its reference until the caller took it out.
    drop(unsafe { mm.folio_from_raw(pfn) });
}
