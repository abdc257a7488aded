//! The typed client of `shuffle`'s coordinator: for agents, and for the command line.
//!
//! An agent's request is tried once and in the time that the agent gives, as it has to know at once when the coordinator is away.
//! Leaves out: enforcing limits. Read [`Client`] first.

use crate::wire::{
    CoflowsView, EndedView, HistoryView, HostView, HostsView, JoinRequest, LeaveRequest, LimitsReply,
    ReportsRequest,
};
use anabranch_http::{ClientError, Connection};
use anabranch_net::identity::Identity;
use anabranch_net::keys::escaped;
use anabranch_shuffle_proto::control::Limit;
use hyper::Method;
use hyper::body::Bytes;
use serde::Serialize;
use std::time::Duration;

/// A connection to the coordinator; clones share it.
#[derive(Clone)]
pub struct Client {
    connection: Connection,
}

impl Client {
    /// A client of the coordinator at `address` (`host:port`, `https://` before it is allowed). Connects at the first
    /// request; `patience` is how long an operator's request is tried.
    ///
    /// Errors: keys of another system, an address without port, `http://`.
    pub fn new(address: &str, identity: &Identity, patience: Duration) -> Result<Self, ClientError> {
        Ok(Self { connection: Connection::new(crate::SYSTEM, address, identity, patience)? })
    }

    /// Another client of the same coordinator, which tries a repeatable request for so long.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self { connection: self.connection.with_patience(patience) }
    }

    /// Where the coordinator is: `host:port`.
    pub fn address(&self) -> &str {
        self.connection.address()
    }

    /// An agent joins.
    ///
    /// Errors: see [`ClientError`].
    pub async fn join(&self, host: &str, request: &JoinRequest, within: Duration) -> Result<(), ClientError> {
        self.tell(host, "join", request, within).await
    }

    /// An agent reports.
    ///
    /// Errors: see [`ClientError`]; status 409 if it must join again.
    pub async fn report(
        &self,
        host: &str,
        request: &ReportsRequest,
        within: Duration,
    ) -> Result<(), ClientError> {
        self.tell(host, "reports", request, within).await
    }

    /// An agent goes.
    ///
    /// Errors: see [`ClientError`].
    pub async fn leave(&self, host: &str, session: u64, within: Duration) -> Result<(), ClientError> {
        self.tell(host, "leave", &LeaveRequest { session }, within).await
    }

    async fn tell(
        &self,
        host: &str,
        what: &str,
        request: &impl Serialize,
        within: Duration,
    ) -> Result<(), ClientError> {
        let path = format!("/v1/hosts/{}/{what}", escaped(host));
        let body = self.connection.write(request)?;
        self.connection.once(Method::POST, &path, body, within).await.map(drop)
    }

    /// The limits that an agent has not been told, as soon as there are any; none after `wait`. They are said once: after
    /// an error, some may be lost, and the agent joins again.
    ///
    /// Errors: see [`ClientError`]; status 409 if it must join again.
    pub async fn limits(
        &self,
        host: &str,
        session: u64,
        wait: Duration,
        within: Duration,
    ) -> Result<Vec<Limit>, ClientError> {
        let path =
            format!("/v1/hosts/{}/limits?session={session}&wait_ms={}", escaped(host), wait.as_millis());
        let reply = self.connection.once(Method::GET, &path, Bytes::new(), wait + within).await?;
        self.connection.read::<LimitsReply>(&reply).map(|reply| reply.limits)
    }

    /// The coflows that are under way.
    ///
    /// Errors: see [`ClientError`].
    pub async fn coflows(&self) -> Result<CoflowsView, ClientError> {
        self.connection.get("/v1/coflows").await
    }

    /// The last `count` coflows that have ended, the last of all first.
    ///
    /// Errors: see [`ClientError`].
    pub async fn history(&self, count: u64) -> Result<Vec<EndedView>, ClientError> {
        let path = format!("/v1/history?count={count}");
        self.connection.get::<HistoryView>(&path).await.map(|view| view.coflows)
    }

    /// The hosts, by name.
    ///
    /// Errors: see [`ClientError`].
    pub async fn hosts(&self) -> Result<Vec<HostView>, ClientError> {
        self.connection.get::<HostsView>("/v1/hosts").await.map(|view| view.hosts)
    }

    /// Any address that answers with text: `/metrics`, `/openapi.json`, `/healthz`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        self.connection.text(path).await
    }
}
