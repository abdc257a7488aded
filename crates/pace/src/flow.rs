//! A connection, told from others with the same addresses by its socket's cookie.
//!
//! Read [`Connection`]. Leaves out: limits (`limit.rs`), and the flow's name, which is `units`'.

use anabranch_units::FlowKey;

use crate::Limit;

/// A flow's connection. Others may have the same addresses and ports before it and after it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its addresses and ports.
    pub flow: FlowKey,
    /// The number of its socket, which no other socket of this boot has ([`crate::FlowState::cookie`]). `None` is the connection that has
    /// these addresses, now or later.
    pub cookie: Option<u64>,
}

impl Connection {
    /// Whether it may be the one whose socket has this cookie.
    pub(crate) fn may_be(self, cookie: Option<u64>) -> bool {
        self.cookie.zip(cookie).is_none_or(|(own, other)| own == other)
    }
}

impl From<FlowKey> for Connection {
    fn from(flow: FlowKey) -> Self {
        Self { flow, cookie: None }
    }
}

/// These changes with each flow's canonical name, by which limits are kept.
pub(crate) fn canonical<C: Into<Connection> + Copy>(changes: &[(C, Limit)]) -> Vec<(Connection, Limit)> {
    let change = |(connection, limit): &(C, Limit)| {
        let Connection { flow, cookie } = (*connection).into();
        (Connection { flow: flow.canonical(), cookie }, *limit)
    };
    changes.iter().map(change).collect()
}
