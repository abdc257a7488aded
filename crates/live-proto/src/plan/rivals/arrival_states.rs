//! Requests of the viewers in a window, and the metrics of their service.

use crate::network::Object;
use crate::plan::generator::{Arrival, Topology, Trace, demand};
use crate::plan::problem::{GroupId, Program, Request, Settings};
use anabranch_units::{BitRate, Duration};
use std::collections::{BTreeMap, BTreeSet};

/// One window of a trace on a topology.
#[derive(Copy, Clone, Debug)]
pub struct Window<'a> {
    /// Nodes, links and groups.
    pub topology: &'a Topology,
    /// Arrivals, evenly spread over the planning window.
    pub trace: &'a Trace,
    /// Length of the planning window.
    pub length: Duration,
    /// Weights and slack. Only optimising designs use them.
    pub settings: Settings,
}

/// Metrics of §4.7.1 for one design and window.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Mean bitrate delivered to a viewer, in kbit/s. Unserved viewers count with 0.
    pub mean_kbps: f64,
    /// Cost of all used links, per viewer served at its first bitrate; `None` without such viewers.
    pub cost_per_satisfied: Option<f64>,
    /// Share of viewers served at the bitrate that they asked for first.
    pub satisfied_share: f64,
    /// Share of viewers served at any bitrate.
    pub served_share: f64,
    /// Share of viewers served at the bitrate they asked for first, by that bitrate (Figure 4.15b).
    pub satisfied_share_by_bitrate: Vec<(BitRate, f64)>,
}

/// State of one arrival.
#[derive(Copy, Clone, Debug)]
pub(super) struct ArrivalState {
    pub(super) arrival: Arrival,
    /// Bitrate currently asked for; `None` once the lowest bitrate was refused.
    pub(super) now: Option<BitRate>,
}

impl ArrivalState {
    pub(super) fn object(&self) -> Option<Object> {
        self.now.map(|bitrate| Object { bitrate, ..self.arrival.object })
    }
}

/// States of all arrivals in a planning window.
pub(super) struct ArrivalStates {
    pub(super) all: Vec<ArrivalState>,
}

impl ArrivalStates {
    pub(super) fn new(trace: &Trace) -> Self {
        let ask = |&arrival: &Arrival| ArrivalState { arrival, now: Some(arrival.object.bitrate) };
        Self { all: trace.arrivals.iter().map(ask).collect() }
    }

    /// Lowers the bitrate of every request that is not `served`. Returns whether a viewer asks
    /// again.
    pub(super) fn lower(&mut self, trace: &Trace, served: &BTreeSet<(Object, GroupId)>) -> bool {
        let mut asks_again = false;
        for ask in &mut self.all {
            if ask.object().is_some_and(|object| !served.contains(&(object, ask.arrival.group))) {
                ask.now = lower_bitrate(trace, ask);
                asks_again |= ask.now.is_some();
            }
        }
        asks_again
    }

    /// Planner input (the integer program of Figure 4.8) for the bitrates that viewers currently
    /// request.
    pub(super) fn program(&self, window: &Window<'_>) -> Program {
        let now =
            self.all.iter().filter_map(|ask| ask.object().map(|object| Arrival { object, ..ask.arrival }));
        let demand = demand(&now.collect::<Vec<_>>());
        let program = window.topology.program(demand, window.settings);
        program.expect("a drawn topology and trace are within the limits")
    }

    /// Metrics if exactly the remaining requests are served over links of this total cost.
    pub(super) fn metrics(&self, cost: f64) -> Metrics {
        let (mut viewers, mut satisfied, mut served, mut kbps) = (0.0, 0.0, 0.0, 0.0);
        let mut by_bitrate: BTreeMap<BitRate, [f64; 2]> = BTreeMap::new();
        for ask in &self.all {
            let count = ask.arrival.viewers as f64;
            viewers += count;
            let asked = ask.arrival.object.bitrate;
            let [of_bitrate, satisfied_of_it] = by_bitrate.entry(asked).or_default();
            *of_bitrate += count;
            if let Some(bitrate) = ask.now {
                served += count;
                kbps += count * 1e3 * bitrate.as_mbps_f64();
                if bitrate == asked {
                    satisfied += count;
                    *satisfied_of_it += count;
                }
            }
        }
        let all = f64::max(viewers, 1.0);
        Metrics {
            mean_kbps: kbps / all,
            cost_per_satisfied: (satisfied > 0.0).then(|| cost / satisfied),
            satisfied_share: satisfied / all,
            served_share: served / all,
            satisfied_share_by_bitrate: by_bitrate
                .into_iter()
                .map(|(bitrate, [all, satisfied])| (bitrate, satisfied / all))
                .collect(),
        }
    }
}

/// The next lower bitrate of the requested channel; `None` below the lowest.
pub(super) fn lower_bitrate(trace: &Trace, ask: &ArrivalState) -> Option<BitRate> {
    let ladder = &trace.ladders[ask.arrival.object.channel.0 as usize];
    ladder.iter().rev().find(|&&bitrate| Some(bitrate) < ask.now).copied()
}

/// Objects and groups of the requests that `trees` serve.
pub(super) fn served(program: &Program, trees: &[crate::plan::Tree]) -> BTreeSet<(Object, GroupId)> {
    let pairs = trees.iter().flat_map(|tree| {
        let object = program.offers()[tree.object.index()].object;
        tree.group_links.iter().map(move |link| (object, program.group_links()[link.index()].group))
    });
    pairs.collect()
}

/// Cost of the links of these trees, without the weight w_c.
pub(super) fn link_cost(program: &Program, trees: &[crate::plan::Tree]) -> f64 {
    let cost = trees.iter().map(|tree| {
        let rate = program.offers()[tree.object.index()].object.bitrate.as_mbps_f64();
        let inner = tree.links.iter().map(|&link| program.network().link(link).cost).sum::<f64>();
        let outer = tree.group_links.iter().map(|link| program.group_links()[link.index()].cost).sum::<f64>();
        rate * (inner + outer)
    });
    cost.sum()
}

/// Order in which the objects of a program are first requested.
pub(super) fn arrival_order(program: &Program, asks: &ArrivalStates) -> Vec<u32> {
    let by_object: BTreeMap<Object, u32> =
        program.offers().iter().zip(0..).map(|(offer, id)| (offer.object, id)).collect();
    let mut seen = vec![false; program.offers().len()];
    let mut order = Vec::new();
    for object in asks.all.iter().filter_map(ArrivalState::object) {
        let id = by_object[&object];
        if !std::mem::replace(&mut seen[id as usize], true) {
            order.push(id);
        }
    }
    order
}

/// Requests of a program with their objects' bitrates in Mbit/s.
pub(super) fn rates(program: &Program) -> impl Iterator<Item = (&Request, f64)> {
    let rate = |request: &Request| program.offers()[request.object.index()].object.bitrate.as_mbps_f64();
    program.requests().iter().map(move |request| (request, rate(request)))
}
