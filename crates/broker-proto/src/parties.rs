//! The parties of a world, as the decision protocol meets them: what each network knows of its own, its contract, and the clients that the broker counts.
//!
//! Leaves out: what they do (`agent`, `broker`). Read [`Parties`] first.

use crate::agent::Estimates;
use crate::broker::{Contract, Gathered};
use crate::messages::Clients;
use crate::world::{Offer, Place, Site, World};
use std::collections::BTreeMap;

/// A world, with its places by name.
#[derive(Clone, Debug)]
pub struct Parties<'a> {
    world: &'a World,
    places: BTreeMap<(String, String), u32>,
}

fn name(place: &Place) -> (String, String) {
    (format!("city {}", place.city), format!("isp {}", place.provider))
}

impl<'a> Parties<'a> {
    /// Those of a world. A cluster's number is the world's, a share's the place's.
    pub fn new(world: &'a World) -> Self {
        Self { world, places: world.places().iter().map(name).zip(0..).collect() }
    }
    /// The world.
    pub const fn world(&self) -> &'a World {
        self.world
    }
    /// What a network knows of its own.
    pub const fn own(&'a self, network: u32) -> Own<'a> {
        Own { parties: self, network }
    }
    /// A network's contract.
    pub fn contract(&self, network: u32) -> Contract {
        let network = &self.world.networks()[network as usize];
        Contract {
            price_per_mbps: network.price_per_mbps,
            capacity_median: network.capacity_median,
            bids_max: u64::MAX,
            ..Contract::default()
        }
    }
    /// The broker's clients.
    pub fn gathered(&self) -> Vec<Gathered> {
        let places = self.world.places().iter().map(name);
        let mut gathered: Vec<Gathered> =
            places.map(|(location, isp)| Gathered { location, isp, clients: Vec::new() }).collect();
        for group in self.world.groups() {
            let clients = Clients { bitrate_bps: group.bitrate.as_bps(), sessions: group.sessions };
            gathered[group.place as usize].clients.push(clients);
        }
        gathered
    }
}

/// What a network of a world knows of its own.
#[derive(Clone, Debug)]
pub struct Own<'a> {
    parties: &'a Parties<'a>,
    network: u32,
}

impl Own<'_> {
    fn place(&self, location: &str, isp: &str) -> Option<u32> {
        self.parties.places.get(&(location.to_owned(), isp.to_owned())).copied()
    }
}

impl Estimates for Own<'_> {
    fn site(&self, cluster: u32) -> Option<Site> {
        let is_own = self.parties.world.networks()[self.network as usize].clusters.contains(&cluster);
        is_own.then(|| self.parties.world.sites()[cluster as usize])
    }
    fn considered(&self, location: &str, isp: &str) -> Vec<Offer> {
        let place = self.place(location, isp);
        place.map_or_else(Vec::new, |place| self.parties.world.offers(place, self.network).to_vec())
    }
    fn all(&self, location: &str, isp: &str) -> Vec<Offer> {
        let Some(place) = self.place(location, isp) else { return Vec::new() };
        let (scores, own) = (
            self.parties.world.scores(place),
            self.parties.world.networks()[self.network as usize].clusters.clone(),
        );
        own.map(|cluster| Offer { cluster, score: scores[cluster as usize] }).collect()
    }
}
