//! Tests of each rule of the RFC, and of both halves over a link.

use super::*;
use anabranch_units::{Duration, Instant};

const SIZE: u32 = 1_000;

fn ms(n: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(n)
}
fn config() -> SenderConfig {
    SenderConfig {
        size: SIZE,
        timeout: TcpTimeout::FourRtt,
        initial_bytes_per_s: 0.0,
        reduces_oscillation: false,
        gap_max_s: GAP_MAX_S,
        timer_min_s: 0.0,
        slow_start: SlowStart::Rfc,
    }
}
/// A report without delay on a packet sent at `sent`.
fn report(sent: u64, received_bytes_per_s: f64, loss_rate: f64) -> Report {
    Report { sent_at: ms(sent), delay: Duration::ZERO, received_bytes_per_s, loss_rate }
}

#[test]
fn throughput_equation_matches_worked_values() {
    // Without the term for timeouts the equation is s / (R sqrt(2p / 3)): 1,000 bytes, 100 ms, one
    // loss in a hundred packets.
    let simple = 1_000.0 / (0.1 * (0.02f64 / 3.0).sqrt());
    assert!((throughput_bytes_per_s(1_000.0, 0.1, 0.0, 0.01) - simple).abs() < 1e-6);
    // With that term and t_RTO = 4 R: 1000 / (0.0081650 + 0.4 * 3 * 0.0612372 * 0.01 * 1.0032) =
    // 112,332.
    assert!((throughput_bytes_per_s(1_000.0, 0.1, 0.4, 0.01) - 112_332.0).abs() < 1.0);
    for p in [1e-6, 1e-3, 0.02, 0.3] {
        let back = loss_rate_for(throughput_bytes_per_s(1_000.0, 0.05, 0.2, p), 1_000.0, 0.05, 0.2);
        assert!((back / p - 1.0).abs() < 1e-5, "{p}: {back}");
    }
}

#[test]
fn first_report_raises_the_rate_to_tcps_initial_window() {
    let mut sender = Sender::new(ms(0), config());
    assert_eq!(sender.rate_bytes_per_s(), 1_000.0);
    assert_eq!(sender.timer(), ms(2_000));
    sender.handle_report(ms(100), &report(0, 1_000.0, 0.0), false);
    assert_eq!(sender.rtt(), Some(Duration::from_ms(100)));
    // min(4 s, max(2 s, 4380)) = 4,000 bytes in a round trip of 0.1 s.
    assert_eq!(sender.rate_bytes_per_s(), 40_000.0);
}

#[test]
fn slow_start_doubles_up_to_twice_the_receive_rate() {
    let mut sender = Sender::new(ms(0), config());
    sender.handle_report(ms(100), &report(0, 1_000.0, 0.0), false);
    sender.handle_report(ms(200), &report(100, 40_000.0, 0.0), false);
    assert_eq!(sender.rate_bytes_per_s(), 80_000.0);
    sender.handle_report(ms(250), &report(150, 80_000.0, 0.0), false);
    assert_eq!(sender.rate_bytes_per_s(), 80_000.0, "half a round trip later");
    sender.handle_report(ms(320), &report(220, 50_000.0, 0.0), false);
    assert_eq!(sender.rate_bytes_per_s(), 160_000.0, "twice the best of the last two round trips");
    sender.handle_report(ms(700), &report(600, 50_000.0, 0.0), false);
    assert_eq!(sender.rate_bytes_per_s(), 100_000.0);
}

#[test]
fn rate_after_a_loss_follows_equation_and_receive_rate() {
    let mut sender = Sender::new(ms(0), config());
    sender.handle_report(ms(100), &report(0, 1_000.0, 0.0), false);
    sender.handle_report(ms(200), &report(100, 1e9, 0.01), false);
    let equation = throughput_bytes_per_s(1_000.0, 0.1, 0.4, 0.01);
    assert!((sender.rate_bytes_per_s() - equation).abs() < 1.0);
    sender.handle_report(ms(600), &report(500, 30_000.0, 0.01), false);
    assert_eq!(sender.rate_bytes_per_s(), 60_000.0);
    // If the sender was data-limited, a new loss lets the receive rate count only in part.
    sender.handle_report(ms(700), &report(600, 40_000.0, 0.02), true);
    assert_eq!(sender.rate_bytes_per_s(), 34_000.0, "0.85 of what arrived");
}

