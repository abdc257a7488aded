//! Single attacks: a revoked key, a host name with a silent name server, a flood of submissions.

use super::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

impl World {
    fn stop(&mut self, who: &str) {
        let mut daemon = self.daemons.remove(who).expect("it runs");
        daemon.kill().and_then(|()| daemon.wait()).expect("ours");
    }
}

/// #17: a site closes a data connection once the key of its other end is revoked.
#[test]
fn data_connection_ends_when_its_sender_is_revoked() {
    let mut world = World::new();
    // Only `d` gets the revocation, so that the controller does not end the attempt.
    let own = world.folder.path().join("keys-d");
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(world.folder.path().join("keys/replicate"))
        .arg(&own)
        .status();
    assert!(copied.expect("cp is there").success());
    world.stop("d");
    let (listen, controller) = (world.address("d").to_string(), world.address("controller").to_string());
    let words = ["relay", "--site", "d", "--dir", "d", "--listen", &listen, "--controller", &controller];
    world.start("d", &[&words[..], &["--keys", "keys-d"]].concat());
    runtime().block_on(async {
        let mut e = Actor::new(&world, "e");
        let operator = world.client(Role::Operator, "operator");
        let id = submit(&operator, "e", "d", SchemeChoice::SinglePath, 1).await;
        let program = e.program().await;
        let mut stream = greeted(&e.identity, program.run, &program.outgoing[0], 0).await;
        for _ in 0..3 {
            let beat = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
            beat.expect("it beats in time").expect("it stands");
        }
        let revoked = world.command(&["keys", "revoke", "site:e", "--keys", "keys-d"]).status();
        assert!(revoked.expect("the command runs").success());
        let pid = rustix::process::Pid::from_child(&world.daemons["d"]);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("ours to signal");
        let ends = async { while stream.read_u8().await.is_ok() {} };
        tokio::time::timeout(PATIENCE, ends).await.expect("it is closed in time");
        let end = Instant::now() + PATIENCE;
        loop {
            let view = format!("{:?}", operator.status(id).await.expect("the controller lives"));
            if view.contains("its certificate was revoked") {
                return;
            }
            assert!(Instant::now() < end, "{view}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// Returns a command prefix that runs a program in a separate mount namespace, where host names are
/// resolved only at `server`. `None`, with a printed reason, if this machine does not permit it.
fn with_name_server(folder: &std::path::Path, server: &str) -> Option<Vec<String>> {
    let (resolv, sources) = (folder.join("resolv.conf"), folder.join("nsswitch.conf"));
    std::fs::write(&resolv, format!("nameserver {server}\noptions timeout:30 attempts:5\n")).expect("ours");
    // Some machines resolve names through a local daemon first.
    std::fs::write(&sources, "hosts: files dns\n").expect("ours");
    let mut mount = format!("mount --bind {} /etc/resolv.conf", resolv.display());
    if std::path::Path::new("/etc/nsswitch.conf").exists() {
        mount += &format!(" && mount --bind {} /etc/nsswitch.conf", sources.display());
    }
    let words = |then: &str| {
        ["unshare", "--mount", "sh", "-c"]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("{mount} && {then}")])
    };
    let tried: Vec<String> = words(&format!("grep -q '^nameserver {server}$' /etc/resolv.conf")).collect();
    match std::process::Command::new(&tried[0]).args(&tried[1..]).env("LC_ALL", "C").output() {
        Ok(done) if done.status.success() => Some(words("exec \"$0\" \"$@\"").collect()),
        Ok(done) => {
            let said = crate::text(&done.stderr);
            let is_denied = ["not permitted", "ermission denied"].iter().any(|denied| said.contains(denied));
            assert!(is_denied, "{tried:?}: {said}");
            skip(&format!("a mount namespace with an own /etc/resolv.conf cannot be made here: {said}"));
            None
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip("no `unshare` on this machine");
            None
        }
        Err(error) => panic!("{tried:?}: {error}"),
    }
}

/// #17: a site registered a host name whose name server is silent. Other sites' daemons stopped,
/// because they resolved the name on the threads that moved data.
#[test]
fn unresolved_host_name_delays_no_other_transfer() {
    let mut world = World::new();
    use std::io::ErrorKind::{AddrNotAvailable, PermissionDenied};
    let silent = match std::net::UdpSocket::bind("127.0.0.99:53") {
        Ok(silent) => silent,
        Err(error) if matches!(error.kind(), AddrNotAvailable | PermissionDenied) => {
            return skip(&format!("port 53 of 127.0.0.99 cannot be had here: {error}"));
        }
        Err(error) => panic!("127.0.0.99:53: {error}"),
    };
    let Some(wrapper) = with_name_server(world.folder.path(), "127.0.0.99") else { return };
    world.stop("r");
    let (listen, controller) = (world.address("r").to_string(), world.address("controller").to_string());
    let own = world.command(&[
        "relay",
        "--site",
        "r",
        "--dir",
        "r",
        "--listen",
        &listen,
        "--controller",
        &controller,
    ]);
    let mut command = std::process::Command::new(&wrapper[0]);
    command
        .args(&wrapper[1..])
        .arg(own.get_program())
        .args(own.get_args())
        .args(["--topology", "network.toml"]);
    command
        .current_dir(world.folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .env_remove("ANABRANCH_LOG");
    command.stderr(std::fs::File::create(world.log("r")).expect("the folder is ours"));
    world.daemons.insert("r", command.spawn().expect("a daemon starts"));
    let bytes = noise(11, 300_000);
    std::fs::write(world.folder.path().join("s/file"), &bytes).expect("the folder is ours");
    runtime().block_on(async {
        let mut e = Actor::at(&world, "e", "slow.example:7");
        let operator = world.client(Role::Operator, "operator");
        for _ in 0..2 {
            submit(&operator, "s", "e", SchemeChoice::SinglePath, 16).await;
            e.program().await;
        }
        // The daemon sends a lookup, which gets no answer.
        silent.set_read_timeout(Some(PATIENCE)).expect("a good time");
        let (asked, _) = silent.recv_from(&mut [0; 512]).expect("the name is looked up");
        assert!(asked > 12);
        let id = submit(&operator, "s", "d", SchemeChoice::SinglePath, 16).await;
        // The lookups take at least 150 s, and so longer than the wait.
        let end = Instant::now() + PATIENCE;
        let view = loop {
            let view = operator.status(id).await.expect("the controller lives");
            if view.outcome.is_some() || Instant::now() > end {
                break view;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(view.exit_code, Some(0), "{view:?}");
        assert!(std::fs::read(world.folder.path().join("d/from-s")).is_ok_and(|copy| copy == bytes));
    });
}

/// #17: 90 submissions of one site increased the controller's memory from 12 to 744 MiB, and a
/// status request to 1.6 GiB. (This test measures memory;
/// `submissions_of_a_site_are_bounded_and_readable` in `api` tests the refusals.)
#[test]
fn controller_memory_is_bounded_under_a_flood_of_submissions() {
    let world = World::new();
    let e = world.credentials(Role::Site, "e");
    let submission = |name: &str, path: &str| {
        let destination = DestinationRequest { site: "d".into(), path: path.into() };
        let mut request = SubmitRequest::new("e", path, vec![destination]);
        request.hop.congestion_control = Some(name.into()).filter(|name: &String| !name.is_empty());
        serde_json::to_string(&request).expect("JSON")
    };
    let path = vec!["x".repeat(203); 20].join("/");
    let huge = submission(&"x".repeat(3_900_000), "file");
    let large = submission("", &path);
    runtime().block_on(async {
        let one_by_one = |body: String, count: usize| {
            let (world, e) = (&world, &e);
            async move {
                for _ in 0..count {
                    raw_request(world, e, "/v1/transfers", body.len(), body.as_bytes()).await;
                }
            }
        };
        let floods = (0..16)
            .map(|n| if n % 2 == 0 { one_by_one(huge.clone(), 12) } else { one_by_one(large.clone(), 60) });
        futures_util::future::join_all(floods).await;
        world.show("a flood of submissions");
        let operator = world.client(Role::Operator, "operator");
        let open = operator.statuses().await.expect("page by page").len();
        assert!((1..=100).contains(&open), "{open} transfers of a site");
        // Only slots of operators are left. `z` is down, so its transfers wait.
        let mut mine = 0;
        let destination = || vec![DestinationRequest { site: "d".into(), path: path.clone() }];
        while operator.submit(&SubmitRequest::new("z", path.clone(), destination())).await.is_ok() {
            mine += 1;
            assert!(mine <= 1_000, "there is a limit");
        }
        assert!(mine >= 900, "a site's transfers leave operators {mine} places");
        for _ in 0..4 {
            operator.statuses().await.expect("page by page");
        }
        world.show("as many transfers as there may be");
    });
    world.assert_bounds();
}
