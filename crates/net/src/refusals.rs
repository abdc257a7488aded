//! Refusals in a daemon's log: a line each, but not as many as somebody who is refused cares to cause.
//!
//! Leaves out: what is refused, and who is told. Read [`Refusals`].

use anabranch_units::text::printable;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines a second.
const LINES_MAX: usize = 10;
const SECOND: Duration = Duration::from_secs(1);
/// How long the same line is not repeated: some ask again and again.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Lines that are remembered for this.
const KEPT_MAX: usize = 64;

/// Writes refusals to the log.
#[derive(Debug, Default)]
pub struct Refusals {
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    lines: VecDeque<(Instant, String)>,
    unsaid: u64,
}

impl Said {
    /// Whether this line is written now, and then how many were not since the last one.
    fn say(&mut self, now: Instant, line: &str) -> Option<u64> {
        let age = |at: Instant| now.saturating_duration_since(at);
        while self.lines.front().is_some_and(|(at, _)| age(*at) >= AGAIN_AFTER) {
            self.lines.pop_front();
        }
        let of_this_second = self.lines.iter().filter(|(at, _)| age(*at) < SECOND).count();
        if of_this_second >= LINES_MAX || self.lines.iter().any(|(_, said)| said == line) {
            self.unsaid += 1;
            return None;
        }
        if self.lines.len() == KEPT_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back((now, line.to_owned()));
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Refusals {
    /// One line: what is refused to whom, and why. Nothing in it can end the line.
    pub fn note(&self, line: &str) {
        let line = printable(line);
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).say(Instant::now(), &line);
        match said {
            None => {}
            Some(0) => tracing::warn!("{line}"),
            Some(unsaid) => {
                tracing::warn!("{line}; {unsaid} more refusals since the last that has a line")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_ten_lines_and_a_minute_no_line_twice() {
        let (mut said, begin) = (Said::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        for i in 0..LINES_MAX {
            assert_eq!(said.say(begin, &i.to_string()), Some(0));
        }
        assert_eq!(said.say(at(999), "one more"), None);
        assert_eq!(said.say(at(1_000), "one more"), Some(1));
        assert_eq!(said.say(at(2_000), "one more"), None);
        assert_eq!(said.say(at(60_999), "one more"), None);
        assert_eq!(said.say(at(61_000), "one more"), Some(2));
    }

    #[test]
    fn what_is_remembered_stays_small() {
        let (mut said, begin) = (Said::default(), Instant::now());
        for i in 0..100_000 {
            said.say(begin + Duration::from_millis(i), &i.to_string());
        }
        assert!(said.lines.len() <= KEPT_MAX);
    }
}
