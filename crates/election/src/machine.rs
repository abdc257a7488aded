//! The contract of a machine whose decisions are replicated.
//!
//! Leaves out: who leads (`replica`). Read [`Machine`].

use anabranch_units::{Duration, Instant};
use std::sync::Arc;

/// A machine that decides in rounds, while its controller leads.
///
/// Contract: one mutation, then `poll_*` to `None`, then [`Machine::poll_timeout`]. Numbers of
/// rounds rise.
pub trait Machine: Sized {
    /// Settings, which stay the same from lead to lead.
    type Settings: Clone;
    /// A decision, with the number of its round.
    type Value: PartialEq;
    /// A message to a client of the leader, with the client's address.
    type Message;
    /// Why a round changes nothing.
    type Void;
    /// Work that a driver runs apart from the machine.
    type Job;
    /// Result of a [`Machine::Job`].
    type Answer;

    /// A machine at the begin of a lead: `last` is the decision in force, and rounds have higher
    /// numbers than `rounds_after` and than the round of `last`.
    fn begin(now: Instant, settings: &Self::Settings, rounds_after: u64, last: Option<&Self::Value>) -> Self;
    /// Number of the round in which `value` was decided.
    fn round(value: &Self::Value) -> u64;
    /// Time between the begins of two rounds.
    fn round_time(settings: &Self::Settings) -> Duration;

    /// Takes in the result of a job.
    fn handle_answer(&mut self, now: Instant, job: &Self::Job, answer: Self::Answer);
    /// Runs the deadlines that are due.
    fn handle_timeout(&mut self, now: Instant);

    /// The next message, until `None`. A message that follows from a decision comes after its
    /// event.
    fn poll_transmit(&mut self) -> Option<Self::Message>;
    /// The end of a round, until `None`.
    fn poll_event(&mut self) -> Option<Event<Self::Value, Self::Void>>;
    /// The next job, until `None`.
    fn poll_job(&mut self) -> Option<Self::Job>;
    /// When [`Machine::handle_timeout`] is due.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// The end of a machine's round.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<V, W> {
    /// The round has a decision.
    Accepted(Arc<V>),
    /// The round changes nothing.
    Void {
        /// Number of the round.
        round: u64,
        /// The reason.
        why: W,
    },
}
