//! State of a controller that survives restarts: number of the lead, drained nodes, the network.
//!
//! The state changes by successive decisions. `anabranch_election` stores each decision before it
//! takes effect. Leaves out: the store, and plans, which each lead computes itself. Read
//! [`Registry`].

use crate::description::Description;
use anabranch_election::{Event, Machine};
use anabranch_http::lease::StoredValue;
use anabranch_units::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

/// Period from which the election derives missed decisions. A registry decides only on request.
const ROUND_TIME: Duration = Duration::from_secs(20);

/// State of a controller that survives restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ControllerState {
    /// Number of the decision.
    pub(super) round: u64,
    /// Number of the last lead.
    pub(super) lead: u64,
    /// Names of the drained nodes.
    pub(super) draining: BTreeSet<String>,
    /// Number of changes of the network, plus one. 0 in a store written before such changes
    /// existed.
    #[serde(default)]
    pub(super) version: u64,
    /// The network; `None` in a store written before the network was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Description>,
}

impl StoredValue for ControllerState {
    const FORMAT: &'static str = "live 1";

    fn round(&self) -> u64 {
        self.round
    }
}

/// State machine of the decisions. See the module.
pub(super) struct Registry {
    head: ControllerState,
    decisions: VecDeque<Arc<ControllerState>>,
}

impl Registry {
    /// The state after all decisions, including decisions that are not stored yet.
    pub(super) const fn head(&self) -> &ControllerState {
        &self.head
    }

    /// Makes `state` the next decision. Returns its number.
    pub(super) fn decide(&mut self, state: ControllerState) -> u64 {
        self.head = ControllerState { round: self.head.round + 1, ..state };
        self.decisions.push_back(Arc::new(self.head.clone()));
        self.head.round
    }
}

impl Machine for Registry {
    /// The network of a new store.
    type Settings = Arc<Description>;
    type Value = ControllerState;
    type Message = Infallible;
    type Void = Infallible;
    type Job = Infallible;
    type Answer = Infallible;

    fn begin(
        _: Instant,
        first: &Arc<Description>,
        rounds_after: u64,
        last: Option<&ControllerState>,
    ) -> Self {
        let mut state = last.cloned().unwrap_or_default();
        state.lead += 1;
        state.version = state.version.max(1);
        state.network.get_or_insert_with(|| Description::clone(first));
        let round = state.round.max(rounds_after);
        let mut new = Self {
            head: ControllerState { round, ..ControllerState::default() },
            decisions: VecDeque::new(),
        };
        new.decide(state);
        new
    }
    fn round(value: &ControllerState) -> u64 {
        value.round
    }
    fn round_time(_: &Arc<Description>) -> Duration {
        ROUND_TIME
    }
    fn handle_answer(&mut self, _: Instant, job: &Infallible, _: Infallible) {
        match *job {}
    }
    fn handle_timeout(&mut self, _: Instant) {}
    fn poll_transmit(&mut self) -> Option<Infallible> {
        None
    }
    fn poll_event(&mut self) -> Option<Event<ControllerState, Infallible>> {
        self.decisions.pop_front().map(Event::Accepted)
    }
    fn poll_job(&mut self) -> Option<Infallible> {
        None
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_lead_continues_the_last_state() {
        let first = Arc::new(Description::default());
        let mut registry = Registry::begin(Instant::ZERO, &first, 7, None);
        let begun = registry.head().clone();
        assert_eq!((begun.lead, begun.version, begun.round), (1, 1, 8));
        let drained = ControllerState { draining: ["a".to_owned()].into(), version: 2, ..begun };
        assert_eq!(registry.decide(drained), 9);
        let rounds = std::iter::from_fn(|| registry.poll_event()).map(|event| match event {
            Event::Accepted(kept) => kept.round,
            Event::Void { why, .. } => match why {},
        });
        assert_eq!(rounds.collect::<Vec<_>>(), [8, 9]);
        let next = Registry::begin(Instant::ZERO, &first, 0, Some(registry.head()));
        assert_eq!((next.head().lead, next.head().version, next.head().round), (2, 2, 10));
        assert_eq!(next.head().draining.len(), 1);
    }

    #[test]
    fn state_of_earlier_versions_is_read() {
        let text = r#"{"round": 3, "lead": 2, "draining": ["r"]}"#;
        let kept: ControllerState = serde_json::from_str(text).expect("an earlier form");
        let next = Registry::begin(Instant::ZERO, &Arc::default(), 0, Some(&kept));
        assert_eq!((next.head().lead, next.head().version), (3, 1));
        assert!(next.head().network.is_some());
    }
}
