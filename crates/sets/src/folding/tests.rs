//! Foldings of names, and collisions of random directories against a comparison of all pairs.

use super::*;
use crate::samples::{Nodes, Tree, attributes, draws, file, manifest, name};
use proptest::prelude::*;

type Directory = BTreeMap<Name, Tree>;

fn leaf() -> Tree {
    Tree::Leaf(file(1))
}

fn directory(names: &[&str]) -> Directory {
    names.iter().map(|text| (name(text), leaf())).collect()
}

fn found(tree: &Directory, foldings: &[Folding]) -> Vec<Collisions> {
    let mut nodes = Nodes::new();
    let snapshot = manifest(tree, &mut nodes);
    Collisions::find(&nodes, snapshot, foldings).expect("the manifest is whole")
}

fn are_equal(folding: Folding, a: &str, b: &str) -> bool {
    folding.folded(a.as_bytes()) == folding.folded(b.as_bytes())
}

/// Number of names that equal an earlier one, by a comparison of all pairs.
fn plain_count(tree: &Directory, folding: Folding) -> u64 {
    let names: Vec<&Name> = tree.keys().collect();
    let equals_earlier = |number: &usize| {
        let folded = |name: &Name| folding.folded(name.as_bytes()).into_owned();
        names[..*number].iter().any(|earlier| folded(earlier) == folded(names[*number]))
    };
    let below = tree.values().map(|tree| match tree {
        Tree::Directory(_, below) => plain_count(below, folding),
        Tree::Leaf(_) => 0,
    });
    (0..names.len()).filter(equals_earlier).count() as u64 + below.sum::<u64>()
}

#[test]
fn foldings_ignore_case_and_form_as_named() {
    let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
    for (a, b, by_case, by_form) in [
        ("README", "readme", true, false),
        (composed, decomposed, false, true),
        ("CAF\u{c9}", composed, true, false),
        ("a", "b", false, false),
        // The final sigma, and the long s.
        ("\u{3a3}", "\u{3c2}", true, false),
        ("\u{17f}", "S", true, false),
        // The dotless i is another letter than i.
        ("\u{131}", "i", false, false),
        ("\u{131}", "I", false, false),
    ] {
        assert_eq!(are_equal(Folding::CASE, a, b), by_case, "{a} {b}");
        assert_eq!(are_equal(Folding::FORM, a, b), by_form, "{a} {b}");
        assert_eq!(are_equal(Folding::CASE_AND_FORM, a, b), by_case || by_form, "{a} {b}");
        assert!(!are_equal(Folding::NONE, a, b));
    }
    assert!(are_equal(Folding::CASE_AND_FORM, "CAFE\u{301}", composed));
    // Full folding has several characters for one.
    assert!(are_equal(Folding::CASE_AND_FORM, "stra\u{df}e", "STRASSE"));
    assert!(!are_equal(Folding::CASE, "stra\u{df}e", "STRASSE"));
}

#[test]
fn names_without_utf8_stay_as_they_are() {
    for folding in Folding::LOSSY {
        assert_eq!(&*folding.folded(b"A\xff"), b"A\xff");
    }
}

#[test]
fn first_pair_and_number_of_entries_are_reported() {
    let mut tree = directory(&["LICENSE", "License", "license", "other"]);
    let below = directory(&["x", "y", "X"]);
    tree.insert(name("src"), Tree::Directory(attributes(0o755, 0), below));
    let all = found(&tree, &Folding::LOSSY);
    let foldings: Vec<Folding> = all.iter().map(|found| found.folding).collect();
    assert_eq!(foldings, [Folding::CASE, Folding::CASE_AND_FORM]);
    for collisions in all {
        assert_eq!(collisions.entries, 3);
        assert_eq!(collisions.first, ("License".to_owned(), "LICENSE".to_owned()));
    }
    let only_below = Directory::from([(name("src"), tree.remove(&name("src")).expect("it was added"))]);
    let collisions = found(&only_below, &[Folding::CASE]).remove(0);
    assert_eq!(
        collisions.to_string(),
        "the file system ignores case in names, and 1 entry needs the name of another entry: rename one of each; the \
         first is `src/x` beside `src/X`"
    );
}

