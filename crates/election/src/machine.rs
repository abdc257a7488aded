//! The contract of a machine whose decisions are replicated.
//!
//! Leaves out: the election of the leader (`replica`). Read [`Machine`].

use anabranch_units::{Duration, Instant};
use std::sync::Arc;

/// A machine that makes decisions in rounds while its controller leads.
///
/// Contract: one mutation, then `poll_*` to `None`, then [`Machine::poll_timeout`]. The numbers of
/// rounds increase.
pub trait Machine: Sized {
    /// Settings, which are the same for all leads.
    type Settings: Clone;
    /// A decision, with the number of its round.
    type Value: PartialEq;
    /// A message to a client of the leader, with the client's address.
    type Message;
    /// Reason why a round changes nothing.
    type Void;
    /// Work that a driver runs outside the machine.
    type Job;
    /// Result of a [`Machine::Job`].
    type Answer;

    /// Creates the machine at the beginning of a lead. `last` is the decision in force. Rounds have
    /// higher numbers than `rounds_after` and than the round of `last`.
    fn begin(now: Instant, settings: &Self::Settings, rounds_after: u64, last: Option<&Self::Value>) -> Self;
    /// Number of the round in which `value` was decided.
    fn round(value: &Self::Value) -> u64;
    /// Time between the beginnings of two rounds.
    fn round_time(settings: &Self::Settings) -> Duration;

    /// Takes the result of a job.
    fn handle_answer(&mut self, now: Instant, job: &Self::Job, answer: Self::Answer);
    /// Handles the deadlines that have passed.
    fn handle_timeout(&mut self, now: Instant);

    /// The next message. `None` if no message is left. A message that follows from a decision is
    /// returned after the event of the decision.
    fn poll_transmit(&mut self) -> Option<Self::Message>;
    /// The next end of a round. `None` if no event is left.
    fn poll_event(&mut self) -> Option<Event<Self::Value, Self::Void>>;
    /// The next job. `None` if no job is left.
    fn poll_job(&mut self) -> Option<Self::Job>;
    /// Time of the next call of [`Machine::handle_timeout`].
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
        /// Reason why the round changes nothing.
        why: W,
    },
}
