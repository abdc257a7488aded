//! Arbitrary input from the peer causes neither a panic nor use of memory beyond the configured
//! limits.

#![allow(clippy::disallowed_methods, reason = "a test may read its own corpus")]

use anabranch_codes::lt::{self, Params};
use anabranch_codes::mds;
use anabranch_endpoint::Bytes;
use anabranch_gather_proto::exercise::{exercise_client, exercise_server};
use anabranch_gather_proto::msg::{
    ArrivalReport, Control, Feedback, Packet, PullAcceptance, PullId, Report, Request, Timing,
};
use anabranch_gather_proto::receipt::Receipt;
use anabranch_gather_proto::{
    Client, ClientConfig, ClientEvent, DecoderKind, Mode, Offer, Piece, RateControl, Server, ServerConfig,
    ServerId,
};
use anabranch_transport::tfrc;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use proptest::prelude::*;
use std::path::Path;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn client_tolerates_arbitrary_server_messages(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        exercise_client(&bytes);
    }

    #[test]
    fn server_tolerates_arbitrary_client_messages(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        exercise_server(&bytes);
    }
}

/// Inputs whose name begins with `bad` must be refused, and all other inputs decoded.
#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    let replay = |target: &str, check: &dyn Fn(&str, &[u8])| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let entries = std::fs::read_dir(&folder).expect("the corpus is part of the repository");
        let mut paths: Vec<_> = entries.map(|e| e.expect("the folder can be listed").path()).collect();
        paths.sort();
        for path in &paths {
            let bytes = std::fs::read(path).expect("the corpus can be read");
            let name = path.file_name().and_then(|n| n.to_str()).expect("corpus files have plain names");
            check(name, &bytes);
        }
        assert!(paths.len() >= 2, "{}", folder.display());
    };
    replay("gather_msg", &|name, bytes| {
        assert_eq!(anabranch_gather_proto::msg::exercise(bytes), !name.starts_with("bad"), "{name}");
    });
    replay("gather_machines", &|_, bytes| {
        exercise_client(bytes);
        exercise_server(bytes);
    });
}

/// A client of one server. The server has accepted the client's only pull, of 200 bytes in blocks
/// of 10.
fn receiving(config: ClientConfig) -> (Client<Bytes>, ServerId) {
    let config = ClientConfig { block_bytes: 10, blocks_max: 20, window: 2, ..config };
    let mut client = Client::new(config).expect("a good configuration");
    let server = client.add_server();
    client.add(Piece { object: "x".into(), ranges: None, holders: vec![server] });
    client.handle_connected(Instant::ZERO, server, Some(Duration::from_us(100)));
    let accepted =
        PullAcceptance { pull: PullId(0), object_bytes: 200, bytes: 200, block_bytes: 10, blocks_max: 20 };
    client.handle_control(Instant::ZERO, server, Control::Accepted(accepted));
    (client, server)
}

fn packet(sequence: u32, id: u32) -> Packet<Bytes> {
    let payload = Bytes::from_static(&[7; 10]);
    Packet { pull: PullId(0), sequence, timing: None, queued: false, nonce: 0, generation: 0, id, payload }
}

/// Issue #4: sums that all lack one block were held without limit, because that block never follows
/// from them.
#[test]
fn sums_that_never_complete_a_block_are_dropped() {
    let mds = mds::Code::new(20).expect("a good length");
    let lt = lt::Code::new(20, &Params::LTTP).expect("a good length");
    for (mode, decoder) in [(Mode::Counted, DecoderKind::Inactivation), (Mode::Lttp, DecoderKind::Improved)] {
        let config = ClientConfig {
            pulls_max: 1,
            mode,
            rate_control: mode.rate_control(),
            decoder,
            ..ClientConfig::default()
        };
        let most = ClientConfig { block_bytes: 10, blocks_max: 20, window: 2, ..config.clone() };
        let most = most.memory().as_u64();
        let (mut client, server) = receiving(config);
        let mut blocks = Vec::new();
        let ids = (0..).filter(|id| match mode {
            Mode::Counted => mds.coefficients(*id)[3] == 0,
            Mode::Lttp => {
                lt.neighbours(*id, &mut blocks);
                !blocks.contains(&3)
            }
        });
        for (sequence, id) in ids.take(2_000).enumerate() {
            client.handle_packet(Instant::ZERO, server, packet(sequence as u32, id));
            assert!(client.held_bytes() <= most, "{} B held, {most} B allowed", client.held_bytes());
        }
        // Elimination detects useless sums; peeling restarts the generation.
        let anew = client.counts().malformed;
        assert!(decoder == DecoderKind::Inactivation || anew >= 30, "{:?}", client.counts());
    }
}

