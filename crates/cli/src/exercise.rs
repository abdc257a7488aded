//! Exercises of this crate's parsers, for fuzz targets and the replay of their corpora.
//!
//! Leaves out: parsers of other crates, which have their own exercises.

use crate::family::simulated;
use anabranch_graph::builtin::builtin;
use anabranch_replicate::wire::TopologyView;
use anabranch_sim::{Plan, Simulation, scenario};
use anabranch_units::BitRate;
use std::sync::LazyLock;
use tempfile::TempDir;

/// Parses `bytes` as a scenario with workloads of systems, and resolves and draws the workloads.
/// Returns true if a run could begin.
///
/// Panics: if a system's parser or planner panics.
pub fn systems(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(points) = scenario::read("fuzz", text, &[]) else { return false };
    points.into_iter().take(3).all(|point| {
        let plan =
            Plan::with_systems(point.scenario, &|_| Err(std::io::ErrorKind::NotFound.into()), &simulated());
        plan.is_ok_and(|plan| {
            let begun: Result<Simulation<'_>, _> = Simulation::new(&plan, 0);
            begun.is_ok()
        })
    })
}

/// Parses `bytes` as an argument of `--at`, `--loss` or `--hop`, and as a target of `gather get`.
/// Returns true if one of them is valid.
///
/// Panics: if a parser panics, or an error message has several lines.
pub fn words(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let b4 = builtin("b4", BitRate::mbps(10)).expect("it is built in");
    let change = anabranch_emu::Change::parse(text, &b4).map(drop).map_err(anyhow::Error::from);
    let loss = text.parse::<anabranch_emu::Loss>().map(drop).map_err(anyhow::Error::from);
    let target = anabranch_gather::Target::parse(text).map(drop).map_err(anyhow::Error::from);
    let hop =
        crate::replicate::send::hop(text, &anabranch_replicate::wire::HopRequest::default(), &b4).map(drop);
    [change, loss, target, hop].iter().any(Result::is_ok)
}

/// Parses `bytes` after the first byte, which selects the kind: a flow's confirmations, an emulated
/// datagram, a controller's topology, or the head of a directory's stream. Returns true if they are
/// valid.
///
/// Panics: if a parser panics.
pub fn wire(bytes: &[u8]) -> bool {
    match bytes {
        [0, rest @ ..] => anabranch_replicate::exercise_confirmations(rest),
        [1, rest @ ..] => anabranch_emu::scenario::exercise_stamp(rest),
        [2, rest @ ..] => {
            serde_json::from_slice::<TopologyView>(rest).is_ok_and(|view| view.topology().is_ok())
        }
        [3, rest @ ..] => anabranch_disk::tree::stream::exercise_head(rest),
        _ => false,
    }
}

/// Parses `bytes` as the journal of a partial file of 1,000 zeros. Returns true if a part of the
/// file is kept.
///
/// Panics: if the parser panics.
pub fn journal(bytes: &[u8]) -> bool {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a temporary folder"));
    anabranch_disk::partial::exercise_journal(FOLDER.path(), bytes)
}

/// Damages the index of a directory by edits of ten bytes each, and scans with it. Returns true if
/// nothing in it was lost.
///
/// Panics: a scan fails, or gets a wrong hash.
pub fn index(bytes: &[u8]) -> bool {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a temporary folder"));
    anabranch_disk::tree::index::exercise_damage(FOLDER.path(), bytes)
}

/// Parses `bytes` as a manifest of `gather`, and as the cache of hashes of its server. Returns true
/// if the manifest is valid.
///
/// Panics: if a parser panics, an object's parts do not add up, or an error message has several
/// lines.
pub fn manifest(bytes: &[u8]) -> bool {
    anabranch_gather::exercise_cache(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match anabranch_gather::parse_manifest(text) {
        Ok(targets) => {
            for target in targets {
                let sum =
                    target.parts.iter().map(|part| part.bytes.expect("a manifest says it")).sum::<u64>();
                assert_eq!(Some(sum), target.bytes, "{}", target.name);
                assert!(target.parts.iter().all(|part| !part.holders.is_empty()), "{}", target.name);
            }
            true
        }
        Err(error) => {
            let line = format!("{error:#}");
            assert!(!anabranch_units::text::printable(&line).contains('\n'), "{line}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn corpus_inputs_are_accepted_or_refused_as_named() {
        assert!(replay("scenario_systems", super::systems) >= 8);
        assert!(replay("cli_words", super::words) >= 12);
        assert!(replay("cli_wire", super::wire) >= 11);
        assert!(replay("cli_journal", super::journal) >= 3);
        assert!(replay("cli_index", super::index) >= 4);
        assert!(replay("gather_manifest", super::manifest) >= 8);
    }
}
