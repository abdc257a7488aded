//! Costs of the local control, as rows: CPU time of Algorithm 1 by the number of parents, and bytes
//! and CPU time of the neighbour tables by the number of channels.
//!
//! `cargo run --release -p anabranch-live-proto --example control_costs`. Messages are JSON.
//! Leaves out: the optimiser. CPU time is the kernel's count for this thread, in steps of a tick (4 ms):
//! twenty periods are summed.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement reads the clock")]

use anabranch_live_proto::control::local::{Rule, choose};
use anabranch_live_proto::control::neighbours::{Advertiser, Neighbours, Offer, Reach};
use anabranch_live_proto::{ChannelId, NodeId, Object};
use anabranch_units::{BitRate, LinkId, Seed};
use std::collections::BTreeMap;

/// Bitrates of a channel.
const LADDER_KBPS: [u64; 3] = [200, 600, 1_400];
/// Periods of one measurement of the tables.
const PERIODS: u64 = 20;
/// Decisions of one measurement of Algorithm 1.
const DECISIONS: u64 = 1_000_000;

fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts CPU time");
    let first = text.split_whitespace().next().expect("three numbers");
    first.parse().expect("nanoseconds")
}

fn objects(channels: u32) -> impl Iterator<Item = Object> {
    let ladder = |channel| {
        LADDER_KBPS.map(|kbps| Object { channel: ChannelId(channel), bitrate: BitRate::bps(kbps * 1_000) })
    };
    (0..channels).flat_map(ladder)
}

fn reach(number: u64) -> Reach {
    match number % 3 {
        0 => Reach::HERE,
        distance => Reach { distance: distance as u32, capacity: Some(BitRate::mbps(1 + number % 40)) },
    }
}

/// A node whose parents advertise all objects of `channels`.
fn node(parents: u32, channels: u32) -> (Neighbours, Vec<Advertiser>, Vec<BTreeMap<Object, Reach>>) {
    let ids = (0..parents).map(|id| (NodeId(id), LinkId(id)));
    let mut node = Neighbours::new(ids);
    let (mut advertisers, mut tables) = (Vec::new(), Vec::new());
    for parent in 0..parents {
        let spare = BitRate::mbps(75);
        node.handle_offer(NodeId(parent), Offer { capacity: spare, spare, is_draining: false });
        let number = |at: usize| reach(at as u64 + u64::from(parent));
        let table: BTreeMap<_, _> = objects(channels).enumerate().map(|(at, o)| (o, number(at))).collect();
        let mut advertiser = Advertiser::new(1);
        node.handle_table(NodeId(parent), advertiser.advance(table.clone()));
        advertisers.push(advertiser);
        tables.push(table);
    }
    (node, advertisers, tables)
}

fn decisions() {
    println!("parents,channels,decision_ns");
    for parents in [1, 2, 5, 10, 20, 64] {
        let (node, ..) = node(parents, 10_000);
        let objects: Vec<Object> = objects(10_000).collect();
        let mut random = Seed::new(1).stream("costs", 0);
        let (start, mut chosen) = (cpu_ns(), 0);
        for _ in 0..DECISIONS {
            let object = objects[random.below(objects.len() as u64) as usize];
            let ways = node.ways(object);
            let parent = choose(Rule::NearestWithCapacity, object.bitrate, ways, &mut random);
            chosen += u64::from(parent.is_some());
        }
        assert!(chosen > 0, "wide links");
        println!("{parents},10000,{}", (cpu_ns() - start) / DECISIONS);
    }
}

fn tables() {
    println!(
        "channels,objects,changed_percent,whole_bytes,bytes_per_s,sender_cpu_us_per_s,receiver_cpu_us_per_s"
    );
    for channels in [100, 300, 1_000, 3_000, 10_000] {
        for changed_percent in [0, 1, 10] {
            let (mut node, mut advertisers, mut tables) = node(1, channels);
            let mut own = Advertiser::new(1);
            let mut child = Neighbours::new([(NodeId(0), LinkId(0))]);
            let whole = own.advance(node.advertisement([]));
            let whole_bytes = serde_json::to_vec(&whole).expect("a message").len();
            child.handle_table(NodeId(0), whole);
            let mut random = Seed::new(1).stream("costs", 1);
            let (mut bytes, mut sender_ns, mut receiver_ns) = (0, 0, 0);
            for _ in 0..PERIODS {
                for reach in tables[0].values_mut() {
                    if random.below(100) < changed_percent {
                        *reach = self::reach(random.below(120));
                    }
                }
                let delta = advertisers[0].advance(tables[0].clone());
                node.handle_table(NodeId(0), delta);
                let start = cpu_ns();
                let delta = own.advance(node.advertisement([]));
                let text = serde_json::to_vec(&delta).expect("a message");
                sender_ns += cpu_ns() - start;
                bytes += text.len();
                let start = cpu_ns();
                child.handle_table(NodeId(0), serde_json::from_slice(&text).expect("a message"));
                receiver_ns += cpu_ns() - start;
            }
            let (bytes, periods) = (bytes / PERIODS as usize, PERIODS * 1_000);
            let (sender, receiver) = (sender_ns / periods, receiver_ns / periods);
            let objects = channels as usize * LADDER_KBPS.len();
            println!("{channels},{objects},{changed_percent},{whole_bytes},{bytes},{sender},{receiver}");
        }
    }
}

fn main() {
    decisions();
    tables();
}
