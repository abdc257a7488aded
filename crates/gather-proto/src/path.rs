//! The path from a server to one client, as [`RateControl::Bbr`](crate::RateControl) has it: how much of all pulls may be in flight,
//! and when the next packet may leave. A pull begins with what was learnt by those before it.
//!
//! Leaves out: what of a first flight was probably lost (`first`), which packet leaves (`sender`), the model itself ([`anabranch_transport::bbr`]), what clients grant (`server`).

mod first;

use crate::receiver::{ARRIVED_PACKETS, arrived_gap};
use anabranch_transport::bbr::{Bbr, Config, PATH_LOSS_MAX, Sent, Train};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream, Seed};
use first::FirstFlight;

/// The share of what may be in flight that is left to others between probes, where no queue shows that others are there.
///
/// Differs: the draft has 0.15 always. Where the queue holds a tenth of the product of rate and round trip, as much of the rate is lost
/// by it for nobody's good where nobody else is there.
const HEADROOM: f64 = 0.05;
/// What may be in flight before the first feedback: of all servers together what such a rate brings in a round trip, but no more than so
/// many bytes, and of one no more than so many.
///
/// Differs: RFC 6928 has ten packets on any path. One server brings 64 KiB in one flight over 20 ms, where ten packets need three.
/// The flight is paced. QUIC's servers begin with 32 packets (Chromium's default), a browser's six connections with sixty together, and
/// Halfback with 141 kB in a round trip (Li and others, *Halfback: Running Short Flows Quickly and Safely*, 2015). A path
/// that is too slow for it drops packets that are as good as any others: what of it came says how to go on
/// ([`anabranch_transport::bbr`]).
const FIRST_BYTES_PER_S: f64 = 36e6 / 8.0;
const FIRST_BYTES_ALL: u64 = 128_000;
const FIRST_BYTES: u64 = 72_000;
/// It is ten packets at least; of many servers, as many together as a short queue takes; but BBR keeps four in flight at least.
pub(crate) const FIRST_PACKETS: u64 = 10;
pub(crate) const FIRST_PACKETS_ALL: u64 = 64;
pub(crate) const FIRST_PACKETS_MIN: u64 = 4;
/// Where a round trip takes so long, the first flight leaves as a train at such a rate, and the start goes on as fast as that comes: all servers
/// together, as each sees what the client's link carries. Over shorter ways the start takes less (an eighth of the time of 64 MiB over 1 Gbit/s and
/// 20 ms), and slow links hold less than a train.
const TRAIN_RTT_MIN: Duration = Duration::from_ms(50);
const TRAIN_BYTES_PER_S: f64 = 1e9 / 8.0;
/// A grant holds a server down that is less than what the model allows, or hardly more: what arrives is measured no more exactly.
const HELD: f64 = 1.02;
/// What is not heard of for so many round trips, and for so long at least, is lost.
///
/// Differs: RFC 6298 section 5.5 doubles the time at each further silence. A packet of each pull leaves in it, until the pull is given
/// up: some five a second.
const SILENT_RTTS: u64 = 4;
const SILENT_MIN: Duration = Duration::from_ms(200);
/// Where so many round trips are longer than this, it is this, or [`SILENT_LATE_RTTS`] of them: a client gives a pull up of which
/// nothing has come for five seconds, and there has to be time for a second try before.
const SILENT_MAX: Duration = Duration::from_secs(2);
const SILENT_LATE_RTTS: u64 = 2;
/// After a round trip, so many of its deviations, but no less than the least, and what the client may wait, and after twice as long again each
/// time, a packet more leaves than the window has room for: where all that is in flight was lost, what comes of it tells so sooner
/// than patience ends.
///
/// Source: RFC 9002 section 6.2.1, with its granularity. Differs: a path of which nothing was heard deviates by a fourth of its round
/// trip, not by half.
const PROBE_DEVIATIONS: u64 = 4;
const PROBE_DEVIATIONS_MIN: Duration = Duration::from_ms(1);
const DEVIATION_UNHEARD_PART: u64 = 4;
/// The share that may be lost where nothing was heard yet: behind a first flight that holds all there is, two sums leave unasked.
///
/// Differs: TCP and QUIC send nothing twice before something is known to be lost. Of such a flight a packet that is lost costs a round trip,
/// as long as all of it took. Of Google's flows nearly a tenth lost one, and took five times as long as others (Flach and others,
/// *Reducing Web Latency: the Virtue of Gentle Aggression*, 2013).
const LOSS_UNHEARD: f64 = 0.005;
/// Packets over which the share that is lost is reckoned: then both sums are halved.
const LOSS_PACKETS: u64 = 512;
/// How much may leave late and together: so many packets, or what is sent in such a part of a round trip, as long ways have
/// longer queues; and after how long it is too late for that (RFC 5348 section 4.6).
const CATCH_UP_PACKETS: u64 = 4;
const CATCH_UP_RTT_PART: u64 = 16;
const CATCH_UP_MAX: Duration = Duration::from_ms(20);
/// A grant that is higher by this factor than the last one for which a path's rate was looked for has it looked for again.
const LOOKS_AGAIN: f64 = 1.25;
/// The longest time within which packets leave together: as Linux's TCP hands as much to the card at once as it sends in a
/// millisecond (`tcp_tso_autosize`).
const QUANTUM_MAX: Duration = Duration::from_ms(1);

