//! Stores of a controller's decisions, with the lead among controllers that share a store: a file
//! for a controller that is alone, etcd for several.
//!
//! A store keeps one value of any type that is [`StoredValue`]. [`anabranch_election::Replica`]
//! asks the questions; a store answers them. Leaves out: who leads when (`election`). Read
//! [`SharedStore`], [`FileStore`] and [`EtcdStore`] first.
//!
//! A controller that is alone stores a value, and knows it after a restart:
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
    /// Name of its form: the system's word, a blank and the version, as `broker 1`. A store refuses
    /// a value of another version.
    const FORMAT: &'static str;
    /// Number of the round in which it was decided.
    fn round(&self) -> u64;
}

/// The system's word in a name of a form.
fn word<V: StoredValue>() -> &'static str {
    V::FORMAT.rsplit_once(' ').map_or(V::FORMAT, |(word, _)| word)
}

/// A store that controllers may share.
pub trait SharedStore<V>: Send + Sync {
    /// Time for which a lead lasts without a renewal; `None` for a store with one user, whose lead
    /// does not end.
    fn lease(&self) -> Option<Duration>;
    /// Answers a question. Blocks until the store has answered.
    ///
    /// Errors: a store that cannot be used. The question may have been carried out.
    fn answer(&self, ask: &StoreRequest<V>) -> Result<StoreReply<V>, LeaseError>;
    /// Gives the lead back, so that another controller need not wait for the end of the lease.
    ///
    /// Errors: a store that cannot be used; the lead then ends with the lease.
    fn leave(&self) -> Result<(), LeaseError>;
}

/// Reason for a missing answer of a store.
#[derive(Debug)]
#[non_exhaustive]
pub enum LeaseError {
    /// The file cannot be used.
    File(StoreError),
    /// No member of etcd has answered, or an answer cannot be read.
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
