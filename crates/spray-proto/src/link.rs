//! Whether packets for another host go by datagrams, and how long these may be: one end's view of its agent and of the ways there.
//!
//! Both ends say every second what came. Packets go by datagrams once both know that theirs come, and not any more when nothing was heard for
//! three seconds, or nothing came: then they go as they would without agents. They say so over their connection and by datagrams, as a path that
//! dies may be the one of the connection. How long datagrams may be is found out by sending some of several lengths, as routers that drop the
//! long ones need not say so (RFC 8899). Leaves out: connections and keys. Read [`Link`] first.

use crate::control::{Control, Readiness};
use crate::kernel::Fault;
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;
use std::fmt;

/// How often an end says what came, before packets go by datagrams and after.
const SAY_SOON: Duration = Duration::from_ms(50);
const SAY: Duration = Duration::from_secs(1);
/// An end that says nothing for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// The same for datagrams: of one a second all would have to be lost.
const NOTHING_MAX: Duration = Duration::from_secs(5);
/// How often lengths are tried that did not pass.
const LONGER: Duration = Duration::from_secs(60);
/// Lengths beside the one that the first hop allows: of jumbo frames, Ethernet, common tunnels, and what IPv6 promises, less headers.
const LENGTHS: [usize; 5] = [8_952, 4_000, 1_452, 1_372, 1_232];
/// How many datagrams besides the longest say what came while packets go by datagrams: several paths may be dead.
const SHORT_PROBES: usize = 3;
/// Of how many tries of a length one has to come.
const TRIES: u32 = 6;

/// Why packets do not go by datagrams any more.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The other agent says nothing.
    Silent,
    /// Datagrams do not come, though the agent is there.
    Blocked,
    /// The other agent ends.
    Bye,
    /// The other agent does not know that its datagrams come.
    NotReady,
    /// This host is not in order.
    Faulty(Fault),
    /// The other agent's host is not in order.
    OtherFaulty(Fault),
}

impl fmt::Display for Why {
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

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Say this over the connection.
    Say(Control),
    /// Send a probe that says this, of so many bytes or as few as that takes, by any way.
    Probe(usize, Control),
    /// Packets go by datagrams, of so many bytes at most; or that has changed.
    Up(usize),
    /// They do not any more.
    Down(Why),
    /// The connection is of no use.
    Close(Why),
}

/// One end's view. A machine without I/O: what is to be done comes from [`Link::poll_action`].
#[derive(Debug)]
pub struct Link {
    /// What the first hop allows.
    longest: usize,
    /// What may be sent, once it is known to pass.
    passes: Option<usize>,
    /// The longest that came there in this search, and how often all lengths were sent.
    found: usize,
    tries: u32,
    /// When lengths were last tried.
    tried_at: Instant,
    began_at: Instant,
    heard_at: Instant,
    /// When the other end last said that datagrams come, and what it said of their count.
    came_at: Instant,
    came: u64,
    other: Readiness,
    /// The fault of this host, if any.
    fault: Option<Fault>,
    up: Option<usize>,
    /// The reason of the last [`Action::Down`], until packets go by datagrams.
    told: Option<Why>,
    say_at: Instant,
    search_at: Option<Instant>,
    actions: VecDeque<Action>,
    is_closed: bool,
}

impl Link {
    /// The connection stands; the first hop allows datagrams of `longest` bytes.
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

    /// Whether packets go by datagrams, and of how many bytes at most.
    pub const fn up(&self) -> Option<usize> {
        self.up
    }

