//! Results as a table and as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::machine::Framekeeper;
use crate::subject::Subject;
use crate::turnover;

/// One median.
pub struct Row {
    /// Its workload.
    pub workload: &'static str,
    /// Pinned threads.
    pub threads: u32,
    /// What ran it.
    pub subject: &'static str,
    /// Nanoseconds per call; in the turnovers, blocks of order 9.
    pub ns: f64,
    /// To `stack_lk`; in the turnovers, to the blocks that there could be.
    pub ratio: f64,
}

const YARDSTICKS: [&str; 2] = ["stack", "stack_lk"];

/// The order of columns.
const SUBJECTS: [&str; 7] = [
    "stack",
    "stack_lk",
    "framekeeper",
    "buddy_system_allocator",
    "bitmap-allocator",
    "free-list",
    "talc",
];

/// Prints a table: nanoseconds per call by workload and subject.
pub fn print(rows: &[Row]) {
    let value: BTreeMap<_, _> = rows
        .iter()
        .map(|row| ((row.workload, row.threads, row.subject), row.ns))
        .collect();
    let lines: BTreeSet<_> = rows.iter().map(|row| (row.workload, row.threads)).collect();
    print!("{:<20}{:>3}", "ns per call", "thr");
    for subject in SUBJECTS {
        let short = subject.split('_').next().unwrap_or(subject);
        print!(
            "{:>13}",
            if subject == "stack_lk" {
                subject
            } else {
                short
            }
        );
    }
    println!("{:>12}{:>12}", "/ stack_lk", "/ best peer");
    for (workload, threads) in lines {
        print!("{workload:<20}{threads:>3}");
        let of = |subject| value.get(&(workload, threads, subject)).copied();
        for subject in SUBJECTS {
            match of(subject) {
                Some(ns) if turnover::possible(workload).is_some() => print!("{ns:>13.0}"),
                Some(ns) => print!("{ns:>13.2}"),
                None => print!("{:>13}", "-"),
            }
        }
        let peers = SUBJECTS
            .iter()
            .filter(|name| !YARDSTICKS.contains(name) && **name != Framekeeper::NAME)
            .filter_map(|name| of(name));
        let own = of(Framekeeper::NAME).unwrap_or(f64::NAN);
        let best = if turnover::possible(workload).is_some() {
            peers.fold(0.0, f64::max)
        } else {
            peers.fold(f64::INFINITY, f64::min)
        };
        match of("stack_lk") {
            Some(lock) => print!("{:>12.2}", own / lock),
            None => print!("{:>12}", "-"),
        }
        println!("{:>12.2}", own / best);
    }
    let [alone, codes, pools] = Framekeeper::metadata();
    println!(
        "turnover_*: blocks of order 9 left. Metadata, bytes a frame: {alone:.3} alone (at most 0.2), {codes:.3} with the codes of raw \
         frees (at most 0.45), {pools:.3} with two CPUs' pagesets."
    );
}

/// An array of objects.
pub fn json(rows: &[Row]) -> String {
    let mut out = String::from("[\n");
    for (i, row) in rows.iter().enumerate() {
        let comma = if i + 1 == rows.len() { "" } else { "," };
        writeln!(
            out,
            "  {{\"workload\": \"{}\", \"threads\": {}, \"subject\": \"{}\", \"ns\": {:.3}, \"ratio\": {:.4}}}{comma}",
            row.workload, row.threads, row.subject, row.ns, row.ratio
        )
        .expect("writing to a string cannot fail");
    }
    out.push_str("]\n");
    out
}