/// How long a packet may be in flight where a round trip takes so long.
fn patience(rtt: Duration) -> Duration {
    (rtt * SILENT_RTTS).min(SILENT_MAX.max(rtt * SILENT_LATE_RTTS)).max(SILENT_MIN)
}

/// How far from this round trip one is in the mean, as long as nothing was heard.
fn unheard_deviation(rtt: Duration) -> Duration {
    Duration::from_ps(rtt.as_ps() / DEVIATION_UNHEARD_PART)
}

/// From when on the time counts in which nothing left though it might have: what a clock or a busy machine has made late is made
/// up for, but for no more packets than a queue takes.
pub(crate) fn made_up_from(now: Instant, gap: Duration, rtt: Option<Duration>) -> Instant {
    let of_rtt = rtt.map_or(Duration::ZERO, |rtt| Duration::from_ps(rtt.as_ps() / CATCH_UP_RTT_PART));
    let most = (gap * CATCH_UP_PACKETS).max(of_rtt).min(CATCH_UP_MAX);
    Instant::ZERO + now.saturating_since(Instant::ZERO + most)
}

/// Packets that are due within this time leave together: where that is wanted (`least`), half a round trip if that is not
/// too long, as a wake for each packet costs more than the packet.
pub(crate) fn quantum(least: Duration, rtt: Option<Duration>) -> Duration {
    let half = rtt.map_or(Duration::ZERO, |rtt| Duration::from_ps(rtt.as_ps() / 2));
    match least {
        Duration::ZERO => Duration::ZERO,
        least => least.max(half.min(QUANTUM_MAX)),
    }
}

/// How long `bytes` take.
pub(crate) fn gap(bytes: u64, bytes_per_s: f64) -> Duration {
    Duration::from_ps((bytes as f64 / bytes_per_s * 1e12) as u64)
}

/// When the next packet may leave that was to leave at `next_at`, where the rate has grown: it waits for what left before it as that
/// takes now.
pub(crate) fn sooner(now: Instant, next_at: Instant, before_bytes_per_s: f64, bytes_per_s: f64) -> Instant {
    let waits = next_at.saturating_since(now).as_ps() as f64;
    if bytes_per_s <= before_bytes_per_s || waits <= 0.0 {
        return next_at;
    }
    now + Duration::from_ps((waits * before_bytes_per_s / bytes_per_s) as u64)
}

/// Bytes that all servers together may have in flight before the first feedback, but for the fewest packets of each.
pub(crate) fn first_bytes_all(rtt: Option<Duration>) -> u64 {
    let in_rtt = rtt.map_or(0.0, |rtt| FIRST_BYTES_PER_S * rtt.as_secs_f64()) as u64;
    in_rtt.min(FIRST_BYTES_ALL)
}

