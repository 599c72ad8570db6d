//! The layers hold: a module names only modules above it in lib.rs, and each file says what it owns.
//!
//! What these checks cannot see: a name that a macro of another crate expands to.

#[path = "common/source.rs"]
mod source;

use std::collections::BTreeMap;

use source::{Token, closing, reads, source_files, tokens};

/// All layers, bottom up. lib.rs declares those that exist in this order; a module names only modules to its left.
const ARROW: [&str; 18] = [
    "addr",
    "rank",
    "platform",
    "sync",
    "boot",
    "zone",
    "pageset",
    "node",
    "alloc",
    "frame",
    "memcg",
    "lru",
    "shrinker",
    "list_lru",
    "mm",
    "reclaim",
    "report",
    "integrate",
];

/// The modules that only tests see; `#[cfg(test)]` code, files named `..._tests.rs`, and those in a folder `tests`, may
/// name them.
const TEST_MODULES: [&str; 4] = ["host", "loom_host", "loom_machine", "stepper"];

/// Longest allowed file, in lines.
const LONGEST: usize = 500;

/// What lib.rs says: its layers in order, and the layer behind each name that it re-exports.
#[derive(Debug, Default)]
struct Map {
    layers: Vec<String>,
    names: BTreeMap<String, String>,
}

/// The modules that lib.rs declares outside `#[cfg(test)]`, and its re-exports.
fn read_map(lib: &str) -> Map {
    let code = tokens(lib);
    let tests = test_parts(&code);
    let mut map = Map::default();
    for i in 0..code.len() {
        if tests[i] {
            continue;
        }
        if reads(&code, i, &["mod"]) && reads(&code, i + 2, &[";"]) {
            map.layers.push(code[i + 1].text.clone());
        }
        if reads(&code, i, &["pub", "use"]) {
            for path in use_tree(&code, i + 2) {
                let from = path
                    .iter()
                    .position(|part| part != "crate" && part != "self");
                let (Some(from), Some(name)) = (from, path.last()) else {
                    continue;
                };
                map.names.insert(name.clone(), path[from].clone());
            }
        }
    }
    map
}

/// Every path of the use tree that starts at token `at`; a renamed one ends in its new name.
fn use_tree(code: &[Token], at: usize) -> Vec<Vec<String>> {
    let mut prefix = Vec::new();
    let mut i = at;
    loop {
        match code.get(i).map(|token| token.text.as_str()) {
            Some("{") => {
                let close = closing(code, i);
                let mut paths = Vec::new();
                let mut start = i + 1;
                while start < close {
                    for rest in use_tree(code, start) {
                        paths.push(prefix.iter().cloned().chain(rest).collect());
                    }
                    start = (start..close)
                        .scan(0, |depth, n| {
                            match code[n].text.as_str() {
                                "{" => *depth += 1,
                                "}" => *depth -= 1,
                                _ => {}
                            }
                            Some((n, *depth))
                        })
                        .find(|&(n, depth)| depth == 0 && code[n].text == ",")
                        .map_or(close, |(n, _)| n + 1);
                }
                return paths;
            }
            Some("::") => {}
            Some("as") => {
                prefix.pop();
            }
            Some(word) if word.chars().all(|c| c.is_alphanumeric() || c == '_') || word == "*" => {
                prefix.push(word.to_owned());
            }
            _ => return vec![prefix],
        }
        i += 1;
    }
}

/// For each token, whether it belongs to an item under `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn test_parts(code: &[Token]) -> Vec<bool> {
    let mut inside = vec![false; code.len()];
    for i in 0..code.len() {
        let is_test = reads(code, i, &["#", "[", "cfg", "(", "test", ")"])
            || reads(code, i, &["#", "[", "cfg", "(", "all", "(", "test", ","]);
        if !is_test {
            continue;
        }
        let mut end = closing(code, i + 1) + 1;
        while end < code.len() && code[end].text != ";" {
            if code[end].text == "{" {
                end = closing(code, end);
                break;
            }
            end = match code[end].text.as_str() {
                "[" | "(" => closing(code, end) + 1,
                _ => end + 1,
            };
        }
        let end = end.min(code.len() - 1);
        inside[i..=end].fill(true);
    }
    inside
}

