//! Changes of a controller's transfers that are not durable yet. Until they are durable, none of
//! their consequences leave the controller.
//!
//! A controller that fails can therefore announce nothing that its successor does not know, and no
//! controller uses an attempt number twice. Leaves out: the store, and the outgoing messages. Read
//! [`UnsavedTransfers`] first.

use crate::control::TransferId;
use crate::coordinator::{Coordinator, Planner};
use anabranch_units::{Duration, Instant};
use std::collections::BTreeSet;

/// Time before a failed write to the store is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The next action of a controller after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// In one transaction, write the [`Coordinator::snapshot`] of each transfer, and the value of
    /// [`Coordinator::next_transfer`]. Delete the record of a transfer without a snapshot. Then
    /// call [`UnsavedTransfers::handle_saved`] or [`UnsavedTransfers::handle_failed`], and ask
    /// again.
    Save(Vec<TransferId>),
    /// Send commands, answers and events: all of their causes are durable.
    LetOut,
    /// Send nothing: the store failed, and the next try is at [`UnsavedTransfers::poll_timeout`].
    Wait,
}

/// The changed transfers that are not durable yet.
#[derive(Clone, Debug, Default)]
pub struct UnsavedTransfers {
    transfers: BTreeSet<TransferId>,
    /// Reason of the last failed write, and the time of the next try.
    failure: Option<(String, Instant)>,
}

impl UnsavedTransfers {
    /// The next action. Call this function after any change of the coordinator.
    pub fn poll<P: Planner>(&mut self, now: Instant, coordinator: &mut Coordinator<P>) -> NextAction {
        self.transfers.extend(std::iter::from_fn(|| coordinator.poll_changed()));
        if self.transfers.is_empty() {
            NextAction::LetOut
        } else if self.poll_timeout().is_some_and(|due| now < due) {
            NextAction::Wait
        } else {
            NextAction::Save(self.transfers.iter().copied().collect())
        }
    }

    /// Records that the transfers of the last [`NextAction::Save`] are durable.
    pub fn handle_saved(&mut self) {
        *self = Self::default();
    }

    /// Records that the store could not be written.
    pub fn handle_failed(&mut self, now: Instant, reason: String) {
        self.failure = Some((reason, now + RETRY));
    }

    /// Reason why nothing is sent now, if any. In that state, refuse new transfers. A transfer that
    /// was accepted before the write failed must be cancelled and refused too.
    pub fn trouble(&self) -> Option<&str> {
        self.failure.as_ref().map(|(reason, _)| reason.as_str())
    }

    /// Time of the next try to write to the store.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.failure.as_ref().map(|(_, due)| *due)
    }
}
