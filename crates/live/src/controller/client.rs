//! The typed client of the controller's HTTP interface: for nodes, DNS servers and the command line.
//!
//! Read [`ControllerClient`] first.

use super::http::etag;
use super::wire::{
    DrainRequest, EventView, EventsView, NetworkChange, NetworkVersion, NetworkView, NodeView, NodesView,
    ReportReply, RoundView, RoundsView, TreesView,
};
use crate::description::Change;
use anabranch_http::{ClientError, Connection, REPLY_TIME};
use anabranch_live_proto::control::messages::Report;
use anabranch_live_proto::directory::Directory;
use anabranch_net::identity::Identity;
use anabranch_net::keys::escaped;
use hyper::Method;
use hyper::body::Bytes;
use std::time::Duration;

/// A connection to the controller; clones share it.
#[derive(Clone)]
pub struct ControllerClient {
    connection: Connection,
}

/// A directory, with the tag by which news is asked for.
#[derive(Clone, Debug)]
pub struct TaggedDirectory {
    /// Places of viewers.
    pub directory: Directory,
    /// Its tag.
    pub etag: String,
}

impl ControllerClient {
    /// A client of the controller at `address` (`host:port`). Connects at the first request;
    /// `patience` is the time for which a request is tried.
    ///
    /// Errors: keys of another system, an address without port, `http://`.
    pub fn new(address: &str, identity: &Identity, patience: Duration) -> Result<Self, ClientError> {
        Ok(Self { connection: Connection::new(crate::SYSTEM, address, identity, patience)? })
    }

    /// `host:port` of the controller.
    pub fn address(&self) -> &str {
        self.connection.address()
    }

    /// Sends a node's report. Returns the messages for the node, and the version of the network.
    ///
    /// Errors: see [`ClientError`].
    pub async fn report(
        &self,
        node: &str,
        report: &Report,
        within: Duration,
    ) -> Result<ReportReply, ClientError> {
        let path = format!("/v1/nodes/{}/report", escaped(node));
        let body = self.connection.write(report)?;
        let reply = self.connection.once(Method::POST, &path, body, within).await?;
        self.connection.read(&reply)
    }

    /// The network's description, with its version.
    ///
    /// Errors: see [`ClientError`].
    pub async fn network(&self) -> Result<NetworkView, ClientError> {
        self.connection.get("/v1/network").await
    }

    /// Changes this version of the network: all changes, or none. Returns the new version.
    ///
    /// Errors: see [`ClientError`]; after a broken connection the change can be in force.
    pub async fn change(&self, version: u64, changes: Vec<Change>) -> Result<u64, ClientError> {
        let body = self.connection.write(&NetworkChange { version, changes })?;
        let reply = self.connection.once(Method::POST, "/v1/network", body, REPLY_TIME).await?;
        self.connection.read::<NetworkVersion>(&reply).map(|changed| changed.version)
    }

    /// The places of viewers, as soon as they differ from the directory of this tag. `None` after
    /// `wait`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn directory(
        &self,
        known: Option<&str>,
        wait: Duration,
    ) -> Result<Option<TaggedDirectory>, ClientError> {
        let tag = known.map_or_else(String::new, |tag| format!("&etag={tag}"));
        let path = format!("/v1/directory?wait_ms={}{tag}", wait.as_millis());
        let reply = self.connection.once(Method::GET, &path, Bytes::new(), wait + REPLY_TIME).await?;
        if reply.is_empty() {
            return Ok(None);
        }
        let directory = Directory::read(&reply).map_err(|error| {
            ClientError::Garbled(format!("{}: directory: {error}", self.connection.who()))
        })?;
        Ok(Some(TaggedDirectory { directory, etag: etag(&reply) }))
    }

    /// All nodes.
    ///
    /// Errors: see [`ClientError`].
    pub async fn nodes(&self) -> Result<Vec<NodeView>, ClientError> {
        self.connection.get::<NodesView>("/v1/nodes").await.map(|view| view.nodes)
    }

    /// Links and streams.
    ///
    /// Errors: see [`ClientError`].
    pub async fn trees(&self) -> Result<TreesView, ClientError> {
        self.connection.get("/v1/trees").await
    }

    /// Rounds of the optimiser.
    ///
    /// Errors: see [`ClientError`].
    pub async fn rounds(&self) -> Result<Vec<RoundView>, ClientError> {
        self.connection.get::<RoundsView>("/v1/rounds").await.map(|view| view.rounds)
    }

    /// Events after this number; none after `wait`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn events(&self, after: u64, wait: Duration) -> Result<Vec<EventView>, ClientError> {
        let path = format!("/v1/events?after={after}&wait_ms={}", wait.as_millis());
        let reply = self.connection.once(Method::GET, &path, Bytes::new(), wait + REPLY_TIME).await?;
        self.connection.read::<EventsView>(&reply).map(|view| view.events)
    }

    /// Empties a node, or has it carry streams again.
    ///
    /// Errors: see [`ClientError`].
    pub async fn drain(&self, node: &str, drain: bool) -> Result<(), ClientError> {
        let path = format!("/v1/nodes/{}/drain", escaped(node));
        let body = self.connection.write(&DrainRequest { drain })?;
        self.connection.send_again(Method::POST, &path, body, REPLY_TIME).await.map(drop)
    }
}
