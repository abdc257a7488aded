//! The objects that a fetch is given, and its events.

use crate::client::{Failure, ServerId};
use anabranch_pieces::Attributes;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Names an object of a fetch, by the order in which they were given.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId(pub u32);

/// An object that is wanted, with all that is known of it before a server is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its length in bytes, where that is known.
    pub bytes: Option<u64>,
    /// Its BLAKE3 hash, where that is known.
    pub hash: Option<[u8; 32]>,
    /// Its mode and time, where they are known.
    pub attributes: Option<Attributes>,
    /// Its place holds something already, which may be the object itself: what it is is asked before any of it.
    pub may_be_there: bool,
    /// What it is made of, in order. Of several parts every length must be known, and the whole's length and hash, too.
    pub parts: Vec<Part>,
}

/// Some of an object's bytes, as its holders have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The name at its holders.
    pub name: String,
    /// Its length in bytes; of a single part it may be unknown.
    pub bytes: Option<u64>,
    /// Its BLAKE3 hash, where that is known.
    pub hash: Option<[u8; 32]>,
    /// Who holds all of it. The first is asked first what it is.
    pub holders: Vec<ServerId>,
}

/// What a server has of an object instead of what is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Version {
    /// Something of another length, in bytes.
    Length(u64),
    /// Something with another hash.
    Hash {
        /// Its name there.
        name: String,
        /// Its length in bytes.
        bytes: u64,
        /// Its BLAKE3 hash.
        hash: [u8; 32],
    },
    /// Nothing that it would say a hash of: why, in its words.
    Refused(String),
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "{bytes} bytes"),
            Self::Hash { name, bytes, hash } => {
                write!(f, "{name} of {bytes} bytes, BLAKE3 ")?;
                hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Refused(reason) => f.write_str(reason),
        }
    }
}

/// Why an object could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchFailure {
    /// No holder brought it, or said what it is: why not, each.
    NotBrought(Vec<Failure>),
    /// What came is not what its hash says, also at the second try; and who is known to have another version.
    Wrong(BTreeMap<ServerId, Version>),
    /// It cannot be written: why, in one line.
    NotWritten(String),
}

/// What the driver of a fetch is told, or is to do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FetchEvent<S> {
    /// The place of an object of so many bytes is to be opened: [`super::Fetch::handle_opened`] or [`super::Fetch::handle_unwritable`] is
    /// the answer. A second time, once it was not what its hash says: what was wrong is lacking again.
    Open {
        /// Which object.
        object: ObjectId,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Bytes of an object have come, and are to be written; [`super::Fetch::handle_unwritable`] says that they cannot be.
    Write {
        /// Which object.
        object: ObjectId,
        /// Which bytes of it.
        range: Range<u64>,
        /// The blocks; the last one may be padded.
        blocks: Vec<S>,
    },
    /// All of an object has come, and is to be checked and named: [`super::Fetch::handle_finished`], [`super::Fetch::handle_mismatch`] or
    /// [`super::Fetch::handle_unwritable`] is the answer.
    Finish {
        /// Which object.
        object: ObjectId,
        /// What its BLAKE3 hash must be.
        hash: [u8; 32],
        /// Its mode and time, if somebody has said them.
        attributes: Option<Attributes>,
    },
    /// A server has another version of an object, which is not taken.
    OtherVersion {
        /// Which object.
        object: ObjectId,
        /// Who has it.
        server: ServerId,
        /// What it has.
        version: Version,
    },
    /// A server leaves the rest of an object's bytes to others.
    Left {
        /// Which object.
        object: ObjectId,
        /// Which server, and why.
        failure: Failure,
    },
    /// All of an object has come, and the server that is asked for its hash still reads it.
    StillHashing {
        /// Which object.
        object: ObjectId,
        /// Who reads it.
        server: ServerId,
    },
    /// An object is not what its hash says: its servers are asked which of them has another version.
    Comparing {
        /// Which object.
        object: ObjectId,
    },
    /// An object is there, with the right hash.
    Verified {
        /// Which object.
        object: ObjectId,
    },
    /// An object will not come. What has come of it may be kept.
    Failed {
        /// Which object.
        object: ObjectId,
        /// Why.
        failure: FetchFailure,
    },
}
