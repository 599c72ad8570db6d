//! Reads the memory map of a machine from text: a plain list, a kernel log, or `/proc/iomem`.
//!
//! Owns: [`MemoryMap`], the ranges as the text gives them, and [`TextError`], which names the line.
//! Invariants: bad text is an error, never a panic; ranges keep their order, since a boot map takes any.
//! Lock ranks: none. Used by: the examples and the tests, through `#[path]`.
//!
//! Three kinds of line, which may be mixed; `#` starts a comment, empty lines are skipped:
//!
//! ```text
//! 0x0000000000100000 0x00000000beeaffff usable
//! [    0.000000] BIOS-e820: [mem 0x0000000000100000-0x0000000007fdefff] usable
//! 00100000-beeaffff : System RAM
//! ```
//!
//! First and last byte, then the kind. Lines with a log's time stamp that are not about memory are skipped; of the
//! others, `SRAT: Node 0 PXM 0 [mem A-B]` says which node memory is on, and `node 0: [mem A-B]` (early memory node
//! ranges) what Linux made of it.
#![allow(
    unreachable_pub,
    dead_code,
    reason = "each example and test uses the part it needs"
)]

use std::fmt;

use framekeeper::boot::{BootMap, MapError};
use framekeeper::{NodeId, PhysAddr};

/// A machine's memory, as its text gives it.
#[derive(Debug, Default)]
pub struct MemoryMap {
    /// The firmware's ranges.
    pub ranges: Vec<Range>,
    /// Which node each range of addresses is on. Empty: all on node 0.
    pub nodes: Vec<NodeRange>,
    /// Linux's own early ranges, for comparison.
    pub early: Vec<NodeRange>,
}

/// A range of the firmware's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Line of the text.
    pub line: usize,
    /// First byte.
    pub first: u64,
    /// Last byte.
    pub last: u64,
    /// Whether it is ordinary memory; everything else is reserved.
    pub usable: bool,
}

/// A range of addresses and its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRange {
    /// Line of the text.
    pub line: usize,
    /// The node.
    pub node: u8,
    /// First byte.
    pub first: u64,
    /// Last byte.
    pub last: u64,
}