/// Bytes that one of so many servers may have in flight before the first feedback.
fn first_bytes(packet_bytes: u64, rtt: Option<Duration>, servers: u16) -> u64 {
    let servers = u64::from(servers.max(1));
    let packets = (FIRST_PACKETS_ALL / servers).clamp(FIRST_PACKETS_MIN, FIRST_PACKETS);
    (first_bytes_all(rtt) / servers).min(FIRST_BYTES).max(packets * packet_bytes)
}

/// What a report of a pull tells beyond the one before.
#[derive(Copy, Clone, Debug)]
pub(crate) struct News {
    pub(crate) delivered_bytes: u64,
    pub(crate) lost_bytes: u64,
    pub(crate) lost_runs: u32,
    /// The packet that was sent last of those that came, if it is remembered.
    pub(crate) newest: Option<Sent>,
    /// The round trip of that packet, where it is one of those that came since.
    pub(crate) rtt: Option<Duration>,
}

/// A path, while its client is connected.
#[derive(Debug)]
pub(crate) struct Path {
    bbr: Bbr,
    first: FirstFlight,
    random: RandomStream,
    /// Bytes of its packets that are neither known to have come nor to be lost.
    inflight: u64,
    next_at: Instant,
    /// The round trip, and how far from it one is in the mean, both smoothed.
    rtt: Option<Duration>,
    deviation: Duration,
    /// Since when nothing was heard, while something is in flight.
    silent_since: Instant,
    is_waiting: bool,
    /// Packets that have left beyond the window in this silence, when the last one did, and whether one more may.
    probes: u32,
    probed_at: Instant,
    may_probe: bool,
    /// Bytes that were lost, and all.
    lost: f64,
    all: f64,
    packet_bytes: u64,
    /// What the client grants to all pulls on it together, in bytes of datagrams a second.
    ceiling_bytes_per_s: f64,
    /// The highest grant for which the path's rate was looked for from the beginning.
    looked_for_bytes_per_s: f64,
}

impl Path {
    /// A path of which the first pull says its packets' length, the round trip, what it may send and how many servers the client has;
    /// `seed` is another for each server. For what is granted no more than `granted_max` leave before the first feedback.
    pub(crate) fn new(
        now: Instant,
        seed: u32,
        packet_bytes: u64,
        rtt: Option<Duration>,
        (grant, granted_max): (Option<BitRate>, ByteCount),
        servers: u16,
    ) -> Self {
        // What is granted is the client's own link, which it knows: it need not be looked for.
        let granted =
            grant.zip(rtt).map_or(0.0, |(grant, rtt)| grant.as_bps() as f64 / 8.0 * rtt.as_secs_f64());
        let config = Config {
            packet_bytes,
            initial_window_bytes: first_bytes(packet_bytes, rtt, servers)
                .max(((2.0 * granted) as u64).min(granted_max.as_u64())),
            initial_rtt: rtt,
            ack_bytes: ARRIVED_PACKETS * packet_bytes,
            learns_loss: true,
            headroom: HEADROOM,
            senders: servers,
            fits_rtt: true,
            heeds_first_flight: true,
            train: Some(Train { bytes_per_s: TRAIN_BYTES_PER_S, rtt_min: TRAIN_RTT_MIN }),
            seed: Seed::new(seed.into()),
        };
        Self {
            random: config.seed.stream("path", 0),
            bbr: Bbr::new(now, config),
            first: FirstFlight::default(),
            inflight: 0,
            next_at: now,
            rtt,
            deviation: rtt.map_or(Duration::ZERO, unheard_deviation),
            silent_since: now,
            is_waiting: false,
            probes: 0,
            probed_at: now,
            may_probe: false,
            lost: 0.0,
            all: 0.0,
            packet_bytes,
            ceiling_bytes_per_s: f64::INFINITY,
            looked_for_bytes_per_s: 0.0,
        }
    }

    /// The client grants so much, in bytes of datagrams a second.
    pub(crate) fn set_ceiling(&mut self, now: Instant, bytes_per_s: f64) {
        let before = self.rate_bytes_per_s();
        self.ceiling_bytes_per_s = bytes_per_s;
        if bytes_per_s.is_finite()
            && bytes_per_s > self.bbr.pacing_bytes_per_s()
            && bytes_per_s > LOOKS_AGAIN * self.looked_for_bytes_per_s
        {
            // The client knows what its last hop carries: what this path has learnt beside others is too little.
            self.looked_for_bytes_per_s = bytes_per_s;
            self.bbr.start_anew();
        }
        self.next_at = sooner(now, self.next_at, before, self.rate_bytes_per_s());
    }

