//! What `examples/kernel/run` says where something is missing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// One at a time: a script cannot be run while another thread's child may still have it open for writing.
static TURN: Mutex<()> = Mutex::new(());

/// Runs the script where nothing is installed but `tools`: each a name, and what its shell script does.
fn run(place: &str, arguments: &[&str], tools: &[(&str, &str)]) -> (Option<i32>, String) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(place);
    fs::create_dir_all(&path).unwrap();
    for (name, script) in tools {
        let tool = path.join(name);
        fs::write(&tool, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new("/bin/bash")
        .arg("examples/kernel/run")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PATH", &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn a_missing_emulator_is_named_with_the_command_that_installs_it() {
    for (arch, package) in [
        ("x86_64", "qemu-system-x86"),
        ("aarch64", "qemu-system-arm"),
    ] {
        let (status, said) = run("no-emulator", &[arch, "report"], &[]);
        assert_eq!(status, Some(2), "{said}");
        assert!(
            said.contains(&format!("qemu-system-{arch} is missing"))
                && said.contains(&format!(
                    "apt-get install --no-install-recommends {package}"
                )),
            "{said}"
        );
    }
}

#[test]
fn a_missing_target_is_named_with_the_command_that_adds_it() {
    let tools = [
        ("qemu-system-x86_64", "exit 0"),
        ("dirname", "echo \"${1%/*}\""),
        ("rustc", "echo /nowhere"),
        ("xargs", "exit 1"),
        ("dpkg", "exit 1"),
    ];
    let (status, said) = run("no-target", &["x86_64", "report"], &tools);
    assert_eq!(status, Some(2), "{said}");
    assert!(
        said.contains("rustup target add x86_64-unknown-none"),
        "{said}"
    );
}

#[test]
fn options_that_are_none_and_numbers_that_are_none_are_refused() {
    for arguments in [
        &["riscv", "report"][..],
        &["x86_64", "nothing"],
        &["x86_64", "report", "--smp", "few"],
        &["x86_64", "report", "--smp", "0"],
        &["x86_64"],
    ] {
        let (status, said) = run(
            "options",
            arguments,
            &[("qemu-system-x86_64", "exit 0"), ("cat", "exit 0")],
        );
        assert_eq!(status, Some(2), "{arguments:?}: {said}");
    }
}
