//! Division of a piece among its holders so that all holders finish together: the length of each
//! pull, and the decision to move work away from a slow server.
//!
//! Leaves out: pieces and their holders (`client`), and rates on the last hop (`hop`).

use super::{Client, PieceId, Pull, PullId, PullState, ServerId, ServerState};
use crate::layout::BLOCK_BYTES_MIN;
use crate::mode::Mode;
use crate::msg::{Control, Numbers};
use anabranch_codes::Symbol;
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;
use std::ops::Range;

/// Minimum bytes of a pull if several servers hold the piece and more bytes than that are missing.
/// Portions end at multiples of this number.
const PORTION_MIN: u64 = 64 << 10;
/// Maximum length in bytes of a piece that is requested from one server only. Several servers for a
/// short piece would each search for the rate of the same link, for little gain.
const ALONE_MAX: u64 = 256 << 10;
/// Minimum duration of a server's shortest portion. The duration is also at least `PORTION_RTTS`
/// round trips.
const PORTION_TIME: Duration = Duration::from_ms(50);
const PORTION_RTTS: u64 = 2;
/// Ratio of the longest portion to the shortest. The ratio is limited because the servers' future
/// rates are unknown.
const PORTION_LONG: u64 = 8;
/// Maximum first portion in bytes of a server without a measured rate, which gets half the usual
/// share. If there are very many servers, the first portion is the shortest portion, because a few
/// of them may be enough.
const PORTION_FIRST: u64 = 1 << 20;
/// Minimum interval over which a server's delivery rate is measured.
const PACE_MIN: Duration = Duration::from_ms(200);
/// Interval between searches for slow pulls, and minimum age of a pull that may be taken from its
/// server.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval between searches when no range is left to request and a server is idle. The interval is
/// at least `LOOK_RTTS` round trips.
const LOOK_AT_END: Duration = Duration::from_ms(100);
const LOOK_RTTS: u64 = 4;
/// Duration of silence after which a server with requests counts as stopped. The duration is at
/// least `STOPPED_RTTS` round trips.
const STOPPED_MIN: Duration = Duration::from_ms(300);
const STOPPED_RTTS: u64 = 8;
/// Remaining time in seconds below which a pull is not taken from its server.
const SOON_S: f64 = 2.0;
/// Minimum factor by which taking a pull must shorten its remaining time.
const GAIN_MIN: f64 = 1.25;
/// Divisor of the remaining bytes. A pull goes to a server without a measured rate only if at most
/// this part of the remaining bytes is lost by taking it.
const STAKE_PART: u64 = 8;
/// Rate relative to an idle server below which a server crawls. A crawling server is not asked for
/// that piece again.
const CRAWL_SHARE: f64 = 0.25;

/// Measurement of a server's recent delivery rate.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct DeliveryRate {
    since: Option<Instant>,
    bytes: u64,
    bytes_per_s: Option<f64>,
}

