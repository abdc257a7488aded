//! Questions to a store of decisions, and its answers.
//!
//! Leaves out: the stores, which are drivers'. Read [`StoreRequest`] and [`StoreReply`].

use std::sync::Arc;

/// Identity of the stored decision. The default stands for an empty store.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Revision of the store at which the value was written.
    pub revision: u64,
    /// Lead under which the round was decided; 0 for an unreadable value.
    pub epoch: u64,
    /// Round of the decision; 0 for an unreadable value.
    pub round: u64,
}

/// A question to the store. A store carries out every question.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreRequest<V> {
    /// Give the lead to this controller, for a lease, unless another one has it. If this one has it
    /// already, its lease starts again.
    Lead,
    /// Renew the lease.
    Renew {
        /// Number of the lead.
        epoch: u64,
    },
    /// Store a decision, if this lead still stands and the stored value is still `before`. If the
    /// decision is stored already, the answer is [`StoreReply::Kept`].
    Keep {
        /// Number of the lead.
        epoch: u64,
        /// Lead under which the round was decided: an earlier one if a known decision is written
        /// again.
        decided: u64,
        /// The value that is replaced.
        before: Stamp,
        /// The decision.
        decision: Arc<V>,
    },
    /// Read the stored decision.
    Read,
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreReply<V> {
    /// This controller leads. Its lease began no earlier than the question.
    Leads {
        /// Number of the lead, which no other lead has.
        epoch: u64,
        /// Revision of the whole store; it falls only if the store was replaced.
        revision: u64,
        /// The stored value.
        last: Stamp,
    },
    /// Another controller leads.
    Follows {
        /// Address of the leader for clients; `None` while no controller can lead.
        leader: Option<String>,
        /// Revision of the whole store.
        revision: u64,
        /// The stored value.
        last: Stamp,
    },
    /// The lease is renewed.
    Renewed {
        /// Revision of the whole store.
        revision: u64,
        /// The stored value.
        last: Stamp,
    },
    /// The decision is stored.
    Kept {
        /// Revision at which it was written.
        revision: u64,
    },
    /// The lead stands, but the stored value is not the expected one: nothing was done.
    Changed {
        /// The stored value.
        last: Stamp,
    },
    /// The lead does not stand any more: nothing was done.
    Lost,
    /// The stored decision.
    Last {
        /// The stored value.
        last: Stamp,
        /// Its content; `None` for an empty store or an unreadable value.
        decision: Option<Arc<V>>,
    },
}

impl<V> StoreRequest<V> {
    /// The same question about another form of the decision.
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
    /// The same answer with another form of the decision.
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
