//! Snapshots of directories, as a user makes them.

use crate::emulate::stage;
use crate::net::{LocalDaemons, Net, TWO, noise, run};
use crate::{answer, text};
use std::os::unix::fs::{MetadataExt as _, symlink};
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

/// Three sites in a line over emulated links of 40 Mbit/s: a source, a relay and a destination.
const LINE: &str = r#"
[[site]]
name = "nyc"
[[site]]
name = "ams"
[[site]]
name = "sin"
[[cable]]
between = ["nyc", "ams"]
capacity = "40 Mbit/s"
delay = "5 ms"
[[cable]]
between = ["ams", "sin"]
capacity = "40 Mbit/s"
delay = "5 ms"
"#;

/// Snapshot id of a site's directory.
fn snapshot(net: &Net, site: &str, name: &str) -> String {
    manifest(&net.path(site, name), &[]).1["snapshot"].as_str().expect("an id").to_owned()
}

/// Bytes that arrive at `sin` while `data/` is sent there once.
fn sent_bytes(net: &mut Net, more: &[&str]) -> u64 {
    let before = net.arrived_at("sin");
    let arguments = ["data/", "--from", "nyc", "--to", "ams,sin"];
    net.send(&[&arguments[..], more].concat()).finish().expect_done();
    net.arrived_at("sin") - before
}

#[test]
fn directory_arrives_whole_and_later_only_its_changes() {
    let Some(_alone) = stage(&[]) else { return };
    let Some(mut net) = Net::new(LINE) else { return };
    let source = net.path("nyc", "data");
    std::fs::create_dir_all(source.join("a/empty")).expect("the folder is ours");
    for number in 0..400 {
        let small = noise(number, 4_000);
        std::fs::write(source.join(format!("a/{number:03}")), small).expect("the folder is ours");
    }
    std::fs::write(source.join("large"), noise(1_000, 3 << 20)).expect("the folder is ours");
    symlink("large", source.join("link")).expect("the folder is ours");
    std::fs::hard_link(source.join("large"), source.join("second name")).expect("the folder is ours");
    net.start_all();
    let content = 400 * 4_000 + (3 << 20);
    let sent = sent_bytes(&mut net, &[]);
    assert!((content..content * 11 / 10).contains(&sent), "{sent} bytes for {content}");
    let same = |net: &Net| {
        let id = snapshot(net, "nyc", "data");
        assert_eq!([snapshot(net, "ams", "data"), snapshot(net, "sin", "data")], [id.clone(), id]);
    };
    same(&net);
    let target = net.path("sin", "data");
    let of = |path: &Path| std::fs::metadata(path).expect("it arrived").ino();
    assert_eq!(of(&target.join("large")), of(&target.join("second name")));

    let sent = sent_bytes(&mut net, &[]);
    assert!(sent < 30_000, "{sent} bytes for an unchanged directory");
    std::fs::rename(source.join("a"), source.join("b")).expect("ours");
    std::fs::write(source.join("b/007"), noise(7_007, 5_000)).expect("ours");
    for site in ["ams", "sin"] {
        std::fs::rename(net.path(site, "data/a"), net.path(site, "data/old")).expect("ours");
    }
    let sent = sent_bytes(&mut net, &[]);
    assert!(sent < 150_000, "{sent} bytes for a renamed directory and one changed file");
    for site in ["ams", "sin"] {
        std::fs::remove_dir_all(net.path(site, "data/old")).expect("ours");
    }
    let sent = sent_bytes(&mut net, &[]);
    assert!(sent < 150_000, "{sent} bytes for the times of directories");
    same(&net);
}

#[test]
fn killed_destination_goes_on_with_a_directory() {
    let Some(_alone) = stage(&[]) else { return };
    let Some(mut net) = Net::new(LINE) else { return };
    let source = net.path("nyc", "data");
    std::fs::create_dir_all(&source).expect("the folder is ours");
    for number in 0..60 {
        let bytes = noise(number, 200_000);
        std::fs::write(source.join(format!("{number}")), bytes).expect("the folder is ours");
    }
    net.start_all();
    let running = net.send(&["data/", "--from", "nyc", "--to", "sin"]);
    running.verified(4_000_000);
    net.kill("sin");
    net.start("sin");
    running.finish().expect_done();
    assert_eq!(snapshot(&net, "sin", "data"), snapshot(&net, "nyc", "data"));
    let arrived = net.arrived_at("sin");
    assert!(arrived < 12_000_000 * 13 / 10, "{arrived} bytes for 12 MB");
}

/// The destination has the head and some contents of the source as it was before.
#[test]
fn interrupted_directory_arrives_as_it_is_later() {
    let Some(_alone) = stage(&[]) else { return };
    let Some(mut net) = Net::new(LINE) else { return };
    for site in ["nyc", "sin"] {
        std::fs::create_dir_all(net.path(site, "data")).expect("the folder is ours");
    }
    for number in 0..60 {
        net.put("nyc", &format!("data/{number}"), number, 300_000);
    }
    net.put("sin", "data/0", 0, 300_000);
    net.start_all();
    let running = net.send(&["data/", "--from", "nyc", "--to", "sin"]);
    running.verified(1_000_000);
    running.interrupt();
    running.finish();
    net.put("nyc", "data/0", 100, 100_000);
    net.put("nyc", "data/new", 101, 150_000);
    std::fs::rename(net.path("nyc", "data/59"), net.path("nyc", "data/a")).expect("ours");
    net.send(&["data/", "--from", "nyc", "--to", "sin", "--replace"]).finish().expect_done();
    assert_eq!(snapshot(&net, "sin", "data"), snapshot(&net, "nyc", "data"));
    net.put("nyc", "data/0", 102, 100_000);
    net.send(&["data/", "--from", "nyc", "--to", "sin"]).finish().expect_done();
    assert_eq!(snapshot(&net, "sin", "data"), snapshot(&net, "nyc", "data"));
}

#[test]
fn file_changed_at_a_destination_is_left_until_replaced() {
    let local = LocalDaemons::start(TWO, &["s", "d"]);
    let send = |more: &[&str]| {
        let first = ["send", "data/", "--quiet", "--controller", local.address(), "--from", "s", "--to", "d"];
        run(local.command(&[&first, more].concat()))
    };
    write(&local.path("s/data"), "x", "first");
    write(&local.path("s/data"), "y", "first");
    assert_eq!(send(&[]).0, Some(0));
    std::fs::write(local.path("d/data/x"), "by a user").expect("ours");
    std::fs::write(local.path("s/data/x"), "second").expect("ours");
    std::fs::write(local.path("s/data/y"), "second").expect("ours");
    let (code, said) = send(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("data/x: changed here by another program, and left"), "{said}");
    let read = |name: &str| std::fs::read_to_string(local.path("d/data").join(name)).expect("it is there");
    assert_eq!((read("x"), read("y")), ("by a user".to_owned(), "second".to_owned()));
    assert_eq!(send(&["--replace"]).0, Some(0));
    assert_eq!(read("x"), "second");
    let refused = send(&["--as", "../data/"]);
    assert_eq!(refused.0, Some(2), "{}", refused.1);
    write(&local.path("s/other"), "x", "");
    let first = ["send", "other", "--quiet", "--controller", local.address(), "--from", "s", "--to", "d"];
    let hint = run(local.command(&first));
    assert!(hint.1.contains("`other/`"), "{}", hint.1);
}
