//! Max-min fair rates over trees, by a linear program with columns generated as needed.
//!
//! Every owner (a transfer, or a group of a transfer) moves its data over *columns*: trees or paths
//! that use some links a number of times per unit of rate. [`max_min`] raises the smallest rate as
//! far as possible, fixes the owners whose rate cannot be raised further, and continues with the
//! other owners (water-filling). The program is solved in its dual form, where a new column is a
//! new constraint. The solution consists of link prices with which no known column is cheaper than
//! its owner's worth. If the cheapest column under these prices is already known, the solution is
//! optimal; otherwise the column is added.
//!
//! Source: Gilmore and Gomory 1961 (column generation), as Kelley's cutting planes on the dual;
//! max-min by stages as surveyed by Nace and Pióro 2008. microlp solves the programs. Read
//! [`max_min`] first.

use super::request::PlanError;
use anabranch_units::LinkId;
use microlp::{ComparisonOp, OptimizationDirection, Problem as Program, Solution, Variable};

/// A tree or path that moves the data of an owner.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    pub owner: usize,
    /// Links used, each once, with the number of bits on the link per bit of the owner's data.
    pub uses: Vec<(LinkId, f64)>,
}

/// The cheapest column found, and a lower bound of the price of any column.
pub(super) struct PricedColumn {
    pub column: Column,
    pub price: f64,
    pub floor: f64,
}

/// The result of the program.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    /// Rate of each column, in the unit of the capacities.
    pub weights: Vec<f64>,
    /// Upper bound of the smallest rate, whichever columns are used.
    pub ceiling: f64,
}

/// A column is added if it undercuts its owner's worth by more than this fraction. The fraction is
/// far above the solver's tolerance of 1e-7 on prices of about 1, and far below any difference
/// between plans.
const UNDERCUT: f64 = 1e-6;
/// A worth below this counts as zero: the owner's rate can be raised further.
const WORTHLESS: f64 = 1e-6;
/// Fixed rates are reduced by this fraction in later programs, so that rounding cannot make them
/// infeasible.
const EASE: f64 = 1e-6;
/// Maximum number of rounds, far more than any program of the surveys needed. Beyond it, the
/// ceiling shows the possible distance from the optimum.
const ROUNDS_MAX: usize = 2_000;

/// Max-min fair rates of `owners` over `columns` and the columns that `price` adds.
///
/// `price` returns an owner's cheapest column under the given link prices, or `None` if no columns
/// exist beside the given ones. Every owner needs at least one column at the start. `enough` is a
/// known upper bound of the smallest rate (a min-cut): the search ends when it is reached.
pub(super) fn max_min(
    capacities: &[f64],
    owners: usize,
    columns: &mut Vec<Column>,
    enough: f64,
    mut price: impl FnMut(usize, &[f64]) -> Option<PricedColumn>,
) -> Result<Shares, PlanError> {
    let scale = capacities.iter().copied().fold(0.0, f64::max);
    let scaled: Vec<f64> = capacities.iter().map(|c| c / scale).collect();
    let mut held: Vec<Option<f64>> = vec![None; owners];
    let mut ceiling = f64::INFINITY;
    while held.iter().any(Option::is_none) {
        let mut dual = Dual::new(&scaled, &held, columns)?;
        let mut floor_share = f64::INFINITY;
        for round in 0.. {
            let first_stage = held.iter().all(Option::is_none);
            if first_stage && dual.objective() * scale >= enough * (1.0 - 1e-9) {
                ceiling = enough;
                break;
            }
            let prices = dual.prices();
            let mut added = false;
            floor_share = 1.0;
            for owner in 0..owners {
                let worth = dual.worth(owner);
                if worth <= WORTHLESS {
                    continue;
                }
                let Some(found) = price(owner, &prices) else { continue };
                floor_share = f64::min(floor_share, found.floor / worth);
                if found.price < worth * (1.0 - UNDERCUT) && !columns.contains(&found.column) {
                    dual = dual.with(&found.column)?;
                    columns.push(found.column);
                    added = true;
                }
            }
            if !added || round >= ROUNDS_MAX {
                break;
            }
        }
        if held.iter().all(Option::is_none) && ceiling.is_infinite() {
            // Prices divided by the smallest factor by which a column could undercut them are
            // feasible for the dual.
            ceiling = (dual.objective() * scale / floor_share).min(enough);
        }
        // The worths of the owners that are not fixed sum to 1, so the objective is their rate.
        let rate = dual.objective().max(0.0);
        let mut any = false;
        let worths: Vec<f64> = (0..owners).map(|o| dual.worth(o)).collect();
        for (owner, hold) in held.iter_mut().enumerate().filter(|(_, h)| h.is_none()) {
            if worths[owner] > WORTHLESS {
                *hold = Some(rate);
                any = true;
            }
        }
        if !any {
            return Err(PlanError::Solver("prices say that no transfer is held back by any link".into()));
        }
    }
    let rates: Vec<f64> = held.into_iter().flatten().collect();
    let weights = fewest_bytes(&scaled, &rates, columns)?.into_iter().map(|w| w * scale).collect();
    Ok(Shares { weights, ceiling })
}

