//! `anabranch broker status --web`: networks, results of the last rounds, and the clusters of each
//! place's clients, as a page.
//!
//! The page only reads. The last decision is fetched once, because it may be long. Leaves out:
//! serving a page (`crate::page`). Read [`serve`].

use crate::page::{self, Page, UpstreamError};
use anabranch_broker::wire::DecisionView;
use anabranch_broker::{Client, ClientError};
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Number of places on the page, which shows the places with the most clients.
const PLACES: usize = 30;

/// Serves the page until the future is dropped.
///
/// Errors: an address that is not loopback or cannot be listened on.
pub async fn serve(client: Client, listen: SocketAddr) -> anyhow::Result<()> {
    let trouble = client.with_patience(page::PATIENCE).networks().await.err();
    page::serve(router(client), listen, trouble).await
}

fn router(client: Client) -> Router {
    Page { html: include_str!("page.html"), script: include_str!("page.js") }
        .routes()
        .route("/{token}/state", get(state))
        .with_state(PageState { client: client.with_patience(page::PATIENCE), seen: Arc::default() })
}

#[derive(Clone)]
struct PageState {
    client: Client,
    seen: Arc<Mutex<PageHistory>>,
}

/// State that the page keeps between requests.
#[derive(Default)]
struct PageHistory {
    /// Round of the decision from which `places` was made.
    round: u64,
    places: Arc<PlaceRows>,
    /// Time and value of the last reading of the counter of answers.
    answers: Option<(Instant, f64)>,
    /// Rate of answers per second, computed from that counter.
    answers_per_s: f64,
}

#[derive(Default)]
struct PlaceRows {
    shown: Vec<PlaceRow>,
    left_out: usize,
}

/// Clusters of a place's clients.
#[derive(Debug, PartialEq, Serialize)]
struct PlaceRow {
    location: String,
    isp: String,
    /// Clusters, by falling number of clients.
    ways: Vec<ClusterShare>,
    unplaced: u64,
}

#[derive(Debug, PartialEq, Serialize)]
struct ClusterShare {
    network: String,
    cluster: u32,
    sessions: u64,
}

impl PageState {
    fn seen(&self) -> std::sync::MutexGuard<'_, PageHistory> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places of the last decision; fetches the decision if its round has changed.
    async fn places(&self, round: u64) -> Result<Arc<PlaceRows>, ClientError> {
        {
            let seen = self.seen();
            if seen.round == round && round > 0 {
                return Ok(Arc::clone(&seen.places));
            }
        }
        let decision = self.client.decision().await?;
        let places = Arc::new(places(&decision));
        let mut seen = self.seen();
        (seen.round, seen.places) = (decision.round, Arc::clone(&places));
        Ok(places)
    }

    /// Rate of answers to players per second since the last request.
    async fn answers_per_s(&self) -> Result<f64, ClientError> {
        let metrics = self.client.text("/metrics").await?;
        let line = metrics.lines().find_map(|line| line.strip_prefix("anabranch_broker_answers_total "));
        let answers: f64 = line.and_then(|value| value.parse().ok()).unwrap_or(0.0);
        let (mut seen, now) = (self.seen(), Instant::now());
        let passed = seen.answers.map(|(at, before)| (now.duration_since(at).as_secs_f64(), before));
        match passed {
            // With two open pages the polls are twice as frequent, and a short interval gives no
            // reliable rate.
            Some((seconds, _)) if seconds < 0.5 => {}
            Some((seconds, before)) => {
                seen.answers_per_s = ((answers - before).max(0.0) / seconds).round();
                seen.answers = Some((now, answers));
            }
            None => seen.answers = Some((now, answers)),
        }
        Ok(seen.answers_per_s)
    }
}

/// All data of the page in one answer.
async fn state(State(shown): State<PageState>) -> Result<Response, UpstreamError> {
    let networks = shown.client.networks().await.map_err(UpstreamError)?;
    let rounds = shown.client.rounds().await.map_err(UpstreamError)?;
    // If no round has ended since the broker's start, a decision from before the start may be in
    // force.
    let last = rounds.iter().rfind(|round| round.void.is_none()).map_or(0, |round| round.round);
    let places = shown.places(last).await.map_err(UpstreamError)?;
    let answers_per_s = shown.answers_per_s().await.map_err(UpstreamError)?;
    let all = serde_json::json!({
        "networks": networks,
        "rounds": rounds,
        "places": places.shown,
        "places_left_out": places.left_out,
        "answers_per_s": answers_per_s,
    });
    Ok(page::json(&all))
}

/// Clusters of each place's clients, by falling number of clients.
fn places(decision: &DecisionView) -> PlaceRows {
    /// Number of clients by network and cluster.
    type ClusterCounts = BTreeMap<(u32, u32), u64>;
    let mut split: BTreeMap<u32, (ClusterCounts, u64)> = BTreeMap::new();
    for placed in &decision.placed {
        let (ways, unplaced) = split.entry(placed.place).or_default();
        match placed.to {
            Some((network, cluster, _)) => {
                *ways.entry((network, cluster)).or_default() += u64::from(placed.sessions);
            }
            None => *unplaced += u64::from(placed.sessions),
        }
    }
    let mut places: Vec<(u64, PlaceRow)> = split
        .into_iter()
        .filter_map(|(place, (ways, unplaced))| {
            let (location, isp) = decision.places.get(place as usize)?.clone();
            let mut ways: Vec<ClusterShare> = ways
                .into_iter()
                .filter_map(|((network, cluster), sessions)| {
                    let network = decision.networks.get(network as usize)?.clone();
                    Some(ClusterShare { network, cluster, sessions })
                })
                .collect();
            ways.sort_by_key(|way| std::cmp::Reverse(way.sessions));
            let all = ways.iter().map(|way| way.sessions).sum::<u64>() + unplaced;
            Some((all, PlaceRow { location, isp, ways, unplaced }))
        })
        .collect();
    places.sort_by_key(|(all, _)| std::cmp::Reverse(*all));
    let left_out = places.len().saturating_sub(PLACES);
    PlaceRows { shown: places.into_iter().take(PLACES).map(|(_, place)| place).collect(), left_out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_broker::wire::PlacementView;

    #[test]
    fn places_with_the_most_clients_are_shown_first() {
        let placed = |place, sessions, to| PlacementView { place, bitrate_bps: 1, sessions, to };
        let decision = DecisionView {
            round: 1,
            places: (0..40).map(|place| (format!("city {place}"), "x".to_owned())).collect(),
            networks: vec!["a".into(), "b".into()],
            placed: (0..40)
                .flat_map(|place| {
                    [placed(place, place, Some((0, 1, 1.0))), placed(place, 2 * place, Some((1, 7, 2.0)))]
                })
                .chain([placed(3, 500, None)])
                .collect(),
            ..DecisionView::default()
        };
        let places = places(&decision);
        assert_eq!((places.shown.len(), places.left_out), (PLACES, 10));
        assert_eq!((&*places.shown[0].location, places.shown[0].unplaced), ("city 3", 500));
        let way = |network: &str, cluster, sessions| ClusterShare {
            network: network.to_owned(),
            cluster,
            sessions,
        };
        assert_eq!(places.shown[1].ways, [way("b", 7, 78), way("a", 1, 39)]);
    }
}
