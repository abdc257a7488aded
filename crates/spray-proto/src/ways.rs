//! Choice of a host's paths through switches that hash headers: the sender varies a value (a source
//! port, a flow label).
//!
//! A [`Spreader`] chooses the value of each packet, and is informed of the fate of earlier packets.
//! Each spreader is one file, and one line in the list of `spreaders!`. [`Flight`] is common to all
//! spreaders: it records each packet's value and age, and detects missing packets. Leaves out:
//! switches that spread by themselves (`fabric::switch`). Read [`Spreader`] and [`Flight`] first.

mod bitmap;
mod chooser;
mod least;
mod mixed;
mod plb;
mod prr;
mod reps;
mod timed;

pub use chooser::{AvoidReason, Chooser, DatagramClass, PathReport, WAYS_MAX};

use anabranch_units::{Duration, Instant, RandomStream};
use std::collections::VecDeque;
use std::fmt::Debug;

/// Fate of a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PacketFate {
    /// The packet has arrived.
    Came,
    /// The packet has arrived with a congestion mark (ECN).
    Marked,
    /// The packet is late: its acknowledgement is overdue (see [`Flight`]).
    Late,
}

/// Spreading of one flow's packets.
pub trait Spreader: Debug + Send {
    /// Returns the value of the next packet. `in_flight` packets are in flight.
    fn choose(&mut self, now: Instant, in_flight: usize) -> u16;
    /// Returns the value of a retransmission, whose delay matters more than usual.
    fn choose_again(&mut self, now: Instant, in_flight: usize) -> u16 {
        self.choose(now, in_flight)
    }
    /// Handles a packet that leaves with this value.
    fn handle_leaving(&mut self, _now: Instant, _value: u16) {}
    /// Handles the fate of a packet with this value.
    fn handle_fate(&mut self, now: Instant, value: u16, fate: PacketFate);
    /// Handles a packet's round trip; called before its fate.
    fn handle_round_trip(&mut self, _now: Instant, _value: u16, _rtt: Duration) {}
    /// Handles the arrival of a packet that had been reported late.
    fn handle_belated(&mut self, _now: Instant, _value: u16, _rtt: Duration) {}
    /// Handles a late packet after which no later packet was acknowledged either: all paths in use
    /// may be dead. Called before the fate of the late packet.
    fn handle_darkness(&mut self, _now: Instant) {}
    /// Handles a timeout of the sender's retransmission timer.
    fn handle_timeout(&mut self, _now: Instant) {}
}

