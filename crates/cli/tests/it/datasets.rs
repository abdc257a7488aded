//! Snapshots of directories, as a user makes them, and mirrors of them.

use crate::emulate::stage;
use crate::net::{LocalDaemons, Net, TWO, noise, run, working_files};
use crate::{answer, text};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::Stdio;

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
fn new_destination_costs_the_others_no_bytes() {
    let Some(_alone) = stage(&[]) else { return };
    let Some(mut net) = Net::new(LINE) else { return };
    let source = net.path("nyc", "data");
    std::fs::create_dir(&source).expect("the folder is ours");
    std::fs::write(source.join("old"), noise(1, 8 << 20)).expect("the folder is ours");
    net.start_all();
    net.send(&["data/", "--from", "nyc", "--to", "sin"]).finish().expect_done();
    std::fs::write(source.join("new"), noise(2, 1 << 20)).expect("the folder is ours");
    let sent = sent_bytes(&mut net, &[]);
    assert!(sent < 2 << 20, "{sent} bytes for 1 MiB");
    assert_eq!(snapshot(&net, "ams", "data"), snapshot(&net, "nyc", "data"));
    assert_eq!(snapshot(&net, "sin", "data"), snapshot(&net, "nyc", "data"));
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
fn resumed_directory_has_the_current_content() {
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
    let errors = local.path("errors");
    let with_errors = ["--errors", errors.to_str().expect("plain")];
    let (code, said) = send(&with_errors);
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("1 of 1 destinations with conflicts (d): ") && !said.contains("(d): d: "),
        "{said}"
    );
    let listed = std::fs::read_to_string(&errors).expect("it is written");
    let (site, rest) = listed.split_once('\t').expect("a line");
    assert!(site == "d" && rest.starts_with("conflict\t") && rest.ends_with("data/x\n"), "{listed}");
    assert!(said.contains("data/x: changed here by another program or source, and left"), "{said}");
    let read = |name: &str| std::fs::read_to_string(local.path("d/data").join(name)).expect("it is there");
    assert_eq!((read("x"), read("y")), ("by a user".to_owned(), "second".to_owned()));
    assert_eq!(send(&[&["--replace"], &with_errors[..]].concat()).0, Some(0));
    assert_eq!((read("x"), std::fs::read(&errors).expect("it is emptied").len()), ("second".to_owned(), 0));
    let (code, said) = send(&["--errors", "/dev/null/x"]);
    assert_eq!((code, said.contains("--errors /dev/null/x: ")), (Some(2), true), "{said}");
    let refused = send(&["--as", "../data/"]);
    assert_eq!(refused.0, Some(2), "{}", refused.1);
    write(&local.path("s/other"), "x", "");
    let first = ["send", "other", "--quiet", "--controller", local.address(), "--from", "s", "--to", "d"];
    let hint = run(local.command(&first));
    assert!(hint.1.contains("`other/`"), "{}", hint.1);
}

/// A source `s`, a destination `d`, and the directory `data` with files `00` to `19` at both.
struct Mirror {
    local: LocalDaemons,
}

impl Mirror {
    fn new() -> Self {
        let mirror = Self { local: LocalDaemons::start(TWO, &["s", "d"]) };
        for number in 0..20 {
            write(&mirror.local.path("s/data"), &format!("{number:02}"), "content");
        }
        assert_eq!(mirror.sync(&[]).0, Some(0));
        mirror
    }

    /// Runs `sync` with these arguments. Returns its exit code and its output.
    fn sync_of(&self, directory: &str, more: &[&str]) -> (Option<i32>, String) {
        self.run("sync", directory, more)
    }

    /// Runs a verb with these arguments. Returns its exit code and its output.
    fn run(&self, verb: &str, directory: &str, more: &[&str]) -> (Option<i32>, String) {
        let first = [verb, directory, "--controller", self.local.address(), "--from", "s", "--to", "d"];
        let mut command = self.local.command(&[&first, more].concat());
        let said = command.stdout(Stdio::piped()).output().expect("the command runs");
        (said.status.code(), text(&said.stdout) + &text(&said.stderr))
    }

