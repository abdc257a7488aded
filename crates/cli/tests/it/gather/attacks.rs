//! Attacks on `gather serve` by a client with a valid certificate, and on `gather get` by a server
//! with one.

use super::*;
use anabranch_gather_proto::msg::{ArrivalReport, Feedback, Report, VERSION};
use anabranch_gather_proto::receipt::Receipt;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// Number of open files of a process.
fn open_files(child: &Child) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", child.id())).expect("it runs").count()
}

/// Resident memory of a process.
fn resident_bytes(child: &Child) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says it");
    1_024 * line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
}

fn describe(object: &str) -> Control {
    Control::Describe { object: object.into(), with_hash: true }
}

/// Creates a sparse object of `bytes` bytes at the first server.
fn put_hole(world: &World, name: &str, bytes: u64) {
    let file = std::fs::File::create(world.path("server-0").join(name)).expect("the folder is ours");
    file.set_len(bytes).expect("a file with a hole");
}

/// #17: after a client requested the hash of 60 GiB and disconnected, every other `get` failed
/// after 5 s.
#[test]
fn hash_of_a_huge_file_delays_no_other_client() {
    let world = World::new(1);
    let bytes = noise(20, 5 * MIB);
    world.put(0..1, "object", &bytes);
    put_hole(&world, "huge", 1 << 42);
    let runtime = runtime();
    let keys = world.path("keys");
    let at = world.servers[0].at;
    let waiting = runtime.block_on(async {
        let mut leaves = ManualClient::connect(&keys, at).await;
        let mut waits = ManualClient::connect_as(&keys, "other", at).await.expect("it is let in");
        for hand in [&mut leaves, &mut waits] {
            hand.say(describe("huge")).await;
        }
        // The server reports that it is still hashing, so that the client does not give up.
        assert!(matches!(waits.hear().await, Control::Hashing { object, .. } if object == "huge"));
        assert!(matches!(leaves.hear().await, Control::Hashing { .. }));
        waits
    });
    let got = world.get(&[&world.object(0..1, "object")]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    drop(waiting);
}

/// #17: a client waits for a hash behind other hashes that it requested. The server reports that it
/// is hashing, and the client keeps waiting.
#[test]
fn get_waits_for_a_server_that_is_hashing() {
    let world = World::new(1);
    let bytes = noise(21, MIB);
    world.put(0..1, "object", &bytes);
    put_hole(&world, "large", 6 << 30);
    let (runtime, keys, at) = (runtime(), world.path("keys"), world.servers[0].at);
    runtime.block_on(async {
        let mut hands = Vec::new();
        for _ in 0..4 {
            let mut hand = ManualClient::connect(&keys, at).await;
            hand.say(describe("large")).await;
            hands.push(hand);
        }
        let getting = world.get(&[&world.object(0..1, "object"), "--give-up", "5 s"]);
        let got = tokio::task::spawn_blocking(move || getting.end()).await.expect("it ends");
        assert_eq!(got.code, Some(0), "{got:?}");
    });
    assert!(world.has(&bytes));
}

/// #17: 12 connections that requested 256 hashes each and were closed left 1,022 files open at the
/// server.
#[test]
fn requested_hashes_keep_no_files_open() {
    let world = World::new(1);
    let bytes = noise(22, MIB);
    world.put(0..1, "object", &bytes);
    for number in 0..256 {
        put_hole(&world, &format!("large-{number}"), 1 << 40);
    }
    let (runtime, keys) = (runtime(), world.path("keys"));
    let server = &world.servers[0];
    let before = open_files(&server.child);
    runtime.block_on(async {
        for _ in 0..12 {
            let mut hand = ManualClient::connect(&keys, server.at).await;
            for number in 0..256 {
                hand.say(describe(&format!("large-{number}"))).await;
            }
            // Once this last request is answered, the server has read all requests before it.
            hand.say(Control::Describe { object: "object".into(), with_hash: false }).await;
            while !matches!(hand.hear().await, Control::Described { .. }) {}
        }
    });
    let after = open_files(&server.child);
    assert!(after < before + 60, "{before} files were open, and now {after}");
    let got = world.get(&[&world.object(0..1, "object")]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
}

/// #17: 16 connections of one client with 64 pulls each exhausted the server's descriptors. Their
/// one-byte blocks exhausted the memory.
#[test]
fn client_usage_is_summed_over_its_connections() {
    let world = World::new(0).with(None, &["--memory", "16 MiB"]);
    let bytes = noise(23, 2 * MIB);
    world.put(0..1, "object", &bytes);
    put_hole(&world, "large", 3 << 30);
    let (runtime, keys) = (runtime(), world.path("keys"));
    let server = &world.servers[0];
    let (files, memory) = (open_files(&server.child), resident_bytes(&server.child));
    runtime.block_on(async {
        let mut hands = Vec::new();
        let mut accepted = 0;
        for connection in 0..16 {
            let mut hand = ManualClient::connect(&keys, server.at).await;
            for number in 0..64 {
                let Control::Pull(ask) = request(number, "large") else { unreachable!("it is a request") };
                let block_bytes = if connection < 8 { 1 } else { 1_000 };
                hand.say(Control::Pull(Request { block_bytes, window: 64, ..ask })).await;
            }
            for _ in 0..64 {
                match hand.hear().await {
                    Control::Accepted(of) => accepted += usize::from(of.block_bytes == 1_000),
                    Control::Refused { reason, .. } if connection < 8 => {
                        assert_eq!(reason, "blocks of 1 B: must be at least 480 B");
                    }
                    Control::Refused { reason, .. } => assert!(reason.contains("64 pulls"), "{reason}"),
                    other => panic!("{other:?}"),
                }
            }
            hands.push(hand);
        }
        assert_eq!(accepted, 64);
        // A further pull of this client is refused, with the reason.
        let refused = ManualClient::connect_as(&keys, "client", server.at).await.err();
        assert!(
            refused.as_ref().is_some_and(|why| why.contains("`client`") && why.contains("16")),
            "{refused:?}"
        );
        let (files, memory) = (open_files(&server.child) - files, resident_bytes(&server.child) - memory);
        assert!(files < 64 + 3 * 16 + 10, "{files} more files are open");
        // TLS and its buffers add memory for each connection.
        assert!(memory < 48 * MIB, "{memory} B more");
        let get = ["--as", "other", &world.object(0..1, "object")];
        let getting = world.get(&get);
        let got = tokio::task::spawn_blocking(move || getting.end()).await.expect("it ends");
        assert_eq!(got.code, Some(0), "{got:?}");
    });
    assert!(world.has(&bytes));
}

/// #19: a client of an older release was disconnected without a reason, and reported an unreachable
/// server.
#[test]
fn client_of_another_version_is_refused_with_the_reason() {
    let world = World::new(0).with(None, &[]);
    world.put(0..1, "object", &noise(25, 1_000));
    let (runtime, keys, at) = (runtime(), world.path("keys"), world.servers[0].at);
    runtime.block_on(async {
        let files = CredentialFiles::in_set(&keys, anabranch_gather::SYSTEM, Role::Operator, "client");
        let identity = Identity::load(&files).expect("they were made");
        let tcp = tokio::net::TcpStream::connect(at).await.expect("the server listens");
        let (mut stream, _) = identity.connect_to_site(tcp).await.expect("of one authority");
        let mut hello = Vec::new();
        Control::Hello { channel: 7 }.encode_framed(&mut hello);
        // The version follows the length and the kind.
        assert_eq!(hello[3], VERSION);
        hello[3] -= 1;
        stream.write_all(&hello).await.expect("it takes it");
        let Control::Goodbye { reason } = hear(&mut stream, &mut Vec::new()).await else {
            panic!("it is told to go")
        };
        let said = format!(
            "it speaks version {VERSION} of the protocol, not {}: use one release at both ends",
            VERSION - 1
        );
        assert_eq!(reason, said);
    });
}

/// #17: 64 connections of one certificate without requests excluded all other clients for ever.
#[test]
fn connections_without_requests_are_closed_and_free_slots() {
    let world = World::new(0).with(None, &["--idle", "15 s", "--clients-max", "8"]);
    let bytes = noise(24, MIB);
    world.put(0..1, "object", &bytes);
    let (runtime, keys, at) = (runtime(), world.path("keys"), world.servers[0].at);
    runtime.block_on(async {
        let mut idle = Vec::new();
        for _ in 0..8 {
            idle.extend(ManualClient::connect_as(&keys, "client", at).await.ok());
        }
        assert_eq!(idle.len(), 2, "a quarter of the places");
        let getting = world.get(&["--as", "other", &world.object(0..1, "object")]);
        let got = tokio::task::spawn_blocking(move || getting.end()).await.expect("it ends");
        assert_eq!(got.code, Some(0), "{got:?}");
        for hand in &mut idle {
            let Control::Goodbye { reason } = hand.hear().await else { panic!("it is told to go") };
            assert_eq!(reason, "nothing was asked for in 15 s");
        }
        // The client's slots are free again.
        ManualClient::connect(&keys, at).await;
    });
    assert!(world.has(&bytes));
}

/// #17: keys wear out after about 549 GB, and a pull ended then.
#[test]
fn worn_out_keys_are_replaced_during_a_pull() {
    let harm =
        DatagramHarm { loss_ppm: 10_000, late_ppm: 20_000, replay_ppm: 20_000, ..DatagramHarm::default() };
    let world =
        World::new(0).with(Some(harm), &["--key-packets", "300"]).with(None, &["--key-packets", "500"]);
    let bytes = noise(25, 24 * MIB);
    world.put(0..2, "object", &bytes);
    let got = world.get(&[&world.object(0..2, "object"), LINK[0], LINK[1]]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    // 24 MiB are some 3,000 packets.
    assert!(got.count("key_changes") >= 4, "{got:?}");
    assert_eq!((got.count("forged_packets"), got.count("malformed_packets")), (0, 0), "{got:?}");
}

/// A client draws its channel's number. A client that uses another client's channel is refused, and
/// the other client's packets still arrive.
#[test]
fn use_of_another_clients_channel_is_refused_without_harm() {
    let world = World::new(1);
    world.put(0..1, "object", &noise(28, MIB));
    let (runtime, keys, at) = (runtime(), world.path("keys"), world.servers[0].at);
    runtime.block_on(async {
        let mut hand = ManualClient::connect(&keys, at).await;
        let id = hand.channel.sealer.channel();
        for name in ["client", "other"] {
            let refused = ManualClient::connect_with(&keys, name, at, id).await.err();
            assert!(refused.as_ref().is_some_and(|why| why.contains("another session's")), "{refused:?}");
        }
        hand.say(request(0, "object")).await;
        assert!(matches!(hand.hear().await, Control::Accepted(_)));
        let mut shown = vec![0; seal::OVERHEAD_BYTES];
        hand.channel.sealer.seal(&mut shown).expect("the first of its key");
        hand.socket.send(&shown).await.expect("loopback is there");
        let end = Instant::now() + PATIENCE;
        while hand.packets().await == 0 {
            assert!(Instant::now() < end, "its channel is its own still");
        }
        drop(hand);
        // The channel is free once its session has ended.
        while let Err(why) = ManualClient::connect_with(&keys, "other", at, id).await {
            assert!(Instant::now() < end, "{why}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// #17: a certificate of any server was accepted at any address, so a different server could
/// answer.
#[test]
fn answer_of_another_server_than_named_is_refused() {
    let world = World::new(1);
    world.put(0..1, "object", b"bytes");
    let object = world.object(0..1, "object");
    let got = world.get(&[&format!("server@{object}")]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    let out = world.path("never");
    let got = world.get(&[&format!("s2@{object}"), "-o", out.to_str().expect("plain")]).end();
    assert_eq!(got.code, Some(1), "{got:?}");
    assert!(got.reason().contains("server `server` answers there, not `s2`"), "{got:?}");
    assert!(!out.exists());
}

/// #17: two servers had different files of one name. `get` took one of them, or an invalid mix, and
/// reported neither server.
#[test]
fn stale_server_is_reported_and_its_data_ignored() {
    let world = World::new(2);
    let bytes = noise(26, 12 * MIB);
    // The two versions differ in every byte, so any data taken from the stale server is wrong.
    let stale: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    world.put(0..1, "object", &bytes);
    let object = world.object(0..2, "object");
    let hash = blake3::hash(&bytes).to_hex().to_string();
    let at = world.servers[1].at.to_string();
    // The stale version has the same or another length. The right version is given by `--blake3`,
    // or by the first server in the list.
    for (other, how) in [(&stale[..], &["--blake3", &hash][..]), (&stale[..], &[]), (&stale[..MIB], &[])] {
        world.put(1..2, "object", other);
        let arguments: Vec<&str> =
            [object.as_str(), LINK[0], LINK[1]].into_iter().chain(how.iter().copied()).collect();
        let got = world.get(&arguments).end();
        assert_eq!(got.code, Some(0), "{got:?}");
        assert!(world.has(&bytes));
        let named = got.objects[0]["other_versions"][&at].as_str();
        let length = format!("{} bytes", other.len());
        // On a busy machine the stale server may connect too late to get a request.
        let came_late = got.end["servers"][1]["received_bytes"] == 0;
        assert!(came_late || named.is_some_and(|what| what.contains(&length)), "{got:?}");
        std::fs::remove_file(world.path("out")).expect("it is there");
    }
    // If all servers are stale, all are reported, and no file appears.
    world.put(0..2, "object", &stale);
    let got = world.get(&[&object, "--blake3", &hash]).end();
    assert_eq!(got.code, Some(4), "{got:?}");
    assert_eq!(got.objects[0]["other_versions"].as_object().map(serde_json::Map::len), Some(2), "{got:?}");
    assert!(!world.path("out").exists());
    let got = world.get(&[&object, "--blake3", "abc"]).end();
    assert_eq!(got.code, Some(2), "{got:?}");
}

/// #17: if a part is corrupt at one server, `get` fetches it from another server with an intact
/// copy, and reports the corrupt server.
#[test]
fn corrupt_part_is_fetched_from_another_server() {
    let bytes = noise(27, 8 * MIB);
    let world = striped(&bytes, None);
    let path = world.path("server-2/whole.2");
    let mut part = std::fs::read(&path).expect("it was put there");
    part[1_000] ^= 1;
    std::fs::write(&path, part).expect("the folder is ours");
    let manifest = world.path("cut/whole.toml");
    // The other server of this part is server 3. `get` may have requested nothing from server 2.
    let got = world.get(&["--manifest", manifest.to_str().expect("plain")]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
}

/// #48: a client acknowledged packets that it had not received, which made a server send 1 Gbit/s
/// into a link of 50 Mbit/s.
#[test]
fn acknowledging_unreceived_packets_ends_the_connection() {
    let world = World::new(0).with(None, &[]);
    put_hole(&world, "large", 1 << 30);
    let (runtime, keys, at) = (runtime(), world.path("keys"), world.servers[0].at);
    let (reason, came_bytes) = runtime.block_on(async {
        let mut hand = ManualClient::connect(&keys, at).await;
        hand.say(request(0, "large")).await;
        assert!(matches!(hand.hear().await, Control::Accepted(_)));
        let (mut next, mut came_bytes) = (0, 0);
        let mut buffer = vec![0; 1 << 16];
        loop {
            // The client acknowledges packets that are in flight, or not sent yet.
            let arrived = ArrivalReport { delay: Time::ZERO, received: next, lost: 0, runs: 0 };
            let receipt = Receipt { came: if next > 0 { u32::MAX } else { 0 }, digest: 0 };
            let feedback = Datagram::<Bytes>::Feedback(Feedback {
                pull: PullId(0),
                next,
                receipt,
                report: (next > 0).then_some(Report::Arrived(arrived)),
                grant: None,
                base: 0,
                lacks: vec![64],
                is_unsaid: false,
            });
            let mut sealed = vec![0; seal::HEADER_BYTES];
            feedback.encode(&mut sealed);
            sealed.resize(sealed.len() + seal::TAG_BYTES, 0);
            hand.channel.sealer.seal(&mut sealed).expect("the first of its key");
            // The client's socket is closed with the connection, so an error here is expected.
            let _ = hand.socket.send(&sealed).await;
            tokio::select! {
                message = hear(&mut hand.stream, &mut hand.read) => {
                    let Control::Goodbye { reason } = message else { panic!("{message:?}") };
                    break (reason, came_bytes);
                }
                length = hand.socket.recv(&mut buffer) => {
                    came_bytes += length.expect("loopback is there");
                    next += 32;
                }
            }
        }
    });
    assert!(reason.contains("acknowledges packets that it has not received"), "{reason}");
    assert!(came_bytes < 100_000, "{came_bytes} B were sent before");
    println!("cut off after {came_bytes} B: {reason}");
}
