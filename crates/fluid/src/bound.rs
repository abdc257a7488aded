//! Certified lower bounds of the sum of coflow completion times: no schedule has a lower sum.
//!
//! A schedule may know all flows in advance, may choose any rates that overload no link, and may
//! change rates at any time. There are five relaxations; each is proved where it is implemented:
//!
//! 1. *Alone*: a coflow with all links to itself is not faster than its slowest link
//!    ([`Bound::alone_s`]).
//! 2. *Links*: each coflow is counted on a single link, where shortest remaining time first is
//!    optimal ([`Bound::links_s`]).
//! 3. *Prices*: time on links has a price, and each coflow chooses its completion and its use of
//!    links independently. The sum of the coflows' payments minus the price of all time is a bound
//!    for any prices ([`Bound::prices_s`]). The best prices solve a time-indexed linear program;
//!    they are approached by ascent, and every step gives a bound.
//! 4. *Cases*: a coflow completes either by an instant or after it. The two cases have different
//!    prices, and a bound that holds in both cases is a bound ([`Bound::cases_s`]).
//! 5. *Orders*: with a small number of coflows, each coflow waits for earlier completions
//!    ([`Bound::orders_s`]). This relaxation is a linear program.
//!
//! The prices relaxation considers all links at once. The links relaxation considers that a link
//! serves one job after another, and is exact on a single link. All relaxations consider only the
//! volumes of flows on links: they ignore that a flow uses all links of its route at the same
//! instant.
//!
//! Entry point: [`total`] returns a [`Bound`].

mod links;
mod orders;
mod prices;
mod search;
mod work;

use crate::network::{CoflowId, Flow, LinkId, Network};
use crate::run::{RunError, check};
use std::collections::BTreeMap;

/// Relative rounding error of a sum, which is subtracted from every bound. A sum of 2^20 terms has
/// a relative error of at most 2^-33.
const ROUNDING: f64 = 1e-9;
/// Relative error of the solver of linear programs.
const SOLVER_ROUNDING: f64 = 1e-6;

/// Effort of the search for prices.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of passes that split intervals. Each pass adds at most half as many intervals; the
    /// maximum is 4,096 intervals.
    pub splits: u32,
    /// Number of steps of ascent before the first split, and after each split.
    pub steps: u32,
    /// Number of times that a case is split into two cases. Each new case gets a third of the
    /// steps. `branches` + 1 cases are kept in memory, each with its prices.
    pub branches: u32,
}

impl Default for Effort {
    /// Takes less than a minute for the one-hour trace of the coflow benchmark.
    fn default() -> Self {
        Self { splits: 6, steps: 150, branches: 30 }
    }
}

/// Lower bounds for any schedule, in seconds. A bound is for the sum, over coflows, of the time
/// from the first flow's arrival to the last flow's completion. Rounding errors are subtracted.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Number of coflows.
    pub coflows: usize,
    /// Bound if each coflow is alone.
    pub alone_s: f64,
    /// Bound if each coflow uses a single link, which it shares with the coflows assigned to the
    /// link.
    pub links_s: f64,
    /// Link of each coflow in `links_s`; `None` for a coflow without volume.
    pub assignment: BTreeMap<CoflowId, Option<LinkId>>,
    /// Bound if coflows pay for links, at the best prices found.
    pub prices_s: f64,
    /// Bound like `prices_s`, with some coflows split into two cases. Of two cases the lower bound
    /// counts.
    pub cases_s: f64,
    /// Bound if coflows are ordered on each link separately; `None` with more than ten coflows, or
    /// if the solver fails. The solver's result is assumed to have a relative error of at most a
    /// millionth.
    pub orders_s: Option<f64>,
}

/// The relaxation that gives a bound.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Relaxation {
    /// See [`Bound::alone_s`].
    Alone,
    /// See [`Bound::links_s`].
    Links,
    /// See [`Bound::prices_s`].
    Prices,
    /// See [`Bound::cases_s`].
    Cases,
    /// See [`Bound::orders_s`].
    Orders,
}

impl Bound {
    /// Returns the best bound and its relaxation. Of equal bounds, the simplest relaxation is
    /// returned.
    pub fn total_s(&self) -> (f64, Relaxation) {
        let all = [
            (self.alone_s, Relaxation::Alone),
            (self.links_s, Relaxation::Links),
            (self.prices_s, Relaxation::Prices),
            (self.cases_s, Relaxation::Cases),
            (self.orders_s.unwrap_or_default(), Relaxation::Orders),
        ];
        all.into_iter()
            .reduce(|best, next| if next.0 > best.0 { next } else { best })
            .expect("there are five")
    }
    /// Returns the best bound of the mean; 0 without coflows.
    pub fn mean_s(&self) -> f64 {
        self.total_s().0 / self.coflows.max(1) as f64
    }
}

/// Returns the minimum time of each coflow with all links to itself, in seconds: see
/// [`Bound::alone_s`].
///
/// Errors: like [`crate::run`] for flows that do not fit the network.
pub fn alone_s(network: &Network, flows: &[Flow]) -> Result<BTreeMap<CoflowId, f64>, RunError> {
    check(network, flows)?;
    let works = work::of_coflows(network, flows).into_iter();
    Ok(works.map(|(coflow, work)| (coflow, work.alone_s - work.arrived_s)).collect())
}

/// Returns lower bounds of the sum of the coflows' completion times under any schedule.
///
/// Cost: per step of ascent, the work of each coflow on its links over all intervals in which it
/// may wait. Errors: like [`crate::run`] for flows that do not fit the network.
pub fn total(network: &Network, flows: &[Flow], effort: Effort) -> Result<Bound, RunError> {
    check(network, flows)?;
    let (names, works): (Vec<CoflowId>, Vec<work::CoflowWork>) =
        work::of_coflows(network, flows).into_iter().unzip();
    let last_s = works.iter().map(|work| work.alone_s).fold(0.0, f64::max);
    // Rounding error of instants. A schedule delayed by this error is valid for the rounded
    // arrivals, so a completion time is off by at most a few times the error.
    let instants_s = works.len() as f64 * last_s * 4.0 * f64::EPSILON;
    let certified_s = |total_s: f64| (total_s * (1.0 - ROUNDING) - instants_s).max(0.0);
    let assignment = links::assign(&works, network.links());
    let proof = search::prove(&works, network.links(), effort);
    let prices_s = proof.total_s;
    Ok(Bound {
        coflows: works.len(),
        alone_s: certified_s(works.iter().map(|work| work.alone_s - work.arrived_s).sum()),
        links_s: certified_s(assignment.total_s),
        assignment: names.into_iter().zip(assignment.links).collect(),
        prices_s: certified_s(prices_s),
        cases_s: certified_s(search::branch(&works, proof, effort)),
        orders_s: orders::total_s(&works).map(|total_s| certified_s(total_s * (1.0 - SOLVER_ROUNDING))),
    })
}

#[cfg(test)]
mod tests;
