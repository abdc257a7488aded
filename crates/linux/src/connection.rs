//! A connection, told from others with the same addresses by its socket's cookie.
//!
//! Read [`Connection`]. Leaves out: the flow's name, which is `units`'.

use anabranch_units::FlowKey;

/// One connection of a flow. Earlier and later connections may have the same addresses and ports.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its addresses and ports.
    pub flow: FlowKey,
    /// The number of its socket, which no other socket of this boot has ([`crate::sock_diag::FlowState::cookie`]). `None` is the connection that has
    /// these addresses, now or later.
    pub cookie: Option<u64>,
}

impl Connection {
    /// Whether it may be the one whose socket has this cookie.
    pub fn may_be(self, cookie: Option<u64>) -> bool {
        self.cookie.zip(cookie).is_none_or(|(own, other)| own == other)
    }
}

impl From<FlowKey> for Connection {
    fn from(flow: FlowKey) -> Self {
        Self { flow, cookie: None }
    }
}
