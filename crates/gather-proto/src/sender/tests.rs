//! Tests of the server's end of a pull: the packets that leave after given feedback.

use super::*;
use crate::receipt::{Receipt, ReceivedPackets};
use anabranch_endpoint::Bytes;

/// Issue #19: a slow path had not delivered a part of a long first flight. That part was sent again
/// in full before any feedback on it.
#[test]
fn unacknowledged_packets_shorten_the_next_flight() {
    let (mut sender, mut path) = of(100 << 10);
    let blocks = sender.layout().blocks(0);
    assert_eq!(leave(&mut sender, &mut path, Instant::ZERO), 51, "72 kB");
    // One packet has arrived, and then no other packet for a long time.
    for (ms, delay) in [(20, 0), (60, 40)] {
        hear(&mut sender, &mut path, ms * 1_000, Duration::from_ms(delay), [1, 0], blocks - 1);
    }
    let more = leave(&mut sender, &mut path, Instant::ZERO + Duration::from_ms(60));
    assert!((9..=12).contains(&more), "{more}");
}

/// Issue #19: half of the first flight of 64 KiB over 10 Mbit/s was lost, and no packet left for a
/// round trip until the loss was known.
#[test]
fn sums_follow_a_flight_that_exceeds_a_slow_path() {
    for (gap_us, least) in [(1_200, 12), (120, 0)] {
        let (mut sender, mut path) = of(64 << 10);
        let blocks = sender.layout().blocks(0);
        assert_eq!(leave(&mut sender, &mut path, Instant::ZERO), 49, "47 blocks and two sums");
        for came in 1..=8 {
            let at = 20_000 + u64::from(came) * gap_us;
            hear(&mut sender, &mut path, at, Duration::ZERO, [came, 0], blocks - came);
        }
        let more = leave(&mut sender, &mut path, Instant::ZERO + Duration::from_ms(30));
        assert!((least..=14).contains(&more) && (more == 0) == (least == 0), "{more} with {gap_us} us");
    }
}

/// Probable losses of a flight are replaced once, and not once by each pull.
#[test]
fn pulls_of_the_same_path_repair_the_flight_once() {
    let (mut one, mut path) = of(32 << 10);
    let (mut other, _) = of(32 << 10);
    let left = leave(&mut one, &mut path, Instant::ZERO) + leave(&mut other, &mut path, Instant::ZERO);
    assert_eq!(left, 50, "24 blocks of each, and two sums");
    let blocks = one.layout().blocks(0);
    for came in 1..=8 {
        hear(&mut one, &mut path, 20_000 + u64::from(came) * 1_200, Duration::ZERO, [came, 0], blocks - came);
    }
    let at = Instant::ZERO + Duration::from_ms(30);
    let more = leave(&mut one, &mut path, at) + leave(&mut other, &mut path, at);
    assert!((8..=14).contains(&more), "{more}");
}

const RTT: Duration = Duration::from_ms(20);

/// Issue #19: a server over 1 Gbit/s and 250 ms was idle for two thirds of the time, because a
/// generation waited for a sum that was lost, too.
#[test]
fn generation_that_blocks_the_window_gets_extra_sums() {
    // The window of the last case has room for all generations.
    for (window, generations, sums) in [(4, 100, 2..=4), (60, 100, 1..=1), (4, 4, 1..=1)] {
        let (mut sender, mut path) = cut(generations * 20 * 1_400, 20, window);
        let before = sender.pressing(Some(&path));
        assert!(leave(&mut sender, &mut path, Instant::ZERO) > 40, "two generations");
        // The larger the sent part of the sender's window, the more generations block it.
        let more = sender.pressing(Some(&path)) - before;
        assert_eq!(more, if window == 4 && generations > 4 { 2 } else { 0 });
        let report =
            Some(Report::Arrived(ArrivalReport { delay: Duration::ZERO, received: 39, lost: 1, runs: 1 }));
        let lacks = vec![1, 0, 20, 20];
        let (pull, next) = (PullId(0), 40);
        let receipt = receipt(1..next);
        let feedback =
            Feedback { pull, next, receipt, report, grant: None, base: 0, lacks, is_unsaid: false };
        let now = Instant::ZERO + RTT;
        sender.handle_feedback(now, &feedback, Some(&mut path));
        let leaves = std::iter::from_fn(|| {
            sender.poll_transmit(now.max(path.next_at()), Some(&mut path), UnrequestedSums::No)
        });
        let of_first = leaves.take(40).filter(|packet| packet.generation == 0).count();
        assert!(sums.contains(&of_first), "{of_first} with a window of {window}");
    }
}

