//! Bound of single links: shortest remaining time first on each link.

use super::work::CoflowWork;
use crate::network::LinkId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum number of passes in which coflows move to better links.
const PASSES_MAX: u32 = 8;

/// Assignment of each coflow to a link, and the resulting bound.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// Link of each coflow; `None` for a coflow without volume.
    pub links: Vec<Option<LinkId>>,
    pub total_s: f64,
}

/// Returns the minimum sum of completion times, in seconds, of jobs on a machine with preemption. A
/// job consists of its arrival and its duration.
///
/// Source: shortest remaining time first is optimal (Schrage, *Operations Research* 16, 1968).
pub fn shortest_first_s(mut jobs: Vec<(f64, f64)>) -> f64 {
    jobs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut jobs = jobs.into_iter().peekable();
    // Remaining times and arrivals, as bits. The times are not negative, so they sort like their
    // bits.
    let mut waiting: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let (mut now_s, mut total_s) = (0.0f64, 0.0);
    loop {
        let Some(Reverse((left, arrived))) = waiting.pop() else {
            let Some((arrived_s, busy_s)) = jobs.next() else { return total_s };
            now_s = now_s.max(arrived_s);
            waiting.push(Reverse((busy_s.to_bits(), arrived_s.to_bits())));
            continue;
        };
        let (left_s, arrived_s) = (f64::from_bits(left), f64::from_bits(arrived));
        match jobs.next_if(|(next_s, _)| *next_s < now_s + left_s) {
            Some((next_s, busy_s)) => {
                let left_s = (left_s - (next_s - now_s).max(0.0)).max(0.0);
                waiting.push(Reverse((left_s.to_bits(), arrived)));
                waiting.push(Reverse((busy_s.to_bits(), next_s.to_bits())));
                now_s = now_s.max(next_s);
            }
            None => {
                now_s += left_s;
                total_s += now_s - arrived_s;
            }
        }
    }
}

/// Assigns each coflow to a link of its routes. A coflow competes only with the coflows assigned to
/// the same link.
///
/// A link does not carry a coflow's load earlier than if the whole load was present at the coflow's
/// arrival and the coflows assigned to different links had no load. The sum over the coflows of a
/// link is therefore at least the result of shortest remaining time first for their loads on the
/// link, and at least the sum of their times alone. The bounds of the links can be added, because
/// the sets of coflows are disjoint. Each coflow starts on the link with its largest load, and then
/// moves to the link that increases the sum most.
pub fn assign(works: &[CoflowWork], links: usize) -> Assignment {
    let mut on: Vec<Vec<usize>> = vec![Vec::new(); links];
    let longest = |work: &CoflowWork| {
        work.loads.iter().max_by(|a, b| a.busy_s.total_cmp(&b.busy_s)).map(|load| load.link)
    };
    let mut assigned: Vec<Option<LinkId>> = works.iter().map(longest).collect();
    for (at, link) in assigned.iter().enumerate() {
        link.iter().for_each(|link| on[link.0 as usize].push(at));
    }
    let proves_s = |on: &[usize], link: LinkId| {
        let job = |at: &usize| {
            let load = works[*at].loads.iter().find(|load| load.link == link);
            (works[*at].arrived_s, load.expect("it is counted on a link of its own").busy_s)
        };
        let alone_s: f64 = on.iter().map(|at| works[*at].alone_s - works[*at].arrived_s).sum();
        shortest_first_s(on.iter().map(job).collect()).max(alone_s)
    };
    let mut proved: Vec<f64> = (0..).map(LinkId).zip(&on).map(|(link, on)| proves_s(on, link)).collect();
    for _ in 0..PASSES_MAX {
        let mut has_moved = false;
        for (at, work) in works.iter().enumerate() {
            let Some(from) = assigned[at] else { continue };
            let rest: Vec<usize> = on[from.0 as usize].iter().copied().filter(|other| *other != at).collect();
            let without_s = proves_s(&rest, from);
            let loses_s = proved[from.0 as usize] - without_s;
            let mut best: Option<(f64, LinkId, f64)> = None;
            for load in work.loads.iter().filter(|load| load.link != from) {
                let to = load.link.0 as usize;
                on[to].push(at);
                let with_s = proves_s(&on[to], load.link);
                on[to].pop();
                let gains_s = with_s - proved[to] - loses_s;
                if gains_s > best.map_or(1e-9 * with_s, |(gains_s, ..)| gains_s) {
                    best = Some((gains_s, load.link, with_s));
                }
            }
            if let Some((_, to, with_s)) = best {
                (on[from.0 as usize], proved[from.0 as usize]) = (rest, without_s);
                on[to.0 as usize].push(at);
                (proved[to.0 as usize], assigned[at], has_moved) = (with_s, Some(to), true);
            }
        }
        if !has_moved {
            break;
        }
    }
    // A coflow without volume is complete at its last arrival.
    let idle = works.iter().filter(|work| work.loads.is_empty()).map(|work| work.alone_s - work.arrived_s);
    Assignment { total_s: proved.iter().sum::<f64>() + idle.sum::<f64>(), links: assigned }
}
