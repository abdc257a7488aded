//! Arborescences: trees of links from a root to some terminals. One function finds a cheapest tree,
//! one an approximation.
//!
//! Prices are per link; an infinite price removes the link. Sources: Dreyfus and Wagner, *The
//! Steiner problem in graphs* (1971), directed; Watel and Weisser, *A practical greedy
//! approximation for the directed Steiner tree problem* (2016); Wong, *A dual ascent approach for
//! Steiner tree problems on a directed graph* (1984).
//!
//! Leaves out: packing several arborescences. Read [`Arborescence`] first.

use crate::flow::Adjacency;
use anabranch_units::{LinkId, SiteId};
use std::collections::{BinaryHeap, VecDeque};

/// Maximum number of terminals of [`cheapest_arborescence`].
pub const TERMINALS_EXACT_MAX: usize = 12;

/// A tree of links directed away from its root; every leaf is a terminal.
#[derive(Clone, Debug, PartialEq)]
pub struct Arborescence {
    /// Links of the tree, ascending.
    pub links: Vec<LinkId>,
    /// Sum of the links' prices.
    pub price: f64,
}

/// A site with its distance, in a queue that pops the nearest site first.
#[derive(Copy, Clone, PartialEq)]
struct QueuedDistance(f64, usize);

impl Eq for QueuedDistance {}
impl PartialOrd for QueuedDistance {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for QueuedDistance {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0).then(other.1.cmp(&self.1))
    }
}

/// First part of the best tree below a site for one set of terminals.
#[derive(Copy, Clone, PartialEq)]
enum Choice {
    Nothing,
    Link(LinkId),
    Split(usize),
}

/// The cheapest arborescence from `root` to all `terminals`; `None` if a terminal cannot be
/// reached.
///
/// Panics: if there are more than [`TERMINALS_EXACT_MAX`] terminals.
/// Cost: O(3^t * sites + 2^t * links * log(links)) for t terminals.
/// Source: Dreyfus and Wagner 1971, with sets that grow from single terminals.
pub fn cheapest_arborescence(
    adjacency: &Adjacency,
    prices: &[f64],
    root: SiteId,
    terminals: &[SiteId],
) -> Option<Arborescence> {
    assert!(terminals.len() <= TERMINALS_EXACT_MAX, "2^{} sets are too many", terminals.len());
    let (sites, all) = (adjacency.sites(), (1usize << terminals.len()) - 1);
    let mut cost = vec![f64::INFINITY; (all + 1) * sites];
    let mut choice = vec![Choice::Nothing; (all + 1) * sites];
    let mut queue = BinaryHeap::new();
    for set in 1..=all {
        let row = set * sites;
        if set.is_power_of_two() {
            cost[row + terminals[set.trailing_zeros() as usize].index()] = 0.0;
        } else {
            let lowest = set & set.wrapping_neg();
            // Each split is examined once: `part` always contains the lowest terminal.
            let mut part = (set - 1) & set;
            while part > 0 {
                if part & lowest != 0 {
                    for site in 0..sites {
                        let sum = cost[part * sites + site] + cost[(set ^ part) * sites + site];
                        if sum < cost[row + site] {
                            cost[row + site] = sum;
                            choice[row + site] = Choice::Split(part);
                        }
                    }
                }
                part = (part - 1) & set;
            }
        }
        queue.extend(
            (0..sites).filter(|s| cost[row + s].is_finite()).map(|s| QueuedDistance(cost[row + s], s)),
        );
        while let Some(QueuedDistance(here, site)) = queue.pop() {
            if here > cost[row + site] {
                continue;
            }
            for link in adjacency.links_in(SiteId(site as u16)) {
                let (from, there) = (adjacency.from(*link).index(), here + prices[link.index()]);
                if there < cost[row + from] {
                    cost[row + from] = there;
                    choice[row + from] = Choice::Link(*link);
                    queue.push(QueuedDistance(there, from));
                }
            }
        }
    }
    if all > 0 && !cost[all * sites + root.index()].is_finite() {
        return None;
    }
    let mut used = vec![false; adjacency.links()];
    let mut open = vec![(all, root.index())];
    while let Some((set, site)) = open.pop() {
        match choice[set * sites + site] {
            Choice::Nothing => {}
            Choice::Link(link) => {
                used[link.index()] = true;
                open.push((set, adjacency.to(link).index()));
            }
            Choice::Split(part) => open.extend([(part, site), (set ^ part, site)]),
        }
    }
    Some(trimmed(adjacency, prices, root, terminals, &used))
}

