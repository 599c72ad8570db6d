//! When nothing more can be reclaimed.
//!
//! Owns: [`Victim`], [`Killed`]; the choice of a victim; who kills. Invariants: one thread kills at a time, and none while the
//! limit in the way has room again. Every caller asks a bounded number of times.
//! Lock ranks: `MemcgTree` for each step of the choice; none while a hook runs. Used by: entry, relief, kernels.

use super::evict::Evict;
use super::throttle::Throttle;
use crate::alloc::Oom;
use crate::memcg::{Event, MemcgId, SPARED};
use crate::mm::Mm;
use crate::platform::IrqOff;
use crate::sync::NoClaim;

/// Who should go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Victim {
    /// The group, of which one program is to be killed, unless `whole` says more.
    pub memcg: MemcgId,
    /// The group that goes as one with everything below it: `memcg`, or one above it.
    pub whole: Option<MemcgId>,
    /// Base frames charged to `memcg` itself, and what its setting adds.
    pub points: i64,
    /// The group at its limit; `None` if the machine is out of memory.
    pub domain: Option<MemcgId>,
}

/// Whether something was killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Killed {
    /// It is ending, and frees what it has.
    Yes,
    /// Nothing was.
    No,
}

impl<P: Evict> Mm<P> {
    /// The group in `domain` (in the machine for `None`) with the most points: base frames charged to itself, and its
    /// [adjust value](crate::memcg::OomSetting) in thousandths of the domain's limit, or of the machine's memory. `None` if every
    /// group is spared or has nothing. The root is no candidate for the machine: what is charged to it is nobody's.
    pub fn oom_victim(&self, domain: Option<MemcgId>) -> Option<Victim> {
        let root = domain.unwrap_or(MemcgId::ROOT);
        let machine = self.allocator().managed_frames();
        let total = self.memcgs().max(root)?.min(machine);
        let mut best: Option<Victim> = None;
        let mut next = Some(root);
        // As many steps as there are groups, whatever comes and goes meanwhile.
        for _ in 0..self.memcgs().slots() {
            let Some(memcg) = next else { break };
            next = self.memcgs().next_in_subtree(root, memcg, &IrqOff::new());
            let own = self.memcgs().own_frames(memcg);
            let Some(setting) = self.memcgs().oom(memcg) else {
                continue;
            };
            if memcg == MemcgId::ROOT || own == 0 || setting.adjust == SPARED {
                continue;
            }
            let adjust = i128::from(setting.adjust) * i128::from(total) / 1000;
            let points = i64::try_from(i128::from(own) + adjust).unwrap_or(i64::MAX);
            if points > 0 && best.is_none_or(|best| points > best.points) {
                best = Some(Victim {
                    memcg,
                    whole: None,
                    points,
                    domain,
                });
            }
        }
        let best = best.filter(|best| self.memcgs().is_live(best.memcg))?;
        Some(Victim {
            whole: self.memcgs().goes_with(best.memcg, root.slot),
            ..best
        })
    }

    /// Nothing could be reclaimed in a domain: has somebody killed, or asks the kernel what to do.
    pub(super) fn out_of_memory(&self, domain: Option<MemcgId>) -> Oom {
        let _claim = match self.killers.claim(P::task()) {
            Ok(claim) => claim,
            Err(NoClaim::Nested) => return Oom::Fail,
            Err(NoClaim::Full) => {
                // Whoever kills now frees for all.
                P::throttle(Throttle::NoProgress);
                P::relax();
                return Oom::Retry;
            }
        };
        if domain.is_some_and(|domain| self.has_room(domain)) {
            return Oom::Retry;
        }
        if let Some(victim) = self.oom_victim(domain)
            && P::kill(self, &victim) == Killed::Yes
        {
            self.count_memcg_event(victim.memcg, Event::OomKill);
            if let Some(whole) = victim.whole {
                self.count_memcg_event(whole, Event::OomGroupKill);
            }
            return Oom::Retry;
        }
        P::oom(domain)
    }

    /// Whether somebody freed something in a group that was at its limit; or it ended, and with it the limit.
    fn has_room(&self, group: MemcgId) -> bool {
        let (usage, max) = (self.memcgs().usage(group), self.memcgs().max(group));
        usage.is_none() || usage < max
    }
}
