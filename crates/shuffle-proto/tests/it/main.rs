//! Tests of parsers on corpora, documented examples and random input.

#![allow(clippy::disallowed_methods, reason = "a test may read its own corpus, and the scenarios")]

mod simulated;

use anabranch_shuffle_proto::exercise::{
    exercise_announcements, exercise_hosts, exercise_reports, exercise_rules, exercise_state, exercise_trace,
};
use proptest::prelude::*;
use std::path::Path;

/// Files whose names begin with `bad` must be refused, all other files accepted.
#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    for (target, exercise) in [
        ("shuffle_trace", exercise_trace as fn(&[u8]) -> bool),
        ("shuffle_reports", exercise_reports),
        ("shuffle_announcements", exercise_announcements),
        ("shuffle_rules", exercise_rules),
        ("shuffle_hosts", exercise_hosts),
        ("shuffle_state", exercise_state),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let entries = std::fs::read_dir(&folder).expect("the corpus is part of the repository");
        let mut paths: Vec<_> = entries.map(|e| e.expect("the folder can be listed").path()).collect();
        paths.sort();
        for path in &paths {
            let bytes = std::fs::read(path).expect("the corpus can be read");
            let name = path.file_name().and_then(|n| n.to_str()).expect("corpus files have plain names");
            assert_eq!(exercise(&bytes), !name.starts_with("bad"), "{name}");
        }
        assert!(paths.len() >= 5, "{}", folder.display());
    }
}

#[test]
fn documented_files_are_valid() {
    let page = include_str!("../../../../docs/shuffle.md");
    let shown: Vec<_> =
        page.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap_or_default()).collect();
    assert_eq!(shown.len(), 4);
    for block in shown {
        // Some examples are indented, because they are part of a list.
        let text: String = block.lines().map(|line| format!("{}\n", line.trim())).collect();
        let exercise = if text.contains("[[host]]") { exercise_hosts } else { exercise_rules };
        assert!(exercise(text.as_bytes()), "{text}");
    }
}

proptest! {
    #[test]
    fn random_lines_of_numbers_are_parsed_without_panic(lines in proptest::collection::vec(
        proptest::collection::vec("[0-9]{1,3}(:[0-9]{1,4})?", 0..12), 1..8,
    )) {
        let lines: Vec<String> = lines.iter().map(|words| words.join(" ")).collect();
        exercise_trace(lines.join("\n").as_bytes());
    }
}
