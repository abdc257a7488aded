//! Events of a server.

use std::net::SocketAddr;

/// What happens at a server. Names are fit to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServeEvent {
    /// A client was let in.
    Came {
        /// Its name, as its certificate says.
        client: String,
        /// Where it comes from.
        from: SocketAddr,
    },
    /// A client's connection is over.
    Went {
        /// Its name, as its certificate says.
        client: String,
        /// Where it came from.
        from: SocketAddr,
        /// Bytes of datagrams that were sent to it.
        sent_bytes: u64,
        /// How long it was there, in seconds.
        stayed_s: u64,
        /// Why, in one line.
        reason: String,
    },
    /// A pull has begun.
    PullBegun {
        /// The client's name.
        client: String,
        /// The pull's number among those of its connection.
        pull: u16,
        /// The object's name.
        object: String,
        /// The object's length.
        length_bytes: u64,
    },
    /// A pull is over: its client has all that it wants of it.
    PullEnded {
        /// The client's name.
        client: String,
        /// The pull's number among those of its connection.
        pull: u16,
        /// The object's name.
        object: String,
        /// Packets that were sent.
        packets: u32,
    },
    /// A pull could not go on.
    PullFailed {
        /// The client's name.
        client: String,
        /// The pull's number among those of its connection.
        pull: u16,
        /// The object's name.
        object: String,
        /// Why, in one line.
        reason: String,
    },
}

impl ServeEvent {
    /// Writes its line in the log.
    pub(super) fn log(&self) {
        match self {
            Self::Came { client, from } => tracing::info!(client, %from, "client came"),
            Self::Went { client, from, sent_bytes, stayed_s, reason } => {
                tracing::info!(client, %from, sent_bytes, stayed_s, "client went: {reason}");
            }
            Self::PullBegun { client, pull, object, length_bytes } => {
                tracing::info!(client, pull, %object, length_bytes, "pull begun");
            }
            Self::PullEnded { client, pull, object, packets } => {
                tracing::info!(client, pull, object, packets, "pull ended");
            }
            Self::PullFailed { client, pull, object, reason } => {
                tracing::warn!(client, pull, object, "pull failed: {reason}");
            }
        }
    }
}
