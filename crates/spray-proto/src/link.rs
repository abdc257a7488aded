//! One end's view of the link to a peer: whether packets travel in datagrams, and the maximum
//! length of these datagrams.
//!
//! Each end reports every second the datagrams that it has received. Packets travel in datagrams
//! once both ends know that their datagrams arrive. Packets return to the ordinary route after
//! three seconds without a report, or five without a datagram. Reports travel over the connection
//! and in datagrams, because the connection's path may fail alone. Probes of several lengths find
//! the maximum length of datagrams, because routers may drop long datagrams silently (RFC 8899).
//! Leaves out: connections and keys. Read [`Link`] first.

use crate::control::{Control, Readiness};
use crate::kernel::Fault;
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;
use std::fmt;

/// Intervals between two reports, before and after packets travel in datagrams.
const SAY_SOON: Duration = Duration::from_ms(50);
const SAY: Duration = Duration::from_secs(1);
/// Silence after which the other end counts as unreachable.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Time without a received datagram after which datagrams count as blocked. Several probes leave
/// each second, and all of them must be lost.
const NOTHING_MAX: Duration = Duration::from_secs(5);
/// Interval between two searches for longer datagrams.
const LONGER: Duration = Duration::from_secs(60);
/// Lengths to try besides the first hop's maximum: jumbo frames, Ethernet, common tunnels, and the
/// minimum MTU of IPv6, less headers.
const LENGTHS: [usize; 5] = [8_952, 4_000, 1_452, 1_372, 1_232];
/// Number of short probes with each report, besides one of the longest length. Several leave
/// because some paths may be dead.
const SHORT_PROBES: usize = 3;
/// Number of probes of each length; one arrival is enough.
const TRIES: u32 = 6;

/// Reason why packets do not travel in datagrams.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DirectReason {
    /// The other agent is silent.
    Silent,
    /// Datagrams do not arrive, although the agent is reachable.
    Blocked,
    /// The other agent is shutting down.
    Bye,
    /// The other agent does not know yet whether its datagrams arrive.
    NotReady,
    /// This host has a fault.
    Faulty(Fault),
    /// The other agent's host has a fault.
    OtherFaulty(Fault),
}

impl fmt::Display for DirectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Faulty(fault) => return write!(f, "{fault}"),
            Self::OtherFaulty(fault) => return write!(f, "on its host, {fault}"),
            Self::Silent => "its agent says nothing any more",
            Self::Blocked => "datagrams do not come there: is UDP blocked on the way?",
            Self::Bye => "its agent has ended",
            Self::NotReady => "datagrams do not come from there",
        };
        f.write_str(text)
    }
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this message over the connection.
    Say(Control),
    /// Send a probe with this message over any path, padded to this length. A length below the
    /// minimum means the shortest probe.
    Probe(usize, Control),
    /// Send packets in datagrams up to this length; repeated when the length changes.
    Up(usize),
    /// Send packets over the ordinary route.
    Down(DirectReason),
    /// Close the connection.
    Close(DirectReason),
}

/// State machine of one end. Actions come from [`Link::poll_action`].
#[derive(Debug)]
pub struct Link {
    /// Maximum datagram length of the first hop.
    longest: usize,
    /// Maximum datagram length of the path, once known.
    passes: Option<usize>,
    /// Longest datagram that has arrived in the current search, and number of the search's rounds
    /// of probes.
    found: usize,
    tries: u32,
    /// Time of the last round of probes.
    tried_at: Instant,
    began_at: Instant,
    heard_at: Instant,
    /// Time of the last report in which the other end's count of received datagrams had risen, and
    /// that count.
    came_at: Instant,
    came: u64,
    other: Readiness,
    /// Fault of this host, if any.
    fault: Option<Fault>,
    up: Option<usize>,
    /// Reason in the last [`Action::Down`]. `None` once packets travel in datagrams.
    told: Option<DirectReason>,
    say_at: Instant,
    search_at: Option<Instant>,
    actions: VecDeque<Action>,
    is_closed: bool,
}

impl Link {
    /// Creates the state of an established connection whose first hop allows datagrams of `longest`
    /// bytes.
    pub fn new(now: Instant, longest: usize) -> Self {
        Self {
            longest,
            passes: None,
            found: 0,
            tries: 0,
            tried_at: now,
            began_at: now,
            heard_at: now,
            came_at: now,
            came: 0,
            other: Readiness::Untested,
            fault: None,
            up: None,
            told: None,
            say_at: now,
            search_at: Some(now),
            actions: VecDeque::new(),
            is_closed: false,
        }
    }

