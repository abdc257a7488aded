//! A relay of the data plane: one upstream request for each object, whatever the number of viewers.
//!
//! A viewer joins an object by its [`Key`]; the first one makes the relay ask a parent. Bytes go to
//! all viewers as they arrive, and a viewer that joins during the transfer gets what is there, then
//! the rest. An answer is kept while `Cache-Control` and `Age` permit, within
//! [`RelayConfig::memory_max`].
//!
//! Faults of parents: a broken leg is replaced at once by another parent, a silent one is doubled
//! after the time that module [`pace`] states. The new leg resumes by `Range` and `If-Range` if the
//! object has a strong entity tag; otherwise it restarts, and the bytes that are there already are
//! compared and not delivered again. If they differ, or the heads do, the viewers' answers break
//! off.
//!
//! With [`RelayConfig::is_doubled`] each object is asked of two parents at once, and the first copy of
//! each byte counts. Media that differ are reported ([`Action::Differs`]), and so are never mixed
//! within an object; [`share_timeline`] tells two sources of one stream apart beforehand.
//!
//! Which answers are shared: requests to parents carry nothing of a viewer (no cookie, no
//! authorization), so all viewers that wait for the head share it. While the body arrives, viewers
//! join unless `no-store` or `private` forbids it; afterwards only while the answer is fresh.
//!
//! Contract: after any `handle_*` call, [`Relay::poll_action`] and [`Relay::poll_ready`] are
//! drained until `None`, then [`Relay::poll_timeout`] is read.
//! Source: RFC 9111 (caching), RFC 9110 section 14 (ranges), RFC 8586 (loops); VDN, section 4.2.1
//! (one request upwards for several at one node). Leaves out: sockets, and the choice of the
//! parent, which the driver makes for each request ([`Relay::handle_hop`]). Read [`Relay`] first.

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