    /// A pull has packets of so many bytes: the longest ones count.
    pub(crate) fn fit(&mut self, packet_bytes: u64) {
        if packet_bytes > self.packet_bytes {
            self.packet_bytes = packet_bytes;
            self.bbr.set_packet_bytes(packet_bytes);
        }
    }

    /// Bytes of datagrams that may leave in a second now.
    pub(crate) const fn rate_bytes_per_s(&self) -> f64 {
        self.bbr.pacing_bytes_per_s().min(self.ceiling_bytes_per_s)
    }
    /// The round trip, smoothed.
    pub(crate) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }
    /// Whether the last round trip has shown a queue, or none is over yet.
    pub(crate) const fn has_queue(&self) -> bool {
        !self.bbr.is_calm()
    }
    /// The share that was lost lately, or may be; what is more than a path's own loss was lost by a flight that was too long.
    pub(crate) fn loss_share(&self) -> f64 {
        if self.all > 0.0 { (self.lost / self.all).min(PATH_LOSS_MAX) } else { LOSS_UNHEARD }
    }

    /// The packet that has just left was a sum that nobody has asked for.
    pub(crate) const fn note_unasked(&mut self, bytes: u64) {
        self.first.note_unasked(bytes);
    }

    /// Packets of the first flight that are probably lost, not known to be and not made up for: see [`first`].
    pub(crate) fn lost_unheard(&self) -> u32 {
        let bytes = self.bbr.min_rtt().map_or(0, |rtt| self.first.overflow(self.packet_bytes, rtt));
        (bytes / self.packet_bytes) as u32
    }

    /// Whether a packet more fits into the window, or asks for a word.
    pub(crate) const fn has_room(&self) -> bool {
        let fits = self.inflight + self.packet_bytes <= self.bbr.window_bytes() || self.inflight == 0;
        fits || self.may_probe
    }
    /// When the next packet may leave, as far as pacing goes.
    pub(crate) const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// A packet leaves.
    pub(crate) fn handle_sent(&mut self, now: Instant, bytes: u64) -> Sent {
        if !std::mem::replace(&mut self.is_waiting, true) {
            self.silent_since = now;
        }
        if std::mem::take(&mut self.may_probe) {
            (self.probes, self.probed_at) = (self.probes + 1, now);
        }
        if self.inflight == 0 {
            // Idle time is not lateness.
            self.next_at = self.next_at.max(now);
        }
        self.inflight += bytes;
        self.first.note_sent(bytes);
        let gap = gap(bytes, self.rate_bytes_per_s());
        self.next_at = self.next_at.max(made_up_from(now, gap, self.rtt)) + gap;
        let sent = self.bbr.handle_sent(now, bytes, self.inflight);
        if self.ceiling_bytes_per_s < HELD * self.bbr.pacing_bytes_per_s() {
            // What arrives tells of the grant, and not of the path.
            self.bbr.note_held();
        }
        sent
    }

    /// There is room, and nothing to be sent.
    pub(crate) fn handle_idle(&mut self, now: Instant) {
        self.bbr.note_app_limited();
        // Idle time is not lateness.
        self.next_at = self.next_at.max(now);
    }

    /// A pull's packets in flight are `now` bytes in place of `before`: it has ended, or was heard of.
    pub(crate) const fn set_inflight(&mut self, before: u64, now: u64) {
        self.inflight = self.inflight.saturating_sub(before) + now;
    }

    /// So many bytes count as lost, though the client has not said so.
    pub(crate) fn handle_written_off(&mut self, bytes: u64) {
        self.bbr.handle_written_off(bytes);
    }

    /// A client has said what came. What it says is in flight was set before.
    pub(crate) fn handle_news(&mut self, now: Instant, news: &News) {
        (self.silent_since, self.is_waiting) = (now, self.inflight > 0);
        (self.probes, self.may_probe) = (0, false);
        if let Some(rtt) = news.rtt {
            let mean =
                |old: u64, new: u64, parts: u64| Duration::from_ps(old / parts * (parts - 1) + new / parts);
            (self.rtt, self.deviation) = match self.rtt.map(Duration::as_ps) {
                None => (Some(rtt), unheard_deviation(rtt)),
                Some(old) => {
                    let off = old.abs_diff(rtt.as_ps());
                    (Some(mean(old, rtt.as_ps(), 8)), mean(self.deviation.as_ps(), off, 4))
                }
            };
        }
        self.first.note_news(now, news.delivered_bytes, news.lost_bytes);
        self.lost += news.lost_bytes as f64;
        self.all += (news.lost_bytes + news.delivered_bytes) as f64;
        if self.all > (LOSS_PACKETS * self.packet_bytes) as f64 {
            (self.lost, self.all) = (self.lost / 2.0, self.all / 2.0);
        }
        match &news.newest {
            Some(newest) => {
                self.bbr.handle_delivered(now, news.delivered_bytes, newest);
                if news.lost_bytes > 0 {
                    self.bbr.handle_lost(now, news.lost_bytes, newest, news.lost_runs);
                }
            }
            // Without what was known of it neither rate nor losses can be judged.
            None => self.bbr.handle_late(now, news.delivered_bytes),
        }
        let before = self.rate_bytes_per_s();
        self.bbr.handle_ack(now, self.inflight, news.rtt);
        self.next_at = sooner(now, self.next_at, before, self.rate_bytes_per_s());
        if news.lost_bytes > 0 && self.ceiling_bytes_per_s < self.bbr.pacing_bytes_per_s() {
            self.shift();
        }
    }

    /// Packets of servers that are granted as much leave in the same beat, and those that meet in a full queue meet there each time
    /// (Floyd and Jacobson, *On Traffic Phase Effects in Packet-Switched Gateways*, 1992). After a loss the next packets leave at
    /// another time of the beat, drawn at random, as often sooner as later. A server that loses nothing keeps its time, as in
    /// reservation ALOHA (Crowther and others, 1973).
    fn shift(&mut self) {
        let gap = gap(self.packet_bytes, self.rate_bytes_per_s());
        let sooner = Duration::from_ps(gap.as_ps() / 2);
        let later = Duration::from_ps(self.random.below(gap.as_ps().max(1)));
        self.next_at = Instant::ZERO + self.next_at.saturating_since(Instant::ZERO + sooner) + later;
    }

    /// How long a packet may be in flight.
    pub(crate) fn patience(&self) -> Duration {
        self.rtt.map_or(SILENT_MIN, patience)
    }

    /// When silence is too long; none where all that was sent was heard of.
    fn silent_at(&self) -> Option<Instant> {
        self.is_waiting.then(|| self.silent_since + self.patience())
    }
    /// When a packet more may leave to break it.
    fn probe_at(&self) -> Option<Instant> {
        let rtt = self.rtt?;
        let deviations = (self.deviation * PROBE_DEVIATIONS).max(PROBE_DEVIATIONS_MIN);
        let wait = (rtt + deviations + arrived_gap(rtt)) * (1 << self.probes.min(16));
        let at = self.silent_since.max(self.probed_at) + wait;
        (self.is_waiting && !self.may_probe).then_some(at)
    }
    /// When to call [`Path::handle_timeout`] next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.silent_at().into_iter().chain(self.probe_at()).min()
    }

    /// Tells that `now` has come; true where nothing was heard for long.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        if self.silent_at().is_none_or(|at| at > now) {
            self.may_probe |= self.probe_at().is_some_and(|at| at <= now);
            return false;
        }
        (self.probes, self.may_probe) = (0, false);
        self.silent_since = now;
        self.next_at = self.next_at.max(now);
        self.bbr.handle_timeout();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue #19: where packets came late the next try was after the client had given the pull up.
    #[test]
    fn there_is_time_for_a_second_try_before_a_client_gives_a_pull_up() {
        let give_up = crate::ClientConfig::default().give_up;
        for ms in [1, 20, 100, 600, 1_000, 1_200] {
            let rtt = Duration::from_ms(ms);
            assert!(patience(rtt) >= rtt * SILENT_LATE_RTTS && patience(rtt) >= SILENT_MIN);
            assert!(patience(rtt) * 2 < give_up, "{ms} ms");
        }
        assert_eq!(patience(Duration::from_ms(100)), Duration::from_ms(400));
    }

    #[test]
    fn the_first_flight_is_long_where_that_saves_round_trips_and_short_where_many_begin() {
        let packets =
            |ms: u64, servers: u16| first_bytes(1_500, Some(Duration::from_ms(ms)), servers) / 1_500;
        // 64 KiB are 46 packets.
        assert_eq!([packets(1, 1), packets(16, 1), packets(250, 1)], [10, 48, 48]);
        assert_eq!([packets(20, 3), packets(100, 3), packets(100, 32)], [20, 28, 4]);
        assert_eq!(first_bytes(9_000, Some(Duration::from_ms(1)), 1), 90_000);
        assert_eq!(first_bytes(1_500, None, 1), 15_000);
    }

    /// #19: of a first flight that was too long four fifths were lost, and four times as many sums left unasked as were lacking.
    #[test]
    fn what_a_flight_lost_that_was_too_long_is_not_what_the_path_loses() {
        let mut path =
            Path::new(Instant::ZERO, 1, 1_500, Some(Duration::from_ms(20)), (None, ByteCount::ZERO), 1);
        let newest = Some(path.handle_sent(Instant::ZERO, 1_500));
        let (delivered_bytes, lost_bytes) = (10 * 1_500, 38 * 1_500);
        let news = News { delivered_bytes, lost_bytes, lost_runs: 1, newest, rtt: None };
        path.handle_news(Instant::ZERO + Duration::from_ms(20), &news);
        assert!((0.1..0.2).contains(&path.loss_share()), "{}", path.loss_share());
    }

    /// #19: two round trips and 10 ms were twelve of them over a short way, and say nothing of a queue that comes and goes.
    #[test]
    fn a_path_asks_soon_where_round_trips_are_alike_and_waits_for_the_long_ones_where_they_are_not() {
        let waits = |rtts_ms: [u64; 2]| {
            let mut now = Instant::ZERO;
            let mut path =
                Path::new(now, 1, 1_500, Some(Duration::from_ms(rtts_ms[0])), (None, ByteCount::ZERO), 1);
            for rtt in rtts_ms.into_iter().cycle().take(100).map(Duration::from_ms) {
                let newest = Some(path.handle_sent(now, 1_500));
                now += rtt;
                let news =
                    News { delivered_bytes: 1_500, lost_bytes: 0, lost_runs: 0, newest, rtt: Some(rtt) };
                path.set_inflight(1_500, 0);
                path.handle_news(now, &news);
            }
            path.handle_sent(now, 1_500);
            path.probe_at().expect("a packet is in flight").saturating_since(now)
        };
        assert!(waits([1, 1]) < Duration::from_us(2_200));
        assert!(waits([20, 20]) < Duration::from_us(23_600));
        assert!(waits([20, 60]) > Duration::from_ms(60));
    }

    /// #19: of 32 servers on a short queue a third had lost all of their first packets, and stood for 200 ms.
    #[test]
    fn a_path_that_hears_nothing_asks_ever_more_rarely_before_patience_ends() {
        let rtt = Duration::from_ms(1);
        let mut now = Instant::ZERO;
        let mut path = Path::new(now, 1, 1_500, Some(rtt), (None, ByteCount::ZERO), 1);
        let mut sent_at = Vec::new();
        let end = now + patience(rtt);
        loop {
            while path.has_room() && path.next_at() <= now {
                path.handle_sent(now, 1_500);
                sent_at.push(now);
            }
            let next = path.poll_timeout().into_iter().chain(path.has_room().then(|| path.next_at())).min();
            now = next.expect("it waits for a word").max(now);
            if now >= end {
                break;
            }
            assert!(!path.handle_timeout(now), "patience has ended");
        }
        let asked: Vec<u64> =
            sent_at[FIRST_PACKETS as usize..].iter().map(|at| at.as_ns() / 1_000_000).collect();
        assert_eq!(asked, [2, 6, 14, 31, 65, 133]);
    }
}
