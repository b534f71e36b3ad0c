//! The two-slot record of the active generation: its bytes, and the rule that picks one of two.

use core::fmt;

use slm_format::{ContentHash, Digest, ReadError, Reader};
use slm_manifest::CompositionId;

use crate::error::StoreError;
use crate::layout;

/// What a slot says. Its file is exactly [`SlotRecord::LEN`] bytes, little-endian:
///
/// | offset | bytes | what |
/// |---|---|---|
/// | 0 | 8 | `slmslot1` |
/// | 8 | 8 | sequence number, 0 before the first commit, below 2^64 - 1 |
/// | 16 | 32 | digest of the generation's blob |
/// | 48 | 32 | digest of the manifest's blob |
/// | 80 | 32 | composition id |
/// | 112 | 32 | BLAKE3 of bytes 0 to 112 |
///
/// A commit overwrites and syncs the slot that is not current. The rule that picks the current one:
///
/// | slots | current |
/// |---|---|
/// | both absent | none, nothing was ever active |
/// | both good | the higher sequence number; equal numbers must be equal records |
/// | one good, one damaged | the good one: a commit was torn, or the medium failed; reported as a [`SlotFault`] |
/// | one good, one absent | the good one; a fault unless its sequence number is 0, which a crash while both are made leaves behind |
/// | none good | an error: both slots come into being by a rename, so no crash leads here |
///
/// A current record of sequence number 0 means that nothing is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRecord {
    /// Counts commits.
    pub sequence: u64,
    /// The generation's blob.
    pub generation: Digest,
    /// The manifest's blob.
    pub manifest: Digest,
    /// The composition.
    pub composition: CompositionId,
}

/// A slot that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotFault {
    /// Its path, `active.a` or `active.b`.
    pub slot: &'static str,
    /// What is wrong with it.
    pub problem: SlotProblem,
}

/// What is wrong with a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlotProblem {
    /// There is no such file.
    Absent,
    /// The file is not [`SlotRecord::LEN`] bytes long.
    Length,
    /// The first bytes are not `slmslot1`.
    Magic,
    /// The checksum does not fit.
    Checksum,
    /// The sequence number is the last there is.
    Sequence,
    /// Both slots have this number, and differ.
    SameSequence(u64),
    /// It says that nothing was ever active, and the audit log says that something was.
    Nothing,
}

impl fmt::Display for SlotFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.slot;
        match self.problem {
            SlotProblem::Absent => write!(f, "{slot} is absent"),
            SlotProblem::Nothing => {
                write!(
                    f,
                    "{slot} says that nothing is active, and the audit log that something was made so"
                )
            }
            SlotProblem::Length => write!(f, "{slot} is not {} bytes long", SlotRecord::LEN),
            SlotProblem::Magic => write!(f, "{slot} does not start with slmslot1"),
            SlotProblem::Checksum => write!(f, "the checksum of {slot} does not fit"),
            SlotProblem::Sequence => {
                write!(f, "the sequence number of {slot} is the last there is")
            }
            SlotProblem::SameSequence(number) => {
                write!(f, "{slot} has number {number} as the other has, and differs")
            }
        }
    }
}

const MAGIC: &[u8; 8] = b"slmslot1";
const CHECKED: usize = 8 + 8 + 3 * 32;

impl SlotRecord {
    /// Bytes in a slot's file.
    pub const LEN: usize = CHECKED + 32;

