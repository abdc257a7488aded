//! Tests with unmodified programs under the library, at factors 1, 4 and 20. They check how long
//! the programs' waits take by their own clocks and by the machine's clock, and how often the
//! programs wake up.
//!
//! If the library misses a wait until an instant, the wait ends immediately, and its program spins.
//! So each program's context switches and processor time are compared with the run at factor 1.
//! Programs that this machine lacks are skipped with a reason. Read [`check_waits`].

#![allow(clippy::disallowed_methods, reason = "tests of a driver: they run programs and use the clock")]

mod network;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anabranch_dilate::{LIBRARY, ProgramTime};
use anabranch_testing::skip::skip;
use anabranch_units::Dilation;

const FACTORS: [u32; 3] = [1, 4, 20];
/// Length of each wait of the programs.
const WAIT: Duration = Duration::from_millis(25);
/// Maximum lateness of a wait.
const LATENESS: Duration = Duration::from_millis(700);
/// Number of runs. One run must keep the upper bounds, as a busy machine may exceed them in the
/// others. A library that misses a wait exceeds them in each run.
const TRIES: usize = 8;
/// Rounding error of a program's own clock.
const ROUNDING: Duration = Duration::from_micros(1_100);
/// Context switches, then processor time, that a program may have beyond the run at factor 1.
/// Java's own threads made 123 to 555 switches in runs beside other programs. A wait that the
/// library misses spins, and takes processor time for half a second at factor 20.
const SWITCHES_MORE: i64 = 1_000;
const CPU_MORE: Duration = Duration::from_millis(400);

/// Result of a program's run.
#[derive(Debug)]
pub struct Run {
    /// Exit status.
    pub status: ExitStatus,
    /// Text on standard output, followed by standard error.
    pub output: String,
    /// Duration by the machine's clock.
    pub took: Duration,
    /// Number of times that the program gave up the processor.
    pub switches: i64,
    /// Processor time used.
    pub cpu: Duration,
}

/// Path of the library, which cargo puts into the same folder as the tests of its crate.
pub fn library() -> PathBuf {
    let path = std::env::current_exe().expect("it runs").with_file_name(LIBRARY);
    assert!(path.exists(), "{} is built with the tests", path.display());
    path
}

/// Program time with this factor, starting now.
fn time(factor: u32) -> ProgramTime {
    ProgramTime::now(Dilation::try_from(factor).expect("in range"))
}

/// A command that runs the program under this factor.
pub fn dilated(program: &str, factor: u32) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).envs(time(factor).variables());
    command
}

/// Runs a program to its end.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it, and says what it has used")]
pub fn run(command: &mut Command) -> Run {
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let (mut output, mut errors) = (String::new(), String::new());
    std::io::Read::read_to_string(child.stdout.as_mut().expect("piped"), &mut output).expect("text");
    std::io::Read::read_to_string(child.stderr.as_mut().expect("piped"), &mut errors).expect("text");
    let (mut status, pid) = (0, child.id() as libc::pid_t);
    // SAFETY: zeros are a valid value of the structure.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers outlive the call; no other thread waits for this child.
    assert_eq!(unsafe { libc::wait4(pid, &mut status, 0, &mut used) }, pid);
    let cpu = [used.ru_utime, used.ru_stime]
        .map(|part| Duration::from_secs(part.tv_sec as u64) + Duration::from_micros(part.tv_usec as u64));
    let status = ExitStatus::from_raw(status);
    let is_quiet = errors.is_empty();
    assert!(is_quiet || !status.success(), "{errors}");
    if !is_quiet {
        output.push_str(&errors);
    }
    Run { status, output, took: begun.elapsed(), switches: used.ru_nvcsw, cpu: cpu[0] + cpu[1] }
}

/// Returns true if a program is installed.
pub fn is_there(program: &str, version: &str) -> bool {
    Command::new(program).arg(version).output().is_ok_and(|output| output.status.success())
}

