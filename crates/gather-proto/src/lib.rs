//! `gather`: one client pulls from many servers at once without congestion collapse on the client's
//! last hop.
//!
//! Source: Jiang, Li and Xu, *LTTP: An LT-Code Based Transport Protocol for Many-to-One
//! Communication in Data Centers* (JSAC 2014). Coordination (thesis, chapter 1): hierarchical
//! partitioning. Only the client knows the number of servers, and divides its last hop among them.
//! Each server's rate control reacts by itself to the network between server and client.
//!
//! Terms: a *pull* is one range of one object from one server. The pull's bytes are divided into
//! *generations* of *blocks*. A *packet* carries a block, or a sum of blocks, of one generation.
//! The client *grants* a server its maximum rate, and the server's rate control limits the rate
//! further. Control messages travel on a stream (TLS over TCP), packets and feedback as datagrams.
//!
//! Two modes: [`Mode::Lttp`] is the paper's protocol. [`Mode::Counted`], the default, sends blocks
//! before sums. Feedback reports how many packets each generation lacks, and the server sends no
//! more sums than that. The server begins at its granted rate.
//!
//! Entry points: a [`Fetch`] delivers whole verified objects. Inside it, a [`Client`] requests
//! pieces from servers and assembles them. A [`Server`] answers one client. All are state machines
//! without sockets or files. `Sender` and [`Receiver`] are the two ends of one pull, [`msg`]
//! defines the messages, [`Layout`] divides bytes into blocks, and [`simulated`] runs scenarios.
//! Leaves out: sockets, encryption and files, which are in the crate `gather`.
//!
//! A client and a server in one process, connected by hand (`examples/in_memory.rs` adds the
//! object's bytes):
//!
//! ```
//! # use anabranch_endpoint::Bytes;
//! # use anabranch_gather_proto::*;
//! # use anabranch_units::{Duration, Instant};
//! # let now = Instant::ZERO;
//! let (mut client, mut server) = (Client::<Bytes>::new(ClientConfig::default())?, Server::new(ServerConfig::default()));
//! let holder = client.add_server();
//! let piece = client.add(Piece { object: "hello".into(), ranges: None, holders: vec![holder] });
//! client.handle_connected(now, holder, Some(Duration::from_us(100)));
//! while let Some((_, message)) = client.poll_control() { server.handle_control(now, message) }
//! let Some(ServerEvent::Asked { pull, .. }) = server.poll_event() else { panic!("it is asked for") };
//! server.offer(now, pull, Offer { object_bytes: 5, first_id: 0, secret: 0 });
//! while let Some((pull, generation, _)) = server.poll_wanted() { server.supply(pull, generation, vec!["hello".into()]) }
//! while let Some(message) = server.poll_control() { client.handle_control(now, holder, message) }
//! while let Some(packet) = server.poll_transmit(now) { client.handle_packet(now, holder, packet) }
//! let events: Vec<ClientEvent<Bytes>> = std::iter::from_fn(|| client.poll_event()).collect();
//! assert_eq!(events[1], ClientEvent::Blocks { piece, range: 0..5, blocks: vec!["hello".into()] });
//! assert!(client.is_done());
//! # Ok::<(), ConfigError>(())
//! ```

mod client;
mod config;
#[doc(hidden)]
pub mod exercise;
pub mod fetch;
mod grants;
mod layout;
mod mode;
pub mod msg;
mod path;
pub mod receipt;
mod receiver;
mod sender;
mod server;
pub mod simulated;
pub mod snapshot;

pub use client::{Client, ClientEvent, Failure, Piece, PieceId, ServerId};
pub use config::{ClientConfig, ConfigError, MTU_MIN, ServerConfig};
pub use fetch::Fetch;
pub use grants::share;
pub use layout::{BLOCK_BYTES_MIN, Layout, LayoutError};
pub use mode::{DecoderKind, Mode, RateControl};
pub use receiver::Receiver;
pub use server::{Offer, Server, ServerEvent, Usage};
