//! Typed client of the controller's HTTP interface, for nodes, DNS servers and the command line.
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

/// Longest wait for one of several controllers.
const ONE_OF_SEVERAL_TIME: Duration = Duration::from_secs(5);

/// Connections to the controllers of one network. Requests are sent to the leader. Clones share the
/// connections.
#[derive(Clone)]
pub struct ControllerClient {
    connections: Arc<Vec<Connection>>,
    /// Index of the controller believed to lead.
    leader: Arc<AtomicUsize>,
}

/// A directory with its ETag, which is used to request a newer directory.
#[derive(Clone, Debug)]
pub struct TaggedDirectory {
    /// Directory of channels, edges and groups.
    pub directory: Directory,
    /// ETag of the directory.
    pub etag: String,
}

impl ControllerClient {
    /// Creates a client of the controller at `address` (`host:port`). It connects on the first
    /// request. `patience` is the time for which a request is retried.
    ///
    /// Errors: keys of another system; an address without a port, or with `http://`.
    pub fn new(address: &str, identity: &Identity, patience: Duration) -> Result<Self, ClientError> {
        Self::of(&[address.to_owned()], identity, patience)
    }

    /// Creates a client of several controllers that share a store. They are tried in turn until one
    /// leads.
    ///
    /// Errors: the same as of [`ControllerClient::new`]; no address.
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

    /// `host:port` of the controller that gets the next request.
    pub fn address(&self) -> &str {
        self.connection().address()
    }

    /// Tries the controllers in turn until one leads. With `is_repeatable`, a request whose answer
    /// was lost is sent again.
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
                // 421: another controller leads. 503: no controller leads.
                Err(error @ ClientError::Refused { status: 421 | 503, .. }) => error,
                Err(error @ ClientError::Unreachable(_)) if is_repeatable => error,
                answer => return answer,
            };
            // A concurrent request may already have selected another controller.
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

    /// Fetches the network's description and version.
    ///
    /// Errors: see [`ClientError`].
    pub async fn network(&self) -> Result<NetworkView, ClientError> {
        self.get("/v1/network").await
    }

    /// Changes this version of the network by all changes or none. Returns the new version.
    ///
    /// Errors: see [`ClientError`]; after a broken connection the change may be in force.
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

    /// Waits until the directory's ETag differs from `known`, and returns the new directory. `None`
    /// after `wait`.
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

    /// Fetches all nodes.
    ///
    /// Errors: see [`ClientError`].
    pub async fn nodes(&self) -> Result<Vec<NodeView>, ClientError> {
        self.get::<NodesView>("/v1/nodes").await.map(|view| view.nodes)
    }

    /// Fetches the links and streams.
    ///
    /// Errors: see [`ClientError`].
    pub async fn trees(&self) -> Result<TreesView, ClientError> {
        self.get("/v1/trees").await
    }

    /// Fetches the rounds of the optimiser.
    ///
    /// Errors: see [`ClientError`].
    pub async fn rounds(&self) -> Result<Vec<RoundView>, ClientError> {
        self.get::<RoundsView>("/v1/rounds").await.map(|view| view.rounds)
    }

    /// Waits for events after this number. Empty after `wait`.
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

    /// Starts or ends the drain of a node.
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
