//! The transfers that a schedule requests, and its network.

use anabranch_graph::{LinkProperties, Topology};
use anabranch_replicate_proto::control::{DirectoryRules, HopSettings, Priority, Submitter};
use anabranch_replicate_proto::coordinator::{CorruptPolicy, Destination, SchemeChoice, TransferRequest};
use anabranch_units::{BitRate, Duration, LinkId, RandomStream, SiteId};

/// Five cables between a source, a relay and two destinations: each destination has two paths.
pub fn draw_topology(random: &mut RandomStream) -> Topology {
    let mut topology = Topology::new("five");
    for name in ["s", "r", "d", "e"] {
        topology.add_site(name, None).expect("names differ");
    }
    for (a, b) in [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)] {
        let capacity = BitRate::mbps([10, 20, 40][random.below(3) as usize]);
        let properties = LinkProperties::new(capacity, Duration::from_ms(1));
        topology.add_cable(SiteId(a), SiteId(b), properties).expect("a good cable");
    }
    topology
}

pub fn draw_requests(random: &mut RandomStream, topology: &Topology) -> Vec<TransferRequest> {
    let count = 1 + random.below(4);
    (0..count).map(|number| draw_request(random, topology, number)).collect()
}

fn draw_request(random: &mut RandomStream, topology: &Topology, number: u64) -> TransferRequest {
    fn one_of<T: Clone>(random: &mut RandomStream, all: &[T]) -> T {
        all[random.below(all.len() as u64) as usize].clone()
    }
    let path = one_of(random, &["a", "./a", "b", "c", "d"]);
    let to = one_of(random, &[&[2][..], &[3], &[2, 3], &[1, 2, 3]]);
    let schemes = [
        SchemeChoice::Auto,
        SchemeChoice::Coded,
        SchemeChoice::Coded,
        SchemeChoice::Packed,
        SchemeChoice::Steiner,
        SchemeChoice::SteinerStoreAndForward,
        SchemeChoice::SteinerOneTree,
        SchemeChoice::MultiPath,
        SchemeChoice::SinglePath,
    ];
    let limited = random.below(4) == 0;
    let avoids_relay = random.below(6) == 0 && !to.contains(&1);
    // The cable between the two destinations may be avoided: each destination has another path.
    let links = topology.links().len() as u64;
    let is_between = |l: &LinkId| {
        let link = topology.link(*l);
        link.from.0 >= 2 && link.to.0 >= 2
    };
    let between: Vec<LinkId> = (0..links).map(|l| LinkId(l as u32)).filter(is_between).collect();
    TransferRequest {
        source: SiteId(0),
        source_path: format!("from-{number}"),
        destinations: to.iter().map(|d| Destination { site: SiteId(*d), path: path.into() }).collect(),
        avoid_sites: if avoids_relay { vec![SiteId(1)] } else { vec![] },
        avoid_links: if !avoids_relay && random.below(6) == 0 { between } else { vec![] },
        scheme: one_of(random, &schemes),
        hop: HopSettings {
            stripes: 1 + random.below(3) as u16,
            congestion_control: None,
            priority: Priority::Bulk,
        },
        hop_overrides: vec![],
        bandwidth_limit: limited.then(|| BitRate::bps(one_of(random, &[200_000, 2_000_000, 20_000_000]))),
        symbol_bytes: one_of(random, &[2_000, 5_000, 16_384]),
        buffer_packets: one_of(random, &[1, 2, 4, 8]),
        on_corrupt: if random.below(6) == 0 { CorruptPolicy::Refuse } else { CorruptPolicy::Repair },
        fill: !limited && random.below(3) == 0,
        submitter: one_of(random, &[Submitter::Operator, Submitter::Operator, Submitter::Site(SiteId(0))]),
        replace: random.below(3) == 0,
        rules: DirectoryRules::default(),
    }
}

/// A small file to all sites under a name, which replaces an existing file. It is requested after
/// all other transfers have ended.
pub fn last_request(topology: &Topology, name: &str) -> TransferRequest {
    let others = topology.site_ids().filter(|site| *site != SiteId(0));
    TransferRequest {
        source: SiteId(0),
        source_path: format!("last-{name}"),
        destinations: others.map(|site| Destination { site, path: name.to_owned() }).collect(),
        avoid_sites: vec![],
        avoid_links: vec![],
        scheme: SchemeChoice::Auto,
        hop: HopSettings { stripes: 1, congestion_control: None, priority: Priority::Bulk },
        hop_overrides: vec![],
        bandwidth_limit: None,
        symbol_bytes: 2_000,
        buffer_packets: 2,
        // Data of another file from an earlier transfer must not cause a refusal.
        on_corrupt: CorruptPolicy::Refuse,
        fill: false,
        submitter: Submitter::Operator,
        replace: true,
        rules: DirectoryRules::default(),
    }
}
