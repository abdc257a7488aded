//! The path from a server to one client, as [`RateControl::Bbr`](crate::RateControl) models it: the
//! bytes in flight of all pulls, and the time of the next packet. A new pull starts from the state
//! that earlier pulls learned.
//!
//! Leaves out: probable losses of the first flight (`first`), the choice of packets (`sender`), the
//! model itself ([`anabranch_transport::bbr`]), clients' grants (`server`).

mod first;

use crate::receiver::{ARRIVED_PACKETS, arrived_gap};
use anabranch_transport::bbr::{Bbr, Config, PATH_LOSS_MAX, SendRecord, Train};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream, Seed};
use first::FirstFlight;

/// Share of the in-flight limit that is left to competing flows between probes, if no queue shows
/// such flows.
///
/// Differs: the draft always has 0.15. If the queue holds a tenth of the bandwidth-delay product,
/// 0.15 wastes as much of the rate when there is no competing flow.
const HEADROOM: f64 = 0.05;
/// Rate that gives the initial window before the first feedback. All servers together may send the
/// bytes of a round trip at this rate, at most `FIRST_BYTES_ALL`. One server may send at most
/// `FIRST_BYTES`.
///
/// Differs: RFC 6928 has ten packets on any path. With this window one server delivers 64 KiB in
/// one flight over 20 ms, where ten packets need three flights. The flight is paced. QUIC servers
/// begin with 32 packets (Chromium's default), a browser's six connections with sixty together, and
/// Halfback with 141 kB in a round trip (Li and others, *Halfback: Running Short Flows Quickly and
/// Safely*, 2015). A path that is too slow drops some packets, and with the code every arriving
/// packet is useful. The part that arrives sets the further rate ([`anabranch_transport::bbr`]).
const FIRST_BYTES_PER_S: f64 = 36e6 / 8.0;
const FIRST_BYTES_ALL: u64 = 128_000;
const FIRST_BYTES: u64 = 72_000;
/// Initial window in packets: at least `FIRST_PACKETS` for one server, at most `FIRST_PACKETS_ALL`
/// for many servers together, because a short queue holds no more. Each server has at least
/// `FIRST_PACKETS_MIN`, because BBR keeps at least four packets in flight.
pub(crate) const FIRST_PACKETS: u64 = 10;
pub(crate) const FIRST_PACKETS_ALL: u64 = 64;
pub(crate) const FIRST_PACKETS_MIN: u64 = 4;
/// Round-trip time from which the first flight leaves as a train at the rate `TRAIN_BYTES_PER_S`.
/// The start then continues at the train's arriving rate, for all servers together, because each
/// server measures the client's link. On shorter paths the start costs less (an eighth of the time
/// of 64 MiB over 1 Gbit/s and 20 ms), and slow links hold less than a train.
const TRAIN_RTT_MIN: Duration = Duration::from_ms(50);
const TRAIN_BYTES_PER_S: f64 = 1e9 / 8.0;
/// Ratio of the grant to the model's rate below which the grant limits a server. Measurements of
/// arrivals are no more exact than this ratio.
const HELD: f64 = 1.02;
/// Duration of silence after which packets in flight count as lost, in round trips, with a minimum
/// in time.
///
/// Differs: RFC 6298 section 5.5 doubles the timeout at each further silence. Here the timeout is
/// constant, and one packet of each pull leaves per timeout until the pull ends: about five packets
/// a second.
const SILENT_RTTS: u64 = 4;
const SILENT_MIN: Duration = Duration::from_ms(200);
/// Maximum silence before packets count as lost, or [`SILENT_LATE_RTTS`] round trips if longer. A
/// client tolerates 32 round trips of silence by default, at least 5 s and at most 60 s, which
/// leaves time for eight tries.
const SILENT_MAX: Duration = Duration::from_secs(2);
const SILENT_LATE_RTTS: u64 = 2;
/// Parameters of the probe timeout: the number of mean deviations added to a round trip, the
/// minimum of that sum, and the deviation of an unmeasured path as a part (a divisor) of its
/// round-trip time. The client's feedback delay is added, and the timeout doubles with each probe.
/// A probe is one packet beyond the window. If everything in flight was lost, feedback on the probe
/// shows the loss before the long timeout.
///
/// Source: RFC 9002 section 6.2.1, with its granularity. Differs: the deviation of an unmeasured
/// path is a fourth of its round trip, not half.
const PROBE_DEVIATIONS: u64 = 4;
const PROBE_DEVIATIONS_MIN: Duration = Duration::from_ms(1);
const DEVIATION_UNHEARD_PART: u64 = 4;
/// Loss rate assumed before the first feedback. With this rate two unrequested sums follow a first
/// flight that holds the whole object.
///
/// Differs: TCP and QUIC repeat nothing before a loss is known. In a first flight a lost packet
/// costs a round trip, as long as the whole transfer. Nearly a tenth of Google's flows had a loss,
/// and took five times as long as the other flows (Flach and others, *Reducing Web Latency: the
/// Virtue of Gentle Aggression*, 2013).
const LOSS_UNHEARD: f64 = 0.005;
/// Number of packets over which the loss rate is averaged. Beyond it both sums are halved.
const LOSS_PACKETS: u64 = 512;
/// Maximum catch-up after lateness: the longer of the time of `CATCH_UP_PACKETS` packets and a
/// `CATCH_UP_RTT_PART`-th of a round trip, as long paths have longer queues, but at most
/// `CATCH_UP_MAX` (RFC 5348 section 4.6).
const CATCH_UP_PACKETS: u64 = 4;
const CATCH_UP_RTT_PART: u64 = 16;
const CATCH_UP_MAX: Duration = Duration::from_ms(20);
/// Factor by which a grant must exceed the last grant that restarted the search for the path's
/// rate.
const LOOKS_AGAIN: f64 = 1.25;
/// Maximum interval of packets that leave together. Linux's TCP likewise passes to the network card
/// the bytes of one millisecond at a time (`tcp_tso_autosize`).
const QUANTUM_MAX: Duration = Duration::from_ms(1);

