//! Circuits that can exist at the same time, and two searches for such circuits: perfect matchings
//! and heaviest matchings.

use std::fmt;

/// Circuits from source racks to destination racks: each rack sends at most once and receives at
/// most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matching {
    /// Destination of each source. `None` if the source's port is dark.
    destinations: Vec<Option<u16>>,
}

/// Reason why a matching is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatchingError {
    /// A matching for another number of racks.
    Racks {
        /// Number of racks of the matching.
        has: usize,
        /// Number of racks of the network.
        need: usize,
    },
    /// A destination that does not exist.
    NoSuchRack {
        /// Number of the destination.
        rack: usize,
        /// Number of racks of the network.
        racks: usize,
    },
    /// A circuit from a rack to itself.
    ToItself(usize),
    /// Two circuits to one destination.
    Twice(usize),
}

impl fmt::Display for MatchingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Racks { has, need } => write!(f, "a matching of {has} racks: the network has {need}"),
            Self::NoSuchRack { rack, racks } => {
                write!(f, "circuit to rack {rack}: the network has racks 0 to {}", racks - 1)
            }
            Self::ToItself(rack) => write!(f, "circuit from rack {rack} to itself"),
            Self::Twice(rack) => write!(f, "rack {rack} has two circuits that end there: one is possible"),
        }
    }
}

impl std::error::Error for MatchingError {}

impl Matching {
    /// The matching that sends source `i` to `destinations[i]`.
    ///
    /// Errors: an unknown rack, a circuit from a rack to itself, or two circuits to one rack.
    pub fn new(destinations: Vec<Option<u16>>) -> Result<Self, MatchingError> {
        let matching = Self { destinations };
        matching.check(matching.destinations.len())?;
        Ok(matching)
    }

    /// The matching that sends each source to the rack `step` after it.
    ///
    /// Panics: if `step` is not in 1 to `racks` - 1.
    pub fn shift(racks: usize, step: usize) -> Self {
        assert!((1..racks).contains(&step), "a shift by {step} of {racks} racks maps a rack to itself");
        Self { destinations: (0..racks).map(|source| Some(port((source + step) % racks))).collect() }
    }

    /// Refuses a matching that a switch of `racks` racks cannot hold.
    ///
    /// Errors: another number of racks, an unknown rack, a circuit from a rack to itself, or two
    /// circuits to one rack.
    pub fn check(&self, racks: usize) -> Result<(), MatchingError> {
        if self.destinations.len() != racks {
            return Err(MatchingError::Racks { has: self.destinations.len(), need: racks });
        }
        let mut taken = vec![false; racks];
        for (source, destination) in self.circuits() {
            if destination >= racks {
                return Err(MatchingError::NoSuchRack { rack: destination, racks });
            }
            if source == destination {
                return Err(MatchingError::ToItself(source));
            }
            if std::mem::replace(&mut taken[destination], true) {
                return Err(MatchingError::Twice(destination));
            }
        }
        Ok(())
    }

    /// Source and destination of each circuit, by source.
    pub fn circuits(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.destinations.iter().enumerate().filter_map(|(source, to)| to.map(|to| (source, usize::from(to))))
    }

    /// Destination of `source`; `None` if its port is dark or does not exist.
    pub fn destination(&self, source: usize) -> Option<usize> {
        self.destinations.get(source).copied().flatten().map(usize::from)
    }

    /// The matching that sends source `i` to `destinations[i]`; the caller ensures that it is
    /// valid.
    pub(crate) fn of_ports(destinations: Vec<Option<u16>>) -> Self {
        Self { destinations }
    }

    /// A matching of `destinations`, without the circuits of racks to themselves.
    pub(crate) fn without_loops(destinations: impl Iterator<Item = usize>) -> Self {
        let circuit = |(source, to): (usize, usize)| (source != to).then(|| port(to));
        Self { destinations: destinations.enumerate().map(circuit).collect() }
    }
}

/// Converts a rack's number to the type that matchings store.
pub(crate) fn port(rack: usize) -> u16 {
    u16::try_from(rack).expect("a network has 1,024 racks at most")
}

/// A bipartite graph of sources and destinations, with a matching that grows by augmenting paths.
///
/// Shape: one bit for each pair, a row of words for each source.
/// Cost: O(racks^2 / 64) words for each augmenting path.
/// Source: Kuhn, *The Hungarian method for the assignment problem*, 1955.
pub(crate) struct Bipartite {
    racks: usize,
    words: usize,
    edges: Vec<u64>,
    source_of: Vec<Option<u16>>,
    destination_of: Vec<Option<u16>>,
    /// Destinations without a source in the matching, as bits.
    free: Vec<u64>,
    /// Destinations that the search for the current path has not visited, as bits.
    unvisited: Vec<u64>,
}