impl DeliveryRate {
    /// Starts the measurement at the first request to an idle server.
    pub(super) const fn begin(&mut self, now: Instant) {
        (self.since, self.bytes) = (Some(now), 0);
    }
    /// Records `bytes` received in blocks and coded symbols.
    pub(super) const fn note(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
    /// Last measured rate, in bytes per second.
    pub(super) const fn last(&self) -> Option<f64> {
        self.bytes_per_s
    }
    /// Current rate in bytes per second, once the interval is long enough.
    pub(super) fn bytes_per_s(&mut self, now: Instant) -> Option<f64> {
        let time = self.since.map_or(Duration::ZERO, |since| now.saturating_since(since));
        if time >= PACE_MIN && self.bytes > 0 {
            self.bytes_per_s = Some(self.bytes as f64 / time.as_secs_f64());
            self.begin(now);
        }
        self.bytes_per_s
    }
}

/// A server's share of the missing bytes of a piece.
#[derive(Copy, Clone, Debug)]
pub(super) struct PieceShare {
    /// Fraction of the missing bytes, in proportion to recent rates; 1 if no other server holds the
    /// piece.
    pub(super) share: f64,
    /// Minimum and maximum bytes of one request. A piece with a single holder is requested in
    /// ranges of the maximum.
    pub(super) least: u64,
    pub(super) most: u64,
}

impl<S: Symbol> Client<S> {
    /// The share of `server`, one of `holders`, in a piece.
    pub(super) fn part_of(
        &mut self,
        now: Instant,
        piece: PieceId,
        server: ServerId,
        holders: &[ServerId],
    ) -> PieceShare {
        // The packets of a pull must not exceed the range of packet numbers.
        let block_bytes = self.servers[server.0 as usize].block_bytes;
        let pull_bytes_max = Numbers::of(self.config.rate_control)
            .pull_bytes_max(block_bytes.min(BLOCK_BYTES_MIN), self.config.blocks_of(block_bytes));
        if holders.len() < 2 {
            return PieceShare { share: 1.0, least: pull_bytes_max, most: pull_bytes_max };
        }
        let paces: Vec<Option<f64>> =
            holders.iter().map(|holder| self.servers[holder.0 as usize].pace.bytes_per_s(now)).collect();
        let known: Vec<f64> = paces.iter().copied().flatten().collect();
        // A server without a measured rate counts with the mean rate.
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        let all: f64 = paces.iter().map(|pace| pace.unwrap_or(mean)).sum();
        let own = holders.iter().position(|holder| *holder == server).and_then(|at| paces[at]);
        let rtt = self.servers[server.0 as usize].round_trip().unwrap_or(Duration::ZERO);
        let time = (rtt * PORTION_RTTS).max(PORTION_TIME);
        let share = if all > 0.0 { own.unwrap_or(mean) / all } else { 1.0 / holders.len() as f64 };
        let ranges = self.pieces[piece.0 as usize].piece.ranges.iter().flatten();
        let bytes: u64 = ranges.map(|range| range.end - range.start).sum();
        let alone = if bytes <= ALONE_MAX { bytes } else { 0 };
        match own {
            None => {
                let most = if self.overflow.has_begun() { PORTION_MIN } else { PORTION_FIRST };
                PieceShare { share: share / 2.0, least: alone, most }
            }
            Some(own) => {
                let least = ((own * time.as_secs_f64()) as u64).max(alone).min(pull_bytes_max);
                PieceShare { share, least, most: least.saturating_mul(PORTION_LONG).min(pull_bytes_max) }
            }
        }
    }
}

/// Removes the range of the next pull from `missing`. With a single holder the range is the whole
/// first range, up to the maximum. With several holders its length is half of the server's share,
/// at least [`PieceShare::least`].
///
/// Long pulls save requests. Short pulls at the end let all servers finish together; a pull taken
/// from its server instead would lose the bytes in flight. The minimum is several round trips long,
/// because the next pull is requested while the last one arrives. Source: guided self-scheduling
/// (Polychronopoulos and Kuck, IEEE Transactions on Computers 1987), with half the share. Differs:
/// shares are proportional to recent delivery rates.
pub(super) fn portion(missing: &mut VecDeque<Range<u64>>, part: PieceShare) -> Range<u64> {
    let left: u64 = missing.iter().map(|range| range.end - range.start).sum();
    let first = missing.front_mut().expect("a piece that is queued lacks something");
    let end = if part.share < 1.0 {
        let half = (left as f64 * part.share / 2.0) as u64;
        let length = half.clamp(part.least, part.most).max(PORTION_MIN);
        first.start.saturating_add(length).checked_next_multiple_of(PORTION_MIN).unwrap_or(u64::MAX)
    } else {
        first.start.saturating_add(part.most)
    };
    if end >= first.end {
        return missing.pop_front().expect("it was there");
    }
    let range = first.start..end;
    first.start = end;
    range
}

impl<S: Symbol> Client<S> {
    /// Bytes that the server must send before this pull, if packets of the server's other pulls
    /// have arrived but none of this pull.
    fn awaited(&self, now: Instant, pull: &Pull<S>) -> Option<u64> {
        let is_new = matches!(&pull.state, PullState::Receiving(receiver) if receiver.heard_at().is_none());
        let heard_at = self.servers[pull.server.0 as usize].heard.packet_at;
        let is_busy = heard_at.is_some_and(|at| at >= pull.asked_at && at + LOOK_EVERY > now);
        let left = |other: &Pull<S>| match &other.state {
            PullState::Receiving(receiver) => receiver.layout().bytes() - receiver.complete_bytes(),
            PullState::Asked { .. } => 0,
        };
        let is_before = |other: &&Pull<S>| other.server == pull.server && other.asked_at < pull.asked_at;
        (is_new && is_busy).then(|| self.pulls.values().filter(is_before).map(left).sum())
    }

