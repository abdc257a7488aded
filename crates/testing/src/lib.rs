//! Parts that the tests of several rooms share: fault schedules, skip reasons, replay of fuzz corpora,
//! a reader of metrics.
//!
//! Rooms have it as a dev-dependency only. Read [`faults::Schedule`], [`skip::skip`] or [`replay`].
#![allow(clippy::disallowed_methods, reason = "tests read the environment and their corpora")]

pub mod exposition;
pub mod faults;
mod replay;
pub mod skip;

pub use replay::replay;
