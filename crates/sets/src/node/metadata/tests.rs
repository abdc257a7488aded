//! The encoding of metadata: one encoding for each value, and each limit on both sides.

use super::*;
use crate::entry::{AllAttributes, Entry, Kind, LinkPath, NodeHash, Target};
use crate::metadata::{ACCOUNT_NAME_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTRS_BYTES_MAX};
use crate::node::{Items, NODE_BYTES_MAX, Node, Snapshot, exercise};
use crate::samples::{
    Nodes, attributes, draws, file, manifest, manifest_with, metadata, metadata_by_name, name, random,
};
use crate::{Change, Difference};
use proptest::prelude::*;

fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr::new(name.as_bytes(), value).expect("a name of the test")
}

fn account(number: u32, name: &str) -> Account {
    Account::new(number, (!name.is_empty()).then_some(name)).expect("a name of the test")
}

fn owner() -> Ownership {
    Ownership { user: account(1_000, "alice"), group: account(100, "") }
}

fn encoded(metadata: &Metadata) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_metadata(&mut bytes, metadata);
    bytes
}

fn read(bytes: &[u8]) -> Result<Box<Metadata>, NodeError> {
    let mut input = Input(bytes);
    let metadata = input.metadata()?;
    input.end()?;
    Ok(metadata)
}

fn leaf(kind: Kind, metadata: Option<Box<Metadata>>) -> Vec<u8> {
    let entry = Entry { name: name("a"), kind, metadata };
    Node { items: Items::Leaf(vec![entry]), is_cut: false }.encode()
}

#[test]
fn random_metadata_survives_encoding() {
    let mut kinds = [0; 4];
    for id in 0..500 {
        let Some(found) = metadata(&mut draws("metadata", id), true) else { continue };
        kinds[usize::from(found.owner().is_some()) * 2 + usize::from(!found.xattrs().is_empty())] += 1;
        assert_eq!(read(&encoded(&found)), Ok(found), "seed {id}");
    }
    assert!(kinds[1..].iter().all(|count| *count > 20), "{kinds:?}");
}

#[test]
fn trees_with_metadata_survive_encoding() {
    let mut with_metadata = 0;
    for id in 0..100 {
        let mut nodes = Nodes::new();
        let tree = random(&mut draws("nodes", id), 200, 3);
        let root = manifest_with(&tree, metadata_by_name, &mut nodes);
        assert!(nodes.values().all(|bytes| exercise(bytes)), "seed {id}");
        let mut entries = Difference::new(&nodes, None, root);
        while let Some(change) = entries.poll().expect("the nodes are whole") {
            let Change::Added { entry, .. } = change else { continue };
            assert_eq!(entry.metadata, metadata_by_name(&entry.name, &entry.kind), "seed {id}");
            with_metadata += u64::from(entry.metadata.is_some());
        }
    }
    assert!(with_metadata > 1_000, "{with_metadata}");
}

#[test]
fn entries_without_metadata_have_their_earlier_bytes() {
    let plain = leaf(file(1), None);
    assert_eq!(plain[..6], [1, 0, 1, 0, 1, b'a']);
    assert_eq!(plain[6], 0, "the kind of a plain file");
    let with = leaf(file(1), Metadata::new(Some(owner()), Vec::new()).expect("few bytes"));
    assert_eq!(with[6], 4);
    assert_eq!(with[7..plain.len()], plain[7..]);
}

#[test]
fn changed_metadata_is_one_attribute_change() {
    let mut nodes = Nodes::new();
    let tree = [(name("a"), crate::samples::Tree::Leaf(file(1)))].into_iter().collect();
    let before = manifest(&tree, &mut nodes);
    let with =
        |_: &crate::Name, _: &Kind| Metadata::new(None, vec![xattr("user.a", b"1")]).expect("few bytes");
    let after = manifest_with(&tree, with, &mut nodes);
    let mut found = Difference::new(&nodes, Some(before), after);
    let root = found.poll().expect("whole").expect("the root changed");
    assert!(matches!(root, Change::Root { .. }) && root.is_metadata_only());
    let changed = found.poll().expect("whole").expect("the file changed");
    assert!(changed.is_metadata_only() && !changed.has_equal_owners(&Ownership::numbers));
    assert_eq!(found.poll(), Ok(None));
}

