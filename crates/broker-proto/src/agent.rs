//! A content network's side of the decision protocol: it estimates, matches, bids, answers
//! proposals and tracks accepted rounds.
//!
//! Source: steps 1, 4, 5 and 7 of section 3.4.1. Leaves out: the sources of costs, loads and scores
//! (the network's own systems), and sockets. Each `handle_*` answers at once; an agent has no
//! deadlines. Read [`Agent`] first.

use crate::designs::Design;
use crate::messages::{Assent, BidResult, Bids, Call, ClusterBid, ClusterRate, Proposal, ShareBids};
use crate::world::{Offer, Site};
use anabranch_units::{BitRate, PeerId};
use std::collections::BTreeMap;

/// A network's knowledge of its clusters and scores.
pub trait Estimates {
    /// Returns a cluster by its number, or `None` if the number is unknown.
    fn site(&self, cluster: u32) -> Option<Site>;
    /// Returns the clusters that the network considers for a place, cheapest first; empty for a
    /// place that it does not serve.
    fn considered(&self, location: &str, isp: &str) -> Vec<Offer>;
    /// Returns all clusters, with their scores for the place.
    fn all(&self, location: &str, isp: &str) -> Vec<Offer>;
}

/// Share of a cluster that a network with several brokers reserves for the other brokers when it
/// bids to one of them.
///
/// Source: the thesis leaves open (chapter 7) whether bids are hints or guarantees, and how a
/// network bids to several brokers.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub enum Reserve {
    /// No reserve: each broker is offered the whole cluster. An announced capacity is a hint.
    #[default]
    Nothing,
    /// Equal parts for this number of brokers. An announced capacity is a guarantee.
    Parts(u32),
    /// The recent mean use by the other brokers, plus a number of standard deviations.
    Learnt {
        /// Number of standard deviations.
        deviations: f64,
    },
}

/// Exponentially weighted mean and variance of a cluster's traffic for one broker, in bits per
/// second.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct ClusterUsage {
    mean: f64,
    variance: f64,
}

/// Weight of the newest round.
const NEWEST: f64 = 0.25;

impl ClusterUsage {
    fn note(&mut self, rate_bps: f64) {
        let off = rate_bps - self.mean;
        self.mean += NEWEST * off;
        self.variance = (1.0 - NEWEST) * (self.variance + NEWEST * off * off);
    }
}

/// A network's agent.
#[derive(Clone, Debug, Default)]
pub struct Agent {
    reserve: Reserve,
    /// By broker: the last accepted round, and the rate of each cluster in it.
    accepted: BTreeMap<PeerId, (u64, BTreeMap<u32, u64>)>,
    used: BTreeMap<PeerId, BTreeMap<u32, ClusterUsage>>,
}

impl Agent {
    /// Creates an agent with this reserve.
    pub fn new(reserve: Reserve) -> Self {
        Self { reserve, ..Self::default() }
    }

    /// Expected rate of a cluster for a broker in the next round, in bits per second.
    pub fn expected_bps(&self, broker: PeerId, cluster: u32) -> f64 {
        self.used.get(&broker).and_then(|used| used.get(&cluster)).map_or(0.0, |used| used.mean)
    }

    /// Returns a cluster as bid to a broker: the reserve for other brokers counts as background
    /// traffic.
    fn bid_to(&self, broker: PeerId, cluster: u32, site: Site) -> Site {
        let kept = match self.reserve {
            Reserve::Nothing => 0.0,
            Reserve::Parts(brokers) => {
                let room = site.room().as_bps() as f64;
                room - room / f64::from(brokers.max(1))
            }
            Reserve::Learnt { deviations } => {
                let others = self.used.iter().filter(|(other, _)| **other != broker);
                let used = others.filter_map(|(_, used)| used.get(&cluster));
                let (mean, variance) = used
                    .fold((0.0, 0.0), |(mean, variance), used| (mean + used.mean, variance + used.variance));
                mean + deviations * variance.sqrt()
            }
        };
        let background = site.background.as_bps().saturating_add(kept.ceil() as u64);
        Site { background: BitRate::bps(background), ..site }
    }

    /// Rate of a cluster in the accepted rounds of all brokers, in bits per second.
    pub fn committed_bps(&self, cluster: u32) -> u64 {
        self.accepted.values().filter_map(|(_, rates)| rates.get(&cluster)).sum()
    }

    /// Rate of a cluster in the accepted rounds of all brokers but this one.
    fn committed_to_others(&self, broker: PeerId, cluster: u32) -> u64 {
        let others = self.accepted.iter().filter(|(other, _)| **other != broker);
        others.filter_map(|(_, (_, rates))| rates.get(&cluster)).sum()
    }

    /// Returns the bids in answer to a broker's call.
    pub fn handle_call(
        &self,
        broker: PeerId,
        design: &dyn Design,
        estimates: &impl Estimates,
        call: &Call,
    ) -> Bids {
        let mut clusters = BTreeMap::new();
        let mut shares = Vec::with_capacity(call.shares.len());
        for share in &call.shares {
            let matched = if design.opens_all() {
                estimates.all(&share.location, &share.isp)
            } else {
                design.matching(&estimates.considered(&share.location, &share.isp))
            };
            for offer in &matched {
                clusters.entry(offer.cluster).or_insert_with(|| {
                    let site = estimates.site(offer.cluster);
                    let said = site.map(|site| design.announce(&self.bid_to(broker, offer.cluster, site)));
                    said.unwrap_or_default()
                });
            }
            if !matched.is_empty() {
                let clusters = matched.into_iter().map(|offer| (offer.cluster, offer.score)).collect();
                shares.push(ShareBids { share: share.share, clusters });
            }
        }
        let clusters = clusters.into_iter().map(|(cluster, said)| ClusterBid {
            cluster,
            price: said.price_per_mbps,
            capacity_bps: said.capacity.map(BitRate::as_bps),
        });
        Bids { round: call.round, clusters: clusters.collect(), shares, more: false }
    }

    /// Assents to a broker's proposal, or names each overloaded cluster with the rate that it can
    /// send: its capacity less its background traffic and the accepted rounds of other brokers.
    pub fn handle_proposal(&self, estimates: &impl Estimates, broker: PeerId, proposal: &Proposal) -> Assent {
        let refused = proposal.clusters.iter().filter_map(|asked| {
            let room = estimates.site(asked.cluster).map_or(0, |site| site.room().as_bps());
            let most = room.saturating_sub(self.committed_to_others(broker, asked.cluster));
            (asked.rate_bps > most).then_some(ClusterRate { cluster: asked.cluster, rate_bps: most })
        });
        Assent { round: proposal.round, attempt: proposal.attempt, refused: refused.collect() }
    }

    /// Replaces a broker's accepted round. Ignores an older round than the current one.
    pub fn handle_accepted(&mut self, broker: PeerId, accepted: &BidResult) {
        let known = self.accepted.entry(broker).or_default();
        if accepted.round > known.0 {
            let used = self.used.entry(broker).or_default();
            for cluster in &accepted.clusters {
                used.entry(cluster.cluster).or_default().note(cluster.rate_bps as f64);
            }
            let rates = accepted.clusters.iter().map(|cluster| (cluster.cluster, cluster.rate_bps));
            *known = (accepted.round, rates.filter(|(_, rate)| *rate > 0).collect());
        }
    }

    /// Forgets a broker that has left for good.
    pub fn handle_gone(&mut self, broker: PeerId) {
        self.accepted.remove(&broker);
        self.used.remove(&broker);
    }
}
