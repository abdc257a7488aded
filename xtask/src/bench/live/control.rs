//! Costs of local control: CPU time of Algorithm 1 by the number of parents; bytes and CPU time of
//! neighbour tables by the number of channels.
//!
//! Messages are JSON. Leaves out: sockets. Read [`Decision`] and [`Tables`] first.

use super::super::thread_cpu_s;
use super::{Args, print_table};
use anabranch_live_proto::control::local::{Rule, choose};
use anabranch_live_proto::control::neighbours::{Advertiser, Neighbours, Offer, Reach};
use anabranch_live_proto::{ChannelId, NodeId, Object};
use anabranch_units::{BitRate, LinkId, Seed};
use anyhow::ensure;
use serde::Serialize;
use std::collections::BTreeMap;

/// Bitrates of a channel (§4.7.2).
const LADDER_KBPS: [u64; 3] = [200, 600, 1_400];
/// Channels that the parents advertise while Algorithm 1 is measured.
const DECISION_CHANNELS: u32 = 10_000;
const DECISIONS: u32 = 1_000_000;
/// Periods of one second over which a table's costs are averaged.
const PERIODS: u32 = 20;
/// Number of parents for which a bound applies, and the maximum CPU time of one decision with that
/// number.
const BOUND_PARENTS: u32 = 10;
const DECISION_CPU_S_MAX: f64 = 10e-6;

/// Algorithm 1 at one node.
#[derive(Serialize)]
struct Decision {
    instance: &'static str,
    parents: u32,
    channels: u32,
    /// CPU time of one decision.
    cpu_s: f64,
}

/// Tables that a node sends to one child each second.
#[derive(Serialize)]
struct Tables {
    instance: &'static str,
    channels: u32,
    objects: usize,
    /// Share of objects whose entry changes each second.
    changed_share: f64,
    /// Length of the first table, which has all objects.
    whole_bytes: usize,
    bytes_per_s: f64,
    /// CPU seconds of the sender per second.
    sender_cpu_share: f64,
    /// CPU seconds of the receiver per second.
    receiver_cpu_share: f64,
}

/// Names of the two kinds of rows.
const ALGORITHM_1: &str = "algorithm 1";
const NEIGHBOUR_TABLES: &str = "neighbour tables";

/// Measures the chosen kinds, prints their rows and returns the missed bounds.
pub(super) fn measure(args: &Args) -> anyhow::Result<Vec<String>> {
    let mut missed = Vec::new();
    if args.is_chosen(ALGORITHM_1) {
        let rows = [1, 2, 5, 10, 20, 64].map(|parents| decision(parents, DECISIONS));
        rows.iter().try_for_each(|row| args.print(row))?;
        let bounded = rows.iter().filter(|row| row.parents == BOUND_PARENTS);
        missed.extend(bounded.filter(|row| row.cpu_s >= DECISION_CPU_S_MAX).map(|row| {
            let (us, limit_us) = (1e6 * row.cpu_s, 1e6 * DECISION_CPU_S_MAX);
            format!("{ALGORITHM_1}, {BOUND_PARENTS} parents: {us:.2} CPU µs: must be below {limit_us:.0} µs")
        }));
        if !args.json {
            let head = ["algorithm 1: parents", "channels", "CPU µs"];
            let cells = |row: &Decision| {
                [row.parents.to_string(), row.channels.to_string(), format!("{:.2}", 1e6 * row.cpu_s)]
            };
            print_table(head, rows.iter().map(cells));
        }
    }
    if args.is_chosen(NEIGHBOUR_TABLES) {
        let mut rows = Vec::new();
        for channels in [100, 300, 1_000, 3_000, 10_000] {
            for changed_percent in [0, 1, 10] {
                let row = tables(channels, changed_percent, PERIODS)?;
                args.print(&row)?;
                rows.push(row);
            }
        }
        if !args.json {
            print_tables(&rows);
        }
    }
    Ok(missed)
}

fn print_tables(rows: &[Tables]) {
    let head = [
        "neighbour tables: channels",
        "objects",
        "changed %/s",
        "whole bytes",
        "bytes/s",
        "sender CPU ms/s",
        "receiver CPU ms/s",
    ];
    let cells = |row: &Tables| {
        [
            row.channels.to_string(),
            row.objects.to_string(),
            format!("{:.0}", 100.0 * row.changed_share),
            row.whole_bytes.to_string(),
            format!("{:.0}", row.bytes_per_s),
            format!("{:.2}", 1e3 * row.sender_cpu_share),
            format!("{:.2}", 1e3 * row.receiver_cpu_share),
        ]
    };
    print_table(head, rows.iter().map(cells));
}

fn objects(channels: u32) -> impl Iterator<Item = Object> {
    let ladder = |channel| {
        LADDER_KBPS.map(|kbps| Object { channel: ChannelId(channel), bitrate: BitRate::bps(kbps * 1_000) })
    };
    (0..channels).flat_map(ladder)
}

