//! Each mechanism off and on, in one binary and on one trace. [`port`] runs the crate's real code and writes its locks
//! down, [`simulator`] says what they cost N CPUs, real threads say what they cost this machine.

mod draw;
mod hooks;
mod port;
mod pressure;
mod rows;
mod s0;
mod s1;
mod s2;
mod s3;
mod s4;
mod simulator;
mod validate;

use std::time::Instant;

use rows::Rows;

/// What to run.
pub struct Options {
    pub seed: String,
    /// Real threads.
    pub threads: u32,
    /// Virtual CPUs.
    pub cpus: Vec<u32>,
    /// Only what is the same on every run.
    pub quick: bool,
    pub json: Option<String>,
    /// A picture: SVG, or HTML if its name ends so.
    pub svg: Option<String>,
}

/// Runs of each variant on real threads, A B B A and so on.
const RUNS: usize = 10;

type Seed = (&'static str, fn(&Options, &mut Rows));
const SEEDS: [Seed; 6] = [
    ("s0", s0::run),
    ("s1", s1::run),
    ("s2", s2::run),
    ("s3", s3::run),
    ("s4", s4::run),
    ("sim", validate::run),
];

impl Options {
    /// From the command line.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            seed: "all".into(),
            threads: 2,
            cpus: Vec::new(),
            quick: false,
            json: None,
            svg: None,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--quick" => options.quick = true,
                "--json" => options.json = Some(value()?.clone()),
                "--svg" => options.svg = Some(value()?.clone()),
                "--threads" => options.threads = number(value()?, 64)?,
                "--cpus" => {
                    let list = value()?.split(',').map(|cpus| number(cpus, 256));
                    options.cpus = list.collect::<Result<_, _>>()?;
                }
                seed if seed == "all" || SEEDS.iter().any(|(name, _)| *name == seed) => {
                    options.seed = seed.into();
                }
                other => return Err(format!("{other}: no such seed or option")),
            }
        }
        if options.cpus.is_empty() {
            let few: &[u32] = &[2, 12, 64];
            let all: &[u32] = &[2, 12, 24, 64, 128, 256];
            options.cpus = if options.quick { few } else { all }.to_vec();
        }
        Ok(options)
    }
}

fn number(text: &str, most: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (1..=most).contains(n));
    number.ok_or(format!("{text}: a number from 1 to {most}"))
}

/// Runs, prints, and writes the JSON if asked to.
pub fn run(options: &Options) -> std::io::Result<()> {
    let started = Instant::now();
    port::ready();
    let mut rows = Rows::default();
    for (name, seed) in SEEDS {
        if options.seed == "all" || options.seed == name {
            seed(options, &mut rows);
        }
    }
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "{} figures in {:.1} s; {cores} cores; every count that is asserted held",
        rows.0.len(),
        started.elapsed().as_secs_f64()
    );
    if let Some(file) = &options.json {
        std::fs::write(file, rows.json())?;
    }
    if let Some(file) = &options.svg {
        let drawn = draw::report(file, &rows, &pressure::run())
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        std::fs::write(file, drawn)?;
    }
    Ok(())
}

/// Runs variants on real threads in the order A B B A (A B C C B A), [`RUNS`] times each, and gives each run's result to `take`.
fn abba<T>(variants: usize, mut run: impl FnMut(usize) -> T, mut take: impl FnMut(usize, T)) {
    for round in 0..RUNS {
        for place in 0..variants {
            let variant = if round % 2 == 0 {
                place
            } else {
                variants - 1 - place
            };
            take(variant, run(variant));
        }
    }
}

/// Milliseconds from the first thread's start to the last one's end, by their own clocks; and each thread's result.
fn on_threads<T: Send>(threads: u32, work: impl Fn(u32) -> T + Sync) -> (f64, Vec<T>) {
    let barrier = std::sync::Barrier::new(threads as usize);
    let run = &|cpu| {
        crate::machine::run_as(cpu);
        port::act_as(cpu);
        barrier.wait();
        let began = Instant::now();
        let result = work(cpu);
        (began, Instant::now(), result)
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|cpu| scope.spawn(move || run(cpu)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
        let joined = spawned.into_iter().map(join);
        joined.map(|done| done.expect("no thread panics")).collect()
    });
    let began = done.iter().map(|done| done.0).min();
    let ended = done.iter().map(|done| done.1).max();
    let wall = began
        .zip(ended)
        .map_or(0.0, |(began, ended)| (ended - began).as_secs_f64());
    (wall * 1000.0, done.into_iter().map(|done| done.2).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest is compared by the gate, which runs all seeds twice and compares their JSON.
    #[test]
    fn a_second_run_finds_the_same_figures() {
        let figures = || {
            let mut rows = Rows::default();
            let args = ["s4", "--quick", "--cpus", "3,12"].map(String::from);
            let options = Options::parse(&args).expect("well formed");
            s4::run(&options, &mut rows);
            rows.0
        };
        let first = figures();
        assert!(first.len() > 10);
        assert_eq!(first, figures());
    }
}
