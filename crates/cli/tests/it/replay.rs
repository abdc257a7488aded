//! `anabranch shuffle replay` and `trace`: generated traces, and results of their replays.

use crate::{answer, text};
use serde_json::Value;

/// A generated trace of a few coflows, in a folder that exists as long as the handle.
fn trace(coflows: &str) -> (tempfile::TempDir, String) {
    let made = answer(&["shuffle", "trace", "--coflows", coflows, "--seed", "7"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.txt");
    std::fs::write(&path, &made.stdout).expect("it can be written");
    let shown = path.display().to_string();
    (folder, shown)
}

#[test]
fn replay_shows_each_schedulers_distance_from_the_bound() {
    let (folder, trace) = trace("30");
    let out = folder.path().join("run").display().to_string();
    let done = answer(&["shuffle", "replay", &trace, "--bound", "quick", "--json", "--out", &out]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let rows: Vec<Value> = text(&done.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON object a line"))
        .collect();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["allocator"].as_str()).collect();
    let all =
        ["max-min", "fifo", "wss", "srf", "aalo", "varys", "sincronia", "chase", "chase-total", "chase+"];
    assert_eq!(names, all);
    for row in &rows {
        let number = |field: &str| row[field].as_f64().expect("a number");
        assert!(number("mean_s") >= number("bound_mean_s") && number("above_bound_share") >= 0.0, "{row}");
        assert!(number("p50_s") <= number("p95_s") && number("p99_s") <= number("max_s"), "{row}");
        assert!(number("slowdown_mean_share") >= 1.0, "{row}");
    }
    let table = answer(&["shuffle", "replay", &trace, "--bound", "none", "--allocator", "chase+", "--quiet"]);
    assert!(text(&table.stdout).contains("│ chase+ "), "{}", text(&table.stdout));
    assert!(text(&table.stderr).is_empty(), "{}", text(&table.stderr));
    for name in ["run.json", "rows.jsonl", "coflows.parquet"] {
        assert!(folder.path().join("run").join(name).exists(), "{name}");
    }
}

#[test]
fn invalid_traces_are_refused_in_one_line() {
    let (folder, trace) = trace("2");
    let wrong = folder.path().join("wrong.txt");
    std::fs::write(&wrong, "3 1\n1 0 1 3 1 0:1\n").expect("it can be written");
    let wrong = wrong.display().to_string();
    for (args, said) in [
        (vec!["/nowhere"], "/nowhere: cannot be read: name a trace of the coflow benchmark"),
        (vec![&*wrong], "wrong.txt: line 2: a mapper's port is 3: must be below 3"),
        (vec![&*trace, "--port-rate", "0 bit/s"], "--port-rate: link 0 has 0 b/s: must have at least 1 b/s"),
        (
            vec![&*trace, "--like-coflowsim", "--allocator", "aalo"],
            "aalo: its rules in CoflowSim are not known",
        ),
    ] {
        let done = answer(&[&["shuffle", "replay", "--bound", "none"], &args[..]].concat());
        let stderr = text(&done.stderr);
        assert!(!done.status.success() && stderr.contains(said) && stderr.lines().count() == 1, "{stderr}");
    }
}