/// An arborescence from `root` to all `terminals` by Watel and Weisser's greedy approximation;
/// `None` if a terminal cannot be reached.
///
/// Its price is at most the cheapest price times the number of terminals; in practice, it is rarely
/// more than slightly above the cheapest.
/// Cost: O(terminals * links * (links + sites * terminals)).
/// Source: Watel and Weisser 2016, algorithms FLAC and Greedy FLAC.
pub fn greedy_arborescence(
    adjacency: &Adjacency,
    prices: &[f64],
    root: SiteId,
    terminals: &[SiteId],
) -> Option<Arborescence> {
    let mut left: Vec<SiteId> = terminals.iter().copied().filter(|t| *t != root).collect();
    let mut now = prices.to_vec();
    let mut used = vec![false; adjacency.links()];
    while !left.is_empty() {
        for link in low_density_tree(adjacency, &now, root, &left)? {
            used[link.index()] = true;
            now[link.index()] = 0.0;
        }
        let reached = reachable(adjacency, root, |l| used[l.index()]);
        left.retain(|t| !reached[t.index()]);
    }
    Some(trimmed(adjacency, prices, root, terminals, &used))
}

/// FLAC: each terminal sends flow up the links that enter it, and a full link passes the flow on.
/// The first tree that reaches the root is returned.
fn low_density_tree(
    adjacency: &Adjacency,
    prices: &[f64],
    root: SiteId,
    terminals: &[SiteId],
) -> Option<Vec<LinkId>> {
    let words = terminals.len().div_ceil(64);
    // The terminals whose flow has reached each site.
    let mut below = vec![vec![0u64; words]; adjacency.sites()];
    for (i, t) in terminals.iter().enumerate() {
        below[t.index()][i / 64] |= 1 << (i % 64);
    }
    // Number of these terminals: the rate at which links into the site fill.
    let mut rate: Vec<u32> = below.iter().map(|words| words.iter().map(|w| w.count_ones()).sum()).collect();
    let mut missing = prices.to_vec();
    let mut full = vec![false; adjacency.links()];
    let mut open: Vec<bool> = prices.iter().map(|p| p.is_finite()).collect();
    loop {
        let mut first: Option<(f64, LinkId)> = None;
        for link in adjacency.link_ids().filter(|l| open[l.index()]) {
            let fills = rate[adjacency.to(link).index()];
            if fills > 0 {
                let due = missing[link.index()].max(0.0) / f64::from(fills);
                if first.is_none_or(|(d, _)| due < d) {
                    first = Some((due, link));
                }
            }
        }
        let (passed, next) = first?;
        for link in adjacency.link_ids().filter(|l| open[l.index()]) {
            missing[link.index()] -= passed * f64::from(rate[adjacency.to(link).index()]);
        }
        open[next.index()] = false;
        let (from, arriving) = (adjacency.from(next), below[adjacency.to(next).index()].clone());
        let above = ancestors(adjacency, from, &full);
        let meets = |s: &SiteId| below[s.index()].iter().zip(&arriving).any(|(a, b)| a & b != 0);
        // The link is skipped, because a site would get the flow of one terminal over two paths (a
        // "degenerate flow").
        if above.iter().any(meets) {
            continue;
        }
        full[next.index()] = true;
        for site in &above {
            below[site.index()].iter_mut().zip(&arriving).for_each(|(a, b)| *a |= b);
            rate[site.index()] = below[site.index()].iter().map(|w| w.count_ones()).sum();
        }
        if above.contains(&root) {
            let reached = reachable(adjacency, root, |l| full[l.index()]);
            let in_tree = |l: &LinkId| full[l.index()] && reached[adjacency.from(*l).index()];
            return Some(adjacency.link_ids().filter(in_tree).collect());
        }
    }
}

