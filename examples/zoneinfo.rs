//! Prints the zones that a machine's memory makes, or compares them with what Linux made of it.
//!
//! ```text
//! cargo run --example zoneinfo -- [--cpus N] [--early] FILE    print, in the layout of /proc/zoneinfo
//! cargo run --example zoneinfo -- --check CAPTURE              compare; exit 1 if any value differs
//! ```
//!
//! With --early each value stands twice: before deferred initialisation ends, and after.
//! FILE is a firmware list, a kernel log, `/proc/iomem`, a device tree, or a capture (tests/data has some of each).
//!
//! Owns: the command line. Invariants: a bad file or option is an error that says what is wrong; nothing panics.
//! Lock ranks: none. Used by: people who port, and CI.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::{env, fmt, fs};

use framekeeper::{CpuId, NodeId};

#[path = "common/capture.rs"]
mod capture;
#[path = "common/check.rs"]
mod check;
#[path = "common/describe.rs"]
mod describe;
#[path = "common/device_tree.rs"]
mod device_tree;
#[path = "../tests/common/host.rs"]
mod host;
#[path = "common/limits.rs"]
mod limits;
#[path = "common/machine.rs"]
mod machine;
#[path = "common/memory_map.rs"]
mod memory_map;

use capture::Capture;
use describe::{Columns, describe};
use host::Host;
use machine::Machine;

/// What to do with which file.
struct Options {
    file: String,
    action: Action,
}

enum Action {
    /// Print its zones, with another number of CPUs if one is given.
    Print { cpus: Option<u32>, columns: Columns },
    /// Compare it with Linux.
    Check,
}

const USAGE: &str = "usage: zoneinfo [--cpus N] [--early] FILE | zoneinfo --check CAPTURE";

fn main() -> ExitCode {
    let run = Options::parse(env::args().skip(1)).and_then(|options| options.run());
    run.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut file = None;
        let mut cpus = None;
        let mut check = false;
        let mut columns = Columns::After;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--cpus" => {
                    let count = arguments.next().and_then(|text| text.parse().ok());
                    cpus = Some(count.ok_or("--cpus needs a number")?);
                }
                "--check" => check = true,
                "--early" => columns = Columns::EarlyAndAfter,
                option if option.starts_with('-') => return Err(format!("{option}?\n{USAGE}")),
                _ if file.is_some() => return Err(format!("more than one file\n{USAGE}")),
                _ => file = Some(argument),
            }
        }
        let action = match (check, cpus, columns) {
            (false, ..) => Action::Print { cpus, columns },
            (true, None, Columns::After) => Action::Check,
            (true, ..) => return Err(format!("--check stands alone\n{USAGE}")),
        };
        let file = file.ok_or(USAGE)?;
        Ok(Self { file, action })
    }

    fn run(&self) -> Result<ExitCode, String> {
        let name = &self.file;
        let wrong = |error: &dyn fmt::Display| format!("{name}: {error}");
        let bytes = fs::read(name).map_err(|error| wrong(&error))?;
        match self.action {
            Action::Print { cpus, columns } => {
                let mut machine = Machine::read(&bytes).map_err(|error| wrong(&error))?;
                if let Some(cpus) = cpus {
                    machine.set_cpus(cpus);
                }
                print(&machine, columns)?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Check => {
                let text = std::str::from_utf8(&bytes).map_err(|error| wrong(&error))?;
                let capture = Capture::parse(text).map_err(|error| wrong(&error))?;
                let result = check::compare(&capture).map_err(|error| wrong(&error))?;
                println!("{result}");
                Ok(match result.differences.len() {
                    0 => ExitCode::SUCCESS,
                    _ => ExitCode::FAILURE,
                })
            }
        }
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

fn print(machine: &Machine, columns: Columns) -> Result<(), String> {
    NODE_OF.get_or_init(|| (0..machine.cpus).map(|cpu| machine.node_of(cpu)).collect());
    let allocator = machine
        .allocator::<Host>(node_of, host::storage)
        .map_err(|error| error.to_string())?;
    let text = describe(machine, &allocator, columns).map_err(|error| error.to_string())?;
    print!("{text}");
    Ok(())
}
