//! Wrong set-ups by operators: one line names the cause, and other users are not delayed.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: they use the clock, files and programs")]

use super::net::{CONTROLLER, LocalDaemons, PATIENCE, catches_interrupts, on_a_small_disk, run};
use anabranch_graph::file::{Defaults, load};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::Client;
use anabranch_replicate::wire::{RegisterRequest, TopologyDigest};
use anabranch_replicate_proto::control::TransferId;
use anabranch_units::BitRate;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

pub const TRIANGLE: &str = r#"
[[site]]
name = "paris"
[[site]]
name = "tokyo"
[[site]]
name = "lima"
[[cable]]
between = ["paris", "tokyo"]
[[cable]]
between = ["paris", "lima"]
[[cable]]
between = ["tokyo", "lima"]
"#;

pub fn send(local: &LocalDaemons, arguments: &[&str]) -> std::process::Command {
    let all = [&["send", "--controller", local.address(), "--from", "paris"], arguments].concat();
    local.command(&all)
}

/// #17: every attempt failed because of an unreachable site, which was never named, and all other
/// sites waited.
#[test]
fn unreachable_site_is_named_and_delays_no_other() {
    let mut local = LocalDaemons::start(TRIANGLE, &["paris", "tokyo"]);
    let mut lima = local.relay("lima", "lima");
    lima.args(["--advertise", "127.0.0.1:1"]);
    local.keep("lima", lima);
    local.wait_for(&["paris", "tokyo", "lima"]);
    std::fs::write(local.path("paris/file"), vec![7; 1 << 20]).expect("the folder is ours");
    let begun = Instant::now();
    let mut sending = send(&local, &["file", "--to", "tokyo,lima"]);
    let mut sending = sending.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    while !local.path("tokyo/file").exists() {
        assert!(begun.elapsed() < PATIENCE, "tokyo waits for lima");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(sending.try_wait().expect("ours").is_none(), "lima is tried again");
    let (code, _) = run(local.command(&["status", "1", "--cancel", "--controller", local.address()]));
    assert_eq!(code, Some(0));
    let said = sending.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    // Reported by paris or by tokyo, whichever is first.
    assert!(said.contains(" cannot connect to lima at 127.0.0.1:1: connection refused"), "{said}");
}

/// #17: each site failed to set an unknown congestion control, and the transfer restarted for ever.
#[test]
fn unknown_congestion_control_is_refused_in_one_line() {
    let local = LocalDaemons::start(TRIANGLE, &["paris", "tokyo"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    let (code, said) =
        run(send(&local, &["--quiet", "file", "--to", "tokyo", "--congestion-control", "foo"]));
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("paris: congestion control `foo`: unknown to this machine's kernel"), "{said}");
}

/// #18: the controller accepted a transfer for which its store had no room. After one full disk it
/// accepted no transfer until its restart.
#[test]
fn controller_with_a_full_store_waits_for_room() {
    let mut local = LocalDaemons::without_daemons(TRIANGLE);
    let (disk, store) = (local.path("small"), local.path("small/store"));
    let command = local.controller(&["--store", store.to_str().expect("plain")]);
    let Some(command) = on_a_small_disk(&command, &disk, 8) else { return };
    local.start_controller(command);
    for site in ["paris", "tokyo"] {
        local.keep(site, local.relay(site, site));
    }
    local.wait_for(&["paris", "tokyo"]);
    std::fs::write(local.path("paris/file"), vec![7; 1 << 20]).expect("the folder is ours");
    let (code, said) = run(send(&local, &["--quiet", "file", "--to", "tokyo"]));
    assert_eq!((code, said.as_str()), (Some(0), ""));
    // The transfer waits for a daemon that never starts.
    let (code, said) = run(send(&local, &["--detach", "file", "--to", "lima"]));
    assert_eq!(code, Some(0), "{said}");

    // The path leads to the file system in the controller's mount namespace.
    let filler = format!("/proc/{}/root{}/filler", local.controller_id(), disk.display());
    let mut file = std::fs::File::create(&filler).expect("it is ours, too");
    while file.write_all(&[1; 4096]).is_ok() {}
    // Nine transfers with long names need more space than the store's free pages have.
    let long = "n".repeat(200);
    let many: Vec<_> = (0..9).map(|i| format!("{long}-{i}")).collect();
    let sent = many.iter().map(|name| {
        let mut send = send(&local, &["--detach", "file", "--as", name, "--to", "tokyo"]);
        send.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    });
    let sent: Vec<_> = sent.collect();
    local.log_until("nothing is begun or changed until it can be written");
    let mut cancel = ask(&local, &["status", "2", "--cancel"]);
    let mut cancel = cancel.stdout(Stdio::null()).spawn().expect("it starts");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(cancel.try_wait().expect("a child"), None, "it said that what is not durable was done");
    drop(file);
    std::fs::remove_file(&filler).expect("ours");
    for sent in sent {
        let said = sent.wait_with_output().expect("it ends");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }
    local.log_until("the store can be written again");
    assert!(cancel.wait().expect("a child").success());
    let (code, said) = run(ask(&local, &["wait", "2"]));
    assert_eq!(code, Some(5), "{said}");
}

/// #17: a second relay of a site and the first replaced each other for ever, without a log line.
#[test]
fn second_relay_of_a_site_ends_with_one_line() {
    let local = LocalDaemons::start(TRIANGLE, &["paris", "tokyo"]);
    local.wait_for(&["paris"]);
    let (code, said) = run(local.relay("paris", "elsewhere"));
    assert_eq!(code, Some(1), "{said}");
    let last = said.lines().last().expect("it says why");
    assert!(
        last.contains("another relay of site `paris` is running") && last.contains("--take-over"),
        "{said}"
    );
}

/// #17: a relay with a site unknown to its controller reported for ever that the controller was
/// unreachable.
#[test]
fn relay_with_another_topology_ends_with_one_line() {
    let local = LocalDaemons::start(TRIANGLE, &[]);
    let other = TRIANGLE.replace("lima", "oslo");
    std::fs::write(local.path("network.toml"), other).expect("the folder is ours");
    let (code, said) = run(local.relay("paris", "paris"));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.lines().last().is_some_and(|l| l.contains("other sites or links than this controller's")),
        "{said}"
    );
}

/// A command whose stdout lines are read one by one. Each line, and the end, must come in time.
struct FollowedCommand {
    child: Child,
    lines: Receiver<String>,
    /// All of stderr, at its end.
    said: Receiver<String>,
}

impl FollowedCommand {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut stderr = child.stderr.take().expect("it is piped");
        let ((line, lines), (all, said)) = (channel(), channel());
        // A closed channel means that the reader has ended.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|l| line.send(l)));
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            all.send(String::from_utf8_lossy(&text).into_owned())
        });
        Self { child, lines, said }
    }

    /// The next line, which must be JSON.
    fn next(&mut self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("it says more, in time");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    /// Returns its exit code (minus the signal that ended it), its last line on stdout and its
    /// stderr.
    fn end(mut self) -> (i32, Value, String) {
        use std::os::unix::process::ExitStatusExt as _;
        let mut last = None;
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => last = Some(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it goes on {PATIENCE:?} after {last:?}"),
            }
        }
        let said = self.said.recv_timeout(PATIENCE).expect("it ends in time");
        let status = self.child.wait().expect("ours to reap");
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
        (code, last.and_then(|l| serde_json::from_str(&l).ok()).unwrap_or_default(), said)
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill is there").success());
    }
}

