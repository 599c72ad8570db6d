//! The lock order.
//!
//! Owns: the one list of lock ranks.
//! Invariants: a lock is taken only while every lock already held has a lower rank. Two locks of one
//! rank are held together only through [`Lock::lock_pair`](crate::sync::Lock::lock_pair).
//! Lock ranks: defines them.
//! Used by: `sync::Lock`, and every module that keeps data under one.

/// Place of a lock in the order in which locks may be nested, lowest (outermost) first.
///
/// ```
/// use framekeeper::Rank;
/// assert!(Rank::LruVec < Rank::Shard); // a shard may be locked under an lruvec, never the reverse
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Rank {
    /// Sections coming and going, changes of limits.
    Hotplug,
    /// The shape of the memcg tree.
    MemcgTree,
    /// The set of all list_lrus.
    ListLruSet,
    /// The shrinker registry.
    Shrinkers,
    /// A CPU's stock of pre-charged frames.
    MemcgStock,
    /// What a group's tasks lost for want of memory.
    Pressure,
    /// The cursor of deferred initialisation.
    Deferred,
    /// A CPU's batches of pending LRU moves.
    LruBatch,
    /// The lists of one memcg on one node.
    LruVec,
    /// One list of a list_lru.
    ListLru,
    /// A CPU's cache of free frames in one zone.
    Pageset,
    /// A run of lines of one zone.
    Shard,
}

impl Rank {
    /// Number of ranks.
    pub const COUNT: usize = Self::Shard as usize + 1;

    /// All ranks, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Hotplug,
        Self::MemcgTree,
        Self::ListLruSet,
        Self::Shrinkers,
        Self::MemcgStock,
        Self::Pressure,
        Self::Deferred,
        Self::LruBatch,
        Self::LruVec,
        Self::ListLru,
        Self::Pageset,
        Self::Shard,
    ];

    /// Its name, as in this crate's documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hotplug => "Hotplug",
            Self::MemcgTree => "MemcgTree",
            Self::ListLruSet => "ListLruSet",
            Self::Shrinkers => "Shrinkers",
            Self::MemcgStock => "MemcgStock",
            Self::Pressure => "Pressure",
            Self::Deferred => "Deferred",
            Self::LruBatch => "LruBatch",
            Self::LruVec => "LruVec",
            Self::ListLru => "ListLru",
            Self::Pageset => "Pageset",
            Self::Shard => "Shard",
        }
    }
}