impl Bipartite {
    /// Creates a graph without edges.
    pub fn new(racks: usize) -> Self {
        let words = racks.div_ceil(64);
        let mut free = vec![0; words];
        set_all(&mut free, racks);
        Self {
            racks,
            words,
            edges: vec![0; racks * words],
            source_of: vec![None; racks],
            destination_of: vec![None; racks],
            free,
            unvisited: vec![0; words],
        }
    }

    /// Adds the edge from `source` to `destination`.
    pub fn insert(&mut self, source: usize, destination: usize) {
        self.edges[source * self.words + destination / 64] |= 1 << (destination % 64);
    }

    /// Removes the edge from `source` to `destination`, also from the matching.
    pub fn remove(&mut self, source: usize, destination: usize) {
        self.edges[source * self.words + destination / 64] &= !(1 << (destination % 64));
        if self.destination_of[source] == Some(port(destination)) {
            self.destination_of[source] = None;
            self.source_of[destination] = None;
            self.free[destination / 64] |= 1 << (destination % 64);
        }
    }

    /// Grows the matching to a perfect one. Returns false if none exists; the matching then keeps
    /// the paths found so far.
    pub fn grow(&mut self) -> bool {
        for source in 0..self.racks {
            if self.destination_of[source].is_none() {
                set_all(&mut self.unvisited, self.racks);
                if !self.augment(source) {
                    return false;
                }
            }
        }
        true
    }

    /// Removes all edges, and the matching.
    pub fn clear(&mut self) {
        self.edges.fill(0);
        self.source_of.fill(None);
        self.destination_of.fill(None);
        set_all(&mut self.free, self.racks);
    }

    /// Adds the edges of `rows`, a row of words for each source.
    pub fn insert_all(&mut self, rows: &[u64]) {
        for (edges, more) in self.edges.iter_mut().zip(rows) {
            *edges |= more;
        }
    }

    /// Grows the matching to a maximum one. Returns true if it grew.
    pub fn grow_all(&mut self) -> bool {
        let mut grew = false;
        set_all(&mut self.unvisited, self.racks);
        for source in 0..self.racks {
            // Destinations that a failed search has visited cannot lead a later search to success.
            if self.destination_of[source].is_none() && self.augment(source) {
                set_all(&mut self.unvisited, self.racks);
                grew = true;
            }
        }
        grew
    }

    /// Source and destination of each edge in the matching.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let pair = |(source, to): (usize, &Option<u16>)| to.map(|to| (source, usize::from(to)));
        self.destination_of.iter().enumerate().filter_map(pair)
    }

    /// Destination of each source in a perfect matching.
    ///
    /// Panics: if the matching is not perfect.
    pub fn destinations(&self) -> impl Iterator<Item = usize> + '_ {
        self.destination_of.iter().map(|to| usize::from(to.expect("the matching is perfect")))
    }

    fn augment(&mut self, source: usize) -> bool {
        let row = source * self.words;
        for word in 0..self.words {
            let free = self.edges[row + word] & self.free[word];
            if free != 0 {
                let destination = word * 64 + free.trailing_zeros() as usize;
                self.free[word] &= !(free & free.wrapping_neg());
                self.join(source, destination);
                return true;
            }
        }
        for word in 0..self.words {
            loop {
                let next = self.edges[row + word] & self.unvisited[word];
                if next == 0 {
                    break;
                }
                let bit = next & next.wrapping_neg();
                self.unvisited[word] &= !bit;
                let destination = word * 64 + next.trailing_zeros() as usize;
                let holder =
                    self.source_of[destination].expect("a destination that is not free has a source");
                if self.augment(usize::from(holder)) {
                    self.join(source, destination);
                    return true;
                }
            }
        }
        false
    }

    fn join(&mut self, source: usize, destination: usize) {
        self.source_of[destination] = Some(port(source));
        self.destination_of[source] = Some(port(destination));
    }
}

/// Sets one bit for each of `racks` racks.
fn set_all(words: &mut [u64], racks: usize) {
    words.fill(u64::MAX);
    if !racks.is_multiple_of(64) {
        words[racks / 64] = (1 << (racks % 64)) - 1;
    }
}