impl Drop for FollowedCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(local: &LocalDaemons, arguments: &[&str]) -> Command {
    local.command(&[arguments, &["--controller", local.address()]].concat())
}

/// Whether this process ignores SIGHUP: `SigIgn` of proc_pid_status(5), whose lowest bit is signal
/// 1.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| line.strip_prefix("SigIgn:")?.trim().chars().last()?.to_digit(16));
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// #17: after a lost terminal, the same command reported that the file could not be sent, because
/// it was being sent. No command could wait for the running transfer.
#[test]
fn same_command_follows_the_transfer_of_a_lost_terminal() {
    if ignores_hangups() {
        return crate::skip("hangups are ignored here, as under nohup, and programs inherit it");
    }
    let mut local = LocalDaemons::start(TRIANGLE, &["paris"]);
    std::fs::write(local.path("paris/file"), vec![7; 100_000]).expect("the folder is ours");
    // lima is down, so the transfer waits for it.
    let again = |more: &[&str]| send(&local, &[&["file", "--to", "lima"], more].concat());
    let mut first = FollowedCommand::start(again(&["--json"]));
    assert_eq!(first.next()["event"], "submitted");
    first.signal("-HUP");
    assert_eq!(first.end().0, -1, "it ends by the signal");
    let is_under_way = |local: &LocalDaemons| {
        let all = local.transfers();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]["outcome"].is_null()
    };
    assert!(is_under_way(&local), "nothing is cancelled");

    let (code, said) = run(again(&["--scheme", "coded"]));
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("transfer 1 ") && said.contains("scheme auto, not coded"), "{said}");
    let (code, said) = run(again(&["--detach"]));
    assert_eq!(code, Some(0), "{said}");

    let mut second = FollowedCommand::start(again(&["--json"]));
    let attached = second.next();
    assert_eq!((&attached["event"], &attached["transfer"]), (&"attached".into(), &1.into()));
    let mut third = FollowedCommand::start(again(&["--json"]));
    assert_eq!(third.next()["event"], "attached");
    third.signal("-INT");
    let (code, _, said) = third.end();
    assert_eq!(code, 130, "{said}");
    assert!(said.contains("transfer 1 goes on") && said.contains("status 1 --cancel"), "{said}");
    assert!(is_under_way(&local), "who attached stops nothing");
    let mut follow = FollowedCommand::start(ask(&local, &["status", "--follow", "1", "--json"]));
    let begun = follow.next();
    assert_eq!(begun["event"], "submitted");
    assert!(begun["at_unix_ms"].as_u64().is_some_and(|ms| ms > 1_500_000_000_000), "{begun}");
    follow.signal("-INT");
    let (code, _, said) = follow.end();
    assert_eq!((code, said.trim()), (130, "transfer 1 goes on"));
    let (code, said) = run(ask(&local, &["wait", "1", "--timeout", "50 ms"]));
    assert_eq!((code, said.lines().count()), (Some(124), 1), "{said}");
    for unknown in [&["wait", "1", "99"][..], &["status", "--follow", "99"]] {
        let (code, said) = run(ask(&local, unknown));
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains("no transfer 99"), "{said}");
    }
    assert!(is_under_way(&local), "who only looks stops nothing");

    let wait = FollowedCommand::start(ask(&local, &["wait", "1"]));
    let mut follow = FollowedCommand::start(ask(&local, &["status", "--follow", "1", "--json"]));
    assert_eq!(follow.next()["event"], "submitted");
    local.restart_controller();
    let lima = local.relay("lima", "lima");
    local.keep("lima", lima);
    for (who, is_summed) in [(second, true), (follow, true), (wait, false)] {
        let (code, last, said) = who.end();
        assert_eq!(code, 0, "{said}");
        if is_summed {
            assert_eq!((&last["event"], &last["verified"]), (&"summary".into(), &true.into()), "{last}");
        } else {
            // The restart may take longer than the first try.
            let is_about_the_restart =
                |line: &str| line.contains("connection refused") && line.contains("trying on");
            assert!(said.lines().all(is_about_the_restart), "{said}");
        }
    }
    assert_eq!(std::fs::read(local.path("lima/file")).expect("it is there"), vec![7; 100_000]);
    assert_eq!(local.transfers().len(), 1);
}

