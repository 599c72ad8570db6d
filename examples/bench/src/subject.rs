//! What is measured.

/// Frames that each subject manages: 4 GiB of 4 KiB.
pub const FRAMES: u32 = 1 << 20;

/// An allocator of blocks of frames that threads share.
pub trait Subject: Sync {
    /// What stands for a block while it is out.
    type Block<'a>: Send
    where
        Self: 'a;

    /// Its name in tables.
    const NAME: &'static str;

    /// All of [`FRAMES`] free.
    fn new() -> Self;

    /// Whether it can run the workload in reasonable time, or at all.
    fn hosts(_workload: &str) -> bool {
        true
    }

    /// A block of `1 << order` frames.
    fn alloc(&self, order: u8) -> Option<Self::Block<'_>>;

    /// Gives a block back.
    fn free<'a>(&'a self, block: Self::Block<'a>, order: u8);

    /// Empties caches.
    fn drain(&self) {}
}
