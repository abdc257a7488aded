//! `replicate`: one file to many sites at the min-cut rate, through relays that code.
//!
//! Source: Tseng and others, *CodedBulk: Inter-Datacenter Bulk Transfers using Network Coding* (NSDI 2021).
//! Coordination (thesis, chapter 1): hierarchical partitioning. A controller that sees the whole topology decides the
//! code once per transfer; hop-by-hop flow control reacts locally and without it.
//!
//! Words used: a *plan* splits a file into equal-rate *flows*, each on one link; a *generation* is the piece of the
//! file that all flows of a coded group carry together; a *stream* is one of the symbols of a generation (coded) or
//! one tree's share of the file (routed); a *sink* is where a destination puts a file together again.
//!
//! Entry points: [`plan`] decides; [`program::programs`] makes each site's program from a [`plan::Plan`];
//! [`coordinator`] sees a transfer through, whatever breaks; a [`site::Site`] is one site's machine for one attempt, a
//! [`daemon::Daemon`] the one in front of all its attempts; [`sessions`] keep commands and reports between the two sides,
//! [`outbox`] keeps reports for a controller that is away,
//! [`unsaved`] keeps changes that a controller has yet to make durable;
//! [`control`] has the messages of controller and sites, [`msg`] those of a flow; [`draw`] makes pictures.

mod bps;
pub mod control;
pub mod coordinator;
pub mod daemon;
pub mod draw;
#[doc(hidden)]
pub mod exercise;
pub mod msg;
pub mod outbox;
pub mod pace;
pub mod plan;
pub mod program;
mod receiver;
mod relay;
mod sender;
pub mod sessions;
pub mod simulated;
pub mod site;
mod spool;
pub mod symbol;
pub mod unsaved;
pub mod work;
