//! The broker's operations on its store, and the effects of the results.
//!
//! Leaves out: the stores (`http::lease`), and the choice of the next operation (`election`).
#![allow(clippy::disallowed_methods, reason = "a driver: waits by the clock")]

use super::{BrokerService, State, lock, ttl};
use crate::decision_form::{read_decision, write_decision};
use crate::wire::DecisionView;
use anabranch_broker_proto::broker::Decision;
use anabranch_broker_proto::counting::RequestCounter;
use anabranch_broker_proto::replica::{Stall, StoreRequest};
use anabranch_election::StoreReply;
use anabranch_http::lease::LeaseError;
use std::sync::Arc;

impl BrokerService {
    /// With a file store, takes the lead at once, so that players are served by the stored
    /// decision.
    pub(super) fn read_file(&self) -> Result<(), LeaseError> {
        if self.shared.keeper.lease().is_some() {
            return Ok(());
        }
        loop {
            let next = {
                let mut state = lock(&self.shared.state);
                let now = state.now();
                state.networks.poll_ask(now)
            };
            let Some((number, ask)) = next else { break };
            let told = self.shared.keeper.answer(&ask.map(|decision| self.written(&decision)))?;
            self.note_told(&mut lock(&self.shared.state), number, None, Ok(told));
        }
        {
            let state = lock(&self.shared.state);
            // Until viewers send requests, the viewers of the stored decision count.
            if let Some(known) = state.networks.replica().known() {
                let mut answering = lock(&self.shared.answering);
                answering.counting =
                    RequestCounter::new(answering.now(), ttl(self.shared.ttl_s)).after(known);
            }
        }
        self.settle();
        Ok(())
    }

    /// Runs a store operation in a task, while requests are answered.
    pub(super) async fn ask_store(&self, number: u64, ask: StoreRequest) {
        let ask = ask.map(|decision| self.written(&decision));
        let keeper = Arc::clone(&self.shared.keeper);
        let keeps = match &ask {
            anabranch_election::StoreRequest::Keep { decision, .. } => Some(decision.round),
            _ => None,
        };
        let within = keeper.lease().map_or(std::time::Duration::MAX, |lease| lease / 3);
        let asked =
            tokio::task::spawn_blocking(move || keeper.answer(&ask).map_err(|error| error.to_string()));
        let answer = match tokio::time::timeout(within, asked).await {
            Ok(answer) => answer.expect("asking does not panic, and the runtime is there"),
            Err(_) => Err("the store: no answer in time".to_owned()),
        };
        self.note_told(&mut lock(&self.shared.state), number, keeps, answer);
        self.shared.changed.notify_one();
    }

    /// Returns the stored form of a decision, with the time of its first writing. A decision read
    /// from the store keeps its form.
    pub(super) fn written(&self, decision: &Arc<Decision>) -> Arc<DecisionView> {
        let (known, before) = {
            let state = lock(&self.shared.state);
            let keeping = state.keeping.as_ref().filter(|(of, _)| Arc::ptr_eq(of, decision));
            let in_force = (state.decision.round == decision.round).then(|| Arc::clone(&state.decision));
            (keeping.map(|(_, view)| Arc::clone(view)).or(in_force), state.decision.number)
        };
        let view = match known {
            Some(view) => view,
            None => Arc::new(write_decision(decision, before, &self.shared.contracts)),
        };
        let mut state = lock(&self.shared.state);
        state.keeping = Some((Arc::clone(decision), Arc::clone(&view)));
        state.stored = Some(Arc::clone(&view));
        view
    }

    /// Handles the result of a store operation. `keeps` is the decision's round if the operation
    /// was to store a decision.
    pub(super) fn note_told(
        &self,
        state: &mut State,
        number: u64,
        keeps: Option<u64>,
        answer: Result<StoreReply<DecisionView>, String>,
    ) {
        let now = state.now();
        let before = state.store_error.take();
        if keeps.is_some() {
            // Only storing a decision clears this error; other operations leave it unchanged.
            state.keep_error = answer.as_ref().err().cloned();
        }
        let told = match answer {
            Ok(told) => Some(told),
            Err(error) => {
                if before.as_ref() != Some(&error) {
                    tracing::error!("{error}");
                }
                state.counters.store_errors += 1;
                state.store_error = Some(error);
                // A broker with a file store continues although the decision is not stored. With a
                // shared store, another broker may lead by now.
                let is_alone = self.shared.counts_for.is_none();
                keeps.filter(|_| is_alone).map(|revision| StoreReply::Kept { revision })
            }
        };
        if let Some(StoreReply::Last { decision, .. }) = &told {
            state.stored.clone_from(decision);
        }
        let contracts = &self.shared.contracts;
        let told = told.map(|told| told.map(|view| Arc::new(read_decision(&view, contracts))));
        state.networks.handle_told(now, number, told);
    }

    /// Logs once that rounds are stalled, and once that they continue.
    pub(super) fn note_stall(&self) {
        let mut state = lock(&self.shared.state);
        let stall = state.stall();
        match (&stall, state.is_stalled) {
            (Some(stall), false) => tracing::error!("{stall}"),
            (None, true) => tracing::info!("rounds go on"),
            _ => {}
        }
        state.is_stalled = stall.is_some();
    }
}

impl State {
    /// Reason why rounds are stalled, in one line.
    pub(super) fn stall(&self) -> Option<String> {
        let missed = |lasts: anabranch_units::Duration, why: &str| {
            let lasts_s = lasts.to_std().as_secs();
            format!("no round was kept for {lasts_s} s, which is three times `--every` or more: {why}")
        };
        Some(match self.networks.replica().stall(self.now())? {
            Stall::Unkept { rounds } => {
                format!("the last {rounds} rounds were not kept: each time the lead was lost before")
            }
            Stall::NoLeader { lasts } => missed(lasts, "no broker leads"),
            Stall::Unwritten { lasts } => missed(lasts, "the store does not have the last decision"),
            _ => "rounds do not go on".to_owned(),
        })
    }
}
