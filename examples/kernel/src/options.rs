//! The kernel's command line: a scenario, then `name=number`.

use crate::scenario::{Failure, Kind};

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub scenario: Kind,
    /// Groups.
    pub groups: u32,
    /// Each group's limit, in frames.
    pub limit: u32,
    /// Pages that each group writes.
    pub touch: u32,
    /// How long `stress` runs.
    pub seconds: u64,
    /// CPUs that the library is made for, instead of as many as there are.
    pub cpus: Option<u32>,
    /// Holes that are made in the memory map, each of a page and a bit.
    pub holes: u32,
}

/// Spaces that the kernel has room for.
pub const MAX_GROUPS: u32 = 256;
/// Holes.
const MAX_HOLES: u32 = 4096;
/// Pages of a space.
pub const MAX_PAGES: u32 = 1 << 20;

impl Options {
    /// Reads the line.
    pub fn read(line: &'static str) -> Result<Self, Failure> {
        let mut options = Self {
            scenario: Kind::Memhog,
            groups: 64,
            limit: 64,
            touch: 256,
            seconds: 10,
            cpus: None,
            holes: 0,
        };
        for word in line.split_ascii_whitespace() {
            match word.split_once('=') {
                None => match Kind::named(word) {
                    Some(kind) => options.scenario = kind,
                    // The loader puts the name of the image first.
                    None if word.contains('/') => {}
                    None => return Err(Failure::Option(word)),
                },
                Some((name, value)) => {
                    let number: u32 = value.parse().map_err(|_| Failure::Option(word))?;
                    match name {
                        "groups" if (1..=MAX_GROUPS).contains(&number) => options.groups = number,
                        "limit" if number > 0 => options.limit = number,
                        "touch" if (1..=MAX_PAGES).contains(&number) => options.touch = number,
                        "seconds" => options.seconds = number.into(),
                        "cpus" => options.cpus = Some(number),
                        "holes" if number <= MAX_HOLES => options.holes = number,
                        _ => return Err(Failure::Option(word)),
                    }
                }
            }
        }
        Ok(options)
    }
}
