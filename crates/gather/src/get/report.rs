//! Progress events of a fetch, and the final report of each object.

use anabranch_units::Duration;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Events of a fetch, for its user.
#[derive(Clone, Debug, PartialEq)]
pub enum GetEvent<'a> {
    /// Progress of the whole fetch, at the requested interval.
    Progress {
        /// Number of bytes that are present, including bytes of earlier runs.
        done_bytes: u64,
        /// Number of bytes of all objects; `None` until every length is known.
        total_bytes: Option<u64>,
        /// Statistics of each server.
        servers: &'a [ServerReport],
    },
    /// A message for the user.
    Note(Note),
}

/// A message about an object or a server, for the user. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A server is unreachable or was lost, and at least one server is left.
    ServerLost {
        /// Address of the server: `[NAME@]HOST:PORT`.
        server: String,
        /// The cause.
        reason: String,
    },
    /// A server has another version of an object, which is not used.
    OtherVersion {
        /// The object's name.
        object: String,
        /// Address of the server: `[NAME@]HOST:PORT`.
        server: String,
        /// Description of that server's version.
        version: String,
        /// The server whose version is used, and the hash of that version, if known.
        taken: Option<(String, [u8; 32])>,
    },
    /// All bytes of an object have arrived, but its server is still computing the hash.
    StillHashing {
        /// The object's name.
        object: String,
        /// Address of the server: `[NAME@]HOST:PORT`.
        server: String,
    },
    /// An object does not match its hash. Its servers are asked for their versions.
    Comparing {
        /// The object's name.
        object: String,
    },
    /// An object has the right hash, and its file has its final name.
    Verified {
        /// The object's name.
        object: String,
    },
    /// An object failed.
    Failed {
        /// The object's name.
        object: String,
        /// The cause.
        failure: ObjectFailure,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerLost { server, reason } => write!(f, "{server}: {reason}; the others go on"),
            Self::OtherVersion { object, server, version, taken } => {
                write!(f, "{object}: {server} has another version, which is not taken: {version}")?;
                match taken {
                    Some((by, hash)) => write!(f, "; that of {by} is taken: BLAKE3 {}", hex(*hash)),
                    None => Ok(()),
                }
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

/// The reason why an object failed. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectFailure {
    /// No holder delivered or described the object. Holds each holder with its reason.
    #[error("{}", each(.0))]
    NotBrought(Vec<(String, String)>),
    /// The bytes do not match the hash. Maps each server known to have another version to a
    /// description of that version.
    #[error("its bytes do not match its hash{}", versions(.0))]
    Wrong(BTreeMap<String, String>),
    /// In a strict fetch, servers have different versions. Maps each server whose version is known
    /// to differ from the described version to a description of its version.
    #[error("its servers have different versions, and --strict takes none{}", versions(.0))]
    Differ(BTreeMap<String, String>),
    /// No server has the requested snapshot of a directory. Maps each server that has the directory
    /// to a description of its version.
    #[error("no server has this snapshot{}", versions(.0))]
    OtherSnapshot(BTreeMap<String, String>),
    /// The object cannot be written; the reason in one line.
    #[error("{0}")]
    NotWritten(String),
}

fn hex(hash: [u8; 32]) -> String {
    blake3::Hash::from(hash).to_hex().to_string()
}

impl ObjectFailure {
    /// Whether the object's bytes arrived and were rejected, so that a further try does not help.
    pub const fn is_refused(&self) -> bool {
        matches!(self, Self::Wrong(_) | Self::Differ(_) | Self::OtherSnapshot(_))
    }
}

fn each(failures: &[(String, String)]) -> String {
    failures.iter().map(|(server, why)| format!("{server}: {why}")).collect::<Vec<_>>().join("; ")
}

fn versions(others: &BTreeMap<String, String>) -> String {
    others.iter().map(|(server, what)| format!("; {server} has another version: {what}")).collect()
}

/// Outcome of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The object has the right hash, and its file has its final name.
    Verified,
    /// The object failed.
    Failed(ObjectFailure),
    /// The fetch was interrupted. Received bytes are kept.
    Interrupted,
}

