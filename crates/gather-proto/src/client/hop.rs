//! The client's last hop: the share of its rate granted to each server, and the redistribution of
//! unused shares.
//!
//! Leaves out: the arithmetic of shares ([`share`]), the hop's rate if it is not configured
//! (`link`), and the assignment of pieces (`client`, `balance`).

use super::came::{Servers, Totals};
use super::{Client, Pull, PullState, ServerState};
use crate::grants::share;
use crate::mode::RateControl;
use crate::msg::Packet;
use anabranch_codes::Symbol;
use anabranch_units::{BitRate, Duration, Instant};

/// Minimum interval over which the servers' use of their grants is measured.
const MEASURE_MIN: Duration = Duration::from_ms(20);
/// Minimum number of packets that each server's grant allows in that interval.
const MEASURE_PACKETS: u64 = 16;
/// Maximum ratio of a server's round-trip time to the median; longer round-trip times are outliers.
const FAR_TIMES: u64 = 4;
/// Share of its grant below which a server's unused grant is lent to other servers.
const USED_SHARE: f64 = 0.7;
/// Minimum grant, relative to an equal share, of a server that has few bytes left to send.
const ENDING_LEAST: f64 = 0.25;

impl<S: Symbol> Pull<S> {
    /// Number of bytes still to arrive; `None` if unknown.
    fn rest(&self) -> Option<u64> {
        match &self.state {
            PullState::Asked { .. } => Some(self.range.1? - self.range.0),
            PullState::Receiving(receiver) => {
                let came = receiver.complete_bytes() + receiver.held_bytes();
                Some(receiver.layout().bytes().saturating_sub(came))
            }
        }
    }
}

impl ServerState {
    /// Records the rate of an ended pull.
    pub(super) fn brought(&mut self, rate_bytes_per_s: f64) {
        self.rate_bytes_per_s =
            Some(self.rate_bytes_per_s.map_or(rate_bytes_per_s, |best| best.max(rate_bytes_per_s)));
    }

    /// Best estimate of the round-trip time, if known: the lower of two measurements. If the first
    /// packet of a connection is lost, connecting takes a second longer, and later requests are
    /// answered sooner. (Measurements of the link use the round-trip time of connecting only.)
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.rtt.map(|rtt| self.answered.map_or(rtt, |answered| rtt.min(answered)))
    }
}

impl<S: Symbol> Client<S> {
    /// Total rate that may be granted, in bits of datagrams per second; `None` for no limit.
    pub(super) fn granted_bps(&self) -> Option<f64> {
        let datagram = self.datagram_bytes();
        let on_link = datagram + f64::from(self.config.overhead_bytes);
        let stated = self.config.link;
        let stated = stated.map(|link| link.as_bps() as f64 * self.config.link_share * datagram / on_link);
        stated.or_else(|| Some(self.overflow.allowed_bytes_per_s()? * 8.0))
    }

    /// Begins a common start of all servers, if necessary and if the link's rate is unknown.
    pub(super) fn begin_together(&mut self, now: Instant) {
        let is_known = self.config.link.is_some() || self.config.rate_control != RateControl::Bbr;
        if is_known || self.overflow.has_begun() {
            return;
        }
        // Counts servers that connect later, because they may get requests, too.
        let servers = self.servers.iter().filter(|server| server.lost.is_none()).count();
        let (rtt, packet_bytes) = (self.farthest(), self.datagram_bytes());
        self.overflow.begin(now, servers, rtt, packet_bytes);
    }

    /// Number of servers with requests.
    pub(super) fn busy(&self) -> usize {
        self.servers.iter().filter(|server| server.pulls > 0).count()
    }

    /// Size in bytes of the shortest packets that servers send. Longer packets have less header
    /// overhead.
    pub(super) fn datagram_bytes(&self) -> f64 {
        let shortest = self.servers.iter().map(|server| server.block_bytes).min();
        let header = Packet::<S>::header_bytes(self.config.rate_control);
        f64::from(header + shortest.unwrap_or(self.config.block_bytes))
    }

