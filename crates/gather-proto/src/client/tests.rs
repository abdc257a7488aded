//! Tests of pull numbers, of the choice of servers, and of round-trip estimates. Leaves out: whole
//! pulls with servers (`tests/it`).

use super::*;
use anabranch_endpoint::Bytes;

/// Numbers of the pulls requested so far.
fn asked(client: &mut Client<Bytes>) -> Vec<u16> {
    std::iter::from_fn(|| client.poll_control())
        .filter_map(|(_, message)| match message {
            Control::Pull(request) => Some(request.pull.0),
            _ => None,
        })
        .collect()
}

#[test]
fn older_pull_has_the_lower_number_after_wraparound() {
    let now = Instant::ZERO;
    let mut client: Client<Bytes> = Client::new(ClientConfig::default()).expect("its settings are in range");
    let server = client.add_server();
    client.handle_connected(now, server, None);
    client.next_pull = u16::MAX - 1;
    let pieces: Vec<PieceId> = (0..4)
        .map(|_| {
            let ranges = Some(std::iter::once(0..100).collect());
            client.add(Piece { object: "object".into(), ranges, holders: vec![server] })
        })
        .collect();
    client.begin(now);
    assert_eq!(asked(&mut client), [u16::MAX - 1, u16::MAX]);
    client.cancel(now, pieces[0]);
    assert_eq!(asked(&mut client), [] as [u16; 0], "one of them goes on");
    client.cancel(now, pieces[1]);
    assert_eq!(asked(&mut client), [0, 1]);
}

/// Issue #19: several servers searched for the rate of one slow link, each with a first flight. In
/// that time a single server would have delivered everything.
#[test]
fn short_piece_uses_one_server_and_long_piece_several() {
    let now = Instant::ZERO;
    for (kib, servers) in [(10, 1), (256, 1), (512, 3)] {
        let mut client: Client<Bytes> =
            Client::new(ClientConfig::default()).expect("its settings are in range");
        let holders: Vec<ServerId> = (0..3).map(|_| client.add_server()).collect();
        for server in &holders {
            client.handle_connected(now, *server, Some(Duration::from_ms(20)));
        }
        let ranges = Some(std::iter::once(0..kib << 10).collect());
        client.add(Piece { object: "object".into(), ranges, holders });
        client.begin(now);
        let mut asked: Vec<ServerId> =
            std::iter::from_fn(|| client.poll_control()).map(|(server, _)| server).collect();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), servers, "{kib} KiB");
    }
}

/// The list of pulls with feedback grew with each packet if the user never polled feedback.
#[test]
fn pulls_that_may_have_feedback_are_listed_once() {
    let now = Instant::ZERO;
    let mut client: Client<Bytes> = Client::new(ClientConfig::default()).expect("its settings are in range");
    let servers = [client.add_server(), client.add_server()];
    for server in servers {
        client.handle_connected(now, server, None);
        let ranges = Some(std::iter::once(0..1 << 20).collect());
        client.add(Piece { object: "object".into(), ranges, holders: vec![server] });
    }
    client.begin(now);
    let requests: Vec<_> = std::iter::from_fn(|| client.poll_control())
        .filter_map(|(server, message)| match message {
            Control::Pull(request) => Some((server, request)),
            _ => None,
        })
        .collect();
    assert_eq!(requests.len(), 2);
    for sequence in 0..100 {
        for (server, request) in &requests {
            let payload = Bytes::from(vec![0; request.block_bytes as usize]);
            let (pull, id) = (request.pull, sequence);
            let packet =
                Packet { pull, sequence, timing: None, queued: false, nonce: 0, generation: 0, id, payload };
            client.handle_packet(now, *server, packet);
        }
    }
    assert_eq!(client.counts().packets, 200, "they were taken in");
    assert!(client.touched.len() <= 2, "{} are listed", client.touched.len());
}

