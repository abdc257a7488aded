use super::survey::{Survey, survey_random, survey_triples, triples};
use super::*;
use anabranch_graph::{LinkProperties, Topology};
use anabranch_units::{ByteCount, Duration, Seed};

fn network(name: &str, sites: u16, cables: &str, full_duplex: bool) -> Topology {
    let mut topology = Topology::new(name);
    for i in 0..sites {
        topology.add_site(i.to_string(), None).expect("numbers differ");
    }
    for cable in cables.split_whitespace() {
        let (a, b) = cable.split_once('-').expect("a-b");
        let site = |text: &str| SiteId(text.parse().expect("a number"));
        let properties = LinkProperties::new(BitRate::gbps(1), Duration::from_ms(1));
        if full_duplex {
            topology.add_cable(site(a), site(b), properties).expect("a good cable");
        } else {
            topology.add_link(site(a), site(b), properties).expect("a good link");
        }
    }
    topology
}

fn butterfly() -> Topology {
    network("butterfly", 7, "0-1 0-2 1-3 2-3 3-4 1-5 4-5 2-6 4-6", false)
}
fn internet2() -> Topology {
    network("internet2", 9, "0-1 0-2 1-2 1-3 2-4 3-4 3-5 4-6 5-6 5-7 6-7 6-8 7-8", true)
}
fn b4() -> Topology {
    let cables =
        "0-1 0-3 1-2 2-3 2-4 2-12 3-4 3-5 3-12 4-6 4-7 5-6 5-7 6-7 6-9 7-10 7-12 8-9 8-10 9-10 9-11 10-11";
    network("b4", 13, cables, true)
}

fn sites(ids: &[u16]) -> Vec<SiteId> {
    ids.iter().map(|i| SiteId(*i)).collect()
}

#[test]
fn coding_gets_two_through_the_butterfly_and_packing_one_and_a_half() {
    let topology = butterfly();
    let planner = Planner::new(Request::new(&topology, SiteId(0), sites(&[5, 6]))).expect("a good request");
    let comparison = planner.compare().expect("plans exist");
    assert_eq!(comparison.bound, 2.0);
    assert_eq!(comparison.coded, 2.0);
    assert!((comparison.packed - 1.5).abs() < 1e-5, "{}", comparison.packed);
    assert!(comparison.packed_gap < 1e-5, "{}", comparison.packed_gap);
    assert_eq!(comparison.steiner, 1.0);
    assert!(comparison.decodes);
    assert_eq!(comparison.auto, Scheme::Coded);
    let coded = planner.plan(Scheme::Coded).expect("a code exists");
    assert_eq!((coded.figures.coding_flows, coded.figures.coding_sites), (1, 1));
    let coding = coded.plan.coding_sites(&topology);
    assert_eq!((coding[0].site, coding[0].function), (SiteId(3), Function::CodeAndForward));
    assert!(coding[0].terms.iter().all(|t| t.coefficient == 1), "plain XOR: {}", coding[0].sum);
}

/// Two destinations that each lack one stream, which a ring brings them: 7 gets site 2's stream and what leaves site
/// 6, 8 gets site 1's and what leaves site 5; link 3-5 feeds 4-6 and the other way round.
fn ring() -> Topology {
    network("ring", 9, "0-1 0-2 1-3 2-4 3-5 5-4 4-6 6-3 2-7 6-7 1-8 5-8", false)
}

#[test]
fn a_union_with_a_cycle_is_coded_at_the_full_rate_with_a_delay() {
    let topology = ring();
    let planner = Planner::new(Request::new(&topology, SiteId(0), sites(&[7, 8]))).expect("a good request");
    let coded = planner.plan(Scheme::Coded).expect("a code exists");
    assert_eq!(coded.plan.rate, BitRate::gbps(2));
    assert_eq!(coded.plan.bound, BitRate::gbps(2));
    assert_eq!(coded.figures.delayed_terms, 1, "{:?}", coded.plan.works(&topology));
    coded.plan.check(&topology).expect("every destination decodes");
    println!("RING {:?}", planner.compare());
}

#[test]
fn print_surveys() {
    for topology in [internet2(), b4()] {
        println!("{}", serde_json::to_string(&survey_triples(&topology)).expect("plain data"));
    }
    println!("{}", serde_json::to_string(&survey_random(Seed::new(1), 0..1000)).expect("plain data"));
    let _ = (Survey::default(), ByteCount::ZERO, triples(&b4()));
}

#[test]
fn print_candidates() {
    let topology = internet2();
    for (source, destinations) in triples(&topology) {
        let planner = Planner::new(Request::new(&topology, source, destinations.clone())).expect("good");
        let c = planner.compare().expect("plans");
        if c.single_path < c.multi_path - 1e-4
            && c.multi_path < c.steiner - 1e-4
            && c.steiner < c.coded - 1e-4
        {
            println!(
                "CAND {source} {destinations:?} bound {} coded {} packed {} steiner {} multi {} single {} ",
                c.bound, c.coded, c.packed, c.steiner, c.multi_path, c.single_path
            );
        }
    }
}
