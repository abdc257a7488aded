//! Clients that acknowledge more packets than they receive, behind a full link, in virtual time.

use anabranch_endpoint::{Bytes, Message as _};
use anabranch_gather_proto::msg::{ArrivalReport, Control, Feedback, Packet, PullId, Report, Request};
use anabranch_gather_proto::receipt::{Receipt, ReceivedPackets, WINDOW};
use anabranch_gather_proto::{Mode, Offer, RateControl, Server, ServerConfig, ServerEvent};
use anabranch_transport::tfrc;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::VecDeque;

/// Rate of the client's link, its round-trip time, its one-way delay, and the length of its queue
/// as a time.
const LINK: BitRate = BitRate::mbps(50);
const RTT: Duration = Duration::from_ms(20);
const ONE_WAY: Duration = Duration::from_ms(10);
const QUEUE_MAX: Duration = Duration::from_ms(20);
/// Interval between feedbacks of a client.
const EVERY: Duration = Duration::from_ms(1);

/// A client's false statements.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum FalseStatement {
    /// The client makes no false statement.
    None,
    /// The client knows how many packets were sent, acknowledges every packet, and guesses nonces.
    All,
    /// Receipts are true; counts and rates are the highest possible values.
    Counts,
    /// As [`Self::Counts`], but the client reports only when few of the latest packets were lost.
    BestCounts,
    /// The client grants the highest rate, and gives no feedback.
    Grant,
}

/// Result of a pull.
#[derive(Debug)]
struct Outcome {
    sent_bytes: u64,
    sent_packets: u32,
    came_bytes: u64,
    cut_at: Option<Instant>,
}

/// Feedback of a client that has received `came` packets, all below `next`.
fn feedback(
    lie: FalseStatement,
    rate_control: RateControl,
    (next, came, base): (u32, u32, u32),
    receipt: Receipt,
    sent_at: Instant,
) -> Feedback {
    let received = if lie == FalseStatement::None { came } else { next };
    let lost = next - received;
    let report = match rate_control {
        RateControl::Bbr => {
            Report::Arrived(ArrivalReport { delay: Duration::ZERO, received, lost, runs: lost })
        }
        RateControl::Tfrc => Report::Tfrc(tfrc::Report {
            sent_at,
            delay: Duration::ZERO,
            received_bytes_per_s: f64::MAX,
            loss_rate: 0.0,
        }),
    };
    let lacks = vec![20];
    Feedback {
        pull: PullId(0),
        next,
        receipt,
        report: Some(report),
        grant: None,
        base,
        lacks,
        is_unsaid: false,
    }
}

/// Runs a pull of a client with this false statement for `time`.
fn pull(lie: FalseStatement, rate_control: RateControl, time: Duration, secret: u64) -> Outcome {
    let mut server = Server::<Bytes>::new(ServerConfig::default());
    let pull = PullId(0);
    let request = Request {
        pull,
        object: "x".into(),
        start: 0,
        length: None,
        is_cut: false,
        mode: Mode::Counted,
        rate_control,
        block_bytes: 1_400,
        blocks_max: 64,
        window: 1_023,
        grant: (lie == FalseStatement::Grant).then(|| BitRate::bps(1 << 50)),
        start_after: Duration::ZERO,
        rtt: Some(if lie == FalseStatement::Grant { Duration::from_secs(1) } else { RTT }),
        servers: 1,
    };
    server.handle_control(Instant::ZERO, Control::Pull(request));
    server.offer(Instant::ZERO, pull, Offer { object_bytes: 1 << 32, first_id: 0, secret });
    let block = Bytes::from(vec![7; 1_400]);
    let mut now = Instant::ZERO;
    let mut outcome = Outcome { sent_bytes: 0, sent_packets: 0, came_bytes: 0, cut_at: None };
    let (mut way, mut back) = (VecDeque::<(Instant, Instant, Packet<Bytes>)>::new(), VecDeque::new());
    let (mut free_at, mut feedback_at) = (Instant::ZERO, Instant::ZERO);
    let mut received = ReceivedPackets::default();
    let (mut next, mut came, mut newest_at) = (0, 0, Instant::ZERO);
    let mut told = 0;
    while now < Instant::ZERO + time && outcome.cut_at.is_none() {
        while let Some((pull, generation, range)) = server.poll_wanted() {
            let blocks = (range.end - range.start).div_ceil(1_400) as usize;
            server.supply(pull, generation, vec![block.clone(); blocks]);
        }
        while let Some(packet) = server.poll_transmit(now) {
            let bytes = ByteCount::new(u64::from(packet.wire_len()) + 56);
            outcome.sent_bytes += bytes.as_u64();
            outcome.sent_packets += 1;
            if free_at.saturating_since(now) <= QUEUE_MAX {
                free_at = free_at.max(now) + LINK.transmit_time(bytes);
                way.push_back((free_at + ONE_WAY, now, packet));
            }
        }
        let at = [server.poll_timeout(), way.front().map(|way| way.0), back.front().map(|(at, _)| *at)];
        now = at.into_iter().flatten().chain([feedback_at]).min().expect("a time").max(now);
        while let Some((_, sent_at, packet)) = due(&mut way, |way| way.0 <= now) {
            received.handle_packet(packet.sequence, packet.nonce);
            (next, came) = (next.max(packet.sequence + 1), came + 1);
            newest_at = sent_at;
            outcome.came_bytes += u64::from(packet.wire_len()) + 56;
        }
        if feedback_at <= now {
            feedback_at = now + EVERY;
            let told_now = match lie {
                FalseStatement::All => {
                    let known = received.receipt();
                    Some((outcome.sent_packets, Receipt { came: all(outcome.sent_packets), ..known }))
                }
                FalseStatement::BestCounts => {
                    let receipt = received.receipt();
                    let few = receipt.came.count_ones() < WINDOW / 5 && next - told < 2_000;
                    (!few).then_some((next, receipt))
                }
                FalseStatement::Grant => None,
                FalseStatement::None | FalseStatement::Counts => Some((next, received.receipt())),
            };
            if let Some((next, receipt)) = told_now.filter(|(next, _)| *next > told) {
                told = next;
                let base = next / 64 / 2;
                back.push_back((
                    now + ONE_WAY,
                    feedback(lie, rate_control, (next, came, base), receipt, newest_at),
                ));
            }
        }
        while let Some((_, feedback)) = due(&mut back, |(at, _)| *at <= now) {
            server.handle_feedback(now, &feedback);
        }
        server.handle_timeout(now);
        while let Some(event) = server.poll_event() {
            if let ServerEvent::FalseReceipt { packets, .. } = event {
                assert_eq!(packets, outcome.sent_packets);
                outcome.cut_at = Some(now);
            }
        }
    }
    outcome
}