/// Whether a file holds tests alone.
fn is_tests(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("/tests/")
}

/// How many modules deep the code of a file stands: 1 for `addr.rs` and `zone/mod.rs`, 2 for `zone/line.rs`.
fn depth(path: &str) -> usize {
    path.split('/').filter(|part| *part != "mod.rs").count()
}

/// Every layer that the file names, with the line of each naming; or why that cannot be told.
fn layers_named(path: &str, text: &str, map: &Map) -> Vec<(usize, Result<String, String>)> {
    let code = tokens(text);
    let tests = if is_tests(path) {
        vec![true; code.len()]
    } else {
        test_parts(&code)
    };
    let mut named = Vec::new();
    // Levels of `mod name { ... }` around each token: `super` in a nested module does not leave the file.
    let mut nesting = vec![0; code.len()];
    for i in 0..code.len() {
        if reads(&code, i, &["mod"]) && reads(&code, i + 2, &["{"]) {
            let close = closing(&code, i + 2).min(code.len());
            for level in &mut nesting[i + 3..close] {
                *level += 1;
            }
        }
    }
    for i in 0..code.len() {
        let after_path = i > 0 && code[i - 1].text == "::";
        let rest = if reads(&code, i, &["crate", "::"]) && !after_path {
            i + 2
        } else if reads(&code, i, &["framekeeper", "::"]) && !after_path {
            named.push((
                code[i].line,
                Err("names the crate from outside: use `crate::`".to_owned()),
            ));
            continue;
        } else if reads(&code, i, &["super", "::"]) && !after_path {
            let mut rest = i;
            let mut levels = 0;
            while reads(&code, rest, &["super", "::"]) {
                levels += 1;
                rest += 2;
            }
            if levels < depth(path) + nesting[i] {
                continue;
            }
            rest
        } else {
            continue;
        };
        for parts in use_tree(&code, rest) {
            let first = parts.first().map_or("", String::as_str);
            let layer = if map.layers.iter().any(|layer| layer == first) {
                Ok(first.to_owned())
            } else if let Some(layer) = map.names.get(first) {
                Ok(layer.clone())
            } else if TEST_MODULES.contains(&first) && tests[i] {
                continue;
            } else {
                Err(format!(
                    "`crate::{first}` is no layer and no re-export of lib.rs"
                ))
            };
            named.push((code[i].line, layer));
        }
    }
    named
}

/// What is wrong with the directions in `path`, one line each.
fn wrong_directions(path: &str, text: &str, map: &Map) -> Vec<String> {
    let own = path.split('/').next().expect("a path has a first part");
    let own = own.strip_suffix(".rs").unwrap_or(own);
    let Some(place) = map.layers.iter().position(|layer| layer == own) else {
        return vec![format!("{path}: `{own}` is not declared in lib.rs")];
    };
    let mut wrong = Vec::new();
    for (line, layer) in layers_named(path, text, map) {
        match layer {
            Ok(layer) if map.layers[..=place].contains(&layer) => {}
            Ok(layer) => wrong.push(format!(
                "{path}:{line}: `{own}` names `{layer}`, which lib.rs declares after it"
            )),
            Err(why) => wrong.push(format!("{path}:{line}: {why}")),
        }
    }
    wrong
}

/// What is wrong with the order of the layers, if anything.
fn wrong_order(layers: &[String]) -> Option<String> {
    let mut from = 0;
    for layer in layers {
        match ARROW[from..].iter().position(|name| name == layer) {
            Some(n) => from += n + 1,
            None => {
                return Some(format!(
                    "`{layer}` stands at the wrong place, or is no layer"
                ));
            }
        }
    }
    layers
        .is_empty()
        .then(|| "lib.rs declares no layer".to_owned())
}