/// Weights that give every owner its rate with the fewest bytes, summed over the links.
fn fewest_bytes(capacities: &[f64], rates: &[f64], columns: &[Column]) -> Result<Vec<f64>, PlanError> {
    let mut program = Program::new(OptimizationDirection::Minimize);
    let length = |c: &Column| c.uses.iter().map(|(_, n)| *n).sum::<f64>();
    let weights: Vec<Variable> =
        columns.iter().map(|c| program.add_var(length(c), (0.0, f64::INFINITY))).collect();
    let mut on_link: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); capacities.len()];
    for (column, weight) in columns.iter().zip(&weights) {
        column.uses.iter().for_each(|(l, n)| on_link[l.index()].push((*weight, *n)));
    }
    for (row, capacity) in on_link.into_iter().zip(capacities).filter(|(row, _)| !row.is_empty()) {
        program.add_constraint(row, ComparisonOp::Le, *capacity);
    }
    for (owner, rate) in rates.iter().enumerate() {
        let row: Vec<(Variable, f64)> =
            columns.iter().zip(&weights).filter(|(c, _)| c.owner == owner).map(|(_, w)| (*w, 1.0)).collect();
        program.add_constraint(row, ComparisonOp::Ge, rate * (1.0 - EASE));
    }
    let solution = solved(program.solve())?;
    Ok(weights.into_iter().map(|w| solution.var_value(w).max(0.0)).collect())
}

/// The dual program: link prices `y` and owners' worths `w`. It minimises `c*y - held*w`, and the
/// price of every column is at least its owner's worth.
struct Dual {
    solution: Solution,
    prices: Vec<Option<Variable>>,
    worths: Vec<Variable>,
}

impl Dual {
    fn new(capacities: &[f64], held: &[Option<f64>], columns: &[Column]) -> Result<Self, PlanError> {
        let mut program = Program::new(OptimizationDirection::Minimize);
        let prices: Vec<Option<Variable>> = capacities
            .iter()
            .map(|c| (*c > 0.0).then(|| program.add_var(*c, (0.0, f64::INFINITY))))
            .collect();
        let worths: Vec<Variable> = held
            .iter()
            .map(|h| program.add_var(-h.map_or(0.0, |r| r * (1.0 - EASE)), (0.0, f64::INFINITY)))
            .collect();
        let rest: Vec<(Variable, f64)> =
            worths.iter().zip(held).filter(|(_, h)| h.is_none()).map(|(w, _)| (*w, 1.0)).collect();
        program.add_constraint(rest, ComparisonOp::Eq, 1.0);
        for column in columns {
            program.add_constraint(row(&prices, &worths, column), ComparisonOp::Ge, 0.0);
        }
        Ok(Self { solution: solved(program.solve())?, prices, worths })
    }
    fn with(self, column: &Column) -> Result<Self, PlanError> {
        let row = row(&self.prices, &self.worths, column);
        let solution = solved(self.solution.add_constraint(row, ComparisonOp::Ge, 0.0))?;
        Ok(Self { solution, ..self })
    }
    fn objective(&self) -> f64 {
        self.solution.objective()
    }
    fn worth(&self, owner: usize) -> f64 {
        self.solution.var_value(self.worths[owner])
    }
    /// Price of each link; infinite for links that cannot be used.
    fn prices(&self) -> Vec<f64> {
        let price = |v: &Option<Variable>| v.map_or(f64::INFINITY, |v| self.solution.var_value(v).max(0.0));
        self.prices.iter().map(price).collect()
    }
}

fn row(prices: &[Option<Variable>], worths: &[Variable], column: &Column) -> Vec<(Variable, f64)> {
    let mut row: Vec<(Variable, f64)> = column
        .uses
        .iter()
        .map(|(l, n)| (prices[l.index()].expect("a column uses links with capacity"), *n))
        .collect();
    row.push((worths[column.owner], -1.0));
    row
}

fn solved(outcome: Result<microlp::SolveOutcome, microlp::Error>) -> Result<Solution, PlanError> {
    outcome
        .map_err(|e| PlanError::Solver(e.to_string()))?
        .into_solution()
        .map_err(|_| PlanError::Solver("interrupted".into()))
}
