//! Sessions between a controller and its peers, as machines without I/O.
//!
//! Leaves out: how requests travel. Read [`Sessions`] and [`SiteSession`] first.

mod controller;
mod peer;
#[cfg(test)]
mod tests;

pub use controller::{
    COMMANDS_TOGETHER_MAX, Call, Called, NotRegistered, Position, QUEUE_MAX, Registered, Sessions, Taken,
};
pub use peer::SiteSession;
