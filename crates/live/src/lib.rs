//! `live` for programs that embed it: live video from sources over relays to viewers.
//!
//! A [`Source`] packages streams. A [`Node`] relays objects with one upstream request for each
//! object. A [`controller`] plans the trees that nodes and sources follow through their
//! [`control`]. [`dns`] and [`steering`] direct viewers to edges, [`players`] measure the service,
//! and a [`publisher`] generates test patterns.
//!
//! Source: VDN (`anabranch_live_proto`). Leaves out: decisions (`anabranch_live_proto`). Read
//! [`Node`] and [`NodeConfig`] first, then [`control::NodeControl`] and
//! [`controller::ControllerService`].
//!
//! An edge with two parents:
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use anabranch_live::{Node, NodeConfig};
//! let mut config = NodeConfig::new("edge-1", ([0, 0, 0, 0], 8080).into());
//! config.parents = vec!["http://10.0.0.1:8080".to_owned(), "http://10.0.0.2:8080".to_owned()];
//! Node::bind(config)?.run().await;
//! # Ok(())
//! # }
//! ```

#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock, opens sockets")]

mod answer;
mod body;
pub mod control;
pub mod controller;
pub mod description;
pub mod directory_file;
pub mod dns;
mod doctor;
mod metrics;
mod node;
mod parents;
pub mod players;
pub mod publisher;
mod secure;
mod shared;
pub mod signing;
mod source;
pub mod steering;
mod timelines;
mod url;

pub use anabranch_http::lease::{EtcdConfig, EtcdConfigError};
pub use anabranch_http::plain::{Clients, PlainLimits};
pub use anabranch_live_proto::relay::{Hop, Key, QueryRule, RelayConfig, RelayCounts};
pub use doctor::doctor;
pub use node::{Node, NodeConfig, NodeError};
pub use parents::{Route, StaticParents};
pub use secure::SecureListener;
pub use source::{
    PublishTokens, Pull, PullError, Source, SourceConfig, SourceError, SourceSteering, TokenFileError,
};

anabranch_net::system! {
    /// Parties of `live` and their rights. Nodes are sources, reflectors and edges.
    pub SYSTEM = anabranch_net::keys::SystemSpec {
        word: "live",
        site: "node",
        controller: Some("controller"),
        operator: Some("operator"),
        controller_dials: false,
        keys_arguments: "--network FILE --operators operator",
    };
}