fn ancestors(adjacency: &Adjacency, site: SiteId, full: &[bool]) -> Vec<SiteId> {
    let mut all = vec![site];
    let mut next = 0;
    while next < all.len() {
        for link in adjacency.links_in(all[next]).iter().filter(|l| full[l.index()]) {
            let from = adjacency.from(*link);
            if !all.contains(&from) {
                all.push(from);
            }
        }
        next += 1;
    }
    all
}

fn reachable(adjacency: &Adjacency, root: SiteId, usable: impl Fn(LinkId) -> bool) -> Vec<bool> {
    let mut reached = vec![false; adjacency.sites()];
    reached[root.index()] = true;
    let mut open = vec![root];
    while let Some(site) = open.pop() {
        for link in adjacency.links_out(site).iter().filter(|l| usable(**l)) {
            if !std::mem::replace(&mut reached[adjacency.to(*link).index()], true) {
                open.push(adjacency.to(*link));
            }
        }
    }
    reached
}

/// A tree of `used` links (breadth first from the root), without branches that do not end at a
/// terminal.
fn trimmed(
    adjacency: &Adjacency,
    prices: &[f64],
    root: SiteId,
    terminals: &[SiteId],
    used: &[bool],
) -> Arborescence {
    let mut by: Vec<Option<LinkId>> = vec![None; adjacency.sites()];
    let mut queue = VecDeque::from([root]);
    while let Some(site) = queue.pop_front() {
        for link in adjacency.links_out(site).iter().filter(|l| used[l.index()]) {
            let to = adjacency.to(*link);
            if to != root && by[to.index()].is_none() {
                by[to.index()] = Some(*link);
                queue.push_back(to);
            }
        }
    }
    let mut links = Vec::new();
    for terminal in terminals {
        let mut at = *terminal;
        while let Some(link) = by[at.index()].take() {
            links.push(link);
            at = adjacency.from(link);
        }
    }
    links.sort_unstable();
    let price = links.iter().map(|l| prices[l.index()]).sum();
    Arborescence { links, price }
}

