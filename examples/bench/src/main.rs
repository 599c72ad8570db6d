//! Measures framekeeper beside other allocators.
//!
//!     cargo run --release -p framekeeper-bench -- alloc [--quick] [--only WORKLOAD] [--subject NAME] [--json FILE]
//!     cargo run --release -p framekeeper-bench -- lru [--quick] [--json FILE]
//!     cargo run --release -p framekeeper-bench -- instructions [--check]
//!     cargo run --release -p framekeeper-bench -- seeds [SEED|all] [--threads N] [--cpus LIST] [--json FILE] [--svg FILE] [--quick]
//!     cargo run --release -p framekeeper-bench -- replay TRACE --limit FRAMES|PCT% [--policy lru|gen] [--json FILE]

mod clock;
mod instructions;
mod lru;
mod machine;
mod peers;
mod replay;
mod report;
mod seeds;
mod subject;
mod turnover;
mod workloads;
mod yardsticks;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).cloned()
    };
    let flag = |name: &str| args.iter().any(|arg| arg == name);
    match args.first().map(String::as_str) {
        Some("alloc") => {
            let plan = workloads::Plan::new(flag("--quick"), option("--only"), option("--subject"));
            let results = workloads::run(&plan);
            report::print(&results);
            if let Some(file) = option("--json")
                && let Err(error) = std::fs::write(&file, report::json(&results))
            {
                eprintln!("{file}: {error}");
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        Some("replay") => replay::run(&args[1..]),
        Some("lru") => match lru::run(flag("--quick"), option("--json").as_deref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("the JSON was not written: {error}");
                ExitCode::FAILURE
            }
        },
        Some("seeds") => {
            let done = seeds::Options::parse(&args[1..])
                .and_then(|options| seeds::run(&options).map_err(|error| error.to_string()));
            if let Err(error) = &done {
                eprintln!("{error}");
            }
            done.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Some("instructions") => instructions::run(flag("--check")),
        Some("instructions-of") => instructions::loop_for_callgrind(&args[1..]),
        _ => {
            eprintln!(
                "alloc [--quick] [--only WORKLOAD] [--json FILE] | lru [--quick] [--json FILE] | instructions [--check] | {}",
                replay::USAGE
            );
            ExitCode::FAILURE
        }
    }
}
