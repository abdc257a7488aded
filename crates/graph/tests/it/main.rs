//! Integration tests: the corpora of the fuzz targets, replayed without a fuzzer.

#![allow(clippy::disallowed_methods, reason = "a test may read its own corpus")]

use anabranch_graph::builtin::{BUILTINS, builtin};
use anabranch_graph::datacentre::{dumbbell, fat_tree, leaf_spine, star};
use anabranch_graph::file::{Defaults, Format, Problem, exercise, parse};
use anabranch_graph::{LinkProperties, Topology};
use anabranch_testing::replay;
use anabranch_units::{BitRate, Duration};

#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    assert!(replay("topology_toml", |bytes| exercise(Format::Toml, bytes)) >= 5);
    assert!(replay("topology_graphml", |bytes| exercise(Format::GraphMl, bytes)) >= 5);
    assert!(replay("topology_gml", |bytes| exercise(Format::Gml, bytes)) >= 5);
}

fn read(text: &str) -> Result<Topology, Problem> {
    let read = parse(text, Format::Toml, "docs", &Defaults::new(BitRate::gbps(1)));
    read.map_err(|error| *error.problem)
}

#[test]
fn documentation_lists_every_field_and_its_example_parses() {
    let docs = include_str!("../../../../docs/topologies.md");
    let example =
        docs.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let topology = read(example).expect("the example is good");
    assert_eq!((topology.sites().len(), topology.links().len()), (3, 5));
    let documented: Vec<&str> = docs.split('`').skip(1).step_by(2).collect();
    for table in ["", "[defaults]", "[[site]]", "[[cable]]", "[[link]]"] {
        let Err(Problem::UnknownField { known, .. }) = read(&format!("{table}\nwhat = 1")) else {
            panic!("{table}: a field that it does not have is refused");
        };
        for field in known.iter().map(|key| key.name).filter(|field| *field != "name") {
            let name = match (table, field) {
                ("", "defaults") => "[defaults]".to_owned(),
                ("", field) => format!("[[{field}]]"),
                _ => field.to_owned(),
            };
            assert!(
                documented.contains(&name.as_str()),
                "docs/topologies.md does not say what `{field}` of {table} is"
            );
        }
    }
    for b in BUILTINS {
        let topology = builtin(b.name, BitRate::gbps(1)).expect("it is built in");
        let row = format!("| `{}` | {} | {}", b.name, topology.sites().len(), topology.links().len());
        assert!(docs.contains(&row), "{row}");
    }
}

#[test]
fn generated_networks_have_the_documented_names() {
    let docs = include_str!("../../../../docs/topologies.md");
    let like = LinkProperties::new(BitRate::gbps(1), Duration::from_us(1));
    for (topology, links) in [
        (star(2, &like), &["h0-hub", "hub-h0"][..]),
        (dumbbell(1, &like, &like), &["h0-left", "left-right"]),
        (leaf_spine(2, 2, 2, &like, &like), &["h0-tor-0", "tor-0-spine-0"]),
        (fat_tree(4, &like), &["h0-edge-0-0", "edge-0-0-agg-0-0", "agg-0-0-core-0"]),
    ] {
        let topology = topology.expect("a good network");
        for link in links {
            assert!(docs.contains(&format!("`{link}`")), "{link}");
            let found = topology.find_link(link).expect("it is called so");
            assert_eq!(topology.link_name(found), *link);
        }
    }
}
