//! Keys revoked during a session: both ends notice the revocation, and close their connections with
//! the holder.

use super::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// Revokes all certificates of `who` made so far, in a set's folder.
fn revoke(folder: &Path, who: &str) {
    let mut command = anabranch();
    command.args(["--quiet", "gather", "keys", "revoke", who, "--keys"]).arg(folder);
    assert!(command.status().expect("the command runs").success());
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.expect("cp is there").success());
}

/// #17: a client noticed a server's revocation only in its next handshake.
#[test]
fn client_disconnects_from_a_server_with_revoked_key() {
    // At this rate the pull takes minutes.
    let world = World::new(0).with(None, &["--rate-max", "2 Mbit/s"]);
    world.put(0..1, "object", &noise(60, 32 * MIB));
    let own = world.path("own-keys");
    copy_folder(&world.path("keys"), &own);
    let mut command = anabranch();
    command.args(["gather", "get", &world.object(0..1, "object"), "--json", "-o"]).arg(world.path("out"));
    command.arg("--keys").arg(&own);
    let getting = RunningClient::start(command);
    world.wait_for(256 << 10);
    // Only the client gets the revocation.
    revoke(&own, "server:server");
    let got = getting.end();
    assert_eq!(got.code, Some(1), "{got:?}");
    assert!(got.reason().contains("its certificate was revoked"), "{got:?}");
    assert!(got.count("fetched_bytes") > 0, "it was in the middle: {got:?}");
    assert!(!world.path("out").exists());
}

/// #17: a server closes sessions whose client's key is revoked.
#[test]
fn server_closes_only_the_sessions_of_a_revoked_client() {
    let world = World::new(1);
    let bytes = noise(61, MIB);
    world.put(0..1, "object", &bytes);
    let (keys, server) = (world.path("keys"), &world.servers[0]);
    runtime().block_on(async {
        let mut lost = ManualClient::connect(&keys, server.at).await;
        let mut stays = ManualClient::connect_as(&keys, "other", server.at).await.expect("it is let in");
        for hand in [&mut lost, &mut stays] {
            hand.say(Control::Describe { object: "object".into(), with_hash: false }).await;
            assert!(matches!(hand.hear().await, Control::Described { found: Ok(_), .. }));
        }
        revoke(&keys, "client");
        kill_process(Pid::from_child(&server.child), Signal::HUP).expect("ours to signal");
        let mut rest = Vec::new();
        let ends = tokio::time::timeout(PATIENCE, lost.stream.read_to_end(&mut rest)).await;
        // The session may be closed with or without an error.
        drop(ends.expect("it is closed in time"));
        stays.say(Control::Describe { object: "object".into(), with_hash: false }).await;
        assert!(matches!(stays.hear().await, Control::Described { found: Ok(_), .. }));
    });
    // The server logs the end when the session is closed, and another thread reads the log.
    let began = std::time::Instant::now();
    let log = || server.log.lock().expect("nobody panics with it").clone();
    while !log().contains("client went: its certificate was revoked") {
        assert!(began.elapsed() < PATIENCE, "{}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
}
