//! Leader election among controllers that share a store, and the replication of the leader's
//! decisions.
//!
//! The store has leases, and compares before it writes (etcd, or a file with one user). One
//! controller holds the lease and leads: it runs its [`Machine`], which decides in rounds. A
//! decision is stored before any client is told of it; the store takes it on the condition that the
//! lease still stands and that the stored value is the one that the leader saw last. The followers
//! take over stored decisions and try for the lead. A leader that cannot renew its lease ends its
//! lead by its clock. The store's condition stops a leader whose clock is slow. Clocks therefore
//! change how long nobody leads, never what is accepted.
//!
//! Source: Gray and Cheriton, *Leases* (1989), section 2; Burrows, *The Chubby lock service*
//! (2006), section 2.4 (sequencers: here the number of the lead). Leaves out: the store (a
//! driver's), and the decisions (a [`Machine`]'s). Read [`Replica`], [`Machine`] and
//! [`StoreRequest`] first.

mod machine;
mod replica;
mod store;

pub use machine::{Event, Machine};
pub use replica::{MISSED_ROUNDS_MAX, Replica, RoleChange, Stall};
pub use store::{Stamp, StoreReply, StoreRequest};
