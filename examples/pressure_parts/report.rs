//! What a run found: the table, the three lines, the JSON object, and whether all of it is right.

use std::fmt;

use serde_json::{Value, json};

/// What happened in some groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Pages evicted while all were written.
    pub(crate) evicted: u64,
    /// Pages evicted while all were read.
    pub(crate) evicted_again: u64,
    /// Pages read back from swap.
    pub(crate) swapped_in: u64,
    /// Pages that did not hold what was written.
    pub(crate) corrupt: u64,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// By group.
    pub(crate) groups: Vec<Counts>,
    /// Evictions that cannot be helped while all pages are written.
    pub(crate) expected: u64,
    /// How many more there may be.
    pub(crate) excess: u64,
    /// Frames freed by the background thread; `None` if groups have limits.
    pub(crate) background: Option<u64>,
    /// Frames that should be free, less those that are.
    pub(crate) leaked: i64,
    /// Of writing and reading.
    pub(crate) seconds: f64,
    /// What else is wrong.
    pub(crate) faults: Vec<String>,
}

/// Groups in one line of the table.
const GROUPS_PER_LINE: usize = 8;

impl Outcome {
    /// All groups together.
    pub(crate) fn total(&self) -> Counts {
        sum(&self.groups)
    }

    /// Adds to `faults` what the counts show.
    pub(crate) fn judge(&mut self) {
        let total = self.total();
        let most = self.expected + self.excess;
        if !(self.expected..=most).contains(&total.evicted) {
            let expected = self.expected;
            self.faults.push(format!(
                "{} evictions are not between {expected} and {most}",
                total.evicted
            ));
        }
        if total.corrupt > 0 {
            self.faults.push(format!(
                "{} pages do not hold what was written",
                total.corrupt
            ));
        }
        if self.leaked != 0 {
            self.faults
                .push(format!("{} frames did not come back", self.leaked));
        }
    }

    /// As a JSON object.
    pub(crate) fn to_json(&self) -> Value {
        let total = self.total();
        json!({
            "evictions": total.evicted,
            "expected": self.expected,
            "corrupt": total.corrupt,
            "leaked": self.leaked,
            "seconds": self.seconds,
        })
    }
}

fn sum(groups: &[Counts]) -> Counts {
    groups.iter().fold(Counts::default(), |a, b| Counts {
        evicted: a.evicted + b.evicted,
        evicted_again: a.evicted_again + b.evicted_again,
        swapped_in: a.swapped_in + b.swapped_in,
        corrupt: a.corrupt + b.corrupt,
    })
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<13}{:>16}{:>16}{:>14}{:>10}",
            "groups", "evicted writing", "evicted reading", "swapped in", "corrupt"
        )?;
        for (line, groups) in self.groups.chunks(GROUPS_PER_LINE).enumerate() {
            let first = line * GROUPS_PER_LINE;
            let Counts {
                evicted,
                evicted_again,
                swapped_in,
                corrupt,
            } = sum(groups);
            writeln!(
                f,
                "{:<13}{evicted:>16}{evicted_again:>16}{swapped_in:>14}{corrupt:>10}",
                format!("{first}-{}", first + groups.len() - 1),
            )?;
        }
        let total = self.total();
        writeln!(
            f,
            "evictions {} (expected {})",
            total.evicted, self.expected
        )?;
        if let Some(freed) = self.background {
            writeln!(f, "freed by the background {freed}")?;
        }
        writeln!(f, "corrupt {}", total.corrupt)?;
        writeln!(f, "leaked {}", self.leaked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(evicted: u64, expected: u64) -> Outcome {
        let mut groups = vec![Counts::default(); 10];
        groups[9].evicted = evicted;
        Outcome {
            groups,
            expected,
            excess: if expected == 0 { 0 } else { 320 },
            background: None,
            leaked: 0,
            seconds: 0.5,
            faults: Vec::new(),
        }
    }

    /// What is wrong with it.
    fn judged(mut outcome: Outcome) -> Vec<String> {
        outcome.judge();
        outcome.faults
    }

    #[test]
    fn evictions_are_right_between_the_expected_and_the_excess() {
        for (evicted, expected, right) in [
            (100, 100, true),
            (99, 100, false),
            (420, 100, true),
            (421, 100, false),
            (0, 0, true),
            (1, 0, false),
        ] {
            let faults = judged(outcome(evicted, expected));
            assert_eq!(faults.is_empty(), right, "{evicted} of {expected}");
        }
    }

    #[test]
    fn anything_corrupt_leaked_or_found_by_a_check_is_wrong() {
        let mut corrupt = outcome(1, 1);
        corrupt.groups[3].corrupt = 1;
        assert_eq!(judged(corrupt).len(), 1);
        for leaked in [1, -1] {
            let mut leaky = outcome(1, 1);
            leaky.leaked = leaked;
            assert_eq!(judged(leaky).len(), 1);
        }
        let mut broken = outcome(1, 1);
        broken.faults.push("a list is broken".to_owned());
        assert_eq!(judged(broken).len(), 1);
    }

    #[test]
    fn the_report_ends_with_the_three_counts() {
        let text = outcome(7, 5).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 2 + 3);
        assert!(lines[1].starts_with("0-7 ") && lines[2].starts_with("8-9 "));
        assert_eq!(
            lines[3..],
            ["evictions 7 (expected 5)", "corrupt 0", "leaked 0"]
        );
    }

    #[test]
    fn the_json_object_holds_the_five_values() {
        let value = outcome(7, 5).to_json();
        let expected =
            json!({"evictions": 7, "expected": 5, "corrupt": 0, "leaked": 0, "seconds": 0.5});
        assert_eq!(value, expected);
    }
}
