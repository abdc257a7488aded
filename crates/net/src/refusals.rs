//! Rate-limited log lines about a daemon's refusals, one line each.
//!
//! Callers without a certificate have a separate limit, so that they cannot suppress the lines
//! about certified peers. One certified peer cannot use up all lines either. Leaves out: the
//! decision to refuse, and the reply to the peer. Read [`Refusals`].

use crate::tls::PeerIdentity;
use anabranch_units::text::brief;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum lines per second about callers without a certificate, and separately about certified
/// peers.
const LINES_MAX: usize = 10;
/// Maximum lines per second about one certified peer.
const PEER_LINES_MAX: usize = 5;
const SECOND: Duration = Duration::from_secs(1);
/// Time for which an equal line is not repeated.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of remembered lines: all lines that may be written within [`AGAIN_AFTER`].
const KEPT_MAX: usize = LINES_MAX * 60;
const _: () = assert!(AGAIN_AFTER.as_secs() == 60);
/// Maximum characters of a line; longer lines are cut.
const LINE_CHARS_MAX: usize = 800;

/// Writes refusals to the log.
#[derive(Debug, Default)]
pub struct Refusals {
    strangers: Mutex<LoggedLines>,
    peers: Mutex<LoggedLines>,
}

#[derive(Debug, Default)]
struct LoggedLines {
    lines: VecDeque<Line>,
    unsaid: u64,
}

#[derive(Debug)]
struct Line {
    at: Instant,
    peer: Option<PeerIdentity>,
    text: String,
}

impl LoggedLines {
    /// Decides whether to write the line. Returns the number of suppressed lines since the last
    /// one, or `None`.
    fn say(&mut self, now: Instant, peer: Option<&PeerIdentity>, text: &str) -> Option<u64> {
        let age = |line: &Line| now.saturating_duration_since(line.at);
        while self.lines.front().is_some_and(|line| age(line) >= AGAIN_AFTER) {
            self.lines.pop_front();
        }
        let of_this_second = || self.lines.iter().rev().take_while(|line| age(line) < SECOND);
        let of_peer = || of_this_second().filter(|line| line.peer.as_ref() == peer);
        let is_crowded = of_this_second().count() >= LINES_MAX
            || peer.is_some() && of_peer().count() >= PEER_LINES_MAX
            || self.lines.len() >= KEPT_MAX;
        if is_crowded || self.lines.iter().any(|line| line.text == text) {
            self.unsaid += 1;
            return None;
        }
        self.lines.push_back(Line { at: now, peer: peer.cloned(), text: text.to_owned() });
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Refusals {
    /// Logs one line: the refused request, the caller, and the reason. Control characters are
    /// replaced, and long lines are cut. `peer` is the caller, if a certificate names it.
    pub fn note(&self, peer: Option<&PeerIdentity>, line: &str) {
        self.tell(peer, line);
    }

    /// Logs one line as [`Self::note`] does. Returns whether the line was written.
    pub fn tell(&self, peer: Option<&PeerIdentity>, line: &str) -> bool {
        let line = brief(line, LINE_CHARS_MAX);
        let said = if peer.is_some() { &self.peers } else { &self.strangers };
        let said = said.lock().unwrap_or_else(PoisonError::into_inner).say(Instant::now(), peer, &line);
        match said {
            None => tracing::debug!("{line}"),
            Some(0) => tracing::warn!("{line}"),
            Some(unsaid) => {
                tracing::warn!("{line}; {unsaid} more refusals since the last that has a line")
            }
        }
        said.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Role;
    use crate::party::examples::HAUL;

    fn site(name: &str) -> PeerIdentity {
        PeerIdentity { system: HAUL, role: Role::Site, name: name.into() }
    }

    #[test]
    fn log_writes_ten_distinct_lines_per_second() {
        let (mut said, begin) = (LoggedLines::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        for i in 0..LINES_MAX {
            assert_eq!(said.say(begin, None, &i.to_string()), Some(0));
        }
        assert_eq!(said.say(at(999), None, "one more"), None);
        assert_eq!(said.say(at(1_000), None, "one more"), Some(1));
        assert_eq!(said.say(at(2_000), None, "one more"), None);
        assert_eq!(said.say(at(60_999), None, "one more"), None);
        assert_eq!(said.say(at(61_000), None, "one more"), Some(2));
    }

    /// #17: only 64 lines were remembered, although 600 may be written in a minute.
    #[test]
    fn equal_line_is_suppressed_for_a_minute() {
        let (mut said, begin) = (LoggedLines::default(), Instant::now());
        let mut said_at = std::collections::BTreeMap::<String, Vec<u64>>::new();
        for ms in (0..180_000).step_by(50) {
            for text in ["again".to_owned(), (ms % 45_000).to_string()] {
                if said.say(begin + Duration::from_millis(ms), None, &text).is_some() {
                    said_at.entry(text).or_default().push(ms);
                }
            }
        }
        assert!(said_at.len() > KEPT_MAX, "{} lines", said_at.len());
        for (text, times) in &said_at {
            assert!(times.is_sorted_by(|a, b| a + 60_000 <= *b), "{text}: {times:?}");
        }
        assert!(said_at["again"].len() >= 3, "{:?}", said_at["again"]);
        let of_a_second = |second| said_at.values().flatten().filter(|ms| **ms / 1_000 == second).count();
        assert!((0..180).all(|second| of_a_second(second) <= LINES_MAX));
    }

    /// #17: a peer that was refused often suppressed the lines about all other peers.
    #[test]
    fn strangers_and_one_peer_cannot_suppress_other_lines() {
        let (mut said, now) = (LoggedLines::default(), Instant::now());
        let (lima, paris) = (site("lima"), site("paris"));
        let written = |said: &mut LoggedLines, peer: &PeerIdentity| {
            let lines = (0..100).filter(|i| said.say(now, Some(peer), &format!("{peer} {i}")).is_some());
            lines.count()
        };
        assert_eq!(written(&mut said, &lima), PEER_LINES_MAX);
        assert_eq!(written(&mut said, &paris), LINES_MAX - PEER_LINES_MAX);
        let refusals = Refusals::default();
        for i in 0..1_000 {
            refusals.note(None, &i.to_string());
        }
        refusals.note(Some(&lima), "it speaks for another");
        let peers = refusals.peers.lock().expect("nobody panics with it");
        assert_eq!((peers.lines.len(), peers.unsaid), (1, 0));
    }

    /// #17: a refusal quoted a site's request of 4 MiB, and 64 such lines were remembered.
    #[test]
    fn remembered_lines_are_bounded_in_size() {
        let (refusals, mut line) = (Refusals::default(), "\u{1f41f}".repeat(1 << 18));
        for i in 0..100 {
            line.replace_range(..4, &format!("{i:04}"));
            refusals.note(Some(&site("lima")), &line);
            refusals.note(None, &line);
        }
        for said in [refusals.peers, refusals.strangers] {
            let said = said.into_inner().expect("nobody panics with it");
            assert!(!said.lines.is_empty());
            assert!(said.lines.iter().all(|line| line.text.capacity() <= 4 * (LINE_CHARS_MAX + 3)));
        }
        let (mut said, begin) = (LoggedLines::default(), Instant::now());
        for i in 0..100_000 {
            said.say(begin + Duration::from_millis(i), None, &i.to_string());
        }
        assert_eq!(said.lines.len(), KEPT_MAX);
    }
}
