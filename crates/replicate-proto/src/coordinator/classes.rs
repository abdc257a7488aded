//! Classes of a directory's bytes: which destinations lack the same ones.
//!
//! One attempt for all destinations sends the union of the bytes that they lack to each of them.
//! An attempt for one class sends a destination only bytes that it lacks. Classes follow one
//! another. The min-cut to the destinations of a class is at least the min-cut to all. So the
//! attempts together take no longer than one attempt for all, but for their beginnings.
//!
//! Leaves out: plans of several classes at once, which could use idle links.

use super::ranges;
use anabranch_pieces::ByteRange;
use anabranch_units::SiteId;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of attempts of a transfer that serve one class.
pub(super) const CLASSES_MAX: u32 = 8;
/// Maximum number of classes that are told apart. Destinations with more of them lack bits of
/// everything, and one attempt serves all.
const FOUND_MAX: usize = 1_000;
/// Maximum number of ranges that are compared. More of them would occupy the controller.
const RANGES_MAX: usize = 1 << 19;
/// Divisor of a total: smaller parts of the total are not worth an attempt.
const SMALL_SHARE: u128 = 100;

/// Bytes that the same destinations lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ByteClass {
    /// The destinations, ascending.
    pub(super) destinations: Vec<SiteId>,
    /// The bytes, normal.
    pub(super) ranges: Vec<ByteRange>,
}

/// The class to serve next, given the normal ranges that each destination lacks. `None` if an
/// attempt for all destinations sends little surplus: less than `surplus_bytes_min`, or than a
/// hundredth of the lacked bytes. `None` for too many classes, too, and for small ones only.
///
/// The class has the most destinations, and of these classes the fewest bytes, so that most
/// destinations are complete early. Classes below a hundredth of all bytes join it if it has their
/// destinations.
pub(super) fn next_class(missing: &[(SiteId, Vec<ByteRange>)], surplus_bytes_min: u64) -> Option<ByteClass> {
    let classes = classes(missing)?;
    let bytes = |lacked: &Vec<ByteRange>| u128::from(ranges::bytes(lacked));
    let wanted: u128 = missing.iter().map(|(_, lacked)| bytes(lacked)).sum();
    let union: u128 = classes.values().map(bytes).sum();
    let surplus = union * missing.len() as u128 - wanted;
    if surplus < u128::from(surplus_bytes_min).max(wanted / SMALL_SHARE).max(1) {
        return None;
    }
    let is_large = |lacked: &Vec<ByteRange>| bytes(lacked) >= union / SMALL_SHARE;
    let large = classes.iter().filter(|(_, lacked)| is_large(lacked));
    let by_width =
        |(members, lacked): &(&Vec<usize>, &Vec<ByteRange>)| (members.len(), Reverse(bytes(lacked)));
    let (members, lacked) = large.max_by_key(by_width)?;
    let joins = |(other, lacked): &(&Vec<usize>, &Vec<ByteRange>)| {
        !is_large(lacked) && other.iter().all(|member| members.binary_search(member).is_ok())
    };
    let joined = classes.iter().filter(joins).flat_map(|(_, lacked)| lacked);
    let together: Vec<ByteRange> = lacked.iter().chain(joined).copied().collect();
    Some(ByteClass {
        destinations: members.iter().map(|&member| missing[member].0).collect(),
        ranges: ranges::normal(&together, u64::MAX),
    })
}

