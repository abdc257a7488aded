//! `anabranch doctor`.

use crate::{answer, text};

#[test]
fn exit_code_tells_whether_emulation_is_possible() {
    let output = answer(&["doctor", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let can = value["can_emulate"].as_bool().expect("a truth value");
    assert_eq!(output.status.code(), Some(if can { 0 } else { 1 }));
    let ran = answer(&["--quiet", "emulate", "butterfly", "--", "true"]).status.success();
    assert_eq!(can, ran, "{}", text(&output.stdout));
}

#[test]
fn every_failed_finding_has_a_fix() {
    let output = answer(&["doctor", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let findings = value["findings"].as_array().expect("a list");
    assert!(!findings.is_empty());
    for finding in findings {
        assert_eq!(finding["ok"].as_bool(), Some(finding["fix"].is_null()), "{finding}");
    }
    assert!(value["cores"].as_u64() >= Some(1));
    let kernels = value["coding_kernels"].as_array().expect("a list");
    assert!(kernels.contains(&value["coding_kernel"]), "{value}");
}

#[test]
fn text_output_has_the_findings_of_json() {
    let output = answer(&["doctor"]);
    let said = text(&output.stdout);
    assert!(said.contains("coding") && said.contains("emulation") && said.contains("TUN"), "{said}");
}

#[test]
fn findings_about_live_video_are_listed() {
    let said = text(&answer(&["doctor"]).stdout);
    for line in ["live video  by ", "live ports: ", "live viewers: ", "live clock: "] {
        assert!(said.contains(line), "{line}{said}");
    }
}
