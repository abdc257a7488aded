//! A system's controller behind HTTP/1.1 over mutual TLS: the common parts of all controllers'
//! services and of their clients.
//!
//! A [`Service`] has routes; a [`Server`] serves them to peers that have shown their certificates,
//! and limits each peer's connections and requests; [`answer`] reads requests and refuses them in
//! one line of JSON; [`metrics`] are written in Prometheus' format; [`store`] keeps records that
//! must survive a crash; [`lease`] has the stores that several controllers share while one of them
//! leads. A [`Connection`] is a client's connection to a controller. [`plain`] serves the public,
//! over TLS or without; [`origin`] streams objects from a plain server; [`secret`] compares tokens.
//!
//! Leaves out: each system's requests and answers. Read [`Server`] and [`Connection`] first.

#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock, opens stores")]

pub mod answer;
mod connection;
#[doc(hidden)]
pub mod exercise;
mod http1;
mod http2;
pub mod lease;
pub mod metrics;
pub mod origin;
pub mod plain;
pub mod secret;
mod server;
pub mod store;

pub use answer::BODY_BYTES_MAX;
pub use connection::{BACKOFF, ClientError, Connection, REPLY_BYTES_MAX, REPLY_TIME};
pub use server::{PeerAddress, SMALL_BODY_BYTES, ServeConfig, ServeError, Server, Service};
