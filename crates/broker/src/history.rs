//! Results of recent rounds, for operators; kept in memory only, from the start of the broker.
//!
//! Leaves out: the decision in force, which is stored (`decision_form`). Read [`History`] first.

use crate::wire::{DecisionView, RoundView};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of rounds kept.
const ROUNDS_MAX: usize = 100;

/// Results of recent rounds, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    rounds: VecDeque<RoundView>,
}

impl History {
    /// Records a round whose decision `after` replaced `before`.
    pub(crate) fn note_accepted(&mut self, before: &DecisionView, after: &DecisionView, took_s: Option<f64>) {
        let mut sessions: BTreeMap<String, u64> = BTreeMap::new();
        let mut unplaced = 0;
        for placed in &after.placed {
            match placed.to.and_then(|(network, _, _)| after.networks.get(network as usize)) {
                Some(name) => {
                    *sessions.entry(name.clone()).or_default() += u64::from(placed.sessions);
                }
                None => unplaced += u64::from(placed.sessions),
            }
        }
        self.push(RoundView {
            round: after.round,
            number: Some(after.number),
            ended_unix_ms: after.accepted_unix_ms,
            took_s,
            void: None,
            sessions,
            unplaced,
            moved: moved(before, after),
            gap_share: after.gap_share,
        });
    }

    /// Records a round that changed nothing, with the reason.
    pub(crate) fn note_void(&mut self, round: u64, ended_unix_ms: u64, took_s: Option<f64>, why: &str) {
        self.push(RoundView {
            round,
            number: None,
            ended_unix_ms,
            took_s,
            void: Some(why.to_owned()),
            sessions: BTreeMap::new(),
            unplaced: 0,
            moved: 0,
            gap_share: 0.0,
        });
    }

    /// Returns all rounds kept, oldest first.
    pub(crate) fn rounds(&self) -> Vec<RoundView> {
        self.rounds.iter().cloned().collect()
    }

    fn push(&mut self, round: RoundView) {
        self.rounds.push_back(round);
        if self.rounds.len() > ROUNDS_MAX {
            self.rounds.pop_front();
        }
    }
}

/// Key of interchangeable clients: location, provider and bitrate.
type ClientKey<'a> = (&'a str, &'a str, u64);
/// Number of interchangeable clients on each cluster, by network name and cluster number.
type Split<'a> = BTreeMap<(&'a str, u32), u64>;

fn splits(view: &DecisionView) -> BTreeMap<ClientKey<'_>, Split<'_>> {
    let mut splits: BTreeMap<ClientKey<'_>, Split<'_>> = BTreeMap::new();
    for placed in &view.placed {
        let place = view.places.get(placed.place as usize);
        let to =
            placed.to.and_then(|(network, cluster, _)| Some((view.networks.get(network as usize)?, cluster)));
        if let Some(((location, isp), (network, cluster))) = place.zip(to) {
            let split = splits.entry((location, isp, placed.bitrate_bps)).or_default();
            *split.entry((network, cluster)).or_default() += u64::from(placed.sessions);
        }
    }
    splits
}

/// Returns the number of clients that both decisions place, but on different clusters. Arriving and
/// departing clients do not count.
fn moved(before: &DecisionView, after: &DecisionView) -> u64 {
    let (before, after) = (splits(before), splits(after));
    let of = |alike: &ClientKey<'_>, new: &Split<'_>| {
        let Some(old) = before.get(alike) else { return 0 };
        let lost = |a: &Split<'_>, b: &Split<'_>| -> u64 {
            a.iter().map(|(to, sessions)| sessions.saturating_sub(b.get(to).copied().unwrap_or(0))).sum()
        };
        lost(old, new).min(lost(new, old))
    };
    after.iter().map(|(alike, new)| of(alike, new)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PlacementView;

    /// A place, its number of clients, and their network and cluster.
    type PlaceClients = (u32, u32, Option<(u32, u32)>);

    fn view(round: u64, networks: &[&str], placed: &[PlaceClients]) -> DecisionView {
        let placed = placed.iter().map(|&(place, sessions, to)| PlacementView {
            place,
            bitrate_bps: 3_000_000,
            sessions,
            to: to.map(|(network, cluster)| (network, cluster, 1.0)),
        });
        DecisionView {
            round,
            places: vec![("berlin".into(), "x".into()), ("paris".into(), "x".into())],
            networks: networks.iter().map(|name| (*name).to_owned()).collect(),
            placed: placed.collect(),
            ..DecisionView::default()
        }
    }

    #[test]
    fn only_clients_placed_in_both_decisions_count_as_moved() {
        let before = view(1, &["a", "b"], &[(0, 10, Some((0, 1))), (1, 5, Some((1, 1)))]);
        // The networks swap positions in the list, four of ten clients move, and three clients
        // arrive.
        let after = view(2, &["b", "a"], &[(0, 6, Some((1, 1))), (0, 4, Some((0, 1))), (1, 8, Some((0, 1)))]);
        assert_eq!((moved(&before, &after), moved(&after, &before), moved(&before, &before)), (4, 4, 0));
        let mut history = History::default();
        history.note_accepted(&before, &after, Some(0.7));
        history.note_void(3, 9, None, "no network has bid");
        let rounds = history.rounds();
        assert_eq!(rounds[0].sessions, BTreeMap::from([("a".to_owned(), 6), ("b".to_owned(), 12)]));
        assert_eq!((rounds[0].moved, rounds[0].unplaced, rounds[1].round), (4, 0, 3));
        assert_eq!((rounds[0].number, rounds[1].number), (Some(after.number), None));
        (0..200).for_each(|round| history.note_void(round, 9, None, ""));
        assert_eq!(history.rounds().len(), ROUNDS_MAX);
    }
}
