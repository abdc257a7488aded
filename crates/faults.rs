//! Schedules of faults, each drawn from its number: how many are run, what they come to, and how one of them is run again. Part of
//! the fault tests of every system, whose `world` does the rest.
//!
//! `ANABRANCH_FAULTS` says how many are run in place of [`SAMPLE`], `ANABRANCH_FAULTS_SEED` from which number on. The last line is for
//! `cargo xtask bench faults`.

use std::panic::{UnwindSafe, catch_unwind};
use std::sync::LazyLock;

/// Schedules of a system in `make test`.
const SAMPLE: u64 = 200;
/// Schedules that are run twice there.
const TWICE: u64 = 5;

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
    let mut seconds = 0.0;
    for seed in kept.chain(first..first + count) {
        let ended = catch_unwind(move || schedule(seed));
        let again = "ANABRANCH_FAULTS=1 repeats it, and `-- --nocapture` shows it";
        seconds +=
            ended.unwrap_or_else(|_| panic!("seed {seed}: ANABRANCH_FAULTS_SEED={seed} {again}")).seconds;
    }
    println!("faults: {count} schedules, {seconds:.0} simulated seconds");
}

/// Runs some schedules twice.
///
/// Panics: where the two differ.
pub fn run_twice(schedule: impl Fn(u64) -> Ended) {
    for seed in 0..TWICE {
        assert_eq!(schedule(seed), schedule(seed), "seed {seed}");
    }
}
