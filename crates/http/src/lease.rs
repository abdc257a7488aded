//! Stores of a controller's decisions and of the lead: a file for a single controller, etcd for
//! several controllers that share a store.
//!
//! A store keeps one value of any type that implements [`StoredValue`].
//! [`anabranch_election::Replica`] makes the requests; a store answers them. Leaves out: the rules
//! of elections (`election`). Read [`SharedStore`], [`FileStore`] and [`EtcdStore`] first.
//!
//! A single controller stores a value, and reads it after a restart:
//!
//! ```
//! use anabranch_election::{Stamp, StoreReply, StoreRequest};
//! use anabranch_http::lease::{FileStore, SharedStore, StoredValue};
//! use std::sync::Arc;
//!
//! #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
//! struct Plan { round: u64, trees: Vec<String> }
//!
//! impl StoredValue for Plan {
//!     const FORMAT: &'static str = "planner 1";
//!     fn round(&self) -> u64 { self.round }
//! }
//!
//! let store: Box<dyn SharedStore<Plan>> = Box::new(FileStore::in_memory()?);
//! let before = Stamp::default();
//! let plan = Arc::new(Plan { round: 1, trees: vec!["a-b".to_owned()] });
//! let decision = Arc::clone(&plan);
//! store.answer(&StoreRequest::Keep { epoch: 1, decided: 1, before, decision })?;
//! let last = store.answer(&StoreRequest::Read)?;
//! let StoreReply::Last { decision, .. } = last else { unreachable!() };
//! assert_eq!(decision, Some(plan));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod etcd;
mod file;

pub(crate) use etcd::is_etcd_answer;
pub use etcd::{EtcdConfig, EtcdConfigError, EtcdStore, PARTS_MAX};
pub use file::FileStore;

use crate::store::StoreError;
use anabranch_election::{StoreReply, StoreRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::time::Duration;

/// A value that a [`SharedStore`] keeps, as JSON.
pub trait StoredValue: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Name of the value's format: the system's word, a blank and the version, as `broker 1`. A
    /// store refuses a value of another version.
    const FORMAT: &'static str;
    /// Number of the round in which the value was decided.
    fn round(&self) -> u64;
}

/// The system's word in the name of the format.
fn word<V: StoredValue>() -> &'static str {
    V::FORMAT.rsplit_once(' ').map_or(V::FORMAT, |(word, _)| word)
}

/// A store that controllers may share.
pub trait SharedStore<V>: Send + Sync {
    /// Time for which a lead lasts without a renewal; `None` for a store with a single user, whose
    /// lead does not expire.
    fn lease(&self) -> Option<Duration>;
    /// Carries out a request. Blocks until the store has answered.
    ///
    /// Errors: a store that cannot be used; it may nevertheless have carried out the request.
    fn answer(&self, ask: &StoreRequest<V>) -> Result<StoreReply<V>, LeaseError>;
    /// Resigns the lead, so that another controller need not wait for the end of the lease.
    ///
    /// Errors: a store that cannot be used; the lead then expires with the lease.
    fn leave(&self) -> Result<(), LeaseError>;
}

/// Reason why a store has not answered.
#[derive(Debug)]
#[non_exhaustive]
pub enum LeaseError {
    /// The file cannot be used.
    File(StoreError),
    /// No member of etcd has answered, or an answer is unreadable.
    Etcd {
        /// The member and the fault, in one line.
        reason: String,
    },
}

impl fmt::Display for LeaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::Etcd { reason } => f.write_str(reason),
        }
    }
}
impl std::error::Error for LeaseError {}

impl From<StoreError> for LeaseError {
    fn from(error: StoreError) -> Self {
        Self::File(error)
    }
}
