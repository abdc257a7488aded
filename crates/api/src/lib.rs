//! HTTP services: the controller and its client.
//!
//! The controller is `replicate`'s coordinator behind HTTP/1.1 over mutual TLS, with its transfers in an embedded store:
//! killed at any time, it goes on from the last state that anybody outside could have seen. Sites poll for commands and
//! post reports, so only the controller listens. A site may only speak for itself.
//!
//! Leaves out: data (the `net` room and the sites) and planning (injected). Read [`Controller`], [`Client`] and
//! [`SiteLink`] first.

mod client;
mod controller;
mod exercise;
mod http;
mod server;
mod store;
pub mod wire;

pub use client::{Client, ClientError, SiteLink, Watch, WatchItem};
pub use controller::{BoxedPlanner, Controller, ControllerConfig};
#[doc(hidden)]
pub use exercise::exercise;
pub use server::{ServeConfig, ServeError, Server};
pub use store::StoreError;
