//! Daemons with few descriptors: connections beyond the limit are refused, without other effects.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files and clocks")]

use crate::net::{KilledOnDrop, Lines, LocalDaemons, PATIENCE, TWO, noise, run};
use crate::silent::{Flood, StrangerData};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::Client;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Time for which a daemon without free descriptors is observed.
const WATCHED: Duration = Duration::from_secs(3);

/// A daemon with a descriptor limit, killed on drop.
struct Daemon {
    child: KilledOnDrop,
    at: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Daemon {
    /// Starts `replicate` with the arguments `words` and this limit of descriptors. Waits until the
    /// daemon logs the text `listens` and its address.
    fn start(local: &LocalDaemons, descriptors: u32, words: &[&str], listens: &str) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {descriptors}; exec \"$0\" replicate \"$@\"");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_anabranch")]).args(words);
        command
            .current_dir(local.path("."))
            .env_remove("ANABRANCH_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let lines = Lines::of(child.stderr.take().expect("it is piped"));
        // This guard kills the daemon, whatever happens below.
        let child = KilledOnDrop(child);
        let log =
            Arc::new(Mutex::new(lines.until(listens).unwrap_or_else(|said| panic!("{words:?}: {said}"))));
        let at = {
            let said = log.lock().expect("no panic");
            let at = said.rsplit_once(listens).and_then(|(_, at)| at.split([';', ' ', '\n']).next());
            at.and_then(|at| at.parse().ok()).unwrap_or_else(|| panic!("an address: {said}"))
        };
        let said = Arc::clone(&log);
        std::thread::spawn(move || {
            lines.rest().for_each(|line| said.lock().expect("no panic").push_str(&(line + "\n")))
        });
        Self { child, at, log }
    }

    fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }

    /// Processor time of the daemon, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.0.id())).expect("it runs");
        let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
    }

    fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.0.id())).expect("it runs").count()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the daemon\n{}", self.log());
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// #17: the behaviour of a daemon without free descriptors was untested.
#[test]
fn controller_without_descriptors_reports_it_and_recovers() {
    const DESCRIPTORS: u32 = 48;
    let local = LocalDaemons::start(TWO, &[]);
    let words =
        ["controller", "--listen", "127.0.0.1:0", "--topology", "network.toml", "--store", "few.redb"];
    let daemon = Daemon::start(&local, DESCRIPTORS, &words, "https://");
    let files = CredentialFiles::in_set(
        &local.path("keys/replicate"),
        anabranch_replicate::SYSTEM,
        Role::Operator,
        "operator",
    );
    let identity = Identity::load(&files).expect("`keys init` made them");
    runtime().block_on(async {
        // Authenticated connections, which are never dropped, until the daemon has no descriptor
        // left. The duration of a handshake does not matter here.
        let mut held = Vec::new();
        let end = Instant::now() + PATIENCE;
        let mut connecting = tokio::task::JoinSet::new();
        while daemon.open_files() < DESCRIPTORS as usize {
            assert!(Instant::now() < end, "{} of {DESCRIPTORS} open: {}", daemon.open_files(), daemon.log());
            if connecting.len() < 4 {
                let (at, identity) = (daemon.at, identity.clone());
                connecting.spawn(async move {
                    let tcp = TcpStream::connect(at).await.ok()?;
                    identity.connect(tcp, Role::Controller, "controller").await.ok()
                });
            }
            let connected = tokio::time::timeout(Duration::from_millis(20), connecting.join_next()).await;
            held.extend(connected.ok().flatten().and_then(|done| done.expect("no panic")));
        }
        // Further connections wait to be accepted.
        let mut waiting = Vec::new();
        for _ in 0..20 {
            waiting.push(TcpStream::connect(daemon.at).await.expect("the kernel takes it"));
        }
        let (before, begun) = (daemon.ticks(), Instant::now());
        tokio::time::sleep(WATCHED).await;
        let (took, watched) = (daemon.ticks() - before, begun.elapsed());
        let open = daemon.open_files();
        println!("{} held, {open} of {DESCRIPTORS} open, {took} ticks in {watched:?}", held.len());
        // A busy loop would use all of the processor time.
        assert!(took * 10 < watched.as_millis() as u64 / 2, "{took} ticks");
        assert!(daemon.log().contains("no descriptor is left (see ulimit -n)"), "{}", daemon.log());
        drop((held, waiting, connecting));
        let client = Client::new(daemon.at.to_string(), &identity, PATIENCE).expect("good credentials");
        let end = Instant::now() + PATIENCE;
        while let Err(error) = client.topology().await {
            assert!(Instant::now() < end, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// #17: with 64 descriptors and 120 connections at a relay, a transfer failed at once and was not
/// repeated.
#[test]
fn relay_with_few_descriptors_receives_a_file() {
    let local = LocalDaemons::start(TWO, &["s"]);
    std::fs::create_dir(local.path("d")).expect("the folder is ours");
    let bytes = noise(5, 3_000_000);
    std::fs::write(local.path("s/file"), &bytes).expect("the folder is ours");
    let relay =
        ["relay", "--topology", "network.toml", "--site", "d", "--dir", "d", "--listen", "127.0.0.1:0"];
    let words = [&relay[..], &["--controller", local.address()]].concat();
    let daemon = Daemon::start(&local, 64, &words, " takes data on ");
    local.wait_for(&["s", "d"]);
    runtime().block_on(async {
        let silent = Flood::start(daemon.at, 120, StrangerData::Nothing).await;
        let send = ["send", "file", "--from", "s", "--to", "d", "--quiet", "--controller", local.address()];
        let send = local.command(&[&send[..], &["--stripes", "8"]].concat());
        let (code, said) = tokio::task::spawn_blocking(move || run(send)).await.expect("it ends");
        assert_eq!(code, Some(0), "{said}");
        drop(silent);
    });
    assert!(std::fs::read(local.path("d/file")).is_ok_and(|copy| copy == bytes));
}

/// A source, with a cable to each of two destinations.
const THREE: &str = r#"
name = "three"
[[site]]
name = "s"
[[site]]
name = "d"
[[site]]
name = "e"
[[cable]]
between = ["s", "d"]
capacity = "1 Gbit/s"
delay = "0 ms"
[[cable]]
between = ["s", "e"]
capacity = "1 Gbit/s"
delay = "0 ms"
"#;

/// #48: the transfer to d waited for 92 s while another transfer occupied the memory of e.
#[test]
fn destination_is_served_while_another_site_lacks_memory() {
    let mut local = LocalDaemons::start(THREE, &["s", "d"]);
    let mut relay = local.relay("e", "e");
    relay.args(["--memory", "24 MiB"]);
    local.keep("e", relay);
    local.wait_for(&["s", "d", "e"]);
    let send = |words: &[&str]| {
        // A destination takes 14 MiB for a transfer, so 24 MiB suffice for one transfer but not for
        // two.
        let own = ["send", "--from", "s", "--symbol", "1 MiB", "--buffer-packets", "4"];
        local.command(&[&own[..], &["--controller", local.address()], words].concat())
    };
    std::fs::write(local.path("s/slow"), noise(6, 80_000_000)).expect("the folder is ours");
    let bytes = noise(7, 3_000_000);
    std::fs::write(local.path("s/file"), &bytes).expect("the folder is ours");
    let (code, said) = run(send(&["slow", "--to", "e", "--bwlimit", "4 Mbit/s", "--detach"]));
    assert_eq!(code, Some(0), "{said}");
    let begins = |id: u64, phase: &str| {
        let end = Instant::now() + PATIENCE;
        while !local.transfers().iter().any(|t| t["id"] == id && t["phase"] == phase) {
            assert!(Instant::now() < end, "{:?}", local.transfers());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    begins(1, "running");
    let (code, said) = run(send(&["file", "--to", "d,e", "--detach"]));
    assert_eq!(code, Some(0), "{said}");
    let has = |site: &str| std::fs::read(local.path(site).join("file")).is_ok_and(|copy| copy == bytes);
    let arrives = |site: &str| {
        let end = Instant::now() + PATIENCE;
        while !has(site) {
            assert!(Instant::now() < end, "{site}: {:?}", local.transfers());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let begun = Instant::now();
    arrives("d");
    println!("d has the file after {:?}", begun.elapsed());
    // The slow transfer takes 160 s, longer than the wait, so it still occupies the memory.
    let slow = local.transfers().into_iter().find(|t| t["id"] == 1).expect("it was sent");
    assert!(slow["phase"] == "running" && !has("e"), "{slow}");
    let cancel = ["status", "1", "--cancel", "--controller", local.address()];
    let (code, said) = run(local.command(&cancel));
    assert_eq!(code, Some(0), "{said}");
    let begun = Instant::now();
    arrives("e");
    println!("e has the file {:?} after there was room", begun.elapsed());
}
