//! Objects requested from a fetch, and events of a fetch.

use crate::client::{Failure, ServerId};
use anabranch_pieces::Attributes;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// An object of a fetch. Objects are numbered in the order of the request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId(pub u32);

/// A requested object, with what is known about it before a server is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedObject {
    /// Length in bytes, if known.
    pub bytes: Option<u64>,
    /// BLAKE3 hash, if known.
    pub hash: Option<[u8; 32]>,
    /// Mode and time of last change, if known.
    pub attributes: Option<Attributes>,
    /// Whether a file exists at the object's destination that may be the object itself. The
    /// object's description is then requested first.
    pub may_be_there: bool,
    /// Parts of the object, in order. With several parts, each part's length and the object's
    /// length and hash must be known.
    pub parts: Vec<ObjectPart>,
}

/// A part of an object, as the part's holders store it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPart {
    /// Name of the part at its holders.
    pub name: String,
    /// Length in bytes; optional for a single part.
    pub bytes: Option<u64>,
    /// BLAKE3 hash, if known.
    pub hash: Option<[u8; 32]>,
    /// Holders of the whole part. The first holder is preferred for the description.
    pub holders: Vec<ServerId>,
}

/// A server's version of an object, if it differs from the fetched version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Version {
    /// The server's object has another length, in bytes.
    Length(u64),
    /// The server's object has another hash.
    Hash {
        /// Name of the object at the server.
        name: String,
        /// Length in bytes.
        bytes: u64,
        /// BLAKE3 hash.
        hash: [u8; 32],
    },
    /// The server refused to report a hash; its reason in one line.
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
    /// No holder delivered or described the object. Holds each holder with its reason.
    NotBrought(Vec<Failure>),
    /// The hash did not match at any try. Maps each server known to have another version to its
    /// version.
    Wrong(BTreeMap<ServerId, Version>),
    /// In a strict fetch, holders have different versions. Maps each server whose version is known
    /// to differ from the described version to its version.
    Differ(BTreeMap<ServerId, Version>),
    /// The object cannot be written; the reason in one line.
    NotWritten(String),
}

/// Events of a fetch for its driver, and orders to the driver.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FetchEvent<S> {
    /// Open the destination of an object, and answer with [`super::Fetch::handle_opened`] or
    /// [`super::Fetch::handle_unwritable`]. The order is repeated after a hash mismatch, because
    /// the wrong parts must then be fetched again.
    Open {
        /// The object.
        object: ObjectId,
        /// Length in bytes.
        bytes: u64,
    },
    /// Write received bytes. [`super::Fetch::handle_unwritable`] reports a failure.
    Write {
        /// The object.
        object: ObjectId,
        /// Byte range in the object.
        range: Range<u64>,
        /// The blocks; the last block may be padded.
        blocks: Vec<S>,
    },
    /// Check a complete object and give its file the final name. Answer with
    /// [`super::Fetch::handle_finished`], [`super::Fetch::handle_mismatch`] or
    /// [`super::Fetch::handle_unwritable`].
    Finish {
        /// The object.
        object: ObjectId,
        /// Expected BLAKE3 hash.
        hash: [u8; 32],
        /// Mode and time of last change, if known.
        attributes: Option<Attributes>,
    },
    /// A server has another version of an object, which is not used.
    OtherVersion {
        /// The object.
        object: ObjectId,
        /// The server.
        server: ServerId,
        /// The server's version.
        version: Version,
    },
    /// A server delivers no further part of an object; the other holders continue.
    Left {
        /// The object.
        object: ObjectId,
        /// The server, and the reason in one line.
        failure: Failure,
    },
    /// All bytes of an object have arrived, but its server is still computing the hash.
    StillHashing {
        /// The object.
        object: ObjectId,
        /// The server.
        server: ServerId,
    },
    /// An object does not match its hash. Its servers are asked for their versions.
    Comparing {
        /// The object.
        object: ObjectId,
    },
    /// An object is complete and has the right hash.
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
