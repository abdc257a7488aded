//! The work of coflows on links.

use crate::network::{CoflowId, Flow, LinkId, Network};
use anabranch_units::Instant;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A coflow as seen by bounds. Seconds count from the first arrival of any coflow.
#[derive(Clone, Debug)]
pub struct CoflowWork {
    pub arrived_s: f64,
    /// Earliest completion with all links to itself.
    pub alone_s: f64,
    pub loads: Vec<Load>,
}

/// Load of a coflow on a link.
#[derive(Clone, Debug)]
pub struct Load {
    pub link: LinkId,
    pub busy_s: f64,
    /// Parts of the load, the latest part first: arrival, and seconds of work.
    pub parts: SmallVec<[(f64, f64); 1]>,
}

impl Load {
    /// Returns the earliest time at which the link can have carried the load. A part is carried
    /// after its arrival.
    pub fn end_s(&self) -> f64 {
        let mut busy_s = 0.0;
        let end = |(since_s, more_s): &(f64, f64)| {
            busy_s += more_s;
            since_s + busy_s
        };
        self.parts.iter().map(end).fold(0.0, f64::max)
    }
}

/// Returns the work of all coflows, ordered by id.
pub fn of_coflows(network: &Network, flows: &[Flow]) -> Vec<(CoflowId, CoflowWork)> {
    // Bytes are summed as integers, and the sum is rounded once.
    type Parts = BTreeMap<LinkId, BTreeMap<Instant, u128>>;
    let mut coflows: BTreeMap<CoflowId, (Instant, Instant, Parts)> = BTreeMap::new();
    for flow in flows {
        let (first, last, parts) =
            coflows.entry(flow.coflow).or_insert((flow.arrives, flow.arrives, Parts::new()));
        *first = flow.arrives.min(*first);
        for (at, volume) in std::iter::once((flow.arrives, flow.volume)).chain(flow.grows.iter().copied()) {
            // A flow without volume completes when it arrives.
            *last = at.max(*last);
            for link in flow.route.iter().filter(|_| volume.as_u64() > 0) {
                *parts.entry(*link).or_default().entry(at).or_default() += u128::from(volume.as_u64());
            }
        }
    }
    let Some(zero) = coflows.values().map(|(first, ..)| *first).min() else { return Vec::new() };
    let since_s = |at: Instant| at.saturating_since(zero).as_secs_f64();
    let work = |(id, (first, last, parts)): (CoflowId, (Instant, Instant, Parts))| {
        let load = |(link, parts): (LinkId, BTreeMap<Instant, u128>)| {
            let rate_bps = network.rate(link).as_bps() as f64;
            let busy_s = |bytes: u128| (8 * bytes) as f64 / rate_bps;
            Load {
                link,
                busy_s: busy_s(parts.values().sum()),
                parts: parts.iter().rev().map(|(at, bytes)| (since_s(*at), busy_s(*bytes))).collect(),
            }
        };
        let loads: Vec<Load> = parts.into_iter().map(load).collect();
        let alone_s = loads.iter().map(Load::end_s).fold(since_s(last), f64::max);
        (id, CoflowWork { arrived_s: since_s(first), alone_s, loads })
    };
    coflows.into_iter().map(work).collect()
}