#[test]
fn silence_halves_the_rate_and_idle_time_keeps_it() {
    let mut sender = Sender::new(ms(0), config());
    sender.handle_timeout(ms(2_000), false);
    assert_eq!(sender.rate_bytes_per_s(), 500.0, "no report yet");
    let mut sender = Sender::new(ms(0), config());
    sender.handle_report(ms(100), &report(0, 1_000.0, 0.0), false);
    assert_eq!(sender.timer(), ms(500), "four round trips");
    sender.handle_timeout(ms(500), true);
    assert_eq!(sender.rate_bytes_per_s(), 40_000.0);
    sender.handle_timeout(ms(900), false);
    assert_eq!(sender.rate_bytes_per_s(), 20_000.0);
    let mut sender = Sender::new(ms(0), config());
    sender.handle_report(ms(100), &report(0, 1_000.0, 0.0), false);
    sender.handle_report(ms(200), &report(100, 1e6, 0.01), false);
    let equation = sender.rate_bytes_per_s();
    sender.handle_timeout(ms(600), false);
    assert!((sender.rate_bytes_per_s() - equation / 2.0).abs() < 1.0, "half of the equation's");
    let least = 1_000.0 / 64.0;
    for n in 0..40 {
        sender.handle_timeout(ms(1_000 + n), false);
    }
    assert!(sender.rate_bytes_per_s() >= least);
}

#[test]
fn longer_round_trip_slows_only_the_instantaneous_rate() {
    let mut sender = Sender::new(
        ms(0),
        SenderConfig { reduces_oscillation: true, gap_max_s: GAP_MAX_S, timer_min_s: 0.0, ..config() },
    );
    sender.handle_report(ms(100), &report(0, 1_000.0, 0.0), false);
    assert_eq!(sender.rate_bytes_per_s(), 40_000.0);
    // The last round trip is 400 ms. The mean of roots is 0.9 sqrt 0.1 + 0.1 sqrt 0.4; it is
    // divided by sqrt 0.4.
    sender.handle_report(ms(500), &report(100, 1e6, 0.0), false);
    let ratio = (0.9 * 0.1f64.sqrt() + 0.1 * 0.4f64.sqrt()) / 0.4f64.sqrt();
    assert!((sender.rate_bytes_per_s() - 80_000.0 * ratio).abs() < 1.0, "{}", sender.rate_bytes_per_s());
}

/// Runs a stream over a link of 50 ms that loses the packets for which `is_lost` is true. Returns
/// the mean rate of the last half in bytes per second, and the loss event rate p.
fn run(slow_start: SlowStart, seconds: u64, is_lost: impl Fn(u64) -> bool) -> (f64, f64) {
    let mut sender = Sender::new(ms(0), SenderConfig { slow_start, ..config() });
    let mut receiver = Receiver::new(SIZE, TcpTimeout::FourRtt, slow_start);
    let (wire, end) = (Duration::from_ms(50), Instant::ZERO + Duration::from_secs(seconds));
    let (mut sent_at, mut sequence) = (ms(0), 0u64);
    let (mut data, mut reports) = (std::collections::VecDeque::new(), std::collections::VecDeque::new());
    let (mut half_bytes, half) = (0u64, Instant::ZERO + Duration::from_secs(seconds / 2));
    loop {
        let due = |queue: &std::collections::VecDeque<(Instant, Arrival)>| queue.front().map(|(at, _)| *at);
        let next_report = reports.front().map(|(at, _): &(Instant, Report)| *at);
        let now = [Some(sent_at), due(&data), next_report, receiver.poll_timeout(), Some(sender.timer())];
        let now = now.into_iter().flatten().min().expect("there is always a timer");
        if now > end {
            return (half_bytes as f64 / (seconds - seconds / 2) as f64, receiver.loss_rate());
        }
        if data.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, arrival)) = data.pop_front()
        {
            receiver.handle_packet(now, &arrival);
        }
        if let Some(report) = receiver.poll_report(now) {
            reports.push_back((now + wire, report));
        }
        if reports.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, report)) = reports.pop_front()
        {
            sender.handle_report(now, &report, false);
        }
        if sender.timer() <= now {
            sender.handle_timeout(now, false);
        }
        if sent_at <= now {
            let arrival = Arrival { sequence, bytes: SIZE, sent_at: now, rtt: sender.rtt() };
            if !is_lost(sequence) {
                data.push_back((now + wire, arrival));
            }
            half_bytes += if now >= half { u64::from(SIZE) } else { 0 };
            sequence += 1;
        }
        if sent_at <= now {
            sent_at = now + sender.gap();
        }
    }
}

#[test]
fn rate_under_regular_losses_follows_the_equation() {
    let periods = [50, 200, 1_000].map(|period| [(SlowStart::Rfc, period), (SlowStart::Eager, period)]);
    for (slow_start, period) in periods.into_iter().flatten() {
        let (rate, p) = run(slow_start, 120, |sequence| sequence % period == period - 1);
        assert!((p * period as f64 - 1.0).abs() < 0.05, "one in {period}: p {p}");
        let equation = throughput_bytes_per_s(1_000.0, 0.1, 0.4, 1.0 / period as f64);
        assert!(
            (rate / equation - 1.0).abs() < 0.05,
            "one in {period}: {rate}, the equation says {equation}"
        );
    }
}