/// The list of spreaders: each is a file with a type that has `new`, and a word that names it in
/// files.
macro_rules! spreaders {
    ($($(#[$says:meta])* $name:ident: $file:ident, $word:literal;)*) => {
        /// A spreader's name.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum SpreaderKind {
            $($(#[$says])* $name,)*
        }

        impl SpreaderKind {
            /// All spreaders.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Word of the spreader in files.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// Creates the spreader of one flow, which draws from the stream `random`.
            pub fn spreader(self, random: RandomStream) -> Box<dyn Spreader> {
                match self {
                    $(Self::$name => Box::new($file::$name::new(random)),)*
                }
            }
        }
    };
}

spreaders! {
    /// Another path after rounds of marks: see `plb.rs`.
    Plb: plb, "plb";
    /// Another path after a timeout: see `prr.rs`.
    Prr: prr, "prr";
    /// Reuse of paths whose packets arrived unmarked: see `reps.rs`.
    Reps: reps, "reps";
    /// All paths in turn, with penalties for marks: see `bitmap.rs`.
    Bitmap: bitmap, "bitmap";
    /// Reuse of unmarked paths, or else the next path of the bitmap: see `mixed.rs`.
    Mixed: mixed, "mixed";
    /// The fastest of several random paths: see `least.rs`.
    Least: least, "least";
    /// Reuse of paths with fast packets: see `timed.rs`.
    Timed: timed, "timed";
}

/// Packets in flight, oldest first: of one flow, or of all flows to one host.
#[derive(Debug)]
pub struct Flight<S: ?Sized = dyn Spreader> {
    sent: VecDeque<SentValue>,
    next: u32,
    /// Number of packets in `sent`, from the oldest on, whose lateness was decided.
    judged: usize,
    /// Number of packets in flight; packets that became late are not counted.
    in_flight: usize,
    smoothed: Option<Duration>,
    heard_at: Instant,
    /// Send time of the newest acknowledged packet.
    came_at: Option<Instant>,
    /// Variation of round trips without a cause in the network. A packet is late after two round
    /// trips, or after one round trip and this variation if that is longer.
    jitter: Duration,
    spreader: Box<S>,
}

#[derive(Copy, Clone, Debug)]
struct SentValue {
    value: u16,
    at: Instant,
    is_probe: bool,
    state: SentState,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum SentState {
    OnItsWay,
    Late,
    Known,
}

/// Maximum number of packets of a flow that are remembered; above it the oldest are forgotten.
const SENT_MAX: usize = 1 << 14;
/// Round trip assumed while none is known.
const RTT: Duration = Duration::from_ms(1);
/// Multiple of the time until a packet is late, within which its late arrival is still recognised.
const BELATED: u64 = 8;
/// Minimum silence after which a retransmission is attributed to the retransmission timer.
const QUIET_MIN: Duration = Duration::from_ms(1);

impl<S: Spreader + ?Sized> Flight<S> {
    /// Creates a state without packets.
    pub const fn new(spreader: Box<S>) -> Self {
        Self {
            sent: VecDeque::new(),
            next: 0,
            judged: 0,
            in_flight: 0,
            smoothed: None,
            heard_at: Instant::ZERO,
            came_at: None,
            jitter: Duration::ZERO,
            spreader,
        }
    }

    /// Sets the variation of round trips that has no cause in the network.
    #[must_use]
    pub const fn with_jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Spreader of the packets.
    pub const fn spreader(&self) -> &S {
        &self.spreader
    }
    /// Spreader of the packets, for further input.
    pub(crate) const fn spreader_mut(&mut self) -> &mut S {
        &mut self.spreader
    }
    /// Smoothed round trip, once known.
    pub const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// Records a packet that leaves. Returns its number and value. `is_repeated` marks a
    /// retransmission.
    pub fn handle_leaving(&mut self, now: Instant, is_repeated: bool) -> (u32, u16) {
        let quiet = self.smoothed.map_or(QUIET_MIN, |rtt| (rtt + rtt).max(QUIET_MIN));
        if is_repeated && now.saturating_since(self.heard_at) > quiet {
            self.spreader.handle_timeout(now);
            // One timeout counts once, however many packets are retransmitted.
            self.heard_at = now;
        }
        self.judge(now);
        let value = if is_repeated {
            self.spreader.choose_again(now, self.in_flight)
        } else {
            self.spreader.choose(now, self.in_flight)
        };
        (self.handle_leaving_by(now, value, false), value)
    }

    /// Records a packet that leaves with this value. Returns its number. A late probe does not
    /// trigger [`Spreader::handle_darkness`].
    pub fn handle_leaving_by(&mut self, now: Instant, value: u16, is_probe: bool) -> u32 {
        if self.sent.len() == SENT_MAX {
            self.forget_first(now);
        }
        self.sent.push_back(SentValue { value, at: now, is_probe, state: SentState::OnItsWay });
        self.spreader.handle_leaving(now, value);
        self.in_flight += 1;
        self.next = self.next.wrapping_add(1);
        self.next.wrapping_sub(1)
    }

    /// Handles the echo of a packet that arrived `ago` before the echo was sent.
    pub fn handle_echo(&mut self, now: Instant, number: u32, ago: Duration, is_marked: bool) {
        self.heard_at = now;
        let back = self.next.wrapping_sub(number) as usize;
        let Some(place) = self.sent.len().checked_sub(back).filter(|_| back > 0) else { return };
        let SentValue { value, at, state, .. } = self.sent[place];
        let rtt = Duration::from_ps(now.saturating_since(at).as_ps().saturating_sub(ago.as_ps()));
        if state == SentState::Known {
            return;
        }
        self.came_at = self.came_at.max(Some(at));
        // Late packets count, too: if all packets are late, the round trip has grown.
        let smoothed = |before: Duration| before.as_ps() - before.as_ps() / 8 + rtt.as_ps() / 8;
        self.smoothed = Some(self.smoothed.map_or(rtt, |before| Duration::from_ps(smoothed(before))));
        match state {
            SentState::Known => {}
            SentState::Late => self.spreader.handle_belated(now, value, rtt),
            SentState::OnItsWay => {
                self.in_flight -= 1;
                self.spreader.handle_round_trip(now, value, rtt);
                self.spreader.handle_fate(
                    now,
                    value,
                    if is_marked { PacketFate::Marked } else { PacketFate::Came },
                );
            }
        }
        self.sent[place].state = SentState::Known;
        self.judge(now);
    }

    /// Finds late packets, and forgets those with a final state.
    pub(crate) fn judge(&mut self, now: Instant) {
        let late = self.late_after();
        while let Some(sent) = self.sent.get_mut(self.judged)
            && now.saturating_since(sent.at) > late
        {
            if sent.state == SentState::OnItsWay {
                sent.state = SentState::Late;
                self.in_flight -= 1;
                if !sent.is_probe && self.came_at.is_none_or(|at| sent.at > at) {
                    self.spreader.handle_darkness(now);
                }
                self.spreader.handle_fate(now, sent.value, PacketFate::Late);
            }
            self.judged += 1;
        }
        let is_over = |sent: &SentValue| {
            sent.state == SentState::Known || now.saturating_since(sent.at) > late * BELATED
        };
        while self.sent.front().is_some_and(is_over) {
            self.forget_first(now);
        }
    }

    /// Time at which the oldest undecided packet becomes late.
    pub(crate) fn late_at(&mut self) -> Option<Instant> {
        while self.sent.get(self.judged).is_some_and(|sent| sent.state == SentState::Known) {
            self.judged += 1;
        }
        self.sent.get(self.judged).map(|sent| sent.at + self.late_after() + Duration::from_ns(1))
    }

    /// Time after which a packet counts as late.
    fn late_after(&self) -> Duration {
        let rtt = self.smoothed.unwrap_or(RTT);
        (rtt + rtt).max(rtt + self.jitter)
    }

    fn forget_first(&mut self, now: Instant) {
        self.judged = self.judged.saturating_sub(1);
        if let Some(first) = self.sent.pop_front().filter(|sent| sent.state == SentState::OnItsWay) {
            // The list is full, so this packet is no longer awaited.
            self.in_flight -= 1;
            self.spreader.handle_fate(now, first.value, PacketFate::Late);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::Seed;
    use std::collections::BTreeSet;

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_us(us)
    }
    fn flight(kind: SpreaderKind) -> Flight {
        Flight::new(kind.spreader(Seed::new(1).stream("ways", 0)))
    }

    /// Sends packets 10 us apart, each echoed 100 us later; `fate` returns whether a packet
    /// arrives, and whether it is marked.
    fn run(kind: SpreaderKind, packets: u64, fate: impl Fn(u64, u16) -> Option<bool>) -> Vec<u16> {
        let (mut flight, mut values, mut echoes) = (flight(kind), Vec::new(), VecDeque::new());
        for n in 0..packets {
            let now = n * 10;
            while let Some((due, number, is_marked)) = echoes.front().copied()
                && due <= now
            {
                flight.handle_echo(at(due), number, Duration::ZERO, is_marked);
                echoes.pop_front();
            }
            let (number, value) = flight.handle_leaving(at(now), false);
            values.push(value);
            echoes.extend(fate(n, value).map(|is_marked| (now + 100, number, is_marked)));
        }
        values
    }

    #[test]
    fn plb_and_prr_keep_one_path_without_faults() {
        for kind in [SpreaderKind::Plb, SpreaderKind::Prr] {
            let values = run(kind, 1_000, |_, _| Some(false));
            assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), 1, "{}", kind.word());
        }
    }

    #[test]
    fn plb_changes_path_after_twelve_rounds_of_marks() {
        let values = run(SpreaderKind::Plb, 1_000, |_, _| Some(true));
        let first = values.iter().position(|value| *value != values[0]).expect("it leaves");
        // A round is a round trip of ten packets; the first round includes the packets in flight.
        assert!((110..140).contains(&first), "{first}");
    }

    #[test]
    fn prr_changes_path_after_a_timeout() {
        let mut flight = flight(SpreaderKind::Prr);
        let (_, first) = flight.handle_leaving(at(0), false);
        flight.handle_echo(at(100), 0, Duration::ZERO, false);
        assert_eq!(flight.handle_leaving(at(110), true).1, first, "what was lost is repeated at once");
        let (_, second) = flight.handle_leaving(at(200_000), true);
        assert_ne!(second, first);
        assert_eq!(flight.handle_leaving(at(200_010), true).1, second);
    }

    #[test]
    fn spraying_avoids_marked_and_dead_paths_after_some_packets() {
        // A fifth of all values is bad.
        let is_bad = |value: u16| value.is_multiple_of(5);
        for kind in [SpreaderKind::Reps, SpreaderKind::Bitmap, SpreaderKind::Mixed] {
            for is_dead in [false, true] {
                let values =
                    run(
                        kind,
                        4_000,
                        |_, value| if is_bad(value) && is_dead { None } else { Some(is_bad(value)) },
                    );
                let bad = |part: &[u16]| part.iter().filter(|value| is_bad(**value)).count();
                let (first, last) = (bad(&values[..1_000]), bad(&values[3_000..]));
                // A bitmap skips a marked path once, and a dead one fifteen times.
                let most = if is_dead { 70 } else { 150 };
                assert!(first > 0 && last < most, "{}: {first} of 1000, then {last}", kind.word());
            }
        }
    }

    /// The late arrival of a packet was never recognised, so an increased round trip stayed
    /// unknown.
    #[test]
    fn grown_round_trips_are_detected_after_some_packets() {
        let (mut flight, mut echoes) = (flight(SpreaderKind::Bitmap), VecDeque::new());
        for n in 0..2_000u64 {
            let now = n * 10;
            while let Some((due, number)) = echoes.front().copied().filter(|(due, _)| *due <= now) {
                flight.handle_echo(at(due), number, Duration::ZERO, false);
                echoes.pop_front();
            }
            let (number, _) = flight.handle_leaving(at(now), false);
            echoes.push_back((now + if n < 500 { 100 } else { 700 }, number));
        }
        assert!(flight.smoothed().is_some_and(|rtt| (690..=700).contains(&rtt.as_us())));
    }

    #[test]
    fn echoes_of_unsent_packets_are_ignored() {
        let mut flight = flight(SpreaderKind::Reps);
        flight.handle_echo(at(5), 3, Duration::ZERO, false);
        let (number, _) = flight.handle_leaving(at(10), false);
        flight.handle_echo(at(20), number + 1, Duration::ZERO, false);
        flight.handle_echo(at(30), u32::MAX, Duration::from_ms(9), true);
        assert_eq!(flight.handle_leaving(at(40), false).0, 1);
    }
}
