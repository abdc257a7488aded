//! Random schedules of kills, restarts and colliding names, over `replicate` and `gather`:
//! whichever process dies, every name has correct content.
//!
//! The tests use real processes on loopback, and one set of daemons for many schedules. A schedule
//! is drawn from its number. It has transfers with names that are prefixes, suffixes, spellings,
//! links and case variants of each other. It has earlier files under these names, and the process
//! and time of each kill. At the end every name has the complete content of one transfer to it, or
//! its owner's earlier file. Every copy reported as verified exists, and no file outside the folder
//! has changed. The operating system decides how processes interleave, so a failed schedule can be
//! drawn again by its number, but may succeed then.
//!
//! The test suite runs a sample of schedules; `make claims` runs a thousand.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files, threads and clocks")]

mod directories;
mod gather;
mod replicate;

use crate::net::{PATIENCE, anabranch, noise};
use anabranch_testing::ports::free_port;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of schedules of each system in the test suite.
const SAMPLE: u64 = 6;
/// Number of schedules of each system in `make claims`.
const ALL: u64 = 1_000;
/// Number of parallel sets of daemons. A schedule mostly waits, so they share the processors.
const FLEETS: u64 = 6;

/// Exit code of a command that Ctrl-C ends.
const INTERRUPTED: i32 = 130;

/// Random stream of a schedule (SplitMix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Names derived from each other: with a suffix, without a suffix, or with another spelling.
const NAMES: [&str; 16] = [
    "n",
    "n.partial",
    "n.partial.journal",
    "./n",
    "N",
    ".n",
    "n ",
    "n.",
    "sub/n",
    "sub//n",
    "sub/./n.partial",
    "n/",
    "sub",
    "link/n",
    "sub/../n",
    ".anabranch-n.partial",
];

/// Lengths of files: empty, one byte, less than a chunk, odd lengths, and lengths that take a
/// while.
const LENGTHS: [usize; 7] = [0, 1, 1_000, 65_536, 300_001, 1 << 20, 3 << 20];

/// Content of one file, determined by schedule and number.
fn content(schedule: u64, number: u64, length: usize) -> Vec<u8> {
    noise(schedule << 8 | (number + 1), length)
}

/// Normal form of a relative path; `None` for an absolute path and a path with `..`.
fn plain(name: &str) -> Option<PathBuf> {
    let parts = Path::new(name).components().filter(|c| *c != Component::CurDir);
    parts.map(|c| matches!(c, Component::Normal(_)).then_some(c)).collect()
}

/// Contents that each name in a folder may have, and names that must exist.
#[derive(Default)]
struct PermittedContents {
    may: BTreeMap<PathBuf, Vec<Vec<u8>>>,
    must: BTreeSet<PathBuf>,
}

impl PermittedContents {
    fn may(&mut self, name: &str, bytes: &[u8]) {
        if let Some(name) = plain(name) {
            self.may.entry(name).or_default().push(bytes.to_vec());
        }
    }

    fn must(&mut self, name: &str) {
        self.must.insert(plain(name).unwrap_or_else(|| panic!("`{name}` was taken")));
    }

    /// Puts an entry into the destination folder before the transfer, or none: a file, or a link
    /// that leads out of the folder.
    fn own(&mut self, draw: &mut Draw, schedule: u64, folder: &Path, outside: &Path) {
        let name = draw.pick(&["n", "n.partial", "n.partial.journal", "sub/n"]);
        match draw.below(3) {
            0 => {
                let own = content(schedule, 50, 700);
                std::fs::write(folder.join(name), &own).expect("ours");
                self.may(name, &own);
                self.must(name);
            }
            1 => std::os::unix::fs::symlink(outside, folder.join(name)).expect("ours"),
            _ => {}
        }
    }