/// Runs a program that prints its waits at each factor, and checks the waits.
fn check_waits(name: &str, command: impl Fn(u32) -> Command) {
    let mut first: Option<Run> = None;
    for factor in FACTORS {
        let run = within_bounds(|| checked_waits(name, factor, &command, first.as_ref()));
        first.get_or_insert(run);
    }
}

/// Repeats a run until it keeps its upper bounds, at most [`TRIES`] times.
pub fn within_bounds<T>(run: impl Fn() -> Result<T, String>) -> T {
    let mut late = Vec::new();
    for _ in 0..TRIES {
        match run() {
            Ok(kept) => return kept,
            Err(exceeded) => late.push(exceeded),
        }
    }
    panic!("{late:#?}");
}

/// Returns an error that names the condition if it does not hold.
pub fn require(holds: bool, exceeded: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(exceeded()) }
}

/// Runs a program at one factor, and compares it with the run at factor 1.
///
/// Errors: an exceeded upper bound.
/// Panics: if a wait ends early.
fn checked_waits(
    name: &str,
    factor: u32,
    command: &impl Fn(u32) -> Command,
    first: Option<&Run>,
) -> Result<Run, String> {
    let run = run(command(factor).arg(WAIT.as_millis().to_string()));
    assert!(run.status.success(), "{name} at {factor}: {}: {}", run.status, run.output);
    let waits: BTreeMap<&str, Duration> = run
        .output
        .lines()
        .map(|line| {
            let (name, micros) = line.split_once(' ').expect("a name and a number");
            (name, Duration::from_micros(micros.parse().expect("a number")))
        })
        .collect();
    assert!(waits.len() >= 7, "{name} at {factor}: {}", run.output);
    let longest = WAIT + ROUNDING + LATENESS / factor;
    for (wait, took) in &waits {
        let text = || format!("{name} at {factor}: {wait} took {took:?}, not {WAIT:?} to {longest:?}");
        assert!(*took >= WAIT - ROUNDING, "{}", text());
        require(*took <= longest, text)?;
    }
    let least = (WAIT - ROUNDING) * factor * waits.len() as u32;
    assert!(run.took >= least, "{name} at {factor}: {:?} of {least:?}", run.took);
    let (switches, cpu) = first.map_or((run.switches, run.cpu), |run| (run.switches, run.cpu));
    println!(
        "{name} at {factor}: {} waits, {:.1} s, {} switches, {:.0} ms of processor",
        waits.len(),
        run.took.as_secs_f64(),
        run.switches,
        run.cpu.as_secs_f64() * 1e3
    );
    require(run.switches <= 2 * switches + SWITCHES_MORE, || {
        format!("{name} at {factor}: {switches} switches before, {run:?}")
    })?;
    require(run.cpu <= cpu + CPU_MORE, || format!("{name} at {factor}: {cpu:?} before, {run:?}"))?;
    Ok(run)
}

/// Path of an example, which cargo builds with the tests.
fn example(name: &str) -> String {
    let tests = std::env::current_exe().expect("it runs");
    let folder = tests.parent().and_then(|deps| deps.parent()).expect("cargo's folders");
    let path = folder.join("examples").join(name);
    assert!(path.exists(), "{} is built with the tests", path.display());
    path.to_str().expect("text").to_owned()
}

