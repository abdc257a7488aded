//! Snapshots of directories, as a user makes them.

use crate::{answer, text};
use std::path::Path;

/// Runs `replicate manifest --json`. Returns the exit code and the answer.
fn manifest(folder: &Path, more: &[&str]) -> (Option<i32>, serde_json::Value) {
    let folder = folder.to_str().expect("a plain path");
    let said = answer(&[&["replicate", "manifest", folder, "--json"], more].concat());
    let json = serde_json::from_slice(&said.stdout);
    (said.status.code(), json.unwrap_or_else(|error| panic!("{error}: {}", text(&said.stderr))))
}

fn write(folder: &Path, name: &str, content: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("below the folder")).expect("it can be made");
    std::fs::write(&path, content).expect("it can be written");
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for path in path.ancestors().take_while(|path| path.starts_with(folder)) {
        std::fs::File::open(path).and_then(|file| file.set_modified(time)).expect("it is ours");
    }
}

#[test]
fn equal_directories_have_equal_snapshots() {
    let (one, two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    for folder in [one.path(), two.path()] {
        write(folder, "d/a", "content");
        write(folder, "b", "");
    }
    let (code, first) = manifest(one.path(), &[]);
    assert_eq!((code, &first["files"], &first["directories"]), (Some(0), &2.into(), &1.into()));
    assert_eq!(first["snapshot"].as_str().map(str::len), Some(64));
    assert_eq!(manifest(two.path(), &[]).1["snapshot"], first["snapshot"]);
    write(two.path(), "d/a", "CONTENT");
    let other = manifest(two.path(), &[]).1;
    assert_ne!(other["snapshot"], first["snapshot"]);
    assert_eq!(other["files_bytes"], first["files_bytes"]);
}

#[test]
fn snapshots_respect_filter_and_index_options() {
    let all = tempfile::tempdir().expect("a folder");
    let folder = all.path().join("tree");
    write(&folder, "a.csv", "1");
    let plain = manifest(&folder, &[]).1;
    write(&folder, "a.tmp", "2");
    write(all.path(), "rules", "- *.tmp\n");
    let path = |name: &str| all.path().join(name).to_str().expect("a plain path").to_owned();
    let (rules, index) = (path("rules"), path("index"));
    let options = ["--filter-from", &rules, "--index", &index];
    let filtered = manifest(&folder, &options).1;
    assert_eq!(filtered["snapshot"], plain["snapshot"]);
    assert_eq!((&filtered["excluded_entries"], &filtered["hashed_files"]), (&1.into(), &1.into()));
    assert_eq!(manifest(&folder, &options).1["snapshot"], plain["snapshot"]);
    assert!(Path::new(&index).is_file());
}

#[test]
fn incomplete_snapshots_have_exit_code_3() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "a", "1");
    write(folder.path(), "ca.key", "-----BEGIN PRIVATE KEY-----");
    let (code, json) = manifest(folder.path(), &[]);
    assert_eq!(
        (code, &json["is_complete"], &json["unreadable_entries"]),
        (Some(3), &false.into(), &1.into())
    );
    assert!(json["problems"][0]["path"].as_str().is_some_and(|path| path.ends_with("ca.key")), "{json}");
    let said = answer(&["replicate", "manifest", folder.path().to_str().expect("a plain path")]);
    assert_eq!(said.status.code(), Some(3));
    assert!(text(&said.stderr).contains("ca.key: "), "{}", text(&said.stderr));
    assert!(text(&said.stdout).contains("unreadable, and not in the snapshot: 1"), "{}", text(&said.stdout));
}
