//! `broker` for programs that embed it: the broker as a service behind HTTP, a content network's agent, and the broker's client.
//!
//! Networks' agents join over mutual TLS and bid in each round; players ask for content steering over plain HTTP, behind a proxy that has the
//! certificates of a public authority. What was accepted last is kept in a store.
//!
//! Source: VDX (`anabranch_broker_proto`). Leaves out: decisions, and what players are told (`anabranch_broker_proto`). Read [`BrokerService`],
//! [`PublicServer`], [`NetworkAgent`], [`Client`] and [`wire`] first.
//!
//! A broker that answers players, with a file for its decisions:
//!
//! ```no_run
//! use anabranch_broker::{
//!     BrokerService, BrokerServiceConfig, Contracts, PublicConfig, PublicServer, ServeConfig, Server, Settings, designs,
//! };
//! use anabranch_net::{identity::Identity, keys::Role, tls::CredentialFiles};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let contracts: Contracts = std::fs::read_to_string("contracts.toml")?.parse()?;
//! let settings = Settings::new(designs::by_name("marketplace").expect("it is a design"));
//! let service = BrokerService::open(BrokerServiceConfig::new(settings, contracts, "broker.redb"))?;
//! let players = PublicServer::bind(service.clone(), PublicConfig::default())?;
//! let keys = CredentialFiles::in_set("keys/broker".as_ref(), anabranch_broker::SYSTEM, Role::Controller, "controller");
//! let server = Server::bind(service, &Identity::load(&keys)?, ServeConfig::default()).await?;
//! tokio::select! {
//!     () = server.run() => {}
//!     ended = players.run() => ended?,
//! }
//! # Ok(())
//! # }
//! ```

mod client;
pub mod contracts;
#[doc(hidden)]
pub mod exercise;
mod history;
mod http;
mod kept;
mod mistake;
pub mod network;
mod public;
mod service;
pub mod wire;
pub mod world_files;

pub use anabranch_broker_proto::broker::Settings;
pub use anabranch_broker_proto::designs;
pub use anabranch_broker_proto::networks::SILENCE_MAX;
pub use anabranch_http::lease::{EtcdConfig, EtcdConfigError};
pub use anabranch_http::{ClientError, ServeConfig, ServeError, Server};
pub use anabranch_media::prefixes::PrefixTable;
pub use anabranch_media::steering::{SteeringManifest, SteeringQuery};
pub use client::Client;
pub use contracts::Contracts;
pub use mistake::Mistake;
pub use network::{Files as NetworkFiles, NetworkAgent, NetworkAgentError, NetworkConfig};
pub use public::{PublicConfig, PublicServer};
pub use service::{
    BrokerService, BrokerServiceConfig, COUNTED_BYTES_MAX, COUNTED_MAX, OpenError, StoreConfig,
};

anabranch_net::system! {
    /// Parties of `broker`, and their rights. One of several brokers reports to the leader, as its
    /// client.
    pub SYSTEM = anabranch_net::keys::SystemSpec {
        word: "broker",
        site: "network",
        controller: Some("broker"),
        operator: Some("operator"),
        controller_dials: true,
    };
}
