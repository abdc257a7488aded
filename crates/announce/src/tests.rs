//! Tests against a socket with prescribed answers. The tests of `cli` use a real agent.

use super::*;
use anabranch_shuffle_proto::announcement::{self, Announcement};
use anabranch_shuffle_proto::control;
use anabranch_shuffle_proto::coordinator::NAME_MAX;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::Instant;

/// A separate folder for a socket.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("anabranch-announce-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a writable temporary folder");
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Answers every line on every connection with `reply`. Passes on each line with the number of its
/// connection.
fn agent(folder: &Folder, reply: &'static str) -> mpsc::Receiver<(usize, String)> {
    let listener = UnixListener::bind(folder.socket()).expect("a free path");
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let tell = tell.clone();
            std::thread::spawn(move || converse(number, stream, reply, &tell));
        }
    });
    told
}

fn converse(number: usize, stream: UnixStream, reply: &str, tell: &mpsc::Sender<(usize, String)>) {
    let mut lines = BufReader::new(stream.try_clone().expect("a descriptor")).lines();
    while let Some(Ok(line)) = lines.next() {
        // The line is passed on before it is answered, so that lines of several connections are in
        // the order of their calls.
        if tell.send((number, line)).is_err() {
            return;
        }
        let _ = (&stream).write_all(reply.as_bytes());
    }
}

const OK: &str = "{\"ok\":true}\n";

fn pair(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).expect("loopback");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    (stream, listener.accept().expect("it is connected").0)
}

fn unused(announcer: &Announcer) -> MutexGuard<'_, State> {
    announcer.shared.lock().expect("no other thread uses it")
}

fn size(bytes: u64) -> ByteCount {
    ByteCount::new(bytes)
}

#[test]
fn flow_is_announced_grows_and_ends_over_one_connection() {
    let folder = Folder::new("flow");
    let lines = agent(&folder, OK);
    let announcer = Announcer::connect(folder.socket()).expect("it listens");
    let (stream, _other) = pair("127.0.0.1:0");
    let (local, remote) = (stream.local_addr().expect("bound"), stream.peer_addr().expect("connected"));
    let mut flow = announcer.announce(&stream, "job-\"7\\", size(1_000_000)).expect("taken");
    assert_eq!((flow.local(), flow.remote()), (local, remote));
    flow.grow(size(u64::MAX)).expect("taken");
    flow.ended().expect("taken");
    drop(announcer.announce(&stream, "b", size(60_000)).expect("taken"));
    let key = serde_json::json!({ "local": local, "remote": remote });
    for wanted in [
        serde_json::json!({ "flow": key, "coflow": "job-\"7\\", "size_bytes": 1_000_000 }),
        serde_json::json!({ "flow": key, "coflow": "job-\"7\\", "size_bytes": u64::MAX }),
        serde_json::json!({ "ended": key, "coflow": "job-\"7\\" }),
        serde_json::json!({ "flow": key, "coflow": "b", "size_bytes": 60_000 }),
        serde_json::json!({ "ended": key, "coflow": "b" }),
    ] {
        let (number, line) = lines.recv_timeout(Duration::from_secs(20)).expect("a line");
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((number, line), (0, wanted));
    }
}

#[test]
fn flow_addresses_equal_the_socket_addresses_with_ipv6() {
    let folder = Folder::new("ipv6");
    let _lines = agent(&folder, OK);
    let announcer = Announcer::new(folder.socket());
    let listener = TcpListener::bind("[::]:0").expect("both families");
    let port = listener.local_addr().expect("bound").port();
    let _stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let (accepted, _) = listener.accept().expect("it is connected");
    let flow = announcer.announce(&accepted, "t", size(1)).expect("taken");
    // The agent treats the mapped address as IPv4.
    assert_eq!(flow.local(), format!("[::ffff:127.0.0.1]:{port}").parse().expect("an address"));
}