    fn sync(&self, more: &[&str]) -> (Option<i32>, String) {
        self.sync_of("data/", more)
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.local.path("s/data").join(name)).expect("it is the source's");
    }

    /// Names at the destination, without working files.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.local.path("d/data")).expect("it is there");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("ours").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }

    fn is_equal(&self) -> bool {
        let id = |path: &str| manifest(&self.local.path(path), &[]).1["snapshot"].clone();
        id("s/data") == id("d/data")
    }
}

#[test]
fn sync_deletes_only_with_the_option() {
    let mirror = Mirror::new();
    mirror.remove("07");
    let (code, said) = mirror.sync(&[]);
    assert_eq!((code, mirror.names().len()), (Some(0), 20), "{said}");
    assert!(said.contains("1 entry only at d; `replicate sync --delete` removes them"), "{said}");
    let (code, said) = mirror.sync(&["--delete"]);
    assert_eq!((code, mirror.names().len()), (Some(0), 19), "{said}");
    assert!(said.contains("1 entry deleted at d, which the source lacks"), "{said}");
    assert!(mirror.is_equal());
}

#[test]
fn empty_or_missing_source_deletes_nothing() {
    let mirror = Mirror::new();
    (0..20).for_each(|number| mirror.remove(&format!("{number:02}")));
    let (code, said) = mirror.sync(&["--delete", "--max-delete", "100%"]);
    assert_eq!((code, mirror.names().len()), (Some(1), 20), "{said}");
    assert!(said.contains("a source that has no entry would delete everything elsewhere"), "{said}");
    std::fs::remove_dir(mirror.local.path("s/data")).expect("it is empty");
    let (code, said) = mirror.sync(&["--delete", "--max-delete", "100%"]);
    assert_eq!((code, mirror.names().len()), (Some(1), 20), "{said}");
    assert!(said.contains("No such file or directory"), "{said}");
}

