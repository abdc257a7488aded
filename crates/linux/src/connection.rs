//! A connection, distinguished from other connections with the same addresses by its socket's
//! cookie.
//!
//! Read [`Connection`]. Leaves out: the addresses and ports, which `units` defines ([`FlowKey`]).

use anabranch_units::FlowKey;

/// One connection of a flow. Earlier and later connections may have the same addresses and ports.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Addresses and ports of the connection.
    pub flow: FlowKey,
    /// Cookie of the socket, unique since boot ([`crate::sock_diag::FlowState::cookie`]). `None`
    /// means whichever connection has these addresses, now or later.
    pub cookie: Option<u64>,
}

impl Connection {
    /// Returns true if the connection may have the socket with this cookie.
    pub fn may_be(self, cookie: Option<u64>) -> bool {
        self.cookie.zip(cookie).is_none_or(|(own, other)| own == other)
    }
}

impl From<FlowKey> for Connection {
    fn from(flow: FlowKey) -> Self {
        Self { flow, cookie: None }
    }
}
