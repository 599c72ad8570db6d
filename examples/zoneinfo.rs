//! Prints the zones that a machine's memory makes.
//!
//! ```text
//! cargo run --example zoneinfo -- [--cpus N] FILE      print, in the layout of /proc/zoneinfo
//! ```
//!
//! FILE is a firmware list, a kernel log, `/proc/iomem`, a device tree, or a capture (tests/data has some of each).
//!
//! Owns: the command line. Invariants: a bad file or option is an error that says what is wrong; nothing panics.
//! Lock ranks: none. Used by: people who port, and CI.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::{env, fs};

use framekeeper::boot::Memory;
use framekeeper::report::Zoneinfo;
use framekeeper::{Config, CpuId, NodeId, PageAllocator};

#[path = "common/capture.rs"]
mod capture;
#[path = "common/device_tree.rs"]
mod device_tree;
#[path = "../tests/common/host.rs"]
mod host;
#[path = "common/machine.rs"]
mod machine;
#[path = "common/memory_map.rs"]
mod memory_map;

use host::Host;
use machine::{Machine, PAGE_SHIFT};

/// What to do.
struct Options {
    file: String,
    cpus: Option<u32>,
}

const USAGE: &str = "usage: zoneinfo [--cpus N] FILE";

fn main() -> ExitCode {
    let run = Options::parse(env::args().skip(1)).and_then(|options| options.run());
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut file = None;
        let mut cpus = None;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--cpus" => {
                    let count = arguments.next().and_then(|text| text.parse().ok());
                    cpus = Some(count.ok_or("--cpus needs a number")?);
                }
                option if option.starts_with('-') => return Err(format!("{option}?\n{USAGE}")),
                _ if file.is_some() => return Err(format!("more than one file\n{USAGE}")),
                _ => file = Some(argument),
            }
        }
        let file = file.ok_or(USAGE)?;
        Ok(Self { file, cpus })
    }

    fn run(&self) -> Result<(), String> {
        let name = &self.file;
        let bytes = fs::read(name).map_err(|error| format!("{name}: {error}"))?;
        let mut machine = Machine::read(&bytes).map_err(|error| format!("{name}: {error}"))?;
        if let Some(cpus) = self.cpus {
            machine.cpus = cpus;
        }
        print(machine)
    }
}

/// The node of each CPU, for [`Config`], which takes plain functions.
static NODE_OF: OnceLock<Vec<NodeId>> = OnceLock::new();

fn node_of(cpu: CpuId) -> NodeId {
    let nodes = NODE_OF.get();
    nodes
        .and_then(|nodes| nodes.get(cpu.0 as usize).copied())
        .unwrap_or_default()
}

fn print(mut machine: Machine) -> Result<(), String> {
    println!("{}\n", machine.map);
    NODE_OF.get_or_init(|| (0..machine.cpus).map(|cpu| machine.node_of(cpu)).collect());
    let config = Config {
        cpus: machine.cpus,
        node_of,
        ..Config::default()
    };
    let frames = machine.map.frame_span(PAGE_SHIFT).frames();
    // SAFETY: the frames of this platform are numbers only; nobody uses the memory that they would name.
    #[allow(unsafe_code)]
    let memory = unsafe { Memory::<Host, _>::claim(&mut machine.map) };
    let allocator = PageAllocator::new(memory.with_storage(host::storage(room(frames))), &config)
        .map_err(|(error, _)| error.to_string())?;
    print!("{}", Zoneinfo(&allocator));
    for zone in allocator.zones() {
        println!(
            "shards of node {} {}: {}",
            zone.node().0,
            zone.kind(),
            zone.shards()
        );
    }
    println!("{} bytes of metadata", allocator.metadata_bytes());
    Ok(())
}

/// Enough bytes for the metadata of any machine of `frames` frames.
fn room(frames: u64) -> usize {
    usize::try_from(frames / 2).unwrap_or(usize::MAX) + (64 << 20)
}