#[test]
fn pair_of_two_forms_is_shown_by_its_bytes() {
    let tree = directory(&["caf\u{e9}", "cafe\u{301}"]);
    let collisions = found(&tree, &Folding::LOSSY);
    assert_eq!(collisions.len(), 2);
    assert_eq!(collisions[0].first, ("caf\\xc3\\xa9".to_owned(), "cafe\\xcc\\x81".to_owned()));
}

#[test]
fn same_names_of_separate_directories_do_not_collide() {
    let of = |text: &str| Tree::Directory(attributes(0o755, 0), directory(&[text]));
    let tree = Directory::from([(name("a"), of("x")), (name("b"), of("X"))]);
    assert!(found(&tree, &Folding::LOSSY).is_empty());
}

#[test]
fn collisions_far_apart_in_a_directory_are_found() {
    let mut tree = crate::samples::flat(0..5_000);
    tree.insert(name("FILE-00004999"), leaf());
    let collisions = found(&tree, &[Folding::CASE]).remove(0);
    assert_eq!((collisions.entries, &*collisions.first.1), (1, "FILE-00004999"));
}

#[test]
fn missing_node_is_an_error() {
    let mut nodes = Nodes::new();
    let snapshot = manifest(&directory(&["a"]), &mut nodes);
    nodes.retain(|hash, _| *hash == snapshot);
    let missing = Collisions::find(&nodes, snapshot, &Folding::LOSSY).expect_err("the tree is missing");
    assert!(matches!(missing, ReadError::Missing { .. }), "{missing}");
}

/// Text of letters that have cases and forms.
fn letters() -> impl Strategy<Value = String> {
    let letters = prop::sample::select(vec![
        'a', 'A', '\u{e9}', '\u{c9}', 'e', 'E', '\u{301}', '\u{df}', 's', 'S', '\u{3c3}', '\u{3c2}',
        '\u{131}',
    ]);
    prop::collection::vec(letters, 1..4).prop_map(|letters| letters.into_iter().collect())
}

proptest! {
    #[test]
    fn folding_twice_changes_nothing(letters in prop::collection::vec(any::<char>(), 0..8)) {
        let text: String = letters.into_iter().collect();
        for folding in Folding::LOSSY {
            let once = folding.folded(text.as_bytes()).into_owned();
            prop_assert_eq!(&*folding.folded(&once), &once[..]);
        }
    }

    #[test]
    fn wider_folding_keeps_equal_names_equal(a in letters(), b in letters()) {
        if are_equal(Folding::CASE, &a, &b) || are_equal(Folding::FORM, &a, &b) {
            prop_assert!(are_equal(Folding::CASE_AND_FORM, &a, &b), "{} {}", a, b);
        }
    }

    #[test]
    fn collisions_equal_a_comparison_of_pairs(id: u64, sizes in prop::collection::vec(0..12u64, 1..4)) {
        let mut random = draws("folding", id);
        let alphabet = ["a", "A", "\u{e9}", "e\u{301}", "\u{c9}", "b"];
        let mut tree = Directory::new();
        for (number, size) in sizes.into_iter().enumerate() {
            let mut below = Directory::new();
            for _ in 0..size {
                let letter = |random: &mut anabranch_units::RandomStream| alphabet[random.below(6) as usize];
                below.insert(name(&format!("{}{}", letter(&mut random), letter(&mut random))), leaf());
            }
            let of = ["a", "A", "c"][number];
            tree.insert(name(of), Tree::Directory(attributes(0o755, 0), below));
        }
        let all = found(&tree, &Folding::LOSSY);
        for folding in Folding::LOSSY {
            let counted = all.iter().find(|found| found.folding == folding).map_or(0, |found| found.entries);
            prop_assert_eq!(counted, plain_count(&tree, folding));
        }
    }
}
