//! Reads a capture of a Linux machine: its firmware map, CPUs, nodes, settings, and `/proc/zoneinfo`.
//!
//! Owns: [`Capture`], and [`Zone`] and [`Pageset`] as `/proc/zoneinfo` shows them.
//! Invariants: bad text is an error that names the line, never a panic; sections that are not known are skipped.
//! Lock ranks: none. Used by: examples/zoneinfo.rs and the tests, through `#[path]`, with memory_map.rs beside it.
#![allow(
    unreachable_pub,
    dead_code,
    reason = "each example and test uses the part it needs"
)]

use super::memory_map::{MemoryMap, Problem, TextError, at, decimal};

/// One machine. Text before the first `==SECTION==` is read as `/proc/zoneinfo`.
#[derive(Debug, Default)]
pub struct Capture {
    /// Kernel command line.
    pub command_line: String,
    /// Firmware map, node ranges and early ranges. Empty if the capture has none.
    pub memory: MemoryMap,
    /// Number of CPUs online; 0 if the capture does not say.
    pub cpus: u32,
    /// CPUs and distances per node. Empty: one node with all CPUs.
    pub nodes: Vec<NodeCpus>,
    /// `vm.min_free_kbytes`.
    pub min_free_kib: Option<u64>,
    /// `vm.watermark_scale_factor`, in parts of 10,000.
    pub scale_factor: Option<u32>,
    /// The zones, in the order of the text.
    pub zones: Vec<Zone>,
}

/// A node's CPUs and its distances to all nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeCpus {
    /// The node.
    pub node: u8,
    /// Its CPUs.
    pub cpus: Vec<u32>,
    /// Distance to node 0, 1, ...
    pub distances: Vec<u32>,
}

/// A zone; all sizes in frames.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Zone {
    /// Line of its heading.
    pub line: usize,
    /// Its node.
    pub node: u8,
    /// `DMA`, `DMA32`, `Normal`, `Movable`, `Device`.
    pub name: String,
    /// Free frames.
    pub free: u64,
    /// Watermark boost, already in the watermarks below.
    pub boost: u64,
    /// Watermarks.
    pub min: u64,
    #[allow(missing_docs, reason = "see `min`")]
    pub low: u64,
    #[allow(missing_docs, reason = "see `min`")]
    pub high: u64,
    /// The watermark above high; Linux 6.1 does not show it.
    pub promo: Option<u64>,
    /// From the first frame to the last, holes included.
    pub spanned: u64,
    /// Without holes.
    pub present: u64,
    /// Present, without what boot kept.
    pub managed: u64,
    /// Reserves against requests that may use zone 0, 1, ...
    pub protection: Vec<u64>,
    /// First frame; not shown for a zone without memory.
    pub start_pfn: Option<u64>,
    /// One pageset per CPU; none for a zone without memory.
    pub pagesets: Vec<Pageset>,
    /// Those of [`REQUIRED`] that the text has.
    seen: Vec<&'static str>,
}

/// A pageset of one CPU; sizes in frames.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pageset {
    /// The CPU.
    pub cpu: u32,
    /// Frames in it.
    pub count: u64,
    /// Limit, at this moment.
    pub high: u64,
    /// Frames moved at once.
    pub batch: u64,
    /// Lower end of `high`; not in Linux 6.1.
    pub high_min: Option<u64>,
    /// Upper end of `high`; not in Linux 6.1.
    pub high_max: Option<u64>,
    /// Largest per-CPU difference of a counter of the zone.
    pub stat_threshold: Option<u64>,
}

impl Capture {
    /// Reads a whole text.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        let mut capture = Self::default();
        for section in sections(text) {
            capture.parse_section(&section)?;
        }
        if capture.zones.is_empty() {
            return Err(at(0, Problem::Missing("a zone")));
        }
        Ok(capture)
    }

    fn parse_section(&mut self, section: &Section<'_>) -> Result<(), TextError> {
        let lines = || section.lines.iter().copied();
        match section.name {
            "CMDLINE" => {
                self.command_line = lines().map(|(_, text)| text.trim()).collect();
            }
            "E820" => self.memory = MemoryMap::parse_lines(lines())?,
            "NPROC" => {
                let (line, text) = section.line(0, "the number of CPUs")?;
                self.cpus = decimal(line, text)?;
            }
            "NODECPUS" => {
                for (line, text) in lines().filter(|(_, text)| !text.trim().is_empty()) {
                    let node = node_cpus(line, text)?;
                    if self.nodes.iter().any(|other| other.node == node.node) {
                        return Err(at(line, Problem::Duplicate("the node")));
                    }
                    self.nodes.push(node);
                }
            }
            "MINFREE" => {
                let (line, text) = section.line(0, "min_free_kbytes")?;
                self.min_free_kib = Some(frames(line, text)?);
                let (line, text) = section.line(1, "watermark_scale_factor")?;
                self.scale_factor = Some(decimal(line, text)?);
            }
            "" | "ZONEINFO" => {
                let zones = parse_zoneinfo(lines())?;
                self.zones.extend(zones);
            }
            _ => {}
        }
        Ok(())
    }
}

/// What every zone shows, with memory or without.
const REQUIRED: [&str; 6] = ["min", "low", "high", "spanned", "present", "managed"];

