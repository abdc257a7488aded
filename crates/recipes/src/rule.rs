//! The rule from the two deciding features to a mechanism (§1.2.3, Figure 1.6).

use crate::features::words;
use crate::{FeatureWord, Resources, Sharing};

words! {
    /// Mechanism by which two control planes coordinate (§1.1).
    Mechanism {
        /// Each control plane observes the data plane and adapts to it.
        Reaction = "reaction",
        /// Each control plane tells the other all information that its decision needs.
        Transparency = "transparency",
        /// Each control plane gives the other a ranked list of configurations, without reasons.
        PriorityRanking = "priority ranking",
        /// A global control plane decides slowly or coarsely; local control planes deviate from, or
        /// refine, its decisions within limits that it sets.
        HierarchicalPartitioning = "hierarchical partitioning",
    }
}

/// Mechanism for two control planes that share `sharing` and both decide for `resources`. `None`
/// for incomplete sharing and partially shared resources, which the thesis leaves open.
///
/// Source: Figure 1.6.
///
/// ```
/// use anabranch_recipes::{Mechanism, Resources, Sharing, mechanism};
/// assert_eq!(mechanism(Resources::Disjoint, Sharing::Incomplete), Some(Mechanism::PriorityRanking));
/// assert_eq!(mechanism(Resources::Partial, Sharing::Incomplete), None);
/// ```
pub const fn mechanism(resources: Resources, sharing: Sharing) -> Option<Mechanism> {
    match (sharing, resources) {
        (Sharing::None, _) => Some(Mechanism::Reaction),
        (Sharing::Complete, _) => Some(Mechanism::Transparency),
        (Sharing::Incomplete, Resources::Disjoint) => Some(Mechanism::PriorityRanking),
        (Sharing::Incomplete, Resources::Full) => Some(Mechanism::HierarchicalPartitioning),
        (Sharing::Incomplete, Resources::Partial) => None,
    }
}

impl Mechanism {
    /// Describes the mechanism in one sentence.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Reaction => {
                "No interface: each control plane measures what the other does to the data plane, and follows."
            }
            Self::Transparency => {
                "An interface with all information that the decisions need (cross-layer optimization)."
            }
            Self::PriorityRanking => {
                "Each control plane ranks the configurations that it would like the other to use, without its reasons."
            }
            Self::HierarchicalPartitioning => {
                "A global control plane decides slowly or coarsely; local ones deviate at events, or refine, within its slack."
            }
        }
    }

    /// States in one sentence why the two features lead to this mechanism.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Reaction => "Without an interface only measurements of the data plane are left.",
            Self::Transparency => {
                "Nothing stops information between the control planes, so assumptions of one about the other can be replaced by facts."
            }
            Self::PriorityRanking => {
                "Each control plane decides for its own devices and keeps its reasons private; a ranking shows its preference and not its costs."
            }
            Self::HierarchicalPartitioning => {
                "Both decide for the same devices, and one cannot know in time, or in detail, what the other knows; so one decides first and leaves slack."
            }
        }
    }

    /// States in one sentence what fails without the mechanism.
    pub const fn without(self) -> &'static str {
        match self {
            Self::Reaction => {
                "A control plane keeps decisions that the other has made wrong, such as a path that is full by now."
            }
            Self::Transparency => {
                "A layer decides on assumptions that no longer hold: flows are scheduled apart that an application awaits together, windows of TCP miss a circuit."
            }
            Self::PriorityRanking => {
                "A side picks what costs the other most, as it sees no costs: an expensive server, entry point or cluster."
            }
            Self::HierarchicalPartitioning => {
                "Global control alone answers failures and new clients too late; local control alone misses the optimum; unordered, they undo each other."
            }
        }
    }

    /// States in one sentence a pitfall of building the mechanism.
    pub const fn mind(self) -> &'static str {
        match self {
            Self::Reaction => {
                "Few scenarios need it; most systems have it because it is easy (§5.1). Reactions to reactions can flap."
            }
            Self::Transparency => {
                "Layers grow bound to each other (§5.1): change the lowest layer that works (§2.1)."
            }
            Self::PriorityRanking => {
                "Rankings are preferences, kept because both sides depend on each other. Decide whether choices may be mixed (§1.1)."
            }
            Self::HierarchicalPartitioning => {
                "Local control may use slack only, such as reserved capacity (§1.1). Its worst case is not proven (§5.3)."
            }
        }
    }
}

/// Limits of the rule, one sentence each.
///
/// Source: §5.2.
pub const OUTSIDE: [&str; 3] = [
    "Line-rate systems, such as ECN: one bit in each packet leaves no room for a mechanism.",
    "How much is shared: one bit and all but one bit are both `incomplete`.",
    "Why a mechanism converges: there is no control theory in it.",
];

/// Meaning of the result `None` of [`mechanism`].
pub const OPEN: &str = "Figure 1.6 leaves incomplete sharing of partially shared resources open, and no system of Table 1.1 is there.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_gives_the_mechanisms_of_figure_1_6() {
        use Mechanism::{HierarchicalPartitioning, PriorityRanking, Reaction, Transparency};
        let figure = [
            (Sharing::None, [Some(Reaction); 3]),
            (Sharing::Incomplete, [Some(PriorityRanking), None, Some(HierarchicalPartitioning)]),
            (Sharing::Complete, [Some(Transparency); 3]),
        ];
        assert_eq!(figure.map(|(sharing, _)| sharing), *Sharing::ALL);
        for (sharing, row) in figure {
            for (resources, expected) in Resources::ALL.iter().zip(row) {
                assert_eq!(mechanism(*resources, sharing), expected, "{resources:?}, {sharing:?}");
            }
        }
    }
}
