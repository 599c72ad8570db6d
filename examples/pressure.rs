//! Memory under pressure: groups write more pages than their limits allow, and get every one of them back.
//!
//! A small kernel around framekeeper, on the host: threads are CPUs, an array is the memory, and evicted pages go to a swap area
//! in memory or in a file. `cargo run --release --example pressure -- --help` lists the options.
//!
//! - port.rs: what the library needs from a machine
//! - kernel.rs: groups, page tables (table.rs), the page fault
//! - background.rs: the thread that reclaims when it is woken; evict.rs: how reclaim takes a page away; swap.rs: where it goes
//! - live.rs: what is seen meanwhile; load.rs: what the groups do; page.rs: the pattern they write; report.rs: what came of it

#[path = "pressure_parts/background.rs"]
mod background;
#[path = "pressure_parts/evict.rs"]
mod evict;
#[path = "pressure_parts/kernel.rs"]
mod kernel;
#[path = "pressure_parts/live.rs"]
mod live;
#[path = "pressure_parts/load.rs"]
mod load;
#[path = "pressure_parts/options.rs"]
mod options;
#[path = "pressure_parts/page.rs"]
mod page;
#[path = "pressure_parts/port.rs"]
mod port;
#[path = "pressure_parts/report.rs"]
mod report;
#[path = "pressure_parts/swap.rs"]
mod swap;
#[path = "pressure_parts/table.rs"]
mod table;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use kernel::{BootError, FaultError, Group, Kernel};
use load::Load;
use options::Options;
use report::{Counts, Outcome};

/// Why there is no result.
enum Failure {
    /// The options cannot be met.
    Setup(String),
    /// A page could not be had.
    Fault(FaultError),
}

fn main() -> ExitCode {
    let options = Options::from_command_line();
    // Opened before anything is done, so that a long run does not end without its result.
    let outcome = open_json(options.json.as_deref()).and_then(|json| Ok((run(&options)?, json)));
    match outcome {
        Ok((outcome, json)) => ExitCode::from(u8::from(!tell(outcome, json))),
        Err(Failure::Fault(error)) => {
            eprintln!("pressure: {error}");
            ExitCode::from(1)
        }
        Err(Failure::Setup(message)) => {
            eprintln!("pressure: {message}");
            ExitCode::from(2)
        }
    }
}

/// Prints the outcome, and says whether all is right.
fn tell(mut outcome: Outcome, json: Option<File>) -> bool {
    outcome.judge();
    if let Some(mut file) = json
        && let Err(error) = writeln!(file, "{}", outcome.to_json())
    {
        outcome
            .faults
            .push(format!("the result cannot be written: {error}"));
    }
    // Nobody may be listening; the exit code still tells.
    let _ = write!(io::stdout(), "{outcome}");
    for fault in &outcome.faults {
        let _ = writeln!(io::stderr(), "pressure: {fault}");
    }
    outcome.faults.is_empty()
}

/// Boots a kernel, lets its groups write and read, and takes everything down again.
fn run(options: &Options) -> Result<Outcome, Failure> {
    let kernel = Kernel::boot(options)?;
    let (expected, excess) = kernel.expected(options);
    let bar = match options.live {
        true => {
            ProgressBar::with_draw_target(Some(2 * options.pages()), ProgressDrawTarget::hidden())
        }
        false => progress_bar(2 * options.pages()),
    };
    let load = Load::new(kernel, options, bar);
    let mut faults = Vec::new();

    let began = Instant::now();
    let shown = |work: &mut dyn FnMut() -> Result<(), FaultError>| match options.live {
        true => live::watch(kernel, &load.bar, began, || {
            kernel.with_background(options, work)
        }),
        false => kernel.with_background(options, work),
    };
    let start = Instant::now();
    shown(&mut || load.write())?;
    let writing = start.elapsed();
    faults.extend(kernel.check("after writing"));
    let written: Vec<u64> = kernel.groups.iter().map(Group::evictions).collect();

    let start = Instant::now();
    shown(&mut || load.read())?;
    let reading = start.elapsed();
    faults.extend(kernel.check("after reading"));
    load.bar.finish_and_clear();

    let managed = kernel.mm.allocator().managed_frames();
    faults.extend(kernel.shut_down().err().map(|error| error.to_string()));
    faults.extend(kernel.check("at the end"));
    let slots = kernel.swap.used();
    if slots > 0 {
        faults.push(format!("{slots} swap slots are taken by no page"));
    }
    let groups = kernel.groups.iter().zip(&load.corrupt).zip(written);
    let groups = groups.map(|((group, corrupt), evicted)| Counts {
        evicted,
        evicted_again: group.evictions() - evicted,
        swapped_in: group.swap_ins(),
        corrupt: corrupt.load(Ordering::Relaxed),
    });
    Ok(Outcome {
        groups: groups.collect(),
        expected,
        excess,
        background: options.no_limits.then(|| kernel.freed_by_background()),
        leaked: managed.cast_signed() - kernel.mm.allocator().free_frames().cast_signed(),
        seconds: (writing + reading).as_secs_f64(),
        faults,
    })
}

/// A bar on standard output, if somebody looks at it.
fn progress_bar(pages: u64) -> ProgressBar {
    if !io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(pages), ProgressDrawTarget::stdout());
    let style = ProgressStyle::with_template("{msg:6} {wide_bar} {pos}/{len} pages, {eta} left");
    bar.with_style(style.expect("the template is well formed"))
}

/// Opens the file for the result.
fn open_json(path: Option<&Path>) -> Result<Option<File>, Failure> {
    let open = |path: &Path| {
        File::create(path)
            .map_err(|error| Failure::Setup(format!("cannot write {}: {error}", path.display())))
    };
    path.map(open).transpose()
}

impl From<BootError> for Failure {
    fn from(error: BootError) -> Self {
        Self::Setup(error.to_string())
    }
}

impl From<FaultError> for Failure {
    fn from(error: FaultError) -> Self {
        Self::Fault(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_machine_under_pressure_loses_nothing() {
        let options =
            options::tests::options("--memory 8 --groups 9 --limit 40 --touch 500 --threads 3");
        let mut outcome = run(&options).unwrap_or_else(|failure| match failure {
            Failure::Setup(message) => panic!("{message}"),
            Failure::Fault(error) => panic!("{error}"),
        });
        outcome.judge();
        assert!(outcome.faults.is_empty(), "{outcome}{:?}", outcome.faults);
        assert!(outcome.total().swapped_in >= outcome.expected);
    }
}
