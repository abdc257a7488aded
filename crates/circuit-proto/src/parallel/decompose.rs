//! Decomposition of demand into matchings, and assignment of the matchings to switches.

use super::{Piece, PieceOrders, Switches};
use crate::matching::Bipartite;
use crate::sums::Sums;

/// Thresholds in parts per million of the longest part. A matching first takes parts above the
/// first threshold, then above the second, and so on.
const LIKE_PPM: [u128; 5] = [875_000, 500_000, 250_000, 60_000, 0];

/// Maximum number of moves of parts between switches, per switch.
const MOVES: usize = 8;

/// Pieces of one matching.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    pub pieces: Vec<Piece>,
}

impl Layer {
    /// Length of the longest piece.
    pub fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.length).max().unwrap_or(0)
    }

    /// Splits the layer in two: the first layer has at most `time` of each piece, the second the
    /// remaining time.
    fn split(&self, time: u64) -> (Self, Self) {
        let part = |length: fn(u64, u64) -> u64| Self {
            pieces: (self.pieces.iter())
                .map(|piece| Piece { length: length(piece.length, time), ..*piece })
                .filter(|piece| piece.length > 0)
                .collect(),
        };
        (part(|length, time| length.min(time)), part(u64::saturating_sub))
    }
}

/// Splits `times` into matchings of parts of at most `cut` each. The number of matchings is the
/// minimum: the number of parts at the busiest port.
///
/// Edges without demand are added (stuffed) until each port has as many parts as the busiest. A
/// regular bipartite graph is the sum of perfect matchings, one for each part of a port (König,
/// 1916). Parts of similar length share a matching, the longest first.
pub(crate) fn decompose(racks: usize, times: &[u64], cut: u64) -> Vec<Layer> {
    let mut left = times.to_vec();
    let mut sums = Sums::of(racks, times.iter().map(|time| time.div_ceil(cut)));
    let degree = sums.largest();
    let mut stuffed = vec![0u64; racks * racks];
    for source in 0..racks {
        // Starts behind the diagonal, which spreads the stuffed edges.
        for destination in (source..racks).chain(0..source) {
            stuffed[source * racks + destination] = sums.stuff(source, destination, degree);
        }
    }
    let mut graph = Bipartite::new(racks);
    let mut layers = Vec::new();
    for _ in 0..degree {
        layers.push(next_layer(racks, &mut left, &mut stuffed, cut, &mut graph));
    }
    layers.sort_by_key(|layer| std::cmp::Reverse(layer.length()));
    layers
}

fn next_layer(racks: usize, left: &mut [u64], stuffed: &mut [u64], cut: u64, graph: &mut Bipartite) -> Layer {
    graph.clear();
    let longest = left.iter().map(|time| (*time).min(cut)).max().unwrap_or(0);
    let mut above = u64::MAX;
    for share_ppm in LIKE_PPM {
        let least = u64::try_from(u128::from(longest) * share_ppm / 1_000_000).expect("a share of it").max(1);
        for (pair, time) in left.iter().enumerate() {
            let part = (*time).min(cut);
            if part >= least && part < above {
                graph.insert(pair / racks, pair % racks);
            }
        }
        above = least;
        graph.grow_all();
    }
    for (pair, _) in stuffed.iter().enumerate().filter(|(_, parts)| **parts > 0) {
        graph.insert(pair / racks, pair % racks);
    }
    assert!(graph.grow(), "a regular bipartite graph has a perfect matching (König)");
    let mut layer = Layer::default();
    for (source, destination) in graph.destinations().enumerate() {
        let pair = source * racks + destination;
        let length = left[pair].min(cut);
        if length == 0 {
            stuffed[pair] -= 1;
        } else {
            left[pair] -= length;
            layer.pieces.push(Piece { source, destination, length });
        }
    }
    layer
}

/// Assigns `layers` to one switch after the other, each filled up to the same time; a layer that
/// does not fit is split.
///
/// Source: McNaughton, *Scheduling with deadlines and loss functions*, Management Science 6, 1959
/// (the wrap-around rule).
pub(crate) fn wrap(layers: &[Layer], switches: &Switches) -> PieceOrders {
    let night = switches.night.as_ps();
    let count = switches.count as u64;
    let total: u64 = layers.iter().map(|layer| layer.length() + night).sum();
    let full = (total + (count - 1) * night).div_ceil(count);
    let mut orders: PieceOrders = vec![Vec::new(); switches.count];
    let (mut switch, mut used) = (0, 0);
    for layer in layers {
        let mut rest = layer.clone();
        while !rest.pieces.is_empty() {
            let last = switch + 1 == switches.count;
            let length = rest.length();
            if last || used + night + length <= full {
                orders[switch].extend(&rest.pieces);
                used += night + length;
                break;
            }
            if let Some(room) = full.checked_sub(used + night).filter(|room| *room > 0) {
                let (first, second) = rest.split(room);
                orders[switch].extend(first.pieces);
                rest = second;
            }
            (switch, used) = (switch + 1, 0);
        }
    }
    orders
}

/// Assigns each layer, the longest first, to the switch whose busiest port is then the least busy.
pub(crate) fn longest_first(racks: usize, layers: &[Layer], switches: &Switches) -> PieceOrders {
    let night = switches.night.as_ps();
    let mut orders: PieceOrders = vec![Vec::new(); switches.count];
    let mut loads = vec![(0u64, vec![0u64; 2 * racks]); switches.count];
    for layer in layers {
        let then = |(most, load): &(u64, Vec<u64>)| {
            let port = |piece: &Piece| {
                load[piece.source].max(load[racks + piece.destination]) + night + piece.length
            };
            layer.pieces.iter().map(port).max().unwrap_or(0).max(*most)
        };
        let total = |(_, load): &(u64, Vec<u64>)| load.iter().map(|load| u128::from(*load)).sum::<u128>();
        let switch = (0..switches.count)
            .min_by_key(|switch| (then(&loads[*switch]), total(&loads[*switch])))
            .expect("a switch at least");
        let most = then(&loads[switch]);
        let (busiest, load) = &mut loads[switch];
        *busiest = most;
        for piece in &layer.pieces {
            load[piece.source] += night + piece.length;
            load[racks + piece.destination] += night + piece.length;
        }
        orders[switch].extend(&layer.pieces);
    }
    orders
}

/// Moves parts of the fullest switch's longest layer to the emptiest switch while this shortens the
/// makespan.
pub(crate) fn equalise(on: &mut [(u64, Vec<Layer>)], night: u64) {
    for _ in 0..MOVES * on.len() {
        let fullest = (0..on.len()).max_by_key(|switch| on[*switch].0).expect("a switch at least");
        let emptiest = (0..on.len()).min_by_key(|switch| on[*switch].0).expect("a switch at least");
        let gap = on[fullest].0 - on[emptiest].0;
        if gap <= night + 1 {
            return;
        }
        let part = (gap - night) / 2;
        let Some(at) = (0..on[fullest].1.len()).max_by_key(|at| on[fullest].1[*at].length()) else { return };
        let length = on[fullest].1[at].length();
        if length <= part {
            let layer = on[fullest].1.swap_remove(at);
            on[fullest].0 -= length + night;
            on[emptiest].0 += length + night;
            on[emptiest].1.push(layer);
        } else {
            let (first, second) = on[fullest].1[at].split(length - part);
            let moved = second.length();
            on[fullest].1[at] = first;
            on[fullest].0 -= moved;
            on[emptiest].0 += moved + night;
            on[emptiest].1.push(second);
        }
    }
}