/// All classes, by the ascending indices of their destinations. `None` for more than [`FOUND_MAX`]
/// of them, or more than [`RANGES_MAX`] ranges.
fn classes(missing: &[(SiteId, Vec<ByteRange>)]) -> Option<BTreeMap<Vec<usize>, Vec<ByteRange>>> {
    if missing.iter().map(|(_, lacked)| lacked.len()).sum::<usize>() > RANGES_MAX {
        return None;
    }
    let lacked = missing.iter().enumerate().flat_map(|(member, (_, lacked))| {
        lacked.iter().flat_map(move |range| [(range.start, member, true), (range.end, member, false)])
    });
    let mut edges: Vec<(u64, usize, bool)> = lacked.collect();
    edges.sort_unstable();
    let (mut classes, mut members) = (BTreeMap::<Vec<usize>, Vec<ByteRange>>::new(), Vec::new());
    let mut start = 0;
    for (at, member, begins) in edges {
        if start < at && !members.is_empty() {
            classes.entry(members.clone()).or_default().push(ByteRange { start, end: at });
            if classes.len() > FOUND_MAX {
                return None;
            }
        }
        start = at;
        match members.binary_search(&member) {
            Err(slot) if begins => members.insert(slot, member),
            Ok(slot) if !begins => {
                members.remove(slot);
            }
            _ => debug_assert!(false, "normal ranges begin and end once"),
        }
    }
    Some(classes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn mib(ranges: &[(u64, u64)]) -> Vec<ByteRange> {
        ranges.iter().map(|&(start, end)| ByteRange { start: start * MIB, end: end * MIB }).collect()
    }

    fn next(missing: &[&[(u64, u64)]]) -> Option<ByteClass> {
        let sites = missing.iter().enumerate().map(|(index, own)| (SiteId(index as u16), mib(own)));
        next_class(&sites.collect::<Vec<_>>(), 4 * MIB)
    }

    fn class(destinations: &[u16], ranges: &[(u64, u64)]) -> Option<ByteClass> {
        let destinations = destinations.iter().map(|&site| SiteId(site)).collect();
        Some(ByteClass { destinations, ranges: mib(ranges) })
    }

    #[test]
    fn equal_destinations_are_one_class() {
        assert_eq!(next(&[&[(0, 900)], &[(0, 900)]]), None);
        assert_eq!(next(&[&[(0, 900)]]), None);
    }

    #[test]
    fn widest_class_comes_first() {
        assert_eq!(next(&[&[(10, 20)], &[(0, 900)], &[(10, 20)]]), class(&[0, 1, 2], &[(10, 20)]));
        assert_eq!(next(&[&[], &[(0, 10), (20, 900)], &[]]), class(&[1], &[(0, 10), (20, 900)]));
        assert_eq!(next(&[&[(0, 900)], &[(900, 950)]]), class(&[1], &[(900, 950)]), "a short wait");
    }

    #[test]
    fn small_classes_join_a_larger_one() {
        let joined = next(&[&[(0, 900), (950, 952)], &[(0, 900)], &[(0, 900)], &[]]);
        assert_eq!(joined, class(&[0, 1, 2], &[(0, 900), (950, 952)]));
    }

    #[test]
    fn small_surplus_is_sent() {
        assert_eq!(next(&[&[(0, 900)], &[(0, 897)]]), None, "three of 1,797 MiB");
        assert_eq!(next(&[&[(0, 2)], &[(3, 4)]]), None, "no more than an attempt costs");
    }

    /// A claimed length may be any number.
    #[test]
    fn large_and_many_classes_are_bounded() {
        let endless = vec![ByteRange { start: 0, end: u64::MAX }];
        let left = |member: u16| (SiteId(member), endless.clone());
        assert_eq!(next_class(&[left(0), left(1), left(2)], 1), None);
        let one = |bit: u16| {
            let own = (0..FOUND_MAX as u64 * 2).filter(|piece| piece >> bit & 1 == 1);
            let own = own.map(|piece| ByteRange { start: piece * MIB, end: piece * MIB + 1 });
            (SiteId(bit), own.collect())
        };
        let many: Vec<_> = (0..11).map(one).collect();
        assert_eq!(classes(&many), None);
        assert_eq!(next_class(&many, 1), None);
    }

    proptest! {
        #[test]
        fn classes_serve_each_lacked_byte_once(pairs in proptest::collection::vec(proptest::collection::vec((0u64..60, 1u64..20), 0..6), 1..6)) {
            let mut left: Vec<(SiteId, Vec<ByteRange>)> = pairs.iter().enumerate().map(|(index, own)| {
                let own: Vec<_> = own.iter().map(|&(start, length)| ByteRange { start: start * MIB, end: (start + length) * MIB }).collect();
                (SiteId(index as u16), ranges::normal(&own, u64::MAX))
            }).collect();
            let all = classes(&left).expect("few classes");
            for (member, (_, lacked)) in left.iter().enumerate() {
                let own = all.iter().filter(|(members, _)| members.contains(&member));
                let own: Vec<ByteRange> = own.flat_map(|(_, ranges)| ranges.clone()).collect();
                prop_assert_eq!(own.iter().map(|range| range.end - range.start).sum::<u64>(), ranges::bytes(lacked));
                prop_assert_eq!(&ranges::normal(&own, u64::MAX), lacked);
            }
            let mut rounds = 0;
            while let Some(class) = next_class(&left, 0) {
                let before: u64 = left.iter().map(|(_, lacked)| ranges::bytes(lacked)).sum();
                for (site, lacked) in &mut left {
                    if class.destinations.contains(site) {
                        *lacked = ranges::without(lacked, &class.ranges);
                    }
                }
                prop_assert!(left.iter().map(|(_, lacked)| ranges::bytes(lacked)).sum::<u64>() < before);
                rounds += 1;
                prop_assert!(rounds <= 1 << pairs.len());
            }
        }
    }
}