#[test]
fn owners_by_name_are_equal_under_other_numbers() {
    let with = |user: Account| {
        let owner = Ownership { user, ..owner() };
        let metadata = Metadata::new(Some(owner), vec![xattr("user.a", b"1")]).expect("few bytes");
        Entry { name: name("a"), kind: file(1), metadata }
    };
    let change = |before, after| Change::Changed { path: b"a".to_vec(), before, after };
    let there = |owner: &Ownership| match owner.user.name() {
        Some("alice") => crate::metadata::OwnerNumbers { user: 77, group: 100 },
        _ => owner.numbers(),
    };
    let equal = change(with(account(77, "alice")), with(account(1_000, "alice")));
    assert!(equal.has_equal_owners(&there) && !equal.has_equal_owners(&Ownership::numbers));
    let other = change(with(account(77, "alice")), Entry { kind: file(2), ..with(account(1_000, "alice")) });
    assert!(!other.has_equal_owners(&there));
    let plain = Entry { metadata: None, ..with(account(77, "alice")) };
    assert!(!change(plain, with(account(1_000, "alice"))).has_equal_owners(&there));
}

proptest! {
    #[test]
    fn random_metadata_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(found) = read(&bytes) {
            prop_assert_eq!(encoded(&found), bytes.clone());
        }
        exercise(&[&[1, 255, 2, 0, 0, 0], bytes.as_slice()].concat());
    }

    #[test]
    fn changed_metadata_decodes_to_itself(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let xattrs = vec![xattr("user.a", b"one"), xattr("user.b", b"two")];
        let found = Metadata::new(Some(owner()), xattrs).expect("few bytes");
        let mut bytes = leaf(file(1), found);
        let at = at.index(bytes.len());
        bytes[at] = to;
        exercise(&bytes);
    }
}

#[test]
fn other_encodings_are_refused() {
    let metadata = |error| Err(NodeError::Entry(EntryError::Metadata(error)));
    assert_eq!(read(&[0]), Err(NodeError::Kind { got: 0 }));
    assert_eq!(read(&[4]), Err(NodeError::Kind { got: 4 }));
    assert_eq!(read(&[XATTRS, 0]), Err(NodeError::Items { items: 0 }));
    assert!(read(&[OWNER, 1, 0, 2, 0]).is_ok());
    assert_eq!(read(&[OWNER, 1, 1, 0xff, 2, 0]), metadata(MetadataError::AccountName { bytes: 1 }));
    assert_eq!(read(&[OWNER, 1, 1, 0, 2, 0]), metadata(MetadataError::AccountName { bytes: 1 }));
    let none = [OWNER, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 2, 0];
    assert_eq!(read(&none), metadata(MetadataError::AccountNumber));
    let beyond = [OWNER, 0xff, 0xff, 0xff, 0xff, 0x1f, 0, 2, 0];
    assert_eq!(read(&beyond), Err(NodeError::Number));
    let list = |names: &[&str]| {
        let mut bytes = vec![XATTRS];
        put_number(&mut bytes, names.len() as u64);
        for name in names {
            put_bytes(&mut bytes, name.as_bytes());
            put_bytes(&mut bytes, b"value");
        }
        read(&bytes)
    };
    assert!(list(&["system.posix_acl_access", "user.a", "user.b"]).is_ok());
    assert_eq!(list(&["user.b", "user.a"]), metadata(MetadataError::XattrOrder));
    assert_eq!(list(&["user.a", "user.a"]), metadata(MetadataError::XattrOrder));
    for wrong in ["security.capability", "trusted.a", "system.nfs4_acl", "user.", "user", "", "user.a\0"] {
        assert_eq!(list(&[wrong]), metadata(MetadataError::XattrName), "{wrong}");
    }
    assert!(matches!(read(&[XATTRS, 0xff, 0xff, 3]), Err(NodeError::TooShort { .. })));
}

