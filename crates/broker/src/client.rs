//! The typed client of the broker's HTTP interface: for networks' agents, and for the command line.
//!
//! Leaves out: what a network bids (`network`). Read [`Client`] first.

use crate::wire::{
    Assent, Bids, BidsReply, ClientsRequest, CountedReply, CountedRequest, DecisionView, JoinRequest,
    MessagesReply, NetworkMessage, NetworkView, NetworksView, RoundView, RoundsView, SteeringRequest,
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
    /// A client of the broker at `address` (`host:port`, `https://` before it is allowed). Connects at the first
    /// request; `patience` is how long an operator's request is tried.
    ///
    /// Errors: keys of another system, an address without port, `http://`.
    pub fn new(address: &str, identity: &Identity, patience: Duration) -> Result<Self, ClientError> {
        Ok(Self { connection: Connection::new(crate::SYSTEM, address, identity, patience)? })
    }

    /// The same, with another patience.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self { connection: self.connection.with_patience(patience) }
    }

    /// Where the broker is: `host:port`.
    pub fn address(&self) -> &str {
        self.connection.address()
    }

    /// A network's agent joins.
    ///
    /// Errors: see [`ClientError`].
    pub async fn join(&self, network: &str, session: u64, within: Duration) -> Result<(), ClientError> {
        self.post(network, "join", &JoinRequest { session }, within).await.map(drop)
    }

    /// A network's agent goes.
    ///
    /// Errors: see [`ClientError`].
    pub async fn leave(&self, network: &str, session: u64, within: Duration) -> Result<(), ClientError> {
        self.post(network, "leave", &JoinRequest { session }, within).await.map(drop)
    }

    /// Messages after this one, as soon as there are any; none after `wait`.
    ///
    /// Errors: see [`ClientError`]; status 409 if it must join again.
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

    /// A network bids.
    ///
    /// Errors: see [`ClientError`]; status 409 if it must join again.
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

    /// A network answers a proposal.
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

    /// The clients that there are, counted by who asks.
    ///
    /// Errors: see [`ClientError`].
    pub async fn clients(&self, request: &ClientsRequest, within: Duration) -> Result<(), ClientError> {
        self.connection
            .once(Method::POST, "/v1/clients", self.connection.write(request)?, within)
            .await
            .map(drop)
    }

    /// Clients that another broker has counted. It is told which networks are there.
    ///
    /// Errors: see [`ClientError`]; status 421 where that does not lead.
    pub async fn counted(
        &self,
        request: &CountedRequest,
        within: Duration,
    ) -> Result<CountedReply, ClientError> {
        let body = self.connection.write(request)?;
        let reply = self.connection.once(Method::POST, "/v1/counted", body, within).await?;
        self.connection.read(&reply)
    }

    /// Whether players are steered by this broker: with false they are told to go by their manifests.
    ///
    /// Errors: see [`ClientError`].
    pub async fn steers(&self, steers: bool, within: Duration) -> Result<(), ClientError> {
        let body = self.connection.write(&SteeringRequest { steers })?;
        self.connection.once(Method::POST, "/v1/steering", body, within).await.map(drop)
    }

    /// The networks.
    ///
    /// Errors: see [`ClientError`].
    pub async fn networks(&self) -> Result<Vec<NetworkView>, ClientError> {
        self.connection.get::<NetworksView>("/v1/networks").await.map(|view| view.networks)
    }

    /// The rounds of late, the last one last.
    ///
    /// Errors: see [`ClientError`].
    pub async fn rounds(&self) -> Result<Vec<RoundView>, ClientError> {
        self.connection.get::<RoundsView>("/v1/rounds").await.map(|view| view.rounds)
    }

    /// The last decision.
    ///
    /// Errors: see [`ClientError`].
    pub async fn decision(&self) -> Result<DecisionView, ClientError> {
        self.connection.get("/v1/decision").await
    }

    /// Any address that answers with text: `/metrics`, `/openapi.json`, `/healthz`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        self.connection.text(path).await
    }
}
