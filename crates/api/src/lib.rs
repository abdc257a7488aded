//! HTTP services: a system's controller behind HTTP, and its clients.
//!
//! `replicate`'s is at the top of this room, `shuffle`'s coordinator in [`shuffle`]; they share the server, and how they
//! refuse, connect and count. The controller is `replicate`'s coordinator behind HTTP/1.1 over mutual TLS, with its
//! transfers in an embedded store: killed at any time, it goes on from the last state that anybody outside could have
//! seen. Sites poll for commands and post reports, so only the controller listens. A site may only speak for itself.
//!
//! Leaves out: data (the `net` room and the sites) and planning (injected). Read [`Controller`], [`Client`] and
//! [`SiteLink`] first.

mod answer;
mod client;
mod connection;
mod controller;
mod exercise;
mod http;
mod metrics;
mod server;
pub mod shuffle;
mod store;
pub mod wire;

pub use answer::BODY_BYTES_MAX;
pub use client::{Client, SiteLink, Watch, WatchItem};
pub use connection::ClientError;
pub use controller::{BoxedPlanner, Controller, ControllerConfig};
#[doc(hidden)]
pub use exercise::{exercise, exercise_http, exercise_replies};
pub use server::{SMALL_BODY_BYTES, ServeConfig, ServeError, Server, Service};
pub use store::{StoreError, Times};
