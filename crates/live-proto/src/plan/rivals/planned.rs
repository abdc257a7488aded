//! The optimiser as a design: VDN's central control without local control.

use super::arrival_states::{ArrivalStates, Metrics, Window, link_cost, served};
use crate::plan::optimiser::Prices;
use crate::plan::{Plan, Program};

/// Metrics of the planner `plan` for one window. Whenever refused viewers ask for a lower bitrate,
/// the window is planned again, starting from the last prices.
///
/// The first program has the bitrates that viewers ask for first. `plan` gets the prices it
/// returned for the previous program.
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