/// Issue #19: one of 32 servers had lost a packet while connecting. The link's rate was then
/// measured only every two seconds.
#[test]
fn slow_handshake_does_not_count_as_distance() {
    let farthest = |ms: &[u64]| {
        let mut client: Client<Bytes> =
            Client::new(ClientConfig::default()).expect("its settings are in range");
        for ms in ms {
            let server = client.add_server();
            client.handle_connected(Instant::ZERO, server, Some(Duration::from_ms(*ms)));
        }
        client.farthest()
    };
    assert_eq!(farthest(&[]), Duration::ZERO);
    assert_eq!(farthest(&[1_020]), Duration::from_ms(1_020));
    assert_eq!(farthest(&[20, 1_020, 30, 70]), Duration::from_ms(70));
}

/// Issue #19: the last pull of 1 MiB over 10 Mbit/s arrived at a third of the link's rate for most
/// of a round trip, because the other pulls had ended.
#[test]
fn servers_of_the_last_piece_share_the_remaining_grant() {
    let now = Instant::ZERO;
    for (pieces, lacks) in [(1, Some(32)), (1, Some(1)), (2, None)] {
        let link = Some(BitRate::mbps(100));
        let config = ClientConfig { block_bytes: 1 << 10, link, ..ClientConfig::default() };
        let mut client: Client<Bytes> = Client::new(config).expect("its settings are in range");
        let holders = vec![client.add_server(), client.add_server()];
        for server in &holders {
            client.handle_connected(now, *server, None);
        }
        // Each server gets two portions of 64 KiB; the remaining bytes are shorter.
        let ranges = Some(std::iter::once(0..300 << 10).collect());
        for _ in 0..pieces {
            client.add(Piece {
                object: "object".into(),
                ranges: Option::clone(&ranges),
                holders: holders.clone(),
            });
        }
        client.begin(now);
        // The second server delivers nothing. The first delivers all blocks of its last pulls
        // except a few.
        let mut left = 0;
        while let Some((server, message)) = client.poll_control() {
            let Control::Pull(request) = message else { continue };
            let bytes = request.length.expect("portions have a length");
            let blocks = (bytes >> 10) as u32;
            if server == holders[1] {
                continue;
            }
            let is_last = client.queue.is_empty();
            let accepted = PullAcceptance {
                pull: request.pull,
                object_bytes: 300 << 10,
                bytes,
                block_bytes: 1 << 10,
                blocks_max: request.blocks_max,
            };
            client.handle_control(now, server, Control::Accepted(accepted));
            let come = blocks - if is_last { lacks.unwrap_or(32).min(blocks) } else { 0 };
            for id in 0..come {
                let (generation, id) = (id / request.blocks_max, id % request.blocks_max);
                let payload = Bytes::from(vec![0; 1 << 10]);
                let packet = Packet {
                    pull: request.pull,
                    sequence: generation * request.blocks_max + id,
                    timing: None,
                    queued: false,
                    nonce: 0,
                    generation,
                    id,
                    payload,
                };
                client.handle_packet(now, server, packet);
            }
            left += (blocks - come) << 10;
        }
        assert!(client.queue.is_empty() && left > 0);
        client.regrant(false);
        let granted =
            |of: ServerId| client.pulls.values().find(|pull| pull.server == of).and_then(Pull::grant);
        let [first, second] =
            [holders[0], holders[1]].map(|of| granted(of).expect("the link is known").as_bps() as f64);
        let (left, others) = (f64::from(left), 128.0 * 1024.0);
        // A server with few bytes left has at least a quarter of an equal share.
        let weight = left.max((left + others) / 8.0);
        let part = if lacks.is_some() { weight / (weight + others) } else { 0.5 };
        assert!(
            (first / (first + second) - part).abs() < 1e-3,
            "{first} and {second} of {pieces}, {left} left"
        );
    }
}

