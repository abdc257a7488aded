//! Transports as protocol machines: TCP with its congestion controls, BBR and TFRC for other
//! streams, and UDP sources.
//!
//! Each machine is an [`anabranch_endpoint::Endpoint`]: its inputs are time and segments; its
//! outputs are segments, events and a deadline. Segments carry lengths, not bytes. A stream is
//! identified by its positions, and a caller that needs contents stores them by position.
//!
//! Terms: a *position* counts the bytes of one direction of a connection from 0. Bytes *in flight*
//! were sent and are neither acknowledged nor found lost. An *episode* is one recovery from loss.
//!
//! Sources: RFC 9293 (TCP), 5681 and 6582 (NewReno), 2018 and 6675 (SACK), 6298 (retransmission
//! timer), 7323 (timestamps), 8985 (RACK and TLP), 2883 (DSACK), 3042 (limited transmit), 6928
//! (initial window), 9438 (Cubic), 9406 (HyStart++), 8257 (DCTCP), 3168 (ECN), 5348 (TFRC),
//! draft-ietf-ccwg-bbr-06 (BBR) and draft-cardwell-iccrg-bbr-congestion-control-00 (its first
//! version), Ultra Ethernet Specification 1.0 (NSCC), Mukerjee's thesis, §2.4.4 (reTCP). Each file
//! cites its sections and marks where it differs.
//!
//! Invariants: nothing is sent beyond the peer's window except probes, or beyond the congestion
//! window except limited transmit, loss probes and the first segment of a recovery. A pacing limit
//! is never exceeded. Bytes are delivered once and in order. Every loss is repaired, or the
//! connection is given up with an event.
//!
//! Leaves out: packets and links (`fabric`), and real sockets (`net`, which uses the kernel's TCP).
//! Read [`Connection`], [`Config`] and [`Segment`] first.

pub mod bbr;
mod config;
mod congestion;
mod connection;
mod controls;
mod pacing;
mod rack;
mod ranges;
mod receive;
mod rtt;
mod segment;
mod send;
pub mod tfrc;
mod udp;

pub use config::{Config, ConfigError};
pub use congestion::{Ack, CircuitMark, Congestion, Window};
pub use connection::{Connection, Counters, Event, State};
pub use controls::Control;
pub use rtt::RttEstimator;
pub use segment::{SACK_BLOCKS_MAX, SackBlocks, Segment};
pub use udp::{Datagram, Pattern, UdpSource, exponential};