/// Issue #4: packets that arrived before their pull was accepted were held whatever their length.
#[test]
fn overlong_packets_of_an_undescribed_pull_are_dropped() {
    let config = ClientConfig { block_bytes: 10, blocks_max: 20, window: 2, ..ClientConfig::default() };
    let mut client = Client::new(config).expect("a good configuration");
    let server = client.add_server();
    client.add(Piece { object: "x".into(), ranges: None, holders: vec![server] });
    client.handle_connected(Instant::ZERO, server, None);
    let long = Packet { payload: Bytes::from(vec![7; 11]), ..packet(0, 0) };
    client.handle_packet(Instant::ZERO, server, long);
    assert_eq!((client.held_bytes(), client.strays()), (0, 1));
    (0..100).for_each(|id| client.handle_packet(Instant::ZERO, server, packet(id, id)));
    // The client holds as many packets as fit two generations.
    assert_eq!((client.held_bytes(), client.strays()), (400, 61));
}

/// Issue #4: the count of packets overflowed beyond the last sequence number.
#[test]
fn last_sequence_number_is_rejected() {
    let (mut client, server) = receiving(ClientConfig::default());
    let far = (1u64..).map(|n| (n << 24).min(u32::MAX.into()) as u32);
    far.take(256).for_each(|sequence| client.handle_packet(Instant::ZERO, server, packet(sequence, 1)));
    assert_eq!(client.counts().malformed, 1);
    client.handle_packet(Instant::ZERO, server, packet(u32::MAX - 1, 2));
    assert_eq!(client.counts().malformed, 1);
}

/// Issue #17: a piece that was added after the loss of all its holders waited for them forever.
#[test]
fn piece_of_lost_servers_fails_with_their_reasons() {
    let mut client = Client::<Bytes>::new(ClientConfig::default()).expect("a good configuration");
    let servers = [client.add_server(), client.add_server()];
    client.handle_lost(Instant::ZERO, servers[0], "away");
    client.handle_connected(Instant::ZERO, servers[1], None);
    client.handle_lost(Instant::ZERO, servers[1], "gone");
    let piece = client.add(Piece { object: "x".into(), ranges: None, holders: servers.into() });
    client.begin(Instant::ZERO);
    let Some(ClientEvent::Failed { piece: failed, failures }) = client.poll_event() else {
        panic!("it fails")
    };
    let reasons: Vec<&str> = failures.iter().map(|failure| failure.reason.as_str()).collect();
    assert_eq!((failed, reasons), (piece, vec!["away", "gone"]));
    assert!(client.is_done());
}

