//! The typed client of `shuffle`'s coordinator: for agents, and for the command line.
//!
//! An agent's request is tried once, within the agent's time limit, because the agent must learn at
//! once that the coordinator is unreachable. Leaves out: enforcing limits. Read [`Client`] first.

use crate::wire::{
    CoflowsView, EndedCoflowView, HistoryView, HostView, HostsView, JoinRequest, LeaveRequest, LimitsReply,
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
    /// Creates a client of the coordinator at `address` (`host:port`, with an optional `https://`).
    /// The client connects at the first request. `patience` is the time during which an operator's
    /// request is retried.
    ///
    /// Errors: keys of another system, an address without a port, `http://`.
    pub fn new(address: &str, identity: &Identity, patience: Duration) -> Result<Self, ClientError> {
        Ok(Self { connection: Connection::new(crate::SYSTEM, address, identity, patience)? })
    }

    /// Returns a client of the same coordinator with another retry time.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self { connection: self.connection.with_patience(patience) }
    }

    /// Address of the coordinator, as `host:port`.
    pub fn address(&self) -> &str {
        self.connection.address()
    }

    /// Registers an agent.
    ///
    /// Errors: see [`ClientError`].
    pub async fn join(&self, host: &str, request: &JoinRequest, within: Duration) -> Result<(), ClientError> {
        self.tell(host, "join", request, within).await
    }

    /// Sends an agent's report.
    ///
    /// Errors: see [`ClientError`]; status 409 if the agent must join again.
    pub async fn report(
        &self,
        host: &str,
        request: &ReportsRequest,
        within: Duration,
    ) -> Result<(), ClientError> {
        self.tell(host, "reports", request, within).await
    }

    /// Deregisters an agent.
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

    /// Returns the limits that the agent has not received yet, as soon as there are any, or no
    /// limits after `wait`. Each limit is sent once: after an error some limits may be lost, and
    /// the agent joins again.
    ///
    /// Errors: see [`ClientError`]; status 409 if the agent must join again.
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

    /// Lists the active coflows.
    ///
    /// Errors: see [`ClientError`].
    pub async fn coflows(&self) -> Result<CoflowsView, ClientError> {
        self.connection.get("/v1/coflows").await
    }

    /// Lists the last `count` coflows that have ended, newest first.
    ///
    /// Errors: see [`ClientError`].
    pub async fn history(&self, count: u64) -> Result<Vec<EndedCoflowView>, ClientError> {
        let path = format!("/v1/history?count={count}");
        self.connection.get::<HistoryView>(&path).await.map(|view| view.coflows)
    }

    /// Lists the hosts, by name.
    ///
    /// Errors: see [`ClientError`].
    pub async fn hosts(&self) -> Result<Vec<HostView>, ClientError> {
        self.connection.get::<HostsView>("/v1/hosts").await.map(|view| view.hosts)
    }

    /// Fetches any address that answers with text: `/metrics`, `/openapi.json`, `/healthz`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        self.connection.text(path).await
    }
}
