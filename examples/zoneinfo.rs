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

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::Parser;
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

/// The zones that a machine's memory makes, or how they compare with what Linux made of it.
///
/// Exits with 0, with 1 if a value differs or the file is wrong, and with 2 if the options are.
#[derive(Parser)]
#[command(name = "zoneinfo")]
struct Options {
    /// A firmware list, a kernel log, `/proc/iomem`, a device tree, or a capture
    file: PathBuf,

    /// CPUs of the machine [default: as many as the file says]
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,

    /// Each value twice: before deferred initialisation ends, and after
    #[arg(long)]
    early: bool,

    /// Compare with what the capture says that Linux computed
    #[arg(long, conflicts_with_all = ["cpus", "early"])]
    check: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let printed = options.run().and_then(|(text, code)| {
        match io::stdout().write_all(text.as_bytes()) {
            // Whoever read it has seen enough.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.to_string()),
            _ => Ok(code),
        }
    });
    printed.unwrap_or_else(|error| {
        eprintln!("{}: {error}", options.file.display());
        ExitCode::FAILURE
    })
}

impl Options {
    /// What to print, and how it ends.
    fn run(&self) -> Result<(String, ExitCode), String> {
        let bytes = fs::read(&self.file).map_err(|error| error.to_string())?;
        if self.check {
            let text = std::str::from_utf8(&bytes).map_err(|error| error.to_string())?;
            let capture = Capture::parse(text).map_err(|error| error.to_string())?;
            let result = check::compare(&capture).map_err(|error| error.to_string())?;
            let equal = result.differences.is_empty();
            return Ok((format!("{result}\n"), ExitCode::from(u8::from(!equal))));
        }
        let mut machine = Machine::read(&bytes).map_err(|error| error.to_string())?;
        if let Some(cpus) = self.cpus {
            machine.set_cpus(cpus);
        }
        let columns = match self.early {
            true => Columns::EarlyAndAfter,
            false => Columns::After,
        };
        Ok((describe_all(&machine, columns)?, ExitCode::SUCCESS))
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

fn describe_all(machine: &Machine, columns: Columns) -> Result<String, String> {
    NODE_OF.get_or_init(|| (0..machine.cpus).map(|cpu| machine.node_of(cpu)).collect());
    let allocator = machine
        .allocator::<Host>(node_of, host::storage)
        .map_err(|error| error.to_string())?;
    describe(machine, &allocator, columns).map_err(|error| error.to_string())
}
