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
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Time for which one of several controllers is asked.
const ONE_OF_SEVERAL_TIME: Duration = Duration::from_secs(5);

/// Connections to the controllers of one network; clones share them. The one that leads is asked.
#[derive(Clone)]
pub struct ControllerClient {
    connections: Arc<Vec<Connection>>,
    /// Index of the controller that answered last.
    leader: Arc<AtomicUsize>,
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
        Self::of(&[address.to_owned()], identity, patience)
    }

    /// A client of several controllers that share a store: they are asked in turn until one leads.
    ///
    /// Errors: as of [`ControllerClient::new`]; no address at all.
    pub fn of(addresses: &[String], identity: &Identity, patience: Duration) -> Result<Self, ClientError> {
        if addresses.is_empty() {
            return Err(ClientError::Settings("no controller is given: name one as HOST:PORT".to_owned()));
        }
        let connection = |address: &String| Connection::new(crate::SYSTEM, address, identity, patience);
        let connections = addresses.iter().map(connection).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { connections: Arc::new(connections), leader: Arc::default() })
    }

    fn connection(&self) -> &Connection {
        &self.connections[self.leader.load(Relaxed) % self.connections.len()]
    }

    /// `host:port` of the controller that is asked.
    pub fn address(&self) -> &str {
        self.connection().address()
    }

    /// Asks the controllers in turn until one leads. `is_repeatable`: a request whose answer is lost is
    /// asked again.
    async fn ask<T, F: Future<Output = Result<T, ClientError>>>(
        &self,
        is_repeatable: bool,
        call: impl Fn(Connection) -> F,
    ) -> Result<T, ClientError> {
        let count = self.connections.len();
        let mut last = None;
        for _ in 0..count {
            let at = self.leader.load(Relaxed);
            let answer = call(self.connections[at % count].clone()).await;
            let error = match answer {
                // 421 and 503: another one leads, or none.
                Err(error @ ClientError::Refused { status: 421 | 503, .. }) => error,
                Err(error @ ClientError::Unreachable(_)) if is_repeatable => error,
                answer => return answer,
            };
            // A request beside this one may have moved on already.
            let _ = self.leader.compare_exchange(at, (at + 1) % count, Relaxed, Relaxed);
            last = Some(error);
        }
        Err(last.expect("there is a connection"))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        if let [connection] = &**self.connections {
            return connection.get(path).await;
        }
        self.ask(true, |connection| async move {
            let reply = connection.once(Method::GET, path, Bytes::new(), ONE_OF_SEVERAL_TIME).await?;
            connection.read(&reply)
        })
        .await
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
        let connection = self.connection();
        let body = connection.write(report)?;
        let reply = connection.once(Method::POST, &path, body, within).await?;
        connection.read(&reply)
    }

    /// The network's description, with its version.
    ///
    /// Errors: see [`ClientError`].
    pub async fn network(&self) -> Result<NetworkView, ClientError> {
        self.get("/v1/network").await
    }

    /// Changes this version of the network: all changes, or none. Returns the new version.
    ///
    /// Errors: see [`ClientError`]; after a broken connection the change can be in force.
    pub async fn change(&self, version: u64, changes: Vec<Change>) -> Result<u64, ClientError> {
        let body = self.connection().write(&NetworkChange { version, changes })?;
        self.ask(false, |connection| {
            let body = body.clone();
            async move {
                let reply = connection.once(Method::POST, "/v1/network", body, REPLY_TIME).await?;
                connection.read::<NetworkVersion>(&reply).map(|changed| changed.version)
            }
        })
        .await
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
        let connection = self.connection();
        let reply = connection.once(Method::GET, &path, Bytes::new(), wait + REPLY_TIME).await?;
        if reply.is_empty() {
            return Ok(None);
        }
        let directory = Directory::read(&reply)
            .map_err(|error| ClientError::Garbled(format!("{}: directory: {error}", connection.who())))?;
        Ok(Some(TaggedDirectory { directory, etag: etag(&reply) }))
    }

    /// All nodes.
    ///
    /// Errors: see [`ClientError`].
    pub async fn nodes(&self) -> Result<Vec<NodeView>, ClientError> {
        self.get::<NodesView>("/v1/nodes").await.map(|view| view.nodes)
    }

    /// Links and streams.
    ///
    /// Errors: see [`ClientError`].
    pub async fn trees(&self) -> Result<TreesView, ClientError> {
        self.get("/v1/trees").await
    }

    /// Rounds of the optimiser.
    ///
    /// Errors: see [`ClientError`].
    pub async fn rounds(&self) -> Result<Vec<RoundView>, ClientError> {
        self.get::<RoundsView>("/v1/rounds").await.map(|view| view.rounds)
    }

    /// Events after this number; none after `wait`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn events(&self, after: u64, wait: Duration) -> Result<Vec<EventView>, ClientError> {
        let path = format!("/v1/events?after={after}&wait_ms={}", wait.as_millis());
        let path = &*path;
        self.ask(true, |connection| async move {
            let reply = connection.once(Method::GET, path, Bytes::new(), wait + REPLY_TIME).await?;
            connection.read::<EventsView>(&reply).map(|view| view.events)
        })
        .await
    }

    /// Empties a node, or has it carry streams again.
    ///
    /// Errors: see [`ClientError`].
    pub async fn drain(&self, node: &str, drain: bool) -> Result<(), ClientError> {
        let path = format!("/v1/nodes/{}/drain", escaped(node));
        let body = self.connection().write(&DrainRequest { drain })?;
        let path = &*path;
        self.ask(true, |connection| {
            let body = body.clone();
            async move { connection.send_again(Method::POST, path, body, REPLY_TIME).await.map(drop) }
        })
        .await
    }
}
