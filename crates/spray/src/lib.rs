//! `spray` for programs that embed it: a host's agent, by which unmodified TCP between hosts takes every path of a network.
//!
//! An [`Agent`] has a TUN device, into which the kernel routes TCP to its peers, and sends what comes there in sealed datagrams from many
//! UDP ports: switches that spread flows by their headers (ECMP) so spread packets. Short flows are coded and put in order again; long ones keep
//! out of their way; ways that are crowded or dead are left (`anabranch_spray_proto`). Addresses stay what they are, so where an agent
//! ends, or does not answer, connections go on by the ordinary way. Linux only; it takes the right to set up the network
//! (`CAP_NET_ADMIN`).
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
//! Source: CAPS, sections VII and VIII, whose layer is a kernel module. Leaves out: what decides (`anabranch_spray_proto`), arguments and
//! tables (`cli`). Read [`AgentConfig`], [`Agent`] and [`status`] first.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "a service: it reads the clock, opens files and runs programs")]

mod agent;
mod config;
mod forward;
pub mod guard;
mod kernel;
mod outbox;
mod pulse;
mod routing;
mod session;
pub mod status;

pub use agent::{Agent, AgentError};
pub use anabranch_spray_proto::ConfigError;
pub use config::{AgentConfig, MEMORY_MAX, PEERS_MAX, PORT, Peer, PeerError};
pub use routing::RoutingError;

anabranch_net::system! {
    /// Parties of `spray`, and their rights.
    pub SYSTEM = anabranch_net::keys::SystemSpec {
        word: "spray",
        site: "host",
        controller: None,
        operator: None,
        controller_dials: false,
    };
}