#[test]
fn metadata_has_limits() {
    let name = |bytes: usize| format!("user.{}", "x".repeat(bytes - 5));
    assert!(Xattr::new(name(XATTR_NAME_BYTES_MAX).as_bytes(), b"").is_ok());
    let long = Xattr::new(name(XATTR_NAME_BYTES_MAX + 1).as_bytes(), b"");
    assert_eq!(long, Err(MetadataError::XattrName));
    let of_value = |bytes| Metadata::new(None, vec![xattr("user.a", &vec![0; bytes])]);
    let longest = of_value(XATTRS_BYTES_MAX - 6).expect("at the limit");
    assert_eq!(of_value(XATTRS_BYTES_MAX - 5), Err(MetadataError::XattrsTooLong { bytes: 4_097 }));
    assert!(exercise(&leaf(file(1), longest)));
    let account_name = "x".repeat(ACCOUNT_NAME_BYTES_MAX);
    assert!(Account::new(1, Some(&account_name)).is_ok());
    assert!(Account::new(1, Some(&format!("{account_name}x"))).is_err());
    assert!(Account::new(1, Some("")).is_err() && Account::new(u32::MAX, None).is_err());
}

/// The item behind the cut of a node is the longest one.
#[test]
fn longest_entries_fit_into_a_node() {
    let account = |letter: &str| account(u32::MAX - 1, &letter.repeat(ACCOUNT_NAME_BYTES_MAX));
    let owner = || Some(Ownership { user: account("u"), group: account("g") });
    // Names of 7 bytes, each without a value, take the most bytes beside their own.
    let names = (0..XATTRS_BYTES_MAX / 8).map(|n| xattr(&format!("user.{n:03}"), b"")).collect();
    let of_file = Metadata::new(owner(), names).expect("at the limit");
    let target = Target::new(&[b'x'; 4_095]).expect("the longest");
    let link = Kind::SymbolicLink { modified: attributes(0, 0).modified, target };
    let of_link = Metadata::new(owner(), Vec::new()).expect("few bytes");
    for (kind, metadata) in [(file(1), of_file), (link, of_link)] {
        let item = leaf(kind, metadata).len() + crate::NAME_BYTES_MAX;
        assert!(crate::ITEM_BYTES_CUT + item < NODE_BYTES_MAX, "{item}");
    }
}

#[test]
fn links_have_no_attributes_of_their_own() {
    let of = |xattrs| Metadata::new(Some(owner()), xattrs).expect("few bytes");
    let link = || Kind::SymbolicLink {
        modified: attributes(0, 0).modified,
        target: Target::new(b"x").expect("a target"),
    };
    let refused = Err(NodeError::Entry(EntryError::MetadataOfLink));
    assert!(exercise(&leaf(link(), of(Vec::new()))));
    assert_eq!(Node::decode(&leaf(link(), of(vec![xattr("user.a", b"")]))), refused);
    let hard = Kind::HardLink { path: LinkPath::new(b"!").expect("a path") };
    assert_eq!(Node::decode(&leaf(hard, of(Vec::new()))), refused);
}

#[test]
fn roots_have_metadata_on_request() {
    let metadata = Metadata::new(Some(owner()), Vec::new()).expect("few bytes");
    let root = AllAttributes { attributes: attributes(0o755, 0), metadata };
    let with = Snapshot { root: Some(root), tree: NodeHash([1; 32]) };
    assert_eq!(Snapshot::decode(&with.encode()), Ok(with.clone()));
    let plain = Snapshot { root: Some(attributes(0o755, 0).into()), tree: NodeHash([1; 32]) };
    assert_eq!(plain.encode()[..3], [1, 255, 1]);
    assert_ne!(with.id(), plain.id());
}
