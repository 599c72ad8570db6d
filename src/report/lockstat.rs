//! What a port's counted locks counted, as `/proc/lock_stat` shows it.
//!
//! Owns: [`Lockstat`]. Invariants: a snapshot; a rank that was never taken has no line.
//! Lock ranks: none. Used by: ports whose lock is a [`CountedLock`](crate::sync::CountedLock).

use core::fmt;

use crate::rank::Rank;
use crate::sync::{LockCounts, LockTable, Times};

/// Contentions, waits, acquisitions and holds by rank; times in microseconds.
///
/// Linux's columns, without the two of bounces between CPUs, which nobody counts here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lockstat([LockCounts; Rank::COUNT]);

impl Lockstat {
    /// Of a port's table.
    #[must_use]
    pub fn of(table: &LockTable) -> Self {
        Self(Rank::ALL.map(|rank| table.of(rank)))
    }

    /// The counts of one rank.
    #[must_use]
    pub fn rank(&self, rank: Rank) -> &LockCounts {
        &self.0[rank as usize]
    }
}

impl fmt::Display for Lockstat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lock_stat version 0.4\n")?;
        write!(f, "{:>20} {:>12}", "class name", "contentions")?;
        for time in [
            "waittime-min",
            "waittime-max",
            "waittime-total",
            "waittime-avg",
        ] {
            write!(f, " {time:>14}")?;
        }
        write!(f, " {:>12}", "acquisitions")?;
        for time in [
            "holdtime-min",
            "holdtime-max",
            "holdtime-total",
            "holdtime-avg",
        ] {
            write!(f, " {time:>14}")?;
        }
        f.write_str("\n")?;
        for counts in self.0.iter().filter(|counts| counts.acquired > 0) {
            let name = RankName(counts.rank);
            write!(f, "{name:>19}: {:>12}", counts.contended)?;
            times(f, &counts.wait)?;
            write!(f, " {:>12}", counts.acquired)?;
            times(f, &counts.hold)?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// A rank's name, padded as asked.
struct RankName(Rank);

impl fmt::Display for RankName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name())
    }
}

fn times(f: &mut fmt::Formatter<'_>, times: &Times) -> fmt::Result {
    for ns in [times.least, times.most, times.total, times.mean()] {
        // Hundredths of a microsecond, rounded down.
        write!(f, " {:>11}.{:02}", ns / 1000, ns % 1000 / 10)?;
    }
    Ok(())
}
