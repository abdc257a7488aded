//! The optimiser as a design: VDN's central control without the local one.

use super::asks::{Asks, Metrics, Window, link_cost, served};
use crate::plan::optimiser::Optimiser;

/// Metrics of plans for one window. Each time that refused viewers ask for less, the window is
/// planned again.
pub fn planned(window: &Window<'_>, optimiser: &Optimiser) -> Metrics {
    let mut asks = Asks::new(window.trace);
    let mut prices = None;
    loop {
        let program = asks.program(window);
        let planned = optimiser.optimise(&program, prices.as_ref());
        let (plan, found) = planned.expect("the prices are of this network");
        if !asks.lower(window.trace, &served(&program, &plan.trees)) {
            return asks.metrics(link_cost(&program, &plan.trees));
        }
        prices = Some(found);
    }
}
