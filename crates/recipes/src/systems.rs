//! The systems of Table 1.1, with their features, their present mechanism and the thesis's advice.

use crate::features::{Decision, Flow, Harm, Relation, Resources, Separation, Sharing};
use crate::rule::Mechanism;

/// A system of two or more control planes.
///
/// Source: the columns of Table 1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// Name in commands and their output.
    pub name: &'static str,
    /// Name in sentences.
    pub title: &'static str,
    /// Names of the control planes, joined by `+`.
    pub planes: &'static str,
    /// Precedence of the control planes.
    pub relation: Relation,
    /// Boundaries between the control planes. Several entries are alternatives.
    pub separation: &'static [Separation],
    /// Information that the control planes share.
    pub sharing: Sharing,
    /// Devices that the control planes decide for. Several entries are alternatives.
    pub resources: &'static [Resources],
    /// Direction of the shared information.
    pub flow: Flow,
    /// Assumption of the control planes about each other that may be wrong.
    pub assumes: &'static str,
    /// How the decisions of the control planes become one decision.
    pub decision: Decision,
    /// Cost of bad decisions.
    pub harm: &'static [Harm],
    /// Mechanism that the system has today.
    pub has: Mechanism,
    /// Advice of another mechanism, if there is one.
    pub advice: Option<Advice>,
    /// Place in the thesis, or in our documentation, that describes the system.
    pub source: &'static str,
}

/// Advice of another mechanism for a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Advised mechanism. `None` if an interface is advised but no mechanism is named.
    pub mechanism: Option<Mechanism>,
    /// The reason, with its source.
    pub reason: &'static str,
}

/// Defaults for the systems that react.
const REACTING: System = System {
    name: "",
    title: "",
    planes: "",
    relation: Relation::Priority,
    separation: &[Separation::SoftAdministration, Separation::HardAdministration],
    sharing: Sharing::None,
    resources: &[Resources::Disjoint],
    flow: Flow::None,
    assumes: "",
    decision: Decision::OneSide,
    harm: &[Harm::Performance],
    has: Mechanism::Reaction,
    advice: None,
    source: "§1.2.2",
};

/// Defaults for the transparent systems.
const TRANSPARENT: System = System {
    name: "",
    title: "",
    planes: "applications + network scheduling",
    relation: Relation::Priority,
    separation: &[Separation::Layering],
    sharing: Sharing::Complete,
    resources: &[Resources::Disjoint],
    flow: Flow::OneWay,
    assumes: "",
    decision: Decision::OneSide,
    harm: &[Harm::Performance, Harm::Responsiveness],
    has: Mechanism::Transparency,
    advice: None,
    source: "§1.2.2",
};

/// Defaults for the systems with priority ranking.
const RANKED: System = System {
    name: "",
    title: "",
    planes: "BGP + BGP",
    relation: Relation::Peers,
    separation: &[Separation::HardAdministration],
    sharing: Sharing::Incomplete,
    resources: &[Resources::Disjoint],
    flow: Flow::TwoWay,
    assumes: "",
    decision: Decision::Joint,
    harm: &[Harm::Performance, Harm::Cost],
    has: Mechanism::PriorityRanking,
    advice: None,
    source: "§1.2.2",
};

/// Defaults for the hierarchically partitioned systems.
const HIERARCHICAL: System = System {
    name: "",
    title: "",
    planes: "global + local control",
    relation: Relation::Priority,
    separation: &[Separation::Granularity],
    sharing: Sharing::Incomplete,
    resources: &[Resources::Full],
    flow: Flow::OneWay,
    assumes: "the global decision is right",
    decision: Decision::Refinement,
    harm: &[Harm::Performance],
    has: Mechanism::HierarchicalPartitioning,
    advice: None,
    source: "§1.2.2",
};

