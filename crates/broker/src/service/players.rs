//! The players' side of the broker, under a separate lock: answers, playback reports, and viewer
//! counts for the leader.
//!
//! Leaves out: the choice of pathways (`broker_proto::steering`), HTTP (`public`). Read
//! [`AnswerState`].
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

use super::{BrokerService, PLACES_PER_MESSAGE, lock};
use crate::client::Client;
use crate::wire::{CountedReply, CountedRequest, PlaceClients};
use anabranch_broker_proto::broker::PlaceDemand;
use anabranch_broker_proto::counting::RequestCounter;
use anabranch_broker_proto::delivery::Delivery;
use anabranch_broker_proto::networks::NetworkRoll;
use anabranch_broker_proto::reports::{Report, Reports};
use anabranch_broker_proto::steering::answer;
use anabranch_media::cmcd;
use anabranch_media::steering::{SteeringManifest, SteeringQuery, pathway_key};
use anabranch_units::{Instant, PeerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// State for answers to players. Its lock is held for microseconds.
pub(super) struct AnswerState {
    pub(super) epoch: std::time::Instant,
    pub(super) delivery: Arc<Delivery>,
    pub(super) gone: Arc<BTreeSet<PeerId>>,
    pub(super) counting: RequestCounter,
    /// Aggregated playback reports. `None` if players' reports do not count.
    pub(super) reports: Option<Reports>,
    pub(super) reported: u64,
    /// True if players are steered; false after an operator has turned steering off.
    pub(super) steers: bool,
    pub(super) answers: u64,
    pub(super) unknown: u64,
}

impl AnswerState {
    pub(super) fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }
}

impl BrokerService {
    /// Answers a steering request. Returns `None` while no pathway is known.
    pub fn steer(&self, query: &SteeringQuery) -> Option<SteeringManifest> {
        let plays_by = query.pathways.iter().find_map(|id| pathway_key(&self.shared.catalogue, id));
        let (delivery, gone) = {
            let mut answering = lock(&self.shared.answering);
            let now = answering.now();
            answering.counting.note(now, &query.viewer, plays_by);
            answering.answers += 1;
            (Arc::clone(&answering.delivery), Arc::clone(&answering.gone))
        };
        let steering = answer(&delivery, &self.shared.catalogue, &gone, query, self.shared.ttl_s);
        if steering.is_none() {
            lock(&self.shared.answering).unknown += 1;
        }
        steering
    }

    /// True unless an operator has turned steering off.
    pub(crate) fn steers(&self) -> bool {
        lock(&self.shared.answering).steers
    }
    pub(crate) fn set_steers(&self, steers: bool) {
        lock(&self.shared.answering).steers = steers;
    }

    /// Records playback reports, sent with a steering request or separately. Returns false if
    /// reports do not count.
    pub(crate) fn report<'a>(
        &self,
        reports: impl Iterator<Item = &'a str>,
        query: Option<&SteeringQuery>,
    ) -> bool {
        if lock(&self.shared.answering).reports.is_none() {
            return false;
        }
        let catalogue = &self.shared.catalogue;
        let plays_by =
            query.and_then(|query| query.pathways.iter().find_map(|id| pathway_key(catalogue, id)));
        let read: Vec<_> = reports
            .filter_map(cmcd::Report::read)
            .filter_map(|report| Report::of_cmcd(&report, catalogue, plays_by))
            .collect();
        let mut answering = lock(&self.shared.answering);
        answering.reported += read.len() as u64;
        let all = answering.reports.as_mut();
        all.into_iter().for_each(|all| read.iter().for_each(|report| all.note(*report)));
        true
    }

    /// Host of the best cluster for a viewer whose player does not support steering.
    pub fn host(&self, query: &SteeringQuery) -> Option<String> {
        let steering = self.steer(query)?;
        let clones = steering.pathway_clones.into_iter();
        let mut hosts: BTreeMap<String, String> =
            clones.map(|clone| (clone.id, clone.uri_replacement.host)).collect();
        steering.pathway_priority.iter().find_map(|way| hosts.remove(way))
    }

    /// Reports this broker's viewer counts to the leader periodically.
    pub(super) async fn say_counts(&self) {
        let Some(((name, identity), every)) = self.shared.counts_for.as_ref().zip(self.shared.keeper.lease())
        else {
            return;
        };
        let mut client: Option<Client> = None;
        loop {
            tokio::time::sleep(every).await;
            let leader = lock(&self.shared.state).networks.replica().leader().map(str::to_owned);
            let Some(leader) = leader else { continue };
            if client.as_ref().is_none_or(|client| client.address() != leader) {
                client = Client::new(&leader, identity, every)
                    .inspect_err(|error| tracing::warn!("the broker that leads, {leader}: {error}"))
                    .ok();
            }
            let Some(client) = &client else { continue };
            let gathered = self.counted_here();
            // An empty report still fetches the list of connected networks.
            let parts = gathered.chunks(PLACES_PER_MESSAGE).chain(gathered.is_empty().then_some(&[][..]));
            for (part, some) in (0..).zip(parts) {
                let of = |PlaceDemand { location, isp, clients }: PlaceDemand| PlaceClients {
                    location,
                    isp,
                    clients,
                };
                let places = some.iter().cloned().map(of).collect();
                let request = CountedRequest { broker: *name, part, places };
                match client.counted(&request, every).await {
                    Ok(reply) => self.note_networks(client.address(), &reply),
                    Err(error) => tracing::debug!("what was counted is not said: {error}"),
                }
            }
        }
    }

    /// Viewers counted by this broker.
    pub(super) fn counted_here(&self) -> Vec<PlaceDemand> {
        let mut answering = lock(&self.shared.answering);
        let now = answering.now();
        answering.counting.gathered(now)
    }

    /// Records the leader's list of connected networks.
    fn note_networks(&self, leader: &str, reply: &CountedReply) {
        let numbers = |names: &[String]| {
            names.iter().filter_map(|name| self.shared.contracts.number(name)).collect::<Vec<_>>()
        };
        let roll =
            NetworkRoll { round: reply.round, up: numbers(&reply.up), awaited: numbers(&reply.awaited) };
        {
            let mut state = lock(&self.shared.state);
            let now = state.now();
            state.networks.handle_roll(now, leader, &roll);
        }
        self.note_presence();
    }
}
