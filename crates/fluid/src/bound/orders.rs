//! Bound for a few coflows: a linear program over their order of completion.
//!
//! In any schedule, coflows complete in some order. Let `before[k][j]` be 1 if `k` completes no
//! later than `j`, and 0 otherwise; either `before[k][j]` or `before[j][k]` is 1. When `j`
//! completes, a link has carried all of `j` and of the coflows before `j`, and any part that
//! arrived at `r` or later was carried after `r`. So for every link and every arrival `r` no later
//! than the arrival of `j`, `complete[j] >= r + busy[j] + sum over k that arrived at r or later of
//! busy[k] * before[k][j]`. The program allows fractions for `before`, and forbids cycles of three
//! coflows.
//!
//! Source: the relaxation by linear ordering of Potts (*Mathematical Programming Study* 13, 1980),
//! on every link (concurrent open shop: Mastrolilli and others, *Operations Research Letters* 38,
//! 2010). The solver is microlp.

use super::work::{CoflowWork, Load};
use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};

/// Maximum number of coflows. The number of rows grows with the third power of the number of
/// coflows.
pub const COFLOWS_MAX: usize = 10;

/// Returns a lower bound of the sum of completion times in seconds, where a completion time starts
/// at the coflow's arrival. Returns `None` with too many coflows, or if the solver fails.
pub fn total_s(works: &[CoflowWork]) -> Option<f64> {
    if works.len() > COFLOWS_MAX {
        return None;
    }
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let completes: Vec<Variable> =
        works.iter().map(|work| problem.add_var(1.0, (work.alone_s, f64::INFINITY))).collect();
    // For k < j: 1 if k is before j. The value for j before k is 1 minus this variable.
    let pairs: Vec<Vec<Variable>> =
        (0..works.len()).map(|j| (0..j).map(|_| problem.add_var(0.0, (0.0, 1.0))).collect()).collect();
    let before = |k: usize, j: usize| if k < j { (pairs[j][k], 1.0, 0.0) } else { (pairs[k][j], -1.0, 1.0) };
    let busy_s = |k: usize, load: &Load| {
        works[k].loads.iter().find(|other| other.link == load.link).map_or(0.0, |other| other.busy_s)
    };
    for (j, work) in works.iter().enumerate() {
        for load in &work.loads {
            for since_s in works.iter().map(|other| other.arrived_s).filter(|at| *at <= work.arrived_s) {
                let (mut row, mut least_s) = (vec![(completes[j], 1.0)], since_s + load.busy_s);
                for k in (0..works.len()).filter(|k| *k != j && works[*k].arrived_s >= since_s) {
                    let (variable, sign, constant) = before(k, j);
                    let busy_s = busy_s(k, load);
                    row.push((variable, -sign * busy_s));
                    least_s += constant * busy_s;
                }
                problem.add_constraint(row, ComparisonOp::Ge, least_s);
            }
        }
        for k in 0..j {
            for i in 0..k {
                // Forbids the cycle in which i is before k, k before j and j before i, and the
                // reverse cycle.
                let cycle = [(pairs[k][i], 1.0), (pairs[j][k], 1.0), (pairs[j][i], -1.0)];
                problem.add_constraint(cycle, ComparisonOp::Le, 1.0);
                problem.add_constraint(cycle, ComparisonOp::Ge, 0.0);
            }
        }
    }
    let solution = problem.solve().ok()?.into_solution().ok()?;
    let arrived_s: f64 = works.iter().map(|work| work.arrived_s).sum();
    Some(solution.objective() - arrived_s)
}
