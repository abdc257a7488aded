//! Directories by `replicate`: random edits of a source, and kills while `send DIR/` copies them.
//!
//! A schedule has several rounds. In each round the source is edited and sent to two destinations,
//! and one process is killed. The same command is repeated until it succeeds. Some attempts are
//! interrupted, and the source changes again before the next one. At the end of a round every entry
//! of the source equals the entry at both destinations: kind, content, mode, time and hard links.
//! No conflict was reported, because no other program writes there. No working file stays but the
//! index and the record of transfers.

use super::replicate::Fleet;
use super::*;
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::time::SystemTime;

/// Rounds of a schedule, each with one kill.
const ROUNDS: u64 = 4;
/// Schedules in `make claims`: 200 kills.
const SCHEDULES: u64 = 50;
/// Schedules in the test suite.
const SCHEDULES_SAMPLE: u64 = 2;
/// Maximum number of attempts of a round after its kill.
const ATTEMPTS_MAX: u64 = 5;
const DESTINATIONS: [&str; 2] = ["d", "e"];
const FILE_MODES: [u32; 4] = [0o644, 0o600, 0o755, 0o664];
const DIRECTORY_MODES: [u32; 4] = [0o755, 0o700, 0o750, 0o775];

/// A source's directory, which a schedule edits.
struct Source {
    root: PathBuf,
    draw: Draw,
    /// Paths that have been directories: at the destinations they stay directories.
    directories_ever: BTreeSet<PathBuf>,
    /// Number of edits so far, for new contents and names.
    edits: u64,
}

/// Entries of a tree as paths below its root, in order, without the root.
fn entries(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).expect("a directory of ours") {
            let path = entry.expect("it is listed").path();
            if path.symlink_metadata().expect("it stays").is_dir() {
                open.push(path.clone());
            }
            found.push(path.strip_prefix(root).expect("below it").to_owned());
        }
    }
    found.sort();
    found
}

/// A line about each path below `root`: kind, content, mode, time, and the first of these paths
/// that is the same file.
fn described(root: &Path, paths: &[PathBuf]) -> Vec<String> {
    let mut first_names: BTreeMap<u64, &Path> = BTreeMap::new();
    let mut lines = Vec::new();
    for path in paths {
        let whole = root.join(path);
        let mut line = format!("{}: ", path.display());
        let Ok(found) = whole.symlink_metadata() else {
            lines.push(line + "missing");
            continue;
        };
        if found.is_symlink() {
            let target = std::fs::read_link(&whole).expect("it stays");
            write!(line, "a link to {}", target.display()).expect("a string");
        } else {
            write!(line, "mode {:o}, ", found.mode() & 0o7777).expect("a string");
            if found.is_dir() {
                line += "a directory";
            } else {
                let bytes = std::fs::read(&whole).expect("it is ours to read");
                let first = first_names.entry(found.ino()).or_insert(path);
                let hash = &blake3::hash(&bytes).to_hex()[..16];
                write!(line, "{} bytes {hash}, file {}", bytes.len(), first.display()).expect("a string");
            }
        }
        write!(line, ", modified {}.{:09}", found.mtime(), found.mtime_nsec()).expect("a string");
        lines.push(line);
    }
    lines
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
}

impl Source {
    fn new(root: PathBuf, draw: Draw) -> Self {
        std::fs::create_dir_all(&root).expect("ours");
        let mut new = Self { root, draw, directories_ever: BTreeSet::new(), edits: 0 };
        for _ in 0..20 {
            new.edit();
        }
        new
    }

    fn of_kind(&self, is_wanted: impl Fn(&std::fs::Metadata) -> bool) -> Vec<PathBuf> {
        let is = |path: &PathBuf| is_wanted(&path.symlink_metadata().expect("it stays"));
        entries(&self.root).iter().map(|path| self.root.join(path)).filter(is).collect()
    }

    fn draw_of(&mut self, from: &[PathBuf]) -> Option<PathBuf> {
        (!from.is_empty()).then(|| from[self.draw.below(from.len() as u64) as usize].clone())
    }

    fn file(&mut self) -> Option<PathBuf> {
        let files = self.of_kind(std::fs::Metadata::is_file);
        self.draw_of(&files)
    }

    /// A file or a symbolic link.
    fn leaf(&mut self) -> Option<PathBuf> {
        let leaves = self.of_kind(|found| !found.is_dir());
        self.draw_of(&leaves)
    }

    /// A directory below the root.
    fn directory(&mut self) -> Option<PathBuf> {
        let directories = self.of_kind(std::fs::Metadata::is_dir);
        self.draw_of(&directories)
    }