/// A table's entry: one in three objects is at the parent itself.
fn reach(number: u64) -> Reach {
    match number % 3 {
        0 => Reach::HERE,
        distance => Reach { distance: distance as u32, capacity: Some(BitRate::mbps(2 + number % 40)) },
    }
}

/// A parent's side of its session with the node, and the parent's entries.
struct Parent {
    advertiser: Advertiser,
    table: BTreeMap<Object, Reach>,
}

/// Returns a node whose parents advertise all objects of `channels`.
fn node(parents: u32, channels: u32) -> (Neighbours, Vec<Parent>) {
    let mut node = Neighbours::new((0..parents).map(|id| (NodeId(id), LinkId(id))));
    let spare = BitRate::mbps(75);
    let offer = Offer { capacity: spare, spare, is_draining: false, is_limited: false };
    let parents = (0..parents).map(|parent| {
        node.handle_offer(NodeId(parent), offer);
        let numbered = objects(channels).zip(u64::from(parent)..);
        let table: BTreeMap<_, _> = numbered.map(|(object, number)| (object, reach(number))).collect();
        let mut advertiser = Advertiser::new(1);
        node.handle_table(NodeId(parent), advertiser.advance(table.clone()));
        Parent { advertiser, table }
    });
    let parents = parents.collect();
    (node, parents)
}

fn decision(parents: u32, decisions: u32) -> Decision {
    let (node, _) = node(parents, DECISION_CHANNELS);
    let objects: Vec<Object> = objects(DECISION_CHANNELS).collect();
    let mut random = Seed::new(1).stream("costs", 0);
    let start = thread_cpu_s();
    for _ in 0..decisions {
        let object = objects[random.below(objects.len() as u64) as usize];
        let ways = node.ways(object);
        std::hint::black_box(choose(Rule::NearestWithCapacity, object.bitrate, ways, &mut random));
    }
    let cpu_s = (thread_cpu_s() - start) / f64::from(decisions);
    Decision { instance: ALGORITHM_1, parents, channels: DECISION_CHANNELS, cpu_s }
}

fn tables(channels: u32, changed_percent: u32, periods: u32) -> anyhow::Result<Tables> {
    let (mut node, mut parents) = node(1, channels);
    let parent = &mut parents[0];
    let mut own = Advertiser::new(1);
    let mut child = Neighbours::new([(NodeId(0), LinkId(0))]);
    let whole = own.advance(node.advertisement([]));
    let whole_bytes = serde_json::to_vec(&whole)?.len();
    child.handle_table(NodeId(0), whole);
    let mut random = Seed::new(1).stream("costs", 1);
    let (mut sent_bytes, mut sender_s, mut receiver_s) = (0, 0.0, 0.0);
    for _ in 0..periods {
        for entry in parent.table.values_mut() {
            if random.chance_ppm(10_000 * changed_percent) {
                *entry = reach(random.below(120));
            }
        }
        node.handle_table(NodeId(0), parent.advertiser.advance(parent.table.clone()));
        let start = thread_cpu_s();
        let message = serde_json::to_vec(&own.advance(node.advertisement([])))?;
        sender_s += thread_cpu_s() - start;
        sent_bytes += message.len();
        let start = thread_cpu_s();
        child.handle_table(NodeId(0), serde_json::from_slice(&message)?);
        receiver_s += thread_cpu_s() - start;
    }
    let own_table = node.advertisement([]).len();
    let objects = LADDER_KBPS.len() * channels as usize;
    ensure!(own_table == objects, "the node advertises {own_table} of {objects} objects");
    let per_s = |sum: f64| sum / f64::from(periods);
    Ok(Tables {
        instance: NEIGHBOUR_TABLES,
        channels,
        objects,
        changed_share: f64::from(changed_percent) / 100.0,
        whole_bytes,
        bytes_per_s: per_s(sent_bytes as f64),
        sender_cpu_share: per_s(sender_s),
        receiver_cpu_share: per_s(receiver_s),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_has_a_parent_with_capacity() {
        let (node, _) = node(2, 10);
        let mut random = Seed::new(1).stream("costs", 0);
        for object in objects(10) {
            let parent = choose(Rule::NearestWithCapacity, object.bitrate, node.ways(object), &mut random);
            assert!(parent.is_some(), "links are wider than any object: {object:?}");
        }
    }

    #[test]
    fn table_updates_grow_with_their_changes() {
        let [none, some, many] = [0, 1, 10].map(|percent| tables(100, percent, 5).expect("small tables"));
        assert!(none.bytes_per_s < some.bytes_per_s && some.bytes_per_s < many.bytes_per_s);
        assert!(many.bytes_per_s < many.whole_bytes as f64);
    }
}