    /// The record before the first commit.
    pub(crate) const NOTHING: SlotRecord = SlotRecord {
        sequence: 0,
        generation: Digest::from_bytes([0; 32]),
        manifest: Digest::from_bytes([0; 32]),
        composition: CompositionId::from_digest(Digest::from_bytes([0; 32])),
    };

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SlotRecord::LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_bytes());
        bytes.extend_from_slice(&self.manifest.to_bytes());
        bytes.extend_from_slice(&self.composition.digest().to_bytes());
        let checksum = ContentHash::of(&bytes);
        bytes.extend_from_slice(&checksum.to_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<SlotRecord, SlotProblem> {
        if bytes.len() != SlotRecord::LEN {
            return Err(SlotProblem::Length);
        }
        let (checked, checksum) = bytes.split_at(CHECKED);
        if checked[..8] != *MAGIC {
            return Err(SlotProblem::Magic);
        }
        if ContentHash::of(checked).to_bytes() != *checksum {
            return Err(SlotProblem::Checksum);
        }
        let record = SlotRecord::fields(&checked[8..]).map_err(|_| SlotProblem::Length)?;
        if record.sequence == u64::MAX { Err(SlotProblem::Sequence) } else { Ok(record) }
    }

    fn fields(bytes: &[u8]) -> Result<SlotRecord, ReadError> {
        let mut reader = Reader::new(bytes);
        let record = SlotRecord {
            sequence: reader.u64("sequence")?,
            generation: Digest::from_bytes(reader.array("generation")?),
            manifest: Digest::from_bytes(reader.array("manifest")?),
            composition: CompositionId::from_digest(Digest::from_bytes(
                reader.array("composition")?,
            )),
        };
        reader.finish()?;
        Ok(record)
    }
}

/// What the two slots say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slots {
    /// The current record; [`SlotRecord::NOTHING`] where nothing is active.
    pub(crate) current: SlotRecord,
    /// What the other slot says, where it can be used.
    pub(crate) other: Option<SlotRecord>,
    /// The slot that the next commit writes.
    pub(crate) next: usize,
    /// Which of the two files exist.
    pub(crate) exists: [bool; 2],
    /// A slot that cannot be used, though the other can.
    pub(crate) fault: Option<SlotFault>,
}

impl Slots {
    /// What is wrong with slots that say that nothing is active, where something must be.
    pub(crate) fn lost(&self) -> StoreError {
        let fault = |slot: usize| {
            let name = layout::SLOTS[slot];
            let problem = match &self.fault {
                Some(fault) if fault.slot == name => fault.problem.clone(),
                _ if self.exists[slot] => SlotProblem::Nothing,
                _ => SlotProblem::Absent,
            };
            SlotFault { slot: name, problem }
        };
        StoreError::SlotDamaged { first: fault(0), second: fault(1) }
    }

    /// Applies the rule of [`SlotRecord`] to the contents of `active.a` and `active.b`.
    pub(crate) fn pick(files: [Option<&[u8]>; 2]) -> Result<Slots, StoreError> {
        let exists = files.map(|file| file.is_some());
        let [a, b] = files.map(|file| file.map_or(Err(SlotProblem::Absent), SlotRecord::decode));
        let fault =
            |slot: usize, problem: SlotProblem| SlotFault { slot: layout::SLOTS[slot], problem };
        let other = |next: usize| [&a, &b][next].as_ref().ok().copied();
        let slots = |current: SlotRecord, next: usize, fault: Option<SlotFault>| {
            Ok(Slots { current, other: other(next), next, exists, fault })
        };
        match (a.clone(), b.clone()) {
            (Ok(a), Ok(b)) if a.sequence == b.sequence && a != b => Err(StoreError::SlotDamaged {
                first: fault(0, SlotProblem::SameSequence(a.sequence)),
                second: fault(1, SlotProblem::SameSequence(b.sequence)),
            }),
            (Ok(a), Ok(b)) if a.sequence >= b.sequence => slots(a, 1, None),
            (Ok(_), Ok(b)) => slots(b, 0, None),
            (Ok(a), Err(SlotProblem::Absent)) if a.sequence == 0 => slots(a, 1, None),
            (Err(SlotProblem::Absent), Ok(b)) if b.sequence == 0 => slots(b, 0, None),
            (Ok(a), Err(problem)) => slots(a, 1, Some(fault(1, problem))),
            (Err(problem), Ok(b)) => slots(b, 0, Some(fault(0, problem))),
            (Err(SlotProblem::Absent), Err(SlotProblem::Absent)) => {
                slots(SlotRecord::NOTHING, 0, None)
            }
            (Err(first), Err(second)) => {
                Err(StoreError::SlotDamaged { first: fault(0, first), second: fault(1, second) })
            }
        }
    }
}
