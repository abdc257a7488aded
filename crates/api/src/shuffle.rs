//! `shuffle`'s coordinator as a service, and its client.
//!
//! Agents join, report what has become of their hosts' flows, and wait for limits; operators look. One decision follows
//! what has been reported, at once: reports that come while one is made are in the next. Rates need no store, as agents
//! say all anew; transfers that have ended are kept in one.
//!
//! Source: Ren and Wang (2016), section 5.2. Leaves out: what decides (`anabranch_shuffle`), what enforces (agents).
//! Read [`CoordinatorService`], [`Client`] and [`wire`] first.

mod client;
mod exercise;
mod http;
mod service;
mod store;
pub mod wire;

pub use client::Client;
#[doc(hidden)]
pub use exercise::{exercise, exercise_limits};
pub use service::{CoordinatorService, CoordinatorServiceConfig};