/// Time after which a packet in flight counts as lost, if the round-trip time is `rtt`.
pub(crate) fn patience(rtt: Duration) -> Duration {
    (rtt * SILENT_RTTS).min(SILENT_MAX.max(rtt * SILENT_LATE_RTTS)).max(SILENT_MIN)
}

/// Mean deviation of the round-trip time `rtt` assumed before the first feedback.
fn unheard_deviation(rtt: Duration) -> Duration {
    Duration::from_ps(rtt.as_ps() / DEVIATION_UNHEARD_PART)
}

/// Start of the idle time that pacing may make up for at `now`. Lateness of a clock or a busy
/// machine is made up for, but with no more packets than a queue holds.
pub(crate) fn made_up_from(now: Instant, gap: Duration, rtt: Option<Duration>) -> Instant {
    let of_rtt = rtt.map_or(Duration::ZERO, |rtt| Duration::from_ps(rtt.as_ps() / CATCH_UP_RTT_PART));
    let most = (gap * CATCH_UP_PACKETS).max(of_rtt).min(CATCH_UP_MAX);
    Instant::ZERO + now.saturating_since(Instant::ZERO + most)
}

/// Interval within which due packets leave together: at least `least` and up to half a round trip,
/// because a wake-up costs more than a packet. Zero if `least` is zero.
pub(crate) fn quantum(least: Duration, rtt: Option<Duration>) -> Duration {
    let half = rtt.map_or(Duration::ZERO, |rtt| Duration::from_ps(rtt.as_ps() / 2));
    match least {
        Duration::ZERO => Duration::ZERO,
        least => least.max(half.min(QUANTUM_MAX)),
    }
}

/// Transmission time of `bytes` bytes.
pub(crate) fn gap(bytes: u64, bytes_per_s: f64) -> Duration {
    Duration::from_ps((bytes as f64 / bytes_per_s * 1e12) as u64)
}

/// Earlier time of the next packet, due at `next_at`, after the rate has grown. The remaining wait
/// shrinks in proportion.
pub(crate) fn sooner(now: Instant, next_at: Instant, before_bytes_per_s: f64, bytes_per_s: f64) -> Instant {
    let waits = next_at.saturating_since(now).as_ps() as f64;
    if bytes_per_s <= before_bytes_per_s || waits <= 0.0 {
        return next_at;
    }
    now + Duration::from_ps((waits * before_bytes_per_s / bytes_per_s) as u64)
}

