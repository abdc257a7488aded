//! Errors at the start and end of an agent.

use anabranch_http::ClientError;
use anabranch_net::local::ListenError;
use anabranch_pace::{LinkError, NoMechanism, PaceError, StartError};
use anabranch_shuffle_proto::coordinator::{ADDRESSES_MAX, ReportError};
use std::io;
use std::path::PathBuf;

/// Reason why an agent does not start, or ends: one line that names the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The host's name is invalid.
    #[error(transparent)]
    Name(ReportError),
    /// The settings or keys for the coordinator are unusable.
    #[error(transparent)]
    Coordinator(ClientError),
    /// The speed of the host's link is unknown.
    #[error("{0}: give --link RATE")]
    Link(LinkError),
    /// The given speed of the link is zero.
    #[error("--link 0 bit/s: must be above 0")]
    ZeroLink,
    /// More addresses than a host may have.
    #[error("--address: {0} addresses: a host has at most {ADDRESSES_MAX}")]
    TooManyAddresses(usize),
    /// No mechanism for enforcing rates works on this host.
    #[error(transparent)]
    Pacer(NoMechanism),
    /// The state file is unusable.
    #[error("--state {}: {error}", path.display())]
    State {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// Another agent of this host has locked the state file.
    #[error("--state {}: another agent of this host runs: {error}", path.display())]
    Held {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// A limit of an earlier agent cannot be lifted.
    #[error(transparent)]
    Left(PaceError),
    /// A queue that an earlier agent left on a device cannot be removed.
    #[error(transparent)]
    Queue(StartError),
    /// The socket for announcements cannot be opened.
    #[error("--listen {0}")]
    Listen(#[from] ListenError),
    /// The coordinator refuses this agent for good, with its reason.
    #[error("{0}")]
    GivenUp(String),
    /// Any other error of the system.
    #[error(transparent)]
    System(#[from] io::Error),
}