/// The words that the file's head lacks.
fn missing_in_head(text: &str) -> Vec<&'static str> {
    let head: String = text
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .collect::<Vec<_>>()
        .join("\n")
        .to_lowercase();
    ["owns:", "invariants:", "lock ranks:", "used by:"]
        .into_iter()
        .filter(|word| !head.contains(word))
        .collect()
}

#[test]
fn a_module_names_only_modules_above_it_in_lib_rs() {
    let files = source_files();
    let lib = files.iter().find(|file| file.path == "lib.rs");
    let map = read_map(&lib.expect("src/lib.rs exists").text);
    let mut wrong = Vec::new();
    let mut named = 0;
    for file in files.iter().filter(|file| file.path != "lib.rs") {
        named += layers_named(&file.path, &file.text, &map).len();
        wrong.extend(wrong_directions(&file.path, &file.text, &map));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(
        named > map.layers.len(),
        "only {named} names were found: the reader is broken"
    );
}

#[test]
fn lib_rs_declares_the_layers_in_the_order_of_the_arrow() {
    let files = source_files();
    let lib = files.iter().find(|file| file.path == "lib.rs");
    let map = read_map(&lib.expect("src/lib.rs exists").text);
    assert_eq!(wrong_order(&map.layers), None);
    for file in &files {
        let top = file
            .path
            .split('/')
            .next()
            .expect("a path has a first part");
        let top = top.strip_suffix(".rs").unwrap_or(top);
        assert!(
            top == "lib" || map.layers.iter().any(|layer| layer == top),
            "{} belongs to no layer of lib.rs",
            file.path
        );
    }
}

#[test]
fn every_file_says_what_it_owns_and_none_is_longer_than_500_lines() {
    let mut wrong = Vec::new();
    for file in source_files() {
        // lib.rs is the map: it has a line for each layer instead. A file of tests says what they are about.
        let tests = is_tests(&file.path);
        let missing = missing_in_head(&file.text);
        if tests && !file.text.starts_with("//! ") {
            wrong.push(format!("{}: no head", file.path));
        }
        if file.path != "lib.rs" && !tests && !missing.is_empty() {
            wrong.push(format!("{}: the head lacks {missing:?}", file.path));
        }
        let lines = file.text.lines().count();
        if lines > LONGEST {
            wrong.push(format!("{}: {lines} lines", file.path));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The checks themselves, on samples that must fail.
mod the_checker {
    use super::*;

    fn map() -> Map {
        read_map(
            "/// One.\npub mod addr;\n\nmod zone;\npub mod lru;\n#[cfg(test)]\nmod host;\n\
             pub use addr::{Pfn, PhysAddr as Address};\npub use lru::Lists;\n",
        )
    }

    fn faults(path: &str, text: &str) -> usize {
        wrong_directions(path, text, &map()).len()
    }

    #[test]
    fn reads_the_layers_and_re_exports_of_lib_rs() {
        let map = map();
        assert_eq!(map.layers, ["addr", "zone", "lru"]);
        assert_eq!(map.names["Pfn"], "addr");
        assert_eq!(map.names["Address"], "addr");
        assert_eq!(map.names["Lists"], "lru");
        assert!(!map.names.contains_key("PhysAddr"));
    }

    #[test]
    fn refuses_a_layer_to_the_right_in_a_use_a_group_and_a_path() {
        assert_eq!(faults("zone/line.rs", "use crate::lru::Lists;"), 1);
        assert_eq!(
            faults("zone/line.rs", "use crate::{addr::Pfn, lru::Lists};"),
            1
        );
        assert_eq!(
            faults(
                "zone/line.rs",
                "use crate::{addr::{Pfn, Order}, lru, zone};"
            ),
            1
        );
        assert_eq!(
            faults(
                "zone/mod.rs",
                "fn f() -> crate::lru::Lists { crate::lru::f() }"
            ),
            2
        );
        assert_eq!(
            faults("addr.rs", "pub(crate) use crate::zone::Zone as Z;"),
            1
        );
        assert_eq!(
            faults(
                "zone/mod.rs",
                "macro_rules! m { () => { $crate::lru::f() } }"
            ),
            1
        );
    }

    #[test]
    fn refuses_it_behind_a_re_export_and_behind_super() {
        assert_eq!(faults("zone/line.rs", "use crate::Lists;"), 1);
        assert_eq!(faults("zone/mod.rs", "use super::lru::Lists;"), 1);
        assert_eq!(faults("zone/line.rs", "use super::super::lru::Lists;"), 1);
        assert_eq!(
            faults("addr.rs", "mod tests { use super::super::lru::Lists; }"),
            1
        );
        assert_eq!(faults("zone/line.rs", "use crate::Unknown;"), 1);
        assert_eq!(faults("zone/line.rs", "use crate::*;"), 1);
        assert_eq!(faults("zone/line.rs", "use framekeeper::addr::Pfn;"), 1);
    }

    #[test]
    fn accepts_layers_to_the_left_its_own_and_names_in_comments() {
        assert_eq!(
            faults("zone/line.rs", "use crate::{Pfn, addr::Order, zone::Zone};"),
            0
        );
        assert_eq!(
            faults("lru/mod.rs", "use crate::zone::Zone; use super::addr::Pfn;"),
            0
        );
        assert_eq!(
            faults(
                "zone/line.rs",
                "use super::shard::Shard; mod t { use super::*; }"
            ),
            0
        );
        assert_eq!(
            faults(
                "addr.rs",
                "//! [x](crate::lru)\n/* crate::lru /* */ crate::lru */"
            ),
            0
        );
        assert_eq!(
            faults(
                "addr.rs",
                "const A: &str = \"crate::lru\"; const B: &str = r#\"\"crate::lru\"#;"
            ),
            0
        );
    }

    #[test]
    fn lets_only_test_code_name_the_host() {
        let used = "use crate::host::Host;";
        assert_eq!(faults("addr.rs", used), 1);
        assert_eq!(faults("addr.rs", &format!("mod tests {{ {used} }}")), 1);
        assert_eq!(
            faults("addr.rs", &format!("#[cfg(test)] mod tests {{ {used} }}")),
            0
        );
        assert_eq!(
            faults(
                "addr.rs",
                &format!("#[cfg(all(test, not(loom)))]\nmod t {{ {used} }}")
            ),
            0
        );
        assert_eq!(
            faults("addr.rs", &format!("#[cfg(test)] mod tests {{}} {used}")),
            1
        );
        assert_eq!(
            faults("addr.rs", &format!("#[cfg(test)] mod tests; {used}")),
            1
        );
        assert_eq!(faults("zone/line_tests.rs", used), 0);
        let upward = "use crate::lru::Lists;";
        assert_eq!(
            faults("addr.rs", &format!("#[cfg(test)] mod tests {{ {upward} }}")),
            1
        );
    }

    #[test]
    fn refuses_a_file_outside_every_layer() {
        assert_eq!(faults("swap.rs", ""), 1);
        assert_eq!(faults("addr.rs", ""), 0);
    }

    #[test]
    fn refuses_layers_out_of_order_unknown_or_absent() {
        let order = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            wrong_order(&names).is_some()
        };
        assert!(order(&["addr", "sync", "rank"]));
        assert!(order(&["addr", "swap"]));
        assert!(order(&["addr", "addr"]));
        assert!(order(&[]));
        assert!(!order(&["addr", "rank", "zone", "integrate"]));
    }

    #[test]
    fn refuses_a_head_that_lacks_a_part() {
        let head =
            "//! A.\n//! Owns: a.\n//! Invariants: b.\n//! Lock ranks: none.\n//! Used by: c.\n";
        assert!(missing_in_head(head).is_empty());
        assert!(missing_in_head(&head.to_uppercase()).is_empty());
        for part in ["Owns:", "Invariants:", "Lock ranks:", "Used by:"] {
            assert_eq!(missing_in_head(&head.replace(part, "")).len(), 1);
        }
        assert_eq!(missing_in_head(&format!("use a;\n{head}")).len(), 4);
    }
}
