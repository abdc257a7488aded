//! Scans of small trees with every kind of entry, and with traps.

use super::*;
use anabranch_sets::filter::Options;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

/// Called with the path of an entry.
type Hook = Box<dyn FnMut(&[u8])>;

/// One line for each call.
#[derive(Default)]
pub(super) struct Log {
    pub(super) lines: Vec<String>,
    /// Called before each entry is logged.
    pub(super) hook: Option<Hook>,
}

impl Log {
    fn push(&mut self, what: &str, path: &[u8], more: impl std::fmt::Display) -> io::Result<()> {
        if let Some(hook) = &mut self.hook {
            hook(path);
        }
        self.lines.push(format!("{what} {}{more}", path.escape_ascii()));
        Ok(())
    }
}

impl Visitor for Log {
    fn enter(&mut self, path: &[u8]) -> io::Result<()> {
        self.push("enter", path, "")
    }
    fn leave(&mut self, path: &[u8], _: &Stat, _: BorrowedFd<'_>) -> io::Result<()> {
        self.push("leave", path, "")
    }
    fn file(&mut self, found: &Found<'_>) -> io::Result<()> {
        let opened = found.open().err().map(|error| format!(" ({error})")).unwrap_or_default();
        self.push("file", found.path, format!(" {}{opened}", found.stat.size_bytes))
    }
    fn link(&mut self, found: &Found<'_>, target: &[u8]) -> io::Result<()> {
        self.push("link", found.path, format!(" {}", target.escape_ascii()))
    }
    fn skipped(&mut self, path: &[u8], why: Skipped) -> io::Result<()> {
        self.push("skipped", path, format!(" {why:?}"))
    }
    fn problem(&mut self, path: &[u8], problem: Problem) -> io::Result<()> {
        self.push("problem", path, format!(" {problem}"))
    }
}

pub(super) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

pub(super) fn write(folder: &Path, name: impl AsRef<Path>, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("below the folder")).expect("it can be made");
    std::fs::write(path, text).expect("it can be written");
}

pub(super) fn filter(rules: &[&str]) -> Filter {
    let filter = rules.iter().map(|rule| (*rule).to_owned()).collect();
    Filter::new(&Options { filter, ..Options::default() }).expect("right rules")
}

fn scanned(path: &Path, filter: &Filter) -> Vec<String> {
    let mut log = Log::default();
    Tree::open(path).expect("it is there").scan(filter, &mut log).expect("it can be read");
    log.lines
}

#[test]
fn every_kind_of_entry_is_visited_in_order() {
    let root = folder();
    let root = root.path();
    write(root, "a/z", "12");
    write(root, "a.b", "123");
    write(root, OsStr::from_bytes(b"n\xff"), "");
    write(root, ".anabranch-1.partial", "");
    std::fs::create_dir(root.join("empty")).expect("it can be made");
    symlink("../outside", root.join("link")).expect("it can be made");
    let _socket = UnixListener::bind(root.join("socket")).expect("a short path");
    rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR, 0)
        .expect("a pipe can be made");
    assert_eq!(
        scanned(root, &Filter::default()),
        [
            "skipped .anabranch-1.partial Reserved",
            "enter a",
            "file a/z 2",
            "leave a",
            "file a.b 3",
            "enter empty",
            "leave empty",
            "link link ../outside",
            "file n\\xff 0",
            "skipped pipe Special",
            "skipped socket Special",
        ]
    );
}

#[test]
fn a_tree_can_be_read_again() {
    let root = folder();
    write(root.path(), "a", "");
    let tree = Tree::open(root.path()).expect("it is there");
    for _ in 0..2 {
        let mut log = Log::default();
        tree.scan(&Filter::default(), &mut log).expect("it can be read");
        assert_eq!(log.lines, ["file a 0"]);
    }
}

#[test]
fn the_filter_decides_before_a_folder_is_opened() {
    let root = folder();
    write(root.path(), "in/a.txt", "");
    write(root.path(), "in/b.jpg", "");
    write(root.path(), "out/a.txt", "");
    symlink("x", root.path().join("in/l.jpg")).expect("it can be made");
    assert_eq!(
        scanned(root.path(), &filter(&["- /out/", "- *.jpg"])),
        [
            "enter in",
            "file in/a.txt 0",
            "skipped in/b.jpg Excluded",
            "skipped in/l.jpg Excluded",
            "leave in",
            "skipped out Excluded",
        ]
    );
}

