//! What a store of decisions is asked and answers, whichever it is.
//!
//! As `broker_proto::replica` has it, with decisions as they are written. Leaves out: the stores (`store`, `etcd`). Read [`Asked`] and [`Told`].

use crate::wire::DecisionView;
use anabranch_broker_proto::replica::Stamp;
use std::sync::Arc;

/// A question to the store, with decisions as they are written (`replica::StoreAsk`).
#[derive(Debug)]
pub(crate) enum Asked {
    Lead,
    Renew { epoch: u64 },
    Keep { epoch: u64, decided: u64, before: Stamp, view: Arc<DecisionView> },
    Read,
}

/// Its answer (`replica::StoreTold`).
#[derive(Debug)]
pub(crate) enum Told {
    Leads { epoch: u64, revision: u64, last: Stamp },
    Follows { leader: Option<String>, revision: u64, last: Stamp },
    Renewed { revision: u64, last: Stamp },
    Kept { revision: u64 },
    Changed { last: Stamp },
    Lost,
    Last { last: Stamp, view: Option<DecisionView> },
}
