//! `/proc/vmstat`: every line a counter that is kept, under the name that Linux gives it.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use std::collections::BTreeMap;

use framekeeper::report::Vmstat;
use framekeeper::{Backing, MemcgId};
use kernel::{listed, machine};

/// Name and value, as every reader of the file splits its lines.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[test]
fn the_lines_follow_what_happens_in_all_groups() {
    let mm = machine(600, 1, 3);
    let [one, two] = [0, 1].map(|_| mm.create_memcg(MemcgId::ROOT).unwrap());
    let before = parse(&Vmstat::of(&mm).to_string());
    assert_eq!(before["nr_inactive_anon"] + before["pgactivate"], 0);
    let anon = listed(&mm, one, Backing::Anon, 10);
    let files = listed(&mm, two, Backing::File, 20);
    files.iter().take(5).for_each(|folio| folio.activate());
    anon[0].mlock();
    mm.drain_lru();
    let isolated = files[19].isolate().unwrap();
    let now = parse(&Vmstat::of(&mm).to_string());
    for (name, value) in [
        ("nr_inactive_anon", 9),
        ("nr_unevictable", 1),
        ("nr_active_file", 5),
        ("nr_inactive_file", 14),
        ("nr_isolated_file", 1),
        ("pgactivate", 5),
        ("unevictable_pgs_culled", 1),
    ] {
        assert_eq!(now[name], value, "{name}");
    }
    mm.allocator().drain_all();
    let drained = parse(&Vmstat::of(&mm).to_string());
    assert_eq!(drained["nr_free_pages"], before["nr_free_pages"] - 30);
    drop((isolated, anon, files));
    // What moved in a group is not forgotten with it.
    mm.remove_memcg(two).unwrap();
    assert_eq!(Vmstat::of(&mm).moves.activated, 5);
    mm.check().unwrap();
}