/// Maximum bytes in flight of all servers together before the first feedback, apart from each
/// server's minimum packets.
pub(crate) fn first_bytes_all(rtt: Option<Duration>) -> u64 {
    let in_rtt = rtt.map_or(0.0, |rtt| FIRST_BYTES_PER_S * rtt.as_secs_f64()) as u64;
    in_rtt.min(FIRST_BYTES_ALL)
}

/// Maximum bytes in flight of one of `servers` servers before the first feedback.
fn first_bytes(packet_bytes: u64, rtt: Option<Duration>, servers: u16) -> u64 {
    let servers = u64::from(servers.max(1));
    let packets = (FIRST_PACKETS_ALL / servers).clamp(FIRST_PACKETS_MIN, FIRST_PACKETS);
    (first_bytes_all(rtt) / servers).min(FIRST_BYTES).max(packets * packet_bytes)
}

/// Change from one report of a pull to the next.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ReportDelta {
    pub(crate) delivered_bytes: u64,
    pub(crate) lost_bytes: u64,
    pub(crate) lost_runs: u32,
    /// Record of the last sent packet among the packets that arrived, if the record is kept.
    pub(crate) newest: Option<SendRecord>,
    /// Round-trip time of that packet, if the packet arrived since the last report.
    pub(crate) rtt: Option<Duration>,
}

/// A server's path to a connected client.
#[derive(Debug)]
pub(crate) struct Path {
    bbr: Bbr,
    first: FirstFlight,
    random: RandomStream,
    /// Bytes of packets neither acknowledged nor lost.
    inflight: u64,
    next_at: Instant,
    /// Smoothed round-trip time, and its smoothed mean deviation.
    rtt: Option<Duration>,
    deviation: Duration,
    /// Start of the current silence.
    silent_since: Instant,
    /// Whether packets are in flight, so that silence is measured.
    is_waiting: bool,
    /// Number of probes, packets sent beyond the window, in this silence.
    probes: u32,
    /// Time of the last probe.
    probed_at: Instant,
    /// Whether another probe may leave.
    may_probe: bool,
    /// Decaying sums of lost bytes, and of lost and delivered bytes together.
    lost: f64,
    all: f64,
    packet_bytes: u64,
    /// The client's grant for all pulls together, in datagram bytes per second.
    ceiling_bytes_per_s: f64,
    /// Highest grant that has restarted the search for the path's rate.
    looked_for_bytes_per_s: f64,
}

impl Path {
    /// A path with the parameters of its first pull: packet length, round-trip time, grant and
    /// number of servers. `seed` differs between servers. A grant allows at most `granted_max`
    /// bytes before the first feedback.
    pub(crate) fn new(
        now: Instant,
        seed: u32,
        packet_bytes: u64,
        rtt: Option<Duration>,
        (grant, granted_max): (Option<BitRate>, ByteCount),
        servers: u16,
    ) -> Self {
        // The grant reflects the client's link rate, which the client knows, so no search is
        // needed.
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

    /// Sets the client's grant, in datagram bytes per second.
    pub(crate) fn set_ceiling(&mut self, now: Instant, bytes_per_s: f64) {
        let before = self.rate_bytes_per_s();
        self.ceiling_bytes_per_s = bytes_per_s;
        if bytes_per_s.is_finite()
            && bytes_per_s > self.bbr.pacing_bytes_per_s()
            && bytes_per_s > LOOKS_AGAIN * self.looked_for_bytes_per_s
        {
            // The client knows the rate of its last hop. The rate learned for this path among
            // competing flows is therefore too low.
            self.looked_for_bytes_per_s = bytes_per_s;
            self.bbr.start_anew();
        }
        self.next_at = sooner(now, self.next_at, before, self.rate_bytes_per_s());
    }

    /// Raises the packet length to a new pull's packet length, if longer.
    pub(crate) fn fit(&mut self, packet_bytes: u64) {
        if packet_bytes > self.packet_bytes {
            self.packet_bytes = packet_bytes;
            self.bbr.set_packet_bytes(packet_bytes);
        }
    }

    /// Current rate, in datagram bytes per second.
    pub(crate) const fn rate_bytes_per_s(&self) -> f64 {
        self.bbr.pacing_bytes_per_s().min(self.ceiling_bytes_per_s)
    }
    /// Smoothed round-trip time.
    pub(crate) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }
    /// Whether the last round trip showed a queue, or no round trip has ended yet.
    pub(crate) const fn has_queue(&self) -> bool {
        !self.bbr.is_calm()
    }
    /// Recent or assumed loss rate, capped at the maximum of a path's own loss. A higher loss rate
    /// is caused by a flight that was too long.
    pub(crate) fn loss_share(&self) -> f64 {
        if self.all > 0.0 { (self.lost / self.all).min(PATH_LOSS_MAX) } else { LOSS_UNHEARD }
    }