    /// The other end says something, over the connection or by a probe.
    pub fn handle_message(&mut self, now: Instant, message: Control) {
        // By another path, something newer was faster.
        if matches!(message, Control::Alive { came, .. } if came < self.came) {
            return;
        }
        self.heard_at = now;
        match message {
            // Said once, before there is a link.
            Control::Hello { .. } => {}
            Control::Bye => self.close(Why::Bye),
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
                    // Short ones come, long ones do not: the way has become narrower. Looked into before it is believed.
                    self.search(now);
                }
                self.decide();
            }
        }
    }

    /// This host has a fault, or none any more. The other end is told at once.
    pub fn handle_fault(&mut self, now: Instant, fault: Option<Fault>) {
        if self.fault != fault && !self.is_closed {
            (self.fault, self.say_at) = (fault, now);
            self.decide();
        }
    }

    /// The first hop allows other lengths than before.
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

    /// When to call [`Link::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_closed {
            return None;
        }
        let gone_at = self.heard_at + SILENCE_MAX;
        Some(self.search_at.unwrap_or(Instant::MAX).min(self.say_at).min(gone_at))
    }

    /// Does what is due. `longest_bytes` and `came` are of the datagrams that came here.
    pub fn handle_timeout(&mut self, now: Instant, longest_bytes: u16, came: u64) {
        if self.is_closed {
            return;
        }
        if now >= self.heard_at + SILENCE_MAX {
            return self.close(Why::Silent);
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
            // Perhaps only long ones do not come.
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

    /// The next thing to do, until none.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Lengths to try, the longest first.
    fn lengths(&self) -> Vec<usize> {
        let shorter = LENGTHS.into_iter().filter(|length| *length < self.longest);
        std::iter::once(self.longest).chain(shorter).collect()
    }

    fn search(&mut self, now: Instant) {
        if self.search_at.is_none() {
            (self.search_at, self.tries, self.found, self.began_at) = (Some(now), 0, 0, now);
        }
    }

    /// Ends the search where the longest length came, or has been tried often enough.
    fn settle(&mut self, now: Instant) {
        let found = self.lengths().into_iter().find(|length| *length <= self.found);
        // The other end may say only every second what came.
        let is_over = self.tries > TRIES + 2 && self.heard_at > self.tried_at + SAY_SOON * 2;
        if found == Some(self.longest) || (is_over && found.is_some()) {
            (self.passes, self.search_at, self.began_at) = (found, None, now);
            // Said at once: the other end waits for it.
            self.say_at = now;
        } else if is_over {
            // Not even the shortest: tried again, but not all the time.
            (self.tries, self.search_at) = (0, Some(now + SAY));
            self.passes = None;
        }
    }

    fn decide(&mut self) {
        let fault = match (self.fault, self.other) {
            (Some(fault), _) => Some(Why::Faulty(fault)),
            (None, Readiness::Faulty(fault)) => Some(Why::OtherFaulty(fault)),
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
                let not_passing = if self.passes.is_none() { Why::Blocked } else { Why::NotReady };
                self.tell(fault.unwrap_or(not_passing));
            }
            // Of a host that is not in order the reason is told in any case.
            (None, None) => _ = fault.map(|why| self.tell(why)),
            _ => {}
        }
        self.up = may;
    }

    fn tell(&mut self, why: Why) {
        if self.told.replace(why) != Some(why) {
            self.actions.push_back(Action::Down(why));
        }
    }

    fn close(&mut self, why: Why) {
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

    /// Two ends, and what passes between them.
    struct World {
        ends: [Link; 2],
        came: [(Vec<(u64, usize)>, u64); 2],
        said: Vec<(usize, Control)>,
        now_ms: u64,
        /// The longest datagram that passes towards each end.
        passes: [usize; 2],
        /// Whether what an end says over the connection is heard.
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
    fn packets_go_by_datagrams_within_a_quarter_of_a_second_where_all_is_well() {
        let mut world = World::new(1_444, [1_444; 2]);
        world.run(250);
        assert_eq!(world.happened, [[Action::Up(1_444)], [Action::Up(1_444)]]);
        world.run(200_000);
        assert_eq!(world.happened, [[Action::Up(1_444)], [Action::Up(1_444)]], "and stay so");
    }

    #[test]
    fn a_way_that_drops_long_datagrams_is_used_with_short_ones_also_when_it_becomes_so() {
        let mut world = World::new(8_944, [1_444, 8_944]);
        world.run(2_000);
        assert_eq!(world.happened, [[Action::Up(8_944)], [Action::Up(1_372)]]);
        world.passes = [1_444; 2];
        world.run(10_000);
        assert_eq!(world.happened[0], [Action::Up(8_944), Action::Up(1_372)]);
        // And it may become wide again.
        world.passes = [8_944; 2];
        world.run(140_000);
        assert_eq!(world.ends.each_ref().map(Link::up), [Some(8_944); 2]);
    }

    #[test]
    fn where_nothing_passes_one_way_packets_go_neither_way() {
        let mut world = World::new(1_444, [0, 1_444]);
        world.run(20_000);
        assert_eq!(world.happened, [[], []]);
        world.passes = [1_444; 2];
        world.run(25_000);
        assert_eq!(world.ends.each_ref().map(Link::up), [Some(1_444); 2]);
        world.passes = [1_444, 0];
        world.run(35_000);
        assert_eq!(world.happened[0], [Action::Up(1_444), Action::Down(Why::Blocked)]);
        assert_eq!(world.happened[1], [Action::Up(1_444), Action::Down(Why::NotReady)]);
    }

    #[test]
    fn an_end_that_says_nothing_is_gone_after_three_seconds() {
        let mut world = World::new(1_444, [1_444; 2]);
        world.run(5_000);
        world.is_heard = false;
        world.run(20_000);
        assert_eq!(world.ends.each_ref().map(Link::up), [Some(1_444); 2], "datagrams say it");
        world.passes = [0; 2];
        world.run(24_100);
        let gone = [Action::Up(1_444), Action::Down(Why::Silent), Action::Close(Why::Silent)];
        assert_eq!(world.happened, [gone.clone(), gone]);
        assert_eq!(world.ends[0].poll_timeout(), None);
        let mut link = Link::new(at(0), 1_444);
        link.handle_message(at(1), Control::Bye);
        assert_eq!(link.poll_action(), Some(Action::Close(Why::Bye)));
    }

    /// #48: the reason is told at both ends, and packets go by datagrams again once it is gone.
    #[test]
    fn a_fault_of_one_host_is_told_at_both_ends() {
        let mut world = World::new(1_444, [1_444; 2]);
        world.run(1_000);
        world.ends[0].handle_fault(at(1_000), Some(Fault::RulesRemoved));
        world.run(1_100);
        let down = |why| vec![Action::Up(1_444), Action::Down(why)];
        assert_eq!(world.happened[0], down(Why::Faulty(Fault::RulesRemoved)));
        assert_eq!(world.happened[1], down(Why::OtherFaulty(Fault::RulesRemoved)));
        world.run(20_000);
        assert_eq!(world.happened.each_ref().map(Vec::len), [2, 2], "the same is told once");
        world.ends[0].handle_fault(at(20_000), Some(Fault::Standstill));
        world.run(21_000);
        assert_eq!(world.happened[1].last(), Some(&Action::Down(Why::OtherFaulty(Fault::Standstill))));
        world.ends[0].handle_fault(at(21_000), None);
        world.run(23_000);
        assert_eq!(world.ends.each_ref().map(Link::up), [Some(1_444); 2]);
    }

    #[test]
    fn a_first_hop_that_allows_less_is_believed_at_once() {
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
