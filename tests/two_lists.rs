//! The tests of lists, moves and reclaim, once more: here over the two-list policy, elsewhere over the default one.
//!
//! `kernel::policy` looks at the name of this binary.
#![allow(
    clippy::duplicate_mod,
    reason = "each file of tests brings the machine that it runs on"
)]

#[path = "background.rs"]
mod background;
#[path = "compaction.rs"]
mod compaction;
#[path = "lru_locks.rs"]
mod lru_locks;
#[path = "lru_moves.rs"]
mod lru_moves;
#[path = "lru_regressions.rs"]
mod lru_regressions;
#[path = "memcg_life.rs"]
mod memcg_life;
#[path = "misuse_mm.rs"]
mod misuse_mm;
#[path = "model_mm.rs"]
mod model_mm;
#[path = "vacate.rs"]
mod vacate;