    /// Records that the packet just sent, of `bytes` bytes, was an unrequested sum.
    pub(crate) const fn note_unasked(&mut self, bytes: u64) {
        self.first.note_unasked(bytes);
    }

    /// Number of packets of the first flight that are probably lost, not yet reported as lost, and
    /// not yet replaced: see [`first`].
    pub(crate) fn lost_unheard(&self) -> u32 {
        let bytes = self.bbr.min_rtt().map_or(0, |rtt| self.first.overflow(self.packet_bytes, rtt));
        (bytes / self.packet_bytes) as u32
    }

    /// Whether the window has room for a packet, or a probe may leave.
    pub(crate) const fn has_room(&self) -> bool {
        let fits = self.inflight + self.packet_bytes <= self.bbr.window_bytes() || self.inflight == 0;
        fits || self.may_probe
    }
    /// Time at which pacing allows the next packet.
    pub(crate) const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Records a packet sent at `now`.
    pub(crate) fn handle_sent(&mut self, now: Instant, bytes: u64) -> SendRecord {
        if !std::mem::replace(&mut self.is_waiting, true) {
            self.silent_since = now;
        }
        if std::mem::take(&mut self.may_probe) {
            (self.probes, self.probed_at) = (self.probes + 1, now);
        }
        if self.inflight == 0 {
            // Idle time is not made up for as lateness.
            self.next_at = self.next_at.max(now);
        }
        self.inflight += bytes;
        self.first.note_sent(bytes);
        let gap = gap(bytes, self.rate_bytes_per_s());
        self.next_at = self.next_at.max(made_up_from(now, gap, self.rtt)) + gap;
        let sent = self.bbr.handle_sent(now, bytes, self.inflight);
        if self.ceiling_bytes_per_s < HELD * self.bbr.pacing_bytes_per_s() {
            // Arrivals then reflect the grant, not the path's capacity.
            self.bbr.note_held();
        }
        sent
    }

    /// Handles the case that the window has room but no packet can be sent.
    pub(crate) fn handle_idle(&mut self, now: Instant) {
        self.bbr.note_app_limited();
        // Idle time is not made up for as lateness.
        self.next_at = self.next_at.max(now);
    }

    /// Updates a pull's bytes in flight from `before` to `now`, after feedback or its end.
    pub(crate) const fn set_inflight(&mut self, before: u64, now: u64) {
        self.inflight = self.inflight.saturating_sub(before) + now;
    }

    /// Counts `bytes` as lost without the client's report.
    pub(crate) fn handle_written_off(&mut self, bytes: u64) {
        self.bbr.handle_written_off(bytes);
    }