/// What is wrong with a text, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextError {
    /// Line number, from 1; 0 if it is about the text as a whole.
    pub line: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Problem {
    /// It is none of the kinds of line that belong here.
    Unknown,
    /// This should be a number, and is not, or is too large.
    Number(String),
    /// Something that must be there is not.
    Missing(&'static str),
    /// Something is there twice.
    Duplicate(&'static str),
    /// The range ends before it starts.
    Reversed,
    /// The boot map refuses the range.
    Refused(MapError),
}

impl MemoryMap {
    /// Reads a whole text.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        Self::parse_lines((1..).zip(text.lines()))
    }

    /// Reads numbered lines.
    pub fn parse_lines<'t>(
        lines: impl Iterator<Item = (usize, &'t str)>,
    ) -> Result<Self, TextError> {
        let mut map = Self::default();
        for (line, text) in lines {
            map.parse_line(line, text)?;
        }
        Ok(map)
    }

    /// The boot map of this machine. Usable memory that no node claims is on node 0.
    pub fn boot_map<const N: usize>(&self) -> Result<BootMap<N>, TextError> {
        let mut map = BootMap::new();
        for range in &self.ranges {
            let refused = |error| at(range.line, Problem::Refused(error));
            if !range.usable {
                map.reserve(PhysAddr(range.first), length(range.first, range.last))
                    .map_err(refused)?;
                continue;
            }
            for node in &self.nodes {
                let (first, last) = (range.first.max(node.first), range.last.min(node.last));
                if first <= last {
                    map.add(NodeId(node.node), PhysAddr(first), length(first, last))
                        .map_err(refused)?;
                }
            }
            // The first node keeps its part, so this adds only what is left.
            map.add(
                NodeId(0),
                PhysAddr(range.first),
                length(range.first, range.last),
            )
            .map_err(refused)?;
        }
        Ok(map)
    }

    fn parse_line(&mut self, line: usize, text: &str) -> Result<(), TextError> {
        let (stamped, text) = without_time_stamp(text);
        let text = text.split('#').next().unwrap_or("").trim();
        if text.is_empty() {
            return Ok(());
        }
        if let Some(rest) = text.strip_prefix("BIOS-e820:") {
            let (first, last, kind) = bracketed(line, rest)?;
            self.push(line, first, last, kind == "usable")
        } else if let Some((_, rest)) = text.split_once("SRAT: Node ") {
            let node = node_range(line, rest)?;
            self.nodes.push(node);
            Ok(())
        } else if let Some(rest) = text.strip_prefix("node ").filter(|r| r.contains("[mem ")) {
            let node = node_range(line, rest)?;
            self.early.push(node);
            Ok(())
        } else if stamped {
            Ok(())
        } else if text.starts_with("0x") {
            let mut words = text.split_whitespace();
            let first = hexadecimal(line, words.next().unwrap_or(""))?;
            let last = words
                .next()
                .ok_or(at(line, Problem::Missing("the last byte")))?;
            let last = hexadecimal(line, last)?;
            let kind = words
                .next()
                .ok_or(at(line, Problem::Missing("the kind of range")))?;
            self.push(line, first, last, kind == "usable")
        } else if let Some((range, name)) = text.split_once(" : ") {
            let (first, last) = dashed(line, range)?;
            self.push(line, first, last, name == "System RAM")
        } else {
            Err(at(line, Problem::Unknown))
        }
    }

    fn push(&mut self, line: usize, first: u64, last: u64, usable: bool) -> Result<(), TextError> {
        if last < first {
            return Err(at(line, Problem::Reversed));
        }
        self.ranges.push(Range {
            line,
            first,
            last,
            usable,
        });
        Ok(())
    }
}

/// The error at a line.
pub fn at(line: usize, problem: Problem) -> TextError {
    TextError { line, problem }
}

/// A decimal number, alone in `text`.
pub fn decimal<T: std::str::FromStr>(line: usize, text: &str) -> Result<T, TextError> {
    let text = text.trim();
    text.parse()
        .map_err(|_| at(line, Problem::Number(text.to_owned())))
}

/// Strips `[    0.012345] `, and says whether it was there.
fn without_time_stamp(text: &str) -> (bool, &str) {
    let stamp = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .filter(|(stamp, _)| stamp.trim().parse::<f64>().is_ok());
    match stamp {
        Some((_, rest)) => (true, rest),
        None => (false, text),
    }
}

/// `0 PXM 0 [mem A-B]` or `0: [mem A-B]`.
fn node_range(line: usize, text: &str) -> Result<NodeRange, TextError> {
    let text = text.trim_start();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let node = decimal(line, &text[..digits])?;
    let (first, last, _) = bracketed(line, &text[digits..])?;
    if last < first {
        return Err(at(line, Problem::Reversed));
    }
    Ok(NodeRange {
        line,
        node,
        first,
        last,
    })
}

/// First and last byte of the first `[mem A-B]`, and what follows it.
fn bracketed(line: usize, text: &str) -> Result<(u64, u64, &str), TextError> {
    let (range, rest) = text
        .split_once("[mem ")
        .and_then(|(_, rest)| rest.split_once(']'))
        .ok_or(at(line, Problem::Missing("[mem FIRST-LAST]")))?;
    let (first, last) = dashed(line, range)?;
    Ok((first, last, rest.trim()))
}

fn dashed(line: usize, range: &str) -> Result<(u64, u64), TextError> {
    let (first, last) = range
        .split_once('-')
        .ok_or(at(line, Problem::Missing("the last byte")))?;
    Ok((hexadecimal(line, first)?, hexadecimal(line, last)?))
}

fn hexadecimal(line: usize, text: &str) -> Result<u64, TextError> {
    let text = text.trim();
    // `from_str_radix` would take a sign.
    let digits = text.strip_prefix("0x").unwrap_or(text);
    Some(digits)
        .filter(|digits| digits.starts_with(|c: char| c.is_ascii_hexdigit()))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| at(line, Problem::Number(text.to_owned())))
}

/// Saturates for the whole address space, which a boot map refuses anyway.
fn length(first: u64, last: u64) -> u64 {
    (last - first).saturating_add(1)
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line != 0 {
            write!(f, "line {}: ", self.line)?;
        }
        match &self.problem {
            Problem::Unknown => write!(f, "not a line that belongs here"),
            Problem::Number(text) => write!(f, "not a number, or too large: {text:?}"),
            Problem::Missing(what) => write!(f, "{what} is missing"),
            Problem::Duplicate(what) => write!(f, "{what} is here a second time"),
            Problem::Reversed => write!(f, "the range ends before it starts"),
            Problem::Refused(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for TextError {}