    /// Path of a new file or link, whose old entry is removed. `None` if it has been a directory.
    fn new_path(&mut self) -> Option<PathBuf> {
        let parent = if self.draw.one_in(2) { None } else { self.directory() };
        let name = format!("f{}", self.draw.below(8));
        let path = parent.unwrap_or_else(|| self.root.clone()).join(name);
        if self.directories_ever.contains(&path) {
            return None;
        }
        if path.symlink_metadata().is_ok() {
            std::fs::remove_file(&path).expect("it is ours");
        }
        Some(path)
    }

    /// Path of a directory with a name that no entry had.
    fn new_directory_path(&mut self, outside: Option<&Path>) -> PathBuf {
        let parent = self.directory().filter(|parent| outside.is_none_or(|not| !parent.starts_with(not)));
        parent.unwrap_or_else(|| self.root.clone()).join(format!("dir{}", self.edits))
    }

    fn content(&mut self) -> Vec<u8> {
        let length = self.draw.pick(&[1, 1_000, 4_096, 65_536, 300_001, 700_000]);
        noise(self.draw.next(), length)
    }

    /// Changes one entry, or none if the drawn entry does not exist.
    fn edit(&mut self) {
        self.edits += 1;
        let _ = self.try_edit();
        let directories = self.of_kind(std::fs::Metadata::is_dir);
        self.directories_ever.extend(directories);
    }

    fn try_edit(&mut self) -> Option<()> {
        match self.draw.below(16) {
            0 | 1 => {
                let (path, bytes) = (self.new_path()?, self.content());
                std::fs::write(path, bytes).expect("ours");
            }
            2 => std::fs::write(self.new_path()?, "").expect("ours"),
            3 => self.rewrite()?,
            4 => {
                let (path, more) = (self.file()?, noise(self.edits, 700));
                let mut file = std::fs::File::options().append(true).open(path).expect("ours");
                std::io::Write::write_all(&mut file, &more).expect("ours");
            }
            5 => {
                let (from, to) = (self.leaf()?, self.new_path()?);
                // The new path may have been the old one, which is removed then.
                drop(std::fs::rename(from, to));
            }
            6 => std::fs::remove_file(self.leaf()?).expect("ours"),
            7 => std::fs::create_dir(self.new_directory_path(None)).expect("ours"),
            8 => {
                let (path, mode) = (self.file()?, self.draw.pick(&FILE_MODES));
                set_mode(&path, mode);
            }
            9 => {
                let (path, mode) = (self.directory()?, self.draw.pick(&DIRECTORY_MODES));
                set_mode(&path, mode);
            }
            10 => {
                let target = self.draw.pick(&["f1", "../f2", "/nowhere", "dir3/f0"]);
                symlink(target, self.new_path()?).expect("ours");
            }
            11 => {
                let (old, new) = (self.file()?, self.new_path()?);
                // Its name may have been removed just now.
                drop(std::fs::hard_link(old, new));
            }
            12 => {
                let path = self.leaf()?;
                std::fs::remove_file(&path).expect("ours");
                std::fs::create_dir(&path).expect("ours");
                std::fs::write(path.join("inside"), self.content()).expect("ours");
            }
            13 => {
                let old = self.directory()?;
                let new = self.new_directory_path(Some(&old));
                std::fs::rename(old, new).expect("ours");
            }
            14 if self.draw.one_in(3) => std::fs::remove_dir_all(self.directory()?).expect("ours"),
            _ => {
                let at =
                    Duration::new(1_000_000_000 + self.draw.below(1_000_000), self.draw.below(1_000) as u32);
                let file = std::fs::File::open(self.file()?).expect("ours");
                file.set_modified(SystemTime::UNIX_EPOCH + at).expect("ours");
            }
        }
        Some(())
    }

    /// Replaces a file's content by other bytes of the same length. Restores the time of
    /// modification in half of the cases.
    fn rewrite(&mut self) -> Option<()> {
        let path = self.file()?;
        let found = path.metadata().expect("it stays");
        let modified = found.modified().expect("Linux has it");
        std::fs::write(&path, noise(self.draw.next(), found.len() as usize)).expect("ours");
        if self.draw.one_in(2) {
            let file = std::fs::File::open(&path).expect("ours");
            file.set_modified(modified).expect("ours");
        }
        Some(())
    }
}

/// The words of a command, and where its attempts are logged.
struct Sending<'a> {
    words: &'a [String],
    told: &'a str,
    at: &'a str,
}

