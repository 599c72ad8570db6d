//! placeholder
use crate::addr::PhysAddr;
/// x
#[derive(Debug, Default)]
pub struct BootMap<const N: usize = 128>;
/// x
#[derive(Debug)]
pub enum MapError {
    /// x
    X(PhysAddr),
}
/// x
#[derive(Debug)]
pub struct Region;