/// Lower bound of the price of an arborescence from `root` to all `terminals`; infinite if a
/// terminal cannot be reached.
///
/// Cost: O(terminals * links^2) at worst.
/// Source: Wong 1984 (dual ascent): the reduced prices of the links into a cut component decrease
/// until one link is free.
pub fn arborescence_price_bound(
    adjacency: &Adjacency,
    prices: &[f64],
    root: SiteId,
    terminals: &[SiteId],
) -> f64 {
    /// A reduced price below this share of the largest price counts as zero, so that rounding
    /// cannot stall the ascent.
    const ZERO_SHARE: f64 = 1e-12;
    let scale = prices.iter().copied().filter(|p| p.is_finite()).fold(0.0, f64::max);
    let mut reduced = prices.to_vec();
    let mut bound = 0.0;
    loop {
        // The unreached terminal with the smallest component of free links that lead to it.
        let mut smallest: Option<(Vec<bool>, usize)> = None;
        for terminal in terminals {
            let mut component = vec![false; adjacency.sites()];
            component[terminal.index()] = true;
            let mut open = vec![*terminal];
            let mut size = 0;
            while let Some(site) = open.pop() {
                size += 1;
                for link in
                    adjacency.links_in(site).iter().filter(|l| reduced[l.index()] <= ZERO_SHARE * scale)
                {
                    if !std::mem::replace(&mut component[adjacency.from(*link).index()], true) {
                        open.push(adjacency.from(*link));
                    }
                }
            }
            if !component[root.index()] && smallest.as_ref().is_none_or(|(_, s)| size < *s) {
                smallest = Some((component, size));
            }
        }
        let Some((component, _)) = smallest else { return bound };
        let enters =
            |l: &LinkId| component[adjacency.to(*l).index()] && !component[adjacency.from(*l).index()];
        let step =
            adjacency.link_ids().filter(enters).map(|l| reduced[l.index()]).fold(f64::INFINITY, f64::min);
        if !step.is_finite() {
            return f64::INFINITY;
        }
        adjacency.link_ids().filter(enters).for_each(|l| reduced[l.index()] -= step);
        bound += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RandomNetwork, networks};
    use proptest::prelude::*;

    /// Minimum price over all sets of links that connect the root to every terminal.
    fn brute_cheapest(n: &RandomNetwork, prices: &[f64], root: SiteId, terminals: &[SiteId]) -> Option<f64> {
        (0u32..1 << n.adjacency.links())
            .filter(|set| {
                let reached = reachable(&n.adjacency, root, |l| set >> l.0 & 1 == 1);
                terminals.iter().all(|t| reached[t.index()])
            })
            .map(|set| {
                n.adjacency.link_ids().filter(|l| set >> l.0 & 1 == 1).map(|l| prices[l.index()]).sum()
            })
            .filter(|p: &f64| p.is_finite())
            .min_by(f64::total_cmp)
    }

    fn prices(n: &RandomNetwork) -> Vec<f64> {
        n.lengths
            .iter()
            .zip(&n.capacities)
            .map(|(l, c)| if *c > 0 { *l as f64 - 1.0 } else { f64::INFINITY })
            .collect()
    }

    fn assert_is_arborescence(n: &RandomNetwork, tree: &Arborescence, root: SiteId, terminals: &[SiteId]) {
        let reached = reachable(&n.adjacency, root, |l| tree.links.contains(&l));
        assert!(terminals.iter().all(|t| reached[t.index()]), "{tree:?}");
        for link in &tree.links {
            let to = n.adjacency.to(*link);
            assert!(reached[n.adjacency.from(*link).index()] && to != root);
            assert_eq!(
                tree.links.iter().filter(|l| n.adjacency.to(**l) == to).count(),
                1,
                "one way to each site"
            );
            let leaf = n.adjacency.links_out(to).iter().all(|l| !tree.links.contains(l));
            assert!(!leaf || terminals.contains(&to), "a leaf is a terminal");
        }
    }

    proptest! {
        #[test]
        fn trees_against_brute_force(n in networks(6, 12, 4), count in 1usize..4) {
            let terminals: Vec<SiteId> =
                (1..n.adjacency.sites() as u16).rev().take(count).map(SiteId).collect();
            let (root, prices) = (SiteId(0), prices(&n));
            let brute = brute_cheapest(&n, &prices, root, &terminals);
            let exact = cheapest_arborescence(&n.adjacency, &prices, root, &terminals);
            prop_assert_eq!(exact.as_ref().map(|t| t.price), brute);
            let greedy = greedy_arborescence(&n.adjacency, &prices, root, &terminals);
            prop_assert_eq!(greedy.is_some(), brute.is_some());
            let bound = arborescence_price_bound(&n.adjacency, &prices, root, &terminals);
            let Some(brute) = brute else {
                prop_assert!(bound.is_infinite());
                return Ok(());
            };
            prop_assert!(bound <= brute, "{bound} {brute}");
            let (exact, greedy) = (exact.expect("compared"), greedy.expect("compared"));
            assert_is_arborescence(&n, &exact, root, &terminals);
            assert_is_arborescence(&n, &greedy, root, &terminals);
            prop_assert!(greedy.price >= brute && greedy.price <= brute * terminals.len() as f64, "{}", greedy.price);
        }
    }

    #[test]
    fn greedy_is_the_shortest_path_for_one_terminal() {
        proptest!(|(n in networks(8, 20, 1))| {
            let prices = prices(&n);
            let exact = cheapest_arborescence(&n.adjacency, &prices, SiteId(0), &[SiteId(1)]);
            let greedy = greedy_arborescence(&n.adjacency, &prices, SiteId(0), &[SiteId(1)]);
            prop_assert_eq!(exact.map(|t| t.price), greedy.map(|t| t.price));
        });
    }
}
