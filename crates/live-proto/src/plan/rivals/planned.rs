//! The optimiser as a design: VDN's central control without the local one.

use super::arrival_states::{ArrivalStates, Metrics, Window, link_cost, served};
use crate::plan::optimiser::Prices;
use crate::plan::{Plan, Program};

/// Metrics of plans for one window by the planner `plan`. Each time that refused viewers ask for
/// less, the window is planned again, from the former prices.
///
/// The first program is what viewers ask for first. `plan` takes the prices that it returned for the
/// program before.
pub fn planned_by(
    window: &Window<'_>,
    mut plan: impl FnMut(&Program, Option<&Prices>) -> (Plan, Prices),
) -> Metrics {
    let mut asks = ArrivalStates::new(window.trace);
    let mut prices = None;
    loop {
        let program = asks.program(window);
        let (plan, found) = plan(&program, prices.as_ref());
        if !asks.lower(window.trace, &served(&program, &plan.trees)) {
            return asks.metrics(link_cost(&program, &plan.trees));
        }
        prices = Some(found);
    }
}