    /// Maximum datagram length if packets travel in datagrams, else `None`.
    pub const fn up(&self) -> Option<usize> {
        self.up
    }

    /// Handles a message of the other end, from the connection or a probe.
    pub fn handle_message(&mut self, now: Instant, message: Control) {
        // A newer message has already arrived over a faster path.
        if matches!(message, Control::Alive { came, .. } if came < self.came) {
            return;
        }
        self.heard_at = now;
        match message {
            // Only valid before the link exists.
            Control::Hello { .. } => {}
            Control::Bye => self.close(DirectReason::Bye),
            Control::Alive { readiness, longest_bytes, came } => {
                self.other = readiness;
                if came > self.came {
                    (self.came, self.came_at) = (came, now);
                }
                self.found = self.found.max(longest_bytes.into());
                if self.search_at.is_some() {
                    self.settle(now);
                } else if let Some(passes) = self.passes
                    && usize::from(longest_bytes) < passes
                    && now.saturating_since(self.came_at) < SAY * 2
                {
                    // Short datagrams arrive, long datagrams do not: the path's MTU may have
                    // shrunk. A search verifies this.
                    self.search(now);
                }
                self.decide();
            }
        }
    }

    /// Sets or clears this host's fault. The next report is due at once.
    pub fn handle_fault(&mut self, now: Instant, fault: Option<Fault>) {
        if self.fault != fault && !self.is_closed {
            (self.fault, self.say_at) = (fault, now);
            self.decide();
        }
    }

    /// Sets a new maximum datagram length of the first hop.
    pub fn handle_longest(&mut self, now: Instant, longest: usize) {
        if longest == self.longest {
            return;
        }
        let before = std::mem::replace(&mut self.longest, longest);
        if self.passes.is_some_and(|passes| passes > longest) {
            self.passes = self.lengths().into_iter().find(|length| *length <= longest);
            self.decide();
        }
        if longest > before {
            self.search(now);
        }
    }

