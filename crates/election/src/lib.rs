//! Leader election among controllers that share a store, and the replication of the leader's
//! decisions.
//!
//! The store grants leases, and compares before it writes (etcd, or a file with one user). One
//! controller holds the lease and leads: it runs its [`Machine`], which makes decisions in rounds.
//! A decision is stored before any client is notified of it. The store accepts a decision only if
//! the lease is still valid and the stored value is the value that the leader last read. The
//! followers adopt stored decisions and try to get the lead. A leader that cannot renew its lease
//! ends its lead by its own clock. A leader whose clock is slow is stopped by the store's
//! condition. So clocks affect how long no controller leads, but never which decisions are
//! accepted.
//!
//! Source: Gray and Cheriton, *Leases* (1989), section 2; Burrows, *The Chubby lock service*
//! (2006), section 2.4 (sequencers: here the number of the lead). Leaves out: the store, which a
//! driver provides, and the decisions, which a [`Machine`] makes. Read [`Replica`], [`Machine`] and
//! [`StoreRequest`] first.

mod machine;
mod replica;
mod store;

pub use machine::{Event, Machine};
pub use replica::{MISSED_ROUNDS_MAX, Replica, RoleChange, Stall};
pub use store::{Stamp, StoreReply, StoreRequest};