/// A heaviest assignment of destinations to sources, by shortest augmenting paths over dual prices.
///
/// Shape: `weights` has `racks` rows. The result is the destination of each source, also over edges
/// of weight zero.
/// Cost: O(racks^3).
/// Source: Jonker and Volgenant, *A shortest augmenting path algorithm for dense and sparse linear
/// assignment problems*, Computing 38, 1987.
pub(crate) fn heaviest(racks: usize, weights: &[u64]) -> Vec<usize> {
    const NONE: usize = usize::MAX;
    let cost = |source: usize, destination: usize| -(weights[source * racks + destination] as i64);
    // Index `racks` represents the root of each search.
    let (mut source_price, mut destination_price) = (vec![0i64; racks], vec![0i64; racks + 1]);
    let mut source_of = vec![NONE; racks + 1];
    let mut previous = vec![NONE; racks + 1];
    let mut distance = vec![0i64; racks + 1];
    let mut visited = vec![false; racks + 1];
    for root in 0..racks {
        source_of[racks] = root;
        distance.fill(i64::MAX);
        visited.fill(false);
        let mut at = racks;
        loop {
            visited[at] = true;
            let source = source_of[at];
            let (mut shortest, mut nearest) = (i64::MAX, NONE);
            for destination in 0..racks {
                if visited[destination] {
                    continue;
                }
                let reduced =
                    cost(source, destination) - source_price[source] - destination_price[destination];
                if reduced < distance[destination] {
                    distance[destination] = reduced;
                    previous[destination] = at;
                }
                if distance[destination] < shortest {
                    shortest = distance[destination];
                    nearest = destination;
                }
            }
            for destination in 0..=racks {
                if visited[destination] {
                    source_price[source_of[destination]] += shortest;
                    destination_price[destination] -= shortest;
                } else {
                    distance[destination] -= shortest;
                }
            }
            at = nearest;
            if source_of[at] == NONE {
                break;
            }
        }
        while at != racks {
            let before = previous[at];
            source_of[at] = source_of[before];
            at = before;
        }
    }
    let mut destinations = vec![0; racks];
    for destination in 0..racks {
        destinations[source_of[destination]] = destination;
    }
    destinations
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn permutations(racks: usize) -> Vec<Vec<usize>> {
        if racks == 0 {
            return vec![Vec::new()];
        }
        let mut all = Vec::new();
        for shorter in permutations(racks - 1) {
            for at in 0..=shorter.len() {
                let mut longer = shorter.clone();
                longer.insert(at, racks - 1);
                all.push(longer);
            }
        }
        all
    }

    proptest! {
        #[test]
        fn heaviest_matching_agrees_with_brute_force(
            (racks, weights) in (1usize..=6).prop_flat_map(|racks| {
                (Just(racks), prop::collection::vec(prop_oneof![Just(0u64), 0u64..100], racks * racks))
            })
        ) {
            let weight = |to: &[usize]| -> u64 {
                to.iter().enumerate().map(|(from, to)| weights[from * racks + to]).sum()
            };
            let found = heaviest(racks, &weights);
            let mut sorted = found.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..racks).collect::<Vec<_>>());
            let best = permutations(racks).iter().map(|to| weight(to)).max();
            prop_assert_eq!(Some(weight(&found)), best);
        }

        #[test]
        fn perfect_matching_is_found_if_one_exists(
            (racks, edges) in (1usize..=6).prop_flat_map(|racks| {
                (Just(racks), prop::collection::vec(any::<bool>(), racks * racks))
            })
        ) {
            let mut graph = Bipartite::new(racks);
            for (pair, _) in edges.iter().enumerate().filter(|(_, edge)| **edge) {
                graph.insert(pair / racks, pair % racks);
            }
            let exists = permutations(racks)
                .iter()
                .any(|to| to.iter().enumerate().all(|(from, to)| edges[from * racks + to]));
            prop_assert_eq!(graph.grow(), exists);
            if exists {
                for (from, to) in graph.destinations().enumerate().collect::<Vec<_>>() {
                    prop_assert!(edges[from * racks + to]);
                    graph.remove(from, to);
                }
                let left = (0..racks).any(|from| edges[from * racks..][..racks].iter().all(|edge| !edge));
                prop_assert!(!(left && graph.grow()));
            }
        }
    }

    #[test]
    fn bipartite_graph_supports_more_than_64_racks() {
        let mut graph = Bipartite::new(130);
        for from in 0..130 {
            graph.insert(from, (from + 77) % 130);
        }
        assert!(graph.grow());
        assert_eq!(graph.destinations().nth(129), Some(76));
    }

    #[test]
    fn invalid_matchings_are_refused() {
        assert_eq!(Matching::new(vec![Some(1), Some(1)]), Err(MatchingError::ToItself(1)));
        assert_eq!(Matching::new(vec![Some(2), None, Some(2)]), Err(MatchingError::ToItself(2)));
        assert_eq!(Matching::new(vec![Some(2), Some(2), None]), Err(MatchingError::Twice(2)));
        let error = MatchingError::NoSuchRack { rack: 3, racks: 3 };
        assert_eq!(Matching::new(vec![Some(3), None, None]), Err(error));
        assert!(Matching::new(vec![Some(1), None, None]).is_ok());
    }
}