/// Final report of an object.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ObjectReport {
    /// The object's name.
    pub name: String,
    /// Destination path.
    pub path: PathBuf,
    /// Length in bytes, if known.
    pub bytes: Option<u64>,
    /// BLAKE3 hash, if known.
    pub hash: Option<[u8; 32]>,
    /// Bytes fetched in this run.
    pub fetched_bytes: u64,
    /// Bytes kept from earlier runs.
    pub kept_bytes: u64,
    /// Outcome.
    pub verdict: Verdict,
    /// Servers with another version, each with a description of its version.
    pub other_versions: BTreeMap<String, String>,
    /// Time from the start of the fetch until the object was verified or failed.
    pub ended_after: Option<Duration>,
}

impl ObjectReport {
    /// Whether a failed object left bytes from which the next try can resume.
    pub const fn can_go_on(&self) -> bool {
        let is_refused = match &self.verdict {
            Verdict::Failed(failure) => failure.is_refused(),
            _ => true,
        };
        !is_refused && self.fetched_bytes + self.kept_bytes > 0
    }
}

/// Statistics of one server.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ServerReport {
    /// Address of the server: `[NAME@]HOST:PORT`.
    pub server: String,
    /// Name in the server's certificate; `None` if the server was never reached.
    pub name: Option<String>,
    /// Number of bytes received from the server in datagrams and in short whole objects.
    pub received_bytes: u64,
    /// Number of pulls under way.
    pub pulls: usize,
    /// Loss event rate of the worst of the server's pulls, from 0 to 1.
    pub loss_event_share: f64,
    /// The reason why the server is out of use; `None` while it is in use.
    pub lost: Option<String>,
}

/// Counts of datagrams.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// Number of packets of pulls.
    pub received_packets: u64,
    /// Number of packets without new information.
    pub useless_packets: u64,
    /// Number of authentic datagrams that do not parse as packets.
    pub malformed_packets: u64,
    /// Number of packets of pulls that had ended.
    pub stray_packets: u64,
    /// Number of datagrams that failed authentication.
    pub forged_packets: u64,
    /// Number of datagrams received twice, or too old for the replay window.
    pub replayed_packets: u64,
    /// Number of datagrams of an unknown channel.
    pub unknown_datagrams: u64,
    /// Number of datagrams dropped by the kernel's socket buffer; `None` if the kernel does not
    /// report it.
    pub dropped_by_the_kernel: Option<u64>,
    /// Number of changes of datagram keys, which are replaced before they are used up.
    pub key_changes: u64,
}

/// Final report of a fetch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Reports of the objects, in the order of the targets.
    pub objects: Vec<ObjectReport>,
    /// Whether the fetch was interrupted.
    pub is_interrupted: bool,
    /// Duration of the fetch.
    pub elapsed: Duration,
    /// Time from the start until the last server was connected; `None` if no server was.
    pub connected_after: Option<Duration>,
    /// Time from the start until the first packet; `None` without packets.
    pub first_packet_after: Option<Duration>,
    /// Time from the start until the last packet; `None` without packets.
    pub last_packet_after: Option<Duration>,
    /// Counts of datagrams.
    pub counters: Counters,
    /// Statistics of each server.
    pub servers: Vec<ServerReport>,
}

impl Report {
    /// Number of objects that are complete and have the right hash.
    pub fn verified(&self) -> usize {
        self.objects.iter().filter(|object| object.verdict == Verdict::Verified).count()
    }
    /// Whether every object is complete and has the right hash.
    pub fn is_verified(&self) -> bool {
        self.verified() == self.objects.len()
    }
    /// Number of bytes fetched, over all objects.
    pub fn fetched_bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.fetched_bytes).sum()
    }
}
