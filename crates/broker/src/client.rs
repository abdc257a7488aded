//! The typed client of the broker's HTTP interface: for networks' agents, and for the command line.
//!
//! Leaves out: the content of a network's bids (`network`). Read [`Client`] first.

use crate::wire::{
    Assent, Bids, BidsReply, ClientsRequest, CountedReply, CountedRequest, DecisionView, JoinRequest,
    LeadView, MessagesReply, NetworkMessage, NetworkView, NetworksView, RoundView, RoundsView,
    SteeringRequest,
};
use anabranch_http::{ClientError, Connection};
use anabranch_net::identity::Identity;
use anabranch_net::keys::escaped;
use hyper::Method;
use hyper::body::Bytes;
use serde::Serialize;
use std::time::Duration;

/// A connection to the broker; clones share it.
#[derive(Clone)]
pub struct Client {
    connection: Connection,
}

impl Client {
    /// Creates a client of the broker at `address` (`host:port`, with an optional `https://`). The
    /// client connects at the first request; `patience` is the time during which an operator's
    /// request is retried.
    ///
    /// Errors: keys of another system, an address without a port, `http://`.
    pub fn new(address: &str, identity: &Identity, patience: Duration) -> Result<Self, ClientError> {
        Ok(Self { connection: Connection::new(crate::SYSTEM, address, identity, patience)? })
    }

    /// Returns a client of the same broker that retries for another time.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self { connection: self.connection.with_patience(patience) }
    }

    /// Address of the broker, as `host:port`.
    pub fn address(&self) -> &str {
        self.connection.address()
    }

    /// Registers a network's agent.
    ///
    /// Errors: see [`ClientError`].
    pub async fn join(&self, network: &str, session: u64, within: Duration) -> Result<(), ClientError> {
        self.post(network, "join", &JoinRequest { session }, within).await.map(drop)
    }

    /// Deregisters a network's agent.
    ///
    /// Errors: see [`ClientError`].
    pub async fn leave(&self, network: &str, session: u64, within: Duration) -> Result<(), ClientError> {
        self.post(network, "leave", &JoinRequest { session }, within).await.map(drop)
    }

    /// Returns the messages after number `after` as soon as there are any, or none after `wait`.
    ///
    /// Errors: see [`ClientError`]; status 409 if the agent must join again.
    pub async fn messages(
        &self,
        network: &str,
        session: u64,
        after: u64,
        wait: Duration,
        within: Duration,
    ) -> Result<Vec<(u64, NetworkMessage)>, ClientError> {
        let path = format!(
            "/v1/networks/{}/messages?session={session}&after={after}&wait_ms={}",
            escaped(network),
            wait.as_millis()
        );
        let reply = self.connection.once(Method::GET, &path, Bytes::new(), wait + within).await?;
        self.connection.read::<MessagesReply>(&reply).map(|reply| reply.messages)
    }

    /// Sends a network's bids.
    ///
    /// Errors: see [`ClientError`]; status 409 if the agent must join again.
    pub async fn bids(
        &self,
        network: &str,
        session: u64,
        bids: &Bids,
        within: Duration,
    ) -> Result<BidsReply, ClientError> {
        let reply = self.post(network, &format!("bids?session={session}"), bids, within).await?;
        self.connection.read(&reply)
    }

    /// Sends a network's answer to a proposal.
    ///
    /// Errors: see [`ClientError`].
    pub async fn assent(
        &self,
        network: &str,
        session: u64,
        assent: &Assent,
        within: Duration,
    ) -> Result<(), ClientError> {
        self.post(network, &format!("assents?session={session}"), assent, within).await.map(drop)
    }

    async fn post(
        &self,
        network: &str,
        what: &str,
        request: &impl Serialize,
        within: Duration,
    ) -> Result<Bytes, ClientError> {
        let path = format!("/v1/networks/{}/{what}", escaped(network));
        self.connection.once(Method::POST, &path, self.connection.write(request)?, within).await
    }

    /// Sets the clients to place, instead of the broker's own counts.
    ///
    /// Errors: see [`ClientError`].
    pub async fn clients(&self, request: &ClientsRequest, within: Duration) -> Result<(), ClientError> {
        self.connection
            .once(Method::POST, "/v1/clients", self.connection.write(request)?, within)
            .await
            .map(drop)
    }

    /// Reports the viewers that another broker has counted. The reply names the networks whose
    /// agents are connected.
    ///
    /// Errors: see [`ClientError`]; status 421 if the broker asked is not the leader.
    pub async fn counted(
        &self,
        request: &CountedRequest,
        within: Duration,
    ) -> Result<CountedReply, ClientError> {
        let body = self.connection.write(request)?;
        let reply = self.connection.once(Method::POST, "/v1/counted", body, within).await?;
        self.connection.read(&reply)
    }

    /// Turns steering on or off. With steering off, players follow their manifests.
    ///
    /// Errors: see [`ClientError`].
    pub async fn steers(&self, steers: bool, within: Duration) -> Result<(), ClientError> {
        let body = self.connection.write(&SteeringRequest { steers })?;
        self.connection.once(Method::POST, "/v1/steering", body, within).await.map(drop)
    }

    /// Lists the networks.
    ///
    /// Errors: see [`ClientError`].
    pub async fn networks(&self) -> Result<Vec<NetworkView>, ClientError> {
        self.connection.get::<NetworksView>("/v1/networks").await.map(|view| view.networks)
    }

    /// Lists the most recent rounds, oldest first.
    ///
    /// Errors: see [`ClientError`].
    pub async fn rounds(&self) -> Result<Vec<RoundView>, ClientError> {
        self.connection.get::<RoundsView>("/v1/rounds").await.map(|view| view.rounds)
    }

    /// Returns the lead, as the broker knows it.
    ///
    /// Errors: see [`ClientError`].
    pub async fn lead(&self) -> Result<LeadView, ClientError> {
        self.connection.get("/v1/lead").await
    }

    /// Returns the decision in force.
    ///
    /// Errors: see [`ClientError`].
    pub async fn decision(&self) -> Result<DecisionView, ClientError> {
        self.connection.get("/v1/decision").await
    }

    /// Fetches text from a path: `/metrics`, `/openapi.json` or `/healthz`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        self.connection.text(path).await
    }
}
