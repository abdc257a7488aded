//! Why an agent does not start, or ends.

use anabranch_http::ClientError;
use anabranch_net::local::ListenError;
use anabranch_pace::{LinkError, NoMechanism, PaceError, StartError};
use anabranch_shuffle_proto::coordinator::{ADDRESSES_MAX, ReportError};
use std::io;
use std::path::PathBuf;

/// Why an agent does not start, or ends. Each is one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A host cannot be called so.
    #[error(transparent)]
    Name(ReportError),
    /// The coordinator cannot be asked with these settings.
    #[error(transparent)]
    Coordinator(ClientError),
    /// The host's link does not say how fast it is.
    #[error("{0}: give --link RATE")]
    Link(LinkError),
    /// More addresses than a host may have.
    #[error("--address: {0} addresses: a host has at most {ADDRESSES_MAX}")]
    TooManyAddresses(usize),
    /// No mechanism to hold flows to rates works here.
    #[error(transparent)]
    Pacer(NoMechanism),
    /// The state file cannot be used.
    #[error("--state {}: {error}", path.display())]
    State {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Another agent of this host holds the state file.
    #[error("--state {}: another agent of this host runs: {error}", path.display())]
    Held {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A limit that was left cannot be lifted.
    #[error(transparent)]
    Left(PaceError),
    /// A queue that was left on a device cannot be cleared.
    #[error(transparent)]
    Queue(StartError),
    /// Programs cannot announce their flows.
    #[error("--listen {0}")]
    Listen(#[from] ListenError),
    /// The coordinator says that this agent may never join: its own line.
    #[error("{0}")]
    GivenUp(String),
    /// What the system said.
    #[error(transparent)]
    System(#[from] io::Error),
}
