//! Reads memory, reservations and CPUs from a flattened device tree.
//!
//! Owns: [`scan`], one walk over the blob that calls back for each [`Item`].
//! Invariants: uses `core` alone and allocates nothing, so that a kernel can call it before it has a heap; a damaged
//! blob is an error that names the byte, never a panic; the walk visits each byte at most once.
//! Lock ranks: none. Used by: examples and tests, through `#[path]`.
//!
//! Format: <https://github.com/devicetree-org/devicetree-specification>, version 17 blobs.
#![allow(
    unreachable_pub,
    dead_code,
    reason = "each example and test uses the part it needs"
)]

use core::fmt;

/// What a machine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    /// Memory of a node.
    Memory {
        /// The node, 0 if the tree names none.
        node: u8,
        /// First byte.
        base: u64,
        /// Length.
        bytes: u64,
    },
    /// Memory that is taken.
    Reserved {
        /// First byte.
        base: u64,
        /// Length.
        bytes: u64,
    },
    /// A CPU, in the order of the tree.
    Cpu {
        /// Its node, 0 if the tree names none.
        node: u8,
    },
}

/// What is wrong with a blob, and at which byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeError {
    /// Offset in the blob.
    pub offset: usize,
    /// What is wrong there.
    pub problem: &'static str,
}

/// Calls `each` for every item: reservations of the header first, then in the order of the tree.
pub fn scan(blob: &[u8], each: &mut dyn FnMut(Item)) -> Result<(), TreeError> {
    let tree = Tree::new(blob)?;
    tree.reservations(each)?;
    tree.nodes(each)
}

/// The first word of a blob.
pub const MAGIC: u32 = 0xd00d_feed;
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOP: u32 = 4;
const END: u32 = 9;

/// The parts of a blob.
struct Tree<'b> {
    /// As long as the header says.
    blob: &'b [u8],
    structure: usize,
    strings: usize,
    reservations: usize,
}

/// Cells of 32 bits in an address and in a length.
#[derive(Clone, Copy)]
struct Cells {
    address: u32,
    size: u32,
}

/// What a node has said of itself, up to its first child.
#[derive(Clone, Copy, Default)]
struct Node<'b> {
    kind: &'b [u8],
    reg: Option<(usize, &'b [u8])>,
    numa: u32,
    disabled: bool,
}

impl<'b> Tree<'b> {
    fn new(blob: &'b [u8]) -> Result<Self, TreeError> {
        if word(blob, 0)? != MAGIC {
            return Err(error(0, "not a device tree"));
        }
        let size = word(blob, 4)? as usize;
        let tree = blob
            .get(..size)
            .ok_or(error(4, "the blob is shorter than its header says"))?;
        if word(tree, 24)? > 17 {
            return Err(error(24, "a version that cannot be read as version 17"));
        }
        Ok(Self {
            blob: tree,
            structure: word(tree, 8)? as usize,
            strings: word(tree, 12)? as usize,
            reservations: word(tree, 16)? as usize,
        })
    }

    fn reservations(&self, each: &mut dyn FnMut(Item)) -> Result<(), TreeError> {
        let mut at = self.reservations;
        loop {
            let (base, bytes) = (long(self.blob, at)?, long(self.blob, at + 8)?);
            if (base, bytes) == (0, 0) {
                return Ok(());
            }
            each(Item::Reserved { base, bytes });
            at += 16;
        }
    }