#[test]
fn a_marker_excludes_its_folder() {
    let root = folder();
    write(root.path(), "a/.ignore", "");
    write(root.path(), "a/x", "");
    // A folder of that name is no marker.
    write(root.path(), "b/.ignore/x", "");
    let options = Options { exclude_if_present: vec![".ignore".to_owned()], ..Options::default() };
    let filter = Filter::new(&options).expect("a name");
    assert_eq!(
        scanned(root.path(), &filter),
        [
            "skipped a Excluded",
            "enter b",
            "enter b/.ignore",
            "file b/.ignore/x 0",
            "leave b/.ignore",
            "leave b"
        ]
    );
    write(root.path(), ".ignore", "");
    assert_eq!(scanned(root.path(), &filter), [""; 0]);
}

#[test]
fn a_single_file_is_a_tree() {
    let root = folder();
    write(root.path(), "a", "1");
    write(root.path(), "b", "2");
    symlink("b", root.path().join("l")).expect("it can be made");
    assert_eq!(scanned(&root.path().join("a"), &Filter::default()), ["file a 1"]);
    assert_eq!(scanned(&root.path().join("l"), &Filter::default()), ["file b 1"]);
    let tree = Tree::open(&root.path().join("a")).expect("it is there");
    assert_eq!(tree.root().expect("it can be read"), None);
    let error = Tree::open(Path::new("/dev/null")).expect_err("a device").to_string();
    assert_eq!(error, "/dev/null: a pipe, a socket or a device, not a plain file");
    let error = Tree::open(&root.path().join("c")).expect_err("nothing is there").to_string();
    assert!(error.ends_with("/c: No such file or directory (os error 2)"), "{error}");
}

#[test]
fn folder_replaced_by_a_link_is_not_followed() {
    let root = folder();
    write(root.path(), "a", "");
    write(root.path(), "d/x", "");
    let path = root.path().to_owned();
    let hook: Hook = Box::new(move |entry| {
        if entry == b"a" {
            std::fs::remove_dir_all(path.join("d")).expect("it can be removed");
            symlink("/etc", path.join("d")).expect("it can be made");
        }
    });
    let mut log = Log { hook: Some(hook), ..Log::default() };
    Tree::open(root.path()).expect("there").scan(&Filter::default(), &mut log).expect("it can be read");
    assert_eq!(log.lines, ["file a 0", "link d /etc", "problem  the folder changed while it was read"]);
}

#[test]
fn a_folder_that_changes_is_noticed() {
    let root = folder();
    write(root.path(), "d/a", "");
    write(root.path(), "e", "");
    let path = root.path().to_owned();
    let hook: Hook = Box::new(move |entry| {
        if entry == b"d/a" {
            write(&path, "d/b", "");
        }
    });
    let mut log = Log { hook: Some(hook), ..Log::default() };
    // Times of a folder advance with the clock's ticks.
    while std::fs::metadata(root.path().join("d"))
        .and_then(|found| found.modified())
        .is_ok_and(|time| time.elapsed().is_ok_and(|since| since < std::time::Duration::from_millis(50)))
    {
    }
    Tree::open(root.path()).expect("there").scan(&Filter::default(), &mut log).expect("it can be read");
    let expected =
        ["enter d", "file d/a 0", "problem d the folder changed while it was read", "leave d", "file e 0"];
    assert_eq!(log.lines, expected);
}

#[test]
fn unreadable_entries_are_reported() {
    let root = folder();
    write(root.path(), "a/x", "");
    write(root.path(), "ca.key", "-----BEGIN PRIVATE KEY-----");
    write(root.path(), "z", "");
    std::fs::set_permissions(root.path().join("a"), std::fs::Permissions::from_mode(0o000))
        .expect("it is ours");
    let lines = scanned(root.path(), &Filter::default());
    if rustix::process::geteuid().is_root() {
        assert_eq!(lines[..2], ["enter a", "file a/x 0"]);
    } else {
        assert_eq!(lines[0], "problem a Permission denied");
    }
    let key = lines.iter().find(|line| line.contains("ca.key")).expect("a line for each entry");
    assert!(key.contains("is neither read nor replaced"), "{key}");
    assert_eq!(lines.last().map(String::as_str), Some("file z 0"));
    std::fs::set_permissions(root.path().join("a"), std::fs::Permissions::from_mode(0o700)).expect("ours");
}

#[test]
fn folders_too_deep_are_reported() {
    let root = folder();
    let depth = DEPTH_MAX + 1;
    write(root.path(), ["d"; DEPTH_MAX + 1].join("/") + "/x", "");
    let lines = scanned(root.path(), &Filter::default());
    let path = vec!["d"; depth].join("/");
    assert_eq!(lines.len(), 2 * DEPTH_MAX + 1);
    assert_eq!(lines[DEPTH_MAX], format!("problem {path} below 256 folders: at most so deep is read"));
}

#[test]
fn another_file_system_is_not_entered() {
    let lines = scanned(Path::new("/"), &filter(&["+ /proc/", "- *"]));
    assert!(lines.contains(&"skipped proc OtherFileSystem".to_owned()), "{lines:?}");
}
