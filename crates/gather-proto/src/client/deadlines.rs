//! Deadlines after which the client stops using a silent server.
//!
//! The tolerated silence is [`crate::ClientConfig::give_up`] or, without that setting, derived from
//! the server's path: its round-trip time and the interval between its packets. A server that still
//! delivers any data is not silent, but the wait for each answer and each pull is bounded.
//!
//! Leaves out: the reassignment of ranges (`client`), slow pulls (`balance`), and the requests for
//! descriptions (`fetch`).

use super::{Client, Pull, PullId, PullState, ServerId};
use crate::layout::BLOCK_BYTES_MIN;
use anabranch_codes::Symbol;
use anabranch_units::{Duration, Instant};

/// Minimum of the derived silence, because the process of a server may be delayed for seconds.
pub(crate) const SILENCE_MIN: Duration = Duration::from_secs(5);
/// Maximum of the derived silence.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Tolerated silence in round trips.
///
/// A sender that has lost everything in flight retries after two to four round trips
/// (`path::patience`), and a retry needs both directions. If a fifth of the packets is lost in each
/// direction, eight successive retries fail once in 3,500 cases.
const SILENCE_RTTS: u64 = 32;
/// Tolerated silence in packet intervals. A first flight has 48 packets, and the queue of a slow
/// link may hold the whole flight.
const SILENCE_PACKETS: u64 = 64;
/// Factor by which a deadline grows while other data of the server arrives, because each packet of
/// this pull may have been lost on a lossy path.
const UNHEARD_MAX: u64 = 4;
/// Factor by which the wait for an answer grows that no other server can give, and the maximum of
/// the longer wait. Of 100 pulls over an emulated link with 30 % loss, 5 failed with a wait of 5 s,
/// and none failed with four times as long.
const LAST_SERVER: u64 = 4;
const LAST_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum wait for the first packet of a pull before shorter packets are requested. The wait is at
/// least `FIRST_RTTS` round trips.
const FIRST_MAX: Duration = Duration::from_secs(2);
const FIRST_RTTS: u64 = 4;
/// Limit on the growth of the smoothed packet interval. A longer interval counts as this multiple
/// of the smoothed interval plus a round trip.
const INTERVAL_GROWTH: u64 = 2;

/// Silence tolerated on a path with this round-trip time and packet interval.
pub(crate) fn silence(rtt: Duration, interval: Duration) -> Duration {
    (rtt * SILENCE_RTTS).max(interval * SILENCE_PACKETS).clamp(SILENCE_MIN, SILENCE_MAX)
}

/// The reason for giving up a server: the kind of failure, and the duration of the silence.
pub(crate) fn reason(failing: &str, silence: Duration) -> String {
    // Rounds to tenths of a second, which are exact enough for users.
    let seconds = (silence.as_secs_f64() * 10.0).round() / 10.0;
    format!("{failing} for {seconds} s: --give-up TIME waits longer")
}

/// Times of arrivals from a server.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct ServerArrivals {
    /// Time of arrival of the server's last packet.
    pub(super) packet_at: Option<Instant>,
    /// Time of arrival of the server's last packet or control data.
    at: Option<Instant>,
    /// Smoothed interval between the server's packets.
    interval: Option<Duration>,
}

impl ServerArrivals {
    /// Records the arrival of control data.
    pub(super) fn note(&mut self, now: Instant) {
        self.at = self.at.max(Some(now));
    }
    /// Records the arrival of a packet over a path with this round-trip time.
    pub(super) fn note_packet(&mut self, now: Instant, rtt: Duration) {
        self.note(now);
        let Some(last) = self.packet_at.replace(now) else { return };
        let gap = now.saturating_since(last).min(SILENCE_MAX);
        self.interval = Some(match self.interval {
            None => gap,
            Some(mean) => {
                // Time without a request does not reflect the interval, so the growth is limited.
                let gap = gap.min(mean * INTERVAL_GROWTH + rtt);
                Duration::from_ps(mean.as_ps() / 8 * 7 + gap.as_ps() / 8)
            }
        });
    }
}

impl<S: Symbol> Client<S> {
    /// Duration of silence after which the client gives up a server.
    pub(crate) fn silence(&self, server: ServerId) -> Duration {
        let its = &self.servers[server.0 as usize];
        let rtt = its.rtt.max(its.answered).unwrap_or(Duration::ZERO);
        let derived = || silence(rtt, its.heard.interval.unwrap_or(Duration::ZERO));
        self.config.give_up.unwrap_or_else(derived)
    }

    /// Silence after which the last server that can answer is left.
    pub(crate) fn last_silence(&self, server: ServerId) -> Duration {
        let silence = self.silence(server);
        self.config.give_up.unwrap_or((silence * LAST_SERVER).min(LAST_SILENCE_MAX).max(silence))
    }

