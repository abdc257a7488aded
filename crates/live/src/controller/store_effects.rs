//! The controller's requests to its store, and the effects of stored states.
//!
//! Leaves out: the stores (`http::lease`), and the choice of the next request (`election`).

use super::registry::ControllerState;
use super::{ControllerService, LeadState, State, lock};
use crate::description::Layout;
use anabranch_election::{RoleChange, StoreReply, StoreRequest};
use anabranch_http::lease::LeaseError;
use anabranch_live_proto::control::controller::Controller;
use anabranch_units::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Divisor of the lease duration for the timeout of one store request.
const LEASE_PARTS: u32 = 3;

impl ControllerService {
    /// Takes the lead at once if no other controller can use the store.
    ///
    /// Errors: a store that cannot be read or written.
    pub(super) fn lead_alone(&self) -> Result<(), LeaseError> {
        if self.shared.store.lease().is_some() {
            return Ok(());
        }
        loop {
            let mut state = lock(&self.shared.state);
            let now = self.now();
            let Some((number, ask)) = state.replica.poll_ask(now) else { break };
            let told = self.shared.store.answer(&ask)?;
            state.replica.handle_told(now, number, Some(told));
            self.take_turns(&mut state);
        }
        Ok(())
    }

    /// Sends a request to the store. Other requests to the controller are served in the meantime.
    pub(super) async fn ask_store(&self, number: u64, ask: StoreRequest<ControllerState>) {
        let store = Arc::clone(&self.shared.store);
        let within = store.lease().map_or(std::time::Duration::MAX, |lease| lease / LEASE_PARTS);
        let asked =
            tokio::task::spawn_blocking(move || store.answer(&ask).map_err(|error| error.to_string()));
        let answer = match tokio::time::timeout(within, asked).await {
            Ok(answer) => answer.expect("asking does not panic, and the runtime is there"),
            Err(_) => Err("the store: no answer in time".to_owned()),
        };
        self.handle_told(number, answer);
    }

    fn handle_told(&self, number: u64, answer: Result<StoreReply<ControllerState>, String>) {
        let mut state = lock(&self.shared.state);
        let before = state.store_error.take();
        let told = match answer {
            Ok(told) => Some(told),
            Err(error) => {
                if before.as_ref() != Some(&error) {
                    tracing::error!("{error}");
                }
                state.store_error = Some(error);
                None
            }
        };
        if told.is_some() && before.is_some() {
            tracing::info!("the store answers again");
        }
        let now = self.now();
        state.replica.handle_told(now, number, told);
        self.take_turns(&mut state);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Applies changes of the role and of the stored state.
    pub(super) fn take_turns(&self, state: &mut State) {
        let mut is_told = false;
        while let Some(turn) = state.replica.poll_turn() {
            is_told = true;
            match turn {
                RoleChange::Began => {}
                RoleChange::Ended => {
                    let ended = state.lead.take();
                    ended.inspect(|_| {
                        tracing::warn!("this controller does not lead any more; nodes go on by themselves")
                    });
                }
                RoleChange::Accepted(kept) => self.take_kept(state, &kept, true),
                RoleChange::News(kept) => self.take_kept(state, &kept, false),
                RoleChange::Void { why, .. } => match why {},
                _ => {}
            }
        }
        if is_told {
            self.settle(state);
            self.publish(state);
            self.shared.told.notify_waiters();
            // Waiting readers of the directory must check whether this controller still leads.
            self.shared.directory.send_modify(|_| ());
        }
    }

    fn take_kept(&self, state: &mut State, kept: &Arc<ControllerState>, leads: bool) {
        let now = self.now();
        match layout(state, kept) {
            Ok(Some(layout)) => {
                state.layout = Arc::new(layout);
                if leads && state.lead.is_some() {
                    let text = format!("version {} of the network is in force", kept.version);
                    tracing::info!("{text}");
                    self.add_event(state, "network", None, text);
                }
            }
            Ok(None) => {}
            Err(error) => return tracing::error!("version {} of the network: {error}", kept.version),
        }
        let is_changed = state.version != kept.version;
        state.version = kept.version;
        if !leads {
            return;
        }
        let layout = Arc::clone(&state.layout);
        let before = match &mut state.lead {
            Some(lead) => {
                if is_changed {
                    let (network, groups) = (layout.network().clone(), layout.group_edges());
                    let taken = lead.machine.handle_network(now, network, groups);
                    taken.expect("the layout was checked against the earlier one");
                }
                std::mem::replace(&mut lead.kept, Arc::clone(kept))
            }
            None => {
                let (network, groups) = (layout.network().clone(), layout.group_edges());
                let machine = Controller::new(now, network, groups, kept.lead, self.shared.settings);
                let machine = machine.expect("settings and layout were checked");
                tracing::info!("this controller leads, for the {}th time in its store", kept.lead);
                state.lead = Some(LeadState { machine, mailboxes: BTreeMap::new(), kept: Arc::clone(kept) });
                Arc::default()
            }
        };
        self.take_drains(state, &before, now);
    }

    /// Drains nodes that an operator has drained or removed, and ends the drain of all other nodes.
    fn take_drains(&self, state: &mut State, before: &ControllerState, now: Instant) {
        let layout = Arc::clone(&state.layout);
        let Some(lead) = &mut state.lead else { return };
        let drained = lead.kept.draining.iter().filter_map(|name| layout.network().find(name));
        let wanted: BTreeSet<_> = drained.chain(layout.removed_nodes()).collect();
        let present = lead.machine.draining().clone();
        wanted.difference(&present).for_each(|node| lead.machine.handle_drain(now, *node));
        present.difference(&wanted).for_each(|node| lead.machine.handle_undrain(now, *node));
        let (kept, begins) = (Arc::clone(&lead.kept), before.lead != lead.kept.lead);
        if begins {
            return;
        }
        for name in kept.draining.symmetric_difference(&before.draining) {
            let text = if kept.draining.contains(name) {
                "an operator drains it"
            } else {
                "an operator has it carry streams again"
            };
            tracing::info!("node {name}: {text}");
            self.add_event(state, "drain", Some(name.clone()), text.to_owned());
        }
    }
}

/// The layout of a stored state; `None` if it equals the current layout.
fn layout(
    state: &State,
    kept: &ControllerState,
) -> Result<Option<Layout>, crate::description::DescriptionError> {
    let Some(description) = &kept.network else { return Ok(None) };
    if description == state.layout.description() {
        return Ok(None);
    }
    let layout = Layout::new(description.clone())?;
    if state.lead.is_some() {
        layout.check_extends(&state.layout)?;
    }
    Ok(Some(layout))
}