fn file(name: &str) -> String {
    format!("{}/tests/it/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn waits_of_pythons_and_of_c_are_stretched() {
    if !is_there("python3", "--version") {
        return skip("no python3");
    }
    check_waits("python", |factor| {
        let mut command = dilated("python3", factor);
        command.arg(file("waits.py"));
        command
    });
}

#[test]
fn waits_of_rusts_standard_library_are_stretched() {
    check_waits("std", |factor| dilated(&example("std_waits"), factor));
}

#[test]
fn waits_of_tokio_are_stretched() {
    check_waits("tokio", |factor| dilated(&example("tokio_waits"), factor));
}

#[test]
fn waits_of_java_are_stretched() {
    if !is_there("java", "-version") || !is_there("javac", "-version") {
        return skip("no java and javac");
    }
    let folder = std::env::temp_dir().join(format!("anabranch-dilate-{}", std::process::id()));
    let compiled =
        run(Command::new("javac").args(["-d", folder.to_str().expect("text"), &file("Waits.java")]));
    assert!(compiled.status.success(), "{}", compiled.output);
    check_waits("java", |factor| {
        let mut command = dilated("java", factor);
        // One collector and one compiler thread, so that wake-ups of further threads are not
        // counted.
        command.args(["-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
        command.arg(&folder).arg("Waits");
        command
    });
    std::fs::remove_dir_all(&folder).expect("ours");
}

/// In a prototype, Java's infinite wait was assigned to the wrong clock, and woke up 102 million
/// times.
#[test]
fn infinite_and_longest_waits_do_not_end_early() {
    if !is_there("python3", "--version") {
        return skip("no python3");
    }
    for factor in FACTORS {
        let run = run(dilated("python3", factor).arg(file("endless.py")));
        assert_eq!(run.output.trim(), "14 []", "at {factor}: {run:?}");
        assert!(run.switches < 200 && run.cpu < Duration::from_secs(1), "at {factor}: {run:?}");
    }
}

#[test]
fn programs_with_the_same_base_agree_about_time() {
    if !is_there("python3", "--version") {
        return skip("no python3");
    }
    let environment = time(20);
    let clock = || -> f64 {
        let mut command = Command::new("python3");
        command.env("LD_PRELOAD", library()).envs(environment.variables());
        let run = run(command.args(["-c", "import time; print(time.time())"]));
        run.output.trim().parse().expect("a number")
    };
    let (begun, first) = (Instant::now(), clock());
    std::thread::sleep(Duration::from_millis(500));
    let (second, real) = (clock(), begun.elapsed().as_secs_f64());
    let between = second - first;
    assert!((0.5 / 20.0..=real / 20.0).contains(&between), "{between} s of {real} s");
}

/// A lookup takes the loader's lock, which a signal handler must not take.
#[test]
fn functions_are_looked_up_before_the_program_begins() {
    let mut command = dilated("sleep", 4);
    let output = command.arg("0.01").env("LD_DEBUG", "symbols").env("LD_BIND_NOW", "1").output();
    let said = String::from_utf8_lossy(&output.expect("sleep is there").stderr).into_owned();
    let (before, after) = said.split_once("transferring control: sleep").expect("the loader says it");
    for name in ["nanosleep", "clock_nanosleep", "clock_gettime"] {
        let lookup = format!("symbol={name};");
        assert!(before.contains(&lookup) && !after.contains(&lookup), "{name}");
    }
}

#[test]
fn invalid_variable_ends_the_program() {
    for (factor, base, words) in [("0", "1,2,3,4,5", "1 to 1024"), ("4", "1,2", "five times")] {
        let mut command = Command::new("sh");
        command.env("LD_PRELOAD", library()).args(["-c", "echo never"]);
        command.env("ANABRANCH_DILATION", factor).env("ANABRANCH_DILATION_BASE", base);
        let run = run(&mut command);
        assert_eq!(run.status.code(), Some(anabranch_preload_dilate::EXIT_BAD_VARIABLE), "{run:?}");
        assert!(run.output.contains(words) && !run.output.contains("never"), "{run:?}");
    }
}

#[test]
fn children_inherit_the_base_of_their_parent() {
    let mut command = Command::new("sh");
    command.env("LD_PRELOAD", library()).env("ANABRANCH_DILATION", "4").env_remove("ANABRANCH_DILATION_BASE");
    let run = run(command.args(["-c", "echo $ANABRANCH_DILATION_BASE"]));
    let environment = ProgramTime::read("4", run.output.trim()).expect("five times");
    assert!(environment.bases().realtime_ns > 0);
}
