//! Programs for tests: one with two nodes in each tier, and random ones.

use super::problem::{Group, GroupId, GroupLink, ObjectId, Offer, Program, Request, Settings};
use crate::network::{ChannelId, Link, Network, Node, NodeId, Object, Tier};
use anabranch_units::{BitRate, Seed};
use std::collections::BTreeMap;

pub fn network(tiers: [u32; 3], links: Vec<Link>) -> Network {
    let names = [("s", Tier::Source), ("r", Tier::Reflector), ("e", Tier::Edge)];
    let nodes = names.iter().zip(tiers).flat_map(|(&(name, tier), count)| {
        (0..count).map(move |n| Node { name: format!("{name}{n}"), tier })
    });
    Network::new(nodes.collect(), links).expect("links between the tiers")
}

pub fn link(from: u32, to: u32, kbps: u64, cost: f64) -> Link {
    Link { from: NodeId(from), to: NodeId(to), capacity: BitRate::bps(1_000 * kbps), cost }
}

pub fn group_link(edge: u32, group: u32, kbps: u64, cost: f64) -> GroupLink {
    GroupLink { edge: NodeId(edge), group: GroupId(group), capacity: BitRate::bps(1_000 * kbps), cost }
}

pub fn offer(channel: u32, kbps: u64) -> Offer {
    let object = Object { channel: ChannelId(channel), bitrate: BitRate::bps(1_000 * kbps) };
    Offer { object, importance: 1.0 }
}

pub fn request(object: u32, group: u32, viewers: u64) -> Request {
    Request { object: ObjectId(object), group: GroupId(group), viewers }
}

/// Parts of the input, which tests change separately.
#[derive(Clone)]
pub struct InputParts {
    pub network: Network,
    pub groups: (Vec<Group>, Vec<GroupLink>),
    pub demand: (Vec<Offer>, Vec<Request>),
    pub holders: BTreeMap<ChannelId, Vec<NodeId>>,
    pub settings: Settings,
}

impl InputParts {
    pub fn program(self) -> Result<Program, super::ProgramError> {
        Program::new(self.network, self.groups, self.demand, self.holders, self.settings)
    }
}

/// Sources 0 and 1, reflectors 2 and 3, edges 4 and 5, fully linked; groups 0 and 1, linked to both
/// edges; two objects.
pub fn square() -> InputParts {
    let tier_link = |from, to| link(from, to, 1_000, 10.0);
    let links = vec![
        tier_link(0, 2),
        tier_link(0, 3),
        tier_link(1, 2),
        tier_link(1, 3),
        tier_link(2, 4),
        tier_link(2, 5),
        tier_link(3, 4),
        tier_link(3, 5),
    ];
    let group_links = vec![
        group_link(4, 0, 2_000, 0.0),
        group_link(5, 0, 2_000, 1.0),
        group_link(4, 1, 2_000, 1.0),
        group_link(5, 1, 2_000, 0.0),
    ];
    InputParts {
        network: network([2, 2, 2], links),
        groups: ((0..2).map(|city| Group { city, asn: 0 }).collect(), group_links),
        demand: (
            vec![offer(0, 800), offer(1, 400)],
            vec![request(0, 0, 3), request(0, 1, 1), request(1, 1, 2)],
        ),
        holders: BTreeMap::new(),
        settings: Settings::default(),
    }
}

/// A random program of at most `objects` objects and `requests` requests. Links may be missing or
/// narrow, and channels may be held by some sources only.
pub fn random(seed: u64, tiers: [u32; 3], groups: u32, objects: u32, requests: u32) -> InputParts {
    let mut draws = Seed::new(seed).stream("sample", 0);
    let [sources, reflectors, edges] = tiers;
    let mut links = Vec::new();
    for from in 0..sources + reflectors {
        let heads = if from < sources {
            sources..sources + reflectors
        } else {
            sources + reflectors..sources + reflectors + edges
        };
        for to in heads {
            if draws.chance_ppm(700_000) {
                links.push(link(from, to, 300 * draws.below(9), draws.below(30) as f64));
            }
        }
    }
    let mut group_links = Vec::new();
    for group in 0..groups {
        for edge in sources + reflectors..sources + reflectors + edges {
            if draws.chance_ppm(700_000) {
                group_links.push(group_link(edge, group, 300 * draws.below(12), draws.below(6) as f64));
            }
        }
    }
    let offers: Vec<Offer> = (0..objects)
        .map(|n| offer(n / 2, if n % 2 == 0 { 400 } else { 100 * (5 + draws.below(9)) }))
        .collect();
    let mut asked = BTreeMap::new();
    for _ in 0..requests {
        asked.insert(
            (draws.below(u64::from(objects)) as u32, draws.below(u64::from(groups)) as u32),
            1 + draws.below(4),
        );
    }
    let requests =
        asked.into_iter().map(|((object, group), viewers)| request(object, group, viewers)).collect();
    let mut holders = BTreeMap::new();
    for channel in 0..objects.div_ceil(2) {
        if sources > 1 && draws.chance_ppm(400_000) {
            holders.insert(ChannelId(channel), vec![NodeId(draws.below(u64::from(sources)) as u32)]);
        }
    }
    let cost_weight = [0.0, 0.002, 0.02][draws.below(3) as usize];
    let priority = [super::Priority::Quality, super::Priority::Balanced, super::Priority::Quantity]
        [draws.below(3) as usize];
    InputParts {
        network: network(tiers, links),
        groups: ((0..groups).map(|city| Group { city, asn: 0 }).collect(), group_links),
        demand: (offers, requests),
        holders,
        settings: Settings { cost_weight, priority, ..Settings::default() },
    }
}
