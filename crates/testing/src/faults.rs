//! Fault schedules in virtual time, each drawn from its seed: events, kinds of faults, the log, and
//! the repetition of a single seed.
//!
//! `ANABRANCH_FAULTS` sets the number of schedules, 200 by default, and `ANABRANCH_FAULTS_SEED` the
//! first seed. `cargo xtask bench faults` reads the last line of the output. Leaves out: the system
//! under test and its environment. Read [`Schedule`] and [`run`] first, then [`FaultChances`].

use anabranch_units::{Duration, Instant, RandomStream};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Debug, Display};
use std::hash::Hasher as _;
use std::panic::{UnwindSafe, catch_unwind};
use std::sync::LazyLock;

/// Number of schedules of each system in `make test`.
const SAMPLE: u64 = 200;
/// Number of schedules of each system that `make test` runs twice.
const TWICE: u64 = 5;
/// Maximum number of steps of one schedule. A longer schedule counts as an endless loop.
const STEPS_MAX: u64 = 3_000_000;

/// A schedule's clock, its planned events and its log.
pub struct Schedule<E> {
    now: Instant,
    /// Planned events, by time and then in the order of planning.
    events: BTreeMap<(Instant, u64), E>,
    planned: u64,
    steps: u64,
    log: DefaultHasher,
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> Schedule<E> {
    /// A schedule without events.
    pub fn new() -> Self {
        Self { now: Instant::ZERO, events: BTreeMap::new(), planned: 0, steps: 0, log: DefaultHasher::new() }
    }

    /// Current time of the schedule.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Plans an event at time `at`, or at once if that time has passed.
    pub fn at(&mut self, at: Instant, event: E) {
        self.planned += 1;
        self.events.insert((at.max(self.now), self.planned), event);
    }

    /// Plans an event after the delay `time`.
    pub fn after(&mut self, time: Duration, event: E) {
        self.at(self.now + time, event);
    }

    /// Advances the clock to the next event and returns the event. Returns `None` if a machine's
    /// deadline `due` is earlier.
    ///
    /// Panics: if there are neither events nor deadlines, and after the maximum number of steps.
    pub fn step(&mut self, due: Option<Instant>) -> Option<E> {
        self.steps += 1;
        assert!(self.steps <= STEPS_MAX, "no end after {STEPS_MAX} steps");
        let next = self.events.first_key_value().map(|((at, _), _)| *at);
        self.now = next.into_iter().chain(due).min().expect("something is left to happen").max(self.now);
        let entry = self.events.first_entry().filter(|entry| entry.key().0 <= self.now)?;
        Some(entry.remove())
    }

    /// Writes a line to the log. The line is also printed if only one schedule runs.
    pub fn say(&mut self, line: impl Display) {
        let line = format!("{:.6} {line}", self.now.as_secs_f64());
        self.log.write(line.as_bytes());
        if is_shown() {
            println!("{line}");
        }
    }

    /// Result of the schedule.
    pub fn ended(&self) -> ScheduleEnd {
        ScheduleEnd { log: self.log.finish(), seconds: self.now.as_secs_f64() }
    }
}

/// A random selection of about half of the kinds of faults, so that one kind does not hide the
/// violations that another kind reveals.
///
/// Source: Groce et al., *Swarm Testing* (ISSTA 2012).
pub fn some_of<T>(random: &mut RandomStream, kinds: impl IntoIterator<Item = T>) -> Vec<T> {
    kinds.into_iter().filter(|_| random.below(2) == 0).collect()
}

/// The kinds of faults of a schedule, each with its probability in parts per million, or with its
/// longest delay in microseconds.
pub struct FaultChances<K>(BTreeMap<K, u32>);

impl<K: Copy + Ord> FaultChances<K> {
    /// Selects some of the kinds in `all`, each with a random probability below the given maximum.
    pub fn draw(random: &mut RandomStream, all: impl IntoIterator<Item = (K, u64)>) -> Self {
        let kinds = some_of(random, all);
        Self(kinds.into_iter().map(|(kind, most)| (kind, random.below(most) as u32)).collect())
    }

    /// Probability of a kind in parts per million; 0 if the schedule has no such faults.
    pub fn ppm(&self, kind: K) -> u32 {
        self.0.get(&kind).copied().unwrap_or_default()
    }

    /// The kinds of faults in this schedule, in ascending order.
    pub fn kinds(&self) -> impl Iterator<Item = K> {
        self.0.keys().copied()
    }

    /// Keeps only the kinds for which `is_kept` returns true.
    pub fn retain(&mut self, is_kept: impl Fn(K) -> bool) {
        self.0.retain(|kind, _| is_kept(*kind));
    }

    /// Ends all faults by removing their kinds.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<K: Debug> Debug for FaultChances<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Result of a schedule.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ScheduleEnd {
    /// Hash of the log's lines.
    pub log: u64,
    /// Duration of the schedule in virtual seconds.
    pub seconds: f64,
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Err(_) => default,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text}: must be a whole number")),
    }
}

/// Whether the log is printed, which is the case if only one schedule runs.
pub fn is_shown() -> bool {
    static IS_SHOWN: LazyLock<bool> = LazyLock::new(|| number("ANABRANCH_FAULTS", SAMPLE) == 1);
    *IS_SHOWN
}

/// Runs the schedules of the seeds in `kept`, which failed once, and a sample of further seeds.
/// Prints one hash of all logs: a change to the code that keeps this hash has changed no schedule.
///
/// Panics: if a schedule panics, with the command that repeats that schedule.
pub fn run(kept: &[u64], schedule: impl Fn(u64) -> ScheduleEnd + Copy + UnwindSafe) {
    let (first, count) = (number("ANABRANCH_FAULTS_SEED", 0), number("ANABRANCH_FAULTS", SAMPLE));
    let kept = kept.iter().copied().filter(|_| count >= SAMPLE);
    let (mut seconds, mut logs) = (0.0, DefaultHasher::new());
    for seed in kept.chain(first..first + count) {
        let ended = watched(seed, schedule);
        seconds += ended.seconds;
        logs.write_u64(ended.log);
    }
    println!("faults: {count} schedules, {seconds:.0} simulated seconds, logs {:016x}", logs.finish());
}

/// Runs a few schedules twice, and compares the results.
///
/// Panics: if a schedule panics, or if the two results differ.
pub fn run_twice(schedule: impl Fn(u64) -> ScheduleEnd + Copy + UnwindSafe) {
    for seed in 0..TWICE {
        assert_eq!(watched(seed, schedule), watched(seed, schedule), "seed {seed}");
    }
}

fn watched(seed: u64, schedule: impl FnOnce(u64) -> ScheduleEnd + UnwindSafe) -> ScheduleEnd {
    let again = "ANABRANCH_FAULTS=1 repeats it, and `-- --nocapture` shows it";
    let ended = catch_unwind(move || schedule(seed));
    ended.unwrap_or_else(|_| panic!("seed {seed}: ANABRANCH_FAULTS_SEED={seed} {again}"))
}
