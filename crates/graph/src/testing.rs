//! Random networks for this crate's tests.

use crate::{Adjacency, LinkProperties, Topology};
use anabranch_units::{BitRate, Duration, SiteId};
use proptest::prelude::*;

/// A network with capacities in units, and lengths, both by link id.
#[derive(Clone, Debug)]
pub struct RandomNetwork {
    pub adjacency: Adjacency,
    pub capacities: Vec<u64>,
    pub lengths: Vec<u64>,
}

/// Draws networks of 2 to `sites` sites and up to `links` links. Each link has 0 to `capacity`
/// units and a length of 1 to 9.
pub fn networks(sites: u16, links: usize, capacity: u64) -> impl Strategy<Value = RandomNetwork> {
    (2..=sites).prop_flat_map(move |n| {
        let link = (0..n, 1..n, 0..=capacity, 1..10u64);
        proptest::collection::vec(link, 0..=links).prop_map(move |drawn| {
            let mut topology = Topology::new("random");
            for i in 0..n {
                topology.add_site(i.to_string(), None).expect("numbers differ");
            }
            for (from, step, _, _) in &drawn {
                let properties = LinkProperties::new(BitRate::mbps(1), Duration::ZERO);
                topology.add_link(SiteId(*from), SiteId((from + step) % n), properties).expect("a good link");
            }
            RandomNetwork {
                adjacency: Adjacency::new(&topology),
                capacities: drawn.iter().map(|d| d.2).collect(),
                lengths: drawn.iter().map(|d| d.3).collect(),
            }
        })
    })
}
