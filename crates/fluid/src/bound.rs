//! Certified lower bounds on the sum of coflow completion times: no schedule is faster.
//!
//! A schedule here may know all flows beforehand, give any rates that no link is overloaded by, and change them at any time.
//! Five relaxations, each a theorem where it is written:
//!
//! 1. *Alone*: a coflow with all links to itself is not faster than its slowest link ([`Bound::alone_s`]).
//! 2. *Links*: each coflow is counted on one link, where shortest remaining time first is best ([`Bound::links_s`]).
//! 3. *Prices*: time on links has a price, each coflow chooses for itself when to complete and when to use its links, and their
//!    payments in sum, less the price of all time, are a bound for any prices ([`Bound::prices_s`]). The best prices are
//!    those of a linear program that is indexed by time; they are approached by ascent, and every step is a bound.
//!
//! 4. *Cases*: a coflow completes by an instant or after it, each case has its own prices, and a bound in all cases is a bound
//!    ([`Bound::cases_s`]).
//! 5. *Orders*: of few coflows, each waits for those that complete before it ([`Bound::orders_s`]). This is a linear program.
//!
//! Prices see all links at once, links see that a machine serves one after the other; on one link the second is exact. Flows
//! count by their volume on links only: that a flow uses all links of its route at the same instant is not seen.
//!
//! Entry point: [`total`] gives a [`Bound`].

mod links;
mod orders;
mod prices;
mod search;
mod work;

use crate::network::{CoflowId, Flow, LinkId, Network};
use crate::run::{RunError, check};
use std::collections::BTreeMap;

/// What rounding may add to a sum of so many terms at most, as a part of it; taken off every bound. A sum of 2^20 terms is exact
/// to 2^-33 of it.
const ROUNDING: f64 = 1e-9;
/// What a linear program's solver may be off by, as a part of its answer.
const SOLVER_ROUNDING: f64 = 1e-6;

/// How long to look for prices.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Effort {
    /// How often intervals are split where it may help, which makes half of them more; at most 4,096 there are.
    pub splits: u32,
    /// Steps of ascent before, and after each time.
    pub steps: u32,
    /// How often a case becomes two, each of which takes a third of these steps. One more than that are kept, each with its
    /// prices.
    pub branches: u32,
}

impl Default for Effort {
    /// Takes less than a minute on the coflow benchmark's trace of an hour.
    fn default() -> Self {
        Self { splits: 6, steps: 150, branches: 30 }
    }
}

/// What no schedule is below, in seconds: sums over coflows, of the time from the first flow's arrival to the last flow's
/// completion. What rounding may have added is taken off.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// How many coflows there are.
    pub coflows: usize,
    /// As if each were alone.
    pub alone_s: f64,
    /// As if each used one link only, which it shares with those that do.
    pub links_s: f64,
    /// Which one that is; none for a coflow that has nothing to move.
    pub assignment: BTreeMap<CoflowId, Option<LinkId>>,
    /// As if each used links at the best prices that were found, rather than by turns.
    pub prices_s: f64,
    /// The same, where some coflows complete by an instant or after it, whichever is less.
    pub cases_s: f64,
    /// As if coflows were only ordered, each link for itself; none where there are more than ten. As exact as a solver's
    /// answer is, which is taken for right to a millionth.
    pub orders_s: Option<f64>,
}

/// Why a bound is what it is.
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
    /// The best of all, and which that is; of equal ones the simplest.
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
    /// The best bound on the mean; 0 where there are no coflows.
    pub fn mean_s(&self) -> f64 {
        self.total_s().0 / self.coflows.max(1) as f64
    }
}

/// What each coflow takes with all links to itself at least, in seconds: see [`Bound::alone_s`].
///
/// Errors: as of [`crate::run`], where flows and network do not fit.
pub fn alone_s(network: &Network, flows: &[Flow]) -> Result<BTreeMap<CoflowId, f64>, RunError> {
    check(network, flows)?;
    let works = work::of_coflows(network, flows).into_iter();
    Ok(works.map(|(coflow, work)| (coflow, work.alone_s - work.arrived_s)).collect())
}

/// Bounds what the coflows' completion times add up to, under any schedule.
///
/// Cost: for each step of each effort, what coflows do with their links, in all intervals in which they may wait.
/// Errors: as of [`crate::run`], where flows and network do not fit.
pub fn total(network: &Network, flows: &[Flow], effort: Effort) -> Result<Bound, RunError> {
    check(network, flows)?;
    let (names, works): (Vec<CoflowId>, Vec<work::Work>) =
        work::of_coflows(network, flows).into_iter().unzip();
    let last_s = works.iter().map(|work| work.alone_s).fold(0.0, f64::max);
    // Instants are rounded by so little. Delaying a schedule by as much makes it one for the rounded arrivals, so that no
    // completion time is off by more than a few times that.
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
