//! `replicate` for programs that embed it: one file to many sites, through coding relays.
//!
//! A [`Controller`] is the system's coordinator behind HTTP/1.1 over mutual TLS, with its transfers
//! in an embedded store. A killed controller resumes from the last state that was visible outside.
//! A [`Relay`] is a site's daemon: it fetches commands from the controller, executes them with
//! sockets and files, and reports. A site may speak for itself only. A [`Client`] submits transfers
//! and watches them through [`WatchItem`]s.
//!
//! ```
//! use anabranch_disk::folder::{Folder, Links};
//! use anabranch_net::{identity::Identity, keys::Role, tls::CredentialFiles};
//! use anabranch_replicate::wire::{DestinationRequest, SubmitRequest};
//! use anabranch_replicate::{Client, Controller, ControllerConfig, DefaultPlanner, Outcome, Relay, RelayConfig, ServeConfig, Server};
//! # use anabranch_net::keys::{SetRequest, VALID_DAYS, make_set, write_set};
//! # use std::time::Duration;
//! # type Anything = Box<dyn std::error::Error>;
//! # fn main() -> Result<(), Anything> {
//! #     let runtime = tokio::runtime::Runtime::new()?;
//! #     let done = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), run()).await? });
//! #     runtime.shutdown_background();
//! #     done
//! # }
//! # async fn run() -> Result<(), Anything> {
//! # let temporary = tempfile::tempdir()?;
//! # let here = temporary.path();
//! # let mut topology = anabranch_graph::Topology::new("two");
//! # let (paris, lima) = (topology.add_site("paris", None)?, topology.add_site("lima", None)?);
//! # topology.add_cable(paris, lima, anabranch_graph::LinkProperties::new(anabranch_units::BitRate::gbps(1), anabranch_units::Duration::from_ms(1)))?;
//! # let sites = vec!["paris".to_owned(), "lima".to_owned()];
//! # let request = SetRequest { system: anabranch_replicate::SYSTEM, sites, operators: vec!["operator".into()], controller_hosts: vec![], valid_days: VALID_DAYS };
//! # write_set(&here.join("keys"), &make_set(&request)?)?;
//! let key = |role, name| Identity::load(&CredentialFiles::in_set(&here.join("keys"), anabranch_replicate::SYSTEM, role, name));
//! let controller = Controller::open(ControllerConfig::new(topology.clone(), DefaultPlanner, here.join("store")))?;
//! let serve = ServeConfig { address: "127.0.0.1:0".parse()?, ..ServeConfig::default() };
//! let server = Server::bind(controller, &key(Role::Controller, "controller")?, serve).await?;
//! let address = server.local_addr()?.to_string();
//! tokio::spawn(server.run());
//! for (site, name) in [(paris, "paris"), (lima, "lima")] {
//!     std::fs::create_dir(here.join(name))?;
//!     let folder = Folder::open(&here.join(name), Links::Refused)?;
//!     let relay = Relay::bind(RelayConfig::new(&topology, site, folder, &address), &key(Role::Site, name)?).await?;
//!     tokio::spawn(relay.run());
//! }
//! std::fs::write(here.join("paris/hello"), "Hello, Lima")?;
//! let client = Client::new(&address, &key(Role::Operator, "operator")?, Duration::from_secs(10))?;
//! let to = DestinationRequest { site: "lima".into(), path: "hello".into() };
//! let sent = client.send(&SubmitRequest::new("paris", "hello", vec![to])).await?.end().await?;
//! assert_eq!(sent.outcome, Some(Outcome::Done));
//! assert_eq!(std::fs::read(here.join("lima/hello"))?, b"Hello, Lima");
//! # Ok(())
//! # }
//! ```
//!
//! Leaves out: decisions and codes (the `replicate-proto` room), TLS and its keys (`net`).

#![allow(
    clippy::disallowed_methods,
    reason = "a service: clocks, threads, sockets and files are its business"
)]

mod client;
mod controller;
mod exercise;
mod http;
mod metrics;
mod relay;
mod runner;
mod service;
mod spool;
mod store;
mod view;
pub mod wire;

pub use anabranch_http::{ClientError, ServeConfig, ServeError, Server};
pub use anabranch_replicate_proto::control::{Priority, TransferId};
pub use anabranch_replicate_proto::coordinator::{DefaultPlanner, Outcome, SubmitResult};
pub use anabranch_replicate_proto::plan::{Plan, Scheme};
pub use client::{Client, SiteLink, TransferWatch, WatchItem};
pub use controller::{BoxedPlanner, Controller, ControllerConfig, NotDurable, SubmitRefusal};
#[doc(hidden)]
pub use exercise::{exercise, exercise_http, exercise_replies};
pub use http::openapi;
pub use relay::{Relay, RelayConfig, RelayError};
#[doc(hidden)]
pub use runner::exercise_confirmations;
pub use runner::{Fault, UnknownFault};
pub use service::{AcceptFrom, CONNECTIONS_MAX, PEER_CONNECTIONS_MAX, RuleError};
pub use store::TransferTimes;
pub use view::ViewError;

anabranch_net::system! {
    /// Parties of `replicate`, and their rights.
    pub SYSTEM = anabranch_net::keys::SystemSpec {
        word: "replicate",
        site: "site",
        controller: Some("controller"),
        operator: Some("operator"),
        controller_dials: false,
        keys_arguments: "init --topology FILE",
    };
}
