//! What the command line may ask for.

use std::path::PathBuf;
use std::thread::available_parallelism;

use clap::Parser;
use clap::builder::RangedI64ValueParser;
use clap::error::ErrorKind;

/// Groups write more memory than their limits allow, reclaim takes pages back, and every page is verified.
///
/// Exits with 0 if every page came back right and every count is exact, with 1 if anything is off, and with 2 if the options
/// cannot be met.
#[derive(Parser, Clone, Debug)]
#[command(name = "pressure")]
pub(crate) struct Options {
    /// Groups that share the memory
    #[arg(long, default_value_t = 64, value_parser = at_least_1(100_000))]
    pub(crate) groups: u32,

    /// Frames that a group may have at a time
    #[arg(long, value_name = "FRAMES", default_value_t = 256, value_parser = at_least_1(1 << 28))]
    pub(crate) limit: u32,

    /// No group has a limit: the machine's memory is what is short, and a background thread reclaims beside the faults
    #[arg(long, conflicts_with = "limit")]
    pub(crate) no_limits: bool,

    /// Pages that each group writes
    #[arg(long, value_name = "PAGES", default_value_t = 4096, value_parser = at_least_1(1 << 28))]
    pub(crate) touch: u32,

    /// Threads, each one a CPU [default: as many as this machine has CPUs]
    #[arg(long, default_value_t = cpus(), hide_default_value = true, value_parser = at_least_1(MAX_THREADS))]
    pub(crate) threads: u32,

    /// File to swap to, new or used for this before [default: memory]
    #[arg(long, value_name = "FILE")]
    pub(crate) swap: Option<PathBuf>,

    /// Chooses the pattern and the order of everything
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Memory of the machine, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 320, value_parser = at_least_1(1 << 20))]
    pub(crate) memory: u32,

    /// Show zones, pagesets, groups, lists and locks while it runs: a picture on a terminal, else a line each second
    #[arg(long)]
    pub(crate) live: bool,

    /// File for the result as a JSON object: evictions, expected, corrupt, leaked, seconds
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// More threads than this would measure the host's scheduler.
const MAX_THREADS: i64 = 256;
/// Pages of all groups together, at most: 256 GiB of swap. Page tables take 8 bytes for each.
const MAX_PAGES: u64 = 1 << 26;

impl Options {
    /// Reads the command line. Exits with 2 and a message if it cannot be met.
    pub(crate) fn from_command_line() -> Self {
        let parsed = Self::try_parse().and_then(Self::checked);
        parsed.unwrap_or_else(|error| error.exit())
    }

    /// Pages of all groups together.
    pub(crate) fn pages(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.touch)
    }

    /// Pages that the groups' limits leave in frames.
    pub(crate) fn resident(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.touch.min(self.limit))
    }

    /// Evictions that the limits force while all pages are written. Without limits, see `Kernel::expected`.
    pub(crate) fn expected(&self) -> u64 {
        self.pages() - self.resident()
    }

    /// What one option's range cannot say.
    fn checked(self) -> Result<Self, clap::Error> {
        if self.swap.is_some() && self.swap == self.json {
            let message = "--swap and --json name the same file\n";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        if self.pages() <= MAX_PAGES {
            return Ok(self);
        }
        let message = format!(
            "{} groups of {} pages are {} pages: at most {MAX_PAGES} are possible\n",
            self.groups,
            self.touch,
            self.pages()
        );
        Err(clap::Error::raw(ErrorKind::ValueValidation, message))
    }
}

fn at_least_1(most: i64) -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(1..=most)
}

fn cpus() -> u32 {
    // A host that does not tell its CPUs is treated as having one.
    let cpus = available_parallelism().map_or(1, usize::from);
    cpus.min(MAX_THREADS as usize) as u32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The options of a command line that the test wrote right.
    pub(crate) fn options(arguments: &str) -> Options {
        parse(arguments).expect("valid options")
    }

    fn parse(arguments: &str) -> Result<Options, clap::Error> {
        let words = arguments.split_whitespace();
        Options::try_parse_from(std::iter::once("pressure").chain(words)).and_then(Options::checked)
    }

    #[test]
    fn the_defaults_are_the_main_job() {
        let options = options("");
        assert_eq!(
            (options.groups, options.limit, options.touch),
            (64, 256, 4096)
        );
        assert_eq!((options.memory, options.swap), (320, None));
        assert!(options.threads >= 1);
    }

    #[test]
    fn expected_counts_what_does_not_fit_the_limits() {
        assert_eq!(options("").expected(), 64 * 3840);
        assert_eq!(
            options("--groups 3 --limit 100 --touch 101").expected(),
            3,
            "one of each"
        );
        let roomy = options("--groups 3 --limit 100 --touch 90");
        assert_eq!(roomy.expected(), 0);
        assert_eq!(roomy.resident(), 270);
    }

    #[test]
    fn options_that_cannot_be_met_are_named_and_exit_with_2() {
        for (arguments, told) in [
            ("--groups 0", "--groups"),
            ("--limit 0", "--limit"),
            ("--touch 0", "--touch"),
            ("--threads 0", "--threads"),
            ("--threads 257", "1..=256"),
            ("--threads=-1", "--threads"),
            ("--memory 0", "--memory"),
            ("--groups 4294967297", "--groups"),
            ("--seed x", "--seed"),
            (
                "--groups 100000 --touch 100000",
                "10000000000 pages: at most",
            ),
            ("--swap", "--swap"),
            ("--evict", "--evict"),
            ("--swap a --json a", "the same file"),
            ("--no-limits --limit 3", "--limit"),
            ("64", "64"),
        ] {
            let error = parse(arguments).expect_err(arguments);
            assert_eq!(error.exit_code(), 2, "{arguments}");
            assert!(error.to_string().contains(told), "{arguments}: {error}");
        }
    }
}