    fn nodes(&self, each: &mut dyn FnMut(Item)) -> Result<(), TreeError> {
        let mut at = self.structure;
        let mut depth = 0_u32;
        let mut root = Cells {
            address: 2,
            size: 1,
        };
        let mut inner = root;
        let mut top: &[u8] = b"";
        let mut node = Node::default();
        loop {
            let token = word(self.blob, at)?;
            let here = at;
            at += 4;
            match token {
                BEGIN_NODE => {
                    let name = self.text(at)?;
                    at = aligned(at + name.len() + 1);
                    // A node's properties come before its children, so a child ends what the parent says.
                    self.emit(depth, top, &node, root, inner, each)?;
                    depth += 1;
                    node = Node::default();
                    if depth == 2 {
                        top = name;
                        inner = Cells {
                            address: 2,
                            size: 1,
                        };
                    }
                }
                END_NODE => {
                    self.emit(depth, top, &node, root, inner, each)?;
                    node = Node::default();
                    depth = depth
                        .checked_sub(1)
                        .ok_or(error(here, "more ends than nodes"))?;
                }
                PROPERTY => {
                    let bytes = word(self.blob, at)? as usize;
                    let name = self.text(
                        self.strings
                            .saturating_add(word(self.blob, at + 4)? as usize),
                    )?;
                    let start = at + 8;
                    let value = start
                        .checked_add(bytes)
                        .and_then(|end| self.blob.get(start..end))
                        .ok_or(error(here, "a property ends behind the blob"))?;
                    at = aligned(start + bytes);
                    let cells = match depth {
                        1 => Some(&mut root),
                        2 => Some(&mut inner),
                        _ => None,
                    };
                    match (name, cells) {
                        (b"#address-cells", Some(cells)) => cells.address = word(value, 0)?,
                        (b"#size-cells", Some(cells)) => cells.size = word(value, 0)?,
                        (b"device_type", _) => node.kind = value,
                        (b"reg", _) => node.reg = Some((start, value)),
                        (b"numa-node-id", _) => node.numa = word(value, 0)?,
                        (b"status", _) => node.disabled = !value.starts_with(b"ok"),
                        _ => {}
                    }
                }
                NOP => {}
                END if depth == 0 => return Ok(()),
                END => return Err(error(here, "the tree ends inside a node")),
                _ => return Err(error(here, "not a token")),
            }
        }
    }

    /// Calls back for what a node has said.
    fn emit(
        &self,
        depth: u32,
        top: &[u8],
        node: &Node<'_>,
        root: Cells,
        inner: Cells,
        each: &mut dyn FnMut(Item),
    ) -> Result<(), TreeError> {
        if node.disabled {
            return Ok(());
        }
        let owner =
            || u8::try_from(node.numa).map_err(|_| error(self.structure, "a node id above 255"));
        match (depth, top) {
            (2, _) if node.kind == b"memory\0" => {
                let owner = owner()?;
                regions(node, root, &mut |base, bytes| {
                    each(Item::Memory {
                        node: owner,
                        base,
                        bytes,
                    });
                })
            }
            (3, b"reserved-memory") => regions(node, inner, &mut |base, bytes| {
                each(Item::Reserved { base, bytes });
            }),
            (3, b"cpus") if node.kind == b"cpu\0" => {
                each(Item::Cpu { node: owner()? });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The bytes up to the next zero.
    fn text(&self, at: usize) -> Result<&'b [u8], TreeError> {
        let rest = self
            .blob
            .get(at..)
            .ok_or(error(at, "a name lies behind the blob"))?;
        rest.split(|&byte| byte == 0)
            .next()
            .filter(|name| name.len() < rest.len())
            .ok_or(error(at, "a name has no end"))
    }
}

/// The pairs of address and length in `reg`.
fn regions(node: &Node<'_>, cells: Cells, each: &mut dyn FnMut(u64, u64)) -> Result<(), TreeError> {
    let Some((start, reg)) = node.reg else {
        return Ok(());
    };
    if cells.address > 2 || cells.size > 2 {
        return Err(error(start, "numbers of more than two cells"));
    }
    let entry = 4 * (cells.address + cells.size) as usize;
    if entry == 0 || !reg.len().is_multiple_of(entry) {
        return Err(error(
            start,
            "reg is not made of whole pairs of address and length",
        ));
    }
    for pair in reg.chunks_exact(entry) {
        let (base, bytes) = pair.split_at(4 * cells.address as usize);
        each(number(base), number(bytes));
    }
    Ok(())
}

/// Two cells or fewer, most significant first.
fn number(cells: &[u8]) -> u64 {
    cells
        .iter()
        .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

fn aligned(at: usize) -> usize {
    at.next_multiple_of(4)
}

fn word(blob: &[u8], at: usize) -> Result<u32, TreeError> {
    blob.get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|bytes| u32::from_be_bytes(*bytes))
        .ok_or(error(at, "the blob ends here"))
}

fn long(blob: &[u8], at: usize) -> Result<u64, TreeError> {
    Ok(u64::from(word(blob, at)?) << 32 | u64::from(word(blob, at + 4)?))
}

fn error(offset: usize, problem: &'static str) -> TreeError {
    TreeError { offset, problem }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device tree, byte {}: {}", self.offset, self.problem)
    }
}

impl core::error::Error for TreeError {}