/// Found by fault test seed 162: of two pulls over a path with a third of all packets lost, one
/// ended for silence, with its object, while packets of the other arrived. The longer wait must
/// still be limited, so that a server cannot delay a client forever.
#[test]
fn silent_pull_ends_late_while_its_server_delivers() {
    let given_up_after = |was_heard: bool, comes: Option<PullId>| {
        let give_up = Some(Duration::from_secs(5));
        let config =
            ClientConfig { block_bytes: 10, blocks_max: 20, window: 2, give_up, ..ClientConfig::default() };
        let mut client = Client::<Bytes>::new(config).expect("a good configuration");
        let server = client.add_server();
        for name in ["x", "y"] {
            client.add(Piece { object: name.into(), ranges: None, holders: vec![server] });
        }
        client.handle_connected(Instant::ZERO, server, None);
        for pull in [PullId(0), PullId(1)] {
            let accepted =
                PullAcceptance { pull, object_bytes: 200, bytes: 200, block_bytes: 10, blocks_max: 20 };
            client.handle_control(Instant::ZERO, server, Control::Accepted(accepted));
            if was_heard {
                client.handle_packet(Instant::ZERO, server, Packet { pull, ..packet(0, 0) });
            }
        }
        (1..100).find(|second| {
            let now = Instant::ZERO + Duration::from_secs((*second).into());
            if let Some(pull) = comes {
                client.handle_packet(now, server, Packet { pull, ..packet(*second, 0) });
            }
            client.handle_timeout(now);
            client.pulls().count() < 2
        })
    };
    for was_heard in [false, true] {
        assert_eq!(given_up_after(was_heard, None), Some(5));
        assert_eq!(given_up_after(was_heard, Some(PullId(1))), Some(20));
        // Older pulls are sent first, so the newer pull may still be waiting.
        assert_eq!(given_up_after(was_heard, Some(PullId(0))), None);
    }
}

/// Issue #19: data waited for a lost control message. Data before the server's answer is accepted,
/// but delivered to the user only once the server has answered.
#[test]
fn data_before_the_answer_must_match_its_version() {
    for object_bytes in [200, 300] {
        let config = ClientConfig { block_bytes: 10, blocks_max: 20, window: 2, ..ClientConfig::default() };
        let mut client = Client::<Bytes>::new(config).expect("a good configuration");
        let server = client.add_server();
        let ranges = Some(std::iter::once(0..200).collect());
        let piece = client.add(Piece { object: "x".into(), ranges, holders: vec![server] });
        client.expect_bytes(piece, 200);
        client.handle_connected(Instant::ZERO, server, None);
        for id in 0..20 {
            client.handle_packet(Instant::ZERO, server, packet(id, id));
        }
        let (_, feedback) = client.poll_transmit(Instant::ZERO).expect("the server hears of it");
        // The server would not answer feedback on a complete pull.
        assert_eq!((feedback.next, feedback.base, feedback.lacks), (20, 0, vec![0]));
        assert!(feedback.is_unsaid);
        assert_eq!(client.poll_event(), None);
        let accepted =
            PullAcceptance { pull: PullId(0), object_bytes, bytes: 200, block_bytes: 10, blocks_max: 20 };
        client.handle_control(Instant::ZERO, server, Control::Accepted(accepted));
        let events: Vec<_> = std::iter::from_fn(|| client.poll_event()).collect();
        let blocks = events
            .iter()
            .any(|event| matches!(event, ClientEvent::Blocks { range, .. } if *range == (0..200)));
        let complete = events.contains(&ClientEvent::Complete { piece });
        assert_eq!((blocks, complete), (object_bytes == 200, object_bytes == 200), "{events:?}");
    }
}

/// Issue #4: a grant of less than one bit a second per pull was rounded to zero, so that packets
/// took forever.
#[test]
fn every_pull_has_a_grant_above_zero() {
    let link = Some(BitRate::bps(1_000));
    // With BBR the grant is per server and not per pull.
    let rate_control = RateControl::Tfrc;
    let config =
        ClientConfig { link, rate_control, block_bytes: 10, pulls_max: 2_000, ..ClientConfig::default() };
    let mut client = Client::<Bytes>::new(config).expect("a good configuration");
    let server = client.add_server();
    for _ in 0..2_000 {
        client.add(Piece { object: "x".into(), ranges: None, holders: vec![server] });
    }
    client.handle_connected(Instant::ZERO, server, None);
    let accepted =
        PullAcceptance { pull: PullId(0), object_bytes: 200, bytes: 200, block_bytes: 10, blocks_max: 255 };
    client.handle_control(Instant::ZERO, server, Control::Accepted(accepted));
    let timing = Some(Timing { sent_at: Instant::ZERO, rtt: None });
    client.handle_packet(Instant::ZERO, server, Packet { timing, ..packet(0, 0) });
    let (_, feedback) = client.poll_transmit(Instant::ZERO).expect("the first packet is reported");
    assert_eq!(feedback.grant, Some(BitRate::bps(1)));
}

