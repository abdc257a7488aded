//! Requests to a store of decisions, and its answers.
//!
//! Leaves out: the stores, which the drivers provide. Read [`StoreRequest`] and [`StoreReply`].

use std::sync::Arc;

/// Identity of the stored decision. The default denotes an empty store.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Revision of the store at which the value was written.
    pub revision: u64,
    /// Lead under which the round was decided; 0 for an unreadable value.
    pub epoch: u64,
    /// Round of the decision; 0 for an unreadable value.
    pub round: u64,
}

/// A request to the store. Every store supports all requests.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreRequest<V> {
    /// Give the lead to this controller, for the duration of a lease, unless another controller
    /// leads. If this controller leads already, its lease starts again.
    Lead,
    /// Renew the lease.
    Renew {
        /// Number of the lead.
        epoch: u64,
    },
    /// Store a decision, if this lead is still valid and the stored value is still `before`. If the
    /// decision is stored already, the answer is [`StoreReply::Kept`].
    Keep {
        /// Number of the lead.
        epoch: u64,
        /// Lead under which the round was decided: an earlier lead if a known decision is written
        /// again.
        decided: u64,
        /// Stamp of the value that is replaced.
        before: Stamp,
        /// Decision to store.
        decision: Arc<V>,
    },
    /// Read the stored decision.
    Read,
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreReply<V> {
    /// This controller leads. Its lease began no earlier than the request was sent.
    Leads {
        /// Number of the lead, which no other lead has.
        epoch: u64,
        /// Revision of the whole store, which decreases only if the store was replaced.
        revision: u64,
        /// Stamp of the stored value.
        last: Stamp,
    },
    /// Another controller leads.
    Follows {
        /// Address of the leader for clients. `None` while no controller can lead.
        leader: Option<String>,
        /// Revision of the whole store.
        revision: u64,
        /// Stamp of the stored value.
        last: Stamp,
    },
    /// The lease is renewed.
    Renewed {
        /// Revision of the whole store.
        revision: u64,
        /// Stamp of the stored value.
        last: Stamp,
    },
    /// The decision is stored.
    Kept {
        /// Revision of the store at which the decision was written.
        revision: u64,
    },
    /// The lead is valid, but the stored value is not the expected value: nothing was written.
    Changed {
        /// Stamp of the stored value.
        last: Stamp,
    },
    /// The lead is not valid: nothing was changed.
    Lost,
    /// The stored decision.
    Last {
        /// Stamp of the stored value.
        last: Stamp,
        /// The stored decision. `None` for an empty store or an unreadable value.
        decision: Option<Arc<V>>,
    },
}

impl<V> StoreRequest<V> {
    /// The same request with another representation of the decision.
    pub fn map<U>(self, form: impl FnOnce(Arc<V>) -> Arc<U>) -> StoreRequest<U> {
        match self {
            Self::Lead => StoreRequest::Lead,
            Self::Renew { epoch } => StoreRequest::Renew { epoch },
            Self::Keep { epoch, decided, before, decision } => {
                StoreRequest::Keep { epoch, decided, before, decision: form(decision) }
            }
            Self::Read => StoreRequest::Read,
        }
    }
}

impl<V> StoreReply<V> {
    /// The same answer with another representation of the decision.
    pub fn map<U>(self, form: impl FnOnce(Arc<V>) -> Arc<U>) -> StoreReply<U> {
        match self {
            Self::Leads { epoch, revision, last } => StoreReply::Leads { epoch, revision, last },
            Self::Follows { leader, revision, last } => StoreReply::Follows { leader, revision, last },
            Self::Renewed { revision, last } => StoreReply::Renewed { revision, last },
            Self::Kept { revision } => StoreReply::Kept { revision },
            Self::Changed { last } => StoreReply::Changed { last },
            Self::Lost => StoreReply::Lost,
            Self::Last { last, decision } => StoreReply::Last { last, decision: decision.map(form) },
        }
    }
}
