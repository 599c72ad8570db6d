//! Every regression case of the allocator (R1 to R34) and of reclaim (B1 to B30), and every case of misuse (1 to 66), has a test that
//! names it: in the `///` lines right above the test, as `R8`, `B12` or `misuse 16, 27`.
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What a text names: the letter of the family and the number; `M` for misuse.
fn cases_in(text: &str) -> BTreeSet<(char, u32)> {
    let mut found = BTreeSet::new();
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |word: &str| {
        word.trim_end_matches([',', ':', '.', ';', ')'])
            .parse::<u32>()
            .ok()
    };
    let mut misuse = false;
    for word in words {
        let bare = word.trim_start_matches('(');
        if bare.eq_ignore_ascii_case("misuse") {
            misuse = true;
            continue;
        }
        if misuse && word == "and" {
            continue;
        }
        match number(bare) {
            Some(case) if misuse => {
                found.insert(('M', case));
                misuse = word.ends_with(',');
            }
            _ => {
                misuse = false;
                let family = bare.chars().next().filter(|first| "RB".contains(*first));
                if let Some((family, case)) = family.zip(bare.get(1..).and_then(number)) {
                    found.insert((family, case));
                }
            }
        }
    }
    found
}

/// The cases named above tests: functions without arguments below `///` lines, with or without attributes between.
fn cases_of_tests(source: &str) -> BTreeSet<(char, u32)> {
    let mut found = BTreeSet::new();
    let mut above = String::new();
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            above.push_str(text);
        } else if line.starts_with("fn ") && line.contains("()") {
            found.append(&mut cases_in(&above));
            above.clear();
        } else if !line.starts_with("#[") {
            above.clear();
        }
    }
    found
}

fn read_all(directory: &Path, found: &mut BTreeSet<(char, u32)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.append(&mut cases_of_tests(&fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn every_case_has_a_test_that_names_it() {
    let mut found = BTreeSet::new();
    for directory in ["src", "tests"] {
        read_all(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(directory),
            &mut found,
        );
    }
    let all = [('R', 34), ('B', 30), ('M', 66)];
    let missing: Vec<_> = all
        .into_iter()
        .flat_map(|(family, last)| (1..=last).map(move |case| (family, case)))
        .filter(|case| !found.contains(case))
        .collect();
    assert!(missing.is_empty(), "no test names {missing:?}");
    let unknown: Vec<_> = found
        .into_iter()
        .filter(|&(family, case)| {
            !all.iter()
                .any(|&(of, last)| of == family && case >= 1 && case <= last)
        })
        .collect();
    assert!(unknown.is_empty(), "there are no cases {unknown:?}");
}

#[test]
fn the_checker_reads_the_ways_in_which_cases_are_named() {
    let named = |text| cases_in(text).into_iter().collect::<Vec<_>>();
    assert_eq!(named("R8: what happened"), [('R', 8)]);
    assert_eq!(named("misuse 22, R28: full"), [('M', 22), ('R', 28)]);
    assert_eq!(
        named("Misuse 36, 37, 39: a stale id"),
        [('M', 36), ('M', 37), ('M', 39)]
    );
    assert_eq!(
        named("misuse 13: 64 KiB and 16 KiB, 4 of them"),
        [('M', 13)]
    );
    assert_eq!(named("B6 and B7: order 9, Rust"), [('B', 6), ('B', 7)]);
    let test = "/// R1: yes\n#[test]\nfn a() {\n    // R2: inside\n}\n/// R3: no test\nstruct S;\nfn b() {}";
    assert_eq!(
        cases_of_tests(test).into_iter().collect::<Vec<_>>(),
        [('R', 1)]
    );
}
