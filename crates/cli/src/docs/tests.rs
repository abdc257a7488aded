//! Tests that each page of the reference is complete, and that its links have targets.

use super::commands::visible;
use super::markdown::{anchor, escaped};
use super::*;
use crate::Cli;
use clap::CommandFactory as _;
use std::collections::{BTreeMap, BTreeSet};

fn texts() -> BTreeMap<String, String> {
    pages(Cli::command()).into_iter().map(|page| (page.path, page.text)).collect()
}

#[test]
fn each_option_of_each_command_has_a_row() {
    fn check(command: &clap::Command, page: &str) {
        let words = command.get_bin_name().expect("it is built").trim_start_matches("anabranch ");
        let section = page.split("\n## ").find(|section| section.lines().next() == Some(words));
        assert!(section.is_some() || !words.contains(' '), "{words}: no section");
        let section = section.unwrap_or(page);
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_global_set()) {
            let Some(long) = arg.get_long().filter(|long| !matches!(*long, "help" | "version")) else {
                continue;
            };
            assert!(section.contains(&format!("--{long}")), "{words}: no --{long}");
        }
        visible(command).for_each(|below| check(below, page));
    }
    let texts = texts();
    let mut whole = Cli::command();
    whole.build();
    let mut verbs = 0;
    for verb in visible(&whole) {
        verbs += 1;
        check(verb, &texts[&format!("commands/{}.md", verb.get_name())]);
    }
    assert!(verbs >= 15, "only {verbs} verbs");
}

#[test]
fn each_request_and_message_has_a_section() {
    let texts = texts();
    for (system, description) in http::descriptions() {
        let api: serde_json::Value = serde_json::from_str(&description).expect("JSON");
        let page = &texts[&format!("http/{system}.md")];
        let paths = api["paths"].as_object().expect("paths");
        assert!(paths.len() > 5, "{system}");
        for (path, item) in paths {
            for method in item.as_object().expect("methods").keys() {
                let heading = format!("\n## `{} {path}`\n", method.to_uppercase());
                assert!(page.contains(&heading), "{system}: {heading}");
            }
        }
        for name in api["components"]["schemas"].as_object().expect("messages").keys() {
            assert!(page.contains(&format!("\n### {name}\n")), "{system}: {name}");
        }
    }
}

/// Returns the targets of a page's links, and the anchors of its headings.
fn links_and_anchors(text: &str) -> (Vec<&str>, BTreeSet<String>) {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    (links.collect(), headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect())
}

#[test]
fn links_between_pages_have_existing_targets() {
    let texts = texts();
    let mut count = 0;
    for (path, text) in &texts {
        let (links, own) = links_and_anchors(text);
        for link in links {
            count += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            if let Some(written) = file.strip_prefix("../docs/") {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(written);
                let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{link}: {error}"));
                assert!(
                    heading.is_empty() || links_and_anchors(&text).1.contains(heading),
                    "{path:?}: {link}"
                );
            } else if file.is_empty() {
                assert!(own.contains(heading), "{path}: {link}");
            } else {
                assert!(texts.contains_key(file), "{path}: {link}");
            }
        }
    }
    assert!(count > 100, "only {count} links");
}

#[test]
fn scenarios_document_names_each_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md");
    let written = std::fs::read_to_string(path).expect("it is there");
    let spans: BTreeSet<&str> = written
        .split('`')
        .skip(1)
        .step_by(2)
        .flat_map(|span| span.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .collect();
    let mut missing = Vec::new();
    let mut kinds = BTreeSet::new();
    for (title, table) in settings::tables() {
        for (name, _) in table.keys() {
            kinds.insert(name.clone());
            if !spans.contains(name.as_str()) {
                missing.push(format!("{title} {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "docs/scenarios.md does not say what these are: {missing:?}");
    assert!(kinds.len() > 100, "only {} keys", kinds.len());
}

#[test]
fn reference_lists_types_defaults_and_meanings_of_keys() {
    let page = settings::scenario().text;
    for row in [
        "| `rate` | as `20 Mbit/s` | `1 Gbit/s` | Rate of links for which the topology gives no rate. |",
        "| `topology` | text | *required* |",
        "| `rto_min` | as `5 ms` | `200 ms` |",
        "| `symbol` | as `64 KiB` | `64 KiB` | Bytes of a packet between sites. |",
        "| `workload` | list: table | none |",
        "| `servers` | whole number | *required* |",
        "\n## `[sweep]`\n",
    ] {
        assert!(page.contains(row), "{row}\n{page}");
    }
    for kind in anabranch_sim::scenario::KINDS {
        assert!(page.contains(&format!("\n## `kind = \"{kind}\"`\n")), "{kind}\n{page}");
    }
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        assert!(!row.ends_with("|  |") && !row.contains("| any |"), "incomplete: {row}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let man = Noun::Man(Folder { folder: folder.path().join("man1") });
    run(&man, Cli::command()).expect("it is written");
    let read = |name: &str| std::fs::read_to_string(folder.path().join("man1").join(name)).expect(name);
    assert!(read("anabranch.1").contains(".TH anabranch 1"));
    assert!(read("anabranch-replicate-send.1").contains("\\-\\-from"));
    let count = std::fs::read_dir(folder.path().join("man1")).expect("it is there").count();
    let mut visible_count = 0;
    crate::tests::each(&Cli::command(), "anabranch", &mut |_, _| visible_count += 1);
    assert_eq!(count, visible_count, "one for each command of --help");
}

#[test]
fn special_characters_in_texts_are_escaped() {
    assert_eq!(
        escaped("a <SITE> of `x<y>` * [`Kind`](a::Kind), [b]"),
        "a &lt;SITE> of `x<y>` \\* `Kind`, \\[b\\]"
    );
}

#[test]
fn summary_nests_pages_below_their_overview() {
    let list = summary(&pages(Cli::command()));
    assert!(
        list.starts_with("- [Commands](commands.md)\n  - [replicate](commands/replicate.md)\n"),
        "{list}"
    );
}