/// Reads `/proc/zoneinfo` from numbered lines. Counters that no formula uses are skipped.
pub fn parse_zoneinfo<'t>(
    lines: impl Iterator<Item = (usize, &'t str)>,
) -> Result<Vec<Zone>, TextError> {
    let mut zones: Vec<Zone> = Vec::new();
    for (line, text) in lines {
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        if text.starts_with("Node ") {
            let zone = heading(line, text)?;
            let same = |other: &Zone| other.node == zone.node && other.name == zone.name;
            if zones.iter().any(same) {
                return Err(at(line, Problem::Duplicate("the zone")));
            }
            zones.push(zone);
            continue;
        }
        let zone = zones
            .last_mut()
            .ok_or(at(line, Problem::Missing("a line \"Node N, zone NAME\"")))?;
        zone.parse_line(line, text)?;
    }
    for zone in &zones {
        if let Some(missing) = REQUIRED.iter().find(|name| !zone.seen.contains(name)) {
            return Err(at(zone.line, Problem::Missing(missing)));
        }
    }
    Ok(zones)
}

impl Zone {
    fn parse_line(&mut self, line: usize, text: &str) -> Result<(), TextError> {
        if let Some(list) = text.strip_prefix("protection:") {
            let list = list.trim().trim_start_matches('(').trim_end_matches(')');
            self.protection = list
                .split(',')
                .map(|number| frames(line, number))
                .collect::<Result<_, _>>()?;
            return Ok(());
        }
        let (name, value) = text.rsplit_once([' ', '\t', ':']).unwrap_or((text, ""));
        let name = name.trim();
        if name == "cpu:" || name == "cpu" {
            self.pagesets.push(Pageset {
                cpu: decimal(line, value)?,
                ..Pageset::default()
            });
            return Ok(());
        }
        if let Some(field) = self.field(name) {
            *field = frames(line, value)?;
            self.seen
                .extend(REQUIRED.iter().find(|&&known| known == name));
            return Ok(());
        }
        if matches!(
            name,
            "count:" | "high:" | "batch:" | "high_min:" | "high_max:" | "vm stats threshold:"
        ) {
            let pageset = self
                .pagesets
                .last_mut()
                .ok_or(at(line, Problem::Missing("a line \"cpu: N\"")))?;
            let number = frames(line, value)?;
            match name {
                "count:" => pageset.count = number,
                "high:" => pageset.high = number,
                "batch:" => pageset.batch = number,
                "high_min:" => pageset.high_min = Some(number),
                "high_max:" => pageset.high_max = Some(number),
                _ => pageset.stat_threshold = Some(number),
            }
        }
        Ok(())
    }

    /// The field that `name` shows, if it is one of the zone's own.
    fn field(&mut self, name: &str) -> Option<&mut u64> {
        Some(match name {
            "pages free" => &mut self.free,
            "boost" => &mut self.boost,
            "min" => &mut self.min,
            "low" => &mut self.low,
            "high" => &mut self.high,
            "promo" => self.promo.get_or_insert(0),
            "spanned" => &mut self.spanned,
            "present" => &mut self.present,
            "managed" => &mut self.managed,
            "start_pfn:" => self.start_pfn.get_or_insert(0),
            _ => return None,
        })
    }
}

/// A number of frames or KiB: more than 2^40 are no machine's, and sums of less cannot overflow.
fn frames(line: usize, text: &str) -> Result<u64, TextError> {
    match decimal(line, text)? {
        number if number <= 1 << 40 => Ok(number),
        _ => Err(at(line, Problem::Number(text.trim().to_owned()))),
    }
}

/// `Node 0, zone    DMA32`.
fn heading(line: usize, text: &str) -> Result<Zone, TextError> {
    let (node, name) = text
        .trim_start_matches("Node ")
        .split_once(", zone ")
        .ok_or(at(line, Problem::Missing("\", zone NAME\"")))?;
    Ok(Zone {
        line,
        node: decimal(line, node)?,
        name: name.trim().to_owned(),
        ..Zone::default()
    })
}

/// `node1 cpus 2-3,6 distance 20 10`; a node may have no CPUs.
fn node_cpus(line: usize, text: &str) -> Result<NodeCpus, TextError> {
    let missing = |what| at(line, Problem::Missing(what));
    let (node, rest) = text.split_once(" cpus").ok_or(missing("\"cpus\""))?;
    let (cpus, distances) = rest.split_once("distance").unwrap_or((rest, ""));
    let node = node
        .trim()
        .strip_prefix("node")
        .ok_or(missing("\"nodeN\""))?;
    let mut entry = NodeCpus {
        node: decimal(line, node)?,
        ..NodeCpus::default()
    };
    for part in cpus.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (decimal(line, first)?, decimal(line, last)?);
        if last < first {
            return Err(at(line, Problem::Reversed));
        }
        entry.cpus.extend((first..=last).map(u32::from));
    }
    for distance in distances.split_whitespace() {
        entry.distances.push(decimal(line, distance)?);
    }
    Ok(entry)
}

/// Lines between two `==NAME==`.
struct Section<'t> {
    name: &'t str,
    line: usize,
    lines: Vec<(usize, &'t str)>,
}

impl<'t> Section<'t> {
    fn line(&self, index: usize, what: &'static str) -> Result<(usize, &'t str), TextError> {
        let line = self.lines.get(index).copied();
        line.ok_or(at(self.line, Problem::Missing(what)))
    }
}

fn sections(text: &str) -> Vec<Section<'_>> {
    let mut sections = vec![Section {
        name: "",
        line: 0,
        lines: Vec::new(),
    }];
    for (line, text) in (1..).zip(text.lines()) {
        let name = text
            .trim()
            .strip_prefix("==")
            .and_then(|t| t.strip_suffix("=="));
        if let Some(name) = name {
            sections.push(Section {
                name,
                line,
                lines: Vec::new(),
            });
        } else if let Some(section) = sections.last_mut() {
            section.lines.push((line, text));
        }
    }
    sections
}
