//! A model of the brokers' shared store: leases, and compare-and-set writes, as etcd guarantees
//! them.
//!
//! Leaves out: failures, which its callers model. Read [`Store`].

use anabranch_broker_proto::broker::Decision;
use anabranch_broker_proto::replica::{Stamp, StoreReply, StoreRequest};
use anabranch_units::{Duration, Instant};
use std::sync::Arc;

/// Lifetime of a lead that is not renewed.
pub const LEASE: Duration = Duration::from_secs(9);

/// The stored value of the last decision; `decision` is `None` if the value is unreadable.
#[derive(Clone, Default)]
pub struct LastValue {
    pub stamp: Stamp,
    pub decision: Option<Arc<Decision>>,
}

/// A linearizable etcd.
#[derive(Default)]
pub struct Store {
    pub revision: u64,
    /// Incarnation of the leader, its epoch, and the end of its lease.
    pub leader: Option<(u64, u64, Instant)>,
    pub value: LastValue,
    /// All values that brokers have written, in order.
    pub written: Vec<LastValue>,
    /// All decisions ever stored, in order; a decision that was written twice appears once.
    pub kept: Vec<Arc<Decision>>,
}

impl Store {
    pub fn answer(&mut self, now: Instant, id: u64, ask: &StoreRequest) -> StoreReply {
        self.leader.take_if(|(_, _, until)| *until <= now);
        let (revision, last) = (self.revision, self.value.stamp);
        let holds = |leader: &Option<(u64, u64, Instant)>, epoch: u64| {
            leader.is_some_and(|(holder, its, _)| holder == id && its == epoch)
        };
        match ask {
            StoreRequest::Lead => match self.leader {
                Some((holder, epoch, _)) if holder == id => {
                    self.leader = Some((id, epoch, now + LEASE));
                    StoreReply::Leads { epoch, revision, last }
                }
                Some((holder, _, _)) => {
                    StoreReply::Follows { leader: Some(format!("broker {holder}")), revision, last }
                }
                None => {
                    self.revision += 1;
                    self.leader = Some((id, self.revision, now + LEASE));
                    StoreReply::Leads { epoch: self.revision, revision: self.revision, last }
                }
            },
            StoreRequest::Renew { epoch } if holds(&self.leader, *epoch) => {
                self.leader = Some((id, *epoch, now + LEASE));
                StoreReply::Renewed { revision, last }
            }
            StoreRequest::Keep { decided, decision, .. }
                if (last.epoch, last.round) == (*decided, decision.round) =>
            {
                StoreReply::Kept { revision: last.revision }
            }
            StoreRequest::Keep { epoch, decided, before, decision } if holds(&self.leader, *epoch) => {
                if *before != last {
                    return StoreReply::Changed { last };
                }
                self.revision += 1;
                let stamp = Stamp { revision: self.revision, epoch: *decided, round: decision.round };
                self.value = LastValue { stamp, decision: Some(Arc::clone(decision)) };
                self.written.push(self.value.clone());
                if !self.kept.contains(decision) {
                    self.kept.push(Arc::clone(decision));
                }
                StoreReply::Kept { revision: self.revision }
            }
            StoreRequest::Read => StoreReply::Last { last, decision: self.value.decision.clone() },
            _ => StoreReply::Lost,
        }
    }

    /// Writes or deletes the value from outside.
    pub fn tamper(&mut self, value: Option<LastValue>) {
        self.revision += 1;
        self.value = value.unwrap_or_default();
        if self.value.decision.is_some() || self.value.stamp.round > 0 {
            self.value.stamp.revision = self.revision;
        }
    }

    /// Makes the value unreadable except for its stamp, which has this epoch and round.
    pub fn spoil(&mut self, epoch: u64, round: u64) {
        self.revision += 1;
        self.value = LastValue { stamp: Stamp { revision: self.revision, epoch, round }, decision: None };
    }
}