/// Systems of Table 1.1, in its order. The names of the last four hierarchically partitioned
/// systems are matched to the table's rows by §1.2.2.
pub const TABLE: [System; 19] = [
    System {
        name: "cdn-te",
        title: "CDN server selection + ISP traffic engineering",
        planes: "CDN + ISP traffic engineering",
        separation: &[Separation::HardAdministration],
        assumes: "servers of the other, or its paths, are optimal",
        harm: &[Harm::Performance, Harm::Cost],
        advice: Some(Advice {
            mechanism: Some(Mechanism::PriorityRanking),
            reason: "it reacts for ease, not need (§5.1); an interface as VDX has it may help (§1.1), and P4P has nearly the same problem (§1.2.2)",
        }),
        source: "§1.1",
        ..REACTING
    },
    System {
        name: "ospf-areas",
        title: "OSPF areas",
        planes: "OSPF + OSPF",
        relation: Relation::Peers,
        separation: &[Separation::SoftAdministration],
        assumes: "areas are split well",
        decision: Decision::Separate,
        harm: &[Harm::Performance, Harm::Correctness],
        ..REACTING
    },
    System {
        name: "competing-cc",
        title: "competing congestion controls",
        planes: "congestion control + congestion control",
        relation: Relation::Peers,
        resources: &[Resources::Disjoint, Resources::Full],
        assumes: "the other wants all of the link",
        decision: Decision::Separate,
        advice: Some(Advice {
            mechanism: None,
            reason: "on one machine, or in one administration, smarter coordination could be used, as Congestion Manager (§1.2.2); it reacts for ease, not need (§5.1)",
        }),
        ..REACTING
    },
    System {
        name: "cc-aqm",
        title: "congestion control + active queue management",
        planes: "congestion control + queue management",
        assumes: "senders slow down after a drop",
        ..REACTING
    },
    System {
        name: "dash",
        title: "video over HTTP (DASH)",
        planes: "DASH + HTTP + TCP",
        separation: &[Separation::Layering],
        resources: &[Resources::Full],
        assumes: "HTTP and TCP bring chunks fast",
        advice: Some(Advice {
            mechanism: Some(Mechanism::Transparency),
            reason: "the layers below are black boxes for easy deployment; cross-layer optimization could improve quality (§1.2.2)",
        }),
        ..REACTING
    },
    System {
        name: "coflow",
        title: "coflow scheduling",
        assumes: "how applications' flows belong together",
        source: "§1.1",
        ..TRANSPARENT
    },
    System {
        name: "route-redistribution",
        title: "route redistribution",
        planes: "BGP + OSPF of one ISP",
        resources: &[Resources::Partial],
        flow: Flow::Either,
        assumes: "redistributed routes are fresh",
        decision: Decision::Joint,
        harm: &[Harm::Performance, Harm::Cost],
        ..TRANSPARENT
    },
    System {
        name: "reconfigurable-dcs",
        title: "reconfigurable data centres (Etalon)",
        assumes: "what is easy for the network to deliver",
        source: "chapter 2",
        ..TRANSPARENT
    },
    System {
        name: "bgp",
        title: "BGP between ISPs",
        assumes: "routers show their best paths",
        source: "§1.1",
        ..RANKED
    },
    System { name: "wiser", title: "Wiser", assumes: "routers show their best paths", ..RANKED },
    System {
        name: "p4p",
        title: "P4P",
        planes: "peer-to-peer applications + ISP traffic engineering",
        relation: Relation::Priority,
        flow: Flow::OneWay,
        assumes: "applications honour the ranking, ISPs are honest about costs",
        decision: Decision::OneSide,
        ..RANKED
    },
    System {
        name: "vdx",
        title: "VDX",
        planes: "broker + CDNs",
        assumes: "assignments of the other are optimal",
        source: "chapter 3",
        ..RANKED
    },
    System {
        name: "internet-routing",
        title: "internet-wide routing",
        planes: "BGP + OSPF of many ISPs",
        assumes: "OSPF provides good paths",
        harm: &[Harm::Performance, Harm::Cost],
        source: "§1.1",
        ..HIERARCHICAL
    },
    System { name: "klein", title: "Klein", ..HIERARCHICAL },
    System {
        name: "bohatei",
        title: "Bohatei",
        harm: &[Harm::Performance, Harm::Correctness],
        ..HIERARCHICAL
    },
    System {
        name: "fibbing",
        title: "OSPF with Fibbing",
        planes: "SDN + OSPF",
        separation: &[Separation::Timescale],
        decision: Decision::Choice,
        harm: &[Harm::Performance, Harm::Correctness],
        ..HIERARCHICAL
    },
    System {
        name: "pytheas",
        title: "Pytheas",
        separation: &[Separation::Timescale],
        decision: Decision::Choice,
        harm: &[Harm::Performance, Harm::Responsiveness],
        ..HIERARCHICAL
    },
    System {
        name: "c3",
        title: "C3",
        separation: &[Separation::Timescale],
        decision: Decision::Choice,
        harm: &[Harm::Performance, Harm::Responsiveness],
        ..HIERARCHICAL
    },
    System {
        name: "vdn",
        title: "VDN",
        separation: &[Separation::Timescale],
        decision: Decision::Choice,
        harm: &[Harm::Performance, Harm::Responsiveness],
        source: "chapter 4",
        ..HIERARCHICAL
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scenario, mechanism};
    use std::collections::BTreeSet;

    #[test]
    fn systems_have_the_mechanism_of_the_rule() {
        for system in &TABLE {
            for resources in system.resources {
                assert_eq!(mechanism(*resources, system.sharing), Some(system.has), "{}", system.name);
            }
        }
    }

    /// Systems that share less than their scenario permits; all of them react.
    const SHARE_LESS: [&str; 5] = ["cdn-te", "ospf-areas", "competing-cc", "cc-aqm", "dash"];

    #[test]
    fn scenarios_lead_to_mechanisms_of_non_reacting_systems() {
        for system in &TABLE {
            let departs = SHARE_LESS.contains(&system.name);
            for separation in system.separation {
                let answer = Scenario::of(*separation).advise().unwrap();
                assert_eq!(answer.mechanism != Some(system.has), departs, "{}", system.name);
                assert_eq!(answer.sharing.value != system.sharing, departs, "{}", system.name);
            }
            assert_eq!(departs, system.has == Mechanism::Reaction, "{}", system.name);
        }
    }

    #[test]
    fn advised_mechanism_differs_from_the_present_one() {
        let advised: Vec<_> = TABLE.iter().filter(|system| system.advice.is_some()).collect();
        assert_eq!(advised.iter().map(|s| s.name).collect::<Vec<_>>(), ["cdn-te", "competing-cc", "dash"]);
        for system in advised {
            let mechanism = system.advice.and_then(|advice| advice.mechanism);
            assert_ne!(mechanism, Some(system.has), "{}", system.name);
            let derived = Scenario::of(system.separation[0]).advise().unwrap().mechanism;
            assert!(mechanism.is_none() || mechanism == derived, "{}", system.name);
        }
    }

    #[test]
    fn system_names_are_unique() {
        let names: BTreeSet<&str> = TABLE.iter().map(|system| system.name).collect();
        assert_eq!(names.len(), TABLE.len());
    }
}
