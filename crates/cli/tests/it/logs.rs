//! Logs of daemons: a line for each transfer that begins, waits, fails or ends, and for each peer
//! that connects, leaves or is refused.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: they use the clock, files and programs")]

use super::control::{TRIANGLE, send};
use super::net::{CONTROLLER, KilledOnDrop, Lines, LocalDaemons, PATIENCE, anabranch, run};
use super::text;
use anabranch_http::ClientError;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::Client;
use anabranch_replicate_proto::control::TransferId;
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

/// #17: the controller's log showed a transfer's events as Rust structs. Daemons log by default.
#[test]
fn controller_logs_a_transfer_in_plain_sentences() {
    let local = LocalDaemons::start(TRIANGLE, &["paris", "tokyo"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    let (code, said) = run(send(&local, &["--quiet", "file", "--to", "tokyo"]));
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(send(&local, &["--quiet", "missing", "--to", "tokyo"]));
    assert_eq!(code, Some(1), "{said}");
    let log = local.log_until("ended: failed");
    let has = |line: &str| log.iter().any(|l| l.contains(line) && l.contains("transfer"));
    for line in [
        "begins: file from paris to tokyo",
        "tokyo: complete and verified",
        "ended: every destination is complete",
        "begins: missing from paris to tokyo",
        "tokyo: failed: ",
    ] {
        assert!(has(line), "{line}: {log:#?}");
    }
    assert!(!log.iter().any(|l| l.contains('{') || l.contains("kind=")), "{log:#?}");
    assert!(!log.iter().any(|l| l.contains("planned: ")), "an attempt's details are for who asks: {log:#?}");
}

/// #17: `-vv` logged commands as Rust structs.
#[test]
fn logs_contain_no_rust_debug_output_at_any_level() {
    let mut local = LocalDaemons::start_as(TRIANGLE, &["paris", "tokyo"], &["-vv"], &["-vv"]);
    let mut lima = local.relay("lima", "lima");
    lima.args(["-vv", "--advertise", "127.0.0.1:1"]);
    local.keep("lima", lima);
    local.wait_for(&["paris", "tokyo", "lima"]);
    std::fs::write(local.path("paris/file"), vec![7; 1 << 20]).expect("the folder is ours");
    let (code, said) = run(send(&local, &["file", "--to", "tokyo,lima", "--detach"]));
    assert_eq!(code, Some(0), "{said}");
    let tokyo = local.relay_log_until("tokyo", "is here, verified");
    let (code, said) = run(local.command(&["status", "1", "--cancel", "--controller", local.address()]));
    assert_eq!(code, Some(0), "{said}");
    let log = [local.log_until("ended: cancelled"), tokyo, local.relay_log_until("paris", "told to forget")]
        .concat();
    // Debug output of Rust, as `Name { field: … }`, `Some(…)` or `Name(3)`.
    let is_rust = |line: &&String| {
        let braces = line.contains(" { ") || line.contains(": {");
        braces || line.split('(').rev().skip(1).any(|before| before.ends_with(char::is_alphanumeric))
    };
    assert_eq!(log.iter().filter(is_rust).collect::<Vec<_>>(), [""; 0], "{log:#?}");
}

/// #17: neither log mentioned an unreachable site, and a relay logged other sites by number.
#[test]
fn postponed_awaited_and_cancelled_transfers_have_log_lines() {
    let mut local = LocalDaemons::start(TRIANGLE, &["paris", "tokyo"]);
    let mut lima = local.relay("lima", "lima");
    lima.args(["--advertise", "127.0.0.1:1"]);
    local.keep("lima", lima);
    local.wait_for(&["paris", "tokyo", "lima"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    // Of the sites, only paris connects to lima.
    let (code, said) = run(send(&local, &["file", "--to", "lima", "--detach", "--avoid-sites", "tokyo"]));
    assert_eq!(code, Some(0), "{said}");
    local.log_until("lima is left for later: paris cannot connect to lima at 127.0.0.1:1");
    local.log_until("waiting for lima, ");
    local.relay_log_until("paris", "the hop to lima failed: ");
    let (code, said) = run(local.command(&["status", "1", "--cancel", "--controller", local.address()]));
    assert_eq!(code, Some(0), "{said}");
    local.log_until("ended: cancelled");
}

/// #17: a controller's log did not mention when sites came up or went down.
#[test]
fn controller_logs_sites_that_join_and_leave() {
    let mut local = LocalDaemons::start(TRIANGLE, &["paris"]);
    local.log_until("site is up");
    local.kill("paris");
    let log = local.log_until("site is away");
    assert!(log.iter().all(|line| line.contains("site=\"paris\"")), "{log:#?}");
    let again = local.relay("paris", "paris");
    local.kill(CONTROLLER);
    local.keep("paris", again);
    local.relay_log_until("paris", "; trying on");
}

/// #17: a relay whose terminal was closed ended without a message.
#[test]
fn relay_survives_its_closed_output() {
    let local = LocalDaemons::start(TRIANGLE, &["paris"]);
    let mut tokyo = local.relay("tokyo", "tokyo");
    let mut tokyo = KilledOnDrop(tokyo.stderr(std::process::Stdio::piped()).spawn().expect("it starts"));
    let pipe = tokyo.0.stderr.take().expect("it is piped");
    local.wait_for(&["paris", "tokyo"]);
    drop(pipe);
    let pid = rustix::process::Pid::from_child(&tokyo.0);
    rustix::process::kill_process(pid, Signal::HUP).expect("ours to signal");
    let end = std::time::Instant::now() + PATIENCE;
    let leads_to = || std::fs::read_link(format!("/proc/{}/fd/2", tokyo.0.id())).expect("it runs");
    while leads_to() != std::path::Path::new("/dev/null") {
        assert!(std::time::Instant::now() < end, "{}", leads_to().display());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(local.path("paris/file"), vec![7; 1 << 20]).expect("the folder is ours");
    let (code, said) = run(send(&local, &["--quiet", "file", "--to", "tokyo"]));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(std::fs::read(local.path("tokyo/file")).expect("it is there"), vec![7; 1 << 20]);
    // The last log lines must not end the relay either.
    tokyo.end_politely();
}

#[test]
fn relay_continues_after_sighup_and_logs_its_end() {
    let local = LocalDaemons::start(TRIANGLE, &["paris", "tokyo"]);
    local.wait_for(&["paris", "tokyo"]);
    local.signal("tokyo", Signal::HUP);
    local.relay_log_until("tokyo", "SIGHUP: keys are read again, and the daemon goes on");
    std::fs::write(local.path("paris/file"), vec![7; 1 << 20]).expect("the folder is ours");
    let (code, said) = run(send(&local, &["--quiet", "file", "--to", "tokyo"]));
    assert_eq!(code, Some(0), "{said}");
    local.signal("tokyo", Signal::TERM);
    let log = local.relay_log_until("tokyo", "site ends; arrived data is kept");
    assert!(log.iter().any(|line| line.contains("file is here, verified")), "{log:#?}");
    assert_eq!(std::fs::read(local.path("tokyo/file")).expect("it is there"), vec![7; 1 << 20]);
}

/// #17: the page did not report an unreachable controller.
#[test]
fn page_prints_its_address_and_a_silent_controller() {
    let mut local = LocalDaemons::start(TRIANGLE, &[]);
    local.kill(CONTROLLER);
    let mut command = local.command(&["status", "--web", "127.0.0.1:0", "--controller", local.address()]);
    let mut page = KilledOnDrop(command.stderr(std::process::Stdio::piped()).spawn().expect("it starts"));
    let lines = Lines::of(page.0.stderr.take().expect("it is piped"));
    let (trouble, place) = (lines.next(), lines.next());
    let (trouble, place) = (trouble.expect("it says what is wrong"), place.expect("and where it is"));
    assert!(trouble.contains(local.address()) && trouble.ends_with("; the page goes on asking"), "{trouble}");
    assert!(place.starts_with("http://127.0.0.1:") && place.contains("/ shows what is under way"), "{place}");
}

/// #17: a restarted controller did not report how many transfers it resumed.
#[test]
fn restarted_controller_prints_how_many_transfers_continue() {
    let mut local = LocalDaemons::start(TRIANGLE, &["paris"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    let (code, said) = run(send(&local, &["file", "--to", "lima", "--detach"]));
    assert_eq!(code, Some(0), "{said}");
    local.log_until("begins: file from paris to lima");
    local.restart_controller();
    local.log_until("transfers of before that go on: 1");
}

/// #17: the log showed neither refused requests nor their callers.
#[test]
fn refusals_are_logged_with_peer_and_reason_within_limits() {
    let local = LocalDaemons::start(TRIANGLE, &["paris", "tokyo"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    let (code, said) = run(send(&local, &["--quiet", "file", "--to", "tokyo"]));
    assert_eq!(code, Some(0), "{said}");
    let status =
        |more: &[&str]| run(local.command(&[&["status", "--controller", local.address()], more].concat()));
    // A refusal is no error of the daemon: the transfer has already ended.
    assert_eq!(status(&["1", "--cancel"]).0, Some(0));
    local.log_until(
        "operator `operator` at 127.0.0.1 is refused: transfer 1 is over already (DELETE /v1/transfers/1)",
    );
    assert_eq!(status(&["9", "--cancel"]).0, Some(2));
    local.log_until("is refused: no transfer 9: it never existed, or is forgotten");

    // A site that takes no part in the transfer sends repeated requests.
    let files = CredentialFiles::in_set(
        &local.path("keys/replicate"),
        anabranch_replicate::SYSTEM,
        Role::Site,
        "lima",
    );
    let identity = Identity::load(&files).expect("keys of the set");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::new(local.address(), &identity, Duration::from_secs(20)).expect("good settings");
        for _ in 0..30 {
            let looked = client.status(TransferId(1)).await;
            assert!(matches!(looked, Err(ClientError::Refused { status: 404, .. })), "{looked:?}");
        }
        let cancelled = client.cancel(TransferId(1)).await;
        assert!(matches!(cancelled, Err(ClientError::Refused { status: 404, .. })), "{cancelled:?}");
    });
    let log = local.log_until("(DELETE /v1/transfers/1); 29 more refusals");
    let looks = log.iter().filter(|line| line.contains("(GET /v1/transfers/1)"));
    let line = looks.clone().next().expect("the first look has its line");
    assert!(
        line.contains("WARN") && line.contains("site `lima` at 127.0.0.1 is refused: no transfer 1"),
        "{line}"
    );
    assert_eq!(looks.count(), 1, "{log:#?}");

    // The caller's keys are of another authority.
    local.keys("others");
    assert_eq!(status(&["--keys", "others"]).0, Some(1));
    local.log_until("a caller from 127.0.0.1: refused our certificate: it is of another authority");
}

/// #17: `--quiet` is an option of all commands, but daemons ignored it.
#[test]
fn quiet_daemon_logs_only_warnings_and_errors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("network.toml"), TRIANGLE).expect("ours");
    let command = |words: &[&str]| {
        let mut command = anabranch();
        command.current_dir(folder.path()).arg("--quiet").args(words);
        command
    };
    let (code, said) = run(command(&["replicate", "keys", "init", "--topology", "network.toml"]));
    assert_eq!((code, said.as_str()), (Some(0), ""));
    std::fs::create_dir(folder.path().join("paris")).expect("ours");
    let start = |log: &str, words: &[&str]| {
        let log = std::fs::File::create(folder.path().join(log)).expect("ours");
        let mut command = command(&["replicate", words[0], "--topology", "network.toml"]);
        KilledOnDrop(command.args(&words[1..]).stderr(log).spawn().expect("it starts"))
    };
    let controller = start("controller.log", &["controller", "--listen", "127.0.0.1:0"]);
    // A quiet daemon does not log its address.
    let at = listens_on(&controller);
    let relay =
        ["relay", "--site", "paris", "--dir", "paris", "--listen", "127.0.0.1:0", "--controller", &at];
    let paris = start("paris.log", &relay);
    let is_up = || {
        let out = command(&["replicate", "status", "--sites", "--json", "--controller", &at])
            .output()
            .expect("it runs");
        text(&out.stdout).contains("\"up\":true")
    };
    let end = std::time::Instant::now() + PATIENCE;
    while !is_up() {
        assert!(std::time::Instant::now() < end, "paris does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = |log: &str| std::fs::read_to_string(folder.path().join(log)).expect("ours");
    assert_eq!(said("controller.log"), "");
    paris.end_politely();
    while said("controller.log").is_empty() {
        assert!(std::time::Instant::now() < end, "it does not warn");
        std::thread::sleep(Duration::from_millis(50));
    }
    controller.end_politely();
    let log = said("controller.log");
    assert!(log.lines().all(|line| line.contains("WARN") && line.contains("site is away")), "{log}");
    assert_eq!(said("paris.log"), "");
}

/// Returns the TCP address on loopback at which a program listens, from the kernel's tables.
fn listens_on(program: &KilledOnDrop) -> String {
    const LISTEN: &str = "0A";
    let sockets = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", program.0.id())).into_iter().flatten().flatten();
        let links = open
            .filter_map(|entry| std::fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok());
        links
            .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect::<Vec<_>>()
    };
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let (sockets, table) = (sockets(), std::fs::read_to_string("/proc/net/tcp").expect("Linux"));
        let ports = table.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let port = fields[1].strip_prefix("0100007F:").filter(|_| fields[3] == LISTEN)?;
            sockets
                .iter()
                .any(|inode| inode == fields[9])
                .then(|| u16::from_str_radix(port, 16).expect("a port"))
        });
        if let Some(port) = { ports }.next() {
            return format!("127.0.0.1:{port}");
        }
        assert!(std::time::Instant::now() < end, "it does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// #17: if another controller used the address, an open database was reported; if another relay
/// did, only an error number.
#[test]
fn address_in_use_is_reported_with_its_likely_holder() {
    let local = LocalDaemons::start(TRIANGLE, &[]);
    let at = local.address().to_owned();
    let taken = |mut command: Command| {
        command.current_dir(local.path("."));
        let (code, said) = run(command);
        let expected =
            format!("anabranch: {at}: another program listens there already, perhaps this daemon itself");
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.starts_with(&expected) && said.contains("choose another address or port"), "{said}");
    };
    let words = |words: &[&str]| {
        let mut command = anabranch();
        command.args(words).args(["--listen", &at]);
        command
    };
    std::fs::create_dir(local.path("served")).expect("ours");
    taken(words(&["replicate", "controller", "--topology", "network.toml", "--store", "other.redb"]));
    taken(words(&["replicate", "relay", "--topology", "network.toml", "--site", "paris", "--dir", "served"]));
    for keys in [&["gather", "keys"][..], &["shuffle", "keys", "--hosts", "h"]] {
        let mut command = anabranch();
        let (code, said) = run({
            command.current_dir(local.path(".")).args(keys);
            command
        });
        assert_eq!(code, Some(0), "{said}");
    }
    taken(words(&["gather", "serve", "served"]));
    taken(words(&["shuffle", "coordinator"]));
    // A store in use by another controller is reported, too.
    let (code, said) =
        run(local.command(&["controller", "--topology", "network.toml", "--listen", "127.0.0.1:0"]));
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(
        said.contains("controller.redb: is in use by process ") && said.contains("end that one"),
        "{said}"
    );
}
