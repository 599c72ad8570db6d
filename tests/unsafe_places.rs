//! Unsafe operations stand in three files only, and integrations add nothing but `unsafe impl`.
//!
//! The compiler's `unsafe_code` lint can be allowed anywhere; this list cannot be changed by accident.
//! What it cannot see: unsafe code that a macro of another crate expands to.

#[path = "common/source.rs"]
mod source;

use std::collections::BTreeSet;

use source::{reads, source_files, tokens};

/// The only files with unsafe operations.
const PLACES: [&str; 3] = ["boot/carve.rs", "list_lru/item.rs", "sync/lock.rs"];

/// Declarations of a duty elsewhere: they hold no unsafe operation, a caller or implementor meets them.
const DUTIES: [(&str, &str); 6] = [
    ("boot/memory.rs", "fn claim"),
    ("integrate/x86_64.rs", "fn deallocate_frame"),
    ("mm/folio.rs", "fn folio_from_raw"),
    ("platform.rs", "trait Platform"),
    ("platform.rs", "trait RawLock"),
    ("platform.rs", "fn unlock"),
];

/// What follows an `unsafe`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Use {
    /// A block, or an attribute such as `unsafe(no_mangle)`.
    Operation,
    /// `unsafe impl`.
    Impl,
    /// `unsafe trait Name` or `unsafe fn name`.
    Duty(String),
}

/// Every use of `unsafe` in the code, with its line.
fn uses(text: &str) -> Vec<(usize, Use)> {
    let code = tokens(text);
    let mut found = Vec::new();
    for i in 0..code.len() {
        if !reads(&code, i, &["unsafe"]) {
            continue;
        }
        let words: Vec<&str> = code[i + 1..]
            .iter()
            .map(|token| token.text.as_str())
            .filter(|word| !matches!(*word, "extern" | "\"\"" | "auto"))
            .take(2)
            .collect();
        let used = match words[..] {
            ["impl", _] => Use::Impl,
            [kind @ ("fn" | "trait"), name] => Use::Duty(format!("{kind} {name}")),
            _ => Use::Operation,
        };
        found.push((code[i].line, used));
    }
    found
}

/// What the file may not hold, one line each.
fn misplaced(path: &str, text: &str) -> Vec<String> {
    if PLACES.contains(&path) {
        return Vec::new();
    }
    uses(text)
        .into_iter()
        .filter(|(_, used)| match used {
            Use::Operation => true,
            Use::Impl => !path.starts_with("integrate/"),
            Use::Duty(name) => !DUTIES.contains(&(path, name.as_str())),
        })
        .map(|(line, used)| format!("{path}:{line}: {used:?} does not belong here"))
        .collect()
}

#[test]
fn unsafe_operations_stand_in_three_files_only() {
    let files = source_files();
    let wrong: Vec<_> = files
        .iter()
        .flat_map(|file| misplaced(&file.path, &file.text))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_place_and_duty_of_the_list_still_has_its_unsafe() {
    // A list that outlives the code would excuse new code of the same name.
    let mut found = BTreeSet::new();
    for file in source_files() {
        let used = uses(&file.text);
        if PLACES.contains(&file.path.as_str()) {
            assert!(!used.is_empty(), "{} needs no place any more", file.path);
        }
        for (_, used) in used {
            found.insert((file.path.clone(), used));
        }
    }
    for (path, name) in DUTIES {
        assert!(
            found.contains(&(path.to_owned(), Use::Duty(name.to_owned()))),
            "{path}: `{name}` is gone"
        );
    }
}

/// The check itself, on samples that must fail.
mod the_checker {
    use super::*;

    fn faults(path: &str, text: &str) -> usize {
        misplaced(path, text).len()
    }

    #[test]
    fn refuses_operations_outside_the_three_files() {
        for text in [
            "fn f() { unsafe { g() } }",
            "unsafe impl Send for A {}",
            "unsafe impl<T> Send for A<T> {}",
            "unsafe fn f() {}",
            "unsafe trait T {}",
            "pub unsafe extern \"C\" fn f() {}",
            "unsafe extern \"C\" { fn f(); }",
            "#[unsafe(no_mangle)] fn f() {}",
            "type F = unsafe fn(u8);",
            "macro_rules! m { () => { unsafe{} } }",
            "let a = 'a'; unsafe\n// why\n{ }",
            "let a: &'static str = \"\\\"\"; unsafe { }",
        ] {
            assert_eq!(faults("zone/line.rs", text), 1, "{text}");
            assert_eq!(faults("sync/lock.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn lets_integrations_implement_but_not_operate() {
        assert_eq!(faults("integrate/acpi.rs", "unsafe impl A for B {}"), 0);
        assert_eq!(
            faults(
                "integrate/acpi.rs",
                "unsafe impl A for B { fn f() { unsafe { g() } } }"
            ),
            1
        );
        assert_eq!(faults("reintegrate/acpi.rs", "unsafe impl A for B {}"), 1);
    }

    #[test]
    fn knows_a_duty_by_its_file_and_name() {
        assert_eq!(faults("platform.rs", "pub unsafe trait Platform {}"), 0);
        assert_eq!(faults("platform.rs", "pub unsafe trait Other {}"), 1);
        assert_eq!(faults("rank.rs", "pub unsafe trait Platform {}"), 1);
        assert_eq!(faults("platform.rs", "unsafe impl RawLock for A {}"), 1);
    }

    #[test]
    fn skips_comments_and_literals() {
        for text in [
            "// unsafe { }",
            "/* unsafe { } /* unsafe { } */ unsafe { } */",
            "const A: &str = \"unsafe { }\";",
            "const A: &str = r##\"\"# unsafe { }\"##;",
            "const A: &[u8] = b\"\\\" unsafe { }\"; const Q: char = '\"'; // unsafe { }",
            "#![allow(unsafe_code)] fn unsafe_name(r#unsafe: u8) {}",
        ] {
            assert_eq!(faults("zone/line.rs", text), 0, "{text}");
        }
    }
}
