//! Events of a server.

use std::net::SocketAddr;

/// Events at a server. Names are printable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServeEvent {
    /// A client was admitted.
    Came {
        /// The client's name in its certificate.
        client: String,
        /// The client's address.
        from: SocketAddr,
    },
    /// A client's connection ended.
    Went {
        /// The client's name in its certificate.
        client: String,
        /// The client's address.
        from: SocketAddr,
        /// Bytes of datagrams sent to the client.
        sent_bytes: u64,
        /// Duration of the connection, in seconds.
        stayed_s: u64,
        /// Reason for the end, in one line.
        reason: String,
    },
    /// A pull has started.
    PullBegun {
        /// The client's name.
        client: String,
        /// Number of the pull within its connection.
        pull: u16,
        /// The object's name.
        object: String,
        /// Length of the object in bytes.
        length_bytes: u64,
    },
    /// A pull is complete: the client has every requested byte.
    PullEnded {
        /// The client's name.
        client: String,
        /// Number of the pull within its connection.
        pull: u16,
        /// The object's name.
        object: String,
        /// Number of packets sent.
        packets: u32,
    },
    /// A pull failed.
    PullFailed {
        /// The client's name.
        client: String,
        /// Number of the pull within its connection.
        pull: u16,
        /// The object's name.
        object: String,
        /// Reason, in one line.
        reason: String,
    },
}

impl ServeEvent {
    /// Writes the event to the log.
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