/// Issue #19: the loss of a connection's first packet made the server seem a second away, and lost
/// feedback was repeated only after a second.
#[test]
fn feedback_repeats_after_a_servers_first_round_trip() {
    let at = |ms| Instant::ZERO + Duration::from_ms(ms);
    for is_accepted in [true, false] {
        let mut client: Client<Bytes> =
            Client::new(ClientConfig::default()).expect("its settings are in range");
        let server = client.add_server();
        client.handle_connected(at(1_020), server, Some(Duration::from_ms(1_020)));
        let ranges = Some(std::iter::once(0..1 << 20).collect());
        client.add(Piece { object: "object".into(), ranges, holders: vec![server] });
        client.begin(at(1_020));
        let Some((_, Control::Pull(request))) = client.poll_control() else { panic!("it is asked for") };
        let (pull, block_bytes, blocks_max) = (request.pull, request.block_bytes, request.blocks_max);
        if is_accepted {
            let accepted =
                PullAcceptance { pull, object_bytes: 1 << 20, bytes: 1 << 20, block_bytes, blocks_max };
            client.handle_control(at(1_041), server, Control::Accepted(accepted));
        }
        let payload = Bytes::from(vec![0; block_bytes as usize]);
        let packet = Packet {
            pull,
            sequence: 0,
            timing: None,
            queued: false,
            nonce: 0,
            generation: 0,
            id: 0,
            payload,
        };
        client.handle_packet(at(1_041), server, packet);
        assert!(std::iter::from_fn(|| client.poll_transmit(at(1_041))).count() > 0, "it is answered");
        assert!(
            client.poll_timeout().is_some_and(|next| next <= at(1_041 + 22)),
            "{:?}",
            client.poll_timeout()
        );
    }
}

/// Issue #19: a server lost its first packet, so that connecting took a second longer. That server
/// was asked for a fourth of an object at once, and delivered the object's end alone.
#[test]
fn slow_handshake_does_not_lengthen_portions() {
    let mut now = Instant::ZERO;
    let config = ClientConfig { block_bytes: 1 << 10, ..ClientConfig::default() };
    let mut client: Client<Bytes> = Client::new(config).expect("its settings are in range");
    let holders = vec![client.add_server(), client.add_server()];
    for (server, ms) in holders.iter().zip([100, 1_100]) {
        client.handle_connected(now, *server, Some(Duration::from_ms(ms)));
    }
    let ranges = Some(std::iter::once(0..64 << 20).collect());
    client.add(Piece { object: "object".into(), ranges, holders: holders.clone() });
    client.begin(now);
    let mut longest = [0, 0];
    let mut under_way: Vec<VecDeque<(Request, u32, u32)>> = vec![VecDeque::new(), VecDeque::new()];
    for ms in 0..1_500 {
        while let Some((server, message)) = client.poll_control() {
            let Control::Pull(request) = message else { continue };
            let bytes = request.length.expect("portions have a length");
            longest[server.0 as usize] = bytes.max(longest[server.0 as usize]);
            under_way[server.0 as usize].push_back((request, (bytes >> 10) as u32, 0));
        }
        now += Duration::from_ms(1);
        // Each server answers after a round trip, and delivers four packets per millisecond.
        for (server, pulls) in holders.iter().zip(&mut under_way).filter(|_| ms >= 100) {
            for _ in 0..4 {
                let Some((request, blocks, came)) = pulls.front_mut() else { continue };
                if *came == 0 {
                    let accepted = PullAcceptance {
                        pull: request.pull,
                        object_bytes: 64 << 20,
                        bytes: request.length.expect("portions have a length"),
                        block_bytes: 1 << 10,
                        blocks_max: request.blocks_max,
                    };
                    client.handle_control(now, *server, Control::Accepted(accepted));
                }
                let (generation, id) = (*came / request.blocks_max, *came % request.blocks_max);
                let (pull, sequence, payload) = (request.pull, *came, Bytes::from(vec![0; 1 << 10]));
                client.handle_packet(
                    now,
                    *server,
                    Packet { pull, sequence, timing: None, queued: false, nonce: 0, generation, id, payload },
                );
                *came += 1;
                if came == blocks {
                    pulls.pop_front();
                }
            }
        }
        client.handle_timeout(now);
        while client.poll_transmit(now).is_some() {}
        while client.poll_event().is_some() {}
    }
    assert!(longest[0] > 1 << 20, "its rate counts: {longest:?}");
    assert!(longest[1] <= 2 * longest[0], "{longest:?}");
}
