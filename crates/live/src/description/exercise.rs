//! Exercise of an operator's network for a fuzz target: a description, or changes of a network.
//!
//! Leaves out: the inputs (`fuzz/`), and the routes (`controller::exercise`). Read [`exercise`].

use super::{Description, Layout};
use crate::controller::wire::NetworkChange;
use anabranch_http::answer::read;
use anabranch_live_proto::control::tables::Version;
use anabranch_live_proto::{LINKS_MAX, NODES_MAX};
use axum::body::Bytes;
use std::collections::BTreeMap;

/// Maximum number of characters of an error's message.
const MESSAGE_CHARS_MAX: usize = 600;

/// A network with one node in each tier, which the changes of an input apply to.
pub(crate) const NETWORK: &str = r#"
[[node]]
name = "s"
tier = "source"
media = "http://127.0.0.1:7201"
control = "127.0.0.1:7301"
[[node]]
name = "r"
tier = "reflector"
media = "http://127.0.0.1:7202"
control = "127.0.0.1:7302"
[[node]]
name = "e"
tier = "edge"
media = "http://127.0.0.1:7203"
[[link]]
from = "s"
to = "r"
capacity = "100Mbit/s"
cost = 10
[[link]]
from = "r"
to = "e"
capacity = "50Mbit/s"
[[group]]
name = "here"
prefixes = ["127.0.0.0/8"]
edges = ["e"]
[[channel]]
name = "news"
renditions = { high = "4Mbit/s", low = "400kbit/s" }
"#;

/// Reads a description in TOML, or changes of a small network in JSON if the input begins with `{`.
/// Returns true if the network is valid.
///
/// Panics: if an error's message is long or has a line break, if a valid network exceeds a limit,
/// or if its text forms differ from it.
pub fn exercise(bytes: &[u8]) -> bool {
    let layout = if bytes.trim_ascii_start().starts_with(b"{") {
        let Ok(change) = read::<NetworkChange>(Ok(Bytes::copy_from_slice(bytes))) else { return false };
        let json = serde_json::to_vec(&change).expect("plain data");
        assert_eq!(serde_json::from_slice::<NetworkChange>(&json).ok().as_ref(), Some(&change));
        let before = Description::from_toml(NETWORK).and_then(Layout::new).expect("a good description");
        before.changed(change.changes)
    } else {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        Description::from_toml(text).and_then(Layout::new)
    };
    match layout {
        Ok(layout) => {
            check(&layout);
            true
        }
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(char::is_control), "{message:?}");
            assert!(message.chars().count() <= MESSAGE_CHARS_MAX, "{message}");
            false
        }
    }
}

/// Checks the limits of a network, and reads both of its text forms.
pub(crate) fn check(layout: &Layout) {
    let (network, description) = (layout.network(), layout.description());
    assert!(network.nodes().len() <= NODES_MAX && network.links().len() <= LINKS_MAX);
    let json = serde_json::to_vec(description).expect("plain data");
    let same = serde_json::from_slice::<Description>(&json).expect("written above");
    assert_eq!(Layout::new(same).as_ref(), Ok(layout));
    let toml = toml::to_string(description).expect("plain data");
    assert_eq!(Description::from_toml(&toml).as_ref(), Ok(description));
    let directory = layout.directory(Version::default(), &BTreeMap::new(), |_| true, |_| Vec::new());
    assert!(directory.contents().edges.len() <= network.nodes().len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_testing::replay;
    use proptest::prelude::*;

    const CHANGES: &str = r#"{"version":1,"changes":[
{"set_node":{"name":"r2","tier":"reflector","media":"http://127.0.0.1:7204","control":"127.0.0.1:7304"}},
{"set_link":{"from":"s","to":"r2","capacity":"20Mbit/s","cost":1.5}},
{"set_group":{"name":"there","prefixes":["10.0.0.0/8"],"edges":[{"edge":"e","cost":2}]}},
{"remove_link":{"from":"s","to":"r"}},
{"remove_channel":"news"}]}"#;

    #[test]
    fn fuzz_corpus_results_match_the_file_names() {
        assert!(replay("live_network", exercise) >= 13);
    }

    #[test]
    fn example_network_and_changes_are_valid() {
        assert!(exercise(NETWORK.as_bytes()) && exercise(CHANGES.as_bytes()));
    }

    proptest! {
        #[test]
        fn damaged_networks_and_changes_do_not_panic(
            is_change: bool,
            is_cut: bool,
            at in 0usize..1_000,
            byte: u8,
        ) {
            let mut bytes = if is_change { CHANGES } else { NETWORK }.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            if is_cut {
                bytes.truncate(at);
            }
            exercise(&bytes);
        }

        #[test]
        fn hostile_names_do_not_panic(
            name in "\\PC{0,80}|[a-z0-9-]{1,70}|[\\x00-\\x1f]{1,3}",
            media in "http://[a-z0-9:./]{0,20}|\\PC{0,20}",
            cost: f64,
        ) {
            let changes = serde_json::json!([
                { "set_node": { "name": name, "tier": "source", "media": media, "control": "s:1" } },
                { "set_link": { "from": name, "to": "r", "capacity": "1Mbit/s", "cost": cost } },
                { "set_group": { "name": name, "edges": ["e", { "edge": "e", "cost": cost }] } },
                { "set_channel": { "name": name, "renditions": { "main": "1Mbit/s" } } },
            ]);
            for change in changes.as_array().expect("an array") {
                let request = serde_json::json!({ "version": 1, "changes": [change] });
                exercise(request.to_string().as_bytes());
            }
        }
    }
}
