//! Objects requested from a fetch, and its events.

use crate::client::{Failure, ServerId};
use anabranch_pieces::Attributes;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// An object of a fetch, numbered in the order of the request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId(pub u32);

/// A requested object, with the facts known before a server is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedObject {
    /// Length in bytes, if known.
    pub bytes: Option<u64>,
    /// BLAKE3 hash, if known.
    pub hash: Option<[u8; 32]>,
    /// Mode and time, if known.
    pub attributes: Option<Attributes>,
    /// Whether a file exists at its place that may be the object itself: its description is then
    /// requested first.
    pub may_be_there: bool,
    /// Its parts in order. With several parts, every part's length and the object's length and hash
    /// must be known.
    pub parts: Vec<ObjectPart>,
}

/// A part of an object, as its holders have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPart {
    /// The name at its holders.
    pub name: String,
    /// Length in bytes; optional for a single part.
    pub bytes: Option<u64>,
    /// BLAKE3 hash, if known.
    pub hash: Option<[u8; 32]>,
    /// Holders of the whole part. The first is the first to be asked for a description.
    pub holders: Vec<ServerId>,
}

/// A server's version of an object, if it differs from the fetched one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Version {
    /// Another length, in bytes.
    Length(u64),
    /// Another hash.
    Hash {
        /// The name at the server.
        name: String,
        /// Length in bytes.
        bytes: u64,
        /// BLAKE3 hash.
        hash: [u8; 32],
    },
    /// The server refused to give a hash; its words.
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
    /// No holder delivered or described the object: each with its reason.
    NotBrought(Vec<Failure>),
    /// The hash mismatched at every try. Maps each server known to have another version to that
    /// version.
    Wrong(BTreeMap<ServerId, Version>),
    /// In a strict fetch, holders have different versions. Maps each server known to have another
    /// version than the described one to its version.
    Differ(BTreeMap<ServerId, Version>),
    /// The object cannot be written; the reason in one line.
    NotWritten(String),
}

/// Events for the driver of a fetch, and requests to it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FetchEvent<S> {
    /// Open the place of an object, and answer with [`super::Fetch::handle_opened`] or
    /// [`super::Fetch::handle_unwritable`]. Repeated after a hash mismatch, when the wrong parts
    /// are missing again.
    Open {
        /// The object.
        object: ObjectId,
        /// Length in bytes.
        bytes: u64,
    },
    /// Write received bytes; [`super::Fetch::handle_unwritable`] reports a failure.
    Write {
        /// The object.
        object: ObjectId,
        /// Byte range in the object.
        range: Range<u64>,
        /// The blocks; the last one may be padded.
        blocks: Vec<S>,
    },
    /// Check and name a complete object, and answer with [`super::Fetch::handle_finished`],
    /// [`super::Fetch::handle_mismatch`] or [`super::Fetch::handle_unwritable`].
    Finish {
        /// The object.
        object: ObjectId,
        /// Expected BLAKE3 hash.
        hash: [u8; 32],
        /// Mode and time, if known.
        attributes: Option<Attributes>,
    },
    /// A server has another version of an object; it is not used.
    OtherVersion {
        /// The object.
        object: ObjectId,
        /// The server.
        server: ServerId,
        /// The server's version.
        version: Version,
    },
    /// A server delivers no more of an object; the other holders continue.
    Left {
        /// The object.
        object: ObjectId,
        /// The server, and the reason.
        failure: Failure,
    },
    /// All bytes of an object have arrived, and its server is still computing the hash.
    StillHashing {
        /// The object.
        object: ObjectId,
        /// The server.
        server: ServerId,
    },
    /// An object does not match its hash: its servers are asked for their versions.
    Comparing {
        /// The object.
        object: ObjectId,
    },
    /// An object is complete, with the right hash.
    Verified {
        /// The object.
        object: ObjectId,
    },
    /// An object failed. Its received bytes may be kept.
    Failed {
        /// The object.
        object: ObjectId,
        /// The cause.
        failure: FetchFailure,
    },
}
