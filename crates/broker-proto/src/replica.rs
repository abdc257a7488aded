//! Replication of the broker's decisions among brokers that share a store. One of them leads.
//!
//! Networks receive an accepted decision only after it is stored. Leaves out: elections
//! (`election`), the decisions (`broker`). Read [`Replica`] and [`standing`].

use crate::broker::{self, Broker, Decision, Job, NetworkTrust, Settings, ToNetwork, VoidReason};
use crate::optimiser::Answer;
use anabranch_election::Machine;
use anabranch_units::{Duration, Instant, PeerId};

pub use anabranch_election::{MISSED_ROUNDS_MAX, Stall, Stamp};

/// One of several brokers.
pub type Replica = anabranch_election::Replica<Broker>;
/// A change of the lead or of the decision.
pub type RoleChange = anabranch_election::RoleChange<Decision, VoidReason>;
/// An operation on the store of decisions.
pub type StoreRequest = anabranch_election::StoreRequest<Decision>;
/// Result of an operation on the store.
pub type StoreReply = anabranch_election::StoreReply<Decision>;

impl Machine for Broker {
    type Settings = Settings;
    type Value = Decision;
    type Message = (PeerId, ToNetwork);
    type Void = VoidReason;
    type Job = Job;
    type Answer = Answer;

    fn begin(now: Instant, settings: &Settings, rounds_after: u64, last: Option<&Decision>) -> Self {
        let new = Self::new(now, settings.clone()).with_rounds_after(rounds_after);
        match last {
            Some(decision) => new.with_accepted(decision.clone()),
            None => new,
        }
    }
    fn round(decision: &Decision) -> u64 {
        decision.round
    }
    fn round_time(settings: &Settings) -> Duration {
        settings.every
    }

    fn handle_answer(&mut self, now: Instant, job: &Job, answer: Answer) {
        self.handle_answer(now, job, answer);
    }
    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn poll_transmit(&mut self) -> Option<(PeerId, ToNetwork)> {
        self.poll_transmit()
    }
    fn poll_event(&mut self) -> Option<anabranch_election::Event<Decision, VoidReason>> {
        Some(match self.poll_event()? {
            broker::Event::Accepted(decision) => anabranch_election::Event::Accepted(decision),
            broker::Event::Void { round, why } => anabranch_election::Event::Void { round, why },
        })
    }
    fn poll_job(&mut self) -> Option<Job> {
        self.poll_job()
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }
}

/// Standing of a network: from the broker's state machine while this broker leads, else from the
/// stored decision.
pub fn standing(replica: &Replica, network: PeerId) -> Option<NetworkTrust> {
    match replica.machine() {
        Some(broker) => broker.standing(network),
        None => replica.known()?.standings.get(&network).copied(),
    }
}
