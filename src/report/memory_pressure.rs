//! `memory.pressure` of one group.
//!
//! Owns: [`MemoryPressure`]. Invariants: two lines, as in Linux's file. Lock ranks: `Pressure`. Used by: report.

use core::fmt;

use crate::memcg::{Lost, MemcgId, Pressure};
use crate::mm::{Mm, NoSuchGroup};
use crate::platform::Platform;

/// Time lost for want of memory.
///
/// ```text
/// some avg10=1.92 avg60=0.64 avg300=0.14 total=612345
/// full avg10=0.00 avg60=0.00 avg300=0.00 total=8010
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryPressure(pub Pressure);

impl MemoryPressure {
    /// Of a group and those below it; the root's is the machine's. `None` without a clock.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn of<P: Platform>(mm: &Mm<P>, memcg: MemcgId) -> Result<Option<Self>, NoSuchGroup> {
        Ok(mm.memcg_pressure(memcg)?.map(Self))
    }
}

impl fmt::Display for MemoryPressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name, lost: &Lost| {
            write!(f, "{name}")?;
            for (over, average) in [10, 60, 300].into_iter().zip(lost.averages) {
                write!(f, " avg{over}={}.{:02}", average / 100, average % 100)?;
            }
            writeln!(f, " total={}", lost.total)
        };
        line("some", &self.0.some)?;
        line("full", &self.0.full)
    }
}
