//! Many clusters for each place, what each costs and what it can send; but a network does not know which clients the broker has.

use super::{Announced, Design, MATCHES_MANY, first};
use crate::world::{Offer, Site};

/// A network says of each cluster all that it can say without knowing of the clients: its whole capacity, part of which others take.
#[derive(Copy, Clone, Debug)]
pub struct BestLookup;

impl Design for BestLookup {
    fn name(&self) -> String {
        "best-lookup".to_owned()
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        first(considered, MATCHES_MANY)
    }
    fn announce(&self, site: &Site) -> Announced {
        Announced { price_per_mbps: Some(site.cost_per_mbps), capacity: Some(site.capacity) }
    }
}