    /// Time of the next [`Link::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_closed {
            return None;
        }
        let gone_at = self.heard_at + SILENCE_MAX;
        Some(self.search_at.unwrap_or(Instant::MAX).min(self.say_at).min(gone_at))
    }

    /// Handles due deadlines. `longest_bytes` is the length of the longest datagram received in the
    /// driver's period of 4 s, and `came` the number of all received datagrams.
    pub fn handle_timeout(&mut self, now: Instant, longest_bytes: u16, came: u64) {
        if self.is_closed {
            return;
        }
        if now >= self.heard_at + SILENCE_MAX {
            return self.close(DirectReason::Silent);
        }
        let fault = self.fault;
        let alive = |passes: Option<usize>| {
            let readiness = match (fault, passes) {
                (Some(fault), _) => Readiness::Faulty(fault),
                (None, Some(_)) => Readiness::Ready,
                (None, None) => Readiness::Untested,
            };
            Control::Alive { readiness, longest_bytes, came }
        };
        if self.search_at.is_some_and(|at| at <= now) {
            if self.tries < TRIES {
                self.tried_at = now;
                let says = alive(self.passes);
                let lengths = self.lengths();
                self.actions.extend(lengths.into_iter().map(|length| Action::Probe(length, says)));
            }
            self.tries += 1;
            self.search_at = Some(now + SAY_SOON);
            self.settle(now);
        }
        if self.say_at <= now {
            if let Some(passes) = self.passes.filter(|_| self.search_at.is_none()) {
                self.actions.push_back(Action::Probe(passes, alive(self.passes)));
                if now.saturating_since(self.began_at) >= LONGER && passes < self.longest {
                    self.search(now);
                }
            }
            // Perhaps only long datagrams are lost: the search tries shorter lengths.
            if now.saturating_since(self.came_at) >= SAY * 2 {
                self.search(now);
            }
            if now.saturating_since(self.came_at) >= NOTHING_MAX {
                self.passes = None;
            }
            let says = alive(self.passes);
            self.actions.push_back(Action::Say(says));
            if self.up.is_some() {
                self.actions.extend((0..SHORT_PROBES).map(|_| Action::Probe(0, says)));
            }
            self.say_at = now + if self.up.is_some() { SAY } else { SAY_SOON };
            self.decide();
        }
    }

    /// Returns the next action, until `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Lengths to try, longest first.
    fn lengths(&self) -> Vec<usize> {
        let shorter = LENGTHS.into_iter().filter(|length| *length < self.longest);
        std::iter::once(self.longest).chain(shorter).collect()
    }

    fn search(&mut self, now: Instant) {
        if self.search_at.is_none() {
            (self.search_at, self.tries, self.found, self.began_at) = (Some(now), 0, 0, now);
        }
    }

    /// Ends the search if the longest length has arrived, or was tried often enough.
    fn settle(&mut self, now: Instant) {
        let found = self.lengths().into_iter().find(|length| *length <= self.found);
        // The other end must have reported after the last round of probes. It may report only once
        // a second.
        let is_over = self.tries > TRIES + 2 && self.heard_at > self.tried_at + SAY_SOON * 2;
        if found == Some(self.longest) || (is_over && found.is_some()) {
            (self.passes, self.search_at, self.began_at) = (found, None, now);
            // Reported at once, because the other end waits for it.
            self.say_at = now;
        } else if is_over {
            // Not even the shortest datagram arrived: the search repeats at a lower rate.
            (self.tries, self.search_at) = (0, Some(now + SAY));
            self.passes = None;
        }
    }

    fn decide(&mut self) {
        let fault = match (self.fault, self.other) {
            (Some(fault), _) => Some(DirectReason::Faulty(fault)),
            (None, Readiness::Faulty(fault)) => Some(DirectReason::OtherFaulty(fault)),
            _ => None,
        };
        let is_other_ready = self.other == Readiness::Ready;
        let may = self.passes.filter(|_| is_other_ready && fault.is_none());
        match (self.up, may) {
            (before, Some(bytes)) if before != may => {
                self.told = None;
                self.actions.push_back(Action::Up(bytes));
            }
            (Some(_), None) => {
                let not_passing =
                    if self.passes.is_none() { DirectReason::Blocked } else { DirectReason::NotReady };
                self.tell(fault.unwrap_or(not_passing));
            }
            // The driver is informed of a fault even while packets do not travel in datagrams.
            (None, None) => _ = fault.map(|why| self.tell(why)),
            _ => {}
        }
        self.up = may;
    }

    fn tell(&mut self, why: DirectReason) {
        if self.told.replace(why) != Some(why) {
            self.actions.push_back(Action::Down(why));
        }
    }

    fn close(&mut self, why: DirectReason) {
        if self.up.take().is_some() {
            self.actions.push_back(Action::Down(why));
        }
        self.actions.push_back(Action::Close(why));
        self.is_closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(ms)
    }

    /// Two ends, and the messages between them.
    struct World {
        ends: [Link; 2],
        came: [(Vec<(u64, usize)>, u64); 2],
        said: Vec<(usize, Control)>,
        now_ms: u64,
        /// Maximum datagram length towards each end.
        passes: [usize; 2],
        /// True if messages over the connection arrive.
        is_heard: bool,
        happened: [Vec<Action>; 2],
    }

    impl World {
        fn new(longest: usize, passes: [usize; 2]) -> Self {
            let link = || Link::new(at(0), longest);
            Self {
                ends: [link(), link()],
                came: Default::default(),
                said: Vec::new(),
                now_ms: 0,
                passes,
                is_heard: true,
                happened: Default::default(),
            }
        }

        fn run(&mut self, until_ms: u64) {
            while self.now_ms < until_ms {
                self.now_ms += 1;
                let now = at(self.now_ms);
                for (to, message) in std::mem::take(&mut self.said) {
                    self.ends[to].handle_message(now, message);
                }
                for end in 0..2 {
                    let lately = self.now_ms.saturating_sub(3_000);
                    let (came, count) = &mut self.came[end];
                    came.retain(|(at_ms, _)| *at_ms >= lately);
                    let longest = came.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default() as u16;
                    if self.ends[end].poll_timeout().is_some_and(|due| due <= now) {
                        self.ends[end].handle_timeout(now, longest, *count);
                    }
                    while let Some(action) = self.ends[end].poll_action() {
                        match action {
                            Action::Say(message) if self.is_heard => self.said.push((1 - end, message)),
                            Action::Say(_) => {}
                            Action::Probe(bytes, says) if bytes.max(1) <= self.passes[1 - end] => {
                                let (came, count) = &mut self.came[1 - end];
                                came.push((self.now_ms, bytes));
                                *count += 1;
                                self.said.push((1 - end, says));
                            }
                            Action::Probe(..) => {}
                            other => self.happened[end].push(other),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn packets_use_datagrams_within_a_quarter_second() {
        let mut world = World::new(1_444, [1_444; 2]);
        world.run(250);
        assert_eq!(world.happened, [[Action::Up(1_444)], [Action::Up(1_444)]]);
        world.run(200_000);
        assert_eq!(world.happened, [[Action::Up(1_444)], [Action::Up(1_444)]], "and stay so");
    }

    #[test]
    fn path_without_long_datagrams_carries_short_datagrams() {
        let mut world = World::new(8_944, [1_444, 8_944]);
        world.run(2_000);
        assert_eq!(world.happened, [[Action::Up(8_944)], [Action::Up(1_372)]]);
        world.passes = [1_444; 2];
        world.run(10_000);
        assert_eq!(world.happened[0], [Action::Up(8_944), Action::Up(1_372)]);
        // The path's MTU may grow again.
        world.passes = [8_944; 2];
        world.run(140_000);
        assert_eq!(world.ends.each_ref().map(Link::up), [Some(8_944); 2]);
    }

    #[test]
    fn packets_avoid_datagrams_while_one_direction_is_blocked() {
        let mut world = World::new(1_444, [0, 1_444]);
        world.run(20_000);
        assert_eq!(world.happened, [[], []]);
        world.passes = [1_444; 2];
        world.run(25_000);
        assert_eq!(world.ends.each_ref().map(Link::up), [Some(1_444); 2]);
        world.passes = [1_444, 0];
        world.run(35_000);
        assert_eq!(world.happened[0], [Action::Up(1_444), Action::Down(DirectReason::Blocked)]);
        assert_eq!(world.happened[1], [Action::Up(1_444), Action::Down(DirectReason::NotReady)]);
    }

    #[test]
    fn link_closes_after_three_seconds_of_silence() {
        let mut world = World::new(1_444, [1_444; 2]);
        world.run(5_000);
        world.is_heard = false;
        world.run(20_000);
        assert_eq!(world.ends.each_ref().map(Link::up), [Some(1_444); 2], "datagrams say it");
        world.passes = [0; 2];
        world.run(24_100);
        let gone =
            [Action::Up(1_444), Action::Down(DirectReason::Silent), Action::Close(DirectReason::Silent)];
        assert_eq!(world.happened, [gone.clone(), gone]);
        assert_eq!(world.ends[0].poll_timeout(), None);
        let mut link = Link::new(at(0), 1_444);
        link.handle_message(at(1), Control::Bye);
        assert_eq!(link.poll_action(), Some(Action::Close(DirectReason::Bye)));
    }

    /// #48: the reason is shown at both ends, and packets travel in datagrams again once the fault
    /// is gone.
    #[test]
    fn fault_of_one_host_is_reported_at_both_ends() {
        let mut world = World::new(1_444, [1_444; 2]);
        world.run(1_000);
        world.ends[0].handle_fault(at(1_000), Some(Fault::RulesRemoved));
        world.run(1_100);
        let down = |why| vec![Action::Up(1_444), Action::Down(why)];
        assert_eq!(world.happened[0], down(DirectReason::Faulty(Fault::RulesRemoved)));
        assert_eq!(world.happened[1], down(DirectReason::OtherFaulty(Fault::RulesRemoved)));
        world.run(20_000);
        assert_eq!(world.happened.each_ref().map(Vec::len), [2, 2], "the same is told once");
        world.ends[0].handle_fault(at(20_000), Some(Fault::Standstill));
        world.run(21_000);
        assert_eq!(
            world.happened[1].last(),
            Some(&Action::Down(DirectReason::OtherFaulty(Fault::Standstill)))
        );
        world.ends[0].handle_fault(at(21_000), None);
        world.run(23_000);
        assert_eq!(world.ends.each_ref().map(Link::up), [Some(1_444); 2]);
    }

    #[test]
    fn smaller_first_hop_mtu_is_accepted_immediately() {
        let mut world = World::new(1_444, [1_444; 2]);
        world.run(1_000);
        world.ends[0].handle_longest(at(1_000), 1_300);
        world.passes = [1_444, 1_300];
        world.run(1_200);
        assert_eq!(world.ends[0].up(), Some(1_300));
        world.run(4_000);
        assert_eq!(world.ends.each_ref().map(Link::up), [Some(1_300), Some(1_444)]);
    }
}
