//! Fuzz targets for scenarios, the files that they name, and `--set`; also used by the tests of
//! their corpora.
//!
//! Leaves out: the settings of systems' workloads, because this room does not know the systems.

use crate::Plan;
use crate::scenario::{Workload, read};
use anabranch_units::Seed;
use std::io::ErrorKind;

/// Maximum number of overrides in one input.
const SETS_MAX: usize = 32;

/// Fuzz target: parses `bytes` as a scenario, checks that its resolved form parses to the same
/// scenario, and plans it. Returns true if a run could start. Systems' workloads and schedules of
/// circuits are left out, because this room does not know the systems.
///
/// Panics: if the parser is wrong.
#[doc(hidden)]
pub fn exercise_scenario(bytes: &[u8]) -> bool {
    let Ok(points) =
        std::str::from_utf8(bytes).map_err(drop).and_then(|text| read("fuzz", text, &[]).map_err(drop))
    else {
        return false;
    };
    points.into_iter().take(3).all(|mut point| {
        let text = toml::to_string(&point.scenario).expect("a scenario is a table");
        let again = read("fuzz", &text, &[]).expect("what was resolved reads back");
        assert_eq!(again[0].scenario, point.scenario);
        point.scenario.workload.retain(|workload| !matches!(workload, Workload::System(_)));
        if let Some(circuit) = &mut point.scenario.circuit {
            circuit.schedule = None;
        }
        Plan::new(point.scenario, &|_| Err(ErrorKind::NotFound.into())).is_ok()
    })
}

/// Fuzz target: the first line names the kind of the remaining text: `trace`, `sizes`,
/// `topology.toml` or `topology.graphml`. Plans a scenario with that file. Returns true if the
/// planning succeeded.
///
/// Panics: if the parsers are wrong, or a flow starts before its predecessor.
#[doc(hidden)]
pub fn exercise_files(bytes: &[u8]) -> bool {
    let Some((kind, file)) = std::str::from_utf8(bytes).ok().and_then(|text| text.split_once('\n')) else {
        return false;
    };
    let (topology, workload) = match kind {
        "trace" => ("\"star\"\nhosts = 4", "kind = \"trace\"\nfile = \"it\""),
        "sizes" => ("\"star\"\nhosts = 4", "kind = \"poisson\"\nload = 0.5\nsizes = \"it\"\nflows = 100"),
        "topology.toml" | "topology.graphml" => {
            (&*format!("\"{kind}\"\nways_back = true"), "kind = \"udp\"\npairs = \"permutation\"\nload = 0.5")
        }
        _ => return false,
    };
    let text = format!("duration = \"1 s\"\n[network]\ntopology = {topology}\n[workload]\n{workload}");
    let scenario = read("fuzz", &text, &[]).expect("a good scenario").remove(0).scenario;
    let Ok(plan) = Plan::new(scenario, &|_| Ok(file.to_owned())) else { return false };
    if let Some(starts) = plan.starts(Seed::new(1), 0) {
        let starts: Vec<_> = starts.take(1_000).collect();
        assert!(starts.is_sorted_by_key(|start| start.at), "flows start in order");
    }
    true
}

/// Fuzz target: applies each line as an override (`--set`) to a scenario with every kind of
/// workload. Returns true if all overrides were accepted.
///
/// Panics: if the parser is wrong, or a message has several lines or excessive length.
#[doc(hidden)]
pub fn exercise_sets(bytes: &[u8]) -> bool {
    const SCENARIO: &str = include_str!("../../../fuzz/corpus/scenario_toml/every_workload.toml");
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let sets: Vec<String> = text.lines().take(SETS_MAX).map(str::to_owned).collect();
    match read("fuzz", SCENARIO, &sets) {
        Ok(_) => true,
        Err(error) => {
            let said = error.to_string();
            assert!(said.chars().count() < 2_000, "{said}");
            false
        }
    }
}