/// A request for the whole object.
fn request(pull: u16) -> Request {
    Request {
        pull: PullId(pull),
        object: "x".into(),
        start: 0,
        length: None,
        is_cut: false,
        mode: Mode::Counted,
        rate_control: RateControl::Bbr,
        block_bytes: 1_000,
        blocks_max: 20,
        window: 2,
        grant: None,
        start_after: Duration::ZERO,
        rtt: None,
        servers: 1,
    }
}

/// A server's answer to a request for a whole object of `bytes` bytes.
fn ask(
    server: &mut Server<Bytes>,
    pull: u16,
    block_bytes: u32,
    blocks_max: u32,
    object_bytes: u64,
) -> Control {
    ask_with(server, RateControl::Bbr, pull, block_bytes, blocks_max, object_bytes)
}

fn ask_with(
    server: &mut Server<Bytes>,
    rate_control: RateControl,
    pull: u16,
    block_bytes: u32,
    blocks_max: u32,
    object_bytes: u64,
) -> Control {
    let request = Request { rate_control, block_bytes, blocks_max, ..request(pull) };
    server.handle_control(Instant::ZERO, Control::Pull(request));
    server.offer(Instant::ZERO, PullId(pull), Offer { object_bytes, first_id: 0, secret: 0 });
    server.poll_control().expect("an answer")
}

#[test]
fn pull_has_as_many_generations_as_packets_can_number() {
    let mut server = Server::<Bytes>::new(ServerConfig::default());
    let most = 512 * 16 * 65_536;
    assert!(matches!(ask(&mut server, 0, 512, 16, most), Control::Accepted(_)));
    let refused = Control::Refused {
        pull: PullId(1),
        reason: "536870913 B in one pull: at most 536870912 B with these blocks".into(),
    };
    assert_eq!(ask(&mut server, 1, 512, 16, most + 1), refused);
    let longer = ask_with(&mut server, RateControl::Tfrc, 2, 512, 16, most + 1);
    assert!(matches!(longer, Control::Accepted(_)), "{longer:?}");
}

/// Issue #17: blocks of one byte have 32 bytes of bookkeeping each, but counted as one byte. A
/// client used thirty times its memory limit.
#[test]
fn server_memory_counts_the_bookkeeping_of_blocks() {
    let config = ServerConfig {
        memory_max: ByteCount::new(100_000),
        block_bytes_min: 1,
        pulls_max: 1_000,
        ..ServerConfig::default()
    };
    let mut server = Server::<Bytes>::new(config);
    let accepted = (0..1_000)
        .filter(|pull| matches!(ask(&mut server, *pull, 1, 1_000, 1 << 20), Control::Accepted(_)))
        .count();
    assert_eq!(accepted, 100_000 / (1_000 * (1 + size_of::<Bytes>())));
    while let Some((pull, _, range)) = server.poll_wanted() {
        let byte = Bytes::from_static(b"x");
        server.supply(pull, 0, (range.start..range.end).map(|_| byte.clone()).collect());
    }
    assert_eq!(server.held_bytes(), accepted as u64 * 1_000 * (1 + size_of::<Bytes>() as u64));
    // The memory that the same client uses on another connection counts towards the limit, too.
    let mut other = Server::<Bytes>::new(ServerConfig {
        memory_max: ByteCount::new(100_000),
        block_bytes_min: 1,
        ..ServerConfig::default()
    });
    other.set_others(server.usage());
    let Control::Refused { reason, .. } = ask(&mut other, 0, 1, 1_000, 1 << 20) else { panic!("no room") };
    assert!(reason.contains("other pulls have"), "{reason}");
}

