//! Progress events of a fetch, and the final report of each object.

use anabranch_units::Duration;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Events of a fetch.
#[derive(Clone, Debug, PartialEq)]
pub enum GetEvent<'a> {
    /// Progress of the whole fetch, at the requested interval.
    Progress {
        /// Bytes that are present, earlier runs included.
        done_bytes: u64,
        /// Total bytes of all objects, once every length is known.
        total_bytes: Option<u64>,
        /// Bytes from each server.
        servers: &'a [ServerReport],
    },
    /// A message for the user.
    Note(Note),
}

/// A message for the user. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A server is unreachable or was lost; at least one server is left.
    ServerLost {
        /// `[NAME@]HOST:PORT`.
        server: String,
        /// The cause.
        reason: String,
    },
    /// A server has another version of an object; it is not used.
    OtherVersion {
        /// The object's name.
        object: String,
        /// `[NAME@]HOST:PORT`.
        server: String,
        /// Description of that server's version.
        version: String,
        /// The server whose version is taken, and its hash, if known.
        taken: Option<(String, [u8; 32])>,
    },
    /// All bytes of an object have arrived, and its server is still computing the hash.
    StillHashing {
        /// The object's name.
        object: String,
        /// `[NAME@]HOST:PORT`.
        server: String,
    },
    /// An object does not match its hash: its servers are asked for their versions.
    Comparing {
        /// The object's name.
        object: String,
    },
    /// An object has its name, and the right hash.
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

/// Why an object failed. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectFailure {
    /// No holder delivered or described the object: each holder with its reason.
    #[error("{}", each(.0))]
    NotBrought(Vec<(String, String)>),
    /// The bytes do not match the hash. Maps each server known to have another version to that
    /// version.
    #[error("its bytes do not match its hash{}", versions(.0))]
    Wrong(BTreeMap<String, String>),
    /// In a strict fetch, servers have different versions. Maps each server known to have another
    /// version than the described one to its version.
    #[error("its servers have different versions, and --strict takes none{}", versions(.0))]
    Differ(BTreeMap<String, String>),
    /// The object cannot be written, for this reason.
    #[error("{0}")]
    NotWritten(String),
}

fn hex(hash: [u8; 32]) -> String {
    blake3::Hash::from(hash).to_hex().to_string()
}

impl ObjectFailure {
    /// Whether the object's bytes arrived and were refused, so that a further try does not help.
    pub const fn is_refused(&self) -> bool {
        matches!(self, Self::Wrong(_) | Self::Differ(_))
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
    /// The object has its name, and the right hash.
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
    /// Servers with another version, each with a description of it.
    pub other_versions: BTreeMap<String, String>,
    /// Time from the start until the object was verified or failed.
    pub ended_after: Option<Duration>,
}

impl ObjectReport {
    /// Whether a failed object left bytes from which the next try resumes.
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
    /// `[NAME@]HOST:PORT`.
    pub server: String,
    /// Name in the server's certificate; `None` if it was never reached.
    pub name: Option<String>,
    /// Bytes received from the server in datagrams and in short whole objects.
    pub received_bytes: u64,
    /// Pulls under way.
    pub pulls: usize,
    /// Loss event rate of the worst of its pulls, from 0 to 1.
    pub loss_event_share: f64,
    /// Why the server is out of use; `None` while it is in use.
    pub lost: Option<String>,
}

/// Counts of datagrams.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// Packets of pulls.
    pub received_packets: u64,
    /// Packets without new information.
    pub useless_packets: u64,
    /// Authentic datagrams that do not parse as packets.
    pub malformed_packets: u64,
    /// Packets of pulls that had ended.
    pub stray_packets: u64,
    /// Datagrams that failed authentication.
    pub forged_packets: u64,
    /// Datagrams received twice, or too old for the replay window.
    pub replayed_packets: u64,
    /// Datagrams of an unknown channel.
    pub unknown_datagrams: u64,
    /// Datagrams dropped by the kernel's socket buffer; `None` if the kernel does not report it.
    pub dropped_by_the_kernel: Option<u64>,
    /// Number of changes of datagram keys, which wear out.
    pub key_changes: u64,
}

/// Final report of a fetch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Reports of the objects, in the order of the targets.
    pub objects: Vec<ObjectReport>,
    /// The fetch was interrupted.
    pub is_interrupted: bool,
    /// Duration of the fetch.
    pub elapsed: Duration,
    /// Time until the last server was connected.
    pub connected_after: Option<Duration>,
    /// Time until the first packet.
    pub first_packet_after: Option<Duration>,
    /// Time until the last packet.
    pub last_packet_after: Option<Duration>,
    /// Counts of datagrams.
    pub counters: Counters,
    /// Statistics of each server.
    pub servers: Vec<ServerReport>,
}

impl Report {
    /// Number of objects that are complete, with the right hash.
    pub fn verified(&self) -> usize {
        self.objects.iter().filter(|object| object.verdict == Verdict::Verified).count()
    }
    /// Whether every object is complete, with the right hash.
    pub fn is_verified(&self) -> bool {
        self.verified() == self.objects.len()
    }
    /// Bytes fetched, of all objects.
    pub fn fetched_bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.fetched_bytes).sum()
    }
}
