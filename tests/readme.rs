//! README says what the code says.

use std::fs::read_to_string;

fn file(path: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    read_to_string(format!("{root}/{path}")).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn its_example_is_the_quickstart_which_a_reader_can_copy_whole() {
    let quickstart = file("examples/quickstart.rs");
    assert!(file("README.md").contains(&format!("```rust\n{quickstart}```")));
    assert!(
        quickstart.lines().count() <= 40,
        "{} lines",
        quickstart.lines().count()
    );
}

#[test]
fn its_lock_order_is_the_one_of_the_code() {
    let ranks = file("src/rank.rs");
    let body = ranks
        .split("pub enum Rank {")
        .nth(1)
        .and_then(|rest| rest.split('}').next())
        .unwrap();
    let names: Vec<_> = body
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("///"))
        .map(|line| line.trim_end_matches(','))
        .collect();
    assert_eq!(names.len(), 12);
    assert!(file("README.md").contains(&format!("`{}`", names.join(" < "))));
}

#[test]
fn every_item_of_the_platform_and_every_hook_is_in_its_porting_page() {
    let readme = file("README.md");
    for (path, start) in [
        ("src/platform.rs", "pub unsafe trait Platform"),
        ("src/reclaim/evict.rs", "pub trait Evict"),
    ] {
        let text = file(path);
        let items = text
            .split(start)
            .nth(1)
            .and_then(|rest| rest.split("\n}\n").next())
            .unwrap();
        let mut found = 0;
        for line in items.lines().map(str::trim) {
            let name = ["fn ", "const ", "type "]
                .iter()
                .find_map(|word| line.strip_prefix(word));
            let Some(name) = name.and_then(|rest| rest.split(['(', ':', ';', ' ']).next()) else {
                continue;
            };
            if name == "LEFT_OUT" {
                continue; // the models' switch
            }
            found += 1;
            assert!(
                readme.contains(&format!("`{name}")),
                "README's porting page lacks `{name}`"
            );
        }
        assert!(found >= 5, "{path}: only {found} items were found");
    }
}

#[test]
fn the_gate_runs_its_test_command() {
    assert!(file("README.md").contains("\ncargo test "));
    let steps = file(".ci/steps");
    assert!(steps.lines().any(
        |line| line.trim_start().starts_with("cargo test 2>&1") || line.trim() == "cargo test"
    ));
}

#[test]
fn the_line_counts_of_its_kernel_are_those_of_the_files() {
    let readme = file("README.md");
    let mut found = 0;
    for line in readme.lines() {
        // | `examples/kernel/src/port.rs`: what it is | 76 |
        let Some(row) = line.strip_prefix("| `examples/kernel/src/") else {
            continue;
        };
        let (name, rest) = row.split_once('`').unwrap();
        let stated = rest
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap()
            .trim();
        let counted = file(&format!("examples/kernel/src/{name}")).lines().count();
        assert_eq!(stated, counted.to_string(), "lines of {name}");
        found += 1;
    }
    assert!(found >= 5, "only {found} files are counted");
}