/// Issue #17: short blocks cost a server much processing time and memory for little data.
#[test]
fn block_is_no_shorter_than_necessary() {
    let mut server = Server::<Bytes>::new(ServerConfig::default());
    let Control::Refused { reason, .. } = ask(&mut server, 0, 479, 256, 100_000) else { panic!("too short") };
    assert_eq!(reason, "blocks of 479 B: must be at least 480 B");
    assert!(matches!(ask(&mut server, 1, 480, 256, 100_000), Control::Accepted(_)));
    // A short object has a single block.
    let Control::Accepted(accepted) = ask(&mut server, 2, 1_000, 256, 3) else { panic!("short") };
    assert_eq!(accepted.block_bytes, 3);
    // The client, too, rejects needlessly short blocks or generations.
    for (block_bytes, blocks_max, is_taken) in [(480, 256, true), (479, 256, false), (480, 255, false)] {
        let config = ClientConfig { block_bytes: 1_024, blocks_max: 256, ..ClientConfig::default() };
        let mut client = Client::<Bytes>::new(config).expect("a good configuration");
        let server = client.add_server();
        client.add(Piece { object: "x".into(), ranges: None, holders: vec![server] });
        client.handle_connected(Instant::ZERO, server, None);
        let accepted = PullAcceptance {
            pull: PullId(0),
            object_bytes: 1 << 32,
            bytes: 1 << 32,
            block_bytes,
            blocks_max,
        };
        client.handle_control(Instant::ZERO, server, Control::Accepted(accepted));
        assert_eq!(client.pulls().count(), usize::from(is_taken), "{block_bytes} B, {blocks_max} blocks");
    }
}

/// Issue #4: the sum of two times that a client reported overflowed.
#[test]
fn server_survives_reports_of_extreme_times() {
    let far = Duration::from_ns(u64::MAX / 1_000);
    let sent_at = Instant::ZERO + far;
    let tfrc = tfrc::Report { sent_at, delay: far, received_bytes_per_s: f64::MAX, loss_rate: 1.0 };
    let arrived = ArrivalReport { delay: far, received: 0, lost: u32::MAX, runs: u32::MAX };
    let reports = [(RateControl::Tfrc, Report::Tfrc(tfrc)), (RateControl::Bbr, Report::Arrived(arrived))];
    for (rate_control, report) in reports {
        let mut server = Server::<Bytes>::new(ServerConfig { block_bytes_min: 1, ..ServerConfig::default() });
        let accepted = ask_with(&mut server, rate_control, 0, 10, 20, 200);
        assert!(matches!(accepted, Control::Accepted(_)));
        let (pull, report) = (PullId(0), Some(report));
        let feedback = Feedback {
            pull,
            next: 0,
            receipt: Receipt::default(),
            report,
            grant: None,
            base: 0,
            lacks: vec![u16::MAX; 64],
            is_unsaid: true,
        };
        server.handle_feedback(Instant::ZERO, &feedback);
        assert!(server.poll_timeout().is_some());
    }
}

/// Issue #19: the grants of the pulls, each from a different time, were added. The sum was five
/// sixths of the server's share.
#[test]
fn pulls_of_a_path_share_the_last_grant() {
    let config = ServerConfig { block_bytes_min: 1, ..ServerConfig::default() };
    let mut server = Server::<Bytes>::new(config);
    let grant = |bps: u64| Some(BitRate::bps(bps));
    for (pull, bps) in [(0, 3_000), (1, 2_000), (2, 1_000)] {
        let request = Request { grant: grant(bps), rtt: Some(Duration::from_us(100)), ..request(pull) };
        server.handle_control(Instant::ZERO, Control::Pull(request));
        server.offer(Instant::ZERO, PullId(pull), Offer { object_bytes: 100_000, first_id: 0, secret: 0 });
        assert_eq!(server.allowed_bps(), bps as f64);
    }
    let feedback = |grant| Feedback {
        pull: PullId(1),
        next: 0,
        receipt: Receipt::default(),
        report: None,
        grant,
        base: 0,
        lacks: vec![20],
        is_unsaid: false,
    };
    server.handle_feedback(Instant::ZERO, &feedback(grant(5_000)));
    assert_eq!(server.allowed_bps(), 5_000.0);
    server.handle_feedback(Instant::ZERO, &feedback(None));
    assert!(server.allowed_bps() > 5_000.0, "what its rate control allows");
}
