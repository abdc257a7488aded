//! The present market: a network has one price and offers one cluster for each place.

use super::{ClusterAnnouncement, Design, first};
use crate::world::{Offer, Site};

/// A network matches its cheapest cluster and announces nothing.
#[derive(Copy, Clone, Debug)]
pub struct Brokered;

impl Design for Brokered {
    fn name(&self) -> String {
        "brokered".to_owned()
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        first(considered, 1)
    }
    fn announce(&self, _: &Site) -> ClusterAnnouncement {
        ClusterAnnouncement::default()
    }
}
