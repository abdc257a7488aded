//! What a store of decisions is asked and answers, whichever it is.
//!
//! As `broker_proto::replica` has it, with decisions as they are written. Leaves out: the stores (`store`, `etcd`). Read [`Asked`] and [`Told`].

use crate::wire::DecisionView;
use std::sync::Arc;

/// A question to the store, with decisions as they are written (`replica::StoreAsk`).
#[derive(Debug)]
pub(crate) enum Asked {
    Lead,
    Renew { epoch: u64 },
    Keep { epoch: u64, before: u64, view: Arc<DecisionView> },
    Read,
}

/// Its answer (`replica::StoreTold`).
#[derive(Debug)]
pub(crate) enum Told {
    Leads { epoch: u64, round: u64 },
    Follows { leader: Option<String>, round: u64 },
    Renewed,
    Kept,
    Lost,
    Last(Option<DecisionView>),
}