impl Sending<'_> {
    /// Runs the command once, with these kills. Returns its exit code, and when it ended.
    fn run(
        &self,
        fleet: &mut Fleet,
        label: &str,
        kills: &[Kill],
        interrupt_at: Option<Duration>,
    ) -> (i32, Duration) {
        let out = fleet.path(&format!("{}-{label}.out", self.at));
        let mut attempt = Attempt::new(self.words.to_vec(), out);
        attempt.interrupt_at = interrupt_at;
        fleet.play(self.told, std::slice::from_mut(&mut attempt), kills);
        let said = std::fs::read_to_string(&attempt.out).unwrap_or_default();
        let is_conflict = said.contains("changed here by another program");
        assert!(!is_conflict, "{}: a false conflict: {said}", self.told);
        attempt.code.zip(attempt.ended_at).expect("it has ended")
    }
}

/// Asserts that a destination has every entry of the source.
fn check_copy(fleet: &Fleet, told: &str, at: &str, site: &str) {
    let (source, copy) = (fleet.path("s").join(at), fleet.path(site).join(at));
    let paths = entries(&source);
    let (wanted, found) = (described(&source, &paths), described(&copy, &paths));
    let wrong: Vec<_> = wanted.iter().zip(&found).filter(|(wanted, found)| wanted != found).collect();
    assert!(wrong.is_empty(), "{told}: {} differences at {site}: {:#?}", wrong.len(), &wrong[..1]);
    let root = |path: &Path| {
        let found = path.metadata().expect("it is there");
        (found.mode(), found.mtime(), found.mtime_nsec())
    };
    assert_eq!(root(&copy), root(&source), "{told}: the root at {site}");
}

/// Asserts that a site has no working file but indexes and records of transfers, and such files
/// whose first write was killed.
fn check_leftovers(fleet: &Fleet, told: &str, site: &str) {
    let is_left = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        let kept = [".index", ".sent", ".damaged"];
        name.starts_with(".anabranch-") && !kept.iter().any(|ending| name.ends_with(ending))
    };
    let left: Vec<_> = entries(&fleet.path(site)).into_iter().filter(is_left).collect();
    assert!(left.is_empty(), "{told}: left at {site}: {left:?}");
}

/// One schedule. Returns the number of kills during a command.
fn schedule(fleet: &mut Fleet, number: u64) -> u64 {
    let mut draw = Draw(number ^ 0x6469_7265_6374_6f72);
    let (at, told) = (format!("t{number}"), format!("directories schedule {number}"));
    let edits = Draw(draw.next());
    let mut source = Source::new(fleet.path("s").join(&at), edits);
    let (controller, keys) =
        (format!("127.0.0.1:{}", fleet.ports["controller"]), fleet.path("keys").display().to_string());
    let directory = format!("{at}/");
    let words = ["replicate", "send", "--json", &directory, "--from", "s", "--to", "d,e"];
    let more = ["--bwlimit", "40 Mbit/s", "--keys", &keys, "--controller", &controller];
    let words: Vec<String> = words.into_iter().chain(more).map(str::to_owned).collect();
    let sending = Sending { words: &words, told: &told, at: &at };
    let mut hits = 0;
    for round in 0..ROUNDS {
        for _ in 0..1 + draw.below(8) {
            source.edit();
        }
        let who = draw.pick(&["controller", "s", "d", "e"]);
        let kill_at = Duration::from_millis(draw.below(900));
        let kill = Kill { who, at: kill_at, back: kill_at + Duration::from_millis(draw.below(200)) };
        let interrupt_at = draw.one_in(3).then(|| kill_at + Duration::from_millis(draw.below(300)));
        let (mut code, ended_at) = sending.run(fleet, &format!("{round}-0"), &[kill], interrupt_at);
        hits += u64::from(kill_at < ended_at);
        if interrupt_at.is_some() {
            fleet.settle(&told);
            source.edit();
            code = -1;
        }
        let mut attempts = 1;
        while code != 0 {
            assert!(attempts < ATTEMPTS_MAX, "{told}, round {round}: no attempt succeeds; the last: {code}");
            fleet.settle(&told);
            (code, _) = sending.run(fleet, &format!("{round}-{attempts}"), &[], None);
            attempts += 1;
        }
        fleet.settle(&told);
        let told = format!("{told}, round {round}: {who} killed at {kill_at:?}");
        for site in DESTINATIONS {
            check_copy(fleet, &told, &at, site);
            check_leftovers(fleet, &told, site);
        }
        check_leftovers(fleet, &told, "s");
    }
    hits
}

#[test]
fn directories_arrive_whole_after_kills() {
    run_all(SCHEDULES_SAMPLE, 1, Fleet::new, schedule);
}

#[test]
#[ignore = "200 kills take minutes: `make claims`"]
fn directories_arrive_whole_after_200_kills() {
    run_all(SCHEDULES, FLEETS, Fleet::new, schedule);
}