/// A client may report any round-trip time and grant.
#[test]
fn extreme_round_trip_times_do_not_overflow() {
    let (sender, _) = cut(100 * 20 * 1_400, 20, 4);
    let far = Path::new(
        Instant::ZERO,
        1,
        1_500,
        Some(Duration::from_secs(1 << 20)),
        (Some(BitRate::bps(1 << 50)), ByteCount::mib(4)),
        1,
    );
    sender.pressing(Some(&far));
    let (mut begun, mut path) = cut(100 * 20 * 1_400, 20, 4);
    assert!(leave(&mut begun, &mut path, Instant::ZERO) > 20, "a generation");
    assert_eq!(begun.pressing(Some(&far)), u32::MAX as usize - 4);
}

/// The sender of a pull of `bytes` bytes in one generation, and its path.
fn of(bytes: u64) -> (Sender<Bytes>, Path) {
    cut(bytes, 184, 4)
}

/// As [`of`], with at most `blocks_max` blocks per generation and a window of `window` generations.
fn cut(bytes: u64, blocks_max: u32, window: u32) -> (Sender<Bytes>, Path) {
    let now = Instant::ZERO;
    let layout = Layout::new(bytes, 1_400, blocks_max).expect("it is in range");
    let sending = SenderParams {
        pull: PullId(0),
        layout,
        mode: Mode::Counted,
        rate_control: RateControl::Bbr,
        window,
        grant: None,
        start: now,
        rtt: Some(RTT),
        give_up: Duration::from_secs(5),
        quantum: Duration::ZERO,
        first_id: 0,
        secret: 0,
        unproven_max: ByteCount::mib(4),
    };
    let mut sender: Sender<Bytes> = Sender::new(now, sending);
    supply(&mut sender);
    (sender, Path::new(now, 1, 1_500, Some(RTT), (None, ByteCount::ZERO), 1))
}

/// Supplies the blocks of all requested generations.
fn supply(sender: &mut Sender<Bytes>) {
    while let Some(generation) = sender.poll_wanted() {
        let blocks = sender.layout().blocks(generation);
        sender.supply(generation, (0..blocks).map(|_| Bytes::from_static(&[7; 1_400])).collect());
    }
}

/// Sends all packets that may leave, each at its pacing time. Returns the number of packets.
fn leave(sender: &mut Sender<Bytes>, path: &mut Path, now: Instant) -> usize {
    let next = |sender: &mut Sender<Bytes>, path: &mut Path| {
        let at = now.max(path.next_at());
        let mut of = |unasked| sender.poll_transmit(at, Some(&mut *path), unasked);
        of(UnrequestedSums::No).or_else(|| of(UnrequestedSums::Yes))
    };
    std::iter::from_fn(|| path.has_room().then(|| next(sender, path)).flatten()).count()
}

/// Receipt that proves the arrival of these packets.
fn receipt(packets: std::ops::Range<u32>) -> Receipt {
    let (mut nonces, mut received) = (Nonces::new(0), ReceivedPackets::default());
    packets.for_each(|sequence| received.handle_packet(sequence, nonces.nonce(sequence)));
    received.receipt()
}

/// Handles feedback of a client with these counts of arrived and lost packets, and this number of
/// missing blocks.
fn hear(
    sender: &mut Sender<Bytes>,
    path: &mut Path,
    us: u64,
    delay: Duration,
    [received, lost]: [u32; 2],
    lacks: u32,
) {
    let report = Some(Report::Arrived(ArrivalReport { delay, received, lost, runs: 0 }));
    let (pull, next, lacks) = (PullId(0), received + lost, vec![lacks as u16]);
    let receipt = receipt(lost..next);
    let feedback = Feedback { pull, next, receipt, report, grant: None, base: 0, lacks, is_unsaid: false };
    sender.handle_feedback(Instant::ZERO + Duration::from_us(us), &feedback, Some(path));
}
