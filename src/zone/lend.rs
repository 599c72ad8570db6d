//! What a request does when its own kind has nothing.
//!
//! Owns: claiming a line (it changes its kind) and stealing from one (it keeps it).
//! Invariants: only kinds that lend to each other are touched; each call looks at one line for each class and lender, at most.
//! Lock ranks: works on the data under `Rank::Shard`.
//! Used by: zone.

use super::line::{PLACES, WHOLE};
use super::mobility::Mobility;
use super::shard::{CLASSES, Shard};
use crate::addr::Order;

/// Smallest class that a movable request claims: half the order of a pageblock.
const SENSIBLE: u8 = WHOLE / 2;

/// The smallest class from which a line is claimed for `kind` where kinds are kept apart.
pub(super) fn smallest_claimed(kind: Mobility) -> Order {
    match kind {
        Mobility::Movable => Order::new(SENSIBLE).unwrap_or(Order::ZERO),
        _ => Order::ZERO,
    }
}

/// How memory of another kind is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lend {
    /// The line changes its kind, and the request is served as from its own.
    Claim,
    /// The same, however little of the line is free: kinds are not kept apart.
    ClaimAny,
    /// The line keeps its kind.
    Steal,
}

impl Shard {
    /// Takes up to `out.len()` blocks from kinds that lend to `kind`.
    pub(super) fn take_lent(
        &mut self,
        order: u8,
        kind: Mobility,
        lend: Lend,
        base: u32,
        out: &mut [u32],
    ) -> usize {
        let mut done = 0;
        while done < out.len() {
            let rest = &mut out[done..];
            let taken = match lend {
                Lend::Steal => self.steal(order, kind, base, rest),
                _ if self.claim(order, kind, lend) => self.take_many(order, kind, base, rest),
                _ => 0,
            };
            if taken == 0 {
                break;
            }
            done += taken;
        }
        done
    }

    /// Retags one line to `kind`, if one can serve `order` and at least half of it is free. Largest class first, since
    /// that disturbs its kind for longest.
    fn claim(&mut self, order: u8, kind: Mobility, lend: Lend) -> bool {
        for class in (order..WHOLE).rev() {
            // Small pieces are claimed only by kinds that would otherwise pin many lines.
            if class < SENSIBLE && kind == Mobility::Movable && lend == Lend::Claim {
                return false;
            }
            for &lender in kind.fallbacks() {
                if self.counts.classes(lender, class) & 1 << class == 0 {
                    continue;
                }
                let line = self.index.first(lender as u32 * CLASSES + u32::from(class));
                let info = self.info(line);
                if info.free() >= PLACES / 2 || lend == Lend::ClaimAny {
                    self.update(line, info.with_kind(kind));
                    return true;
                }
            }
        }
        false
    }

    /// Takes from the smallest fitting class of the first kind that has one.
    fn steal(&mut self, order: u8, kind: Mobility, base: u32, out: &mut [u32]) -> usize {
        for class in order..WHOLE {
            for &lender in kind.fallbacks() {
                if self.counts.classes(lender, class) & 1 << class == 0 {
                    continue;
                }
                let line = self.index.first(lender as u32 * CLASSES + u32::from(class));
                if order <= 6 {
                    return self.take_run(line, order, base, out);
                }
                return self.take_in(line, order).map_or(0, |frame| {
                    out[0] = base + frame;
                    1
                });
            }
        }
        0
    }
}
