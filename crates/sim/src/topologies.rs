//! Names of topologies in scenarios.
//!
//! Read [`unknown_topology`].

use anabranch_graph::builtin::BUILTINS;
use anabranch_graph::file::resolve;
use anabranch_units::text::{known, printable};

/// Names of topologies that are generated from numbers.
pub(crate) const GENERATED: [&str; 4] = ["star", "dumbbell", "leaf-spine", "fat-tree"];

/// Returns the message for an unknown topology, with a list of the known topologies. Returns `None`
/// for a known name, and for a name that may be a file.
pub(crate) fn unknown_topology(name: &str) -> Option<String> {
    if GENERATED.contains(&name) || resolve(name).is_ok() {
        return None;
    }
    let all = GENERATED.into_iter().chain(BUILTINS.iter().map(|builtin| builtin.name));
    Some(format!(
        "no topology `{}`: {}; or name a .toml, .graphml, .gml or .xml file",
        printable(name),
        known(name, all)
    ))
}
