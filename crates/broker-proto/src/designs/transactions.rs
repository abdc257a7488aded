//! The marketplace, where a decision counts only if all networks agree.

use super::{ClusterAnnouncement, Design, Marketplace};
use crate::world::{Offer, Site};

/// Bids as in [`Marketplace`]; then each network is asked, and one refusal withdraws the whole
/// decision.
///
/// Differs: the thesis leaves this design aside, because the networks may never all agree. Here
/// each round has a maximum number of proposals.
#[derive(Copy, Clone, Debug)]
pub struct Transactions;

impl Design for Transactions {
    fn name(&self) -> String {
        "transactions".to_owned()
    }
    fn shares_clients(&self) -> bool {
        true
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        Marketplace::default().matching(considered)
    }
    fn announce(&self, site: &Site) -> ClusterAnnouncement {
        Marketplace::default().announce(site)
    }
    fn asks(&self) -> bool {
        true
    }
}
