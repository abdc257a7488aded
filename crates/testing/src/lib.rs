//! Parts that the tests of several crates share: fault schedules, free ports, skip reasons, the
//! replay of fuzz corpora, and a reader of metrics.
//!
//! Crates use this crate as a dev-dependency only. Read [`faults::Schedule`], [`skip::skip`] or
//! [`replay`].
#![allow(clippy::disallowed_methods, reason = "tests read the environment and their corpora")]

pub mod exposition;
pub mod faults;
pub mod ports;
mod replay;
pub mod skip;

pub use replay::replay;
