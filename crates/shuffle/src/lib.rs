//! `shuffle` for programs that embed it: the coordinator as an HTTP service, a host's agent, and
//! the coordinator's client.
//!
//! Agents join, report the progress of their hosts' flows, and enforce the coordinator's limits;
//! operators may only read. Each decision covers all reports so far; reports that arrive during a
//! decision wait for the next one. Rates need no store, because agents report all flows again after
//! a restart of the coordinator. Ended coflows (groups of flows that are complete with their last
//! flow) are stored.
//!
//! A coordinator, two hosts' agents on one machine, and an announced flow between them that gets a
//! limit:
//!
//! ```
//! use anabranch_announce::Announcer;
//! use anabranch_net::keys::Role;
//! use anabranch_pace::pacing_limit;
//! use anabranch_shuffle::{
//!     Agent, AgentConfig, CoordinatorService, CoordinatorServiceConfig, ListenConfig, Scheduler,
//!     ServeConfig, Server,
//! };
//! use anabranch_units::{BitRate, ByteCount};
//! # use anabranch_net::{identity::Identity, keys::{SetRequest, make_set, write_set}, tls::CredentialFiles};
//! # use std::{future::pending, net::{TcpListener, TcpStream}, time::{Duration, Instant}};
//! # #[tokio::main(worker_threads = 2)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let (path, keys) = (|name: &str| folder.path().join(name), folder.path().join("keys"));
//! # let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
//! # let (sites, operators) = (names(&["a", "b"]), names(&["me"]));
//! # let (system, controller_hosts) = (anabranch_shuffle::SYSTEM, vec![]);
//! # write_set(&keys, &make_set(&SetRequest { system, sites, operators, controller_hosts, valid_days: 1 })?)?;
//! # let identity = |role, name: &str| Identity::load(&CredentialFiles::in_set(&keys, anabranch_shuffle::SYSTEM, role, name));
//! # let listener = TcpListener::bind("127.0.0.2:0")?;
//!
//! let config = CoordinatorServiceConfig::new(|| Scheduler::default().make(), path("store.redb"));
//! let serve = ServeConfig { address: "127.0.0.1:0".parse()?, ..ServeConfig::default() };
//! let coordinator = identity(Role::Controller, "controller")?;
//! let server = Server::bind(CoordinatorService::open(config)?, &coordinator, serve).await?;
//! let coordinator = server.local_addr()?.to_string();
//! tokio::spawn(server.run());
//! for (host, address) in [("a", "127.0.0.1"), ("b", "127.0.0.2")] {
//!     let mut config = AgentConfig::new(host, &coordinator, path(&format!("{host}.jsonl")));
//!     (config.addresses, config.link_rate) = (vec![address.parse()?], Some(BitRate::mbps(80)));
//!     config.listen = Some(ListenConfig { path: path(&format!("{host}.sock")), group: None });
//! #   (config.pacer.bpf, config.has_small_bursts) = (false, false);
//!     tokio::spawn(Agent::start(config, &identity(Role::Site, host)?)?.run(pending()));
//! }
//! let stream = TcpStream::connect(listener.local_addr()?)?;
//! let flow = Announcer::new(path("a.sock")).announce(&stream, "job-7", ByteCount::new(10_000_000))?;
//! # let began = Instant::now();
//! # while pacing_limit(&stream)?.is_none() && began.elapsed() < Duration::from_secs(20) {
//! #     tokio::time::sleep(Duration::from_millis(5)).await;
//! # }
//! assert!(pacing_limit(&stream)?.is_some_and(|limit| limit <= BitRate::mbps(80)));
//! # drop(flow);
//! # Ok(())
//! # }
//! ```
//!
//! Source: Ren and Wang (2016), section 5.2. Leaves out: decisions, and the timing of agents'
//! requests (`anabranch_shuffle_proto`); how a limit is enforced (`anabranch_pace`). Read
//! [`CoordinatorService`], [`Agent`], [`Client`] and [`wire`] first.

pub mod agent;
mod client;
mod exercise;
mod http;
mod service;
mod store;
pub mod wire;

pub use agent::{Agent, AgentConfig, AgentError, ListenConfig, ListenError};
pub use anabranch_http::store::StoreError;
pub use anabranch_http::{ClientError, ServeConfig, ServeError, Server};
pub use anabranch_shuffle_proto::hosts::Hosts;
pub use anabranch_shuffle_proto::sessions::SessionsConfig;
pub use anabranch_shuffle_proto::{BoxedAllocator, Scheduler};
pub use client::Client;
#[doc(hidden)]
pub use exercise::{exercise, exercise_limits};
pub use http::openapi;
pub use service::{CoordinatorService, CoordinatorServiceConfig};

anabranch_net::system! {
    /// Parties of `shuffle`, and their rights.
    pub SYSTEM = anabranch_net::keys::SystemSpec {
        word: "shuffle",
        site: "host",
        controller: Some("coordinator"),
        operator: Some("operator"),
        controller_dials: false,
        keys_arguments: "--hosts NAME,NAME --operators NAME",
    };
}
