//! Overlay Multicast: each object gets its best tree within the capacity left by earlier objects
//! (§4.7.1, "OM").
//!
//! Differs: the thesis does not state the order of objects. Here it is the order of arrival.

use super::arrival_states::{ArrivalStates, Metrics, Window, arrival_order, link_cost, served};
use crate::plan::optimiser::trees_in_order;

/// Metrics of Overlay Multicast for one window.
pub fn overlay_multicast(window: &Window<'_>) -> Metrics {
    let mut asks = ArrivalStates::new(window.trace);
    loop {
        let program = asks.program(window);
        let trees = trees_in_order(&program, &arrival_order(&program, &asks));
        if !asks.lower(window.trace, &served(&program, &trees)) {
            return asks.metrics(link_cost(&program, &trees));
        }
    }
}
