//! Comparisons of random trees, against lists of their paths.

use super::*;
use crate::filter::Options;
use crate::metadata::Ownership;
use crate::samples::{Nodes, Tree, attributes, draws, edit, file, manifest, name, paths, random};
use std::collections::BTreeMap;

type Directory = BTreeMap<crate::Name, Tree>;

fn compared(before: Option<&Directory>, after: &Directory, scope: Option<&Filter>) -> Comparison {
    let (mut old, mut new) = (Nodes::new(), Nodes::new());
    let before = before.map(|before| manifest(before, &mut old));
    let after = manifest(after, &mut new);
    Comparison::between((&old, before), (&new, after), scope, &Ownership::numbers)
        .expect("both manifests are whole")
}

fn leaf(content: u64) -> Tree {
    Tree::Leaf(file(content))
}

fn directory(entries: impl IntoIterator<Item = (&'static str, Tree)>) -> Directory {
    entries.into_iter().map(|(text, tree)| (name(text), tree)).collect()
}

/// A file with the content of `file(content)` and another mode.
fn executable(content: u64) -> Tree {
    let Kind::File { size_bytes, content, .. } = file(content) else { unreachable!("a file") };
    Tree::Leaf(Kind::File { attributes: attributes(0o755, 1_700_000_000), size_bytes, content })
}

fn everything() -> Filter {
    Filter::default()
}

#[test]
fn each_kind_of_difference_is_counted_and_named() {
    let before = directory([
        ("changed", leaf(1)),
        ("equal", leaf(2)),
        ("mode", leaf(3)),
        ("old", leaf(4)),
        ("surplus", Tree::Directory(attributes(0o755, 9), directory([("x", leaf(5))]))),
    ]);
    let after = directory([
        ("changed", leaf(11)),
        ("equal", leaf(2)),
        ("missing", leaf(6)),
        ("mode", executable(3)),
        ("new", leaf(4)),
    ]);
    let found = compared(Some(&before), &after, Some(&everything()));
    let entry = |kind, path: &str, from: Option<&str>| DifferentEntry {
        kind,
        path: path.to_owned(),
        from: from.map(str::to_owned),
    };
    let named = vec![
        entry(DifferenceKind::Changed, "changed", None),
        entry(DifferenceKind::Missing, "missing", None),
        entry(DifferenceKind::Metadata, "mode", None),
        entry(DifferenceKind::Renamed, "new", Some("old")),
        entry(DifferenceKind::Surplus, "surplus/", None),
        entry(DifferenceKind::Surplus, "surplus/x", None),
    ];
    assert_eq!(found.named, named);
    let words = "1 missing, 1 changed, 1 renamed, 1 with other attributes, 2 only there";
    assert_eq!((found.in_words("there").as_str(), found.differences()), (words, 6));
    assert_eq!(compared(Some(&after), &after, Some(&everything())).differences(), 0);
}

#[test]
fn without_a_scope_surplus_entries_do_not_count() {
    let (before, after) = (directory([("a", leaf(1)), ("b", leaf(2))]), directory([("c", leaf(2))]));
    let found = compared(Some(&before), &after, None);
    assert_eq!((found.missing, found.renamed, found.surplus), (1, 0, None));
}

#[test]
fn destination_without_the_directory_lacks_all_entries() {
    let found = compared(None, &directory([("a", leaf(1)), ("b", leaf(2))]), Some(&everything()));
    let paths: Vec<_> = found.named.iter().map(|entry| &entry.path[..]).collect();
    assert_eq!((paths, found.missing, found.surplus), (vec![".", "a", "b"], 3, Some(0)));
}

#[test]
fn named_entries_are_bounded() {
    let many = |n: u64| (0..n).map(|i| (name(&format!("{i:0200}")), leaf(i + 1))).collect::<Directory>();
    let found = compared(None, &many(1_000), None);
    assert_eq!((found.named.len(), found.missing), (NAMED_MAX, 1_001));
    let mut forged = found;
    forged.named[3].path = "x".repeat(NAMED_BYTES_MAX);
    forged.bound();
    assert_eq!(forged.named.len(), 3);
}

/// The counts agree with the lists of all paths.
#[test]
fn counts_of_random_trees_agree_with_their_paths() {
    let options = Options { filter: vec!["- *x".to_owned()], ..Options::default() };
    let scopes = [everything(), Filter::new(&options).expect("a rule of the test")];
    for id in 0..500 {
        let mut rng = draws("comparisons", id);
        let before = random(&mut rng, 12, 3);
        let mut after = before.clone();
        let edits = rng.below(8);
        edit(&mut rng, &mut after, edits);
        let (old, new) = (paths(&before), paths(&after));
        let counts = |scope: &Filter| {
            let found = compared(Some(&before), &after, Some(scope));
            (found.missing + found.renamed, found.surplus.unwrap_or(0) + found.renamed, found)
        };
        let added = new.keys().filter(|path| !old.contains_key(*path)).count() as u64;
        let removed = old.iter().filter(|(path, _)| !new.contains_key(*path)).count() as u64;
        let (missing, surplus, found) = counts(&scopes[0]);
        // An entry that changes its kind to or from a directory is removed and added.
        assert!(missing >= added && missing - added == surplus - removed, "seed {id}: {found:?}");
        assert_eq!(found.differences() == 0, before == after, "seed {id}: {found:?}");
        let (of_scope, ..) = counts(&scopes[1]);
        assert_eq!(of_scope, missing, "seed {id}: the scope is about surplus entries only");
        let is_gone =
            |path: &[u8], kind: &Kind| !new.contains_key(path) && is_in_scope(&scopes[1], path, kind);
        let least = old.iter().filter(|(path, kind)| is_gone(path, kind)).count() as u64;
        let (_, in_scope, _) = counts(&scopes[1]);
        assert!((least..=surplus).contains(&in_scope), "seed {id}: {in_scope} of {least} to {surplus}");
    }
}
