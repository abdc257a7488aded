//! Deletes between random trees, compared with the lists of their paths.

use super::*;
use crate::filter::Options;
use crate::samples::{Nodes, Tree, draws, edit, file, manifest, name, paths, random};
use std::collections::BTreeMap;

type Directory = BTreeMap<crate::Name, Tree>;

fn surplus(before: &Directory, after: &Directory, filter: &Filter) -> Surplus {
    let (mut old, mut new) = (Nodes::new(), Nodes::new());
    let (before, after) = (manifest(before, &mut old), manifest(after, &mut new));
    Surplus::between((&old, before), (&new, after), filter).expect("both manifests are whole")
}

fn filter(rules: &[&str]) -> Filter {
    let filter = rules.iter().map(|rule| (*rule).to_owned()).collect();
    Filter::new(&Options { filter, ..Options::default() }).expect("rules of the test")
}

fn found(surplus: &Surplus) -> Vec<String> {
    surplus.entries().iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect()
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Some 2,000 pairs of trees, with and without a filter.
fn for_random_pairs(mut check: impl FnMut(&Directory, &Directory, &Filter, u64)) {
    let filters = [filter(&[]), filter(&["- *x", "- /1*/**"]), filter(&["+ *\u{fffd}", "- *"])];
    for id in 0..700 {
        let mut rng = draws("deletes", id);
        let before = random(&mut rng, 12, 3);
        let mut after = before.clone();
        let edits = rng.below(8);
        edit(&mut rng, &mut after, edits);
        if rng.below(10) == 0 {
            after = random(&mut rng, 6, 2);
        }
        filters.iter().for_each(|filter| check(&before, &after, filter, id));
    }
}

#[test]
fn paths_of_the_new_snapshot_are_never_deleted() {
    for_random_pairs(|before, after, filter, id| {
        let (old, new) = (paths(before), paths(after));
        for entry in surplus(before, after, filter).entries() {
            assert!(!new.contains_key(&entry.path), "seed {id}: {entry:?}");
            assert!(old.contains_key(&entry.path), "seed {id}: {entry:?}");
        }
    });
}

#[test]
fn excluded_entries_and_directories_around_them_stay() {
    for_random_pairs(|before, after, filter, id| {
        let surplus = surplus(before, after, filter);
        let gone: BTreeSet<&[u8]> = surplus.entries().iter().map(|entry| &*entry.path).collect();
        for (path, kind) in paths(before) {
            if !is_in_scope(filter, &path, &kind) {
                assert!(!gone.contains(&*path), "seed {id}: {path:?}");
                assert!(!gone.iter().any(|other| is_below(&path, other)), "seed {id}: around {path:?}");
            }
        }
    });
}

#[test]
fn every_other_entry_that_the_source_lacks_is_listed() {
    for_random_pairs(|before, after, filter, id| {
        let (old, new, surplus) = (paths(before), paths(after), surplus(before, after, filter));
        let stays = |path: &[u8], kind: &Kind| new.contains_key(path) || !is_in_scope(filter, path, kind);
        let expected: BTreeSet<&[u8]> = old
            .iter()
            .filter(|(path, kind)| !stays(path, kind))
            .filter(|(path, _)| !old.iter().any(|(other, kind)| is_below(other, path) && stays(other, kind)))
            .map(|(path, _)| &**path)
            .collect();
        let listed: BTreeSet<&[u8]> = surplus.entries().iter().map(|entry| &*entry.path).collect();
        assert_eq!(listed, expected, "seed {id}");
        assert_eq!(surplus.destination_entries(), old.len() as u64);
    });
}

#[test]
fn directories_stand_behind_their_contents() {
    for_random_pairs(|before, after, filter, id| {
        let surplus = surplus(before, after, filter);
        let entries = surplus.entries();
        for (at, entry) in entries.iter().enumerate() {
            let late = entries[at..].iter().find(|later| is_below(&later.path, &entry.path));
            assert_eq!(late, None, "seed {id}: {entry:?}");
        }
    });
}

#[test]
fn only_included_entries_give_way_to_another_kind() {
    let directory = |below: &[&str]| {
        let below = below.iter().map(|text| (name(text), Tree::Leaf(file(1)))).collect();
        Tree::Directory(crate::samples::attributes(0o755, 0), below)
    };
    let before: Directory = [("a", directory(&["x"])), ("b", Tree::Leaf(file(1))), ("c", directory(&[]))]
        .map(|(text, tree)| (name(text), tree))
        .into();
    let after: Directory = [("a", Tree::Leaf(file(2))), ("b", directory(&["y"])), ("c", Tree::Leaf(file(2)))]
        .map(|(text, tree)| (name(text), tree))
        .into();
    let surplus = surplus(&before, &after, &filter(&["- /c/"]));
    assert_eq!(found(&surplus), ["a/x"]);
    assert_eq!(["a", "b", "c"].map(|path| surplus.is_replaced(path.as_bytes())), [true, true, false]);
}

#[test]
fn limits_of_deletes_are_exact() {
    for entries in 0..200 {
        for percent in 0..=100 {
            let most = entries * u64::from(percent) / 100;
            let max = MaxDelete::Percent(percent);
            assert!(max.allows(most, entries) && !max.allows(most + 1, entries), "{percent} % of {entries}");
        }
        assert!(MaxDelete::Entries(entries).allows(entries, 0));
        assert!(!MaxDelete::Entries(entries).allows(entries + 1, u64::MAX));
    }
    assert!(MaxDelete::Percent(100).allows(u64::MAX, u64::MAX));
}

#[test]
fn limit_and_empty_source_refuse_all_deletes() {
    let tree = |names: &[&str]| -> Directory {
        names.iter().map(|text| (name(text), Tree::Leaf(file(1)))).collect()
    };
    let (ten, open) = (tree(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]), filter(&[]));
    let nine = tree(&["a", "b", "c", "d", "e", "f", "g", "h", "i"]);
    let eight = tree(&["a", "b", "c", "d", "e", "f", "g", "h"]);
    assert_eq!(surplus(&ten, &nine, &open).check(MaxDelete::default()), Ok(()));
    let refused = surplus(&ten, &eight, &open).check(MaxDelete::default());
    let max = MaxDelete::Percent(10);
    assert_eq!(refused, Err(DeleteRefusal::TooMany { deletes: 2, entries: 10, max }));
    let said = refused.expect_err("it is refused").to_string();
    assert!(said.starts_with("2 of 10 entries would be deleted, and --max-delete 10%"), "{said}");
    let all = surplus(&ten, &tree(&[]), &open);
    assert_eq!(all.check(MaxDelete::Percent(100)), Err(DeleteRefusal::EmptySource));
}

#[test]
fn working_files_are_never_listed() {
    let tree = |names: &[&str]| -> Directory {
        names.iter().map(|text| (name(text), Tree::Leaf(file(1)))).collect()
    };
    let mut before = tree(&["a", ".anabranch-1.sent"]);
    before.insert(name("d"), Tree::Directory(crate::samples::attributes(0o755, 0), tree(&[".Anabranch-2"])));
    assert_eq!(found(&surplus(&before, &tree(&["b"]), &filter(&[]))), ["a"]);
}

#[test]
fn limits_are_read_as_they_are_written() {
    for text in ["0%", "10%", "100%", "0", "18446744073709551615"] {
        assert_eq!(text.parse::<MaxDelete>().map(|max| max.to_string()).as_deref(), Ok(text));
    }
    for bad in ["", "%", "101%", "-1", "+1", "1.5%", "x", "18446744073709551616", "10 %"] {
        let said = bad.parse::<MaxDelete>().expect_err(bad).to_string();
        assert!(said.contains("a percentage from 0% to 100%"), "{said}");
    }
}