    /// Whether a pull's server has stopped: its process is frozen, or its path is down. Never true
    /// in [`Mode::Lttp`], whose sender waits as long by itself.
    fn has_stopped(&self, now: Instant, pull: &Pull<S>) -> bool {
        let server = &self.servers[pull.server.0 as usize];
        let since = server.heard.packet_at.max(Some(pull.asked_at)).unwrap_or(pull.asked_at);
        let rtt = server.round_trip().unwrap_or(Duration::ZERO);
        self.config.mode == Mode::Counted && since + STOPPED_MIN.max(rtt * STOPPED_RTTS) <= now
    }

    /// Takes pulls from servers that will end late, if a holder is idle and no range is left to
    /// request. The missing bytes are divided again. A server gets no part of them if it crawls,
    /// has stopped or has sent no packet of the pull, while another holder is left.
    pub(super) fn overtake(&mut self, now: Instant) {
        let is_idle = |server: &ServerState| server.is_connected && server.pulls == 0;
        let is_end = self.queue.is_empty() && self.servers.iter().any(is_idle);
        let at_end = || LOOK_AT_END.max(self.farthest() * LOOK_RTTS).min(LOOK_EVERY);
        let next = now + if is_end { at_end() } else { LOOK_EVERY };
        let look_at = self.look_at.map_or(next, |at| at.min(next));
        self.look_at = Some(look_at);
        if look_at > now {
            return;
        }
        self.look_at = Some(next);
        if !is_end {
            return;
        }
        let numbered = (0..).map(ServerId).zip(&self.servers);
        let mut idle: Vec<ServerId> =
            numbered.filter(|(_, server)| is_idle(server)).map(|(number, _)| number).collect();
        let mut late: Vec<(f64, PullId, f64)> = Vec::new();
        let mut stopped: Vec<PullId> = Vec::new();
        for (id, pull) in &self.pulls {
            if self.has_stopped(now, pull) {
                stopped.push(*id);
                continue;
            }
            let PullState::Receiving(receiver) = &pull.state else { continue };
            let age = now.saturating_since(pull.asked_at);
            // Bytes of incomplete generations are lost with the pull, but count towards its rate.
            let all = receiver.layout().bytes();
            let came = (receiver.complete_bytes() + receiver.held_bytes()).min(all);
            let rate = came as f64 / age.as_secs_f64();
            let (rate, lasts) = match self.awaited(now, pull) {
                None => (rate, (all - came) as f64 / rate),
                Some(before) => {
                    let rate = self.servers[pull.server.0 as usize].pace.bytes_per_s.unwrap_or(0.0);
                    (rate, (before + all) as f64 / rate)
                }
            };
            if age >= LOOK_EVERY && all > came && lasts > SOON_S {
                late.push((lasts, *id, rate));
            }
        }
        // Pulls with the longest remaining time are taken first.
        late.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut has_taken = false;
        for id in stopped {
            let pull = &self.pulls[&id];
            let (server, holders) = (pull.server, self.left(pull.piece));
            if idle.iter().any(|other| holders.contains(other)) {
                self.control.push_back((server, Control::Stop { pull: id }));
                self.set_aside(id, "it has stopped".to_owned());
                has_taken = true;
            }
        }
        for (lasts, id, rate) in late {
            let pull = &self.pulls[&id];
            let (server, holders) = (pull.server, self.left(pull.piece));
            let rate_of = |server: ServerId| self.servers[server.0 as usize].rate_bytes_per_s;
            // A server without a measured rate may be fast enough.
            let helps = |server: &ServerId| {
                holders.contains(server) && rate_of(*server).is_none_or(|other| other > rate)
            };
            let Some(at) = idle.iter().position(helps) else { continue };
            let other = idle[at];
            let PullState::Receiving(receiver) = &pull.state else { continue };
            let left = receiver.layout().bytes() - receiver.complete_bytes();
            // After the change both servers deliver the remaining bytes, lost bytes included.
            let together = rate + rate_of(other).unwrap_or(rate);
            let is_gain = left as f64 / together * GAIN_MIN <= lasts;
            // A server without a measured rate may share the same slow link. The pull is taken only
            // if few bytes are lost by that.
            let is_risk = rate_of(other).is_none() && receiver.held_bytes() * STAKE_PART > left;
            if !is_gain || is_risk {
                continue;
            }
            idle.remove(at);
            let is_silent = matches!(&pull.state, PullState::Receiving(receiver) if receiver.heard_at().is_none())
                && self.awaited(now, pull).is_none();
            self.control.push_back((server, Control::Stop { pull: id }));
            let crawls_beside = rate_of(other).filter(|other| rate < CRAWL_SHARE * other);
            let mbps = |bytes_per_s: f64| bytes_per_s * 8.0 / 1e6;
            if is_silent {
                self.set_aside(id, format!("it sent nothing for {} s", LOOK_EVERY.as_secs_f64()));
            } else if let Some(other) = crawls_beside {
                let reason =
                    format!("it crawls: {:.1} Mbit/s where another brought {:.1}", mbps(rate), mbps(other));
                self.set_aside(id, reason);
            } else {
                self.servers[server.0 as usize].brought(rate);
                self.take_back(id);
                self.regrant(false);
            }
            has_taken = true;
        }
        if has_taken {
            self.schedule(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PORTION_MIN, PieceShare, portion};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn portions_cover_the_missing_bytes_once_in_order(
            lengths in proptest::collection::vec((0u64..1 << 20, 1u64..1 << 24), 1..6), share in 0.01f64..1.5, least in 1u64..1 << 22, more in 0u64..1 << 24,
        ) {
            let mut missing = VecDeque::new();
            let mut at = 0;
            for (gap, length) in lengths {
                missing.push_back(at + gap..at + gap + length);
                at += gap + length;
            }
            let all = missing.clone();
            let mut taken: Vec<std::ops::Range<u64>> = Vec::new();
            while !missing.is_empty() {
                let left: u64 = missing.iter().map(|range| range.end - range.start).sum();
                let part = PieceShare { share: share.min(1.0), least, most: least + more };
                let range = portion(&mut missing, part);
                let half = (left as f64 * share / 2.0) as u64;
                let most = if share >= 1.0 { part.most } else { half.max(least) + 2 * PORTION_MIN };
                prop_assert!(!range.is_empty() && range.end - range.start <= most);
                match taken.last_mut() {
                    Some(last) if last.end == range.start && !all.iter().any(|r| r.start == range.start) => {
                        prop_assert!(share >= 1.0 || range.start.is_multiple_of(PORTION_MIN));
                        last.end = range.end;
                    }
                    _ => taken.push(range),
                }
            }
            prop_assert_eq!(VecDeque::from(taken), all);
        }
    }
}
