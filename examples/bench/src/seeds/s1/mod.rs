//! S1: one lock for all sub-lists of a list_lru, as there was one per node, against a lock in each sub-list.
//!
//! Published (Song 2024): (a) 64 groups of 64 MiB each touch 1 GiB with swap in memory, elapsed 20.4 → 15.2 s; (b) 256 groups read 10000
//! small files each under a parent's limit, 15.6 → 13.8 s. Ours are [`memhog`] and [`files`], at a sixteenth of the size and less.
//! Both variants take as many locks; fewer are contended.

mod files;
mod memhog;

use framekeeper::Rank;

use super::Options;
use super::rows::Rows;

const SEED: &str = "s1";

/// One lock per node, then one per list.
const VARIANTS: [(Option<Rank>, &str); 2] = [(Some(Rank::ListLru), "before"), (None, "after")];

pub fn run(options: &Options, rows: &mut Rows) {
    memhog::run(options, rows);
    files::run(options, rows);
}
