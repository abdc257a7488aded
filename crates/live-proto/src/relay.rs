//! A relay of the data plane: one upstream request for each object, whatever the number of viewers.
//!
//! A viewer joins an object by its [`Key`]. The first viewer makes the relay ask a parent. With
//! [`RelayConfig::reads_ahead`] a complete playlist makes it ask for the next objects of a new
//! player, too. Bytes
//! are sent to all viewers as they arrive. A viewer that joins during the transfer gets the bytes
//! held, then further bytes. An answer is kept while `Cache-Control` and `Age` permit, within
//! [`RelayConfig::memory_max`].
//!
//! Faults of parents: a broken leg is replaced at once by another parent. A silent leg gets a
//! second leg after the time that module [`pace`] determines. The new leg resumes by `Range` and
//! `If-Range` if the object has a strong entity tag. Otherwise it restarts, and the bytes already
//! held are compared, not delivered again. If bytes or heads differ, the viewers' answers are
//! broken off.
//!
//! With [`RelayConfig::is_doubled`] each object is requested from two parents at once, and the
//! first copy of each byte is used. Different media are reported ([`Action::Differs`]), and never
//! mixed within an object. [`share_timeline`] detects sources with different timelines beforehand.
//!
//! Shared answers: requests to parents carry no data of a viewer (no cookie, no authorization), so
//! all viewers that wait for the head share the answer. While the body arrives, viewers join unless
//! `no-store` or `private` forbids it. Afterwards they join only while the answer is fresh.
//!
//! Contract: after any `handle_*` call, [`Relay::poll_action`] and [`Relay::poll_ready`] are
//! drained until `None`, then [`Relay::poll_timeout`] is read.
//! Source: RFC 9111 (caching), RFC 9110 section 14 (ranges), RFC 8586 (loops); VDN, section 4.2.1
//! (one upstream request for several requests at a node). Leaves out: sockets, and the choice of
//! the parent, which the driver makes for each request ([`Relay::handle_hop`]). Read [`Relay`]
//! first.

mod body;
pub mod cdn_loop;
mod head;
mod key;
mod legs;
mod machine;
mod object;
pub mod pace;
mod timeline;
mod viewers;

pub use head::{ByteRange, CacheControl, ContentRange, Head, PASSED_HEADERS};
pub use key::{Key, KeyError, QueryRule, TARGET_BYTES_MAX};
pub use machine::{Action, FetchRequest, Flow, Relay, RelayConfig, RelayConfigError, RelayCounts, Resume};
pub use object::{Failure, Hop, LegId, ViewerId};
pub use timeline::share_timeline;
pub use viewers::{Answer, JoinError, JoinRequest, ReadStep};

#[cfg(test)]
mod tests;
