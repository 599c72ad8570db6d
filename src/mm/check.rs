//! Recounting everything from scratch.
//!
//! Owns: [`Mm::check`]. Invariants: checked, not held: sizes equal walks; each listed frame is its lruvec's and flagged so; isolated
//! frames equal their counts; usage equals the
//! frames charged, and counts by state the frames in it; lengths of object lists equal walks; owner slots count exactly what names
//! them; the allocator's own check.
//! Lock ranks: `LruBatch`, `LruVec`, `ListLru`, one at a time. Used by: tests, and kernels at rest: nothing else may run meanwhile.

use core::fmt;

use super::Mm;
use crate::addr::Pfn;
use crate::alloc;
use crate::frame::Flags;
use crate::lru::ListKind;
use crate::memcg::{OwnerIndex, PageState};
use crate::platform::{IrqOff, Platform};

/// What does not add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MmFault {
    /// The page allocator's own check failed.
    Alloc(alloc::CheckError),
    /// A frame is on a list that is not its own, or its flags name another.
    Misplaced {
        /// The frame.
        pfn: Pfn,
        /// The list it was found on.
        list: ListKind,
    },
    /// A list's length or size differs from a walk over it.
    ListCount {
        /// Slot of the list's group.
        memcg: u32,
        /// Which list.
        list: ListKind,
        /// Frames by the walk.
        counted: u64,
        /// Frames by the size.
        stated: u64,
    },
    /// Flagged as listed, but on no list.
    Unlisted {
        /// Frames flagged.
        flagged: u64,
        /// Frames listed or counted as unevictable.
        listed: u64,
    },
    /// The frames in isolators' hands differ from a node's counts of them.
    Isolated {
        /// The node.
        node: u32,
        /// By the records: anonymous, and listed with files.
        counted: [u64; 2],
        /// By the counts.
        stated: [u64; 2],
    },
    /// A group's usage differs from the frames charged to it and below.
    Usage {
        /// Slot of the group.
        memcg: u32,
        /// Frames by the records.
        counted: u64,
        /// Frames by the counter.
        stated: u64,
    },
    /// The frames of a group and node in a state differ from its count.
    State {
        /// Slot of the group.
        memcg: u32,
        /// The state.
        state: PageState,
        /// Frames by the records.
        counted: u64,
        /// Frames by the counts of all CPUs.
        stated: i64,
    },
    /// A list of objects is shorter or longer than its length says, or holds objects of others.
    Objects {
        /// The list.
        list: u32,
        /// Slot of the group; `None` for a node's total.
        memcg: Option<u32>,
        /// The node.
        node: u32,
        /// Objects by a walk.
        counted: u64,
        /// Objects by the length.
        stated: u64,
    },
    /// An owner slot's count differs from what names it.
    Owner {
        /// The slot.
        owner: u32,
        /// By the records, listed objects, tasks, groups and forwarding slots.
        counted: u64,
        /// By the slot.
        stated: u64,
    },
}

impl<P: Platform> Mm<P> {
    /// Recounts every list, charge and owner, and the allocator. Meant for tests: it is slow, and right only at rest.
    ///
    /// # Errors
    /// The first [`MmFault`] found.
    pub fn check(&self) -> Result<(), MmFault> {
        self.alloc.check().map_err(MmFault::Alloc)?;
        self.check_lists()?;
        self.check_isolated()?;
        self.check_usage()?;
        self.check_states()?;
        self.lists().recount().map_err(|fault| MmFault::Objects {
            list: fault.list,
            memcg: fault.memcg,
            node: fault.node,
            counted: fault.counted,
            stated: fault.stated,
        })?;
        self.check_owners()
    }

    fn check_lists(&self) -> Result<(), MmFault> {
        let off = IrqOff::new();
        let mut listed = 0;
        for index in 0..self.lru.count() {
            let Some(held) = self.view().lock_index(index, &off) else {
                continue;
            };
            listed += held.lruvec.unevictable();
            let lists = |kind: ListKind| {
                held.lruvec
                    .lists_of(kind)
                    .into_iter()
                    .map(move |list| (list, kind))
            };
            for (number, list) in ListKind::ALL.into_iter().flat_map(lists) {
                let here = |record: &crate::frame::Record| {
                    record
                        .owner()
                        .and_then(|owner| self.memcgs.owners().resolve(owner))
                        == Some(index)
                };
                let (entries, counted) =
                    held.lruvec
                        .recount(&self.frames, number, here)
                        .map_err(|frame| MmFault::Misplaced {
                            pfn: self.frames.pfn(frame),
                            list,
                        })?;
                let by_zone = held.lruvec.frames_by_zone(number);
                let (differs, stated) = (counted != by_zone, by_zone.iter().sum());
                let counted = counted.iter().sum();
                if differs || entries != held.lruvec.list(number).len() {
                    return Err(MmFault::ListCount {
                        memcg: self.memcgs.slot_of(index),
                        list,
                        counted,
                        stated,
                    });
                }
                listed += counted;
            }
        }
        let flagged = self.frames.iter().map(|(_, record)| record);
        let flagged = flagged
            .filter(|record| record.flags().contains(Flags::LRU))
            .map(|record| record.order().frames())
            .sum();
        if flagged == listed {
            Ok(())
        } else {
            Err(MmFault::Unlisted { flagged, listed })
        }
    }

