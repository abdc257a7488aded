//! One cluster for each place, and what it costs.

use super::{Announced, Design, first};
use crate::world::{Offer, Site};

/// A network matches the cheapest cluster and says what it costs.
#[derive(Copy, Clone, Debug)]
pub struct DynamicPricing;

impl Design for DynamicPricing {
    fn name(&self) -> String {
        "dynamic-pricing".to_owned()
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        first(considered, 1)
    }
    fn announce(&self, site: &Site) -> Announced {
        Announced { price_per_mbps: Some(site.cost_per_mbps), capacity: None }
    }
}
