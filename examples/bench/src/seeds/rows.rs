//! What was found: rows, their table, and their JSON.

use std::fmt::Write;

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

impl Rows {
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
