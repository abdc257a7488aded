//! The local decision: the parent to which a node sends a request that has no valid route.
//!
//! Source: Algorithm 1 and Table 4.2 (§4.4.2). Differs: the printed algorithm considers only
//! parents at the least distance, and denies a request if none of these parents has capacity. The
//! thesis text asks for the closest parent that has enough capacity. [`Rule`] has both variants;
//! nodes use the rule of the text.

use crate::NodeId;
use anabranch_units::{BitRate, RandomStream};

/// A route to an object through one parent: a cell of Table 4.2.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ParentRoute {
    /// Parent on the route.
    pub parent: NodeId,
    /// Number of links to the nearest node that receives the object.
    pub distance: u32,
    /// Spare capacity of the narrowest link on the route.
    pub capacity: BitRate,
}

/// Variant of Algorithm 1.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The nearest parent among those with enough capacity, as in the thesis text.
    #[default]
    NearestWithCapacity,
    /// A parent with enough capacity among the nearest parents only, as in the printed algorithm.
    Printed,
}

/// Chooses a parent for a stream of `bitrate`. Equally good parents are equally likely. Returns
/// `None` if no parent has room for the stream: the request is denied.
///
/// The capacity must exceed the bitrate, as in Algorithm 1. Cost: two passes over `ways`.
pub fn choose(
    rule: Rule,
    bitrate: BitRate,
    ways: impl Iterator<Item = ParentRoute> + Clone,
    random: &mut RandomStream,
) -> Option<NodeId> {
    let has_capacity = |via: &ParentRoute| via.capacity > bitrate;
    let counts = |via: &ParentRoute| rule == Rule::Printed || has_capacity(via);
    let least = ways.clone().filter(counts).map(|via| via.distance).min()?;
    let useful = || ways.clone().filter(|via| via.distance == least && has_capacity(via));
    let count = useful().count() as u64;
    useful().nth(random.below(count) as usize).map(|via| via.parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::Seed;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const X: NodeId = NodeId(0);
    const Y: NodeId = NodeId(1);
    const Z: NodeId = NodeId(2);

    fn via(parent: NodeId, distance: u32, kbps: u64) -> ParentRoute {
        ParentRoute { parent, distance, capacity: BitRate::bps(kbps * 1_000) }
    }

    /// All parents that the rule may choose.
    fn choices(rule: Rule, kbps: u64, ways: &[ParentRoute]) -> BTreeSet<NodeId> {
        let mut random = Seed::new(1).stream("control.local", 0);
        let mut once = || choose(rule, BitRate::bps(kbps * 1_000), ways.iter().copied(), &mut random);
        (0..64).filter_map(|_| once()).collect()
    }

    #[test]
    fn text_rule_chooses_z_where_printed_rule_denies() {
        let v0 = [via(X, 1, 5_000), via(Y, 1, 1_500), via(Z, 2, 4_500)];
        let v1 = [via(X, 2, 2_000), via(Y, 1, 1_500), via(Z, 2, 4_000)];
        let v2 = [via(X, 2, 5_000), via(Y, 1, 1_500), via(Z, 1, 3_000)];
        // Row of Table 4.2 of an object, bitrate in kbit/s, and parents by the text's and the
        // printed rule.
        type Case<'a> = (&'a [ParentRoute], u64, &'a [NodeId], &'a [NodeId]);
        let cases: [Case; 9] = [
            (&v0, 1_000, &[X, Y], &[X, Y]),
            (&v0, 2_000, &[X], &[X]),
            (&v0, 5_000, &[], &[]),
            (&v1, 1_000, &[Y], &[Y]),
            (&v1, 1_900, &[X, Z], &[]),
            (&v1, 2_000, &[Z], &[]),
            (&v2, 1_000, &[Y, Z], &[Y, Z]),
            (&v2, 2_000, &[Z], &[Z]),
            (&v2, 4_000, &[X], &[]),
        ];
        for (ways, kbps, text, print) in cases {
            let of = |parents: &[NodeId]| parents.iter().copied().collect::<BTreeSet<_>>();
            assert_eq!(choices(Rule::NearestWithCapacity, kbps, ways), of(text), "{kbps} {ways:?}");
            assert_eq!(choices(Rule::Printed, kbps, ways), of(print), "{kbps} {ways:?}");
        }
    }

    #[test]
    fn equal_parents_are_equally_likely() {
        let ways = [via(X, 1, 9), via(Y, 1, 9), via(Z, 1, 9)];
        let mut random = Seed::new(7).stream("control.local", 0);
        let mut chosen = [0; 3];
        for _ in 0..3_000 {
            let rule = Rule::NearestWithCapacity;
            let parent = choose(rule, BitRate::bps(1), ways.iter().copied(), &mut random);
            chosen[parent.expect("all have capacity").index()] += 1;
        }
        // Six standard deviations of a binomial count are 155.
        assert!(chosen.iter().all(|count| (845..=1_155).contains(count)), "{chosen:?}");
    }

    proptest! {
        #[test]
        fn chosen_parent_is_nearest_with_capacity(
            cells in prop::collection::vec((1..4u32, 0..5u64), 0..8), kbps in 0..5u64,
        ) {
            let ways: Vec<_> =
                cells.iter().zip(0..).map(|((hops, kbps), node)| via(NodeId(node), *hops, *kbps)).collect();
            let wide = |via: &&ParentRoute| via.capacity.as_bps() > kbps * 1_000;
            let nearest = ways.iter().filter(wide).map(|via| via.distance).min();
            let printed = choices(Rule::Printed, kbps, &ways);
            let chosen = choices(Rule::NearestWithCapacity, kbps, &ways);
            prop_assert_eq!(chosen.is_empty(), nearest.is_none());
            for node in &chosen {
                let via = &ways[node.index()];
                prop_assert!(wide(&via) && Some(via.distance) == nearest);
            }
            // If the printed rule serves a request, the text's rule chooses among the same parents.
            prop_assert!(printed.is_empty() || printed == chosen);
        }
    }
}