    /// Handles a client's report, after the bytes in flight have been updated.
    pub(crate) fn handle_news(&mut self, now: Instant, news: &ReportDelta) {
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
            // Without the newest packet's record, neither the rate nor the losses can be judged.
            None => self.bbr.handle_late(now, news.delivered_bytes),
        }
        let before = self.rate_bytes_per_s();
        self.bbr.handle_ack(now, self.inflight, news.rtt);
        self.next_at = sooner(now, self.next_at, before, self.rate_bytes_per_s());
        if news.lost_bytes > 0 && self.ceiling_bytes_per_s < self.bbr.pacing_bytes_per_s() {
            self.shift();
        }
    }

    /// Shifts the pacing phase. Servers with equal grants send in the same rhythm, and packets that
    /// meet in a full queue meet there every time (Floyd and Jacobson, *On Traffic Phase Effects in
    /// Packet-Switched Gateways*, 1992). After a loss the next packets leave at a random phase, as
    /// often sooner as later. A server without losses keeps its phase, as in reservation ALOHA
    /// (Crowther and others, 1973).
    fn shift(&mut self) {
        let gap = gap(self.packet_bytes, self.rate_bytes_per_s());
        let sooner = Duration::from_ps(gap.as_ps() / 2);
        let later = Duration::from_ps(self.random.below(gap.as_ps().max(1)));
        self.next_at = Instant::ZERO + self.next_at.saturating_since(Instant::ZERO + sooner) + later;
    }

    /// Time after which a packet in flight counts as lost.
    pub(crate) fn patience(&self) -> Duration {
        self.rtt.map_or(SILENT_MIN, patience)
    }

    /// End of the tolerated silence; `None` if no packet is in flight.
    fn silent_at(&self) -> Option<Instant> {
        self.is_waiting.then(|| self.silent_since + self.patience())
    }
    /// Time of the next probe; `None` if no packet is in flight or a probe is already due.
    fn probe_at(&self) -> Option<Instant> {
        let rtt = self.rtt?;
        let deviations = (self.deviation * PROBE_DEVIATIONS).max(PROBE_DEVIATIONS_MIN);
        let wait = (rtt + deviations + arrived_gap(rtt)) * (1 << self.probes.min(16));
        let at = self.silent_since.max(self.probed_at) + wait;
        (self.is_waiting && !self.may_probe).then_some(at)
    }
    /// Time of the next call of [`Path::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.silent_at().into_iter().chain(self.probe_at()).min()
    }

    /// Handles the passing of time up to `now`. Returns true after a long silence.
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

    #[test]
    fn patience_is_at_least_two_round_trips() {
        for ms in [1, 20, 100, 600, 1_000, 1_200] {
            let rtt = Duration::from_ms(ms);
            assert!(patience(rtt) >= rtt * SILENT_LATE_RTTS && patience(rtt) >= SILENT_MIN);
        }
        assert_eq!(patience(Duration::from_ms(100)), Duration::from_ms(400));
    }

    #[test]
    fn first_flight_is_long_if_that_saves_round_trips() {
        let packets =
            |ms: u64, servers: u16| first_bytes(1_500, Some(Duration::from_ms(ms)), servers) / 1_500;
        // 64 KiB are 46 packets.
        assert_eq!([packets(1, 1), packets(16, 1), packets(250, 1)], [10, 48, 48]);
        assert_eq!([packets(20, 3), packets(100, 3), packets(100, 32)], [20, 28, 4]);
        assert_eq!(first_bytes(9_000, Some(Duration::from_ms(1)), 1), 90_000);
        assert_eq!(first_bytes(1_500, None, 1), 15_000);
    }

    /// Issue #19: four fifths of an excessive first flight were lost, and four times as many
    /// unrequested sums left as packets were missing.
    #[test]
    fn losses_of_a_long_flight_are_not_path_loss() {
        let mut path =
            Path::new(Instant::ZERO, 1, 1_500, Some(Duration::from_ms(20)), (None, ByteCount::ZERO), 1);
        let newest = Some(path.handle_sent(Instant::ZERO, 1_500));
        let (delivered_bytes, lost_bytes) = (10 * 1_500, 38 * 1_500);
        let news = ReportDelta { delivered_bytes, lost_bytes, lost_runs: 1, newest, rtt: None };
        path.handle_news(Instant::ZERO + Duration::from_ms(20), &news);
        assert!((0.1..0.2).contains(&path.loss_share()), "{}", path.loss_share());
    }

    /// Issue #19: the probe waited two round trips and 10 ms. That is twelve round trips on a short
    /// path, and ignores a queue whose length varies.
    #[test]
    fn probe_timeout_follows_the_spread_of_round_trips() {
        let waits = |rtts_ms: [u64; 2]| {
            let mut now = Instant::ZERO;
            let mut path =
                Path::new(now, 1, 1_500, Some(Duration::from_ms(rtts_ms[0])), (None, ByteCount::ZERO), 1);
            for rtt in rtts_ms.into_iter().cycle().take(100).map(Duration::from_ms) {
                let newest = Some(path.handle_sent(now, 1_500));
                now += rtt;
                let news = ReportDelta {
                    delivered_bytes: 1_500,
                    lost_bytes: 0,
                    lost_runs: 0,
                    newest,
                    rtt: Some(rtt),
                };
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

    /// Issue #19: of 32 servers on a short queue, a third had lost all their first packets and
    /// stalled for 200 ms.
    #[test]
    fn silent_path_is_probed_with_back_off_until_timeout() {
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
