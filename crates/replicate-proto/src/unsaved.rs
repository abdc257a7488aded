//! What of a controller's transfers changed and is not durable yet. Until it is, nothing of it leaves the controller.
//!
//! So a controller that dies can promise nothing that its successor does not know, and no number of an attempt is given twice.
//! Leaves out: the store itself, and what leaves. Read [`Unsaved`] first.

use crate::control::TransferId;
use crate::coordinator::{Coordinator, Planner};
use anabranch_units::{Duration, Instant};
use std::collections::BTreeSet;

/// How long to wait before a failed write to the store is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What a controller is to do after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Make these transfers durable, all or none, together with [`Coordinator::next_transfer`]: of each the
    /// [`Coordinator::snapshot`], or that it is forgotten. Then call [`Unsaved::handle_saved`] or [`Unsaved::handle_failed`], and
    /// ask again.
    Save(Vec<TransferId>),
    /// Let commands, answers and events out: all that they follow from is durable.
    LetOut,
    /// Let nothing out: the store failed, and is tried again at [`Unsaved::poll_timeout`].
    Wait,
}

/// The transfers that changed and are not durable yet.
#[derive(Clone, Debug, Default)]
pub struct Unsaved {
    transfers: BTreeSet<TransferId>,
    /// Why the last write failed, and when the next one is due.
    failure: Option<(String, Instant)>,
}

impl Unsaved {
    /// What to do now, after whatever changed the coordinator.
    pub fn poll<P: Planner>(&mut self, now: Instant, coordinator: &mut Coordinator<P>) -> Next {
        self.transfers.extend(std::iter::from_fn(|| coordinator.poll_changed()));
        if self.transfers.is_empty() {
            Next::LetOut
        } else if self.poll_timeout().is_some_and(|due| now < due) {
            Next::Wait
        } else {
            Next::Save(self.transfers.iter().copied().collect())
        }
    }

    /// What was to be saved is durable.
    pub fn handle_saved(&mut self) {
        *self = Self::default();
    }

    /// The store could not be written.
    pub fn handle_failed(&mut self, now: Instant, reason: String) {
        self.failure = Some((reason, now + RETRY));
    }

    /// Why nothing leaves now, if so. New transfers are to be refused meanwhile. One that was taken on before the write failed is to
    /// be cancelled, and refused, too.
    pub fn trouble(&self) -> Option<&str> {
        self.failure.as_ref().map(|(reason, _)| reason.as_str())
    }

    /// When the store is tried again.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.failure.as_ref().map(|(_, due)| *due)
    }
}
