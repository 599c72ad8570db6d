//! What was found: rows, their table, and their JSON.

use std::fmt::Write;

use framekeeper::Rank;

use super::simulator::Outcome;

/// One figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub seed: &'static str,
    pub case: String,
    /// `before`, `after`, or `control`.
    pub variant: &'static str,
    /// Virtual CPUs; 0 where nothing was simulated.
    pub cpus: u32,
    /// Real threads; 0 where none ran.
    pub threads: u32,
    pub metric: &'static str,
    pub value: f64,
    /// The lowest and the highest of several runs.
    pub range: Option<(f64, f64)>,
}

/// All rows of one run.
#[derive(Default)]
pub struct Rows(pub Vec<Row>);

/// Where a row belongs.
#[derive(Clone, Copy)]
pub struct At<'a> {
    pub seed: &'static str,
    pub case: &'a str,
    pub variant: &'static str,
    pub cpus: u32,
    pub threads: u32,
}

impl<'a> At<'a> {
    /// Neither virtual CPUs nor threads.
    pub fn new(seed: &'static str, case: &'a str, variant: &'static str) -> Self {
        Self {
            seed,
            case,
            variant,
            cpus: 0,
            threads: 0,
        }
    }

    pub fn cpus(self, cpus: u32) -> Self {
        Self { cpus, ..self }
    }

    pub fn threads(self, threads: u32) -> Self {
        Self { threads, ..self }
    }
}

/// What several runs on real threads came to.
#[derive(Clone, Default)]
pub struct Runs {
    wall: Vec<f64>,
    acquired: Vec<f64>,
    contended: Vec<f64>,
}

impl Runs {
    /// One run: its milliseconds, its operations, and each thread's locks, taken and not free at first.
    pub fn push(&mut self, ms: f64, ops: u64, locks: &[(u64, u64)]) {
        let per_1000 = |count: u64| count as f64 / ops as f64 * 1000.0;
        self.wall.push(ms);
        self.acquired
            .push(per_1000(locks.iter().map(|lock| lock.0).sum()));
        self.contended
            .push(per_1000(locks.iter().map(|lock| lock.1).sum()));
    }
}

impl Rows {
    /// What several runs came to.
    pub fn threads(&mut self, at: At<'_>, runs: Runs) {
        self.runs(at, "acquired_per_1000", runs.acquired);
        self.runs(at, "contended_per_1000", runs.contended);
        self.runs(at, "wall_ms_median", runs.wall);
    }

    /// What a simulation of `ops` operations came to, for the locks of one rank; CPU time of all CPUs for each operation.
    pub fn simulated(&mut self, at: At<'_>, rank: Rank, ops: u64, outcome: &Outcome) {
        let rank = rank as usize;
        let per_op = |count: u64| count as f64 / ops as f64;
        let time = outcome.end * u64::from(at.cpus);
        self.add(
            at,
            "acquired_per_1000",
            per_op(outcome.acquired[rank]) * 1000.0,
        );
        self.add(
            at,
            "contended_per_1000",
            per_op(outcome.contended[rank]) * 1000.0,
        );
        self.add(at, "ns_per_op", per_op(time));
        println!(
            "    in queue: {:.1} ns an operation, {:.1} % of all CPU time",
            per_op(outcome.queued[rank]),
            outcome.queued[rank] as f64 / time.max(1) as f64 * 100.0
        );
    }

    pub fn add(&mut self, at: At<'_>, metric: &'static str, value: f64) {
        self.push(at, metric, value, None);
    }

    /// The median of runs, with their range.
    pub fn runs(&mut self, at: At<'_>, metric: &'static str, mut values: Vec<f64>) {
        values.sort_by(f64::total_cmp);
        if let [low, .., high] = values[..] {
            self.push(at, metric, values[values.len() / 2], Some((low, high)));
        }
    }

    fn push(&mut self, at: At<'_>, metric: &'static str, value: f64, range: Option<(f64, f64)>) {
        let row = Row {
            seed: at.seed,
            case: at.case.to_owned(),
            variant: at.variant,
            cpus: at.cpus,
            threads: at.threads,
            metric,
            value,
            range,
        };
        print!("{:<3} {:<34} {:<8}", row.seed, row.case, row.variant);
        match (row.cpus, row.threads) {
            (0, 0) => print!("{:<14}", ""),
            (0, threads) => print!("{:<14}", format!("{threads} threads")),
            (cpus, _) => print!("{:<14}", format!("{cpus} virtual")),
        }
        print!("{:<20}{:>12.3}", row.metric, row.value);
        match range {
            Some((low, high)) => println!("  ({low:.3} to {high:.3})"),
            None => println!(),
        }
        self.0.push(row);
    }

    pub fn json(&self) -> String {
        let mut out = String::from("[");
        for (i, row) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(
                out,
                "{comma}\n  {{\"seed\": \"{}\", \"case\": \"{}\", \"variant\": \"{}\", \"cpus\": {}, \"threads\": {}, \"metric\": \"{}\", \"value\": {:.4}",
                row.seed, row.case, row.variant, row.cpus, row.threads, row.metric, row.value
            )
            .expect("writing to a string cannot fail");
            if let Some((low, high)) = row.range {
                write!(out, ", \"low\": {low:.4}, \"high\": {high:.4}")
                    .expect("writing to a string cannot fail");
            }
            out.push('}');
        }
        out.push_str("\n]\n");
        out
    }
}