    /// Round-trip time to the farthest server, as measured when connecting. Outliers are ignored,
    /// because a lost packet makes a server seem a second away.
    pub(super) fn farthest(&self) -> Duration {
        let mut rtts: Vec<Duration> = self.servers.iter().filter_map(|server| server.rtt).collect();
        rtts.sort_unstable();
        let Some(middle) = rtts.get(rtts.len().saturating_sub(1) / 2).copied() else { return Duration::ZERO };
        rtts.into_iter().rfind(|rtt| *rtt <= middle * FAR_TIMES).unwrap_or(middle)
    }

    /// Transmission time of one packet at the total granted rate.
    pub(super) fn slot(&self) -> Duration {
        let bits = 8.0 * self.datagram_bytes();
        self.granted_bps().map_or(Duration::ZERO, |bps| Duration::from_ps((bits / bps * 1e12) as u64))
    }

    /// Divides the rate of the last hop. With `only_lowers` no grant rises: a share taken from one
    /// server may be given to another only after the first server has received its lower grant.
    pub(super) fn regrant(&mut self, only_lowers: bool) {
        let Some(capacity) = self.granted_bps() else {
            let rates = self.left_over();
            return self.grant(|pull| rates[pull.server.0 as usize]);
        };
        let is_asked = |server: &&ServerState| server.pulls > 0;
        let mut demands: Vec<Option<f64>> =
            self.servers.iter().filter(is_asked).map(|server| server.demand).collect();
        // The first connected server must not be granted the whole link, because it would keep that
        // rate until it receives a lower grant. If all servers begin as one, the total rate is low
        // anyway.
        let awaited = self.servers.iter().filter(|server| !server.was_asked && server.lost.is_none()).count();
        let keeps = self.awaits_until.is_some() && !self.overflow.is_starting();
        let awaited = if keeps { awaited } else { 0 };
        demands.extend(std::iter::repeat_n(None, awaited));
        let mut shares = share(capacity, &demands);
        if awaited == 0 {
            self.end_together(&mut shares, &demands);
        }
        let mut shares = shares.into_iter();
        // With one rate control per path, each pull of a server carries the server's whole rate.
        // With one per pull, the server's pulls divide the rate evenly.
        let has_path = self.config.rate_control == RateControl::Bbr;
        let of_pull = |server: &ServerState| {
            let share = if server.pulls > 0 { shares.next() } else { None };
            let pulls = if has_path { 1.0 } else { f64::from(server.pulls) };
            share.map(|share| BitRate::bps((share / pulls) as u64).max(BitRate::bps(1)))
        };
        let of_pull: Vec<Option<BitRate>> = self.servers.iter().map(of_pull).collect();
        self.grant(|pull| {
            let rate = of_pull[pull.server.0 as usize];
            let old = pull.grant();
            if only_lowers { old.into_iter().chain(rate).min() } else { rate }
        });
    }

    /// Divides the shares of servers that use their full grants in proportion to the bytes that
    /// each server still has to send. The link then stays full to the end. Applies only once no
    /// range of the last unfinished piece is left to request.
    fn end_together(&self, shares: &mut [f64], demands: &[Option<f64>]) {
        let has_path = self.config.rate_control == RateControl::Bbr;
        if !has_path || self.unfinished != 1 || !self.queue.is_empty() {
            return;
        }
        let mut rests = vec![0.0; self.servers.len()];
        for pull in self.pulls.values() {
            let Some(rest) = pull.rest() else { return };
            rests[pull.server.0 as usize] += rest as f64;
        }
        let asked = self.servers.iter().zip(rests).filter(|(server, _)| server.pulls > 0);
        let asked = asked.map(|(_, rest)| rest).enumerate();
        let all: Vec<(usize, f64)> = asked.filter(|(at, _)| demands[*at].is_none()).collect();
        let rest: f64 = all.iter().map(|(_, rest)| rest).sum();
        // All bytes have arrived but are not reported yet, so no share is needed.
        if rest <= 0.0 {
            return;
        }
        let least = ENDING_LEAST * rest / all.len() as f64;
        let share: f64 = all.iter().map(|(at, _)| shares[*at]).sum();
        let weight: f64 = all.iter().map(|(_, rest)| rest.max(least)).sum();
        for (at, rest) in all {
            shares[at] = share * rest.max(least) / weight;
        }
    }

