//! Read-only views for operators: networks, rounds, the last decision, metrics.
//!
//! Leaves out: the record of recent rounds (`history`), HTTP (`http`).

use super::{BrokerService, lock};
use crate::wire::{DecisionView, LeadView, NetworkView, RoundView};
use anabranch_broker_proto::replica::standing;
use anabranch_http::metrics::Metrics;
use anabranch_units::PeerId;
use std::collections::BTreeMap;
use std::sync::Arc;

impl BrokerService {
    /// Reason why the broker is unhealthy: the store fails, the last decision was not stored, or
    /// rounds are stalled. `None` if healthy.
    pub fn trouble(&self) -> Option<String> {
        let state = lock(&self.shared.state);
        state.keep_error.as_ref().or(state.store_error.as_ref()).cloned().or_else(|| state.stall())
    }

    /// Returns the decision in force.
    pub fn decision(&self) -> Arc<DecisionView> {
        Arc::clone(&lock(&self.shared.state).decision)
    }

    /// Returns the most recent rounds, oldest first.
    pub(crate) fn rounds(&self) -> Vec<RoundView> {
        lock(&self.shared.state).history.rounds()
    }

    /// Returns the lead as this broker knows it.
    pub(crate) fn lead(&self) -> LeadView {
        let state = lock(&self.shared.state);
        let replica = state.networks.replica();
        let leads = replica.leads_at(state.now());
        let leader = replica.leader().map(str::to_owned);
        drop(state);
        LeadView { leads, leader, store: self.shared.store.clone(), trouble: self.trouble() }
    }

    pub(crate) fn networks(&self) -> Vec<NetworkView> {
        let playing = {
            let mut answering = lock(&self.shared.answering);
            let now = answering.now();
            answering.counting.playing(now)
        };
        let state = lock(&self.shared.state);
        let mut given: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for placed in &state.decision.placed {
            if let Some((network, _, _)) = placed.to {
                let given = given.entry(network).or_default();
                given.0 += u64::from(placed.sessions);
                given.1 += u64::from(placed.sessions) * placed.bitrate_bps;
            }
        }
        let view = |network: PeerId| {
            let name = self.shared.contracts.name(network).to_owned();
            let at = state.decision.networks.iter().position(|other| *other == name);
            let (sessions, rate_bps) = at.and_then(|at| given.get(&(at as u32))).copied().unwrap_or_default();
            let standing = standing(state.networks.replica(), network).unwrap_or_default();
            NetworkView {
                name,
                up: state.networks.is_up(network),
                reputation: standing.reputation,
                capacity_trust: standing.capacity_trust,
                score_bias: standing.score_bias,
                missed: standing.missed,
                sessions,
                rate_bps,
                playing: playing.get(&network).copied().unwrap_or(0),
            }
        };
        self.shared.contracts.numbers().map(view).collect()
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = Metrics::default();
        let (answers, unknown, dropped, reported) = {
            let answering = lock(&self.shared.answering);
            (answering.answers, answering.unknown, answering.counting.dropped(), answering.reported)
        };
        let state = lock(&self.shared.state);
        let (counters, leads) = (&state.counters, state.networks.replica().leads_at(state.now()));
        let ups = state.networks.up_count();
        let mut gauge = |name: &str, help, value: u64| text.gauge(&format!("broker_{name}"), help, value);
        gauge("leads", "1 if this broker leads", u64::from(leads));
        gauge("networks_up", "Networks with a joined agent", ups as u64);
        gauge("round", "Number of the last accepted round", state.decision.number);
        let mut count = |name: &str, help, value: u64| text.counter(&format!("broker_{name}"), help, value);
        count("leads_total", "Times that this broker began to lead", counters.leads);
        count("joins_total", "Times that agents have joined", counters.joins);
        count("silent_total", "Agents that fell silent", counters.silent);
        count("bids_total", "Bids taken", counters.bids_taken);
        count("bids_refused_total", "Bids refused", counters.bids_refused);
        count("rounds_total", "Rounds accepted", counters.rounds_accepted);
        count("rounds_void_total", "Rounds that changed nothing", counters.rounds_void);
        count("answers_total", "Players' questions answered", answers);
        count("answers_unknown_total", "Players' questions without a known pathway", unknown);
        count(
            "questions_uncounted_total",
            "Players' questions left uncounted, from too many places",
            dropped,
        );
        count("reports_total", "Players' reports that count", reported);
        count("store_errors_total", "Failed writes to the store", counters.store_errors);
        let help = "Failures by network and cause";
        text.add("broker_failures_total", help, counters.failures.clone());
        text.add(
            "broker_decision_seconds",
            "Duration of the search for a decision",
            counters.decision_seconds.clone(),
        );
        text.text()
    }
}
