//! `gather`: one client pulls from many servers at once, and its last hop never collapses.
//!
//! Source: Jiang, Li and Xu, *LTTP: An LT-Code Based Transport Protocol for Many-to-One Communication in Data Centers* (JSAC
//! 2014). Coordination (thesis, chapter 1): hierarchical partitioning. The client, who alone knows how many it asked, divides
//! its last hop among them; each server reacts by itself (TFRC) to what the network between them does.
//!
//! Words used: a *pull* is one range of one object from one server; its bytes are cut into *generations* of *blocks*; a
//! *packet* carries a block or a sum of blocks of one generation. What a server may send in a second is *granted* by the
//! client and bounded by TFRC. Control messages travel on a stream (TLS over TCP), packets and feedback as datagrams.
//!
//! Two modes: [`Mode::Lttp`] is the paper's protocol; [`Mode::Counted`], the default, sends blocks before sums, is told how
//! many packets each generation lacks, sends no more than those, and begins at the rate that it is granted.
//!
//! Entry points: a [`Client`] asks servers for pieces and puts them together; a [`Server`] answers one client; both are
//! machines without sockets or files. [`Sender`] and [`Receiver`] are the two ends of one pull, [`msg`] is what travels,
//! [`Layout`] how bytes become blocks. Leaves out: sockets, encryption, files (drivers, `cli`).

mod client;
mod config;
#[doc(hidden)]
pub mod exercise;
mod grants;
mod layout;
pub mod msg;
mod receiver;
mod sender;
mod server;

pub use client::{Client, ClientEvent, Failure, Piece, PieceId, ServerId};
pub use config::{ClientConfig, ConfigError, DecoderKind, Mode, ServerConfig};
pub use grants::share;
pub use layout::{Layout, LayoutError};
pub use receiver::Receiver;
pub use sender::{Sender, SenderEvent};
pub use server::{Offer, Server, ServerEvent};
