//! Clients and servers over a network that loses, duplicates and reorders packets. The tests check
//! that the requested bytes arrive.

mod hostile;
#[expect(dead_code, reason = "its `main` is for `cargo run --example`")]
#[path = "../../examples/in_memory.rs"]
mod in_memory;
mod paths;
mod rogue;
mod world;

use anabranch_endpoint::Bytes;
use anabranch_gather_proto::msg::{Control, Packet, PullAcceptance, PullId, Request};
use anabranch_gather_proto::{
    Client, ClientConfig, ClientEvent, Mode, Offer, Piece, PieceId, RateControl, Server, ServerConfig,
};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use proptest::prelude::*;
use world::{WireSettings, World, object};

const SECOND: Duration = Duration::from_secs(1);

fn config(mode: Mode) -> ClientConfig {
    ClientConfig {
        mode,
        rate_control: mode.rate_control(),
        block_bytes: 200,
        blocks_max: 32,
        window: 4,
        link: Some(BitRate::mbps(100)),
        ..ClientConfig::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_objects_arrive_despite_loss_repetition_and_reordering(
        sizes in proptest::collection::vec(0usize..60_000, 1..5), loss in 0u32..400_000, repeat in 0u32..200_000, late in 0u32..300_000,
        seed: u64, is_granted: bool,
    ) {
        let wire = WireSettings { loss_ppm: loss, repeat_ppm: repeat, late_ppm: late, ..WireSettings::default() };
        let link = is_granted.then(|| BitRate::mbps(100));
        let config = ClientConfig { link, give_up: Some(SECOND * 60), ..config(Mode::Counted) };
        let mut world = World::new(seed, wire, config, ServerConfig { give_up: SECOND * 60, ..ServerConfig::default() });
        for (number, size) in sizes.iter().enumerate() {
            let server = world.add_server();
            world.put(server, "object", object(number as u64, *size));
            world.client.add(Piece { object: "object".into(), ranges: None, holders: vec![server] });
        }
        world.run(SECOND * 300);
        for (number, size) in sizes.iter().enumerate() {
            prop_assert!(world.is_complete(number), "{}", world.story());
            prop_assert!(world.got(number) == object(number as u64, *size));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Issue #48: receipts are true whatever a network does to packets and feedback.
    #[test]
    fn honest_clients_are_never_cut_off(
        loss in 0u32..300_000, repeat in 0u32..300_000, late in 0u32..500_000, burst in 0u32..5_000, seed: u64, kind in 0usize..3,
        is_granted: bool,
    ) {
        let wire = WireSettings { loss_ppm: loss, repeat_ppm: repeat, late_ppm: late, burst_ppm: burst, ..WireSettings::default() };
        let link = is_granted.then(|| BitRate::mbps(100));
        let kinds = [
            (Mode::Counted, RateControl::Bbr), (Mode::Counted, RateControl::Tfrc), (Mode::Lttp, RateControl::Tfrc),
        ];
        let (mode, rate_control) = kinds[kind];
        let config = ClientConfig { link, mode, rate_control, give_up: Some(SECOND * 20), ..config(mode) };
        let mut world = World::new(seed, wire, config, ServerConfig { give_up: SECOND * 20, ..ServerConfig::default() });
        let server = world.add_server();
        world.put(server, "object", object(1, 200_000));
        world.client.add(Piece { object: "object".into(), ranges: None, holders: vec![server] });
        // The world asserts that no pull is cut off.
        world.run(SECOND * 60);
        prop_assert!(world.packets_sent > 0);
    }
}

#[test]
fn each_block_is_sent_once_without_loss() {
    let mut world = World::new(1, WireSettings::default(), config(Mode::Counted), ServerConfig::default());
    for _ in 0..8 {
        let server = world.add_server();
        world.put(server, "object", object(1, 50_000));
        world.client.add(Piece { object: "object".into(), ranges: None, holders: vec![server] });
    }
    world.run(SECOND);
    assert!((0..8).all(|piece| world.is_complete(piece)), "{}", world.story());
    assert_eq!((world.packets_sent, world.client.strays()), (8 * 250, 0));
}

/// Issue #19: a server without feedback sends next to nothing, and continues once feedback arrives.
#[test]
fn server_pauses_with_its_silent_client_and_resumes() {
    let config = ClientConfig { link: None, ..config(Mode::Counted) };
    let wire = WireSettings { delay: Duration::from_ms(10), ..WireSettings::default() };
    let mut world = World::new(1, wire, config, ServerConfig::default());
    let server = world.add_slow_server(BitRate::mbps(50));
    world.put(server, "object", object(1, 2_000_000));
    world.client.add(Piece { object: "object".into(), ranges: None, holders: vec![server] });
    world.run(Duration::from_ms(200));
    let flowing = world.packets_sent;
    assert!(flowing > 500, "{flowing} packets");
    world.lose(1_000_000);
    world.run(SECOND);
    let silent = world.packets_sent;
    world.run(SECOND * 2);
    // The server sends at most some five packets a second instead of thousands.
    assert!(world.packets_sent - silent <= 11, "{} packets in silence", world.packets_sent - silent);
    world.lose(0);
    world.run(SECOND * 3);
    assert!(world.is_complete(0) && world.got(0) == object(1, 2_000_000), "{}", world.story());
}

#[test]
fn lttp_server_sends_until_it_is_stopped() {
    let config = ClientConfig { link: None, ..config(Mode::Lttp) };
    let mut world = World::new(1, WireSettings::default(), config, ServerConfig::default());
    let server = world.add_server();
    world.put(server, "object", object(1, 51_200));
    world.client.add(Piece { object: "object".into(), ranges: None, holders: vec![server] });
    world.run(SECOND);
    assert!(world.is_complete(0), "{}", world.story());
    assert!(world.got(0) == object(1, 51_200));
    assert!(world.packets_sent > 256, "{} packets", world.packets_sent);
    assert!(world.servers_are_idle());
}

#[test]
fn missing_bytes_of_dead_server_move_to_another_holder() {
    let mut world = World::new(1, WireSettings::default(), config(Mode::Counted), ServerConfig::default());
    let (first, second) = (world.add_server(), world.add_server());
    for server in [first, second] {
        world.put(server, "a", object(1, 400_000));
    }
    world.put(first, "b", object(2, 400_000));
    world.client.add(Piece { object: "a".into(), ranges: None, holders: vec![first, second] });
    world.client.add(Piece { object: "b".into(), ranges: None, holders: vec![first] });
    world.kill_at(first, Duration::from_ms(20));
    world.run(SECOND * 60);
    assert!(world.is_complete(0) && world.got(0) == object(1, 400_000), "{}", world.story());
    // The bytes received before are not requested again.
    assert!(world.packets_sent < 2 * 2_000 + 300, "{} packets", world.packets_sent);
    assert!(world.has_failed(1), "{}", world.story());
    let left = |event: &&ClientEvent<_>| matches!(event, ClientEvent::Left { piece: PieceId(1), .. });
    assert_eq!(world.events.iter().filter(left).count(), 1);
}

/// Issue #19: a server stopped near the end of a transfer. The client waited five seconds for that
/// server, while an idle server held the same object.
#[test]
fn missing_bytes_of_stopped_server_move_to_idle_holder() {
    let config = ClientConfig { link: None, ..config(Mode::Counted) };
    let mut world = World::new(1, WireSettings::default(), config, ServerConfig::default());
    let servers = [BitRate::mbps(20); 2].map(|rate| world.add_slow_server(rate));
    for server in servers {
        world.put(server, "a", object(1, 2_000_000));
    }
    let ranges = Some(std::iter::once(0..2_000_000).collect());
    world.client.add(Piece { object: "a".into(), ranges, holders: servers.into() });
    // The two servers together need 440 ms.
    world.kill_at(servers[1], Duration::from_ms(380));
    world.run(SECOND * 2);
    assert!(world.is_complete(0) && world.got(0) == object(1, 2_000_000), "{}", world.story());
}

#[test]
fn refusal_names_its_reason_and_fails_one_piece() {
    let mut world = World::new(1, WireSettings::default(), config(Mode::Counted), ServerConfig::default());
    let server = world.add_server();
    world.put(server, "a", object(1, 1_000));
    let holders = vec![server];
    world.client.add(Piece { object: "nothing".into(), ranges: None, holders: holders.clone() });
    let past_the_end = vec![980..985, 990..1_001];
    world.client.add(Piece { object: "a".into(), ranges: Some(past_the_end), holders: holders.clone() });
    world.client.add(Piece { object: "a".into(), ranges: Some(vec![0..10, 500..1_000]), holders });
    world.run(SECOND * 10);
    assert!(world.has_failed(0) && world.has_failed(1), "{}", world.story());
    assert!(world.is_complete(2));
    assert_eq!(world.got(2)[..10], object(1, 1_000)[..10]);
    assert_eq!(world.got(2)[500..], object(1, 1_000)[500..]);
    assert!(world.story().contains("the object has 1000"), "{}", world.story());
}

#[test]
fn pull_of_a_vanished_client_ends() {
    let mut world = World::new(
        1,
        WireSettings { loss_ppm: 1_000_000, ..WireSettings::default() },
        config(Mode::Counted),
        ServerConfig::default(),
    );
    let server = world.add_server();
    world.put(server, "a", object(1, 100_000));
    world.client.add(Piece { object: "a".into(), ranges: None, holders: vec![server] });
    world.run(SECOND * 60);
    assert!(world.servers_are_idle() && world.has_failed(0), "{}", world.story());
    // The rate fell during the silence: 500 blocks are sent, and a few probes.
    assert!(world.packets_sent < 600, "{} packets", world.packets_sent);
}

#[test]
fn missing_bytes_of_crawling_server_move_to_idle_holder() {
    let config = ClientConfig { pulls_max: 2, ..config(Mode::Counted) };
    let mut world = World::new(1, WireSettings::default(), config, ServerConfig::default());
    let slow = world.add_slow_server(BitRate::bps(200_000));
    let fast = world.add_server();
    let holders = vec![slow, fast];
    for server in [slow, fast] {
        world.put(server, "a", object(1, 2_000_000));
    }
    for half in [0..1_000_000, 1_000_000..2_000_000] {
        let ranges = Some(std::iter::once(half).collect());
        world.client.add(Piece { object: "a".into(), ranges, holders: holders.clone() });
    }
    // The slow server alone would need 10 s for its shortest portion.
    world.run(SECOND * 3);
    assert!(world.is_complete(0) && world.is_complete(1), "{}", world.story());
    assert!(world.story().contains("it crawls"), "{}", world.story());
}

/// Issue #4: an idle server that had not delivered any piece yet was not used.
#[test]
fn idle_server_takes_its_share_of_a_started_piece() {
    let mut world = World::new(1, WireSettings::default(), config(Mode::Counted), ServerConfig::default());
    let servers = [world.add_slow_server(BitRate::mbps(2)), world.add_slow_server(BitRate::mbps(2))];
    for server in servers {
        world.put(server, "a", object(1, 2_000_000));
    }
    // Until the length is known, the whole object is requested from one server, which needs more
    // than 8 s.
    world.client.add(Piece { object: "a".into(), ranges: None, holders: servers.to_vec() });
    world.run(SECOND * 7);
    assert!(world.is_complete(0) && world.got(0) == object(1, 2_000_000), "{}", world.story());
}

#[test]
fn path_with_a_small_mtu_is_detected() {
    let wire = WireSettings { mtu: 1_300, ..WireSettings::default() };
    let config = ClientConfig { block_bytes: 1_400, ..config(Mode::Counted) };
    let mut world = World::new(1, wire, config, ServerConfig::default());
    let server = world.add_server();
    world.put(server, "a", object(1, 300_000));
    world.client.add(Piece { object: "a".into(), ranges: None, holders: vec![server] });
    world.run(SECOND * 10);
    assert!(world.is_complete(0) && world.got(0) == object(1, 300_000), "{}", world.story());
}

/// Issue #18: a server that was dropped as slow was never asked again, even if the faster server
/// turned out to lack the object.
#[test]
fn slow_server_is_asked_again_as_last_holder() {
    let mut world = World::new(1, WireSettings::default(), config(Mode::Counted), ServerConfig::default());
    let (slow, fast) = (world.add_slow_server(BitRate::mbps(1)), world.add_server());
    world.put(slow, "a", object(1, 1_000_000));
    world.put(fast, "b", object(2, 500_000));
    world.client.add(Piece { object: "a".into(), ranges: None, holders: vec![slow, fast] });
    world.client.add(Piece { object: "b".into(), ranges: None, holders: vec![fast] });
    world.run(SECOND * 30);
    assert!(world.is_complete(0) && world.got(0) == object(1, 1_000_000), "{}", world.story());
}

/// Issue #18: the packets of two pulls were all too long for the path. Only the first pull was
/// requested again; the second counted as a failure of its server.
#[test]
fn two_pulls_complete_over_a_small_mtu() {
    let wire = WireSettings { mtu: 1_300, ..WireSettings::default() };
    let config = ClientConfig { block_bytes: 1_400, ..config(Mode::Counted) };
    let mut world = World::new(1, wire, config, ServerConfig::default());
    let server = world.add_server();
    world.put(server, "a", object(1, 300_000));
    let ranges = Some(vec![0..100_000, 200_000..300_000]);
    world.client.add(Piece { object: "a".into(), ranges, holders: vec![server] });
    world.run(SECOND * 10);
    let is_complete = world.events.iter().any(|event| matches!(event, ClientEvent::Complete { .. }));
    assert!(is_complete, "{}", world.story());
}

/// Issue #4: feedback reported the moving window once a round trip, short blocks made short
/// generations, and a pull had only a 256th of its server's memory.
#[test]
fn pull_fills_a_path_of_long_delay() {
    let wire = WireSettings { delay: Duration::from_ms(50), ..WireSettings::default() };
    let config = ClientConfig { block_bytes: 8_000, window: 7, overhead_bytes: 100, ..config(Mode::Counted) };
    let mut world = World::new(1, wire, config, ServerConfig::default());
    let server = world.add_server();
    world.client.set_block_bytes(server, 1_000);
    world.put(server, "object", object(1, 10_000_000));
    world.client.add(Piece { object: "object".into(), ranges: None, holders: vec![server] });
    // 10,000 packets of 1,129 bytes take 0.92 s at the granted 98 %.
    world.run(Duration::from_ms(1_200));
    assert!(world.is_complete(0), "{}", world.story());
}

/// Issue #4: over 100 ms, shares were reserved for 100 ms only, and servers learned of lower grants
/// up to a round trip later. The initial losses slowed eight servers for the whole transfer.
#[test]
fn share_is_reserved_for_a_server_asked_later() {
    let rtt = Some(Duration::from_ms(100));
    let mut client = Client::<Bytes>::new(config(Mode::Counted)).expect("a good configuration");
    let servers = [client.add_server(), client.add_server(), client.add_server()];
    let ask = |client: &mut Client<Bytes>, at_ms, number: usize| {
        let now = Instant::ZERO + Duration::from_ms(at_ms);
        client.add(Piece { object: "object".into(), ranges: None, holders: vec![servers[number]] });
        client.begin(now);
        let grant = std::iter::from_fn(|| client.poll_control()).find_map(|(_, message)| match message {
            Control::Pull(request) => request.grant,
            _ => None,
        });
        let accepted = PullAcceptance {
            pull: PullId(number as u16),
            object_bytes: 1 << 20,
            bytes: 1 << 20,
            block_bytes: 200,
            blocks_max: 32,
        };
        let told: Vec<_> = std::iter::from_fn(|| client.poll_transmit(now)).collect();
        client.handle_control(now + Duration::from_ms(100), servers[number], Control::Accepted(accepted));
        (grant.expect("the link is known").as_bps(), told)
    };
    client.handle_connected(Instant::ZERO, servers[0], rtt);
    client.handle_connected(Instant::ZERO, servers[1], rtt);
    let (first, _) = ask(&mut client, 100, 0);
    let (second, _) = ask(&mut client, 250, 1);
    assert_eq!(first, second);
    assert!(first <= 100_000_000 / 3, "a third is kept for the last one: {first} b/s");
    // The reservation has ended. When the last server is asked, the other servers are sent lower
    // grants.
    client.handle_lost(Instant::ZERO + Duration::from_ms(260), servers[2], "away");
    let later = Instant::ZERO + Duration::from_secs(2);
    for number in [0, 1] {
        let packet = Packet {
            pull: PullId(number),
            sequence: 0,
            timing: None,
            queued: false,
            nonce: 0,
            generation: 0,
            id: 0,
            payload: vec![0; 200].into(),
        };
        client.handle_packet(later, servers[number as usize], packet);
    }
    while client.poll_transmit(later).is_some() {}
    client.handle_connected(later, servers[2], rtt);
    let (third, told) = ask(&mut client, 2_000, 2);
    assert!(
        told.len() == 2 && told.iter().all(|(_, f)| f.grant.map(BitRate::as_bps) == Some(third)),
        "{told:?}"
    );
}

/// Issue #19: at the start of many servers the queue was full, an answer on the control channel was
/// lost, and received data waited for a TCP timeout.
#[test]
fn delayed_answer_is_repeated_by_a_datagram() {
    for bytes in [1, 3_000, 60_000] {
        let wire = WireSettings { held_up: SECOND, ..WireSettings::default() };
        let config = ClientConfig { link: None, ..config(Mode::Counted) };
        let mut world = World::new(1, wire, config, ServerConfig::default());
        let server = world.add_server();
        world.put(server, "object", object(1, bytes));
        let ranges = Some(std::iter::once(0..bytes as u64).collect());
        world.client.add(Piece { object: "object".into(), ranges, holders: vec![server] });
        world.run(Duration::from_ms(100));
        assert!(world.is_complete(0), "{bytes}: {}", world.story());
        assert!(world.got(0) == object(1, bytes));
    }
}

#[test]
fn server_memory_gives_each_pull_one_generation_first() {
    let generation = 200 * 32;
    let memory = 3 * (generation + 32 * size_of::<Bytes>() as u64 + 100);
    let config =
        ServerConfig { memory_max: ByteCount::new(memory), block_bytes_min: 1, ..ServerConfig::default() };
    let mut server = Server::<Bytes>::new(config);
    let mut ask = |pull| {
        let request = Request {
            pull: PullId(pull),
            object: "object".into(),
            start: 0,
            length: None,
            is_cut: false,
            mode: Mode::Counted,
            rate_control: RateControl::Bbr,
            block_bytes: 200,
            blocks_max: 32,
            window: 16,
            grant: None,
            start_after: Duration::ZERO,
            rtt: None,
            servers: 1,
        };
        server.handle_control(Instant::ZERO, Control::Pull(request));
        server.offer(
            Instant::ZERO,
            PullId(pull),
            Offer { object_bytes: 20 * generation, first_id: 0, secret: 0 },
        );
        let wanted: Vec<_> = std::iter::from_fn(|| server.poll_wanted()).map(|(pull, ..)| pull.0).collect();
        let said: Vec<_> = std::iter::from_fn(|| server.poll_control()).collect();
        (wanted, said)
    };
    assert_eq!(ask(1).0, [1, 1, 1], "one alone has it all");
    let (wanted, said) = ask(2);
    // The first pull gives back its generations without sent packets.
    assert!(wanted == [2] && matches!(said[..], [Control::Accepted(_)]), "{wanted:?} {said:?}");
    ask(3);
    let (_, said) = ask(4);
    assert!(matches!(said[..], [Control::Refused { .. }]), "{said:?}");
}

/// Issue #4: grants were computed for the longest block that the client accepts. Packets with
/// shorter blocks have more header overhead, and exceeded the link rate.
#[test]
fn grants_fit_the_link_at_the_servers_block_size() {
    let config = ClientConfig { block_bytes: 8_000, overhead_bytes: 100, ..config(Mode::Counted) };
    let mut world = World::new(1, WireSettings::default(), config, ServerConfig::default());
    let servers: Vec<_> = (0..4).map(|_| world.add_server()).collect();
    for server in servers {
        world.client.set_block_bytes(server, 1_000);
        world.put(server, "object", object(1, 1_000_000));
        world.client.add(Piece { object: "object".into(), ranges: None, holders: vec![server] });
    }
    world.run(Duration::from_ms(101));
    // A packet takes 1,110 bytes of 100 Mbit/s. The servers send for a tenth of a second, less half
    // a round trip.
    let most = (0.1 * 100e6 / 8.0 / 1_110.0) as usize;
    assert!(
        world.packets_sent <= most && world.packets_sent > most * 9 / 10,
        "{}, at most {most}",
        world.packets_sent
    );
}