/// Removes the first element, if it is due.
fn due<T>(all: &mut VecDeque<T>, is_due: impl Fn(&T) -> bool) -> Option<T> {
    if all.front().is_some_and(is_due) { all.pop_front() } else { None }
}

/// Bitmap of a receipt for all packets below `next`, within the window.
fn all(next: u32) -> u32 {
    u32::MAX.checked_shr(WINDOW - next.min(WINDOW)).unwrap_or(0)
}

/// Sending rate of a pull, as a multiple of the link's rate.
fn of_link(lie: FalseStatement, rate_control: RateControl) -> f64 {
    let time = Duration::from_secs(10);
    let outcome = pull(lie, rate_control, time, 1);
    assert_eq!(outcome.cut_at, None, "{lie:?}");
    outcome.sent_bytes as f64 * 8.0 / time.as_secs_f64() / LINK.as_bps() as f64
}

/// Issue #48: a client that acknowledged all packets made a server send 1 Gbit/s into 50 Mbit/s.
#[test]
fn false_acknowledgements_end_a_pull_in_its_first_flight() {
    for rate_control in RateControl::ALL {
        for secret in 0..50 {
            let outcome = pull(FalseStatement::All, rate_control, Duration::from_secs(10), secret);
            assert!(
                outcome.cut_at.is_some() && outcome.sent_bytes <= 80_000,
                "{rate_control:?}: {outcome:?}"
            );
        }
    }
}

/// Issue #48: the receipts are true, but the counts are not.
#[test]
fn inflated_counts_yield_a_few_times_the_link_rate() {
    let honest = of_link(FalseStatement::None, RateControl::Bbr);
    assert!((0.9..1.2).contains(&honest), "{honest}");
    for lie in [FalseStatement::Counts, FalseStatement::BestCounts] {
        for (rate_control, most) in [(RateControl::Bbr, 2.5), (RateControl::Tfrc, 4.5)] {
            let rate = of_link(lie, rate_control);
            assert!(rate < most, "{lie:?}, {rate_control:?}: {rate} times the link");
        }
    }
}

/// Issue #48: a grant of 1 Pbit/s over 1 s caused a first flight of that size.
#[test]
fn grant_without_receipts_yields_a_bounded_flight() {
    let most = ServerConfig::default().unproven_max.as_u64();
    // TFRC's timer expires twice before the pull ends.
    for (rate_control, flights) in [(RateControl::Bbr, 1), (RateControl::Tfrc, 3)] {
        let outcome = pull(FalseStatement::Grant, rate_control, Duration::from_secs(10), 1);
        let payload = outcome.sent_bytes - 56 * u64::from(outcome.sent_packets);
        assert!(payload <= flights * most + 40_000, "{rate_control:?}: {outcome:?}");
    }
}
