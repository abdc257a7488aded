//! `spray` for programs that embed it: a host's agent that spreads unmodified TCP over every path
//! of a network.
//!
//! The kernel routes TCP to peers into an [`Agent`]'s TUN device. The agent sends these packets in
//! sealed datagrams from many UDP ports, so switches that hash headers (ECMP) spread packets rather
//! than flows. Short flows are coded and reordered; long flows yield to short flows; congested and
//! dead paths are avoided (`anabranch_spray_proto`). Addresses stay the same, so connections
//! continue on the ordinary route if an agent ends or does not answer. Linux only; needs
//! `CAP_NET_ADMIN`.
//!
//! ```no_run
//! use anabranch_net::identity::Identity;
//! use anabranch_net::keys::Role;
//! use anabranch_net::tls::CredentialFiles;
//! use anabranch_spray::{Agent, AgentConfig};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let files = CredentialFiles::in_set("keys/spray".as_ref(), anabranch_spray::SYSTEM, Role::Site, "a");
//! let mut config = AgentConfig::new("a");
//! config.peers = vec!["b=10.0.0.2".parse()?];
//! let agent = Agent::start(config, &Identity::load(&files)?).await?;
//! agent.run(async { let _ = tokio::signal::ctrl_c().await; }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Source: CAPS, sections VII and VIII, where the layer is a kernel module. Leaves out: the
//! protocol's decisions (`anabranch_spray_proto`), arguments and tables (`cli`). Read
//! [`AgentConfig`], [`Agent`] and [`status`] first.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "a service: it reads the clock, opens files and runs programs")]

mod agent;
mod config;
mod directory;
mod forward;
pub mod guard;
mod kernel;
mod members;
mod metrics;
mod outbox;
mod pulse;
mod routing;
mod session;
pub mod status;

pub use agent::{Agent, AgentError, PeerChanges};
pub use anabranch_spray_proto::ConfigError;
pub use config::{AgentConfig, MEMORY_MAX, PEERS_BYTES_MAX, PEERS_MAX, PORT, Peer, PeerError, read_peers};
pub use routing::RoutingError;

anabranch_net::system! {
    /// Parties of `spray`, and their rights.
    pub SYSTEM = anabranch_net::keys::SystemSpec {
        word: "spray",
        site: "host",
        controller: None,
        operator: None,
        controller_dials: false,
        keys_arguments: "--hosts NAME,NAME",
    };
}
