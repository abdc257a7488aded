//! `broker` for programs that embed it: the broker as an HTTP service, a content network's agent,
//! and the broker's client.
//!
//! Networks' agents join over mutual TLS and bid in each round. Players send steering requests over
//! plain HTTP, behind a proxy with publicly trusted certificates. A store keeps the last accepted
//! decision.
//!
//! Source: VDX (`anabranch_broker_proto`). Leaves out: decisions and steering answers
//! (`anabranch_broker_proto`). Read [`BrokerService`], [`PublicServer`], [`NetworkAgent`],
//! [`Client`] and [`wire`] first.
//!
//! The example starts a broker with a decision file and answers one player. The contracts list one
//! network, so the player is sent to that network:
//!
//! ```
//! use anabranch_broker::{
//!     BrokerService, BrokerServiceConfig, Contracts, PublicConfig, PublicServer, ServeConfig, Server, Settings, designs,
//! };
//! use anabranch_net::keys::{Role, SetRequest, make_set, write_set};
//! use anabranch_net::{identity::Identity, tls::CredentialFiles};
//! use std::io::{Read as _, Write as _};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let keys = SetRequest {
//!     system: anabranch_broker::SYSTEM,
//!     sites: vec!["near".into()],
//!     operators: vec!["me".into()],
//!     controller_hosts: vec![],
//!     valid_days: 1,
//! };
//! write_set(folder.path(), &make_set(&keys)?)?;
//! let contracts: Contracts =
//!     "[[network]]\nname = \"near\"\n[[network.cluster]]\nnumber = 7\nhost = \"near-7.example\"\n".parse()?;
//! let settings = Settings::new(designs::by_name("marketplace").expect("it is a design"));
//! let store = folder.path().join("broker.redb");
//! let service = BrokerService::open(BrokerServiceConfig::new(settings, contracts, store))?;
//! let public = PublicConfig { address: "127.0.0.1:0".parse()?, ..PublicConfig::default() };
//! let public = PublicServer::bind(service.clone(), public)?;
//! let players = public.local_addr()?;
//! let own = CredentialFiles::in_set(folder.path(), anabranch_broker::SYSTEM, Role::Controller, "controller");
//! let serve = ServeConfig { address: "127.0.0.1:0".parse()?, ..ServeConfig::default() };
//! let server = Server::bind(service, &Identity::load(&own)?, serve).await?;
//! tokio::spawn(public.run());
//! tokio::spawn(server.run());
//!
//! let mut player = std::net::TcpStream::connect(players)?;
//! let question = "GET /steering/hls?location=paris&isp=x&viewer=5 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
//! player.write_all(question.as_bytes())?;
//! let mut answer = String::new();
//! player.read_to_string(&mut answer)?;
//! assert!(answer.contains(r#""PATHWAY-PRIORITY":["near"]"#), "{answer}");
//! # Ok(())
//! # }
//! ```

mod client;
pub mod contracts;
mod decision_form;
#[doc(hidden)]
pub mod exercise;
mod file_error;
mod history;
mod http;
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
pub use file_error::FileError;
pub use http::openapi;
pub use network::{Files as NetworkFiles, NetworkAgent, NetworkAgentError, NetworkConfig};
pub use public::{PublicConfig, PublicServer};
pub use service::{
    BrokerService, BrokerServiceConfig, COUNTED_BYTES_MAX, COUNTED_MAX, OpenError, StoreConfig,
};

anabranch_net::system! {
    /// Parties of `broker`, and their rights. A broker that does not lead reports to the leader as
    /// its client.
    pub SYSTEM = anabranch_net::keys::SystemSpec {
        word: "broker",
        site: "network",
        controller: Some("broker"),
        operator: Some("operator"),
        controller_dials: true,
        keys_arguments: "--networks NAME,NAME --operators operator",
    };
}
