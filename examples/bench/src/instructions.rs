//! Instructions per call under callgrind: the same number on every run, so that a regression shows at once.

use std::hint::black_box;
use std::process::{Command, ExitCode, Stdio};

use framekeeper::Policy;

use crate::machine::{Framekeeper, run_as};
use crate::subject::Subject;
use crate::yardsticks::LockedStack;

/// Instructions per call and, as a ratio to `stack_lk`'s ping-pong, what was last accepted. More than a tenth above it fails.
/// `lru` is a folio charged, added, activated and released, all batched.
const ACCEPTED: [(&str, f64); 8] = [
    ("pingpong", 2.22),
    ("bulk", 4.83),
    ("random", 9.66),
    ("order9", 2.28),
    ("lru", 67.7),
    ("twolists", 67.7),
    ("raw", 9.44),
    ("rawwrong", 9.74),
];

/// What a call of `stack_lk` takes. If it is a tenth off, the yardstick has changed, and no ratio to it says anything.
const YARDSTICK: f64 = 18.0;

/// The most that a ping-pong call may take.
const PINGPONG_LIMIT: f64 = 40.0;

/// Calls in the short and the long run; the difference leaves the start out.
const CALLS: [u32; 2] = [1 << 14, 1 << 16];

/// Measures every loop, and with `check` compares.
pub fn run(check: bool) -> ExitCode {
    let Some(yardstick) = per_call("stack_lk", "pingpong") else {
        eprintln!("valgrind is needed: apt-get install valgrind");
        return ExitCode::FAILURE;
    };
    println!("stack_lk     pingpong  {yardstick:7.2} instructions per call");
    let mut failed = (yardstick / YARDSTICK - 1.0).abs() > 0.1;
    if failed {
        println!("stack_lk     WRONG: it should take {YARDSTICK}");
    }
    for (name, accepted) in ACCEPTED {
        let Some(count) = per_call("framekeeper", name) else {
            return ExitCode::FAILURE;
        };
        let ratio = count / yardstick;
        let over = ratio > accepted * 1.1 || (name == "pingpong" && count.round() > PINGPONG_LIMIT);
        failed |= over;
        println!(
            "framekeeper  {name:<9} {count:7.2}  ratio {ratio:.3}  accepted {accepted:.3}{}",
            if over { "  TOO MANY" } else { "" }
        );
    }
    if check && failed {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn per_call(subject: &str, name: &str) -> Option<f64> {
    let [short, long] = CALLS.map(|calls| total(subject, name, calls));
    Some((long? - short?) as f64 / f64::from(CALLS[1] - CALLS[0]))
}

/// Instructions of one whole run, as callgrind's last line says.
fn total(subject: &str, name: &str, calls: u32) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().ok()?)
        .args(["instructions-of", subject, name, &calls.to_string()])
        .stdout(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// The loop itself: subject, loop, calls.
pub fn loop_for_callgrind(args: &[String]) -> ExitCode {
    let [subject, name, calls] = args else {
        return ExitCode::FAILURE;
    };
    let Ok(calls) = calls.parse() else {
        return ExitCode::FAILURE;
    };
    run_as(0);
    match subject.as_str() {
        "framekeeper" => match name.as_str() {
            "raw" => Framekeeper::new().raw_ping_pong(calls),
            "rawwrong" => Framekeeper::new().wrong_raw_frees(calls),
            "lru" => crate::lru::rounds(calls, Policy::Generations),
            "twolists" => crate::lru::rounds(calls, Policy::TwoLists),
            _ => work(&Framekeeper::new(), name, calls),
        },
        _ => work(&LockedStack::new(), name, calls),
    }
    ExitCode::SUCCESS
}

fn work<S: Subject>(subject: &S, name: &str, calls: u32) {
    match name {
        "pingpong" => ping_pong::<S, 0>(subject, calls),
        "order9" => ping_pong::<S, 9>(subject, calls),
        "order9bulk" => bulk::<S, 9>(subject, false, calls / 64),
        "mix" => mix(subject, calls),
        _ => bulk::<S, 0>(subject, name == "random", calls),
    }
}

fn ping_pong<S: Subject, const ORDER: u8>(subject: &S, calls: u32) {
    for _ in 0..calls / 2 {
        let block = subject.alloc(ORDER).expect("memory is free");
        subject.free(black_box(block), ORDER);
    }
}

fn bulk<S: Subject, const ORDER: u8>(subject: &S, random: bool, calls: u32) {
    let mut held: Vec<_> = (0..calls / 2)
        .map(|_| subject.alloc(ORDER).expect("memory is free"))
        .collect();
    if random {
        crate::clock::Random(1).shuffle(&mut held);
    }
    held.into_iter()
        .for_each(|block| subject.free(block, ORDER));
}

fn mix<S: Subject>(subject: &S, calls: u32) {
    let mut random = crate::clock::Random(1);
    let mut held: Vec<Option<(S::Block<'_>, u8)>> = (0..10_000).map(|_| None).collect();
    for _ in 0..calls {
        let slot = &mut held[random.below(10_000) as usize];
        let order = random.below(10) as u8;
        match slot.take() {
            Some((block, order)) => subject.free(block, order),
            None => *slot = subject.alloc(order).map(|block| (block, order)),
        }
    }
}
