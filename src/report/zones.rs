//! `/proc/buddyinfo` and `/proc/zoneinfo`.
//!
//! Owns: [`Buddyinfo`], [`Zoneinfo`]. Invariants: one line, or block of lines, for each zone, by node and then address.
//! Lock ranks: `Pageset`, `Shard`, one at a time. Used by: report.

use core::fmt;

use crate::alloc::PageAllocator;
use crate::platform::Platform;

/// Free blocks of each order in each zone, as `/proc/buddyinfo` prints them; orders above Linux's follow behind.
///
/// ```text
/// Node 0, zone   Normal      1      0      2 ...
/// ```
#[derive(Debug)]
pub struct Buddyinfo<'a, P: Platform>(pub &'a PageAllocator<P>);

/// Sizes and counts of each zone, in the layout of `/proc/zoneinfo`. Numbers are frames.
///
/// ```text
/// Node 0, zone   Normal
///   pages free     507
///         spanned  1024
/// ```
#[derive(Debug)]
pub struct Zoneinfo<'a, P: Platform>(pub &'a PageAllocator<P>);

impl<P: Platform> fmt::Display for Buddyinfo<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for zone in self.0.zone_counts() {
            write!(f, "Node {}, zone {:>8} ", zone.node.0, zone.kind)?;
            for blocks in zone.free_blocks {
                write!(f, "{blocks:>6} ")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl<P: Platform> fmt::Display for Zoneinfo<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for zone in self.0.zone_counts() {
            writeln!(f, "Node {}, zone {:>8}", zone.node.0, zone.kind)?;
            writeln!(f, "  pages free     {}", zone.free)?;
            writeln!(f, "        spanned  {}", zone.span.frames())?;
            writeln!(f, "        present  {}", zone.present)?;
            writeln!(f, "        managed  {}", zone.managed)?;
            writeln!(f, "        cma      {}", zone.cma)?;
            writeln!(f, "      nr_free_pages {}", zone.free)?;
            writeln!(
                f,
                "      nr_reserved_highatomic {}",
                zone.reserved_highatomic
            )?;
            writeln!(f, "      nr_free_highatomic {}", zone.free_highatomic)?;
            writeln!(f, "      nr_free_cma  {}", zone.free_cma)?;
            writeln!(f, "  pagesets")?;
            writeln!(f, "              count: {}", zone.parked)?;
            writeln!(f, "  start_pfn:           {}", zone.span.start().0)?;
        }
        Ok(())
    }
}
