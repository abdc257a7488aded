//! Progress while objects come, and the report of each at the end.

use anabranch_units::Duration;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// What happens while objects come.
#[derive(Clone, Debug, PartialEq)]
pub enum GetEvent<'a> {
    /// How far all is: said as often as it was asked for.
    Progress {
        /// Bytes that are there, those that had come before included.
        done_bytes: u64,
        /// Bytes of all objects, once every length is known.
        total_bytes: Option<u64>,
        /// What each server has brought.
        servers: &'a [ServerReport],
    },
    /// Something has happened that a user may want to know.
    Note(Note),
}

/// Something that has happened. Shown, it is a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A server cannot be reached, or not any more; others are there.
    ServerLost {
        /// `[NAME@]HOST:PORT`.
        server: String,
        /// Why.
        reason: String,
    },
    /// A server has another version of an object, which is not taken.
    OtherVersion {
        /// The object's name.
        object: String,
        /// `[NAME@]HOST:PORT`.
        server: String,
        /// What it has.
        version: String,
    },
    /// All of an object has come, and the server that is asked for its hash still reads it.
    StillHashing {
        /// The object's name.
        object: String,
        /// `[NAME@]HOST:PORT`.
        server: String,
    },
    /// An object is not what its hash says: its servers are asked which of them has another version.
    Comparing {
        /// The object's name.
        object: String,
    },
    /// An object has its name, with the right hash.
    Verified {
        /// The object's name.
        object: String,
    },
    /// An object will not come.
    Failed {
        /// The object's name.
        object: String,
        /// Why.
        failure: ObjectFailure,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerLost { server, reason } => write!(f, "{server}: {reason}; the others go on"),
            Self::OtherVersion { object, server, version } => {
                write!(f, "{object}: {server} has another version, which is not taken: {version}")
            }
            Self::StillHashing { object, server } => {
                write!(f, "{object}: all bytes have come; {server} is still reading the object for its hash")
            }
            Self::Comparing { object } => {
                write!(
                    f,
                    "{object}: does not match its hash: its servers are asked which has another version"
                )
            }
            Self::Verified { object } => write!(f, "{object}: verified"),
            Self::Failed { object, failure } => write!(f, "{object}: {failure}"),
        }
    }
}

/// Why an object did not come. Shown, it is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectFailure {
    /// No holder brought it, or said what it is: each, and why not.
    #[error("{}", each(.0))]
    NotBrought(Vec<(String, String)>),
    /// What came is not what its hash says; and who is known to have another version, and which.
    #[error("its bytes do not match its hash{}", versions(.0))]
    Wrong(BTreeMap<String, String>),
    /// It cannot be written: why.
    #[error("{0}")]
    NotWritten(String),
}

fn each(failures: &[(String, String)]) -> String {
    failures.iter().map(|(server, why)| format!("{server}: {why}")).collect::<Vec<_>>().join("; ")
}

fn versions(others: &BTreeMap<String, String>) -> String {
    others.iter().map(|(server, what)| format!("; {server} has another version: {what}")).collect()
}

/// What has become of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It has its name, and the right hash.
    Verified,
    /// It did not come.
    Failed(ObjectFailure),
    /// It was broken off. What has come is kept.
    Interrupted,
}

/// An object, as it ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ObjectReport {
    /// What it is called.
    pub name: String,
    /// Where it was to be written.
    pub path: PathBuf,
    /// Its length in bytes, if anybody has said it.
    pub bytes: Option<u64>,
    /// Its BLAKE3 hash, if anybody has said it.
    pub hash: Option<[u8; 32]>,
    /// Bytes that came.
    pub fetched_bytes: u64,
    /// Bytes that were there before.
    pub kept_bytes: u64,
    /// What has become of it.
    pub verdict: Verdict,
    /// Servers that have another version, and what each has.
    pub other_versions: BTreeMap<String, String>,
    /// When it was verified or failed, from the beginning on.
    pub ended_after: Option<Duration>,
}

impl ObjectReport {
    /// Whether it failed, and some of it is kept: the next try goes on from there.
    pub const fn can_go_on(&self) -> bool {
        let is_wrong = matches!(self.verdict, Verdict::Failed(ObjectFailure::Wrong(_)));
        matches!(self.verdict, Verdict::Failed(_)) && !is_wrong && self.fetched_bytes + self.kept_bytes > 0
    }
}

/// What one server has brought.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ServerReport {
    /// `[NAME@]HOST:PORT`.
    pub server: String,
    /// Its name, as its certificate says; none if it was never reached.
    pub name: Option<String>,
    /// Bytes of datagrams, and of short objects that came whole, from it.
    pub received_bytes: u64,
    /// Its pulls that are under way.
    pub pulls: usize,
    /// The share of packets that begin a loss event, in the worst of its pulls.
    pub loss_event_share: f64,
    /// Why it is out of use, if it is.
    pub lost: Option<String>,
}

/// What became of datagrams.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// Packets of pulls.
    pub received_packets: u64,
    /// Those that brought nothing new.
    pub useless_packets: u64,
    /// Authentic datagrams that are no packets.
    pub malformed_packets: u64,
    /// Packets of pulls that were over.
    pub stray_packets: u64,
    /// Datagrams that are not authentic.
    pub forged_packets: u64,
    /// Datagrams that had come before, or too long ago to say.
    pub replayed_packets: u64,
    /// Datagrams of no channel.
    pub unknown_datagrams: u64,
    /// What the kernel had no room for, where it says.
    pub dropped_by_the_kernel: Option<u64>,
    /// How often datagrams' keys were changed, as they wear out.
    pub key_changes: u64,
}

/// What became of everything.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The objects, in the order of the targets.
    pub objects: Vec<ObjectReport>,
    /// It was broken off before its end.
    pub is_interrupted: bool,
    /// How long it took.
    pub elapsed: Duration,
    /// Until the last server was connected.
    pub connected_after: Option<Duration>,
    /// Until the first packet came.
    pub first_packet_after: Option<Duration>,
    /// Until the last packet came.
    pub last_packet_after: Option<Duration>,
    /// What became of datagrams.
    pub counters: Counters,
    /// What each server has brought.
    pub servers: Vec<ServerReport>,
}

impl Report {
    /// Objects that are there, with the right hash.
    pub fn verified(&self) -> usize {
        self.objects.iter().filter(|object| object.verdict == Verdict::Verified).count()
    }
    /// Whether every object is there, with the right hash.
    pub fn is_verified(&self) -> bool {
        self.verified() == self.objects.len()
    }
    /// Bytes that came, of all objects.
    pub fn fetched_bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.fetched_bytes).sum()
    }
}
