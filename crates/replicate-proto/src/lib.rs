//! `replicate`: one file to many sites at the min-cut rate, through relays that code.
//!
//! Source: Tseng and others, *CodedBulk: Inter-Datacenter Bulk Transfers using Network Coding*
//! (NSDI 2021). Coordination (thesis, chapter 1): hierarchical partitioning. A controller with a
//! view of the whole topology decides the code once per transfer; hop-by-hop flow control reacts
//! locally and without the controller.
//!
//! Terms: a *plan* splits a file into equal-rate *flows*, each on one link; a *generation* is the
//! piece of the file that all flows of a coded group carry together; a *stream* is one of the
//! symbols of a generation (coded) or one tree's share of the file (routed); a *sink* is the part
//! of a destination that reassembles a file.
//!
//! Entry points: [`plan`] decides; [`program::programs`] makes each site's program from a
//! [`plan::Plan`]. [`coordinator`] completes a transfer in spite of failures. A [`site::Site`] is
//! one site's state machine for one attempt. A [`daemon::Daemon`] is a site's state machine for the
//! commands of all its attempts. [`sessions`] transfer commands and reports between controller and
//! site. [`outbox`] stores reports while the controller is unreachable. [`unsaved_transfers`]
//! stores changes that a controller has not made durable yet. [`control`] has the messages of
//! controller and sites, [`msg`] the messages of a flow; [`draw`] makes pictures.

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
pub mod unsaved_transfers;
pub mod work;
