//! Naive upper bounds: the demand at each tier, limited by the tier's total capacity (§4.7.1,
//! "UB").

use super::arrival_states::{ArrivalStates, Window, rates};
use crate::network::Tier;
use std::collections::BTreeMap;

/// Bounds that no design can exceed.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Bounds {
    /// Mean bitrate delivered to a viewer, in kbit/s.
    pub mean_kbps: f64,
    /// Share of viewers served at the asked bitrate.
    pub satisfied_share: f64,
}

/// Viewers that compete for one stream of each bitrate: bitrate in Mbit/s, and number of viewers
/// that ask for it.
type Rungs = Vec<(f64, f64)>;

/// Computes the bounds of one window.
///
/// Every object crosses the first two tiers at least once, and every request the last tier. Each
/// tier carries the streams with the highest value per Mbit/s, and a part of the stream that does
/// not fit completely. A refused viewer may take any lower bitrate.
pub fn naive_bounds(window: &Window<'_>) -> Bounds {
    let program = ArrivalStates::new(window.trace).program(window);
    let (mut by_channel, mut by_group) = (BTreeMap::new(), BTreeMap::new());
    for (request, rate) in rates(&program) {
        let channel = program.offers()[request.object.index()].object.channel;
        let viewers = request.viewers as f64;
        add(by_channel.entry(channel).or_default(), rate, viewers);
        add(by_group.entry((channel, request.group)).or_default(), rate, viewers);
    }
    let (by_channel, by_group): (Vec<Rungs>, Vec<Rungs>) =
        (by_channel.into_values().collect(), by_group.into_values().collect());
    let network = &window.topology.network;
    let of_tier = |tier: Tier| {
        let links = network.tier(tier).flat_map(|node| network.links_in(node));
        links.map(|&link| network.link(link).capacity.as_mbps_f64()).sum::<f64>()
    };
    let last = window.topology.group_links.iter().map(|link| link.capacity.as_mbps_f64()).sum();
    let tiers =
        [(of_tier(Tier::Reflector), &by_channel), (of_tier(Tier::Edge), &by_channel), (last, &by_group)];
    let viewers: f64 = by_group.iter().flatten().map(|(_, viewers)| viewers).sum();
    let least = |bound: &dyn Fn(f64, &[Rungs]) -> f64| {
        tiers.iter().map(|(capacity, streams)| bound(*capacity, streams)).fold(f64::INFINITY, f64::min)
    };
    let share = |sum: f64| sum / viewers.max(1.0);
    Bounds { mean_kbps: 1e3 * share(least(&most_rate)), satisfied_share: share(least(&most_satisfied)) }
}

fn add(rungs: &mut Rungs, rate: f64, viewers: f64) {
    match rungs.iter_mut().find(|rung| rung.0 == rate) {
        Some(rung) => rung.1 += viewers,
        None => rungs.push((rate, viewers)),
    }
}

/// Largest number of viewers whose requested bitrates fit into `capacity` (fractional knapsack).
fn most_satisfied(mut capacity: f64, streams: &[Rungs]) -> f64 {
    let mut order: Rungs = streams.iter().flatten().copied().collect();
    order.sort_by(|a, b| (b.1 / b.0).total_cmp(&(a.1 / a.0)));
    let mut sum = 0.0;
    for (rate, viewers) in order {
        let share = (capacity / rate).min(1.0);
        sum += share * viewers;
        capacity -= share * rate;
    }
    sum
}

/// Largest sum of viewers' bitrates within `capacity`. A stream serves at most the viewers that ask
/// for its bitrate or a higher bitrate. All streams of a channel together serve at most the rate
/// that its viewers ask for.
fn most_rate(mut capacity: f64, streams: &[Rungs]) -> f64 {
    let mut left: Vec<f64> =
        streams.iter().map(|rungs| rungs.iter().map(|(rate, viewers)| rate * viewers).sum()).collect();
    let mut order = Vec::new();
    for (channel, rungs) in streams.iter().enumerate() {
        for &(rate, _) in rungs {
            let takers: f64 = rungs.iter().filter(|rung| rung.0 >= rate).map(|rung| rung.1).sum();
            order.push((takers, rate, channel));
        }
    }
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)).then(a.1.total_cmp(&b.1)));
    let mut sum = 0.0;
    for (takers, rate, channel) in order {
        let used = rate.min(capacity).min(left[channel] / takers);
        sum += used * takers;
        left[channel] -= used * takers;
        capacity -= used;
    }
    sum
}
