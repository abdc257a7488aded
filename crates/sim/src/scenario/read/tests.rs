//! Tests of scenario files: accepted settings, and messages of refusals.

use super::*;
use crate::scenario::PathSpread;
use anabranch_fabric::switch::PolicyKind;
use anabranch_units::{BitRate, ByteCount};

const INCAST: &str = r#"
[network]
topology = "star"
hosts = 33
rate = "1 Gbit/s"
queue = "64 KiB"
[workload]
kind = "incast"
block = "256 KiB"
servers = 4
"#;

fn one(text: &str, sets: &[&str]) -> Result<Scenario, String> {
    let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    let points = read("x.toml", text, &sets).map_err(|error| error.to_string())?;
    assert_eq!(points.len(), 1);
    Ok(points[0].scenario.clone())
}

#[test]
fn settings_have_defaults_and_scenarios_read_back() {
    let scenario = one(INCAST, &[]).expect("a good scenario");
    assert_eq!(scenario.network.rate, BitRate::gbps(1));
    assert_eq!(scenario.network.queue, ByteCount::kib(64));
    assert_eq!((scenario.seed, scenario.network.spread), (1, PathSpread::By(PolicyKind::Ecmp)));
    let text = toml::to_string(&scenario).expect("a scenario is a table");
    assert_eq!(one(&text, &[]), Ok(scenario));
}

#[test]
fn setting_overrides_the_file_with_or_without_quotes() {
    let scenario = one(INCAST, &["network.rate=10 Gbit/s", "network.queue=\"1 MiB\"", "workload.servers=7"]);
    let scenario = scenario.expect("a good scenario");
    assert_eq!(scenario.network.rate, BitRate::gbps(10));
    assert_eq!(scenario.network.queue, ByteCount::mib(1));
    let Workload::Incast(incast) = &scenario.workload[0] else { panic!("an incast") };
    assert_eq!(incast.servers, 7);
    // An override may add a setting that the file lacks.
    assert!(!one(INCAST, &["transport.sack=false"]).expect("a good scenario").transport.sack);
}

#[test]
fn sweep_gives_every_combination_except_overridden_settings() {
    let text = format!(
        "{INCAST}[sweep]\n\"workload.servers\" = [1, 2]\n\"network.queue\" = [\"64 KiB\", \"1 MiB\"]\n"
    );
    let servers_and_queue = |sets: &[String]| -> Vec<_> {
        let points = read("x.toml", &text, sets).expect("a good scenario");
        let of = |s: &Scenario| match &s.workload[0] {
            Workload::Incast(incast) => (incast.servers, s.network.queue.as_u64() >> 10),
            _ => panic!("an incast"),
        };
        points.iter().map(|point| of(&point.scenario)).collect()
    };
    assert_eq!(servers_and_queue(&[]), [(1, 64), (1, 1024), (2, 64), (2, 1024)]);
    assert_eq!(servers_and_queue(&["workload.servers=9".to_owned()]), [(9, 64), (9, 1024)]);
    assert_eq!(servers_and_queue(&["workload[0].servers=9".to_owned()]), [(9, 64), (9, 1024)]);
}

#[test]
fn errors_are_one_line_with_location_and_allowed_values() {
    let replaced = |from: &str, to: &str| {
        assert!(INCAST.contains(from), "{from}");
        one(&INCAST.replace(from, to), &[]).expect_err("wrong")
    };
    for (from, to, expected) in [
        ("hosts = 33", "hosts = ", &["x.toml:4"][..]),
        ("hosts = 33", "hostes = 33", &["x.toml:4: network.hostes", "unknown field", "`hosts`"]),
        ("hosts = 33", "", &["x.toml:2: network.hosts", "missing", "star"]),
        ("hosts = 33", "hosts = 33\nk = 4", &["x.toml:5: network.k", "4", "star"]),
        ("hosts = 33", "hosts = -3", &["x.toml:4: network.hosts", "-3"]),
        ("1 Gbit/s", "1 Gbit", &["x.toml:5: network.rate", "1 Gbit", "Mbit/s"]),
        ("\"64 KiB\"", "-1", &["x.toml:6: network.queue", "-1", "64 KiB"]),
        ("kind = \"incast\"", "", &["x.toml:7: workload[0]", "missing `kind`"]),
        ("servers = 4", "servers = 0", &["x.toml:10: workload[0].servers", "0", "1 to"]),
        ("servers = 4", "", &["x.toml:7: workload[0]", "missing field `servers`"]),
        ("servers = 4", "servers = 4\npriority = 3", &["x.toml:11: workload[0].priority", "3", "0 to 2"]),
        (
            "servers = 4",
            "servers = 4\ntotal = \"5 B\"",
            &["x.toml:9: workload[0].block", "either block or total"],
        ),
        ("[workload]", "[transport]\nmss = 0\n[workload]", &["x.toml:7: transport", "mss", "0", "1 to"]),
        ("[workload]", "[transport]\ncontrol = \"dctcp\"\n[workload]", &["x.toml:7: transport", "ecn"]),
        ("[workload]", "[transport]\ncontrol = \"bbr\"\n[workload]", &["x.toml:7: transport", "rack"]),
        (
            "[workload]",
            "[transport]\nsack = false\nrack = true\n[workload]",
            &["x.toml:7: transport", "rack", "sack"],
        ),
        ("[workload]", "[transport]\ndelayed_ack = 5\n[workload]", &["x.toml:8: transport.delayed_ack", "5"]),
        (
            "topology = \"star\"",
            "topology = \"star\"\nspread = \"d-mod-k\"",
            &["x.toml:4: network.spread", "star"],
        ),
        ("[network]", "warmup = \"1 s\"\nduration = \"1 s\"\n[network]", &["x.toml:2: warmup", "shorter"]),
    ] {
        let said = replaced(from, to);
        assert_eq!(said.lines().count(), 1, "{said}");
        for part in expected {
            assert!(said.contains(part), "{to}: {said}");
        }
    }
}