#[test]
fn unconnected_and_unix_sockets_are_refused() {
    let announcer = Announcer::new("nowhere");
    let (unix, _other) = UnixStream::pair().expect("a pair");
    let error = announcer.announce(&unix, "t", size(1)).expect_err("no TCP");
    assert!(matches!(error, AnnounceError::Socket(_)), "{error}");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let error = announcer.announce(&listener, "t", size(1)).expect_err("not connected");
    assert!(matches!(error, AnnounceError::Socket(_)), "{error}");
}

#[test]
fn calls_fail_without_an_agent_and_recover_with_one() {
    let folder = Folder::new("away");
    let announcer = Announcer::new(folder.socket());
    let (stream, _other) = pair("127.0.0.1:0");
    assert!(Announcer::connect(folder.socket()).is_err());
    let error = announcer.announce(&stream, "t", size(1)).expect_err("nobody listens");
    assert!(matches!(&error, AnnounceError::Away { .. }), "{error}");
    assert!(error.to_string().contains("agent.sock") && !error.to_string().contains('\n'), "{error}");
    let mut flow = announcer.flow(&stream, "t").expect("it is connected");
    assert!(flow.grow(size(1)).is_err());

    let lines = agent(&folder, OK);
    flow.grow(size(2)).expect("it is there");
    assert_eq!(lines.recv().expect("a line").0, 0);
    // The agent is restarted, so the earlier connection is closed.
    std::fs::remove_file(folder.socket()).expect("it is there");
    drop(lines);
    let again = agent(&folder, OK);
    flow.grow(size(3)).expect("heard by the new one");
    assert!(again.recv().expect("a line").1.contains("\"size_bytes\":"));
}

