//! Replays a page trace over the real memory manager, and says what other policies would have needed.
//!
//! - trace.rs: the file; process.rs: the replay; simulated.rs: the yardsticks

mod process;
mod simulated;
mod trace;

use std::path::Path;
use std::process::ExitCode;

use framekeeper::Policy;
use process::{Outcome, replay};
use simulated::{Simulated, simulate};
use trace::Trace;

pub const USAGE: &str = "replay TRACE --limit FRAMES|PCT% [--policy lru|gen] [--json FILE]";

const POLICIES: [(Policy, &str); 2] = [(Policy::TwoLists, "lru"), (Policy::Generations, "gen")];

/// What is asked for.
struct Options {
    trace: String,
    limit: Limit,
    policy: Policy,
    json: Option<String>,
}

/// How many pages may be in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    Frames(u64),
    /// Of the pages that the trace touches.
    Percent(u64),
}

pub fn run(args: &[String]) -> ExitCode {
    match parse(args).and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("replay: {message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<Options, String> {
    let (mut trace, mut limit, mut json) = (None, None, None);
    let mut policy = Policy::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || {
            let value = args.next().cloned();
            value.ok_or_else(|| format!("{arg} needs a value: {USAGE}"))
        };
        match arg.as_str() {
            "--limit" => limit = Some(parse_limit(&value()?)?),
            "--policy" => policy = parse_policy(&value()?)?,
            "--json" => json = Some(value()?),
            file if !file.starts_with("--") && trace.is_none() => trace = Some(file.to_owned()),
            _ => return Err(format!("{arg} is not known: {USAGE}")),
        }
    }
    Ok(Options {
        trace: trace.ok_or_else(|| format!("no trace is named: {USAGE}"))?,
        limit: limit.ok_or_else(|| format!("no limit is given: {USAGE}"))?,
        policy,
        json,
    })
}

fn parse_policy(name: &str) -> Result<Policy, String> {
    let policy = POLICIES.iter().find(|(_, short)| *short == name);
    policy
        .map(|&(policy, _)| policy)
        .ok_or_else(|| format!("there is no policy {name}: lru and gen are there"))
}

/// What a policy is called here.
fn name_of(policy: Policy) -> &'static str {
    let policy = POLICIES.iter().find(|&&(known, _)| known == policy);
    policy.map_or("", |(_, name)| name)
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    let (number, limit): (_, fn(u64) -> Limit) = match text.strip_suffix('%') {
        Some(percent) => (percent, Limit::Percent),
        None => (text, Limit::Frames),
    };
    number
        .parse()
        .map(limit)
        .map_err(|_| format!("{text} is no limit: a number of frames, or a percentage like 25%"))
}

impl Limit {
    fn frames(self, trace: &Trace) -> u64 {
        match self {
            Self::Frames(frames) => frames,
            Self::Percent(percent) => u64::from(trace.pages).saturating_mul(percent) / 100,
        }
    }
}

fn measure(options: &Options) -> Result<(), String> {
    let path = Path::new(&options.trace);
    let trace = Trace::read(path).map_err(|error| format!("{} {error}", options.trace))?;
    let limit = options.limit.frames(&trace);
    if limit == 0 {
        return Err("with a limit of 0 frames no page can be in memory: give 1 or more".to_owned());
    }
    let outcome = replay(&trace, limit, options.policy)?;
    // More frames than pages change nothing.
    let simulated = simulate(&trace, limit.min(u64::from(trace.pages)) as usize);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    print(&name, &trace, limit, options, &outcome, &simulated);
    if let Some(file) = &options.json {
        let json = json(&name, &trace, limit, options.policy, &outcome, &simulated);
        std::fs::write(file, json).map_err(|error| format!("{file} cannot be written: {error}"))?;
    }
    Ok(())
}

impl Outcome {
    fn ns_per_eviction(&self) -> f64 {
        self.reclaiming.as_nanos() as f64 / self.evictions.max(1) as f64
    }

    fn ns_per_touch(&self) -> f64 {
        self.time.as_nanos() as f64 / self.touches.max(1) as f64
    }
}

fn print(
    name: &str,
    trace: &Trace,
    limit: u64,
    options: &Options,
    outcome: &Outcome,
    simulated: &Simulated,
) {
    let per_eviction = |count: u64| count as f64 / outcome.evictions.max(1) as f64;
    println!(
        "{name}: {} touches of {} pages, {limit} frames, policy {}",
        trace.touches.len(),
        trace.pages,
        name_of(options.policy)
    );
    println!(
        "  {} faults, {} evictions, {} scanned ({:.2} an eviction), {} rotated, {} refaults",
        outcome.faults,
        outcome.evictions,
        outcome.scanned,
        per_eviction(outcome.scanned),
        outcome.rotated,
        outcome.refaults
    );
    println!(
        "  {} looked at in active use ({:.2} an eviction)",
        outcome.refilled,
        per_eviction(outcome.refilled)
    );
    println!(
        "  {:.1} ns a touch, {:.1} ns an evicted frame (charge, reclaim and hooks)",
        outcome.ns_per_touch(),
        outcome.ns_per_eviction()
    );
    println!(
        "  others: optimum {}, LRU {}, CLOCK {}, 2Q {}",
        simulated.belady, simulated.lru, simulated.clock, simulated.twoq
    );
}

fn json(
    name: &str,
    trace: &Trace,
    limit: u64,
    policy: Policy,
    outcome: &Outcome,
    simulated: &Simulated,
) -> String {
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "{{\"trace\":\"{name}\",\"pages\":{},\"limit\":{limit},\"policy\":\"{}\",\"faults\":{},\"evictions\":{},\
         \"scanned\":{},\"rotated\":{},\"refaults\":{},\"ns_per_eviction\":{:.1},\"belady\":{},\"lru\":{},\"clock\":{},\
         \"twoq\":{}}}\n",
        trace.pages,
        name_of(policy),
        outcome.faults,
        outcome.evictions,
        outcome.scanned,
        outcome.rotated,
        outcome.refaults,
        outcome.ns_per_eviction(),
        simulated.belady,
        simulated.lru,
        simulated.clock,
        simulated.twoq
    )
}
