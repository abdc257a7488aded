//! A content network's side of the decision protocol: it estimates, matches, bids, answers proposals and keeps account of what was accepted.
//!
//! Source: steps 1, 4, 5 and 7 of section 3.4.1. Leaves out: where costs, loads and scores come from (the network's own systems), and sockets. Each
//! `handle_*` answers at once; an agent has no deadlines. Read [`Agent`] first.

use crate::designs::Design;
use crate::messages::{Accepted, Assent, Bids, Call, ClusterBid, ClusterRate, Proposal, ShareBids};
use crate::world::{Offer, Site};
use anabranch_units::{BitRate, PeerId};
use std::collections::BTreeMap;

/// Clusters and scores, as a network knows its own.
pub trait Estimates {
    /// A cluster by its number; none if there is no such.
    fn site(&self, cluster: u32) -> Option<Site>;
    /// The clusters that the network considers for a place, the cheapest first; none for a place that it does not serve.
    fn considered(&self, location: &str, isp: &str) -> Vec<Offer>;
    /// All clusters, for the same place.
    fn all(&self, location: &str, isp: &str) -> Vec<Offer>;
}

/// What a network that has several brokers keeps of a cluster for the others when it bids to one.
///
/// Source: the thesis leaves it open (chapter 7): are bids hints or guarantees, and how does a network bid to several brokers?
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub enum Reserve {
    /// Nothing: each broker is bid all of it. A capacity is a hint.
    #[default]
    Nothing,
    /// Equal parts for so many brokers. A capacity is a guarantee.
    Parts(u32),
    /// What the others have used of late, and so many standard deviations more.
    Learnt {
        /// How many.
        deviations: f64,
    },
}

/// What a broker has a cluster send, round by round: the mean and the variance, the newest rounds counting most, in bits a second.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Used {
    mean: f64,
    variance: f64,
}

/// How much the newest round counts.
const NEWEST: f64 = 0.25;

impl Used {
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
    /// By broker: the last round that was accepted, and what each cluster sends for it.
    accepted: BTreeMap<PeerId, (u64, BTreeMap<u32, u64>)>,
    used: BTreeMap<PeerId, BTreeMap<u32, Used>>,
}

impl Agent {
    /// One that keeps so much for other brokers.
    pub fn new(reserve: Reserve) -> Self {
        Self { reserve, ..Self::default() }
    }

    /// What it expects a broker to have a cluster send in the next round, in bits a second.
    pub fn expected_bps(&self, broker: PeerId, cluster: u32) -> f64 {
        self.used.get(&broker).and_then(|used| used.get(&cluster)).map_or(0.0, |used| used.mean)
    }

    /// A cluster as it is bid to a broker: what is kept for others counts as other traffic.
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

    /// What the brokers' accepted rounds have a cluster send, in bits a second.
    pub fn committed_bps(&self, cluster: u32) -> u64 {
        self.accepted.values().filter_map(|(_, rates)| rates.get(&cluster)).sum()
    }

    /// What others than this broker have a cluster send.
    fn committed_to_others(&self, broker: PeerId, cluster: u32) -> u64 {
        let others = self.accepted.iter().filter(|(other, _)| **other != broker);
        others.filter_map(|(_, (_, rates))| rates.get(&cluster)).sum()
    }

    /// Bids for a broker's round.
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

    /// Agrees to what a broker would place, or says how much each cluster can send that would get too much: what it has beside its other
    /// traffic and what was accepted for other brokers.
    pub fn handle_proposal(&self, estimates: &impl Estimates, broker: PeerId, proposal: &Proposal) -> Assent {
        let refused = proposal.clusters.iter().filter_map(|asked| {
            let room = estimates.site(asked.cluster).map_or(0, |site| site.room().as_bps());
            let most = room.saturating_sub(self.committed_to_others(broker, asked.cluster));
            (asked.rate_bps > most).then_some(ClusterRate { cluster: asked.cluster, rate_bps: most })
        });
        Assent { round: proposal.round, attempt: proposal.attempt, refused: refused.collect() }
    }

    /// A broker's round was accepted: it takes the place of the one before. Of an older round it is late, and nothing.
    pub fn handle_accepted(&mut self, broker: PeerId, accepted: &Accepted) {
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

    /// A broker has gone for good: nothing is sent for it any more.
    pub fn handle_gone(&mut self, broker: PeerId) {
        self.accepted.remove(&broker);
        self.used.remove(&broker);
    }
}