/// Ctrl-C and SIGTERM stop the transfer. A lost terminal does not.
#[test]
fn interrupt_and_terminate_signals_stop_the_transfer() {
    let local = LocalDaemons::start(TRIANGLE, &["paris"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    for (id, signal) in [(1, "-TERM"), (2, "-INT")] {
        let mut sending = FollowedCommand::start(send(&local, &["file", "--to", "lima", "--json"]));
        assert_eq!(sending.next()["event"], "submitted");
        sending.signal(signal);
        let (code, _, said) = sending.end();
        assert_eq!(code, 130, "{said}");
        assert!(said.contains(&format!("transfer {id} stopped")), "{said}");
        let (code, said) = run(ask(&local, &["wait", &id.to_string()]));
        assert_eq!(code, Some(5), "{said}");
        assert!(said.contains("(lima): cancelled"), "{said}");
    }
}

/// #17: the command ended with a connection error, and a second Ctrl-C did nothing.
#[test]
fn ctrl_c_without_controller_says_the_transfer_may_continue() {
    let mut local = LocalDaemons::start(TRIANGLE, &["paris"]);
    let begin = |name: &str| {
        std::fs::write(local.path("paris").join(name), "x").expect("the folder is ours");
        let mut sending = FollowedCommand::start(send(&local, &[name, "--to", "lima", "--json"]));
        assert_eq!(sending.next()["event"], "submitted");
        sending
    };
    let (once, mut again) = (begin("once"), begin("again"));
    local.kill(CONTROLLER);
    once.signal("-INT");
    let end = Instant::now() + PATIENCE;
    while again.child.try_wait().expect("ours").is_none() {
        assert!(Instant::now() < end, "Ctrl-C does not end it");
        again.signal("-INT");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (id, wanted, sending) in [(1, 1, once), (2, 130, again)] {
        let (code, _, said) = sending.end();
        assert_eq!(code, wanted, "{said}");
        assert!(said.contains(&format!("transfer {id} may go on")), "{said}");
    }
}

/// #17: the transfer was reported as stopped, with 130, although all sites had the file.
#[test]
fn ctrl_c_after_the_end_shows_the_result() {
    let mut local = LocalDaemons::start(TRIANGLE, &["paris"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    let mut sending = FollowedCommand::start(send(&local, &["file", "--to", "lima", "--json"]));
    assert_eq!(sending.next()["event"], "submitted");
    sending.signal("-STOP");
    let lima = local.relay("lima", "lima");
    local.keep("lima", lima);
    let (code, said) = run(ask(&local, &["wait", "1"]));
    assert_eq!(code, Some(0), "{said}");
    sending.signal("-INT");
    sending.signal("-CONT");
    let (code, last, said) = sending.end();
    assert_eq!(code, 0, "{said}");
    assert_eq!((&last["event"], &last["outcome"]), (&"summary".into(), &"done".into()), "{last}");
}

/// #17: the timeout did not bound the first request, and transfers were watched one after another.
#[test]
fn several_transfers_are_awaited_together_within_the_timeout() {
    let mut local = LocalDaemons::start(TRIANGLE, &["paris", "tokyo"]);
    for (id, name, to) in [("1", "late", "lima"), ("2", "early", "tokyo")] {
        std::fs::write(local.path("paris").join(name), "x").expect("the folder is ours");
        let (code, said) = run(send(&local, &[name, "--to", to, "--detach"]));
        assert_eq!(code, Some(0), "{id}: {said}");
    }
    let mut wait = FollowedCommand::start(ask(&local, &["wait", "1", "2", "--json"]));
    loop {
        let line = wait.next();
        if line["event"] == "summary" {
            assert_eq!(line["transfer"], 2, "{line}");
            break;
        }
    }
    let lima = local.relay("lima", "lima");
    local.keep("lima", lima);
    let (code, last, said) = wait.end();
    assert_eq!((code, &last["transfer"], &last["event"]), (0, &1.into(), &"summary".into()), "{said}");

    local.signal(CONTROLLER, rustix::process::Signal::STOP);
    let (code, said) = run(ask(&local, &["wait", "1", "--timeout", "50 ms"]));
    assert_eq!((code, said.lines().count()), (Some(124), 1), "{said}");
    local.signal(CONTROLLER, rustix::process::Signal::CONT);
}

/// #17: a transfer that the controller had forgotten was reported as wrong usage, with exit code 2.
#[test]
fn transfer_forgotten_by_the_controller_is_no_wrong_usage() {
    let mut local = LocalDaemons::start(TRIANGLE, &["paris"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    let mut sending = FollowedCommand::start(send(&local, &["file", "--to", "lima", "--json"]));
    assert_eq!(sending.next()["event"], "submitted");
    local.kill(CONTROLLER);
    std::fs::remove_file(local.path("controller.redb")).expect("it was there");
    local.restart_controller();
    let (code, _, said) = sending.end();
    assert_eq!((code, said.lines().count()), (1, 1), "{said}");
    assert!(said.contains("the controller no longer knows transfer 1"), "{said}");
}

/// #17: a dry run planned a nonexistent file, and reported neither size nor time.
#[test]
fn dry_run_queries_the_source_and_creates_no_transfer() {
    let local = LocalDaemons::start(TRIANGLE, &["paris", "tokyo"]);
    local.wait_for(&["paris", "tokyo"]);
    std::fs::write(local.path("paris/file"), vec![7; 100_000]).expect("the folder is ours");
    std::fs::create_dir(local.path("paris/folder")).expect("the folder is ours");
    let pipe = Command::new("mkfifo").arg(local.path("paris/pipe")).status();
    assert!(pipe.expect("mkfifo is there").success());
    let dry = |more: &[&str]| send(&local, &[&["--dry-run", "--to", "tokyo, lima"], more].concat());

    let (code, plan, said) = FollowedCommand::start(dry(&["file", "--json"])).end();
    assert_eq!((code, said.as_str()), (0, ""));
    assert_eq!((&plan["length_bytes"], &plan["limited_bps"]), (&100_000.into(), &Value::Null), "{plan}");
    assert_eq!(plan["traffic_bytes"], 200_000, "to each of two, once: {plan}");
    assert!(plan["time_s"].as_f64().is_some_and(|s| s > 0.0) && plan["rate_bps"].is_u64(), "{plan}");
    let (code, held, said) = FollowedCommand::start(dry(&["file", "--json", "--bwlimit", "1 MB/s"])).end();
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(held["limited_bps"].as_u64().is_some_and(|bps| bps <= 8_000_000), "{held}");
    let mut people = dry(&["file"]);
    let shown = people.stdout(Stdio::piped()).output().expect("it runs").stdout;
    let shown = String::from_utf8(shown).expect("text");
    for part in
        ["file at paris: 100.00 kB", "no scheme can be faster than 2 Gbit/s", "200.00 kB over all links"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }

    for name in ["missing", "folder", "pipe", "../network.toml"] {
        let (code, said) = run(dry(&[name]));
        // Only the last is wrong whatever the site holds.
        let expected = if name.starts_with("..") { 2 } else { 1 };
        assert_eq!((code, said.lines().count()), (Some(expected), 1), "{said}");
        let (real, wanted) = run(send(&local, &["--quiet", "--to", "tokyo", name]));
        assert_eq!(real, code, "{wanted}");
        let reason = said.trim_end().split_once("paris: ").map_or(&said[..], |(_, reason)| reason);
        assert!(wanted.contains(reason.trim_end()), "{wanted}: not {reason}");
    }
    let sent = local.transfers().len();
    assert_eq!(sent, 3, "the real ones that reached the controller");
    // A source's answer to a question is no failure, and its number means nothing to operators.
    let log = local.relay_log_until("paris", "/paris/pipe");
    let failed = log.iter().filter(|line| line.contains("WARN") && line.contains("its part here failed"));
    assert_eq!(failed.count(), sent, "{log:#?}");
    let transfer = |line: &str| -> Option<u64> {
        let number = line.split_once("transfer=")?.1;
        number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    assert!(log.iter().filter_map(|line| transfer(line)).all(|number| number <= 3), "{log:#?}");
    let away = local.command(&[
        "send",
        "--controller",
        local.address(),
        "--from",
        "lima",
        "--to",
        "paris",
        "--dry-run",
        "file",
    ]);
    let (code, said) = run(away);
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("lima is away"), "{said}");
    assert_eq!(local.transfers().len(), sent);
    assert_eq!(std::fs::read_dir(local.path("tokyo")).expect("listed").count(), 0);

    // The command asks a source that does not answer.
    local.signal("paris", rustix::process::Signal::STOP);
    let asking = FollowedCommand::start(dry(&["file"]));
    catches_interrupts(&asking.child);
    std::thread::sleep(Duration::from_millis(500));
    asking.signal("-INT");
    let (code, _, said) = asking.end();
    assert_eq!((code, said.as_str()), (130, "nothing was sent\n"));
    local.signal("paris", rustix::process::Signal::CONT);
}

/// #17: a site that registered repeatedly filled the controller's log, with a line each time.
#[test]
fn different_relay_topology_is_logged_once() {
    let local = LocalDaemons::start(TRIANGLE, &[]);
    let files = CredentialFiles::in_set(
        &local.path("keys/replicate"),
        anabranch_replicate::SYSTEM,
        Role::Site,
        "lima",
    );
    let identity = Identity::load(&files).expect("keys of the set");
    let slow = Defaults::new(BitRate::mbps(7));
    let slow = load("network.toml", &slow, |_| Ok(TRIANGLE.to_owned())).expect("a good topology");
    let mut request = RegisterRequest::new(1, vec![]);
    request.topology = Some(TopologyDigest::of(&slow));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::new(local.address(), &identity, Duration::from_secs(20)).expect("good settings");
        for _ in 0..20 {
            let registered = client.register("lima", &request).await.expect("sites and links are the same");
            assert!(registered.warning.is_some());
        }
        client.status(TransferId(9)).await.expect_err("there is none");
    });
    let log = local.log_until("no transfer 9");
    let said = log.iter().filter(|line| line.contains("other rates or delays")).collect::<Vec<_>>();
    assert!(matches!(&said[..], [line] if line.contains("WARN") && line.contains("site `lima`")), "{log:#?}");
}

/// #17: a URL was resolved as a host name.
#[test]
fn controller_address_may_be_an_https_url_only() {
    let local = LocalDaemons::start(TRIANGLE, &[]);
    let at = local.address();
    for good in [format!("https://{at}"), format!("https://{at}/"), format!("HTTPS://{at}")] {
        let (code, said) = run(local.command(&["status", "--controller", &good]));
        assert_eq!(code, Some(0), "{said}");
    }
    for (bad, why) in [
        ("http://127.0.0.1:7171", "TLS only"),
        ("Http://127.0.0.1:7171", "TLS only"),
        ("https://127.0.0.1", "must be host:port"),
        ("https://127.0.0.1/x:7171", "must be host:port"),
        ("https://127.0.0.1:7171/x", "must be host:port"),
        ("https://me@127.0.0.1:7171", "must be host:port"),
        ("ssh://127.0.0.1:7171", "must be host:port"),
    ] {
        let (code, said) = run(local.command(&["status", "--controller", bad]));
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(bad) && said.contains(why), "{said}");
    }
}
