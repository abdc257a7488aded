//! Conversion between a decision and its stored form, which operators can read, too.
//!
//! Leaves out: the stores (`http::lease`). Read [`write_decision`] and [`read_decision`].
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

use crate::contracts::Contracts;
use crate::wire::{DecisionView, NetworkTrustView, PlacementView};
use anabranch_broker_proto::broker::{ClientPlacement, ClusterId, Decision, NetworkTrust};
use anabranch_http::lease::StoredValue;
use anabranch_units::BitRate;
use std::time::{SystemTime, UNIX_EPOCH};

impl StoredValue for DecisionView {
    const FORMAT: &'static str = "broker 1";

    fn round(&self) -> u64 {
        self.round
    }
}

/// Returns the time of day in milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Converts a decision to its stored form. Names replace numbers, because numbers change with the
/// contracts file. `before` is the number of accepted rounds before this decision.
pub(crate) fn write_decision(decision: &Decision, before: u64, contracts: &Contracts) -> DecisionView {
    let placed = decision.placed.iter().map(|placed| PlacementView {
        place: placed.place,
        bitrate_bps: placed.bitrate.as_bps(),
        sessions: placed.sessions,
        to: placed.to.map(|(to, score)| (to.network.0, to.cluster, score)),
    });
    let prices = decision.prices_per_mbps.iter().map(|(id, price)| (id.network.0, id.cluster, *price));
    let standings = decision.standings.iter().map(|(network, standing)| NetworkTrustView {
        network: network.0,
        reputation: standing.reputation,
        capacity_trust: standing.capacity_trust,
        score_bias: standing.score_bias,
        missed: standing.missed,
    });
    DecisionView {
        round: decision.round,
        number: before + 1,
        accepted_unix_ms: unix_ms(),
        gap_share: decision.gap_share,
        places: decision.places.clone(),
        networks: contracts.numbers().map(|network| contracts.name(network).to_owned()).collect(),
        placed: placed.collect(),
        prices: prices.collect(),
        standings: standings.collect(),
    }
}

/// Converts a stored decision back. Clients of a network without a contract become unplaced.
pub(crate) fn read_decision(view: &DecisionView, contracts: &Contracts) -> Decision {
    let number = |network: u32| contracts.number(view.networks.get(network as usize)?);
    let id = |network: u32, cluster: u32| number(network).map(|network| ClusterId { network, cluster });
    let placed = view.placed.iter().filter(|placed| (placed.place as usize) < view.places.len());
    let placed = placed.map(|placed| ClientPlacement {
        place: placed.place,
        bitrate: BitRate::bps(placed.bitrate_bps),
        sessions: placed.sessions,
        to: placed.to.and_then(|(network, cluster, score)| Some((id(network, cluster)?, score))),
    });
    let prices =
        view.prices.iter().filter_map(|&(network, cluster, price)| Some((id(network, cluster)?, price)));
    let standings = view.standings.iter().filter_map(|of| {
        let NetworkTrustView { reputation, capacity_trust, score_bias, missed, .. } = *of;
        let standing = NetworkTrust { reputation, capacity_trust, score_bias, missed };
        Some((number(of.network)?, standing)).filter(|_| standing.is_possible())
    });
    Decision {
        round: view.round,
        places: view.places.clone(),
        placed: placed.collect(),
        prices_per_mbps: prices.collect(),
        gap_share: view.gap_share,
        standings: standings.collect(),
    }
}