    /// Asserts that a folder has only the permitted contents, and all required names.
    fn check(&self, folder: &Path, told: &str) {
        for path in &self.must {
            let is_file = folder.join(path).symlink_metadata().is_ok_and(|found| found.is_file());
            assert!(is_file, "{told}: {} is gone", path.display());
        }
        let mut open = vec![folder.to_owned()];
        while let Some(next) = open.pop() {
            for entry in std::fs::read_dir(&next).expect("a folder of ours") {
                let path = entry.expect("it is listed").path();
                let found = path.symlink_metadata().expect("nobody removes it");
                let name = path.strip_prefix(folder).expect("below it");
                let last = name.file_name().expect("a name").to_string_lossy().into_owned();
                if found.is_dir() {
                    open.push(path.clone());
                } else if found.is_file() && !is_working(&last) {
                    let bytes = std::fs::read(&path).expect("it is ours to read");
                    let allowed = self.may.get(name).map_or(&[][..], Vec::as_slice);
                    assert!(
                        allowed.contains(&bytes),
                        "{told}: {} holds {} bytes that nobody sent there; {} contents are allowed",
                        path.display(),
                        bytes.len(),
                        allowed.len()
                    );
                }
            }
        }
    }
}

/// Returns true if the name is a working file's, but not the name that a schedule uses.
fn is_working(name: &str) -> bool {
    name.starts_with(".anabranch-") && name != ".anabranch-n.partial"
}