    /// Time at which a server's answer to a request of `asked_at` is late, if no further data
    /// arrives from the server.
    pub(crate) fn silent_at(&self, server: ServerId, asked_at: Instant) -> Instant {
        let heard_at = self.heard_at(server).unwrap_or(asked_at);
        let silence = self.silence(server);
        (heard_at + silence).clamp(asked_at + silence, asked_at + silence * UNHEARD_MAX)
    }

    /// Time of the last arrival of a packet or control data from a server.
    pub(crate) fn heard_at(&self, server: ServerId) -> Option<Instant> {
        self.servers[server.0 as usize].heard.at
    }

    /// Reports the arrival of a server's control data: complete messages, or a part of a message.
    pub fn handle_heard(&mut self, now: Instant, server: ServerId) {
        self.servers[server.0 as usize].heard.note(now);
    }

    /// All pulls, each with its deadline if no further packet arrives.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = (PullId, &Pull<S>, Instant)> {
        // A server sends one pull after the other, so the deadline of each pull moves while packets
        // of earlier pulls arrive.
        let mut turns: Vec<Option<Instant>> = vec![None; self.servers.len()];
        self.pulls.iter().map(move |(id, pull)| {
            let turn = &mut turns[pull.server.0 as usize];
            let dead_at = self.dead_at(pull, *turn);
            if let PullState::Receiving(receiver) = &pull.state {
                *turn = receiver.heard_at().max(*turn);
            }
            (*id, pull, dead_at)
        })
    }

    /// The next shorter block length to try, if the pull's packets may exceed the MTU of the path.
    pub(super) fn shorter_blocks(&self, pull: &Pull<S>) -> Option<u32> {
        let safe = self.config.block_bytes_safe;
        let came = self.servers[pull.server.0 as usize].came_block_bytes;
        if pull.block_bytes > safe.max(came) {
            return Some(safe);
        }
        // The path's MTU may be below IPv6's minimum.
        let may_be_shorter = self.config.block_bytes > safe && pull.block_bytes > BLOCK_BYTES_MIN.max(came);
        may_be_shorter.then_some(BLOCK_BYTES_MIN)
    }

    /// Deadline of a pull whose server sent packets of earlier pulls until `turn_at`.
    fn dead_at(&self, pull: &Pull<S>, turn_at: Option<Instant>) -> Instant {
        let PullState::Receiving(receiver) = &pull.state else {
            return self.silent_at(pull.server, pull.asked_at);
        };
        let heard_at = receiver.heard_at();
        let of_pull = heard_at.unwrap_or(pull.asked_at);
        let of_pull = of_pull.max(turn_at.unwrap_or(of_pull));
        let silence = self.silence(pull.server);
        if heard_at.is_none() && self.shorter_blocks(pull).is_some() {
            let rtt = self.servers[pull.server.0 as usize].round_trip().unwrap_or(Duration::ZERO);
            return of_pull + silence.min(FIRST_MAX.max(rtt * FIRST_RTTS));
        }
        let of_server = self.servers[pull.server.0 as usize].heard.packet_at.unwrap_or(of_pull);
        (of_server + silence).clamp(of_pull + silence, of_pull + silence * UNHEARD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path;

    /// Issue #19: on a path with late packets, the sender's next retry followed only after the
    /// client had given up the pull.
    #[test]
    fn senders_retry_twice_before_a_client_gives_up() {
        for ms in [1, 20, 100, 600, 1_000, 1_200, 5_000, 12_000] {
            let rtt = Duration::from_ms(ms);
            assert!(path::patience(rtt) * 2 < silence(rtt, Duration::ZERO), "{ms} ms");
        }
    }

    #[test]
    fn silence_limit_follows_slow_packets_and_forgets_outages() {
        let (rtt, slow) = (Duration::from_ms(400), Duration::from_ms(214));
        let mut heard = ServerArrivals::default();
        let mut now = Instant::ZERO;
        let mut run = |packets: u32, gap: Duration| {
            for _ in 0..packets {
                now += gap;
                heard.note_packet(now, rtt);
            }
            silence(rtt, heard.interval.unwrap_or(Duration::ZERO))
        };
        assert_eq!(run(50, slow), slow * SILENCE_PACKETS);
        assert_eq!(run(200, Duration::from_ms(1)), rtt * SILENCE_RTTS);
        let after_outage = run(1, Duration::from_secs(40));
        assert!(after_outage < rtt * SILENCE_RTTS * 2, "one outage is not a slow link");
        assert_eq!(run(1_000, Duration::from_secs(30)), SILENCE_MAX);
    }
}
