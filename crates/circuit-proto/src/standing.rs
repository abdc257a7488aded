//! Standing circuits: which circuits to choose, and how long a demand takes over them with relays.
//!
//! Hosts relay for each other, so that a few standing circuits reach all hosts. Bytes take shortest
//! paths, and are divided over all shortest paths in proportion to the circuits of each link.
//! Leaves out: the delay of a relay, which is small compared with seconds of sending.

use crate::Matching;
use crate::parallel::decompose::Layer;

/// Shifts of a ring, or of a ring with chords, one for each switch.
fn steps(racks: usize, switches: usize) -> Vec<Vec<usize>> {
    let each = |step: &dyn Fn(usize) -> usize| -> Vec<usize> {
        (0..switches).map(|switch| step(switch).clamp(1, racks - 1)).collect()
    };
    let spread = |switch: usize| (racks as f64).powf(switch as f64 / switches as f64).round() as usize;
    let doubled = |switch: usize| {
        let mut powers = (0..).map(|power| 1usize << power).take_while(|step| *step < racks).cycle();
        powers.nth(switch).expect("an endless cycle")
    };
    let mut all = vec![
        each(&|_| 1),
        each(&|switch| if switch % 2 == 0 { 1 } else { racks - 1 }),
        each(&|switch| 1 + switch % (racks - 1)),
        each(&spread),
        each(&doubled),
    ];
    all.sort();
    all.dedup();
    all
}

/// The matchings of each ring, and of each ring with chords.
pub(crate) fn rings(racks: usize, switches: usize) -> Vec<Vec<Matching>> {
    let matchings = |steps: Vec<usize>| steps.into_iter().map(|step| Matching::shift(racks, step)).collect();
    steps(racks, switches).into_iter().map(matchings).collect()
}

/// The layers of a demand that are kept as standing circuits: the longest ones. A longer layer gets
/// more switches.
pub(crate) fn standing_layers(racks: usize, layers: &[Layer], switches: usize) -> Vec<Matching> {
    let mut held: Vec<(u64, usize)> = layers.iter().take(switches).map(|layer| (layer.length(), 1)).collect();
    for _ in held.len()..switches {
        if let Some((_, on)) = held.iter_mut().max_by_key(|(length, on)| length / *on as u64) {
            *on += 1;
        }
    }
    let mut matchings = Vec::new();
    for (layer, (_, on)) in layers.iter().zip(held) {
        let mut destinations = vec![None; racks];
        for piece in &layer.pieces {
            destinations[piece.source] = Some(crate::matching::port(piece.destination));
        }
        matchings.extend(std::iter::repeat_n(Matching::of_ports(destinations), on));
    }
    matchings
}

/// Dead ports: true for the port of switch `k` at host `i`, at index `k * racks + i`.
pub(crate) type DeadPorts = Vec<bool>;

/// A link between two hosts; parallel circuits form one link.
struct Link {
    from: usize,
    to: usize,
    circuits: u64,
    load: u64,
}

/// Time that `times` take over standing circuits, in picoseconds. `None` if a pair has no path.
pub(crate) fn time_over(
    racks: usize,
    times: &[u64],
    matchings: &[Matching],
    dead: &DeadPorts,
) -> Option<u64> {
    let mut links: Vec<Link> = Vec::new();
    let (mut out, mut into) = (vec![Vec::<usize>::new(); racks], vec![Vec::<usize>::new(); racks]);
    for (switch, matching) in matchings.iter().enumerate() {
        let alive = |host: usize| !dead[switch * racks + host];
        for (from, to) in matching.circuits().filter(|(from, to)| alive(*from) && alive(*to)) {
            if let Some(link) = out[from].iter().find(|link| links[**link].to == to) {
                links[*link].circuits += 1;
                continue;
            }
            out[from].push(links.len());
            into[to].push(links.len());
            links.push(Link { from, to, circuits: 1, load: 0 });
        }
    }
    let mut distance = vec![usize::MAX; racks];
    for source in 0..racks {
        let row = &times[source * racks..][..racks];
        if row.iter().all(|time| *time == 0) {
            continue;
        }
        distance.fill(usize::MAX);
        distance[source] = 0;
        let mut reached = vec![source];
        let mut next = 0;
        while let Some(host) = reached.get(next).copied() {
            next += 1;
            for to in out[host].iter().map(|link| links[*link].to) {
                if distance[to] == usize::MAX {
                    distance[to] = distance[host] + 1;
                    reached.push(to);
                }
            }
        }
        if (0..racks).any(|host| row[host] > 0 && distance[host] == usize::MAX) {
            return None;
        }
        let mut passing = row.to_vec();
        for host in reached.iter().skip(1).rev().copied() {
            let is_nearer = |link: &&usize| {
                let from = distance[links[**link].from];
                from != usize::MAX && from + 1 == distance[host]
            };
            let before: Vec<usize> = into[host].iter().filter(is_nearer).copied().collect();
            let mut circuits: u64 = before.iter().map(|link| links[*link].circuits).sum();
            let mut left = passing[host];
            for link in before {
                let share =
                    u64::try_from(u128::from(left) * u128::from(links[link].circuits) / u128::from(circuits))
                        .expect("a part of it");
                circuits -= links[link].circuits;
                left -= share;
                links[link].load += share;
                passing[links[link].from] += share;
            }
        }
    }
    Some(links.iter().map(|link| link.load.div_ceil(link.circuits)).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_over_a_ring_load_every_link_between() {
        // Host 0 sends 5 to host 2 through host 1, and host 1 sends 3 to host 2.
        let mut times = vec![0; 16];
        (times[2], times[6]) = (5, 3);
        let ring = [Matching::shift(4, 1)];
        assert_eq!(time_over(4, &times, &ring, &vec![false; 4]), Some(8));
        let twice = [Matching::shift(4, 1), Matching::shift(4, 1)];
        assert_eq!(time_over(4, &times, &twice, &vec![false; 8]), Some(4));
    }

    #[test]
    fn dead_port_cuts_one_ring_but_not_two() {
        let mut times = vec![0; 16];
        times[1] = 6;
        let mut dead = vec![false; 8];
        dead[0] = true;
        let matchings = [Matching::shift(4, 1), Matching::shift(4, 3)];
        assert_eq!(time_over(4, &times, &matchings[..1], &dead), None);
        // The opposite direction, the second ring, remains, with three hops.
        assert_eq!(time_over(4, &times, &matchings, &dead), Some(6));
    }

    #[test]
    fn paths_of_equal_length_share_bytes() {
        // From host 0 to host 3 of five hosts: shifts 1 and 2 in either order.
        let mut times = vec![0; 25];
        times[3] = 10;
        let matchings = [Matching::shift(5, 1), Matching::shift(5, 2)];
        assert_eq!(time_over(5, &times, &matchings, &vec![false; 10]), Some(5));
    }
}