/// Processes by name, which are killed on drop.
#[derive(Default)]
struct Daemons(BTreeMap<&'static str, Child>);

impl Daemons {
    fn start(&mut self, who: &'static str, mut command: Command, log: &Path) {
        let log = std::fs::File::options().append(true).create(true).open(log).expect("the folder is ours");
        let child = command.stderr(log).spawn().expect("a daemon starts");
        assert!(self.0.insert(who, child).is_none(), "{who} runs once");
    }

    fn kill(&mut self, who: &str) {
        if let Some(mut child) = self.0.remove(who) {
            child.kill().expect("ours to kill");
            child.wait().expect("ours to reap");
        }
    }

    fn runs(&self, who: &str) -> bool {
        self.0.contains_key(who)
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for child in self.0.values_mut() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A command that is repeated after each kill, until it ends on its own.
struct Attempt {
    /// Arguments of `anabranch`, the same in each repetition.
    words: Vec<String>,
    starts_at: Duration,
    /// Times of the kills.
    kills: Vec<Duration>,
    /// Time at which the command is interrupted as by Ctrl-C.
    interrupt_at: Option<Duration>,
    is_interrupted: bool,
    out: PathBuf,
    child: Option<Child>,
    code: Option<i32>,
    /// Time at which the command ended.
    ended_at: Option<Duration>,
}

impl Attempt {
    /// Draws a start within `starts_within_ms`, and the times of `kills` kills.
    fn draw(draw: &mut Draw, words: Vec<String>, out: PathBuf, kills: u64, starts_within_ms: u64) -> Self {
        let kills = (0..kills).map(|_| Duration::from_millis(draw.below(500))).collect();
        let starts_at = Duration::from_millis(draw.below(starts_within_ms));
        let mut new = Self::new(words, out);
        (new.kills, new.starts_at) = (kills, starts_at);
        new
    }

    /// Starts at once and is not killed.
    fn new(words: Vec<String>, out: PathBuf) -> Self {
        let (starts_at, kills) = (Duration::ZERO, Vec::new());
        Self {
            words,
            starts_at,
            kills,
            interrupt_at: None,
            is_interrupted: false,
            out,
            child: None,
            code: None,
            ended_at: None,
        }
    }

    fn step(&mut self, since: Duration) {
        if self.code.is_some() || since < self.starts_at {
            return;
        }
        let Some(child) = &mut self.child else {
            let mut command = anabranch();
            command.args(&self.words);
            let open = || std::fs::File::options().append(true).create(true).open(&self.out).expect("ours");
            self.child = Some(command.stdout(open()).stderr(open()).spawn().expect("a command starts"));
            return;
        };
        if let Some(status) = child.try_wait().expect("ours to reap") {
            // The interrupt may come before the command handles it.
            let interrupted = self.is_interrupted.then_some(INTERRUPTED);
            self.code = Some(status.code().or(interrupted).expect("nobody else kills it"));
            self.ended_at = Some(since);
        } else if self.interrupt_at.is_some_and(|at| at < since) {
            (self.interrupt_at, self.is_interrupted) = (None, true);
            let pid = rustix::process::Pid::from_child(child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("ours to signal");
        } else if let Some(at) = self.kills.iter().position(|at| *at < since) {
            self.kills.remove(at);
            child.kill().expect("ours to kill");
            child.wait().expect("ours to reap");
            self.child = None;
        }
    }

    /// JSON lines that the command has printed.
    fn said(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.out).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A kill of a daemon, and its restart after a pause.
#[derive(Copy, Clone, Debug)]
struct Kill {
    who: &'static str,
    at: Duration,
    back: Duration,
}

fn kills(draw: &mut Draw, most: u64, of: &[&'static str], within_ms: u64) -> Vec<Kill> {
    let mut all: Vec<Kill> = Vec::new();
    for _ in 0..draw.below(most + 1) {
        let at = Duration::from_millis(draw.below(within_ms));
        let kill = Kill { who: draw.pick(of), at, back: at + Duration::from_millis(draw.below(200)) };
        all.push(kill);
    }
    all
}

/// Runs all attempts to their ends, and the kills in between; `start` restarts a daemon.
fn play(
    told: &str,
    daemons: &mut Daemons,
    attempts: &mut [Attempt],
    kills: &[Kill],
    mut start: impl FnMut(&mut Daemons, &'static str),
) {
    let begin = Instant::now();
    let (mut killed, mut back) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let since = begin.elapsed();
        for (i, kill) in kills.iter().enumerate() {
            if since >= kill.at && killed.insert(i) {
                daemons.kill(kill.who);
            }
            if since >= kill.back && killed.contains(&i) && back.insert(i) && !daemons.runs(kill.who) {
                start(daemons, kill.who);
            }
        }
        attempts.iter_mut().for_each(|attempt| attempt.step(since));
        if back.len() == kills.len() && attempts.iter().all(|attempt| attempt.code.is_some()) {
            return;
        }
        if since > 2 * PATIENCE {
            let open = attempts.iter().filter(|a| a.code.is_none()).map(|a| {
                let text = std::fs::read_to_string(&a.out).unwrap_or_default();
                text.lines().rev().take(3).collect::<Vec<_>>().join(" / ")
            });
            panic!("{told}: these do not end: {:#?}", open.collect::<Vec<_>>());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the first `count` schedules, or only the schedule in `ANABRANCH_SCHEDULE`. `play` returns
/// the number of files reported as delivered, which must not be 0 over all schedules.
fn run_all<F>(
    count: u64,
    fleets: u64,
    fleet: impl Fn(u64) -> F + Sync,
    play: impl Fn(&mut F, u64) -> u64 + Sync,
) {
    if let Some(one) = std::env::var("ANABRANCH_SCHEDULE").ok().and_then(|text| text.parse().ok()) {
        println!("schedule {one}: {} files brought, or commands hit", play(&mut fleet(0), one));
        return;
    }
    let (begun, brought) = (Instant::now(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..fleets {
            let (fleet, play, brought) = (&fleet, &play, &brought);
            scope.spawn(move || {
                let mut fleet = fleet(number);
                for schedule in (0..count).filter(|i| i % fleets == number) {
                    brought.fetch_add(play(&mut fleet, schedule), Relaxed);
                }
            });
        }
    });
    let brought = brought.into_inner();
    let took_s = begun.elapsed().as_secs_f64();
    println!("{count} schedules in {took_s:.0} s, {brought} files brought, or commands hit");
    assert!(brought > 0, "no file was brought, or no command hit: nothing was looked for");
}