#[test]
fn losses_within_a_round_trip_are_one_event() {
    let mut receiver = Receiver::new(SIZE, TcpTimeout::FourRtt, SlowStart::Rfc);
    let mut arrive = |sequence: u64| {
        let at = ms(sequence);
        receiver.handle_packet(
            at,
            &Arrival { sequence, bytes: SIZE, sent_at: at, rtt: Some(Duration::from_ms(100)) },
        );
        receiver.poll_report(at);
    };
    for sequence in (0..1_000).filter(|n| ![500, 503, 510, 540, 700].contains(n)) {
        arrive(sequence);
    }
    // There are two loss events: at packet 500 and 200 packets later. The 300 packets since then
    // are the open interval.
    let mut expected = LossIntervals::default();
    expected.begin(500, || receiver.first_interval());
    expected.begin(700, || 0.0);
    assert_eq!(receiver.loss_rate(), expected.rate(1_000));
}

#[test]
fn rate_below_one_rtt_does_not_set_first_interval() {
    let rate_after_loss = |first_rtt: Option<Duration>| {
        let mut receiver = Receiver::new(SIZE, TcpTimeout::FourRtt, SlowStart::Rfc);
        // Two packets arrive together, before a round trip is known; then one packet arrives per
        // millisecond.
        for sequence in (0..1_000).filter(|n| *n != 900) {
            let at = if sequence == 1 { Instant::ZERO + Duration::from_us(1) } else { ms(sequence) };
            let rtt = if sequence < 2 { first_rtt } else { Some(Duration::from_ms(100)) };
            receiver.handle_packet(at, &Arrival { sequence, bytes: SIZE, sent_at: at, rtt });
            receiver.poll_report(at);
        }
        throughput_bytes_per_s(SIZE.into(), 0.1, 0.4, receiver.loss_rate())
    };
    let (unknown, known) = (rate_after_loss(None), rate_after_loss(Some(Duration::from_ms(100))));
    assert!((0.9e6..1.1e6).contains(&unknown), "{unknown} B/s, where 1,000,000 came");
    assert!((unknown / known - 1.0).abs() < 0.1, "{unknown} and {known} B/s");
}

#[test]
fn eager_start_is_several_times_as_fast() {
    let (rfc, _) = run(SlowStart::Rfc, 2, |_| false);
    let (eager, _) = run(SlowStart::Eager, 2, |_| false);
    // The interval after the first packet is a second. In the ten round trips after it, the eager
    // start doubles the rate 8 times, and the RFC's start 5 times.
    assert!((3.0..8.0).contains(&(eager / rfc)), "{eager} and {rfc} B/s");
}

#[test]
fn eager_start_doubles_the_receive_rate_until_queues_grow() {
    let mut sender = Sender::new(ms(0), SenderConfig { slow_start: SlowStart::Eager, ..config() });
    sender.handle_report(ms(100), &report(0, 10_000.0, 0.0), false);
    sender.handle_report(ms(200), &report(100, 40_000.0, 0.0), false);
    assert_eq!(sender.rate_bytes_per_s(), 80_000.0);
    sender.handle_report(ms(225), &report(125, 70_000.0, 0.0), false);
    assert_eq!(sender.rate_bytes_per_s(), 140_000.0, "a quarter of a round trip later");
    // A round trip of 112 ms is not yet an eighth longer than 100 ms; 113 ms is.
    sender.handle_report(ms(250), &report(138, 80_000.0, 0.0), false);
    assert_eq!(sender.rate_bytes_per_s(), 160_000.0);
    sender.handle_report(ms(275), &report(162, 80_000.0, 0.0), false);
    assert_eq!(sender.rate_bytes_per_s(), 85_000.0);
}

#[test]
fn losses_of_an_eager_start_are_one_event() {
    let rate = |lost: &[u64]| {
        let mut receiver = Receiver::new(SIZE, TcpTimeout::FourRtt, SlowStart::Eager);
        for sequence in (0..1_500).filter(|n| !lost.contains(n)) {
            let rtt = Some(Duration::from_ms(100));
            receiver
                .handle_packet(ms(sequence), &Arrival { sequence, bytes: SIZE, sent_at: ms(sequence), rtt });
            receiver.poll_report(ms(sequence));
        }
        receiver.loss_rate()
    };
    assert_eq!(rate(&[500, 550, 640, 690]), rate(&[500]));
    assert!(rate(&[500, 710]) > rate(&[500]));
    assert_eq!(rate(&[500, 800, 890]), rate(&[500, 800]), "of later ones in one");
    assert!(rate(&[500, 800, 910]) > rate(&[500, 800]));
}
