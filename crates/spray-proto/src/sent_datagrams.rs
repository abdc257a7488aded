//! History of coded datagrams sent to one host until acknowledged, and of datagrams received from
//! it until echoed.
//!
//! Read [`SentDatagrams`] and [`ReceivedDatagrams`] first.

use crate::datagram::{ECHOES_MAX, Echo};
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;

/// Maximum number of datagrams remembered. Acknowledgements of older datagrams have no effect.
const SENT_MAX: usize = 1 << 14;

/// Record of a sent datagram.
#[derive(Copy, Clone, Debug)]
pub(crate) struct SentDatagram {
    pub(crate) at: Instant,
    /// Flow and number of a source packet; `None` for other datagrams.
    pub(crate) source: Option<(u32, u32)>,
    /// True for a short flow's packet, or a parity.
    pub(crate) is_short: bool,
    is_known: bool,
}

/// Sent datagrams, by number.
#[derive(Debug, Default)]
pub(crate) struct SentDatagrams {
    left: VecDeque<SentDatagram>,
    next: u32,
}

impl SentDatagrams {
    /// Records a sent datagram, and returns its number.
    pub(crate) fn push(&mut self, at: Instant, source: Option<(u32, u32)>, is_short: bool) -> u32 {
        if self.left.len() == SENT_MAX {
            self.left.pop_front();
        }
        self.left.push_back(SentDatagram { at, source, is_short, is_known: false });
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    /// Returns the record and the round trip of an acknowledged datagram; `None` if it was
    /// acknowledged before, or never sent.
    pub(crate) fn take(&mut self, now: Instant, echo: &Echo) -> Option<(SentDatagram, Duration)> {
        let back = self.next.wrapping_sub(echo.number) as usize;
        let place = self.left.len().checked_sub(back).filter(|_| back > 0)?;
        let left = &mut self.left[place];
        if std::mem::replace(&mut left.is_known, true) {
            return None;
        }
        let taken = *left;
        let rtt = now.saturating_since(taken.at).as_ps().saturating_sub(echo.ago.as_ps());
        Some((taken, Duration::from_ps(rtt)))
    }

    /// Bytes of the history.
    pub(crate) fn bytes(&self) -> u64 {
        (self.left.len() * size_of::<SentDatagram>()) as u64
    }
    /// Send time of the oldest datagram.
    pub(crate) fn oldest_at(&self) -> Option<Instant> {
        self.left.front().map(|left| left.at)
    }
    /// Forgets all datagrams sent at least `age` ago, and frees the memory of an empty history.
    pub(crate) fn expire(&mut self, now: Instant, age: Duration) {
        while self.left.front().is_some_and(|left| now.saturating_since(left.at) >= age) {
            self.left.pop_front();
        }
        if self.left.is_empty() {
            self.left = VecDeque::new();
        }
    }

    /// Forgets the oldest datagrams while they are acknowledged or older than `limit`.
    pub(crate) fn forget(&mut self, now: Instant, limit: Duration) {
        let is_over = |left: &SentDatagram| left.is_known || now.saturating_since(left.at) > limit;
        while self.left.front().is_some_and(is_over) {
            self.left.pop_front();
        }
    }
}

/// Received datagrams that wait for their echo.
#[derive(Debug, Default)]
pub(crate) struct ReceivedDatagrams {
    waiting: VecDeque<(u32, Instant, bool)>,
    /// Deadline by which the echoes must leave.
    pub(crate) due: Option<Instant>,
    within: Duration,
}

impl ReceivedDatagrams {
    /// Bytes of the waiting entries.
    pub(crate) fn bytes(&self) -> u64 {
        (self.waiting.len() * size_of::<(u32, Instant, bool)>()) as u64
    }
    /// Records a datagram, whose echo must leave `within` this time. Returns true if the echoes
    /// must leave now.
    pub(crate) fn push(&mut self, number: u32, at: Instant, is_marked: bool, within: Duration) -> bool {
        self.waiting.push_back((number, at, is_marked));
        self.within = within;
        self.due.get_or_insert(at + within);
        self.waiting.len() >= ECHOES_MAX
    }
    /// Takes at most `most` echoes. The remaining echoes keep their deadlines.
    pub(crate) fn take(&mut self, now: Instant, most: usize) -> Vec<Echo> {
        let waiting = self.waiting.drain(..self.waiting.len().min(ECHOES_MAX).min(most));
        let echo = |(number, at, is_marked)| Echo { number, ago: now.saturating_since(at), is_marked };
        let echoes = waiting.map(echo).collect();
        self.due = self.waiting.front().map(|(_, at, _)| *at + self.within);
        echoes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAY_WITHIN: Duration = Duration::from_us(200);

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_us(us)
    }
    fn echo(number: u32) -> Echo {
        Echo { number, ago: Duration::from_us(5), is_marked: false }
    }

    #[test]
    fn each_acknowledged_datagram_yields_one_round_trip() {
        let mut sent = SentDatagrams { next: u32::MAX, ..SentDatagrams::default() };
        assert_eq!(sent.push(at(0), Some((7, 1)), true), u32::MAX);
        assert_eq!(sent.push(at(10), None, true), 0);
        let (left, rtt) = sent.take(at(100), &echo(0)).expect("it left");
        assert_eq!((left.source, rtt), (None, Duration::from_us(85)));
        assert!(sent.take(at(100), &echo(0)).is_none(), "it was said before");
        assert!(sent.take(at(100), &echo(1)).is_none(), "it never left");
        sent.forget(at(200), Duration::from_us(200));
        assert_eq!(
            sent.take(at(200), &echo(u32::MAX)).expect("it may have come yet").1,
            Duration::from_us(195)
        );
        sent.forget(at(200), Duration::from_us(200));
        assert!(sent.left.is_empty());
        sent.push(at(300), None, true);
        sent.forget(at(501), Duration::from_us(200));
        assert!(sent.left.is_empty(), "it did not come in time");
    }

    #[test]
    fn echoes_that_fill_a_datagram_are_due_immediately() {
        let mut came = ReceivedDatagrams::default();
        let full: Vec<bool> =
            (0..ECHOES_MAX as u32).map(|n| came.push(n, at(n.into()), n == 3, SAY_WITHIN)).collect();
        assert_eq!(full.iter().position(|full| *full), Some(ECHOES_MAX - 1));
        assert_eq!(came.due, Some(at(0) + SAY_WITHIN));
        let said = came.take(at(100), 4);
        assert_eq!(said.len(), 4);
        assert_eq!(said[3], Echo { number: 3, ago: Duration::from_us(97), is_marked: true });
        assert_eq!(came.due, Some(at(4) + SAY_WITHIN), "what there was no room for is due as it was");
        assert_eq!(came.take(at(100), usize::MAX).len(), ECHOES_MAX - 4);
        assert!(came.take(at(100), usize::MAX).is_empty() && came.due.is_none());
    }
}