#[test]
fn refusal_of_the_agent_is_reported_with_its_reason() {
    let folder = Folder::new("refused");
    let lines = agent(&folder, "{\"ok\":false,\"error\":\"no \\\"room\\\"\"}\n");
    let announcer = Announcer::new(folder.socket());
    let (stream, _other) = pair("127.0.0.1:0");
    let error = announcer.announce(&stream, "t", size(1)).expect_err("refused");
    let AnnounceError::Refused(reason) = &error else { panic!("{error}") };
    assert_eq!(reason, "no \"room\"");
    // The connection remains usable after a refusal.
    announcer.announce(&stream, "t", size(1)).expect_err("refused");
    assert_eq!(lines.iter().take(2).map(|(number, _)| number).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn possibly_known_flows_are_ended_and_refused_ones_not() {
    let (stream, _other) = pair("127.0.0.1:0");
    for (reply, said) in [("nonsense\n", 2), ("{\"ok\":false}\n", 1)] {
        let folder = Folder::new("heard");
        let lines = agent(&folder, reply);
        let announcer = Announcer::new(folder.socket());
        let mut flow = announcer.flow(&stream, "t").expect("it is connected");
        flow.grow(size(1)).expect_err("no good answer");
        drop(flow);
        for _ in 0..2 {
            announcer.announce(&stream, "last", size(1)).expect_err("no good answer");
        }
        // The last two announcements return no flow, so no end is announced for them.
        let next = |_| lines.recv_timeout(Duration::from_secs(20)).expect("a line").1;
        let lines: Vec<String> = (0..said + 2).map(next).collect();
        assert!(lines[said].contains("size_bytes") && lines[said + 1].contains("size_bytes"), "{lines:?}");
        assert_eq!(lines[1].contains("ended"), said == 2, "{lines:?}");
    }
}

#[test]
fn silent_agent_delays_callers_at_most_by_the_timeout() {
    let folder = Folder::new("silent");
    let listener = UnixListener::bind(folder.socket()).expect("a free path");
    let announcer = Announcer::new(folder.socket()).with_timeout(Duration::from_millis(50));
    let (stream, _other) = pair("127.0.0.1:0");
    for _ in 0..3 {
        // Simulates the end of the pause after a timeout.
        unused(&announcer).away_until = None;
        let begun = Instant::now();
        let error = announcer.announce(&stream, "t", size(1)).expect_err("no answer");
        let took = begun.elapsed();
        let AnnounceError::Away { error, .. } = error else { panic!("{error}") };
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert!(took >= Duration::from_millis(50), "{took:?}");
        // Checks that the call does not hang, not that it is fast.
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
    drop(listener);
    // The agent sends a reply without an end, too long a reply, or a malformed reply.
    for (reply, kind) in [
        ("x", std::io::ErrorKind::TimedOut),
        ("x".repeat(10_000).leak(), std::io::ErrorKind::InvalidData),
        ("{\"ok\":1}\n", std::io::ErrorKind::InvalidData),
        ("\n", std::io::ErrorKind::InvalidData),
    ] {
        std::fs::remove_file(folder.socket()).expect("it is there");
        let _lines = agent(&folder, reply);
        // The machine may be busy, so a case that gets an answer has a long timeout.
        let timeout = Duration::from_millis(if kind == std::io::ErrorKind::TimedOut { 50 } else { 20_000 });
        let announcer = Announcer::new(folder.socket()).with_timeout(timeout);
        let error = announcer.announce(&stream, "t", size(1)).expect_err("no answer");
        assert!(matches!(&error, AnnounceError::Away { error, .. } if error.kind() == kind), "{error}");
    }
}

#[test]
fn agent_with_too_many_waiting_programs_is_reported() {
    let folder = Folder::new("backlog");
    let listener = UnixListener::bind(folder.socket()).expect("a free path");
    rustix::net::listen(&listener, 0).expect("it listens");
    let _first = UnixStream::connect(folder.socket()).expect("there is one place");
    let (stream, _other) = pair("127.0.0.1:0");
    let error = Announcer::new(folder.socket()).announce(&stream, "t", size(1)).expect_err("no place");
    assert!(error.to_string().ends_with("has too many programs waiting"), "{error}");
}

#[test]
fn agent_is_not_called_shortly_after_a_timeout() {
    let folder = Folder::new("retry");
    let listener = UnixListener::bind(folder.socket()).expect("a free path");
    let announcer = Announcer::new(folder.socket()).with_timeout(Duration::from_millis(50));
    let (stream, _other) = pair("127.0.0.1:0");
    let begun = Instant::now();
    announcer.announce(&stream, "t", size(1)).expect_err("no answer");
    let until = unused(&announcer).away_until.expect("the agent did not answer");
    assert!(until >= begun + Duration::from_secs(1));
    // A busy machine may need longer than the second for the next calls.
    unused(&announcer).away_until = Some(until + Duration::from_secs(60));
    for _ in 0..2 {
        announcer.announce(&stream, "t", size(1)).expect_err("not asked");
    }
    let error = announcer.clone().announce(&stream, "t", size(1)).expect_err("not asked");
    assert!(error.to_string().ends_with("did not answer in time: not asked for 1 s"), "{error}");
    listener.set_nonblocking(true).expect("a socket");
    let _only = listener.accept().expect("the first call's");
    assert_eq!(listener.accept().expect_err("there is no other").kind(), std::io::ErrorKind::WouldBlock);
    unused(&announcer).away_until = Some(Instant::now());
    announcer.announce(&stream, "t", size(1)).expect_err("no answer");
    listener.accept().expect("it has been asked again");
}

#[test]
fn zero_timeout_fails_and_maximum_timeout_succeeds() {
    let folder = Folder::new("bounds");
    let _lines = agent(&folder, OK);
    let (stream, _other) = pair("127.0.0.1:0");
    let announcer = Announcer::new(folder.socket());
    let error = announcer.clone().with_timeout(Duration::ZERO).announce(&stream, "t", size(1));
    assert!(matches!(error, Err(AnnounceError::Away { .. })), "{error:?}");
    drop(announcer.with_timeout(Duration::MAX).announce(&stream, "t", size(1)).expect("taken"));
}

#[test]
fn threads_do_not_wait_for_each_other() {
    let folder = Folder::new("threads");
    let listener = UnixListener::bind(folder.socket()).expect("a free path");
    let announcer = Announcer::new(folder.socket()).with_timeout(Duration::from_secs(20));
    let (stream, _other) = pair("127.0.0.1:0");
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let (announcer, stream) = (announcer.clone(), stream.try_clone().expect("a descriptor"));
            std::thread::spawn(move || announcer.announce(&stream, "t", size(1)).map(drop))
        })
        .collect();
    // Each call opens a separate connection before any call is answered. The last call is answered
    // first.
    let streams: Vec<UnixStream> = (0..3).map(|_| listener.accept().expect("a connection").0).collect();
    let (tell, _told) = mpsc::channel();
    for (number, stream) in streams.into_iter().enumerate().rev() {
        let tell = tell.clone();
        std::thread::spawn(move || converse(number, stream, OK, &tell));
    }
    std::thread::spawn(move || {
        let (tell, _told) = mpsc::channel();
        for stream in listener.incoming().map_while(Result::ok) {
            let tell = tell.clone();
            std::thread::spawn(move || converse(0, stream, OK, &tell));
        }
    });
    for call in calls {
        call.join().expect("no panic").expect("answered");
    }
}

#[test]
fn forked_child_uses_its_own_connection() {
    let folder = Folder::new("fork");
    let lines = agent(&folder, OK);
    let announcer = Announcer::new(folder.socket());
    let (stream, _other) = pair("127.0.0.1:0");
    let number = || lines.recv_timeout(Duration::from_secs(20)).expect("a line").0;
    let mut flow = announcer.announce(&stream, "t", size(1)).expect("taken");
    // Simulates the state in a forked child.
    unused(&announcer).idle.as_mut().expect("it is kept").process += 1;
    flow.grow(size(2)).expect("taken");
    flow.grow(size(3)).expect("taken");
    assert_eq!([number(), number(), number()], [0, 1, 1]);
    // Simulates a fork while another thread holds the lock. The lock is never released in the
    // child.
    let held = unused(&announcer);
    flow.grow(size(4)).expect("taken");
    flow.grow(size(5)).expect("taken");
    assert_eq!([number(), number()], [2, 3]);
    drop(held);
}

#[test]
fn coflow_names_are_limited_as_by_the_agent() {
    let folder = Folder::new("names");
    let lines = agent(&folder, OK);
    let announcer = Announcer::new(folder.socket());
    let (stream, _other) = pair("127.0.0.1:0");
    let flow = announcer.announce(&stream, &"\u{1}".repeat(128), size(u64::MAX)).expect("it fits");
    assert!(lines.recv().expect("a line").1.len() < line::LINE_BYTES_MAX);
    drop(flow);
    let error = announcer.announce(&stream, &"a".repeat(129), size(1)).expect_err("too long");
    assert!(matches!(error, AnnounceError::TooLong { bytes: 129 }), "{error}");
}

/// Files whose name begins with `bad` must be refused, and all other files parsed.
#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/announce_reply");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the corpus is part of the repository") {
        let path = entry.expect("the folder can be listed").path();
        let name =
            path.file_name().and_then(|n| n.to_str()).expect("corpus files have plain names").to_owned();
        let bytes = std::fs::read(&path).expect("the corpus can be read");
        assert_eq!(exercise_reply(&bytes), !name.starts_with("bad"), "{name}");
        count += 1;
    }
    assert!(count >= 5, "{}", folder.display());
}

/// The agent must parse the lines that this crate writes, and both must have the same limits.
#[test]
fn lines_match_the_agents_format_and_length_limit() {
    assert_eq!(line::LINE_BYTES_MAX, announcement::LINE_BYTES_MAX);
    assert_eq!(line::NAME_BYTES_MAX, NAME_MAX);
    let (local, remote) = (([10, 0, 0, 1], 5).into(), ([10, 0, 0, 2], 9).into());
    let (flow, longest) = (FlowKey { local, remote }, "x".repeat(NAME_MAX));
    let key = control::FlowKey { local, remote };
    let read = |line: Line<'_>| {
        let mut buffer = [0; line::LINE_BYTES_MAX];
        Announcement::read(line.write(&mut buffer).expect("there is room"))
    };
    let said = Announcement::Flow { flow: key, coflow: longest.clone(), size_bytes: u64::MAX };
    assert_eq!(read(Line::announce(flow, &longest, u64::MAX)), Ok(said));
    let ended = Announcement::Ended { flow: key, coflow: Some(longest.clone()) };
    assert_eq!(read(Line::ended(flow, &longest)), Ok(ended));
}