#[test]
fn error_in_an_override_names_the_override() {
    let said = |set: &str| one(INCAST, &[set]).expect_err("wrong");
    assert!(said("network.hots=3").starts_with("--set network.hots=3: network.hots: unknown field"));
    assert!(said("workload.block=foo").starts_with("--set workload.block=foo: workload[0].block:"));
    assert!(said("workload[3].block=1").contains("there is no workload[3]"));
    assert!(said("network.rate").contains("KEY=VALUE"));
    assert!(said("network.rate.x=3").contains("is no table"));
    assert!(said("=3").contains("names no setting"));
}

#[test]
fn workload_control_requires_its_transport_settings() {
    let text = "duration = \"1 s\"\n[network]\ntopology = \"star\"\nhosts = 4\n[transport]\nrack = true\n\
                [workload]\nkind = \"long\"\npairs = 1\ncontrol = \"bbr\"\n";
    assert!(one(text, &[]).is_ok());
    let said = one(&text.replace("rack = true", "ecn = true"), &[]).expect_err("it goes by time");
    assert!(said.starts_with("x.toml:10: workload[0].control: control bbr: goes by"), "{said}");
}

#[test]
fn endless_workload_requires_a_duration() {
    let text = "[network]\ntopology = \"star\"\nhosts = 4\n[workload]\nkind = \"long\"\npairs = 1\n";
    assert!(one(text, &[]).expect_err("endless").contains("duration: missing"));
    assert!(one(text, &["duration=1 s"]).is_ok());
    assert!(one(text, &["workload.size=1 MB"]).is_ok());
}

#[test]
fn invalid_swept_value_is_reported_with_its_line() {
    let text = format!("{INCAST}[sweep]\n\"workload.servers\" = [1, 0]\n");
    let said = one(&text, &[]).expect_err("wrong");
    assert!(said.starts_with("x.toml:12: sweep.workload.servers: at 0: 0: must be"), "{said}");
    let text = format!("{INCAST}[sweep]\n\"workload.servers\" = []\n");
    assert!(one(&text, &[]).expect_err("wrong").contains("at least one value"));
}

/// #17: a path created tables of any depth, whose recursive copy overflowed the stack.
#[test]
fn setting_paths_are_limited_to_sixteen_steps() {
    let path = |steps: usize| vec!["a"; steps].join(".");
    let said = one(INCAST, &[&format!("{}=1", path(16))]).expect_err("there is no such setting");
    assert!(said.contains("unknown field"), "{said}");
    for steps in [17, 20_000] {
        let said = one(INCAST, &[&format!("{}=1", path(steps))]).expect_err("too long a path");
        assert!(said.contains("more than 16 steps") && said.chars().count() < 500, "{said}");
        let swept = format!("{INCAST}[sweep]\n\"workload.{}\" = [1]\n", path(steps));
        let said = one(&swept, &[]).expect_err("too long a path");
        assert!(said.starts_with("x.toml:") && said.contains("more than 16 steps"), "{said}");
        assert!(said.chars().count() < 500, "{said}");
    }
}

/// #17: `fat_tree` for `fat-tree` caused an error message about `k`.
#[test]
fn unknown_topology_is_reported_with_known_topologies() {
    let said = one(INCAST, &["network.topology=fat_tree", "network.k=4"]).expect_err("no such topology");
    assert_eq!(
        said,
        "--set network.topology=fat_tree: network.topology: no topology `fat_tree`: did you mean `fat-tree`? There are star, \
         dumbbell, leaf-spine, fat-tree, butterfly, internet2, b4; or name a .toml, .graphml, .gml or .xml file"
    );
    assert!(one(&INCAST.replace("hosts = 33", ""), &["network.topology=mine.toml"]).is_ok());
}

/// #17: a queue of 64 bytes reduced the goodput to a tenth of the rate without a message.
#[test]
fn size_without_unit_is_refused() {
    for set in
        ["network.queue=64", "network.queue=\"64\"", "workload.block=1000", "transport.receive_buffer=65536"]
    {
        let said = one(INCAST, &[set]).expect_err("no unit");
        assert!(said.contains("unit") && said.lines().count() == 1, "{said}");
    }
}
