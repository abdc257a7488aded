//! Schedules of faults, each drawn from its number: what is to happen and when, which kinds of faults there are, the log, how many
//! schedules are run, and how one of them is run again. Part of the fault tests of every system, whose `world` does the rest.
//!
//! `ANABRANCH_FAULTS` says how many are run in place of [`SAMPLE`], `ANABRANCH_FAULTS_SEED` from which number on. The last line is for
//! `cargo xtask bench faults`. Read [`Schedule`] and [`run`] first.

use anabranch_units::{Duration, Instant, RandomStream};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Display;
use std::hash::Hasher as _;
use std::panic::{UnwindSafe, catch_unwind};
use std::sync::LazyLock;

/// Schedules of a system in `make test`.
const SAMPLE: u64 = 200;
/// Schedules that are run twice there.
const TWICE: u64 = 5;
/// Steps of one schedule: more are a loop that does not end.
const STEPS_MAX: u64 = 3_000_000;

/// The time in a schedule, what is to happen in it, and its log.
pub struct Schedule<E> {
    now: Instant,
    /// Events of one time come in the order in which they were planned.
    events: BTreeMap<(Instant, u64), E>,
    planned: u64,
    steps: u64,
    log: DefaultHasher,
}

impl<E> Schedule<E> {
    /// A schedule in which nothing is planned.
    pub fn new() -> Self {
        Self { now: Instant::ZERO, events: BTreeMap::new(), planned: 0, steps: 0, log: DefaultHasher::new() }
    }

    /// What time it is.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Plans an event; for now, if its time is over.
    pub fn at(&mut self, at: Instant, event: E) {
        self.planned += 1;
        self.events.insert((at.max(self.now), self.planned), event);
    }

    /// Plans an event for so much later.
    pub fn after(&mut self, time: Duration, event: E) {
        self.at(self.now + time, event);
    }

    /// Goes on to the next event. Where some machine is to be called before, at `due`, there is none, and only time has passed.
    ///
    /// Panics: where nothing is left to happen, or no end comes.
    pub fn step(&mut self, due: Option<Instant>) -> Option<E> {
        self.steps += 1;
        assert!(self.steps <= STEPS_MAX, "no end after {STEPS_MAX} steps");
        let next = self.events.first_key_value().map(|((at, _), _)| *at);
        self.now = next.into_iter().chain(due).min().expect("something is left to happen").max(self.now);
        let entry = self.events.first_entry().filter(|entry| entry.key().0 <= self.now)?;
        Some(entry.remove())
    }

    /// Writes a line into the log, and shows it if this schedule is run to be read.
    pub fn say(&mut self, line: impl Display) {
        let line = format!("{:.6} {line}", self.now.as_secs_f64());
        self.log.write(line.as_bytes());
        if is_shown() {
            println!("{line}");
        }
    }

    /// What it has come to.
    pub fn ended(&self) -> Ended {
        Ended { log: self.log.finish(), seconds: self.now.as_secs_f64() }
    }
}

/// Those kinds of faults that a schedule has: each is one of them in every second schedule. Where all kinds always came together,
/// one would hide what another finds.
///
/// Source: Groce et al., *Swarm Testing* (ISSTA 2012).
pub fn some_of<T>(random: &mut RandomStream, kinds: impl IntoIterator<Item = T>) -> Vec<T> {
    kinds.into_iter().filter(|_| random.below(2) == 0).collect()
}

/// What a schedule came to.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Ended {
    /// The hash of its log.
    pub log: u64,
    /// How much time passed in it.
    pub seconds: f64,
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Err(_) => default,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text}: must be a whole number")),
    }
}

/// Whether the log is to be shown: one schedule alone is run to be read.
pub fn is_shown() -> bool {
    static IS_SHOWN: LazyLock<bool> = LazyLock::new(|| number("ANABRANCH_FAULTS", SAMPLE) == 1);
    *IS_SHOWN
}

/// Runs schedules: those that are `kept`, as they failed once, and as many as are asked for.
///
/// Panics: where one does, with how to run it again.
pub fn run(kept: &[u64], schedule: impl Fn(u64) -> Ended + Copy + UnwindSafe) {
    let (first, count) = (number("ANABRANCH_FAULTS_SEED", 0), number("ANABRANCH_FAULTS", SAMPLE));
    let kept = kept.iter().copied().filter(|_| count >= SAMPLE);
    let seconds: f64 = kept.chain(first..first + count).map(|seed| watched(seed, schedule).seconds).sum();
    println!("faults: {count} schedules, {seconds:.0} simulated seconds");
}

/// Runs some schedules twice.
///
/// Panics: where one does, or the two differ.
pub fn run_twice(schedule: impl Fn(u64) -> Ended + Copy + UnwindSafe) {
    for seed in 0..TWICE {
        assert_eq!(watched(seed, schedule), watched(seed, schedule), "seed {seed}");
    }
}

fn watched(seed: u64, schedule: impl FnOnce(u64) -> Ended + UnwindSafe) -> Ended {
    let again = "ANABRANCH_FAULTS=1 repeats it, and `-- --nocapture` shows it";
    let ended = catch_unwind(move || schedule(seed));
    ended.unwrap_or_else(|_| panic!("seed {seed}: ANABRANCH_FAULTS_SEED={seed} {again}"))
}