#[test]
fn more_deletes_than_the_limit_change_nothing() {
    let mirror = Mirror::new();
    for name in ["00", "01", "02"] {
        mirror.remove(name);
    }
    write(&mirror.local.path("s/data"), "new", "new");
    let (code, said) = mirror.sync(&["--delete"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("3 of 20 entries would be deleted, and --max-delete 10% allows fewer"), "{said}");
    assert_eq!((mirror.names().len(), mirror.names().contains(&"new".to_owned())), (20, false));
    let (code, said) = mirror.sync(&["--delete", "--max-delete", "2"]);
    assert_eq!((code, mirror.names().len()), (Some(1), 20), "{said}");
    let (code, said) = mirror.sync(&["--delete", "--max-delete", "3"]);
    assert_eq!((code, mirror.names().len()), (Some(0), 18), "{said}");
    assert!(mirror.is_equal());
}

#[test]
fn changed_and_foreign_entries_survive_a_mirror() {
    let mirror = Mirror::new();
    let at = |name: &str| mirror.local.path("d/data").join(name);
    std::fs::write(at("05"), "by a user").expect("ours");
    std::fs::write(at("mine"), "by a user").expect("ours");
    for name in ["05", "06"] {
        mirror.remove(name);
    }
    let (code, said) = mirror.sync(&["--delete", "--max-delete", "3"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("d/data/mine, ") && said.contains("d/data/05: changed here by another"), "{said}");
    assert!(at("05").exists() && at("mine").exists() && !at("06").exists());
    // Another directory of the same site is mirrored to the same place.
    write(&mirror.local.path("s/other"), "x", "other");
    let (code, said) = mirror.sync_of("other/", &["--as", "data/", "--delete", "--max-delete", "100%"]);
    assert_eq!((code, mirror.names().len()), (Some(3), 21), "{said}");
    let (code, said) = mirror.sync(&["--delete", "--replace", "--max-delete", "100%"]);
    assert_eq!((code, mirror.is_equal()), (Some(0), true), "{said}");
}

#[test]
fn excluded_entries_survive_a_mirror() {
    let mirror = Mirror::new();
    write(&mirror.local.path("s/data"), "sent.tmp", "sent");
    assert_eq!(mirror.sync(&["--delete"]).0, Some(0));
    mirror.remove("sent.tmp");
    write(&mirror.local.path("d/data"), "own.tmp", "of the destination");
    write(&mirror.local.path("s/data"), "not.tmp", "not sent");
    let filtered = ["--delete", "--replace", "--exclude", "*.tmp"];
    let (code, said) = mirror.sync(&filtered);
    assert_eq!((code, mirror.names().len()), (Some(0), 22), "{said}");
    mirror.remove("03");
    let (code, said) = mirror.sync(&filtered);
    assert_eq!((code, mirror.names().len()), (Some(0), 21), "{said}");
    // Without the filter, the file that a transfer wrote is deleted, and the destination's file
    // stays.
    let (code, said) = mirror.sync(&["--delete"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(mirror.names().contains(&"own.tmp".to_owned()) && mirror.names().contains(&"not.tmp".to_owned()));
    assert!(!mirror.names().contains(&"sent.tmp".to_owned()), "{:?}", mirror.names());
    let (code, said) = mirror.sync(&["--delete", "--max-size", "1M"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--delete with --max-size"), "{said}");
}

#[test]
fn backup_takes_deleted_and_overwritten_files() {
    let mirror = Mirror::new();
    mirror.remove("00");
    std::fs::write(mirror.local.path("s/data/01"), "changed").expect("ours");
    let (code, said) = mirror.sync(&["--delete", "--backup", "old/data"]);
    assert_eq!((code, mirror.is_equal()), (Some(0), true), "{said}");
    for name in ["00", "01"] {
        let kept = std::fs::read_to_string(mirror.local.path("d/old/data").join(name));
        assert_eq!(kept.ok().as_deref(), Some("content"), "{name}");
    }
    for bad in ["data", "data/old", "../old", "/old"] {
        let (code, said) = mirror.sync(&["--backup", bad]);
        assert_eq!(code, Some(2), "{bad}: {said}");
    }
}

#[test]
fn published_snapshots_keep_earlier_ones() {
    let mirror = Mirror::new();
    let inode = |name: &str| {
        let found = std::fs::metadata(mirror.local.path("d/data").join(name));
        found.expect("it is there").ino()
    };
    let unchanged = inode("05");
    let publish = ["--delete", "--publish", "snapshot", "--keep", "2"];
    for round in 0..4 {
        std::fs::write(mirror.local.path("s/data/01"), format!("version {round}")).expect("ours");
        mirror.remove(&format!("1{round}"));
        let (code, said) = mirror.sync(&publish);
        assert_eq!((code, mirror.is_equal()), (Some(0), true), "{said}");
    }
    assert_eq!(inode("05"), unchanged, "an unchanged file is the same file");
    let kept = std::fs::read_dir(mirror.local.path("d/.data.snapshots")).expect("they are kept");
    let mut kept: Vec<_> = kept.map(|entry| entry.expect("ours").path()).collect();
    kept.sort();
    let of = |path: &std::path::PathBuf| std::fs::read_to_string(path.join("01")).expect("it is kept");
    assert_eq!(kept.iter().map(of).collect::<Vec<_>>(), ["version 1", "version 2"]);
    // Another program's file stays in the next snapshot.
    std::fs::write(mirror.local.path("d/data/02"), "changed here").expect("ours");
    std::fs::write(mirror.local.path("s/data/02"), "changed").expect("ours");
    assert_eq!(mirror.sync(&publish).0, Some(3));
    assert_eq!(std::fs::read_to_string(mirror.local.path("d/data/02")).ok().as_deref(), Some("changed here"));
    let (code, said) = mirror.sync(&["--backup", "old", "--publish", "snapshot"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--backup with --publish snapshot"), "{said}");
}

#[test]
fn edited_large_file_sends_its_changed_blocks() {
    let Some(_alone) = stage(&[]) else { return };
    let Some(mut net) = Net::new(LINE) else { return };
    std::fs::create_dir_all(net.path("nyc", "data")).expect("the folder is ours");
    let mut bytes = net.put("nyc", "data/large", 1, 12 << 20);
    net.start_all();
    sent_bytes(&mut net, &[]);
    for at in [100, 5 << 20, (12 << 20) - 1] {
        bytes[at] ^= 1;
    }
    std::fs::write(net.path("nyc", "data/large"), &bytes).expect("the folder is ours");
    let sent = sent_bytes(&mut net, &[]);
    let changed = 3 << 20;
    assert!((changed..changed * 11 / 10 + 50_000).contains(&sent), "{sent} bytes for 3 changed blocks");
    assert_eq!(snapshot(&net, "sin", "data"), snapshot(&net, "nyc", "data"));
}

#[test]
fn file_that_changes_during_a_transfer_is_left() {
    let Some(_alone) = stage(&[]) else { return };
    let Some(mut net) = Net::new(LINE) else { return };
    std::fs::create_dir_all(net.path("nyc", "data")).expect("the folder is ours");
    for number in 0..20 {
        net.put("nyc", &format!("data/{number:02}"), number, 500_000);
    }
    net.start_all();
    let running = net.send(&["data/", "--from", "nyc", "--to", "sin"]);
    running.verified(1_000_000);
    net.put("nyc", "data/19", 100, 600_000);
    let ended = running.finish();
    assert_eq!(ended.code(), 3, "{}", ended.stderr);
    let said = "data/19: changed at the source while it was sent, and left";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let arrived = |name: &str| std::fs::read(net.path("sin", name)).ok();
    for number in 0..19 {
        assert!(arrived(&format!("data/{number:02}")) == Some(noise(number, 500_000)), "{number}");
    }
    assert!(arrived("data/19").is_none(), "no file has a part of each version");
    net.send(&["data/", "--from", "nyc", "--to", "sin"]).finish().expect_done();
    assert_eq!(snapshot(&net, "sin", "data"), snapshot(&net, "nyc", "data"));
}

/// Entries below a folder with their times, as text.
fn listing(folder: &Path) -> String {
    let listed = std::process::Command::new("find")
        .arg(folder)
        .args(["-printf", "%P %y %m %s %T@ %C@\\n"])
        .output()
        .expect("find runs");
    let mut lines: Vec<&str> = std::str::from_utf8(&listed.stdout).expect("plain names").lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn check_names_each_difference_and_changes_nothing() {
    let mirror = Mirror::new();
    let check = |more: &[&str]| mirror.run("check", "data/", more);
    let (code, said) = check(&[]);
    assert!(code == Some(0) && said.starts_with("d: equal\n"), "{said}");
    let source = mirror.local.path("s/data");
    std::fs::write(source.join("00"), "changed").expect("ours");
    std::fs::rename(source.join("01"), source.join("moved")).expect("ours");
    write(&source, "new", "eight by");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(source.join("02"), private).expect("ours");
    write(&mirror.local.path("d/data"), "mine", "by a user");
    let before = listing(&mirror.local.path("d/data"));
    let (code, said) = check(&[]);
    assert_eq!(code, Some(4), "{said}");
    for line in [
        "d: 1 missing, 1 changed, 1 renamed, ",
        " 1 only there; lacks 15 B of contents\n",
        "  changed     00\n",
        "  attributes  02\n",
        "  only there  mine\n",
        "  renamed     moved (there: 01)\n",
        "  missing     new\n",
        ": 1 of 1 destination differs: d: 1 missing, ",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(listing(&mirror.local.path("d/data")), before);
    let (code, said) = check(&["--include", "1*"]);
    assert!(code == Some(0) && said.starts_with("d: equal\n"), "{said}");
    assert!(working_files(&mirror.local.path("d")).is_empty());
    let (code, said) = mirror.run("check", "data/", &["--as", "nowhere/"]);
    assert!(code == Some(4) && said.contains("  missing     nowhere/\n"), "{said}");
    assert!(!mirror.local.path("d/nowhere").exists());
}

#[test]
fn dry_run_shows_changes_and_refusals_of_a_mirror() {
    let mirror = Mirror::new();
    mirror.remove("00");
    write(&mirror.local.path("s/data"), "new", "content of the new file");
    let before = listing(&mirror.local.path("d/data"));
    let (code, said) = mirror.sync(&["--delete", "--dry-run"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("  only there  00\n") && said.contains("  missing     new\n"), "{said}");
    assert!(said.contains("lacks 23 B of contents") && said.contains("s to d"), "{said}");
    let (code, said) = mirror.sync(&["--delete", "--max-delete", "0", "--dry-run"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("1 of 20 entries would be deleted"), "{said}");
    assert_eq!(listing(&mirror.local.path("d/data")), before);
}

/// A destination's daemon dies at random moments of mirrors.
#[test]
fn killed_destination_deletes_nothing_wrong() {
    let mut mirror = Mirror::new();
    write(&mirror.local.path("d/data"), "mine", "by a user");
    for round in 0..4u64 {
        mirror.remove(&format!("{round:02}"));
        let bytes = noise(round, 3_000_000);
        std::fs::write(mirror.local.path("s/data/large"), bytes).expect("ours");
        let address = mirror.local.address().to_owned();
        let first = ["sync", "data/", "--controller", &address, "--from", "s", "--to", "d"];
        let more = ["--delete", "--max-delete", "5"];
        let mut running = mirror
            .local
            .command(&[&first[..], &more].concat())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        std::thread::sleep(std::time::Duration::from_millis(150 * round));
        mirror.local.kill("d");
        let again = mirror.local.relay("d", "d");
        mirror.local.keep("d", again);
        assert_eq!(running.wait().expect("it ends").code(), Some(3), "the user's file is a conflict");
    }
    let user = mirror.local.path("d/data/mine");
    assert_eq!(std::fs::read_to_string(&user).expect("it stays"), "by a user");
    std::fs::remove_file(user).expect("ours");
    let (code, said) = mirror.sync(&["--delete"]);
    assert_eq!((code, mirror.is_equal()), (Some(0), true), "{said}");
}

/// Differences that rsync finds between both directories of a mirror, with owners, attributes and
/// access lists. `None` without rsync.
fn rsync_differences(mirror: &Mirror) -> Option<String> {
    let path = |site: &str| format!("{}/data/", mirror.local.path(site).display());
    let listed = std::process::Command::new("rsync")
        .args(["-anicHAX", "--numeric-ids", "--delete"])
        .args([path("s"), path("d")])
        .output();
    let listed = match listed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            anabranch_testing::skip::skip("no rsync");
            return None;
        }
        other => other.expect("rsync runs"),
    };
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    Some(text(&listed.stdout))
}

#[test]
fn owners_and_attributes_arrive_on_request() {
    if std::fs::metadata("/proc/self").expect("Linux").uid() != 0 {
        return anabranch_testing::skip::skip("only root may give files away");
    }
    let mirror = Mirror::new();
    let source = mirror.local.path("s/data");
    let set = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(source.join(name), "user.a", value, rustix::fs::XattrFlags::empty())
    };
    match set("00", b"1") {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            return anabranch_testing::skip::skip("this file system has no attribute user.a");
        }
        other => other.expect("ours"),
    }
    symlink("00", source.join("link")).expect("ours");
    std::os::unix::fs::lchown(source.join("link"), Some(1_234), Some(5_678)).expect("root may");
    std::os::unix::fs::chown(source.join("01"), Some(1_234), Some(5_678)).expect("root may");
    let (code, said) = mirror.sync(&[]);
    assert_eq!((code, mirror.is_equal()), (Some(0), true), "{said}");
    let options = ["--owners", "--numeric-ids", "--xattrs"];
    let (code, said) = mirror.run("check", "data/", &options);
    assert_eq!(code, Some(4), "{said}");
    for name in ["00", "01", "link"] {
        assert!(said.contains(&format!("  attributes  {name}\n")), "{said}");
    }
    let (code, said) = mirror.sync(&options);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = mirror.run("check", "data/", &options);
    assert!(code == Some(0) && said.starts_with("d: equal\n"), "{said}");
    // Names of this machine lead to its own numbers.
    let (code, said) = mirror.run("check", "data/", &["--owners"]);
    assert!(code == Some(0) && said.starts_with("d: equal\n"), "{said}");
    let Some(found) = rsync_differences(&mirror) else { return };
    assert_eq!(found, "");
    set("02", b"of a snapshot").expect("ours");
    std::os::unix::fs::chown(&source, Some(1_235), None).expect("root may");
    let (code, said) = mirror.sync(&[&options[..], &["--publish", "snapshot", "--keep", "1"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(rsync_differences(&mirror).as_deref(), Some(""));
}

#[test]
fn metadata_options_are_for_directories() {
    for (option, reason) in [
        ("--owners", "--owners and --xattrs are for a directory"),
        ("--xattrs", "--owners and --xattrs are for a directory"),
        ("--numeric-ids", "--owners"),
    ] {
        let said = answer(&["replicate", "send", "file", "--from", "s", "--to", "d", option]);
        assert_eq!(said.status.code(), Some(2), "{option}");
        assert!(text(&said.stderr).contains(reason), "{}", text(&said.stderr));
    }
}