    fn check_isolated(&self) -> Result<(), MmFault> {
        for node in 0..self.memcgs.nodes() {
            let mut counted = [0; 2];
            for (_, record) in self.frames.iter() {
                let flags = record.flags();
                if !flags.intersects(Flags::ISOLATED) {
                    continue;
                }
                let lruvec = record
                    .owner()
                    .and_then(|owner| self.memcgs.owners().resolve(owner));
                if lruvec.is_some_and(|lruvec| lruvec % self.memcgs.nodes() == node) {
                    let backing = usize::from(flags.contains(Flags::ISOLATED_FILE));
                    counted[backing] += record.order().frames();
                }
            }
            let stated = self.view().isolated(node).unwrap_or_default();
            if counted != stated {
                return Err(MmFault::Isolated {
                    node,
                    counted,
                    stated,
                });
            }
        }
        Ok(())
    }

    fn check_usage(&self) -> Result<(), MmFault> {
        for (memcg, stated) in self.memcgs.usages() {
            let here = |owner| {
                self.memcgs.owners().resolve(owner).is_some_and(|lruvec| {
                    self.memcgs
                        .is_at_or_below(self.memcgs.slot_of(lruvec), memcg)
                })
            };
            let owners = self.memcgs.owners().in_use().map(|(owner, _)| owner);
            let for_bytes = owners.filter(|&owner| here(owner));
            let for_bytes: u64 = for_bytes.map(|owner| self.memcgs.byte_frames(owner)).sum();
            let counted = self.charged_frames(here) + for_bytes;
            if counted != stated {
                return Err(MmFault::Usage {
                    memcg,
                    counted,
                    stated,
                });
            }
        }
        Ok(())
    }

    fn check_states(&self) -> Result<(), MmFault> {
        for state in PageState::ALL {
            let flag = Flags::of_state(state.index());
            let in_state = || {
                let records = self.frames.iter().map(|(_, record)| record);
                records.filter(|record| record.flags().contains(flag))
            };
            let none = in_state().next().is_none();
            for lruvec in 0..self.lru.count() {
                let stated = self.memcgs.raw_state(lruvec, state);
                if none && stated == 0 {
                    continue;
                }
                let here = |record: &&crate::frame::Record| {
                    let owner = record.owner();
                    owner.and_then(|owner| self.memcgs.owners().resolve(owner)) == Some(lruvec)
                };
                let counted = in_state()
                    .filter(here)
                    .map(|record| record.order().frames())
                    .sum();
                if i64::try_from(counted) != Ok(stated) {
                    return Err(MmFault::State {
                        memcg: self.memcgs.slot_of(lruvec),
                        state,
                        counted,
                        stated,
                    });
                }
            }
        }
        Ok(())
    }

    fn check_owners(&self) -> Result<(), MmFault> {
        let groups = (0..self.lru.count())
            .filter(|&lruvec| self.memcgs.id_of(self.memcgs.slot_of(lruvec)).is_some());
        for (owner, _) in self.memcgs.owners().in_use() {
            let frames =
                self.charged_frames(|named| named == owner) + self.memcgs.byte_frames(owner);
            let forwards = self
                .memcgs
                .owners()
                .in_use()
                .filter(|&(_, to)| to == Some(owner))
                .count() as u64;
            let living = groups
                .clone()
                .filter(|&lruvec| self.memcgs.current_at(lruvec) == Some(owner))
                .count() as u64;
            let (counted, stated) = (
                frames
                    + self.lists().owned_by(owner)
                    + self.memcgs.owners().visits(owner)
                    + forwards
                    + living,
                self.memcgs.references(owner),
            );
            if counted != stated {
                return Err(MmFault::Owner {
                    owner,
                    counted,
                    stated,
                });
            }
        }
        Ok(())
    }

    /// Frames whose record names an owner that `picks` accepts.
    fn charged_frames(&self, mut picks: impl FnMut(OwnerIndex) -> bool) -> u64 {
        let charged = self
            .frames
            .iter()
            .filter(|(_, record)| record.owner().is_some_and(&mut picks));
        charged.map(|(_, record)| record.order().frames()).sum()
    }
}

impl fmt::Display for MmFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alloc(fault) => fault.fmt(f),
            Self::Misplaced { pfn, list } => {
                write!(f, "frame {pfn} is on {list:?}, which is not its list")
            }
            Self::ListCount {
                memcg,
                list,
                counted,
                stated,
            } => {
                write!(
                    f,
                    "{list:?} of group {memcg} holds {counted} frames, its size says {stated}"
                )
            }
            Self::Unlisted { flagged, listed } => {
                write!(f, "{flagged} frames are flagged as listed, {listed} are")
            }
            Self::Isolated {
                node,
                counted,
                stated,
            } => {
                write!(
                    f,
                    "{counted:?} frames of node {node} are isolated, its counts say {stated:?}"
                )
            }
            Self::Usage {
                memcg,
                counted,
                stated,
            } => {
                write!(
                    f,
                    "{counted} frames are charged to group {memcg} and below, its usage says {stated}"
                )
            }
            Self::State {
                memcg,
                state,
                counted,
                stated,
            } => write!(
                f,
                "{counted} frames of group {memcg} are in {state:?}, its count says {stated}"
            ),
            Self::Objects {
                list,
                memcg,
                node,
                counted,
                stated,
            } => {
                write!(f, "list {list} holds {counted} objects on node {node} ")?;
                match memcg {
                    Some(memcg) => write!(f, "for group {memcg}, its length says {stated}"),
                    None => write!(f, "in all groups, its total says {stated}"),
                }
            }
            Self::Owner {
                owner,
                counted,
                stated,
            } => write!(
                f,
                "owner slot {owner} is named {counted} times, it says {stated}"
            ),
        }
    }
}

impl core::error::Error for MmFault {}
