//! A runner for race tests that ThreadSanitizer can judge.
//!
//! libtest and `std::thread` synchronise inside a standard library that is not instrumented, which the sanitizer
//! reports as races. So a race test has `harness = false` in Cargo.toml, lists its tests in `main`, and starts threads with
//! [`together`], which uses `pthread_create` and `pthread_join` directly. No suppression is needed then.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses the part it needs"
)]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// A test: its name and what it runs.
pub type Test = (&'static str, fn());

/// Pairs each function with its name.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), $name as fn())),*]
    };
}
pub(crate) use tests;

/// Runs the tests whose names contain one of the filters of the command line, and reports as libtest does.
pub fn run(tests: &[Test]) -> ExitCode {
    let filters = filters(std::env::args().skip(1));
    let chosen: Vec<_> = tests
        .iter()
        .filter(|(name, _)| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str())))
        .collect();
    let started = Instant::now();
    println!("\nrunning {} tests", chosen.len());
    let mut failed = 0;
    for (name, test) in &chosen {
        let result = catch_unwind(test);
        failed += usize::from(result.is_err());
        println!(
            "test {name} ... {}",
            if result.is_ok() { "ok" } else { "FAILED" }
        );
    }
    println!(
        "\ntest result: {}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        chosen.len() - failed,
        tests.len() - chosen.len(),
        started.elapsed().as_secs_f64()
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        // What libtest exits with.
        ExitCode::from(101)
    }
}

/// The words of the command line that are neither options of libtest nor their values.
fn filters(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut filters = Vec::new();
    let mut is_value = false;
    for argument in arguments {
        if is_value {
            is_value = false;
        } else if argument.starts_with('-') {
            is_value = matches!(
                argument.as_str(),
                "--test-threads" | "--skip" | "--format" | "--color" | "--logfile" | "-Z"
            );
        } else {
            filters.push(argument);
        }
    }
    filters
}

/// Runs `body(0)` to `body(threads - 1)`, each on a thread of its own, and waits for all of them.
///
/// # Panics
/// If one of them did, after all have ended.
pub fn together(threads: u32, body: impl Fn(u32) + Sync) {
    struct Start<'a, F> {
        body: &'a F,
        index: u32,
        panicked: bool,
    }
    extern "C" fn enter<F: Fn(u32) + Sync>(start: *mut c_void) -> *mut c_void {
        // SAFETY: `together` passes one `Start` to one thread, and joins the thread before it looks at it again.
        #[allow(unsafe_code)]
        let start = unsafe { &mut *start.cast::<Start<'_, F>>() };
        // Unwinding must not leave this function.
        start.panicked = catch_unwind(AssertUnwindSafe(|| (start.body)(start.index))).is_err();
        core::ptr::null_mut()
    }
    fn entry<F: Fn(u32) + Sync>(_: &F) -> extern "C" fn(*mut c_void) -> *mut c_void {
        enter::<F>
    }

    let mut starts: Vec<_> = (0..threads)
        .map(|index| Start {
            body: &body,
            index,
            panicked: false,
        })
        .collect();
    let handles: Vec<libc::pthread_t> = starts
        .iter_mut()
        .map(|start| {
            let mut handle = core::mem::MaybeUninit::uninit();
            let argument = core::ptr::from_mut(start).cast();
            // SAFETY: `starts` outlives the threads, which are joined below; each gets its own element.
            #[allow(unsafe_code)]
            let error = unsafe {
                libc::pthread_create(
                    handle.as_mut_ptr(),
                    core::ptr::null(),
                    entry(&body),
                    argument,
                )
            };
            if error != 0 {
                // Threads that run already borrow this frame, so it may not unwind.
                eprintln!("pthread_create: error {error}");
                std::process::abort();
            }
            // SAFETY: pthread_create wrote it, since it succeeded.
            #[allow(unsafe_code)]
            unsafe {
                handle.assume_init()
            }
        })
        .collect();
    for handle in handles {
        // SAFETY: the handle is a thread of this call, joined once.
        #[allow(unsafe_code)]
        let error = unsafe { libc::pthread_join(handle, core::ptr::null_mut()) };
        if error != 0 {
            eprintln!("pthread_join: error {error}");
            std::process::abort();
        }
    }
    let panicked = starts.iter().filter(|start| start.panicked).count();
    assert_eq!(panicked, 0, "{panicked} of {threads} threads panicked");
}

/// How often a race test repeats its rounds: 1, or `RACE_ROUNDS` (the long checks set it).
pub fn rounds(base: u64) -> u64 {
    let factor = std::env::var("RACE_ROUNDS").map_or(Ok(1), |text| text.parse());
    base * factor.unwrap_or_else(|error| panic!("RACE_ROUNDS is a number: {error}"))
}
