//! The optimiser's plan: a tree for each served object, and a certified bound.

use super::problem::{GroupLinkId, ObjectId};
use anabranch_units::LinkId;

/// The links that carry one object: `Serves` of Figure 4.8 for this object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Object that the tree carries.
    pub object: ObjectId,
    /// Links from sources to reflectors and from reflectors to edges, in order.
    pub links: Vec<LinkId>,
    /// Links from edges to groups, in order.
    pub group_links: Vec<GroupLinkId>,
}

/// Trees of all served objects, and a bound on their distance from the optimum.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// One tree for each served object, in order of objects.
    pub trees: Vec<Tree>,
    /// Value of the served requests, weighted by w_s.
    pub service: f64,
    /// Cost of all links, weighted by w_c.
    pub cost: f64,
    /// Certified upper bound of the objective of every plan.
    pub bound: f64,
}

impl Plan {
    /// Service minus cost: the objective of Figure 4.8.
    pub fn objective(&self) -> f64 {
        self.service - self.cost
    }
    /// Upper bound of the distance from the optimum, as a share of the bound (§4.5, footnote 2).
    pub fn gap(&self) -> f64 {
        if self.bound > 0.0 { ((self.bound - self.objective()) / self.bound).max(0.0) } else { 0.0 }
    }
    /// Upper bound of the distance from the optimum, as a share of the plan's cost; `None` for a
    /// plan without cost.
    pub fn gap_of_cost(&self) -> Option<f64> {
        (self.cost > 0.0).then(|| ((self.bound - self.objective()) / self.cost).max(0.0))
    }
}