    /// Grants of slow servers, if the client does not divide the link's rate and some servers have
    /// run out of requests. A server below an equal part of the link is granted that part, so that
    /// it probes for more at once.
    fn left_over(&self) -> Vec<Option<BitRate>> {
        let busy = self.busy();
        let is_idle = |server: &ServerState| server.is_connected && server.was_asked && server.pulls == 0;
        let is_ending = self.queue.is_empty() && self.servers.iter().any(is_idle);
        let part = self.overflow.carried_bytes_per_s() / busy.max(1) as f64;
        let of_server = |server: &ServerState| {
            // A server without a measured rate is still searching for its rate.
            let is_slow = server.pace.last().is_some_and(|brings| part > brings);
            (is_ending && is_slow && server.pulls > 0).then(|| BitRate::bps((part * 8.0) as u64))
        };
        self.servers.iter().map(of_server).collect()
    }

    fn grant(&mut self, of: impl Fn(&Pull<S>) -> Option<BitRate>) {
        for (id, pull) in &mut self.pulls {
            let rate = of(pull);
            match &mut pull.state {
                PullState::Asked { grant, .. } => *grant = rate,
                PullState::Receiving(receiver) => {
                    receiver.set_grant(rate);
                    if receiver.is_regranted() {
                        pull.touch(*id, &mut self.touched);
                    }
                }
            }
        }
    }

    /// Measures the rate of the last hop, and finds servers that use less than their grants.
    pub(super) fn measure(&mut self, now: Instant) {
        if self.awaits_until.is_some_and(|until| until <= now) {
            self.awaits_until = None;
            self.regrant(false);
        }
        let rtt = self.farthest();
        if self.config.link.is_none() && self.config.rate_control == RateControl::Bbr {
            let counts = self.counts();
            let totals = Totals {
                bytes: self.came_bytes,
                packets: counts.packets,
                queued: self.came_queued,
                lost: counts.lost,
            };
            let heard = self.servers.iter().filter(|server| server.heard.packet_at.is_some()).count();
            let servers = Servers { asked: self.busy(), heard, awaits: self.awaits_until.is_some(), rtt };
            if self.overflow.observe(now, totals, servers) {
                self.regrant(false);
            }
        }
        let Some(capacity) = self.granted_bps() else { return };
        let since = *self.measured_at.get_or_insert(now);
        let time = now.saturating_since(since);
        let busy = self.busy();
        let packets = self.slot() * (MEASURE_PACKETS * busy as u64);
        if time < MEASURE_MIN.max(rtt * 4).max(packets) {
            return;
        }
        self.measured_at = Some(now);
        let mut granted = vec![0.0_f64; self.servers.len()];
        let has_path = self.config.rate_control == RateControl::Bbr;
        for pull in self.pulls.values() {
            let (granted, grant) = (&mut granted[pull.server.0 as usize], pull.grant());
            let grant = grant.map_or(0.0, |grant| grant.as_bps() as f64);
            *granted = if has_path { granted.max(grant) } else { *granted + grant };
        }
        // The grant of a server with low use keeps some headroom, so that a rise of its demand is
        // detected.
        let least = capacity / 8.0 / busy.max(1) as f64;
        let (mut changed, mut lowers, mut came) = (false, false, 0.0);
        for (server, granted) in self.servers.iter_mut().zip(granted) {
            let bits = 8.0 * std::mem::take(&mut server.bytes) as f64;
            came += bits;
            let used = bits / time.as_secs_f64();
            // A server that joined during the interval is not judged by the interval.
            let is_new = server.asked_at.is_none_or(|at| at + rtt * 2 > since);
            let uses_little = server.pulls > 0 && !is_new && used < USED_SHARE * granted;
            let twice = std::mem::replace(&mut server.used_little, uses_little);
            let demand = (uses_little && twice).then(|| (1.5 * used).max(least));
            changed |= demand.is_some() || server.demand.is_some();
            lowers |= demand.is_some_and(|demand| demand < granted);
            server.demand = demand;
        }
        if changed || self.is_lowered {
            self.regrant(lowers);
        }
        self.is_lowered = lowers;
        if self.note_came(capacity, came, time.as_secs_f64()) {
            self.schedule(now);
        }
    }
}
